"""Out-of-bounds accesses get their safe meaning: a read gives 0 or the annotated value, a write is dropped.

Input: async stage. Output: the same, every access to a tensor or shared buffer whose indices are not *proven* in range
wrapped in its condition. Views count as buffers of their own, by their declared shape. TMA needs no guards: the tensor
map has the bounds. An access at one fixed index that is out of range is an error at the user's line.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.errors import Location, LoweringError
from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.atomic_ops import Atomic, AtomicLoad, AtomicStore
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import (
    Compare,
    Expr,
    Load,
    LogicalAnd,
    LogicalOr,
    Select,
    Var,
    as_expr,
    cast,
    compare,
    constant,
    constant_value,
    logical_and,
)
from ptxtile.ir.program import Program, Why
from ptxtile.ir.rewrite import contains, free_variables, map_children, walk
from ptxtile.ir.statements import If, Seq, Statement, Store
from ptxtile.ir.tile_ops import SafeValue
from ptxtile.ir.types import int32, int64
from ptxtile.lower.legalize import never_wraps, widen
from ptxtile.lower.options import Options
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.target import Target

_GUARDED = (Scope.GLOBAL, Scope.SHARED, Scope.LOCAL, Scope.FRAGMENT)


def run(program: Program, target: Target, options: Options) -> Program:
    kernels, why = [], []
    for kernel in program.kernels:
        guard = _Guard(analyzer_for(program, kernel), kernel.thread, {symbol.name for symbol in program.symbols})
        guard.safe_values = {n.buffer.name: n.value for n in walk(kernel.body, SafeValue)}
        kernels.append(replace(kernel, body=guard.visit(kernel.body)))
        why.extend(guard.why)
    return replace(program, kernels=tuple(kernels)).with_why(*why)


class _Guard(ScopedRewriter, kinds=(Load,)):
    def __init__(self, analyzer: Analyzer, thread: Var, symbols: set[str]) -> None:
        super().__init__(analyzer, thread)
        self.symbols = symbols
        self.why: list[Why] = []
        self.location: Location | None = None
        self.safe_values: dict[str, Expr] = {}

    def visit(self, node: Any) -> Any:
        if isinstance(node, Statement) and node.location is not None:
            self.location = node.location
        return super().visit(node)

    def expression(self, node: Expr) -> Expr:
        """Guards the loads inside, with the conditions of lazy operators assumed on the side where they hold."""
        if not contains(node, Load):
            return node
        if isinstance(node, Select):
            condition = self.expression(node.condition)
            with self.analyzer.scope():
                self.analyzer.assume(condition)
                if_true = self.expression(node.if_true)
            if_false = self.expression(node.if_false)
            return Select(condition, if_true, if_false, node.dtype)
        if isinstance(node, (LogicalAnd, LogicalOr)):
            left = self.expression(node.left)
            with self.analyzer.scope():
                if isinstance(node, LogicalAnd):
                    self.analyzer.assume(left)
                right = self.expression(node.right)
            return type(node)(left, right)
        node = map_children(node, self.expression)
        if isinstance(node, Load) and node.buffer.scope in _GUARDED:
            condition = self.condition(node.buffer, node.indices, "read")
            if condition is not None:
                otherwise = self.safe_values.get(node.buffer.name, constant(0, node.dtype))
                return Select(condition, node, otherwise, node.dtype)
        return node

    def rewrite_SafeValue(self, node: SafeValue) -> Statement:
        return Seq(())

    def rewrite_Store(self, node: Store) -> Statement:
        if node.buffer.scope not in _GUARDED:
            return node
        condition = self.condition(node.buffer, node.indices, "write")
        return node if condition is None else If(condition, node, location=node.location)

    def rewrite_Atomic(self, node: Atomic) -> Statement:
        return self._atomic(node, node.result)

    def rewrite_AtomicLoad(self, node: AtomicLoad) -> Statement:
        return self._atomic(node, node.result)

    def rewrite_AtomicStore(self, node: AtomicStore) -> Statement:
        return self._atomic(node, None)

    def _atomic(self, node: Atomic | AtomicLoad | AtomicStore, result: Buffer | None) -> Statement:
        """Out of bounds nothing happens, and the value from before is 0."""
        condition = self.condition(node.buffer, node.indices, "atomic access")
        if condition is None:
            return node
        nothing = None
        if result is not None:
            nothing = Store(result, (), constant(0, result.dtype), location=node.location)
        return If(condition, node, nothing, location=node.location)

    def condition(self, buffer: Buffer, indices: tuple[Expr, ...], what: str) -> Expr | None:
        """What still has to hold for the access to be in range; None if it is proven."""
        result: Expr | None = None
        for dimension, (index, size) in enumerate(zip(indices, buffer.shape, strict=True)):
            for comparison in in_range(index, as_expr(size), self.analyzer):
                proven = self.analyzer.prove(comparison)
                # A tensor without elements launches nothing. An index that varies may miss a small tensor just as it
                # hangs over the edge of a large one (a neighbour in a stencil over one row): guards are for that.
                if proven is False and constant_value(size) != 0 and free_variables(index) <= self.symbols:
                    raise LoweringError(
                        f"this {what} of {buffer.name} is always out of range in dimension {dimension}",
                        location=self.location,
                        expected=f"an index of at least 0 and below {_shown(as_expr(size))}",
                        got=f"index {_shown(index)}",
                    )
                if proven is not True:
                    result = comparison if result is None else logical_and(result, comparison)
        if result is not None:
            subject = f"{what} of {buffer.name}"
            reason = f"not proven: {_shown(result)}"
            self.why.append(Why("guard_bounds", subject, "guarded", reason, self.location))
        return result


def _shown(expression: Expr) -> str:
    from ptxtile.ir.print_expressions import print_expression  # by those alone that have something to say

    return print_expression(expression)


def in_range(index: Expr, size: Expr, analyzer: Analyzer) -> tuple[Compare, Compare]:
    """0 ≤ index and index < size, in 64 bits where the index could wrap in 32."""
    if int64 in (index.dtype, size.dtype) or not never_wraps(index, analyzer):
        index, size = widen(index, analyzer), widen(size, analyzer)
    elif index.dtype != size.dtype:
        index, size = cast(index, int32), cast(size, int32)
    return compare("ge", index, 0), compare("lt", index, size)

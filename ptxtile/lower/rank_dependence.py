"""What a CTA's place in its cluster decides: which scalars, loads and control flow differ between the CTAs of one.

Along one axis of the cluster, a block index is ``size · cluster + rank``. A value does not depend on the rank when its
expression, with the scalars that it is made of filled in, simplifies to one without the rank. Everything else is
followed through the program as in :mod:`ptxtile.lower.thread_dependence`.
"""

from __future__ import annotations

from typing import Any

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.effects import private_results
from ptxtile.ir.expressions import Compare, Expr, Load, LogicalAnd, LogicalOr, Unary, Var
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import has_load, substitute, walk
from ptxtile.ir.simplify_expression import simplify_expression
from ptxtile.ir.statements import Break, Continue, For, If, Let, Statement, Store, While
from ptxtile.ir.tile_ops import Copy, Fill, Gemm
from ptxtile.ir.types import int32
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for

LARGEST_DEFINITION = 200
"""Nodes of a scalar's expression that are filled in where it is used; a larger one is followed by its name."""

_PRIVATE = (Scope.LOCAL, Scope.REGISTER, Scope.FRAGMENT)


class RankDependence:
    """Of a kernel in the tile stage, along ``axis`` (0 to 2) of its cluster."""

    def __init__(self, program: Program, kernel: Kernel, axis: int) -> None:
        self._dependent: set[str] = set()
        self._left_early: set[int] = set()
        found = -1
        while found != len(self._dependent) + len(self._left_early):
            found = len(self._dependent) + len(self._left_early)
            walk_through = _Walk(program, kernel, axis, self._dependent, self._left_early)
            walk_through.visit(kernel.body)
        self._same = walk_through.same

    def is_same(self, node: Statement) -> bool:
        """Of a Copy: whether its regions are the same in all CTAs; of a For, While or If: whether all CTAs go the same
        way."""
        return self._same[id(node)]


class _Walk(ScopedRewriter):
    """One walk through the kernel, in program order. ``dependent``: names of variables and private storages that are
    known to depend on the rank; the walk adds to it, and to ``left_early``, loops that not all CTAs leave together."""

    def __init__(self, program: Program, kernel: Kernel, axis: int, dependent: set[str], left_early: set[int]) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        block, size = kernel.block_vars[axis], kernel.cluster[axis]
        cluster, self.rank = Var(f"{block.name}_cluster", int32), Var(f"{block.name}_rank", int32)
        highest = self.analyzer.bounds(block)[1]
        self.analyzer.bind(cluster, 0, int(highest) // size)
        self.analyzer.bind(self.rank, 0, size - 1)
        self.analyzer.bind_value(block, cluster * size + self.rank)
        self.size = size
        self.values: dict[str, Expr] = {block.name: cluster * size + self.rank}
        self.dependent, self.left_early = dependent, left_early
        self.same: dict[int, bool] = {}
        self.loops: list[int] = []
        self.divergent_in: list[int] = []
        """For each condition or loop around here that CTAs pass differently: how many loops are around it."""

    # -- expressions -----------------------------------------------------------------------------------------------

    def depends(self, expression: Expr) -> bool:
        match expression:
            case LogicalAnd(left, right, _) | LogicalOr(left, right, _):
                return self.depends(left) or self.depends(right)
            case Unary("not", operand, _):
                return self.depends(operand)
            case Compare("lt" | "ge", left, right, _) if left.dtype == int32:
                return self._comparison_depends(expression, left, right)
            case Compare("le" | "gt", left, right, _) if left.dtype == int32:
                return self._comparison_depends(expression, right, left)
        return self._mentions_rank(self._simplified(expression))

    def _comparison_depends(self, comparison: Expr, low: Expr, high: Expr) -> bool:
        """Of whether ``low < high``: the rank does not matter either where it only moves the difference within a
        multiple of the cluster's size, as ⌊difference / size⌋ is negative exactly when the difference is."""
        if not self._mentions_rank(self._simplified(comparison)):
            return False
        difference = substitute(low - high, self.values)
        if not self.analyzer.fits(difference):
            return True
        return self._mentions_rank(simplify_expression(difference // self.size, self.analyzer))

    def _simplified(self, expression: Expr) -> Expr:
        return simplify_expression(substitute(expression, self.values), self.analyzer)

    def _mentions_rank(self, expression: Expr) -> bool:
        for node in walk(expression):
            if isinstance(node, Var) and (node.name == self.rank.name or node.name in self.dependent):
                return True
            if isinstance(node, Load) and node.buffer.scope is not Scope.GLOBAL:
                private = node.buffer.scope in _PRIVATE
                if not private or node.buffer.storage.name in self.dependent:
                    return True
        return False

    # -- statements ------------------------------------------------------------------------------------------------

    def visit(self, node: Any) -> Any:
        if isinstance(node, Let):
            self._let(node)
        elif isinstance(node, Store) and node.buffer.scope in _PRIVATE:
            if self.divergent_in or any(self.depends(part) for part in (*node.indices, node.value)):
                self.dependent.add(node.buffer.storage.name)
        elif isinstance(node, GpuOp):
            self.dependent.update(buffer.storage.name for buffer in private_results(node))
        elif isinstance(node, Copy):
            starts = (*node.source.starts, *node.destination.starts)
            self.same[id(node)] = not any(self.depends(start) for start in starts)
            source = node.source.buffer
            known = source.scope is not Scope.SHARED and source.storage.name not in self.dependent
            self._filled(node.destination.buffer, same=known and self.same[id(node)])
        elif isinstance(node, Fill):
            decides = (node.value, *node.destination.starts)
            self._filled(node.destination.buffer, same=not any(map(self.depends, decides)))
        elif isinstance(node, Gemm):
            self._filled(node.accumulator.buffer, same=False)
        elif isinstance(node, (Break, Continue)):
            if self.divergent_in and self.divergent_in[-1] >= len(self.loops):
                self.left_early.add(self.loops[-1])
        elif isinstance(node, (For, While, If)):
            return self._controlled(node)
        return super().visit(node)

    def _filled(self, buffer: Buffer, same: bool) -> None:
        if buffer.scope in _PRIVATE and (self.divergent_in or not same):
            self.dependent.add(buffer.storage.name)

    def _let(self, node: Let) -> None:
        value = self._simplified(node.value)
        if has_load(value) or sum(1 for _ in walk(value)) > LARGEST_DEFINITION:
            if self._mentions_rank(value):
                self.dependent.add(node.var.name)
        else:
            self.values[node.var.name] = value

    def _controlled(self, node: For | While | If) -> Any:
        expressions = (node.start, node.stop) if isinstance(node, For) else (node.condition,)
        same = not any(self.depends(e) for e in expressions) and id(node) not in self.left_early
        self.same[id(node)] = same
        if isinstance(node, For) and not same:
            self.dependent.add(node.var.name)
        is_loop = not isinstance(node, If)
        if is_loop:
            self.loops.append(id(node))
        if not same:
            self.divergent_in.append(len(self.loops))
        result = super().visit(node)
        if not same:
            self.divergent_in.pop()
        if is_loop:
            self.loops.pop()
        return result

"""Tiles outside of the domain, for CTAs whose cluster still has tiles inside.

A load can be multicast only if all CTAs of a cluster take the same rounds. Where some of them have no tile (three rows
of tiles for clusters of two), a condition on the CTA's place keeps them out. It is dropped here when what it
guards does nothing outside: every write to global memory is beyond its tensor then, and what is left in registers and
shared memory is overwritten before it is read. The CTA then multiplies zeros in step with the others.
"""

from __future__ import annotations

from typing import Any

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr, as_expr, cast, logical_not
from ptxtile.ir.gpu_ops import BarSync, GpuOp
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import buffers_of, map_children, walk
from ptxtile.ir.statements import (
    Allocate,
    Break,
    Continue,
    For,
    If,
    Let,
    ParallelFor,
    Seq,
    Statement,
    Store,
    View,
    While,
)
from ptxtile.ir.tile_ops import Assume, Copy, CopyPath, Fill, Gemm, Print, Region
from ptxtile.ir.warp_ops import SyncWarp
from ptxtile.lower.rank_dependence import RankDependence
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for

_ON_CHIP = (Scope.SHARED, Scope.FRAGMENT, Scope.REGISTER, Scope.LOCAL)


def without_tail_conditions(program: Program, kernel: Kernel, dependences: list[RankDependence]) -> Statement:
    """``kernel.body`` without the conditions around TMA loads on which the CTAs of a cluster differ and that need not
    be there; the same object where there are none."""
    conditions = [
        node
        for node in walk(kernel.body, If)
        if node.otherwise is None
        and any(n.path is CopyPath.TMA_LOAD for n in walk(node.then, Copy))
        and not all(dependence.is_same(node) for dependence in dependences)
    ]
    body = kernel.body
    for condition in conditions:
        if _is_overwritten(kernel.body, condition.then):
            tails = _Tails(program, kernel, condition)
            tails.visit(kernel.body)
            if tails.harmless:
                body = _without(body, condition, tails.unknown)
    return body


class _Tails(ScopedRewriter):
    """Walks the kernel; inside ``condition`` it takes that not to hold. ``harmless``: nothing was found there that has
    an effect. ``unknown``: what is assumed inside and does not follow then."""

    def __init__(self, program: Program, kernel: Kernel, condition: If) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.condition = condition
        self.inside = False
        self.harmless = True
        self.unknown: list[Assume] = []

    def visit(self, node: Any) -> Any:
        if node is self.condition:
            with self.analyzer.scope():
                self.analyzer.assume(logical_not(node.condition))
                self.inside = True
                self.visit(node.then)
                self.inside = False
            return node
        if not self.inside:
            return super().visit(node)
        if isinstance(node, Assume):
            if self.analyzer.prove(node.condition) is not True:
                self.unknown.append(node)
                return None  # and is not assumed
            return node
        if isinstance(node, If) and self.analyzer.prove(node.condition) is False:
            return node if node.otherwise is None else self.visit(node.otherwise)
        self.harmless &= self._has_no_effect(node)
        return super().visit(node)

    def _has_no_effect(self, node: Any) -> bool:
        """Of the statement itself, without those inside of it."""
        match node:
            case Store(buffer, indices):
                return buffer.scope in _ON_CHIP or self._is_beyond(buffer, indices)
            case Copy() | Fill():
                where = node.destination
                return where.buffer.scope in _ON_CHIP or self._is_beyond(where.buffer, where.starts)
            case Gemm() | Seq() | Let() | Allocate() | View() | For() | If() | ParallelFor() | BarSync() | SyncWarp():
                return True
            case Print() | While() | Break() | Continue() | GpuOp():
                return False
        return not isinstance(node, Statement)

    def _is_beyond(self, buffer: Buffer, starts: tuple[Expr, ...]) -> bool:
        """Whether all elements from ``starts`` on lie behind the end of some dimension."""
        return any(
            self.analyzer.prove(start.ge(cast(as_expr(size), start.dtype))) is True
            for start, size in zip(starts, buffer.shape, strict=True)
        )


def _is_overwritten(body: Statement, inside: Statement) -> bool:
    """Whether no contents of registers or shared memory pass from ``inside`` to anything else in ``body``: the storages
    that it writes are made in it, or are read only there and written as a whole first."""
    made = {node.buffer.storage.name for node in walk(inside, Allocate)}
    written = {buffer.storage.name for node in walk(inside) for buffer in _written(node)} - made
    return all(_reads(body, name) == _reads(inside, name) and _starts_anew(inside, name) for name in written)


def _written(node: Any) -> tuple[Buffer, ...]:
    if isinstance(node, Store):
        found: tuple[Buffer, ...] = (node.buffer,)
    elif isinstance(node, (Copy, Fill)):
        found = (node.destination.buffer,)
    elif isinstance(node, Gemm):
        found = (node.accumulator.buffer,)
    else:
        found = ()
    return tuple(buffer for buffer in found if buffer.scope in _ON_CHIP)


def _uses(node: Statement, name: str) -> int:
    return sum(
        1
        for inner in walk(node)
        if not isinstance(inner, (Allocate, View))
        for buffer in buffers_of(inner)
        if buffer.storage.name == name
    )


def _reads(node: Statement, name: str) -> int:
    """Uses other than as the destination of a store, copy or fill."""
    writes = sum(
        1 for inner in walk(node, Store, Copy, Fill) for buffer in _written(inner) if buffer.storage.name == name
    )
    return _uses(node, name) - writes


def _starts_anew(node: Statement, name: str) -> bool:
    """Whether the first use of a storage writes all of it. A loop counts when all uses are in it."""
    if isinstance(node, Seq):
        first = next(s for s in node.statements if _uses(s, name))
        if isinstance(first, (For, Seq)) and _uses(first, name) < _uses(node, name):
            return False
        return _starts_anew(first, name)
    if isinstance(node, For):
        return _starts_anew(node.body, name)
    if isinstance(node, (Copy, Fill)):
        return _is_whole(node.destination) and _uses(node, name) == 1
    if isinstance(node, Gemm):
        return node.clear and _is_whole(node.accumulator) and _uses(node, name) == 1
    return False


def _is_whole(region: Region) -> bool:
    return region.extents == region.buffer.shape


def _without(node: Any, condition: If, dropped: list[Assume]) -> Any:
    """``node`` with the body of ``condition`` in its place and without the assumptions ``dropped``."""
    if isinstance(node, Expr):
        return node
    if node is condition:
        return _without(node.then, condition, dropped)
    if any(node is assumption for assumption in dropped):
        return None
    return map_children(node, lambda child: _without(child, condition, dropped))

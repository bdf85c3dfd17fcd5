"""Keeps wgmma groups in flight over the iterations of a pipelined loop.

Gemms that are the last users of their stage need not be finished when the iteration ends: the next ones start behind
them, and the *previous* stage is released instead, whose gemms the wait for all but this iteration's groups has
completed. What is left is waited for after the loop. The tensor cores then never drain between two iterations. It costs
a stage: measured on an H200 (bf16, 4096³), tile 128×128 with one consumer warpgroup gains 2 % with 4 stages and loses
9 % with 3, so shorter rings are left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr, Load
from ptxtile.ir.gpu_ops import MbarrierWait
from ptxtile.ir.rewrite import buffers_of, copy_with, map_children, walk
from ptxtile.ir.statements import Allocate, For, Seq, Statement, View, seq
from ptxtile.ir.tensor_core_ops import WgmmaWaitGroup
from ptxtile.ir.tile_ops import Gemm, GemmPath
from ptxtile.ir.types import int32
from ptxtile.lower.ring_releases import Release
from ptxtile.lower.rings import Ring
from ptxtile.lower.tma_groups import LoadGroup
from ptxtile.records import record

FEWEST_STAGES = 4
MOST_PENDING = 7
"""The largest count of wgmma.wait_group (PTX ISA 9.0, 9.7.15.7.3)."""


@record
class RingUse:
    """A group of the consumers: ``waiting`` is the wait for its stage, directly in the body of its loop."""

    group: LoadGroup
    waiting: Statement
    ring: Ring
    release: Release

    @property
    def names(self) -> set[str]:
        return {buffer.storage.name for buffer in self.group.buffers}


@record
class _Plan:
    """Of one loop: which uses are overlapped, each with its gemms as positions in the body."""

    gemms: dict[int, list[int]]
    uses: dict[int, RingUse]

    @property
    def positions(self) -> list[int]:
        return sorted({position for positions in self.gemms.values() for position in positions})


def overlap_gemms(body: Statement, uses: Sequence[RingUse], free: Buffer) -> tuple[Statement, set[int]]:
    """``body`` with overlapped loops, and the numbers of the groups whose stages are released there; the others are the
    caller's to release after their last use."""
    candidates = [use for use in uses if use.ring.stages >= FEWEST_STAGES]
    done: set[int] = set()

    def visit(node: Any) -> Any:
        if isinstance(node, Expr):
            return node
        if isinstance(node, For) and isinstance(node.body, Seq) and node.step > 0:
            inside = [use for use in candidates if any(s is use.waiting for s in node.body.statements)]
            plan = _plan(node.body.statements, inside)
            if plan.gemms:
                done.update(plan.gemms)
                return _overlapped(node, plan, free)
        return map_children(node, visit)

    return visit(body), done


def _plan(statements: tuple[Statement, ...], inside: list[RingUse]) -> _Plan:
    """The uses that end with gemms which may run on: all that those read in the loop is released behind them, and their
    accumulators are not touched otherwise."""
    uses = {use.group.number: use for use in inside}
    gemms = {number: _last_gemms(statements, use.names) for number, use in uses.items()}
    while True:
        plan = _Plan({n: found for n, found in gemms.items() if found}, uses)
        wrong = {p for p in plan.positions if not _may_run_on(statements, p, plan)}
        if len(plan.positions) > MOST_PENDING:
            wrong = set(plan.positions)
        if not wrong:
            return plan
        gemms = {number: [] if wrong & set(found) else found for number, found in plan.gemms.items()}


def _last_gemms(statements: tuple[Statement, ...], names: set[str]) -> list[int]:
    """Where the gemms stand that are the last users of the tiles, after all other users."""
    users = [k for k, s in enumerate(statements) if touches(s, names)]
    result: list[int] = []
    while users and is_asynchronous(statements[users[-1]]):
        result.insert(0, users.pop())
    return result


def is_asynchronous(statement: Statement) -> bool:
    """Whether a statement is a gemm that tensor cores do by themselves, and that is waited for at once so far."""
    return isinstance(statement, Gemm) and statement.path is GemmPath.WGMMA and statement.pending == 0


def _may_run_on(statements: tuple[Statement, ...], position: int, plan: _Plan) -> bool:
    gemm = statements[position]
    assert isinstance(gemm, Gemm)
    released = set().union(*(plan.uses[n].names for n, found in plan.gemms.items() if position in found))
    others = [s for k, s in enumerate(statements) if k not in plan.positions]
    operands = {buffer.storage.name for buffer in (gemm.a.buffer, gemm.b.buffer)}
    if any(buffer.scope is not Scope.SHARED for buffer in (gemm.a.buffer, gemm.b.buffer)):
        return False  # registers that the next iteration may write
    accumulator = {gemm.accumulator.buffer.storage.name}
    return not any(touches(s, accumulator | (operands - released)) for s in others)


def touches(statement: Statement, names: set[str]) -> bool:
    """Whether a statement accesses one of the storages ``names``, other than by waiting for it."""
    return any(
        buffer.storage.name in names
        for node in walk(statement)
        if not isinstance(node, (MbarrierWait, Allocate, View))
        for buffer in buffers_of(node)
    )


def _overlapped(loop: For, plan: _Plan, free: Buffer) -> Statement:
    assert isinstance(loop.body, Seq)
    body: list[Statement] = []
    gemms: list[Gemm] = []
    for position, statement in enumerate(loop.body.statements):
        if position not in plan.positions:
            body.append(statement)
            continue
        assert isinstance(statement, Gemm)
        gemms.append(statement)
        body.append(copy_with(statement, {"pending": len(plan.positions)}))
        for number in sorted(n for n, found in plan.gemms.items() if found[-1] == position):
            use, where = plan.uses[number], statement.location
            previous = use.ring.before(use.ring.here)
            body += use.release.statements(free, previous, where, loop.var.ne(loop.start))
            body += use.ring.advance()
    where = gemms[-1].location
    operands = distinct(buffer for gemm in gemms for buffer in (gemm.a.buffer, gemm.b.buffer))
    drain = WgmmaWaitGroup(0, distinct(gemm.accumulator.buffer for gemm in gemms), operands, location=where)
    last: list[Statement] = []
    for number in sorted(plan.gemms):
        use = plan.uses[number]
        stage = use.ring.before(Load(use.ring.stage, (), int32))
        last += use.release.statements(free, stage, where, loop.start.lt(loop.stop))
    return seq(copy_with(loop, {"body": Seq(tuple(body), location=loop.body.location)}), drain, *last)


def distinct(buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
    return tuple({buffer.name: buffer for buffer in buffers}.values())

"""Keeps wgmma groups in flight over the iterations of a pipelined loop.

Gemms that are the last users of their stage need not be finished when the iteration ends: the next ones start behind
them, and the *previous* stage is released instead, whose gemms the wait for all but this iteration's groups has
completed. What is left is waited for after the loop. The tensor cores then never drain between two iterations. It costs
a stage, so that shorter rings are left alone (:mod:`ptxtile.lower.spare_stages`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr, Load
from ptxtile.ir.program import Why
from ptxtile.ir.rewrite import copy_with, map_children
from ptxtile.ir.statements import For, Seq, Statement, seq
from ptxtile.ir.tile_ops import Gemm
from ptxtile.ir.types import int32
from ptxtile.lower.gemm_runs import (
    MOST_PENDING,
    are_independent,
    gemms_at,
    groups,
    is_asynchronous,
    issued,
    operands_of,
    touches,
    wait_for,
    why,
)
from ptxtile.lower.ring_releases import Release
from ptxtile.lower.rings import Ring
from ptxtile.lower.spare_stages import NEXT_PRODUCT_BEHIND
from ptxtile.lower.tma_groups import LoadGroup
from ptxtile.records import record

PASS_NAME = "specialize_warps"


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


@dataclass
class OverlappedGemms:
    """What :func:`overlap_gemms` found. ``released``: numbers of the groups whose stages the loops release
    themselves."""

    body: Statement
    released: set[int] = field(default_factory=set)
    why: list[Why] = field(default_factory=list)


@record
class _Plan:
    """Of one loop: which uses are overlapped, each with its gemms as positions in the body. ``groups``: all of these,
    by the groups of wgmma that they make up."""

    gemms: dict[int, list[int]]
    uses: dict[int, RingUse]
    groups: list[tuple[int, ...]]

    @property
    def positions(self) -> list[int]:
        return [position for group in self.groups for position in group]


def overlap_gemms(body: Statement, uses: Sequence[RingUse], free: Buffer, threads: int) -> OverlappedGemms:
    """``body`` of ``threads`` consumers with overlapped loops. ``uses``: the rings whose stages nobody releases yet, on
    the mbarriers ``free``; those that are not released then are the caller's to release after their last use."""
    result = OverlappedGemms(body)

    def visit(node: Any) -> Any:
        if isinstance(node, Expr):
            return node
        if isinstance(node, For) and isinstance(node.body, Seq) and node.step > 0:
            statements = node.body.statements
            inside = [use for use in uses if any(s is use.waiting for s in statements)]
            plan = _plan(statements, inside, threads)
            if plan.gemms:
                short = min(plan.uses[number].ring.stages for number in plan.gemms)
                lack = NEXT_PRODUCT_BEHIND.lack_of_stages(short)
                decision = "waited for at once" if lack else "waited for in the next iteration"
                reason = lack or f"behind the next ones; a ring of {short} stages has those that it takes"
                result.why.append(why(PASS_NAME, gemms_at(statements, plan.positions), decision, reason))
                if not lack:
                    result.released.update(plan.gemms)
                    return _overlapped(node, plan, free)
        return map_children(node, visit)

    result.body = visit(body)
    return result


def _plan(statements: tuple[Statement, ...], inside: list[RingUse], threads: int) -> _Plan:
    """The uses that end with gemms which may run on: all that those read in the loop is released behind them, and their
    accumulators are not touched otherwise."""
    uses = {use.group.number: use for use in inside}
    gemms = {number: _last_gemms(statements, use.names) for number, use in uses.items()}
    while True:
        gemms = {number: found for number, found in gemms.items() if found}
        positions = sorted({position for found in gemms.values() for position in found})
        plan = _Plan(gemms, uses, groups(statements, positions))
        wrong = {p for p in positions if not _may_run_on(statements, p, plan, threads)}
        if len(plan.groups) > MOST_PENDING:
            wrong = set(positions)
        if not wrong:
            return plan
        gemms = {number: [] if wrong & set(found) else found for number, found in gemms.items()}


def _last_gemms(statements: tuple[Statement, ...], names: set[str]) -> list[int]:
    """Where the gemms stand that are the last users of the tiles, after all other users."""
    users = [k for k, s in enumerate(statements) if touches(s, names)]
    result: list[int] = []
    while users and is_asynchronous(statements[users[-1]]):
        result.insert(0, users.pop())
    return result


def _may_run_on(statements: tuple[Statement, ...], position: int, plan: _Plan, threads: int) -> bool:
    gemm = statements[position]
    assert isinstance(gemm, Gemm)
    if any(buffer.scope is not Scope.SHARED for buffer in operands_of(gemm)):
        return False  # registers that the next iteration may write
    if not all(are_independent(gemm, other, threads) for other in gemms_at(statements, plan.positions)):
        return False
    released = set().union(*(plan.uses[n].names for n, found in plan.gemms.items() if position in found))
    others = [s for k, s in enumerate(statements) if k not in plan.positions]
    operands = {buffer.storage.name for buffer in operands_of(gemm)}
    accumulator = {gemm.accumulator.buffer.storage.name}
    return not any(touches(s, accumulator | (operands - released)) for s in others)


def _overlapped(loop: For, plan: _Plan, free: Buffer) -> Statement:
    """``loop`` with waits for the iteration before in front of the releases, and what is left to wait for and to
    release behind it."""
    assert isinstance(loop.body, Seq)
    statements = loop.body.statements
    gemms, changed = gemms_at(statements, plan.positions), issued(statements, plan.groups)
    where = gemms[-1].location
    behind: dict[int, list[Statement]] = {}
    last: list[Statement] = []
    for group in plan.groups:
        ended = sorted(number for number, found in plan.gemms.items() if found[-1] in group)
        if ended or 2 * len(plan.groups) > MOST_PENDING:  # up to twice as many would be under way
            behind[group[-1]] = [wait_for(gemms, pending=len(plan.groups))]
        for use in (plan.uses[number] for number in ended):
            previous = use.ring.before(use.ring.here)
            behind[group[-1]] += use.release.statements(free, previous, where, loop.var.ne(loop.start))
            behind[group[-1]] += use.ring.advance()
    for number in sorted(plan.gemms):
        use = plan.uses[number]
        stage = use.ring.before(Load(use.ring.stage, (), int32))
        last += use.release.statements(free, stage, where, loop.start.lt(loop.stop))
    body: list[Statement] = []
    for position, statement in enumerate(statements):
        body += [changed.get(position, statement), *behind.get(position, ())]
    return seq(copy_with(loop, {"body": Seq(tuple(body), location=loop.body.location)}), wait_for(gemms), *last)

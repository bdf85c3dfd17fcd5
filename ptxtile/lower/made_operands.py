"""Keeps wgmma groups in flight while the consumers make an operand of the next ones.

A gemm at the end of a pipelined loop whose operand the consumers write themselves in each iteration (weights that they
unpack, probabilities that they compute) need not be waited for right behind it, but in the next iteration, in front of
the first statement that would disturb it: what touches its accumulator, writes its operand in registers, or writes its
tile in shared memory. Until then the threads compute while the tensor cores multiply.

With two versions of the operand it may be written as well, and the wait stands in front of the next gemm. One in
registers is copied to others behind the wait, as far as there are registers for both. A shared tile has a second
version if it is wholly written in each iteration and used nowhere else. They are used in turn, and one barrier an
iteration is enough: whoever writes version k % 2 in iteration k has passed the barrier of iteration k - 1, which came
after all threads' waits for gemm k - 2, the last that read it.

Stages of rings are released behind the wait, late in the next iteration, which is why shorter rings are left alone
(:mod:`ptxtile.lower.spare_stages`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Expr, Load, binary, constant, constant_value
from ptxtile.ir.gpu_ops import MbarrierWait
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Why
from ptxtile.ir.rewrite import Rewriter, buffers_of, contains, copy_with, map_children, walk
from ptxtile.ir.statements import (
    Allocate,
    Break,
    Continue,
    For,
    LoopKind,
    Seq,
    Statement,
    Store,
    seq,
)
from ptxtile.ir.tensor_core_ops import WgmmaWaitGroup
from ptxtile.ir.tile_ops import Copy, CopyPath, Fill, Gemm, Region
from ptxtile.ir.types import int32
from ptxtile.lower.gemm_runs import (
    IDLE,
    are_independent,
    distinct,
    gemms_at,
    groups,
    is_asynchronous,
    is_scalar,
    issued,
    operands_of,
    runs,
    touches,
    why,
)
from ptxtile.lower.overlap_gemms import RingUse
from ptxtile.lower.rings import versioned
from ptxtile.lower.second_versions import Room, version_bytes
from ptxtile.lower.spare_stages import NEXT_OPERAND_MADE, OTHER_PRODUCT_BEHIND
from ptxtile.lower.whole_tiles import is_wholly_written
from ptxtile.records import record

PASS_NAME = "specialize_warps"
VERSIONS = 2


@dataclass
class MadeOperands:
    """What :func:`overlap_made_operands` found. ``released``: numbers of the groups whose stages the loops release
    themselves. ``versions``: by name, a tile in two versions and the one that an iteration uses."""

    body: Statement
    released: set[int] = field(default_factory=set)
    versions: dict[str, tuple[Buffer, Expr]] = field(default_factory=dict)
    why: list[Why] = field(default_factory=list)


@record
class _Wait:
    """Where a loop waits for its gemms in flight: in front of the statement at ``position``; or behind it, the last of
    the run of ``others``, which are waited for together with them. ``versions``: the operands that are written before,
    shared tiles and fragments. ``refused``: what has no second version though it would be, and why."""

    position: int
    others: tuple[int, ...]
    versions: tuple[Buffer, ...]
    refused: tuple[str, ...]

    @property
    def behind(self) -> bool:
        return bool(self.others)


@record
class _Plan:
    """Of one loop: the gemms that run on, as positions in the body, the wait for them, and the rings whose stages they
    read."""

    gemms: tuple[int, ...]
    wait: _Wait
    held: tuple[RingUse, ...]
    copies: dict[str, Buffer]
    """By name: the fragments that are multiplied instead of others, which the next iteration writes meanwhile."""


def overlap_made_operands(
    body: Statement, uses: list[RingUse], free: Buffer, room: Room, names: NameSupply
) -> MadeOperands:
    """``body`` (of the consumers) with loops that wait in the next iteration, and behind the last. ``uses``: the rings
    whose stages nobody releases yet, on the mbarriers ``free``."""
    result = MadeOperands(body)
    planner = _Planner(body, uses, room, names, result)

    def visit(node: Any) -> Any:
        if isinstance(node, Expr):
            return node
        if isinstance(node, For) and node.kind is LoopKind.PIPELINED and isinstance(node.body, Seq) and node.step > 0:
            plan = planner.plan(node, node.body.statements)
            if plan is not None:
                result.released.update(use.group.number for use in plan.held)
                return _overlapped(node, plan, free)
        return map_children(node, visit)

    result.body = visit(body)
    return result


class _Planner:
    def __init__(
        self, body: Statement, uses: list[RingUse], room: Room, names: NameSupply, result: MadeOperands
    ) -> None:
        self.body, self.uses, self.room, self.names, self.result = body, uses, room, names, result

    def plan(self, loop: For, statements: tuple[Statement, ...]) -> _Plan | None:
        """How the last gemms of a loop run on; None where none of their operands is made in it, or better not."""
        if contains(loop.body, Break, Continue):
            return None
        inside = [use for use in self.uses if any(s is use.waiting for s in statements)]
        rings = set().union(*(use.names for use in inside))
        last = _last_gemms(statements, rings, self.room.consumers)
        gemms = gemms_at(statements, last)
        if not any(_is_made(operand, statements, rings) for gemm in gemms for operand in operands_of(gemm)):
            return None
        names = {operand.storage.name for gemm in gemms for operand in operands_of(gemm)}
        held = tuple(use for use in inside if use.names & names)
        wait = self._wait(loop, statements, last, rings)
        overlap = OTHER_PRODUCT_BEHIND if wait.behind else NEXT_OPERAND_MADE
        lacks = [overlap.lack_of_stages(use.ring.stages) for use in held]
        refusal = next((lack for lack in lacks if lack), "") or self._crowded(statements, gemms, wait)
        if refusal:
            self._record(gemms, "waited for at once", refusal)
            return None
        disturbing = statements[wait.position]
        until = statements[: wait.position + wait.behind]
        notes = "".join(f"; {note}" for note in wait.refused)
        if all(isinstance(s, IDLE) or is_scalar(s) for s in until):
            reason = f"the next iteration starts with what disturbs it{_place(disturbing)}{notes}"
            self._record(gemms, "waited for at once", reason)
            return None
        copies: dict[str, Buffer] = {}
        for operand in wait.versions:
            if operand.scope is Scope.SHARED:
                self.room.used += version_bytes(operand)
                self.result.versions[operand.name] = versioned(operand, VERSIONS), binary("and", loop.var, 1)
            else:
                name = self.names.fresh(f"{operand.name}_multiplied")
                copies[operand.name] = allocate(name, operand.scope, operand.dtype, operand.static_shape)
            where = _place(_first(statements, operand))
            reason = f"one is written{where} while the gemm of the iteration before reads the other"
            self.result.why.append(Why(PASS_NAME, operand.name, "two versions", reason, gemms[-1].location))
        where = "together with the gemm" if wait.behind else "in front of what disturbs it"
        where = "in front of the next one" if wait.position in last else where
        self._record(gemms, "waited for in the next iteration", f"{where}{_place(disturbing)}{notes}")
        return _Plan(tuple(last), wait, held, copies)

    def _record(self, gemms: list[Gemm], decision: str, reason: str) -> None:
        self.result.why.append(why(PASS_NAME, gemms, decision, reason))

    def _wait(self, loop: For, statements: tuple[Statement, ...], last: list[int], rings: set[str]) -> _Wait:
        """As late as accumulators allow, and operands that cannot have a second version."""
        gemms = gemms_at(statements, last)
        accumulators = {gemm.accumulator.buffer.storage.name for gemm in gemms}
        position = next((k for k in range(last[0]) if touches(statements[k], accumulators)), last[0])
        # Whoever waits for a later group has waited for this one.
        others = next(iter(runs(statements[:position], self.room.consumers)), ())
        position = others[-1] if others else position
        inputs = _input_registers([s for s in statements[: last[0]] if isinstance(s, Gemm) and is_asynchronous(s)])
        written = next((k for k in range(position) if touches(statements[k], inputs)), position)
        if written < position and not is_asynchronous(statements[written]):
            position, others = written, ()
        made = distinct(o for gemm in gemms for o in operands_of(gemm) if _is_made(o, statements, rings))
        versions: list[Buffer] = []
        refused: list[str] = []
        for tile in sorted(made, key=lambda tile: _first_position(statements, tile)):
            first, before = _first_position(statements, tile), statements[: position + bool(others)]
            if first >= len(before):
                continue
            if tile.scope is Scope.SHARED:
                size = sum(version_bytes(t) for t in (*versions, tile) if t.scope is Scope.SHARED)
                reason = self._refusal(loop, statements, tile) or self.room.lack_of_memory(size)
            else:
                copies = [t for t in (*versions, tile) if t.scope is not Scope.SHARED]
                reason = self.room.lack_of_registers((*before, *gemms), copies)
            if reason:
                refused.append(f"{tile.name} has one version: {reason}")
                position, others = first, ()
            else:
                versions.append(tile)
        return _Wait(position, others, tuple(versions), tuple(refused))

    def _crowded(self, statements: tuple[Statement, ...], gemms: list[Gemm], wait: _Wait) -> str:
        """Why operands in registers cannot stay there until the wait; empty if they can, or if there are none."""
        if all(o.scope is Scope.SHARED for gemm in gemms for o in operands_of(gemm)):
            return ""
        copies = [t for t in wait.versions if t.scope is not Scope.SHARED]
        return self.room.lack_of_registers((*statements[: wait.position + wait.behind], *gemms), copies)

    def _refusal(self, loop: For, statements: tuple[Statement, ...], tile: Buffer) -> str:
        """Why there cannot be versions of a tile that a loop uses; empty if there can."""
        start, name = constant_value(loop.start), tile.storage.name
        if not isinstance(start, int) or start < 0 or loop.step != 1:
            return "the loop does not count from a constant in steps of 1"
        users = [node for node in walk(self.body) if any(b.storage.name == name for b in buffers_of(node))]
        if any(not isinstance(node, (Allocate, Region, Load, Store)) for node in users):
            return "it is used as more than a tile"
        inside = {id(node) for node in walk(loop.body)}
        if any(not isinstance(node, Allocate) and id(node) not in inside for node in users):
            return "it is used outside of the loop"
        reads = next((k for k, s in enumerate(statements) if _reads(s, name)), len(statements))
        if not is_wholly_written(statements[:reads], tile):
            return "not all of it is surely written before it is read in each iteration"
        return ""


# --- statements of a loop --------------------------------------------------------------------------------------------


def _last_gemms(statements: tuple[Statement, ...], rings: set[str], threads: int) -> list[int]:
    """Where the asynchronous gemms of ``threads`` threads stand after which nothing in the same iteration disturbs
    them, in a row but for other statements. ``rings``: storages whose stages are released behind the wait."""
    result: list[int] = []
    for position in reversed(range(len(statements))):
        gemm = statements[position]
        if not is_asynchronous(gemm):
            continue
        assert isinstance(gemm, Gemm)
        names = {operand.storage.name for operand in operands_of(gemm)} - rings
        after = [s for k, s in enumerate(statements[position + 1 :], position + 1) if k not in result]
        loaded = any(
            buffer.storage.name in names
            for s in statements for node in walk(s, MbarrierWait) for buffer in node.retires
        )  # fmt: skip
        if loaded or any(touches(s, names | {gemm.accumulator.buffer.storage.name}) for s in after):
            break
        later = [p for group in groups(statements, (position, *result))[1:] for p in group]
        if _input_registers(gemms_at(statements, later)):
            break
        if not all(are_independent(gemm, other, threads) for other in gemms_at(statements, result)):
            break
        result.insert(0, position)
    return result


def _input_registers(gemms: list[Gemm]) -> set[str]:
    """Operands in registers: were they written, or moved, while other gemms are under way, ptxas would let each wgmma
    wait for itself (C7513)."""
    return {o.storage.name for gemm in gemms for o in operands_of(gemm) if o.scope is not Scope.SHARED}


def _is_made(operand: Buffer, statements: tuple[Statement, ...], rings: set[str]) -> bool:
    """Whether a loop does more with an operand than to multiply it, or it was made by another gemm."""
    name = operand.storage.name
    if name in rings:
        return False
    others = (s for s in statements if not (isinstance(s, Gemm) and s.accumulator.buffer.storage.name != name))
    return any(touches(s, {name}) for s in others)


def _first_position(statements: tuple[Statement, ...], tile: Buffer) -> int:
    return next(k for k, s in enumerate(statements) if touches(s, {tile.storage.name}))


def _first(statements: tuple[Statement, ...], tile: Buffer) -> Statement:
    return statements[_first_position(statements, tile)]


def _reads(statement: Statement, name: str) -> bool:
    """Whether a statement reads a storage, or may."""
    for node in walk(statement):
        if isinstance(node, (Copy, Fill)):
            regions = (node.source,) if isinstance(node, Copy) else ()
            reduces = isinstance(node, Copy) and node.operator and node.destination.buffer.storage.name == name
            if reduces or any(region.buffer.storage.name == name for region in regions):
                return True
        elif isinstance(node, Gemm):
            if any(operand.storage.name == name for operand in operands_of(node)):
                return True
        elif isinstance(node, Load) and node.buffer.storage.name == name:
            return True
    return False


def _place(statement: Statement) -> str:
    return f" ({statement.location})" if statement.location else ""


# --- the loop --------------------------------------------------------------------------------------------------------


def _overlapped(loop: For, plan: _Plan, free: Buffer) -> Statement:
    """``loop`` with its wait moved, and what is left to wait for and to release behind it."""
    assert isinstance(loop.body, Seq)
    statements, wait = loop.body.statements, plan.wait
    changed = issued(statements, [*groups(statements, wait.others), *groups(statements, plan.gemms)])
    gemms = gemms_at(statements, sorted(changed))
    where = gemms[-1].location
    operands = distinct(plan.copies.get(o.name, o) for gemm in gemms for o in operands_of(gemm))
    done = WgmmaWaitGroup(
        0,
        distinct(gemm.accumulator.buffer for gemm in gemms),
        tuple(operand for operand in operands if operand.scope is Scope.SHARED),
        tuple(operand for operand in operands if operand.scope is not Scope.SHARED),
        location=where,
    )
    rings = [(use, use.ring.before(Load(use.ring.stage, (), int32))) for use in plan.held]
    waiting: list[Statement] = [done]
    for use, previous in rings:
        waiting += use.release.statements(free, previous, where, loop.var.ne(loop.start))
    body: list[Statement] = []
    for position, statement in enumerate(statements):
        here = waiting if position == wait.position else []
        statement = changed.get(position, statement)
        if position in plan.gemms:
            statement = _Multiplied(plan.copies).visit(statement)
        copies = _copies(gemms, plan.copies) if position == plan.gemms[0] else []
        body += [*copies, statement, *here] if wait.behind else [*here, *copies, statement]
    after: list[Statement] = [done]
    for use, previous in rings:
        body += use.ring.advance()
        after += use.release.statements(free, previous, where, loop.start.lt(loop.stop))
    allocations = [Allocate(copy, location=where) for copy in plan.copies.values()]
    return seq(*allocations, copy_with(loop, {"body": Seq(tuple(body), location=loop.body.location)}), *after)


def _copies(gemms: list[Gemm], copies: dict[str, Buffer]) -> list[Statement]:
    """What gives the copies of operands their values."""

    def whole(buffer: Buffer) -> Region:
        return Region(buffer, (constant(0),) * buffer.rank, buffer.static_shape)

    made = distinct(operand for gemm in gemms for operand in operands_of(gemm) if operand.name in copies)
    where = gemms[-1].location
    return [Copy(whole(o), whole(copies[o.name]), path=CopyPath.VECTOR, location=where) for o in made]


class _Multiplied(Rewriter):
    """A gemm with the copies of its operands."""

    def __init__(self, copies: dict[str, Buffer]) -> None:
        self.copies = copies

    def buffer(self, buffer: Buffer) -> Buffer:
        return self.copies.get(buffer.name, buffer)

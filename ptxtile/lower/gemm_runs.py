"""Gemms on wgmma that need not wait for each other.

``T.gemm`` is complete when the next statement runs, which a wait behind each makes true. Where the next statement is a
gemm again it is enough to wait behind both: the tensor cores multiply in the order in which they are told to, and never
run empty in between. A *run* are gemms of which none reads what another one writes. They may add to the same
accumulator: wgmma of one shape that accumulate in the same registers are in order without a fence (PTX ISA
9.7.15.7.1). Between them may stand what threads do for themselves with scalars, and waits for loads.

The gemms of a run that follow one another at once are one *group* of wgmma: one fence, one commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.gpu_ops import MbarrierWait
from ptxtile.ir.program import Why
from ptxtile.ir.rewrite import buffers_of, copy_with, walk
from ptxtile.ir.statements import Allocate, Let, Statement, Store, View
from ptxtile.ir.tensor_core_ops import WgmmaWaitGroup
from ptxtile.ir.tile_ops import Assume, Gemm, GemmPath
from ptxtile.lower.gemm_geometry import Grid, dtype_names, grid_of
from ptxtile.lower.shared_columns import descriptor_span

MOST_PENDING = 7
"""The largest count of wgmma.wait_group (PTX ISA 9.0, 9.7.15.7.3)."""

NAMES = (Let, Assume)
"""Statements that may stand inside of a group: nothing is done there but to compute indices."""
IDLE = (*NAMES, Allocate, View, MbarrierWait)


# --- statements ------------------------------------------------------------------------------------------------------


def is_asynchronous(statement: Statement) -> bool:
    """Whether a statement is a gemm that tensor cores do by themselves, and that is waited for at once so far."""
    return isinstance(statement, Gemm) and statement.path is GemmPath.WGMMA and statement.pending == 0


def is_scalar(statement: Statement) -> bool:
    """Whether a statement sets a scalar: the state of a ring, a variable of the user's."""
    return isinstance(statement, Store) and statement.buffer.scope is Scope.LOCAL


def touches(statement: Statement, names: set[str]) -> bool:
    """Whether a statement accesses one of the storages ``names``, other than by waiting for it."""
    return any(
        buffer.storage.name in names
        for node in walk(statement)
        if not isinstance(node, (MbarrierWait, Allocate, View))
        for buffer in buffers_of(node)
    )


def operands_of(gemm: Gemm) -> tuple[Buffer, Buffer]:
    return gemm.a.buffer, gemm.b.buffer


def distinct(buffers: Iterable[Buffer]) -> tuple[Buffer, ...]:
    return tuple({buffer.name: buffer for buffer in buffers}.values())


def gemms_at(statements: Sequence[Statement], positions: Iterable[int]) -> list[Gemm]:
    return [s for s in (statements[position] for position in positions) if isinstance(s, Gemm)]


# --- runs and groups -------------------------------------------------------------------------------------------------


def are_independent(one: Gemm, other: Gemm, threads: int) -> bool:
    """Whether two gemms of ``threads`` threads may be under way together, the first one issued first or the other."""
    accumulators = one.accumulator.buffer.storage.name, other.accumulator.buffer.storage.name
    reads = {operand.storage.name for gemm in (one, other) for operand in operands_of(gemm)}
    if reads & set(accumulators):
        return False
    return accumulators[0] != accumulators[1] or _shape(one, threads) == _shape(other, threads)


def _shape(gemm: Gemm, threads: int) -> tuple[tuple[str, str, str], Grid | None, int, int, int | None]:
    """All that the shape of a gemm's instructions depends on
    (:func:`~ptxtile.lower.gemm_geometry.instruction_columns`)."""
    span = None if gemm.transpose_b else descriptor_span(gemm.b.buffer)
    return dtype_names(gemm), grid_of(gemm, threads, GemmPath.WGMMA), gemm.m, gemm.n, span


def runs(statements: Sequence[Statement], threads: int) -> list[tuple[int, ...]]:
    """The positions of the gemms that are waited for at once so far, run by run; each run as long as it can be."""
    result: list[tuple[int, ...]] = []
    run: list[int] = []
    for position, statement in enumerate(statements):
        if is_asynchronous(statement):
            assert isinstance(statement, Gemm)
            if not all(are_independent(gemm, statement, threads) for gemm in gemms_at(statements, run)):
                result.append(tuple(run))
                run = []
            run.append(position)
        elif run and not _lets_run_on(statement, gemms_at(statements, run)):
            result.append(tuple(run))
            run = []
    return [*result, tuple(run)] if run else result


def _lets_run_on(statement: Statement, gemms: list[Gemm]) -> bool:
    """Whether a statement may run while ``gemms`` are under way."""
    names = {buffer.storage.name for gemm in gemms for buffer in (gemm.accumulator.buffer, *operands_of(gemm))}
    if isinstance(statement, MbarrierWait):
        return not any(buffer.storage.name in names for buffer in statement.retires)
    return (isinstance(statement, IDLE) or is_scalar(statement)) and not touches(statement, names)


def groups(statements: Sequence[Statement], positions: Iterable[int]) -> list[tuple[int, ...]]:
    """``positions`` of gemms, ascending, by the groups of wgmma that they make up."""
    result: list[tuple[int, ...]] = []
    for position in positions:
        between = statements[result[-1][-1] + 1 : position] if result else ()
        if result and all(isinstance(statement, NAMES) for statement in between):
            result[-1] = (*result[-1], position)
        else:
            result.append((position,))
    return result


def issued(statements: Sequence[Statement], made: Iterable[tuple[int, ...]]) -> dict[int, Gemm]:
    """By position: the gemms of groups, none of which waits for itself."""
    return {
        position: copy_with(statements[position], {"pending": None, "commits": position == group[-1]})
        for group in made
        for position in group
    }


def wait_for(gemms: Sequence[Gemm], pending: int = 0, later: Sequence[Gemm] = ()) -> WgmmaWaitGroup:
    """The wait that completes ``gemms``, when ``pending`` groups may go on: those of the gemms ``later``."""
    reading = {operand.name for gemm in later for operand in operands_of(gemm)}
    writing = {gemm.accumulator.buffer.name for gemm in later}
    read = [o for gemm in gemms for o in operands_of(gemm) if o.name not in reading]
    return WgmmaWaitGroup(
        pending,
        distinct(gemm.accumulator.buffer for gemm in gemms if gemm.accumulator.buffer.name not in writing),
        distinct(operand for operand in read if operand.scope is Scope.SHARED),
        distinct(operand for operand in read if operand.scope is not Scope.SHARED),
        location=gemms[-1].location,
    )


# --- records ---------------------------------------------------------------------------------------------------------


def why(pass_name: str, gemms: Sequence[Gemm], decision: str, reason: str) -> Why:
    subject = " and ".join(f"gemm {gemm.a.buffer.name} x {gemm.b.buffer.name}" for gemm in gemms)
    return Why(pass_name, subject, decision, reason, gemms[-1].location)

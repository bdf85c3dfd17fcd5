"""The order and the stage that a user gives to the statements of a pipelined loop, and whether they keep its meaning.

Statement s of iteration k is issued in step k + stage(s), at place order(s) of that step. The result has to be that of
the sequential loop: what depends on a statement, in the same iteration or in a later one, is issued after it. A shared
tile that each iteration fills before it uses it may have several versions, so that a later iteration fills another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from ptxtile.errors import LoweringError
from ptxtile.ir.atomic_ops import Atomic, AtomicLoad, AtomicStore
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.effects import private_results
from ptxtile.ir.expressions import Load, constant_value
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.rewrite import buffers_of, free_variables, walk
from ptxtile.ir.statements import For, Let, ParallelFor, Statement, Store
from ptxtile.ir.tile_ops import Copy, Fill, Gemm, Region
from ptxtile.lower.stage_fragments import overwrites


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A statement of the loop's body. ``reads``, ``writes``: memories that it touches; ``sets``: those that it
    overwrites from end to end."""

    statement: Statement
    position: int
    order: int
    stage: int
    reads: frozenset[str]
    writes: frozenset[str]
    sets: frozenset[str]

    @property
    def touches(self) -> frozenset[str]:
        return self.reads | self.writes

    @property
    def time(self) -> tuple[int, int]:
        """When it is issued, in steps after the iteration's first, and within the step."""
        return self.stage, self.order


@dataclass(slots=True)
class StatementOrder:
    """The statements of a loop in program order, and how many versions each shared tile needs (1 is left out)."""

    loop: For
    statements: list[Scheduled]
    versions: dict[str, int] = field(default_factory=dict)

    @property
    def depth(self) -> int:
        """Steps between an iteration's first and its last statement."""
        return max(s.stage for s in self.statements)

    @property
    def in_order(self) -> list[Scheduled]:
        return sorted(self.statements, key=lambda s: s.order)

    def first_use(self, memory: str) -> Scheduled | None:
        """The statement that reads ``memory`` first."""
        return min((s for s in self.statements if memory in s.reads), key=lambda s: s.time, default=None)


def statement_order(
    loop: For, statements: list[Statement], memories: Mapping[str, str], tiles: Collection[str]
) -> StatementOrder:
    """The order of ``statements``, which are the loop's without scalars and allocations.

    ``memories``: storage → the memory that it is part of, where several share one. ``tiles``: the shared tiles that may
    have versions. LoweringError for lists that do not fit the body, or that change what the loop computes.
    """
    order, stage = loop.option("order"), loop.option("stage")
    assert isinstance(order, tuple) and isinstance(stage, tuple), "T.Pipelined checks them"
    _check_length(loop, statements, len(order))
    _check_body(loop, statements)
    first = min(stage)
    scheduled = [
        Scheduled(node, position, order[position], stage[position] - first, *effects(node, memories))
        for position, node in enumerate(statements)
    ]
    result = StatementOrder(loop, scheduled)
    for memory in sorted(frozenset().union(*(s.touches for s in scheduled))):
        users = [s for s in scheduled if memory in s.touches]
        _check_iteration(users, memory)
        versions = _versions(users, memory)
        if versions > 1:
            _check_versions(users, memory, versions, tiles)
            result.versions[memory] = versions
    return result


def _check_length(loop: For, statements: list[Statement], given: int) -> None:
    if given == len(statements):
        return
    lines = [f"{type(s).__name__} at line {s.location.line}" if s.location else type(s).__name__ for s in statements]
    raise LoweringError(
        "order and stage of T.Pipelined do not fit the loop's body",
        location=loop.location,
        expected=f"{len(statements)} numbers each, one for each statement ({', '.join(lines)})",
        got=f"{given}",
        hint="scalars that are computed from the loop variable, and allocations, do not count",
    )


def _check_body(loop: For, statements: list[Statement]) -> None:
    """The frontend has refused what leaves an iteration early."""
    for node in (inner for statement in statements for inner in walk(statement)):
        if isinstance(node, GpuOp) and not isinstance(node, (Atomic, AtomicLoad, AtomicStore)):
            raise LoweringError(
                "a loop with order and stage synchronizes by hand",
                location=node.location or loop.location,
                expected="copies, gemms, parallel loops and other statements that wait for nothing",
                got=type(node).__name__,
                hint="the compiler puts the barriers where they are needed",
            )


def effects(statement: Statement, memories: Mapping[str, str]) -> tuple[frozenset[str], ...]:
    """What a statement reads, writes and sets, as names of memories."""
    reads: set[str] = set()
    writes: set[str] = set()

    def name(buffer: Buffer) -> str:
        return memories.get(buffer.storage.name, buffer.storage.name)

    for node in walk(statement):
        match node:
            case Load(buffer):
                reads.add(name(buffer))
            case Store(buffer):
                writes.add(name(buffer))
            case Copy(source, destination):
                reads.add(name(source.buffer))
                writes.add(name(destination.buffer))
                if node.operator:
                    reads.add(name(destination.buffer))
            case Fill(destination):
                writes.add(name(destination.buffer))
            case Gemm():
                reads |= {name(node.a.buffer), name(node.b.buffer)}
                writes.add(name(node.accumulator.buffer))
                if not node.clear:
                    reads.add(name(node.accumulator.buffer))
            case Atomic() | AtomicStore():
                writes.add(name(node.buffer))
                reads |= {name(node.buffer)} if isinstance(node, Atomic) else set()
            case AtomicLoad():
                reads.add(name(node.buffer))
        writes |= {name(buffer) for buffer in private_results(node)}
    return frozenset(reads), frozenset(writes), frozenset(name(buffer) for buffer in _set_by(statement))


def _set_by(statement: Statement) -> Iterator[Buffer]:
    """The buffers that a statement overwrites from end to end without reading them."""
    match statement:
        case Copy(_, destination) if not statement.operator and _is_whole(destination):
            yield destination.buffer
        case Fill(destination) if _is_whole(destination):
            yield destination.buffer
        case Gemm() if statement.clear and _is_whole(statement.accumulator):
            yield statement.accumulator.buffer
        case Store(buffer, ()):
            if not any(n.buffer.storage == buffer.storage for n in walk(statement.value, Load)):
                yield buffer
        case ParallelFor():
            stored = {node.buffer.name: node.buffer for node in walk(statement, Store)}
            yield from (buffer for buffer in stored.values() if overwrites(statement, buffer))


def _is_whole(region: Region) -> bool:
    return region.extents == region.buffer.shape and all(constant_value(start) == 0 for start in region.starts)


def _conflicts(a: Scheduled, b: Scheduled, memory: str) -> bool:
    return memory in a.writes or memory in b.writes


def _check_iteration(users: list[Scheduled], memory: str) -> None:
    """Within one iteration everything keeps its order."""
    for a, b in product(users, users):
        if a.position < b.position and _conflicts(a, b, memory) and not a.time < b.time:
            raise LoweringError(
                "order and stage of T.Pipelined issue a statement before one that it depends on",
                location=b.statement.location,
                expected=f"a later stage, or later in the same stage, than {_place(a)}, which uses {memory} too",
                got=f"stage {b.stage}, order {b.order}, where the other has stage {a.stage}, order {a.order}",
            )


def _versions(users: list[Scheduled], memory: str) -> int:
    """How many iterations apart two statements of the wrong order must be, at least, to use the same memory."""
    return max(
        (_apart(a, b) for a, b in product(users, users) if _conflicts(a, b, memory)),
        default=1,
    )


def _apart(a: Scheduled, b: Scheduled) -> int:
    """The smallest distance from 1 on such that ``b`` so many iterations later comes after ``a``."""
    distance = 1
    while not a.time < (b.stage + distance, b.order) and a is not b:
        distance += 1
    return distance


def _check_versions(users: list[Scheduled], memory: str, versions: int, tiles: Collection[str]) -> None:
    first = users[0]
    a, b = max(((a, b) for a, b in product(users, users) if _conflicts(a, b, memory)), key=lambda pair: _apart(*pair))
    problem = ""
    if memory not in tiles:
        problem = "only a shared tile that the loop alone uses has versions"
    elif memory not in first.sets or memory in first.reads:
        problem = f"an iteration may use what an earlier one left in {memory}"
    if problem:
        raise LoweringError(
            f"order and stage of T.Pipelined would need {versions} versions of {memory}",
            location=b.statement.location or first.statement.location,
            expected=f"that {_place(b)} of the next iteration is issued after {_place(a)} of this one",
            got=f"stages {b.stage} and {a.stage}, orders {b.order} and {a.order}; {problem}",
            hint="give it an order after the other's, or move it to a later stage",
        )


def _place(scheduled: Scheduled) -> str:
    location = scheduled.statement.location
    return f"statement {scheduled.position}" + (f" (line {location.line})" if location else "")


def scalars_of(statements: list[Statement], needed: frozenset[str]) -> list[Let]:
    """The Lets among ``statements`` whose variables ``needed`` names, directly or through others, in order."""
    names, found = set(needed), []
    for node in reversed(statements):
        if isinstance(node, Let) and node.var.name in names:
            found.append(node)
            names |= free_variables(node.value)
    return found[::-1]


def versionable(tile: Buffer, inside: list[Statement], outside: list[Statement]) -> bool:
    """Whether a shared tile can have versions: nothing outside of the loop touches it, and what does inside names it in
    loads, stores and regions alone."""
    storage = tile.storage.name
    if tile.scope is not Scope.SHARED or any(b.storage.name == storage for n in outside for b in buffers_of(n)):
        return False
    for node in (inner for statement in inside for inner in walk(statement)):
        for buffer in buffers_of(node):
            if buffer.storage.name == storage and not isinstance(node, (Load, Store, Region)):
                return False
    return True

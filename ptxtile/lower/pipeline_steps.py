"""The steps of a software pipeline: which statements run in each, for which iteration, on which version of a tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ptxtile.ir.async_copy_ops import CpAsyncCommitGroup, CpAsyncWaitGroup
from ptxtile.ir.buffers import Buffer, Scope, Storage
from ptxtile.ir.expressions import Expr, Load, Var, binary, cast, constant, constant_value
from ptxtile.ir.gpu_ops import MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ptxtile.ir.names import NameSupply
from ptxtile.ir.rewrite import copy_with, walk
from ptxtile.ir.statements import Allocate, For, If, Let, LoopKind, Statement, Store, seq
from ptxtile.ir.tile_ops import Copy, CopyPath, TmaCopy
from ptxtile.ir.types import int32
from ptxtile.lower.async_copy_candidates import FEWEST_BYTES, is_load
from ptxtile.lower.fresh_copies import fresh_copy
from ptxtile.lower.rings import InStage
from ptxtile.lower.statement_order import Scheduled, StatementOrder, scalars_of
from ptxtile.lower.tma_groups import LoadGroup, barrier_buffer
from ptxtile.target import Feature, Target


@dataclass(frozen=True, slots=True)
class Group:
    """Copies that are issued together and waited for together, in front of ``reader``. ``engine``: TMA or cp.async, in
    which case ``widths`` has the elements of one cp.async for each. ``versions``: of their tiles."""

    loads: tuple[Scheduled, ...]
    engine: str
    reader: Scheduled
    versions: int
    widths: tuple[int, ...] = ()

    @property
    def copies(self) -> tuple[Copy, ...]:
        return tuple(load.statement for load in self.loads if isinstance(load.statement, Copy))


def load_groups(order: StatementOrder, target: Target, widths: Mapping[int, tuple[int, str]]) -> list[Group]:
    """The copies that can run ahead of the first use of what they bring: neighbours in the order are one group."""
    groups: list[Group] = []
    last: Scheduled | None = None
    for scheduled in order.in_order:
        found = _group(scheduled, order, target, widths)
        before = groups[-1] if groups and last is groups[-1].loads[-1] else None
        last = scheduled
        if found is None:
            continue
        alike = before is not None and (before.engine, before.versions, before.loads[0].stage) == (
            found.engine, found.versions, scheduled.stage,
        )  # fmt: skip
        if before is not None and alike:
            reader = min(before.reader, found.reader, key=lambda s: s.time)
            groups[-1] = Group(
                (*before.loads, scheduled), before.engine, reader, before.versions, before.widths + found.widths
            )
        else:
            groups.append(found)
    return groups


def _group(
    load: Scheduled, order: StatementOrder, target: Target, widths: Mapping[int, tuple[int, str]]
) -> Group | None:
    copy = load.statement
    if not isinstance(copy, Copy) or not is_load(copy):
        return None
    (memory,) = load.writes
    writers = [s for s in order.statements if memory in s.writes]
    reader = order.first_use(memory)
    if len(writers) > 1 or reader is None or reader.stage <= load.stage:
        return None
    versions = order.versions.get(memory, 1)
    if copy.path is CopyPath.TMA_LOAD:
        return Group((load,), "TMA", reader, versions)
    width, reason = widths.get(id(copy), (0, "it is not a copy that cp.async takes"))
    legal = not reason and width * copy.source.buffer.dtype.itemsize >= FEWEST_BYTES
    return Group((load,), "cp.async", reader, versions, (width,)) if legal and target.has(Feature.CP_ASYNC) else None


@dataclass(frozen=True, slots=True)
class _Step:
    """One step: ``position`` is the iteration that begins in it, ``number`` how many came before. ``begun``: the stages
    that have an iteration in it. ``drains``: nothing begins any more."""

    position: Expr
    number: Expr
    begun: range
    drains: bool = False


class Steps:
    """The loop as a pipeline. ``tiles``: by storage, the shared tiles with versions."""

    def __init__(
        self,
        thread: Var,
        first_thread: int,
        order: StatementOrder,
        groups: list[Group],
        scalars: list[Let],
        tiles: Mapping[str, Buffer],
        names: NameSupply,
    ) -> None:
        self.thread, self.first_thread = thread, first_thread
        self.order, self.groups, self.scalars, self.tiles, self.names = order, groups, scalars, tiles, names
        self.loop = order.loop
        self.units = self._units()
        self.place = {id(unit): number for number, unit in enumerate(self.units)}
        self.barriers: dict[int, tuple[Buffer, Buffer]] = {}
        self.prologue: list[Statement] = []
        for group in groups:
            if group.engine == "TMA":
                self._declare(group)

    def _units(self) -> list[Group | Scheduled]:
        """What is issued one after the other: groups and other statements."""
        of_load = {load.position: group for group in self.groups for load in group.loads}
        units: list[Group | Scheduled] = []
        for scheduled in self.order.in_order:
            unit = of_load.get(scheduled.position, scheduled)
            if not units or units[-1] is not unit:
                units.append(unit)
        return units

    def _declare(self, group: Group) -> None:
        """An mbarrier for each version, and what each thread remembers: bit v is the parity that it waits for next."""
        name = self.names.fresh(f"{self.loop.var.name}_loaded")
        barrier = barrier_buffer(name, group.versions)
        storage = Storage(self.names.fresh(f"{name}_parities"), Scope.LOCAL, 4, 4)
        parities = Buffer(storage.name, int32, (), (), storage)
        inits = (MbarrierInit(barrier, constant(k), 1, location=self.loop.location) for k in range(group.versions))
        self.prologue += [
            Allocate(barrier), If(self.thread.eq(0), seq(*inits)), Allocate(parities),
            Store(parities, (), constant(0)),
        ]  # fmt: skip
        self.barriers[id(group)] = barrier, parities

    # -- the parts ----------------------------------------

    def unrolled(self) -> Statement:
        """The pipeline if the loop has as many iterations as it is deep, else the loop as it was."""
        loop, depth = self.loop, self.order.depth
        trips = _difference(loop.stop, loop.start)
        known = constant_value(trips)
        if known is not None:
            return self._pipeline() if known >= depth else self._sequential()
        if depth == 0:
            return self._pipeline()
        return If(trips.ge(depth), self._pipeline(), self._sequential(), location=loop.location)

    def _pipeline(self) -> Statement:
        loop, depth = self.loop, self.order.depth
        dtype = loop.var.dtype
        result: list[Statement] = []
        for step in range(depth):
            result += self._step(_Step(_sum(loop.start, step), constant(step, dtype), range(step + 1)))
        var = Var(self.names.fresh(f"{loop.var.name}_step"), dtype)
        body = self._step(_Step(var, _difference(var, loop.start), range(depth + 1)))
        first, where = _sum(loop.start, depth), loop.location
        result.append(For(var, first, loop.stop, 1, LoopKind.SERIAL, seq(*body), location=where))
        for step in range(depth):
            position = _sum(loop.stop, step)
            number = _difference(position, loop.start)
            result += self._step(_Step(position, number, range(step + 1, depth + 1), drains=True))
        waited = [group for group in self.groups if group.engine == "cp.async"]
        return seq(*result, CpAsyncWaitGroup(0, self._buffers(waited), location=where) if waited else None)

    def _sequential(self) -> Statement:
        """One iteration after the other, all on the first version of the tiles."""
        loop = self.loop
        var = Var(self.names.fresh(loop.var.name), loop.var.dtype)
        zero, values = constant(0), {loop.var.name: var}
        body: list[Statement] = []
        for let in self.scalars:
            renamed = fresh_copy(let, dict(values), self.names)
            assert isinstance(renamed, Let)
            values[let.var.name] = renamed.var
            body.append(renamed)
        for scheduled in self.order.statements:
            body.append(fresh_copy(self._in_version(scheduled.statement, zero), dict(values), self.names))
        return For(var, loop.start, loop.stop, 1, LoopKind.SERIAL, seq(*body), location=loop.location)

    # -- one step ----------------------------------------

    def _step(self, step: _Step) -> list[Statement]:
        """The waits come first: what they complete is then over before the step's own copies begin."""
        result: list[Statement] = []
        for group in self.groups:
            result += self._wait(group, step) if group.reader.stage in step.begun else []
        for unit in self.units:
            stage = unit.stage if isinstance(unit, Scheduled) else unit.loads[0].stage
            result += self._issued(unit, step, stage) if stage in step.begun else []
            if isinstance(unit, Group) and unit.engine == "cp.async" and (stage in step.begun or not step.drains):
                # an empty group counts too, so that as many are under way in the first steps as later
                result.append(CpAsyncCommitGroup(location=self.loop.location))
        return result

    def _issued(self, unit: Group | Scheduled, step: _Step, stage: int) -> list[Statement]:
        """A unit for the iteration that began ``stage`` steps ago, with the scalars that it uses."""
        number = _sum(step.number, -stage)
        if isinstance(unit, Group):
            used, made = seq(*unit.copies), self._loads(unit, number)
        else:
            used, made = unit.statement, [self._in_version(unit.statement, number)]
        values: dict[str, Expr] = {}
        result: list[Statement] = self._bound(self.loop.var.name, _sum(step.position, -stage), values)
        for let in scalars_of(list(self.scalars), frozenset(_variables(used))):
            renamed = fresh_copy(let, values, self.names)
            assert isinstance(renamed, Let)
            values[let.var.name] = renamed.var
            result.append(renamed)
        return [*result, *(fresh_copy(statement, values, self.names) for statement in made)]

    def _bound(self, name: str, value: Expr, values: dict[str, Expr]) -> list[Statement]:
        """``values[name]`` is ``value``, under a name where it is no constant or variable."""
        if constant_value(value) is not None or isinstance(value, Var):
            values[name] = value
            return []
        values[name] = var = Var(self.names.fresh(name), value.dtype)
        return [Let(var, value, location=self.loop.location)]

    def _in_version(self, statement: Statement, number: Expr) -> Statement:
        tiles = {b.name: (b, _version(number, b.static_shape[0])) for b in self.tiles.values()}
        return InStage(tiles).visit(statement)

    def _loads(self, group: Group, number: Expr) -> list[Statement]:
        where = group.copies[0].location
        moved = [self._in_version(copy, number) for copy in group.copies]
        if group.engine == "cp.async":
            return [
                copy_with(copy, {"path": CopyPath.CP_ASYNC, "coalesced_width": width})
                for copy, width in zip(moved, group.widths, strict=True)
            ]
        barrier, _ = self.barriers[id(group)]
        index = _version(number, group.versions)
        size = LoadGroup(0, group.copies, True).bytes
        issue: list[Statement] = [MbarrierArriveExpectTx(barrier, index, size, location=where)]
        issue += [TmaCopy(c.source, c.destination, barrier, index, location=c.location)
                  for c in moved if isinstance(c, Copy)]  # fmt: skip
        return [If(self.thread.eq(self.first_thread), seq(*issue), location=where)]

    def _wait(self, group: Group, step: _Step) -> list[Statement]:
        """Waits for what the group loaded for the iteration that its reader works on in this step."""
        number, where = _sum(step.number, -group.reader.stage), group.reader.statement.location
        if group.engine == "cp.async":
            pending = 0 if step.drains else self._committed_since(group)
            return [CpAsyncWaitGroup(pending, self._buffers([group]), location=where)]
        barrier, parities = self.barriers[id(group)]
        index, known = _version(number, group.versions), Load(parities, (), int32)
        bit = constant(1) if group.versions == 1 else binary("shl", constant(1), index)
        parity = known & 1 if group.versions == 1 else binary("shr", known, index) & 1
        return [
            MbarrierWait(barrier, index, parity, self._buffers([group]), location=where),
            Store(parities, (), known ^ bit, location=where),
        ]

    def _committed_since(self, group: Group) -> int:
        """Groups that are committed after the one of an iteration, and before the step of its use."""
        others = [other for other in self.groups if other.engine == "cp.async"]
        later = sum(self.place[id(other)] > self.place[id(group)] for other in others)
        return later + len(others) * (group.reader.stage - group.loads[0].stage - 1)

    def _buffers(self, groups: list[Group]) -> tuple[Buffer, ...]:
        buffers = [copy.destination.buffer for group in groups for copy in group.copies]
        return tuple(self.tiles.get(buffer.storage.name, buffer) for buffer in buffers)


def _sum(value: Expr, by: int) -> Expr:
    known = constant_value(value)
    if known is not None:
        return constant(known + by, value.dtype)
    return value + by if by else value


def _difference(value: Expr, other: Expr) -> Expr:
    known, less = constant_value(value), constant_value(other)
    if known is not None and less is not None:
        return constant(known - less, value.dtype)
    return value - other if less != 0 else value


def _version(number: Expr, versions: int) -> Expr:
    value = constant_value(number)
    if versions == 1:
        return constant(0)
    return constant(value % versions) if value is not None else cast(number % versions, int32)


def _variables(node: Statement) -> set[str]:
    return {inner.name for inner in walk(node, Var)}

"""What the checker knows while a group of CTAs runs: the clocks, the shadow of its memory, and the findings."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import numpy as np

from ptxtile.ir.buffers import Scope
from ptxtile.ir.statements import Statement
from ptxtile.sim.async_effects import Touch
from ptxtile.sim.check.clocks import GLOBAL_FENCED, SHARED_FENCED, TO_GENERIC, Clocks
from ptxtile.sim.check.conflicts import describe_conflict, is_known
from ptxtile.sim.check.exits import Outstanding
from ptxtile.sim.check.findings import Finding
from ptxtile.sim.check.global_shadows import GlobalShadows
from ptxtile.sim.check.registers import Registers
from ptxtile.sim.check.shadow import Actors, Conflict, Kind, Shadow
from ptxtile.sim.memory import GlobalTensor

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedGroup

Same = tuple[np.ndarray, np.ndarray]


class Meetings:
    """Barriers at which threads learn from each other: for each place and round, what those who arrived know."""

    def __init__(self) -> None:
        self._clocks: dict[tuple[Hashable, int], np.ndarray] = {}
        self._rounds: dict[tuple[Hashable, int], int] = {}

    def gather(self, place: Hashable, number: int, clock: np.ndarray) -> None:
        known = self._clocks.get((place, number))
        self._clocks[place, number] = clock if known is None else np.maximum(known, clock)
        self._clocks.pop((place, number - 3), None)

    def clock(self, place: Hashable, number: int) -> np.ndarray | None:
        return self._clocks.get((place, number))

    def next_round(self, place: Hashable, warp: int) -> int:
        """Counts a warp's arrivals at a place where every warp arrives."""
        self._rounds[place, warp] = self._rounds.get((place, warp), 0) + 1
        return self._rounds[place, warp]

    def round_of(self, place: Hashable, warp: int) -> int:
        return self._rounds.get((place, warp), 0)


class Watch:
    """The checker's state for one group of CTAs. ``report`` takes each finding."""

    def __init__(
        self, group: CheckedGroup, clocks: Clocks, shadows: GlobalShadows, report: Callable[[Finding], None]
    ) -> None:
        self.group = group
        self.clocks = clocks
        self._report = report
        self.reported = 0
        self.global_shadows = shadows
        size = group.context.shared_bytes
        shadows.start_group(clocks)
        self.shared = [shadows.shared_shadow(cta, size) for cta in range(group.ctas)]
        self.meetings = Meetings()
        self.registers = Registers(self)
        self.outstanding = Outstanding(self)
        self._places: dict[Hashable, np.ndarray] = {}
        self._storages: dict[str, int] = {}

    def report(self, finding: Finding) -> None:
        self.reported += 1
        self._report(finding)

    def storage_number(self, name: str) -> int:
        return self._storages.setdefault(name, len(self._storages))

    def storage_name(self, number: int) -> str:
        return next((name for name, known in self._storages.items() if known == number), "another buffer")

    # Atomic operations --------------------------------------------------------------------------------------------

    def release_to(self, place: Hashable, threads: np.ndarray, *, goes_on: bool) -> None:
        """A releasing operation leaves what its threads know at a place in memory; ``goes_on``: beside what was there,
        as a read-modify-write does (release sequences of the C++ memory model)."""
        clock, known = self.clocks.release(threads), self._places.get(place)
        self._places[place] = clock if known is None or not goes_on else np.maximum(known, clock)

    def forget_place(self, place: Hashable) -> None:
        """A store that does not release ends what was released there."""
        self._places.pop(place, None)

    def acquire_from(self, place: Hashable, threads: np.ndarray) -> None:
        if place in self._places:
            self.clocks.join(threads, self._places[place])

    # Accesses -----------------------------------------------------------------------------------------------------

    def generic(self, threads: np.ndarray, space: Scope) -> Actors:
        """Accesses by ``threads`` [access]."""
        clocks = self.clocks
        times, strands = clocks.tick[threads // 32], clocks.strand_of[threads]
        fence = SHARED_FENCED if space is not Scope.GLOBAL else GLOBAL_FENCED
        return Actors(threads, times, strands, threads, clocks.state, TO_GENERIC, fence)

    def shared_access(
        self, kind: Kind, statement: Statement, storage: str, ctas: np.ndarray, offsets: np.ndarray, width: int,
        actors: Actors, *, reads: bool = False, same: Same | None = None,
    ) -> None:  # fmt: skip
        """Accesses of ``offsets`` [access] in the shared memory of ``ctas`` [access]; see :meth:`Shadow.access`."""
        number = self.storage_number(storage)
        if len(self.shared) == 1:
            self.judge(kind, self.shared[0], statement, storage, offsets, width, actors, number, reads, same)
            return
        for cta in np.unique(ctas):
            here = np.flatnonzero(ctas == cta)
            some = None if same is None else (same[0][here], same[1][here])
            shadow = self.shared[cta]
            self.judge(kind, shadow, statement, storage, offsets[here], width, actors.some(here), number, reads, some)

    def global_access(
        self, kind: Kind, statement: Statement, tensor: GlobalTensor, offsets: np.ndarray, width: int, actors: Actors,
        *, reads: bool = False, same: Same | None = None,
    ) -> None:  # fmt: skip
        shadow = self.global_shadows.shadow_of(tensor)
        if shadow is not None:
            self.judge(kind, shadow, statement, tensor.name, offsets, width, actors, -1, reads, same)

    def judge(
        self, kind: Kind, shadow: Shadow, statement: Statement, name: str, offsets: np.ndarray, width: int,
        actors: Actors, storage: int, reads: bool, same: Same | None,
    ) -> None:  # fmt: skip
        """Accesses of ``offsets`` in a shadow; ``name``: the storage's (of number ``storage``) or the tensor's (-1)."""
        site = self.global_shadows.site(statement)
        conflicts = shadow.access(kind, offsets, width, actors, site, storage, reads=reads, same=same)
        if conflicts:
            self.tell(conflicts, kind, shadow, statement, name, actors)

    def tell(
        self, conflicts: list[Conflict], kind: Kind, shadow: Shadow, statement: Statement, name: str, actors: Actors
    ) -> None:
        """Reports each fault once: one shows at many bytes, and again and again."""
        site = self.global_shadows.site(statement)
        for conflict in conflicts:
            seen = site, conflict.what, conflict.site, is_known(self, actors, conflict)
            if seen not in self.global_shadows.reported:
                self.global_shadows.reported.add(seen)
                self.report(describe_conflict(self, shadow, conflict, statement, name, actors, kind))

    # Asynchronous effects -----------------------------------------------------------------------------------------

    def touch(self, statement: Statement, touch: Touch, actors: Actors) -> None:
        """Judges what an asynchronous effect will touch, at its issue; ``actors`` [row of the touch]."""
        rows = np.broadcast_to(np.arange(len(touch.offsets))[:, None], touch.offsets.shape)
        inside = np.ones(touch.offsets.shape, bool) if touch.inside is None else touch.inside
        offsets, rows = touch.offsets[inside], rows[inside]
        kind = (Kind.REDUCTION if touch.atomic else Kind.WRITE) if touch.is_write else Kind.READ
        each = actors.some(rows)
        if isinstance(touch.memory, GlobalTensor):
            reads = kind is not Kind.WRITE
            self.global_access(kind, statement, touch.memory, offsets, touch.width, each, reads=reads)
            return
        ctas, reads = touch.ctas[rows], not touch.is_write
        self.shared_access(kind, statement, touch.name, ctas, offsets, touch.width, each, reads=reads)
        self.outstanding.add(statement, touch.ctas, actors)

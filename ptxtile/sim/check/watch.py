"""What the checker knows while a group of CTAs runs: the clocks, the shadow of its memory, and the findings."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ptxtile.ir.buffers import Scope
from ptxtile.ir.statements import Statement
from ptxtile.sim.async_effects import Touch
from ptxtile.sim.check.clocks import GLOBAL_FENCED, KNOWN, SHARED_FENCED, Clocks, Engine
from ptxtile.sim.check.elements import describe_byte
from ptxtile.sim.check.findings import Finding
from ptxtile.sim.check.registers import Registers
from ptxtile.sim.check.shadow import AFTER_READ, AFTER_WRITE, UNWRITTEN, Conflict, Shadow
from ptxtile.sim.memory import GlobalTensor

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedGroup

ENGINE_NAMES = {
    Engine.WGMMA: "wgmma of", Engine.CP_ASYNC: "cp.async of", Engine.BULK_READ: "a TMA store of",
    Engine.BULK_WRITE: "a TMA store of",
}  # fmt: skip


@dataclass(slots=True)
class Actors:
    """Who makes some accesses: ``rows`` index the tables, and each access has its agent and time."""

    rows: np.ndarray
    agents: np.ndarray
    times: np.ndarray
    of_writes: np.ndarray
    of_reads: np.ndarray


@dataclass(slots=True)
class Issue:
    """An asynchronous effect's engine (None: TMA loads, which read and write for an mbarrier); for each row of what it
    touches the agent, its time, and in ``states`` [``which``] the clock of the warp that issued it."""

    engine: Engine | None
    agents: np.ndarray
    times: np.ndarray
    states: np.ndarray
    which: np.ndarray


@dataclass(slots=True)
class GlobalShadows:
    """Shadows of tensors by the address of their storage, for the tensors ``written`` by a launch; and the statements
    that findings lead back to, by number."""

    written: frozenset[str]
    shadows: dict[int, Shadow] = field(default_factory=dict)
    sites: list[Statement] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)

    def site(self, statement: Statement) -> int:
        known = self.numbers.get(id(statement))
        if known is None:
            known = self.numbers[id(statement)] = len(self.sites)
            self.sites.append(statement)
        return known

    def close_group(self, strangers: int) -> None:
        """A group of CTAs has ended: for the next one its accesses are those of strangers, ordered by nothing."""
        for shadow in self.shadows.values():
            shadow.hand_over(strangers)


class Meetings:
    """Barriers at which warps learn from each other: for each place and round, the clocks of who has arrived."""

    def __init__(self, agents: int) -> None:
        self._agents = agents
        self._clocks: dict[tuple[Hashable, int], np.ndarray] = {}
        self._rounds: dict[tuple[Hashable, int], int] = {}

    def gather(self, place: Hashable, number: int, clock: np.ndarray) -> None:
        known = self._clocks.get((place, number))
        self._clocks[place, number] = clock if known is None else np.maximum(known, clock)
        self._clocks.pop((place, number - 3), None)

    def clock(self, place: Hashable, number: int) -> np.ndarray:
        found = self._clocks.get((place, number))
        return np.zeros((3, self._agents), dtype=np.int32) if found is None else found

    def next_round(self, place: Hashable, warp: int) -> int:
        """Counts a warp's arrivals at a place where every warp arrives."""
        self._rounds[place, warp] = self._rounds.get((place, warp), 0) + 1
        return self._rounds[place, warp]

    def round_of(self, place: Hashable, warp: int) -> int:
        return self._rounds.get((place, warp), 0)


class Watch:
    """The checker's state for one group of CTAs. ``report`` takes each finding."""

    def __init__(self, group: CheckedGroup, mbarriers: int, shadows: GlobalShadows, report: Callable[[Finding], None]):
        kernel = group.context.kernel
        self.group = group
        self.clocks = Clocks(group.ctas, kernel.threads, mbarriers)
        self.shared = [
            Shadow(group.context.shared_bytes, self.clocks.agents, initialised=False) for _ in range(group.ctas)
        ]
        self.global_shadows = shadows
        self.meetings = Meetings(self.clocks.agents)
        self.registers = Registers(self)
        self._places: dict[Hashable, np.ndarray] = {}
        self.report = report

    def release_to(self, place: Hashable, warp: int) -> None:
        """A releasing atomic operation leaves the warp's clock at a place in memory."""
        clock, known = self.clocks.release(warp), self._places.get(place)
        self._places[place] = clock if known is None else np.maximum(known, clock)

    def acquire_from(self, place: Hashable, warp: int) -> None:
        if place in self._places:
            self.clocks.join(warp, self._places[place])

    # Who ----------------------------------------------------------------------------------------------------------

    def generic(self, warps: np.ndarray, space: Scope) -> Actors:
        """Accesses by the threads of ``warps`` [access]."""
        clocks = self.clocks
        rows, which = np.unique(warps, return_inverse=True)
        fence = SHARED_FENCED if space is Scope.SHARED else GLOBAL_FENCED
        states = clocks.state[rows]
        of_writes = np.stack([clocks.needed_of_writes(s, asynchronous=False, fence_row=fence) for s in states])
        times = states[np.arange(len(rows)), KNOWN, rows]
        return Actors(which.reshape(-1), rows[which].reshape(-1), times[which].reshape(-1), of_writes, states[:, KNOWN])

    def asynchronous(self, issue: Issue, rows: np.ndarray, space: Scope) -> Actors:
        """Accesses by an engine; ``rows`` [access] of what it touches."""
        fence = SHARED_FENCED if space is Scope.SHARED else GLOBAL_FENCED
        other_proxy = issue.engine is not Engine.CP_ASYNC
        of_writes = np.stack(
            [self.clocks.needed_of_writes(s, asynchronous=other_proxy, fence_row=fence) for s in issue.states]
        )
        return Actors(issue.which[rows], issue.agents[rows], issue.times[rows], of_writes, issue.states[:, KNOWN])

    # Accesses -----------------------------------------------------------------------------------------------------

    def shared_access(
        self, statement: Statement, name: str, ctas: np.ndarray, offsets: np.ndarray, width: int, actors: Actors,
        same: np.ndarray | None, *, atomic: bool = False,
    ) -> None:  # fmt: skip
        """Reads, or writes where ``same`` is given, of ``offsets`` [access] in the shared memory of ``ctas``
        [access]."""
        for cta in np.unique(ctas):
            here = np.flatnonzero(ctas == cta)
            self._access(
                self.shared[cta], statement, name, offsets[here], width, _some(actors, here),
                None if same is None else same[here], atomic,
            )  # fmt: skip

    def global_access(
        self, statement: Statement, tensor: GlobalTensor, offsets: np.ndarray, width: int, actors: Actors,
        same: np.ndarray | None, *, atomic: bool = False,
    ) -> None:  # fmt: skip
        if tensor.name not in self.global_shadows.written:
            return
        shadow = self.global_shadows.shadows.get(tensor.address)
        if shadow is None:
            shadow = Shadow(tensor.data.size, self.clocks.agents, initialised=True)
            self.global_shadows.shadows[tensor.address] = shadow
        self._access(shadow, statement, tensor.name, offsets, width, actors, same, atomic)

    def _access(
        self, shadow: Shadow, statement: Statement, name: str, offsets: np.ndarray, width: int, actors: Actors,
        same: np.ndarray | None, atomic: bool,
    ) -> None:  # fmt: skip
        site = self.global_shadows.site(statement)
        offsets = np.ascontiguousarray(offsets, dtype=np.int64)
        if same is None:
            conflicts = shadow.read(
                offsets, width, actors.agents, actors.times, site, actors.of_writes, actors.rows, atomic=atomic
            )
        else:
            conflicts = shadow.write(
                offsets, width, actors.agents, actors.times, site, actors.of_writes, actors.of_reads, actors.rows,
                np.ascontiguousarray(same, dtype=np.uint8), atomic=atomic,
            )  # fmt: skip
        for conflict in conflicts:
            self._report(conflict, statement, name, actors, is_write=same is not None)

    def _report(
        self, conflict: Conflict, statement: Statement, name: str, actors: Actors, *, is_write: bool
    ) -> None:  # fmt: skip
        me = self.who(int(actors.agents[conflict.access]))
        place = describe_byte(self.group, name, conflict.byte)
        if conflict.what == UNWRITTEN:
            message = f"{me} reads {place}, which nobody has written"
            self.report(Finding("uninitialised", message, (statement.location,)))
            return
        assert conflict.what in (AFTER_WRITE, AFTER_READ)
        later, earlier = "writes" if is_write else "reads", "written" if conflict.what == AFTER_WRITE else "read"
        message = f"{me} {later} {place}, which was {earlier} by {self.who(conflict.other)}: "
        known = int(actors.of_reads[actors.rows[conflict.access], conflict.other]) >= conflict.time
        rule, missing = ("missing fence", "no proxy fence between") if known else ("race", "nothing orders the two")
        sites = self.global_shadows.sites
        other = sites[conflict.site].location if 0 <= conflict.site < len(sites) else None
        self.report(Finding(rule, message + missing, (statement.location, other)))

    def who(self, agent: int) -> str:
        """An agent in words."""
        clocks = self.clocks
        if agent == clocks.strangers:
            return "another CTA"
        engine, rest = divmod(agent, clocks.warps)
        if engine >= len(Engine):
            number, cta = divmod(agent - len(Engine) * clocks.warps, clocks.ctas)
            return f"a TMA load onto {self.group.mbarrier_name(number)} of CTA {self.group.block_index(cta)}"
        cta, warp = divmod(rest, clocks.warps_of_cta)
        warp_text = f"warp {warp}{self.group.role_of(warp)} of CTA {self.group.block_index(cta)}"
        return warp_text if engine == Engine.GENERIC else f"{ENGINE_NAMES[Engine(engine)]} {warp_text}"

    # Effects ------------------------------------------------------------------------------------------------------

    def touch(self, statement: Statement, touch: Touch, issue: Issue) -> None:
        """Judges what an asynchronous effect will touch, at its issue."""
        rows = np.broadcast_to(np.arange(len(touch.offsets))[:, None], touch.offsets.shape)
        inside = np.ones(touch.offsets.shape, bool) if touch.inside is None else touch.inside
        offsets, rows = touch.offsets[inside], rows[inside]
        same = np.zeros(len(offsets), np.uint8) if touch.is_write else None
        if isinstance(touch.memory, GlobalTensor):
            actors = self.asynchronous(issue, rows, Scope.GLOBAL)
            self.global_access(statement, touch.memory, offsets, touch.width, actors, same, atomic=touch.atomic)
        else:
            actors = self.asynchronous(issue, rows, Scope.SHARED)
            self.shared_access(statement, touch.name, touch.ctas[rows], offsets, touch.width, actors, same)


def _some(actors: Actors, here: np.ndarray) -> Actors:
    return Actors(actors.rows[here], actors.agents[here], actors.times[here], actors.of_writes, actors.of_reads)

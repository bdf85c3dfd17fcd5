"""Shadow state of memory: for each byte who wrote it last, and who has read it since.

Import this module only when a program is checked: it loads numba (:mod:`.compiled_shadow`).
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from ptxtile.sim.check import compiled_shadow
from ptxtile.sim.check.clocks import OF_THREADS, WARP, Clocks

NOBODY, EARLIER_LAUNCH, STRANGERS = -1, -2, -3
"""What is no agent: nobody has written yet; an earlier launch has, which everybody knows; CTAs outside of the group
have, which nobody knows."""

UNWRITTEN, OTHER_STORAGE, AFTER_WRITE, AFTER_READ = range(4)
"""What is wrong with an access: it reads what nobody wrote, or what was written through another storage at the same
place; a write, or a read, is not ordered before it."""


class Kind(IntEnum):
    """Kinds of accesses. Atomic operations of threads and the reductions of TMA belong to different proxies, so that
    those of one kind do not race with each other, but with the other kind."""

    READ = 0
    ATOMIC_READ = 1
    ATOMIC_WRITE = 2
    REDUCTION = 3
    WRITE = 4


_READS = 1 << Kind.READ | 1 << Kind.ATOMIC_READ
RIVALS = {
    Kind.READ: 1 << Kind.ATOMIC_WRITE | 1 << Kind.REDUCTION,
    Kind.ATOMIC_READ: 1 << Kind.REDUCTION,
    Kind.ATOMIC_WRITE: 1 << Kind.READ | 1 << Kind.REDUCTION,
    Kind.REDUCTION: _READS | 1 << Kind.ATOMIC_WRITE,
    Kind.WRITE: _READS | 1 << Kind.ATOMIC_WRITE | 1 << Kind.REDUCTION,
}
"""Kind → the kinds (bits), beside WRITE, that an access has to be ordered after."""

MOST_CONFLICTS = 16
"""Conflicts kept of one access."""


class Conflict(NamedTuple):
    """Access number ``access`` of a statement is in conflict at ``byte`` with what ``other`` did there at ``time``, in
    the statement of number ``site`` (0: not known)."""

    what: int
    access: int
    byte: int
    other: int
    site: int
    time: int


@dataclass(slots=True)
class Actors:
    """Who makes some accesses, [access]: the agent, its time, the row of ``state`` [row, 3, agent] with what is known
    to it, and the thread whose private knowledge counts too (-1: nobody's). ``proxy``: TO_ASYNC or TO_GENERIC, which
    earlier writes need a fence; ``fence_row``: where a clock tells of such fences."""

    agents: np.ndarray
    times: np.ndarray
    rows: np.ndarray
    threads: np.ndarray
    state: np.ndarray
    proxy: int
    fence_row: int

    def some(self, chosen: np.ndarray) -> Actors:
        return Actors(
            self.agents[chosen], self.times[chosen], self.rows[chosen], self.threads[chosen], self.state, self.proxy,
            self.fence_row,
        )  # fmt: skip


class Shadow:
    """The shadow of ``size`` bytes under the clocks of a group of CTAs, or of several groups one after another.

    ``last`` [byte, 5]: the last plain write's agent (counted from ``base``, the sum of the agents of earlier groups),
    time, site, number among the calls of :meth:`access` (negative: of a value that another thread of the statement
    wrote over), and storage. ``others`` [slot, byte, 3]: since that write, the
    latest access of another kind: its time, the lanes that made it, and its site; a slot belongs to a kind and a warp,
    or a kind and an engine that works for a whole warpgroup or for an mbarrier. ``present`` [byte]: the kinds that
    there are, and ``used`` [byte] (bits) the slots, what others hold is of no account; both by the group of number
    ``group`` [byte]; ``strange`` [byte, 2]: those of earlier groups, and the site of
    one. Sites count from 1. ``forgets``: each group of CTAs has this memory to itself, and finds nothing in it.
    """

    def __init__(self, size: int, clocks: Clocks, *, initialised: bool, forgets: bool = False) -> None:
        self.size = size
        self.initialised = initialised
        self.forgets = forgets
        self.last = np.zeros((size, 5), dtype=np.int32)
        self.last[:, 0] = NOBODY
        self.present = np.zeros(size, dtype=np.uint8)
        self.used = np.zeros(size, dtype=np.uint64)
        self.group = np.ones(size, dtype=np.int32)  # the number of the first group
        self.strange = np.zeros((size, 2), dtype=np.int32)
        self.others = np.zeros((0, size, 3), dtype=np.int32)
        self.base = self.number = self.calls = 0
        self._found = np.zeros((MOST_CONFLICTS, 6), dtype=np.int64)
        self.clocks = clocks
        self._start_group()

    def start_group(self, clocks: Clocks) -> None:
        """Another group of CTAs begins: nothing that was done so far is ordered before what it does."""
        self.base += self.clocks.agents
        self.clocks = clocks
        self._start_group()

    def _start_group(self) -> None:
        self.number += 1
        slots = max(len(self.others), 2 * self.clocks.warps_of_cta + 8)
        self.slot_of = np.full((len(RIVALS) - 1, self.clocks.agents), NOBODY, dtype=np.int32)
        self.base_of = np.zeros(slots, dtype=np.int32)
        self.kind_of = np.zeros(slots, dtype=np.int32)
        self.slots = 0
        self._slotted: set[tuple[Kind, tuple[int, int]]] = set()

    def end_launch(self) -> None:
        """A later launch sees everything."""
        self.last[self.last[:, 0] >= 0, 0] = EARLIER_LAUNCH
        self.present[:] = 0
        self.used[:] = 0
        self.strange[:] = 0

    def _make_slots(self, kind: Kind, agents: np.ndarray) -> None:
        """Gives every agent a slot for accesses of a kind."""
        slot_of = self.slot_of[kind]
        while True:
            without = agents[slot_of[agents] == NOBODY]
            if not len(without):
                return
            if self.slots == len(self.base_of):
                self.base_of = np.concatenate([self.base_of, np.zeros_like(self.base_of)])
                self.kind_of = np.concatenate([self.kind_of, np.zeros_like(self.kind_of)])
            base, count = int(without[0]), 1
            engine, number = self.clocks.engine_of(base)
            if engine in OF_THREADS:
                base, count = base - number % WARP, WARP
            self.base_of[self.slots], self.kind_of[self.slots] = base, kind
            slot_of[base : base + count] = self.slots
            self.slots += 1
            missing = len(self.base_of) - len(self.others)
            if missing:
                more = _zeros((missing, self.size, 3))
                self.others = np.concatenate([self.others, more]) if len(self.others) else more

    def access(
        self, kind: Kind, offsets: np.ndarray, width: int, actors: Actors, site: int, storage: int = -1, *,
        reads: bool = False, same: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> list[Conflict]:  # fmt: skip
        """Accesses of ``width`` bytes at each of ``offsets``. ``reads``: whether they rely on what is there; then
        ``storage`` is the number of the storage that they name, -1 where that does not matter. ``same``, of plain
        writes [access]: whether the memory held the value already before the statement, and whether it holds it after
        it; a statement may write one value several times."""
        if kind is not Kind.WRITE:
            self._make_slots(kind, actors.agents)
        return self._judge(
            kind, reads, _ready(offsets, np.int64), width, _ready(actors.agents, np.int64),
            _ready(actors.times, np.int32), _ready(actors.rows, np.int32), _ready(actors.threads, np.int64), actors,
            site, storage, same,
        )  # fmt: skip

    def access_of_threads(
        self, kind: Kind, offsets: np.ndarray, width: int, actors: Actors, warps: tuple[int, int], site: int,
        storage: int, same: tuple[np.ndarray, np.ndarray] | None,
    ) -> list[Conflict]:  # fmt: skip
        """:meth:`access` by threads of a CTA, of ``warps`` (first, last), with all arrays in the form that the compiled
        code takes."""
        if kind is not Kind.WRITE and (kind, warps) not in self._slotted:
            self._make_slots(kind, np.arange(warps[0] * WARP, (warps[1] + 1) * WARP))
            self._slotted.add((kind, warps))
        return self._judge(
            kind, kind is Kind.READ, offsets, width, actors.agents, actors.times, actors.rows, actors.threads, actors,
            site, storage, same,
        )  # fmt: skip

    def _judge(
        self, kind: Kind, reads: bool, offsets: np.ndarray, width: int, agents: np.ndarray, times: np.ndarray,
        rows: np.ndarray, threads: np.ndarray, actors: Actors, site: int, storage: int,
        same: tuple[np.ndarray, np.ndarray] | None,
    ) -> list[Conflict]:  # fmt: skip
        self.calls += 1
        before, after = (_NEVER, _NEVER) if same is None else same
        found, clocks = self._found, self.clocks
        count = compiled_shadow.judge(
            self.last, self.present, self.used, self.group, self.strange, self.others,
            self.slot_of[min(kind, Kind.REDUCTION)], self.base_of, self.kind_of, self.slots, self.base, self.number,
            self.calls, self.initialised, self.forgets, int(kind), RIVALS[kind], reads, offsets, width, agents, times,
            rows, threads, actors.state, clocks.private, clocks.owner, clocks.crosses, actors.proxy, actors.fence_row,
            site, storage, before, after, found,
        )  # fmt: skip
        return [Conflict(*map(int, row)) for row in found[:count]] if count else []


_NEVER = np.zeros(0, dtype=np.uint8)


def _ready(array: np.ndarray, dtype: type) -> np.ndarray:
    """In the form that the compiled code takes."""
    array = np.ascontiguousarray(array, dtype=dtype)
    return array if array.flags.writeable else array.copy()


def _zeros(shape: tuple[int, ...]) -> np.ndarray:
    """int32 zeros of which only those that are touched become memory, page by page; np.zeros asks for huge pages."""
    count = math.prod(shape)
    return np.frombuffer(mmap.mmap(-1, max(1, 4 * count)), dtype=np.int32, count=count).reshape(shape)

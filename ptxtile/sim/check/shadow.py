"""Shadow state of memory: for each byte who wrote it last, and who has read it since.

Import this module only when a program is checked: it loads numba, whose compiled code is kept on disk.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numba import njit

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

MOST_CONFLICTS, MOST_ALIKE = 16, 2
"""Conflicts kept of one access, and of those with one cause."""


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
    wrote over), and storage. ``others`` [byte, slot, 3]: since that write, the
    latest access of another kind: its time, the lanes that made it, and its site; a slot belongs to a kind and a warp,
    or a kind and an engine that works for a whole warpgroup or for an mbarrier. ``present`` [byte]: the kinds that
    there are, by the group of number ``group`` [byte]; ``strange`` [byte, 2]: those of earlier groups, and the site of
    one. Sites count from 1.
    """

    def __init__(self, size: int, clocks: Clocks, *, initialised: bool) -> None:
        self.size = size
        self.initialised = initialised
        self.last = np.zeros((size, 5), dtype=np.int32)
        self.last[:, 0] = NOBODY
        self.present = np.zeros(size, dtype=np.uint8)
        self.group = np.zeros(size, dtype=np.int32)
        self.strange = np.zeros((size, 2), dtype=np.int32)
        self.others = np.zeros((0, 0, 3), dtype=np.int32)
        self.base = self.number = self.calls = 0
        self.clocks = clocks
        self._start_group()

    def start_group(self, clocks: Clocks) -> None:
        """Another group of CTAs begins: nothing that was done so far is ordered before what it does."""
        self.base += self.clocks.agents
        self.clocks = clocks
        self._start_group()

    def _start_group(self) -> None:
        self.number += 1
        slots = max(self.others.shape[1], self.clocks.warps_of_cta + 4)
        self.slot_of = np.full((len(RIVALS) - 1, self.clocks.agents), NOBODY, dtype=np.int32)
        self.base_of = np.zeros(slots, dtype=np.int32)
        self.kind_of = np.zeros(slots, dtype=np.int32)
        self.slots = 0

    def end_launch(self) -> None:
        """A later launch sees everything."""
        self.last[self.last[:, 0] >= 0, 0] = EARLIER_LAUNCH
        self.present[:] = 0
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
            missing = len(self.base_of) - self.others.shape[1]
            if missing:
                more = np.zeros((self.size, missing, 3), dtype=np.int32)
                self.others = np.concatenate([self.others, more], axis=1) if len(self.others) else more

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
        self.calls += 1
        before, after = (_NEVER, _NEVER) if same is None else same
        found = np.zeros((MOST_CONFLICTS, 6), dtype=np.int64)
        clocks = self.clocks
        count = _access(
            self.last, self.present, self.group, self.strange, self.others, self.slot_of[min(kind, Kind.REDUCTION)],
            self.base_of, self.kind_of, self.slots, self.base, self.number, self.calls, self.initialised, int(kind),
            RIVALS[kind], reads, offsets, width, actors.agents, actors.times, actors.rows, actors.threads, actors.state,
            clocks.private, clocks.owner, clocks.crosses, actors.proxy, actors.fence_row, site, storage, before, after,
            found,
        )  # fmt: skip
        return [Conflict(*map(int, row)) for row in found[:count]] if count else []


_NEVER = np.zeros(0, dtype=np.uint8)


@njit(cache=True)
def _known(state, private, owner, crosses, proxy, fence_row, row, thread, agent):
    """Up to which time an actor may rely on what ``agent`` did: for accesses that cross from one proxy to the other,
    up to a fence."""
    which = fence_row if crosses[agent] & proxy else 0
    known = state[row, which, agent]
    if thread >= 0 and owner[agent] == thread:
        if agent == thread and which == 0:
            return np.int32(2**31 - 1)
        return max(known, private[which, agent])
    return known


@njit(cache=True)
def _note(found, count, what, access, byte, other, site, time):
    alike = 0
    for row in range(count):
        alike += found[row, 0] == what and found[row, 4] == site
    if count < len(found) and alike < MOST_ALIKE:
        found[count, 0], found[count, 1], found[count, 2] = what, access, byte
        found[count, 3], found[count, 4], found[count, 5] = other, site, time
        return count + 1
    return count


@njit(cache=True)
def _leave_to_strangers(byte, present, group, strange, others, number):
    """What an earlier group did here becomes that of strangers."""
    for slot in range(others.shape[1]):
        if others[byte, slot, 1] != 0:
            strange[byte, 1] = others[byte, slot, 2]
            others[byte, slot, 1] = 0
    strange[byte, 0] |= present[byte]
    present[byte] = 0
    group[byte] = number


@njit(cache=True)
def _access(
    last, present, group, strange, others, slot_of, base_of, kind_of, slots, base, number, call, initialised, kind,
    rivals, reads, offsets, width, agents, times, rows, threads, state, private, owner, crosses, proxy, fence_row, site,
    storage, before, after, found,
):  # fmt: skip
    count = 0
    for access in range(len(offsets)):
        row, thread, agent, time = rows[access], threads[access], agents[access], times[access]
        slot, bit = 0, np.int32(0)
        if kind != 4:
            slot = slot_of[agent]
            bit = np.int32(np.uint32(1) << np.uint32(agent - base_of[slot]))
        seen_writer, seen_time = -9, 0
        for byte in range(offsets[access], offsets[access] + width):
            if group[byte] != number:
                _leave_to_strangers(byte, present, group, strange, others, number)
            # The last plain write
            writer, written = last[byte, 0], last[byte, 1]
            if writer >= 0:
                if writer != seen_writer or written != seen_time:
                    other, known = writer - base if writer >= base else -3, np.int32(0)
                    if other >= 0:
                        known = _known(state, private, owner, crosses, proxy, fence_row, row, thread, other)
                    if known >= written:
                        seen_writer, seen_time = writer, written
                    else:
                        harmless = False
                        if kind == 4 and len(before) > 0 and last[byte, 2] == site:
                            if last[byte, 3] == call or last[byte, 3] == -call:
                                harmless = after[access] != 0 and last[byte, 3] > 0
                            else:
                                harmless = before[access] != 0
                        if not harmless:
                            count = _note(found, count, 2, access, byte, other, last[byte, 2], written)
                if reads and storage >= 0 and last[byte, 4] != storage:
                    count = _note(found, count, 1, access, byte, last[byte, 4], last[byte, 2], written)
            elif writer == -1 and reads and not initialised:
                count = _note(found, count, 0, access, byte, -1, 0, 0)
            # Accesses of other kinds since then
            if strange[byte, 0] & rivals:
                what = 3 if strange[byte, 0] & rivals & 3 else 2
                count = _note(found, count, what, access, byte, -3, strange[byte, 1], 1)
            if present[byte] & rivals:
                for rival in range(slots):
                    lanes = np.uint32(others[byte, rival, 1])
                    if lanes and rivals >> kind_of[rival] & 1:
                        when, rival_agent = others[byte, rival, 0], base_of[rival]
                        while lanes:
                            if lanes & np.uint32(1):
                                known = _known(
                                    state, private, owner, crosses, proxy, fence_row, row, thread, rival_agent
                                )
                                if known < when:
                                    what = 3 if kind_of[rival] < 2 else 2
                                    count = _note(
                                        found, count, what, access, byte, rival_agent, others[byte, rival, 2], when
                                    )
                            lanes >>= np.uint32(1)
                            rival_agent += 1
            # What is kept
            if kind == 4:
                if present[byte]:
                    for rival in range(slots):
                        others[byte, rival, 1] = 0
                    present[byte] = 0
                strange[byte, 0] = 0
                last[byte, 0] = agent + base
                last[byte, 1] = time
                last[byte, 2] = site
                last[byte, 3] = -call if len(after) > 0 and after[access] == 0 else call
                last[byte, 4] = storage
            else:
                if others[byte, slot, 0] != time:
                    others[byte, slot, 0] = time
                    others[byte, slot, 1] = 0
                others[byte, slot, 1] |= bit
                others[byte, slot, 2] = site
                present[byte] |= 1 << kind
                if writer == -1 and kind == 2:
                    last[byte, 0] = -2
    return count

"""Shadow state of memory: for each byte who wrote it last, and who has read it since.

Import this module only when a program is checked: it loads numba.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

NOBODY = -1
UNWRITTEN, AFTER_WRITE, AFTER_READ = range(3)
"""What is wrong with an access: it reads what nobody wrote; the last write, or a read, is not ordered before it."""

MOST_CONFLICTS = 8
"""Conflicts kept of one access; they have one cause."""


class Conflict(NamedTuple):
    """Access number ``access`` of a statement is in conflict at ``byte`` with what ``other`` did there at ``time``."""

    what: int
    access: int
    byte: int
    other: int
    site: int
    time: int


class Shadow:
    """The shadow of ``size`` bytes. ``writer``, ``write_time``, ``write_site``: the last write of each byte.
    ``read_time``, ``read_site`` [byte, slot]: the latest read by the agent that ``slot_of`` gives the slot of."""

    def __init__(self, size: int, agents: int, *, initialised: bool) -> None:
        self.initialised = initialised
        self.writer = np.full(size, NOBODY, dtype=np.int32)
        self.write_time = np.zeros(size, dtype=np.int32)
        self.write_site = np.zeros(size, dtype=np.int32)
        self.atomic = np.zeros(size, dtype=np.uint8)
        self.was_read = np.zeros(size, dtype=np.uint8)
        self.slot_of = np.full(agents, NOBODY, dtype=np.int32)
        self.agent_of = np.zeros(0, dtype=np.int32)
        self.read_time = np.zeros((size, 0), dtype=np.int32)
        self.read_site = np.zeros((size, 0), dtype=np.int32)

    def _slots(self, agents: np.ndarray) -> None:
        """Gives every agent that reads a slot."""
        new = [int(agent) for agent in np.unique(agents) if self.slot_of[agent] == NOBODY]
        if new:
            self.slot_of[new] = np.arange(len(self.agent_of), len(self.agent_of) + len(new))
            self.agent_of = np.append(self.agent_of, np.array(new, dtype=np.int32))
            more = np.zeros((len(self.writer), len(new)), dtype=np.int32)
            self.read_time = np.ascontiguousarray(np.concatenate([self.read_time, more], axis=1))
            self.read_site = np.ascontiguousarray(np.concatenate([self.read_site, more], axis=1))

    def read(
        self, offsets: np.ndarray, width: int, agents: np.ndarray, times: np.ndarray, site: int, of_writes: np.ndarray,
        rows: np.ndarray, *, atomic: bool = False,
    ) -> list[Conflict]:  # fmt: skip
        """Reads of ``width`` bytes at each of ``offsets`` by ``agents`` at ``times``. ``of_writes`` [row, agent]: up to
        which time the reader of a row may rely on each agent's writes; ``rows``: the row of each access. Gives
        (what is wrong, access, byte, other agent, its site)."""
        self._slots(agents)
        found = np.zeros((MOST_CONFLICTS, 6), dtype=np.int64)
        count = _read(
            self.writer, self.write_time, self.write_site, self.atomic, self.was_read, self.read_time, self.read_site,
            self.slot_of, self.initialised, offsets, width, agents, times, site, of_writes, rows, atomic, found,
        )  # fmt: skip
        return [Conflict(*map(int, row)) for row in found[:count]]

    def write(
        self, offsets: np.ndarray, width: int, agents: np.ndarray, times: np.ndarray, site: int, of_writes: np.ndarray,
        of_reads: np.ndarray, rows: np.ndarray, same: np.ndarray, *, atomic: bool = False,
    ) -> list[Conflict]:  # fmt: skip
        """Writes, as :meth:`read`. ``of_reads``: the same for reads. ``same``: accesses that write what is there
        already, which may happen beside another write of the same statement."""
        found = np.zeros((MOST_CONFLICTS, 6), dtype=np.int64)
        count = _write(
            self.writer, self.write_time, self.write_site, self.atomic, self.was_read, self.read_time, self.read_site,
            self.agent_of, offsets, width, agents, times, site, of_writes, of_reads, rows, same, atomic, found,
        )  # fmt: skip
        return [Conflict(*map(int, row)) for row in found[:count]]


    def hand_over(self, strangers: int) -> None:
        """Makes all accesses so far those of the agent ``strangers``."""
        written = self.writer != NOBODY
        self.writer[written] = strangers
        self.write_time[written] = 1
        self.slot_of[:] = NOBODY
        self.slot_of[strangers] = 0
        self.agent_of = np.array([strangers], dtype=np.int32)
        sites = self.read_site.max(axis=1, initial=0) if self.read_site.shape[1] else np.zeros(len(written), np.int32)
        self.read_site = np.ascontiguousarray(sites[:, None], dtype=np.int32)
        self.read_time = np.ascontiguousarray(self.was_read[:, None], dtype=np.int32)


@njit(cache=True)
def _read(
    writer, write_time, write_site, is_atomic, was_read, read_time, read_site, slot_of, initialised, offsets, width,
    agents, times, site, of_writes, rows, atomic, found,
):  # fmt: skip
    count = 0
    for access in range(len(offsets)):
        row, agent = rows[access], agents[access]
        slot = slot_of[agent]
        for byte in range(offsets[access], offsets[access] + width):
            last = writer[byte]
            if last >= 0:
                if of_writes[row, last] < write_time[byte] and not (atomic and is_atomic[byte]):
                    if count < len(found):
                        found[count, 0], found[count, 1], found[count, 2] = 1, access, byte
                        found[count, 3], found[count, 4], found[count, 5] = last, write_site[byte], write_time[byte]
                        count += 1
            elif not initialised and count < len(found):
                found[count, 0], found[count, 1], found[count, 2] = 0, access, byte
                found[count, 3], found[count, 4] = -1, -1
                count += 1
            if not atomic:
                read_time[byte, slot] = times[access]
                read_site[byte, slot] = site
                was_read[byte] = 1
    return count


@njit(cache=True)
def _write(
    writer, write_time, write_site, is_atomic, was_read, read_time, read_site, agent_of, offsets, width, agents, times,
    site, of_writes, of_reads, rows, same, atomic, found,
):  # fmt: skip
    count = 0
    for access in range(len(offsets)):
        row = rows[access]
        for byte in range(offsets[access], offsets[access] + width):
            last = writer[byte]
            if last >= 0 and of_writes[row, last] < write_time[byte]:
                harmless = (same[access] and write_site[byte] == site) or (atomic and is_atomic[byte])
                if not harmless and count < len(found):
                    found[count, 0], found[count, 1], found[count, 2] = 1, access, byte
                    found[count, 3], found[count, 4], found[count, 5] = last, write_site[byte], write_time[byte]
                    count += 1
            if was_read[byte]:
                for slot in range(len(agent_of)):
                    if read_time[byte, slot] > of_reads[row, agent_of[slot]] and count < len(found):
                        found[count, 0], found[count, 1], found[count, 2] = 2, access, byte
                        found[count, 3], found[count, 4] = agent_of[slot], read_site[byte, slot]
                        found[count, 5] = read_time[byte, slot]
                        count += 1
                    read_time[byte, slot] = 0
                was_read[byte] = 0
            writer[byte] = agents[access]
            write_time[byte] = times[access]
            write_site[byte] = site
            is_atomic[byte] = atomic
    return count

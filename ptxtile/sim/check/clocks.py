"""Vector clocks of the threads and the asynchronous engines of a group of CTAs.

An *agent* is what makes accesses in an order of its own: a thread; a thread's cp.async copies; its bulk stores, once
for their reads of shared memory and once for their writes; a warpgroup's wgmma; an mbarrier, whose time is the phase
that the loads onto it complete. So every wait of the hardware is one number: waiting for all but two groups means to
know the engine up to the time of the third group from the end.

A *clock* tells for each agent up to which time its accesses are known to be done. It has three rows: what is known,
and what of it a proxy fence has carried to the other proxy, for shared and for global memory (PTX ISA, «Memory
Consistency Model», proxy-preserved base causality order).

Threads of a warp that have heard the same share one clock, their *strand*; a strand splits when only some of its
threads learn something, and those of a warp become one again when all of them meet. What only a thread itself knows
(its own accesses, its own waits) is private, and reaches others when it releases.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum

import numpy as np

WARP, WARPGROUP = 32, 128

KNOWN, SHARED_FENCED, GLOBAL_FENCED = range(3)
"""The rows of a clock."""

TO_ASYNC, TO_GENERIC = 1, 2
"""Bits: writes of an agent need a proxy fence before accesses of the async proxy; of the generic proxy."""

MOST_PENDING = 64
"""Groups of which the times are kept."""


class Engine(IntEnum):
    """Kinds of agents. The first four are the threads' own."""

    GENERIC = 0
    CP_ASYNC = 1
    BULK_READ = 2
    BULK_WRITE = 3
    WGMMA = 4
    TMA_LOAD = 5


OF_THREADS = (Engine.GENERIC, Engine.CP_ASYNC, Engine.BULK_READ, Engine.BULK_WRITE)


class Clocks:
    """The clocks of a group of ``ctas`` CTAs of ``threads`` threads with ``mbarriers`` mbarriers each. A thread's
    number is that of its CTA times ``stride``, plus its own. ``engines``: those that the kernel uses.

    ``state`` [strand, 3, agent]; ``strand_of`` [thread]; ``private`` [3, agent]: what the owner of an agent knows of
    it by itself; ``owner`` [agent]: a thread, or -1; ``tick`` [warp]: the time of what its threads do now.
    """

    def __init__(self, ctas: int, threads: int, mbarriers: int, engines: Collection[Engine]) -> None:
        self.ctas = ctas
        self.warps_of_cta = -(-threads // WARP)
        self.stride = self.warps_of_cta * WARP
        self.threads = ctas * self.stride
        self.warpgroups_of_cta = -(-self.stride // WARPGROUP)
        self.first: dict[Engine, int] = {Engine.GENERIC: 0}
        self.agents = self.threads
        sizes = dict.fromkeys(OF_THREADS[1:], self.threads)
        sizes |= {Engine.WGMMA: ctas * self.warpgroups_of_cta, Engine.TMA_LOAD: ctas * mbarriers}
        for engine, size in sizes.items():
            if engine in engines:
                self.first[engine] = self.agents
                self.agents += size
        self.agents += 1
        self._lay_out(threads)
        self._make_groups()

    def _lay_out(self, threads: int) -> None:
        warps = self.threads // WARP
        self.tick = np.ones(warps, dtype=np.int32)
        self.owner = np.full(self.agents, -1, dtype=np.int32)
        self.crosses = np.zeros(self.agents, dtype=np.uint8)
        for engine in OF_THREADS:
            if engine in self.first:
                self.owner[self.first[engine] : self.first[engine] + self.threads] = np.arange(self.threads)
        for engine, bit in ((Engine.GENERIC, TO_ASYNC), (Engine.CP_ASYNC, TO_ASYNC), (Engine.BULK_WRITE, TO_GENERIC)):
            if engine in self.first:
                self.crosses[self.first[engine] : self.first[engine] + self.threads] = bit
        self.private = np.zeros((3, self.agents), dtype=np.int32)
        self.state = np.zeros((warps + 2, 3, self.agents), dtype=np.int32)
        numbers = np.arange(self.threads)
        self.strand_of = (numbers // WARP).astype(np.int32)
        self.strand_of[numbers % self.stride >= threads] = -1
        self.size_of_strand = np.bincount(self.strand_of[self.strand_of >= 0], minlength=len(self.state))
        self._unused = list(range(warps, len(self.state)))

    def _make_groups(self) -> None:
        """``time_now``: of what each agent of an engine that has groups issues; ``committed``: its groups; ``_ends``
        [agent, group modulo MOST_PENDING]: the last time that belongs to a group."""
        self.time_now = np.ones(self.agents, dtype=np.int32)
        self.committed = np.zeros(self.agents, dtype=np.int32)
        self._ends = np.zeros((self.agents, MOST_PENDING), dtype=np.int32)

    # Agents -------------------------------------------------------------------------------------------------------

    @property
    def strangers(self) -> int:
        """The agent that stands for all CTAs outside of the group: nobody ever knows of its accesses."""
        return self.agents - 1

    def numbers(self, ctas: np.ndarray, threads: np.ndarray) -> np.ndarray:
        return ctas * self.stride + threads

    def agents_of(self, engine: Engine, threads: np.ndarray) -> np.ndarray:
        """The agent of an engine that works for each of ``threads``."""
        if engine is Engine.WGMMA:
            return self.first[engine] + self.warpgroups(threads)
        return self.first[engine] + threads

    def warpgroups(self, threads: np.ndarray) -> np.ndarray:
        return threads // self.stride * self.warpgroups_of_cta + threads % self.stride // WARPGROUP

    def mbarrier_agent(self, number: int, cta: int) -> int:
        return self.first[Engine.TMA_LOAD] + number * self.ctas + cta

    def engine_of(self, agent: int) -> tuple[Engine, int]:
        """The engine of an agent, and its number there."""
        engine = max((engine for engine in self.first if self.first[engine] <= agent), key=lambda e: self.first[e])
        return engine, agent - self.first[engine]

    def known(self, thread: int, agent: int, row: int = KNOWN) -> int:
        """Up to which time ``thread`` knows ``agent``."""
        known = int(self.state[self.strand_of[thread], row, agent])
        if self.owner[agent] == thread:
            own = np.iinfo(np.int32).max if agent == thread and row == KNOWN else int(self.private[row, agent])
            return max(known, own)
        return known

    # Strands ------------------------------------------------------------------------------------------------------

    def _strands(self, threads: np.ndarray) -> list[int]:
        """The strands that have some of ``threads``."""
        found = self.strand_of[threads]
        first = int(found[0])
        if (found == first).all():
            return [first]
        return [int(strand) for strand in np.unique(found)]

    def _own_strands(self, threads: np.ndarray) -> list[int]:
        """The strands of ``threads`` alone: those that have others too are split."""
        result = []
        for strand in self._strands(threads):
            mine = threads[self.strand_of[threads] == strand]
            if len(mine) < self.size_of_strand[strand]:
                new = self._new_strand()
                self.state[new] = self.state[strand]
                self.strand_of[mine] = new
                self.size_of_strand[strand] -= len(mine)
                self.size_of_strand[new] = len(mine)
                strand = new
            result.append(strand)
        return result

    def _new_strand(self) -> int:
        if not self._unused:
            count = len(self.state)
            self.state = np.concatenate([self.state, np.zeros_like(self.state)])
            self.size_of_strand = np.concatenate([self.size_of_strand, np.zeros_like(self.size_of_strand)])
            self._unused = list(range(count, 2 * count))
        return self._unused.pop(0)

    def _unite(self, threads: np.ndarray) -> None:
        """Makes one strand of the threads of each warp that know the same."""
        for warp in np.flatnonzero(np.bincount(threads // WARP)):
            mine = threads[threads // WARP == warp]
            kept, *others = self._own_strands(mine)
            for strand in others:
                if np.array_equal(self.state[kept], self.state[strand]):
                    self.strand_of[mine[self.strand_of[mine] == strand]] = kept
                    self.size_of_strand[kept] += self.size_of_strand[strand]
                    self.size_of_strand[strand] = 0
                    self._unused.append(strand)

    # Learning and telling -----------------------------------------------------------------------------------------

    def release(self, threads: np.ndarray) -> np.ndarray:
        """What ``threads`` know and have done, for others to join; what they do next is later than that."""
        strands = self._strands(threads)
        clock = self.state[strands[0]].copy()
        for strand in strands[1:]:
            np.maximum(clock, self.state[strand], out=clock)
        for engine in OF_THREADS:
            if engine in self.first:
                columns = self.first[engine] + threads
                clock[:, columns] = np.maximum(clock[:, columns], self.private[:, columns])
        clock[KNOWN, threads] = self.tick[threads // WARP]
        self._advance(threads)
        return clock

    def _advance(self, threads: np.ndarray) -> None:
        self.tick[np.flatnonzero(np.bincount(threads // WARP))] += 1

    def join(self, threads: np.ndarray, clock: np.ndarray) -> None:
        for strand in self._own_strands(threads):
            np.maximum(self.state[strand], clock, out=self.state[strand])

    def meet(self, threads: np.ndarray, clock: np.ndarray) -> None:
        """:meth:`join` of a clock that holds all that ``threads`` know, so that those of a warp are one again."""
        self.join(threads, clock)
        self._unite(threads)

    def fence(self, threads: np.ndarray, row: int) -> None:
        """A proxy fence: what the threads know and have done is carried over; their later accesses are not."""
        for strand in self._own_strands(threads):
            np.maximum(self.state[strand, row], self.state[strand, KNOWN], out=self.state[strand, row])
        for engine in OF_THREADS[1:]:
            if engine in self.first:
                columns = self.first[engine] + threads
                self.private[row, columns] = np.maximum(self.private[row, columns], self.private[KNOWN, columns])
        self.private[row, threads] = self.tick[threads // WARP]
        self._advance(threads)

    # Groups of asynchronous work ----------------------------------------------------------------------------------

    def commit(self, agents: np.ndarray) -> None:
        """What ``agents`` issued since the last commit becomes a group."""
        self.committed[agents] += 1
        self._ends[agents, self.committed[agents] % MOST_PENDING] = self.time_now[agents]
        self.time_now[agents] += 1

    def finished(self, agents: np.ndarray, pending: int) -> np.ndarray:
        """The times up to which ``agents`` are done when at most ``pending`` groups of each are not."""
        groups = self.committed[agents] - pending
        if pending >= MOST_PENDING:
            return np.zeros_like(groups)
        return np.where(groups > 0, self._ends[agents, groups % MOST_PENDING], 0)

    def wait(self, agents: np.ndarray, pending: int) -> None:
        """The owners of ``agents`` have waited for all but the latest ``pending`` groups of each."""
        self.private[KNOWN, agents] = np.maximum(self.private[KNOWN, agents], self.finished(agents, pending))

    def wait_for_wgmma(self, threads: np.ndarray, pending: int) -> None:
        """Whole warpgroups have waited for all but the latest ``pending`` groups."""
        agents = self.agents_of(Engine.WGMMA, threads)
        distinct = np.unique(agents)
        for agent, done in zip(distinct, self.finished(distinct, pending), strict=True):
            for strand in self._own_strands(threads[agents == agent]):
                self.state[strand, KNOWN, agent] = max(self.state[strand, KNOWN, agent], done)

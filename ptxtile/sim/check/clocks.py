"""Vector clocks of the warps and the asynchronous engines of a group of CTAs.

An *agent* is what makes accesses in an order of its own: a warp; a warpgroup's wgmma, whose time is the number of the
group; a warp's cp.async groups; its bulk stores, once for their reads of shared memory and once for their writes; an
mbarrier, whose time is the phase that the loads onto it complete. So every wait of the hardware is one number: waiting
for all but two groups means to know the engine up to its time minus two.

A *clock* tells for each agent up to which time its accesses are known to be done. It has three rows: what is known,
and what of it a proxy fence has carried to the other proxy, for shared and for global memory (PTX ISA, «Memory
Consistency Model», proxy-preserved causality order).
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

WARP, WARPGROUP = 32, 128

KNOWN, SHARED_FENCED, GLOBAL_FENCED = range(3)
"""The rows of a clock."""


class Engine(IntEnum):
    """Kinds of agents. Mbarriers come behind all of these."""

    GENERIC = 0
    WGMMA = 1
    CP_ASYNC = 2
    BULK_READ = 3
    BULK_WRITE = 4


class Clocks:
    """The clocks of all warps: ``state`` [warp of the group, 3, agent]. Warps count CTA by CTA."""

    def __init__(self, ctas: int, threads: int, mbarriers: int) -> None:
        self.ctas = ctas
        self.warps_of_cta = -(-threads // WARP)
        self.warps = ctas * self.warps_of_cta
        self.agents = len(Engine) * self.warps + ctas * mbarriers + 1
        self.state = np.zeros((self.warps, 3, self.agents), dtype=np.int32)
        self.state[np.arange(self.warps), KNOWN, np.arange(self.warps)] = 1
        self.committed = {engine: np.zeros(self.warps, dtype=np.int32) for engine in Engine}
        """Groups committed by each warp."""
        agents = np.arange(self.agents)
        generic_proxy = (agents // self.warps == Engine.GENERIC) | (agents // self.warps == Engine.CP_ASYNC)
        self._crosses_to_async = generic_proxy
        self._crosses_to_generic = agents // self.warps == Engine.BULK_WRITE

    @property
    def strangers(self) -> int:
        """The agent that stands for all CTAs outside of the group: nobody ever knows of its accesses."""
        return self.agents - 1

    def warp(self, cta: int, thread: int) -> int:
        return cta * self.warps_of_cta + thread // WARP

    def agent(self, engine: Engine, warp: int) -> int:
        """The agent of a warp's engine; a warpgroup's wgmma is that of its first warp."""
        if engine is Engine.WGMMA:
            inside = warp % self.warps_of_cta
            warp += inside // (WARPGROUP // WARP) * (WARPGROUP // WARP) - inside
        return int(engine) * self.warps + warp

    def mbarrier_agent(self, number: int, cta: int) -> int:
        return len(Engine) * self.warps + number * self.ctas + cta

    def time(self, warp: int) -> int:
        return int(self.state[warp, KNOWN, warp])

    def release(self, warp: int) -> np.ndarray:
        """The warp's clock for others to join; what it does next is later than that."""
        snapshot = self.state[warp].copy()
        self.state[warp, KNOWN, warp] += 1
        return snapshot

    def join(self, warp: int, clock: np.ndarray) -> None:
        np.maximum(self.state[warp], clock, out=self.state[warp])

    def fence(self, warp: int, row: int) -> None:
        """A proxy fence: what the warp knows now is carried over; its own later accesses are not."""
        np.maximum(self.state[warp, row], self.state[warp, KNOWN], out=self.state[warp, row])
        self.state[warp, KNOWN, warp] += 1

    def commit(self, engine: Engine, warp: int) -> None:
        self.committed[engine][warp] += 1

    def open_time(self, engine: Engine, warp: int) -> int:
        """The time of what the warp's engine does now: it belongs to the group that is committed next."""
        return int(self.committed[engine][warp]) + 1

    def wait(self, engine: Engine, warp: int, pending: int) -> None:
        """All but the latest ``pending`` groups of the warp's engine are done."""
        agent, done = self.agent(engine, warp), int(self.committed[engine][warp]) - pending
        self.state[warp, KNOWN, agent] = max(int(self.state[warp, KNOWN, agent]), done)

    def needed_of_writes(self, clock: np.ndarray, *, asynchronous: bool, fence_row: int) -> np.ndarray:
        """[agent]: up to which time an agent's writes may be touched next, by an access of either proxy."""
        crosses = self._crosses_to_async if asynchronous else self._crosses_to_generic
        return np.where(crosses, clock[fence_row], clock[KNOWN])

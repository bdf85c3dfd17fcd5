"""The end of CTAs: nothing may be under way then that touches their shared memory, and no barrier be left in the middle
of a phase.

A CTA's shared memory is gone once its threads have ended. What TMA, cp.async and wgmma do there, and what other CTAs of
its cluster signal there, has to be known to some thread of the CTA by its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.ir.statements import Statement
from ptxtile.sim.check.clocks import KNOWN, Engine
from ptxtile.sim.check.findings import Finding
from ptxtile.sim.check.naming import agent_in_words, thread_in_words
from ptxtile.sim.check.shadow import Actors

if TYPE_CHECKING:
    from ptxtile.sim.check.watch import Watch

HINTS = {
    Engine.TMA_LOAD: "wait for its mbarrier before the end",
    Engine.BULK_READ: "the thread that issued it has to wait for it before the end: T.tma_store_wait()",
    Engine.CP_ASYNC: "each thread has to wait for its own copies before the end",
    Engine.WGMMA: "wait for the wgmma groups before the end",
    Engine.GENERIC: "let the CTAs of the cluster meet before the end: T.cluster_sync()",
}


class Outstanding:
    """The latest effect of each agent on the shared memory of each CTA, and what the CTA's threads know as they end."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        clocks = watch.clocks
        self.latest = np.zeros((clocks.ctas, clocks.agents), dtype=np.int32)
        self.sites: dict[tuple[int, int], Statement] = {}
        self.known = np.zeros((clocks.ctas, clocks.agents), dtype=np.int32)

    def add(self, statement: Statement, ctas: np.ndarray, actors: Actors) -> None:
        """Effects of ``actors`` [row] on the shared memory of ``ctas`` [row]."""
        self.latest[ctas, actors.agents] = actors.times
        for cta, agent in zip(ctas.tolist(), actors.agents.tolist(), strict=True):
            self.sites[cta, agent] = statement

    def add_signal(self, statement: Statement, cta: int, thread: int) -> None:
        """An arrival of a thread of another CTA on an mbarrier of ``cta``."""
        self.latest[cta, thread] = self.watch.clocks.tick[thread // 32]
        self.sites[cta, thread] = statement

    def leave(self, cta: int, threads: np.ndarray) -> None:
        """Some threads of a CTA end."""
        np.maximum(self.known[cta], self.watch.clocks.release(threads)[KNOWN], out=self.known[cta])

    def check(self) -> None:
        """All threads have ended."""
        for cta, agent in np.argwhere(self.latest > self.known):
            self._report(int(cta), int(agent))
        self._check_mbarriers()
        self._check_named_barriers()
        withheld = self.watch.group.schedule.withheld
        if withheld is not None:
            barriers = self.watch.group.checked_mbarriers()
            withheld.awaited |= any(mbarrier.awaits(withheld.statement) for mbarrier in barriers)

    def _report(self, cta: int, agent: int) -> None:
        engine, _ = self.watch.clocks.engine_of(agent)
        who, whose = agent_in_words(self.watch, agent), f"CTA {self.watch.group.block_index(cta)}"
        if engine is Engine.GENERIC:
            message = f"{whose} may end before {who} arrives on an mbarrier of its"
        else:
            verb = "read" if engine in (Engine.BULK_READ, Engine.WGMMA) else "write to"
            message = f"{whose} may end while {who} may still {verb} its shared memory"
        self.watch.report(Finding("unfinished", message, (self.sites[cta, agent].location,), HINTS[engine]))

    def _check_mbarriers(self) -> None:
        for mbarrier in self.watch.group.checked_mbarriers():
            for cta, phase in mbarrier.early[:1]:
                message = (
                    f"phase {phase} of {mbarrier.name} of CTA {self.watch.group.block_index(cta)} completes while a "
                    "TMA load onto it is still under way"
                )
                hint = "the barrier has to expect the bytes of all loads of a phase"
                self.watch.report(Finding("unfinished", message, (mbarrier.latest_use,), hint))
            for phase, thread, place in mbarrier.missed[: self.watch.group.schedule.strict]:
                what = f"phase {phase - 2}" if phase > 1 else "the state after its init"
                message = (
                    f"{thread_in_words(self.watch, thread)} may come to its wait for {what} of {mbarrier.name} when "
                    f"phase {phase - 1} is over as well, and then waits for ever"
                )
                hint = "let the threads that wait meet, or arrive, before the barrier can go through its next phase"
                self.watch.report(Finding("deadlock", message, (place,), hint))
            middle = mbarrier.initialised & ((mbarrier.pending != mbarrier.arrivals) | (mbarrier.transactions != 0))
            for cta in map(int, np.flatnonzero(middle)):
                arrived = int(mbarrier.arrivals[cta] - mbarrier.pending[cta])
                message = (
                    f"CTA {self.watch.group.block_index(cta)} ends in phase {int(mbarrier.phase[cta])} of "
                    f"{mbarrier.name}: {arrived} of {int(mbarrier.arrivals[cta])} arrivals came, "
                    f"{int(mbarrier.transactions[cta])} bytes are outstanding"
                )
                hint = "the count of the barrier's init, its arrivals and the bytes that it expects do not fit together"
                self.watch.report(Finding("unfinished", message, (mbarrier.latest_use,), hint))

    def _check_named_barriers(self) -> None:
        for number, barrier in self.watch.group.named_barriers.items():
            for cta in map(int, np.flatnonzero(barrier.arrived)):
                message = (
                    f"CTA {self.watch.group.block_index(cta)} ends while {int(barrier.arrived[cta])} of "
                    f"{int(barrier.awaited[cta])} threads have arrived at barrier {number}"
                )
                self.watch.report(Finding("unfinished", message, (), "as many threads have to arrive as it counts"))

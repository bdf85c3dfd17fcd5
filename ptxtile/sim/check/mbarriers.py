"""mbarriers that carry clocks: what arrives in a phase is known to who sees the phase complete."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ptxtile.errors import Location
from ptxtile.ir.statements import Statement
from ptxtile.sim.check.clocks import KNOWN, WARP, Clocks, Engine
from ptxtile.sim.rules.mbarriers import Mbarrier


@dataclass(slots=True)
class Arrival:
    """Arrivals of ``threads`` of one warp on the mbarrier of ``cta``, by ``statement``; ``copies``: once their cp.async
    are done."""

    cta: int
    threads: np.ndarray
    statement: Statement
    copies: bool = False


class CheckedMbarrier(Mbarrier):
    """``number``: among the mbarriers of the group. ``storage`` and ``offset``: its place in shared memory.
    ``initialiser`` [CTA]: the thread that ran the init, -1 before; ``fenced`` [CTA]: whether the init fence followed.
    ``seen`` [thread]: the last phase that a thread has seen complete, -1 before. ``arrived`` [CTA]: arrivals of the
    present phase by warp, ``ever``: warps that arrived at any time."""

    def __init__(self, name: str, ctas: int, number: int, clocks: Clocks) -> None:
        super().__init__(name, ctas)
        self.number, self.clocks = number, clocks
        self.coming: list[Arrival] = []
        """What the operation that runs now is about to do, in an order that is drawn."""
        self.gathered = [np.zeros((3, clocks.agents), dtype=np.int32) for _ in range(ctas)]
        self.completed: list[dict[int, np.ndarray]] = [{} for _ in range(ctas)]
        self.initialiser = np.full(ctas, -1)
        self.fenced = np.zeros(ctas, dtype=bool)
        self.seen = np.full(clocks.threads, -1)
        self.arrived: list[dict[int, int]] = [{} for _ in range(ctas)]
        self.ever: list[set[int]] = [set() for _ in range(ctas)]
        self.latest_arrivals: dict[tuple[int, int], int] = {}
        """By the id of a statement and the CTA: the last phase that it has arrived in."""
        self.latest_use: Location | None = None
        """Where something arrived last, or was announced or loaded; before that, where it was waited for."""
        self.loading = np.zeros(ctas, dtype=np.int64)
        """Bytes of loads that have been issued and have not been counted yet."""
        self.waited = np.zeros((2, clocks.threads), dtype=np.int64)
        """[thread]: when it waited for what it has seen, in its own time and in that of its wgmma."""
        self.places: list[Location | None] = [None] * clocks.threads
        """[thread]: where it waited."""
        self.missed: list[tuple[int, int, Location | None]] = []
        """(phase, thread, place) of phases that may end before a thread has come to its wait for the one before."""
        self.early: list[tuple[int, int]] = []
        """(CTA, phase) of phases that completed while a load onto them was under way."""

    def add_transactions(self, change: np.ndarray) -> None:
        self.loading += np.minimum(change, 0)
        super().add_transactions(change)

    def arrive(self, counts: np.ndarray) -> None:
        """The arrivals that were announced, one warp after another, so that a phase knows of those that it counts."""
        announced, self.coming = self.coming, []
        for arrival in announced:
            left = arrival.threads
            while len(left):
                taken = left[: max(1, int(self.pending[arrival.cta]))]
                left = left[len(taken) :]
                self._arrive_together(arrival, taken)

    def _arrive_together(self, arrival: Arrival, threads: np.ndarray) -> None:
        cta, warp = arrival.cta, int(threads[0]) // WARP
        self.latest_arrivals[id(arrival.statement), cta] = int(self.phase[cta])
        clock = self.clocks.release(threads)
        if arrival.copies:
            agents = self.clocks.agents_of(Engine.CP_ASYNC, threads)
            clock[KNOWN, agents] = self.clocks.time_now[agents]
            self.clocks.time_now[agents] += 1
        np.maximum(self.gathered[cta], clock, out=self.gathered[cta])
        self.arrived[cta][warp] = self.arrived[cta].get(warp, 0) + len(threads)
        self.ever[cta].add(warp)
        counts = np.zeros(len(self.pending), dtype=np.int64)
        counts[cta] = len(threads)
        super().arrive(counts)

    def complete_phases(self) -> None:
        """Phases follow each other, so a later one tells of what arrived in the earlier ones too."""
        before = self.phase.copy()
        super().complete_phases()
        for cta in map(int, np.flatnonzero(self.phase != before)):
            clock, phase = self.gathered[cta].copy(), int(self.phase[cta])
            if self.loading[cta] > 0:
                self.early.append((cta, phase - 1))
            elif Engine.TMA_LOAD in self.clocks.first:
                clock[KNOWN, self.clocks.mbarrier_agent(self.number, cta)] = phase
            self._check_waits(cta, clock, phase)
            self.gathered[cta] = clock.copy()
            self.completed[cta][phase] = clock
            self.completed[cta].pop(phase - 3, None)
            self.arrived[cta] = {}

    def note_waits(self, threads: np.ndarray, phase: int, location: Location | None) -> None:
        """``threads`` have seen ``phase`` complete."""
        for thread in threads:
            self.places[thread] = location
        self.seen[threads] = phase
        self.waited[0, threads] = self.clocks.tick[threads // WARP]
        if Engine.WGMMA in self.clocks.first:
            self.waited[1, threads] = self.clocks.time_now[self.clocks.agents_of(Engine.WGMMA, threads)]

    def _check_waits(self, cta: int, clock: np.ndarray, phase: int) -> None:
        """A phase ends: whoever has waited for the one before must have done so before this one could end, for a wait
        that comes later sees the parity of the next phase. A wgmma of a warpgroup that has ended tells of all of its
        threads that they had come to it."""
        own = slice(cta * self.clocks.stride, (cta + 1) * self.clocks.stride)
        threads = own.start + np.flatnonzero(self.seen[own] == phase - 1)
        if not len(threads):
            return
        known = clock[KNOWN, threads] >= self.waited[0, threads]
        if Engine.WGMMA in self.clocks.first:
            known |= clock[KNOWN, self.clocks.agents_of(Engine.WGMMA, threads)] >= self.waited[1, threads]
        self.missed += [(phase, int(thread), self.places[thread]) for thread in threads[~known]]

    def observed(self, cta: int, parity: int) -> int:
        """The latest phase whose completion lets a wait for ``parity`` pass; 0: the state after init."""
        phase = int(self.phase[cta])
        return phase if phase & 1 != parity else phase - 1

    def awaits(self, statement: Statement) -> bool:
        """Whether somebody has seen a phase complete that ``statement`` arrived in, or a later one."""
        return any(
            phase < self.seen[cta * self.clocks.stride : (cta + 1) * self.clocks.stride].max()
            for (known, cta), phase in self.latest_arrivals.items()
            if known == id(statement)
        )

    def is_under_way(self, cta: int) -> bool:
        """Whether something has arrived in the present phase, or is expected."""
        return bool(self.pending[cta] != self.arrivals[cta] or self.transactions[cta] != 0)

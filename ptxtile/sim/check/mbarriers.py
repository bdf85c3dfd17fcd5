"""mbarriers that carry clocks: what arrives in a phase is known to who sees the phase complete."""

from __future__ import annotations

import numpy as np

from ptxtile.sim.check.clocks import KNOWN, Clocks
from ptxtile.sim.rules.mbarriers import Mbarrier


class CheckedMbarrier(Mbarrier):
    """``number``: among the mbarriers of the group. ``initialiser`` [CTA]: (warp, its time) of the init, and whether
    the init fence followed. ``seen``: the last phase that a warp has seen complete."""

    def __init__(self, name: str, ctas: int, number: int, clocks: Clocks) -> None:
        super().__init__(name, ctas)
        self.number, self.clocks = number, clocks
        self.gathered = [np.zeros((3, clocks.agents), dtype=np.int32) for _ in range(ctas)]
        self.completed: list[dict[int, np.ndarray]] = [{} for _ in range(ctas)]
        self.initialiser: list[tuple[int, int] | None] = [None] * ctas
        self.fenced = np.zeros(ctas, dtype=bool)
        self.seen: dict[int, int] = {}

    def gather(self, cta: int, clock: np.ndarray) -> None:
        """An arrival with this clock. Phases follow each other, so a later one tells of the earlier ones too."""
        np.maximum(self.gathered[cta], clock, out=self.gathered[cta])

    def complete_phases(self) -> None:
        before = self.phase.copy()
        super().complete_phases()
        for cta in np.flatnonzero(self.phase != before):
            clock = self.gathered[cta].copy()
            clock[KNOWN, self.clocks.mbarrier_agent(self.number, int(cta))] = self.phase[cta]
            self.gathered[cta] = clock.copy()
            self.completed[cta][int(self.phase[cta])] = clock
            self.completed[cta].pop(int(self.phase[cta]) - 3, None)

    def observed(self, cta: int, parity: int) -> int:
        """The latest phase whose completion lets a wait for ``parity`` pass; 0: the state after init."""
        phase = int(self.phase[cta])
        return phase if phase & 1 != parity else phase - 1

"""Asynchronous effects under the checker: what each will touch is judged when it is issued, since from then on it may
happen at any moment; then another policy decides when it does."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.ir.gpu_ops import BulkWaitGroup
from ptxtile.sim.async_effects import AsyncEffect, EffectPolicy, Touch
from ptxtile.sim.check.clocks import WARP, WARPGROUP, Engine
from ptxtile.sim.check.watch import Issue, Watch
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

GROUPED = {"wgmma": Engine.WGMMA, "cp_async": Engine.CP_ASYNC}


class CheckedEffects:
    """``policy`` carries the effects out; ``watch`` judges them."""

    def __init__(self, policy: EffectPolicy) -> None:
        self.policy = policy
        self.watch: Watch | None = None

    def issue(self, threads: Threads, effect: AsyncEffect, mask: Mask) -> None:
        assert threads.statement is not None
        for touch in effect.touches():
            self._watch().touch(threads.statement, touch, self._issue(threads, effect, touch, mask))
        self.policy.issue(threads, effect, mask)

    def _watch(self) -> Watch:
        assert self.watch is not None, "the group sets it"
        return self.watch

    def _issue(self, threads: Threads, effect: AsyncEffect, touch: Touch, mask: Mask) -> Issue:
        """The engine that makes each row of a touch, and what its issuer knew."""
        clocks = self._watch().clocks
        warps = self._issuers(threads, effect, touch, mask)
        distinct, which = np.unique(warps, return_inverse=True)
        states = clocks.state[distinct]
        engine = None
        if effect.kind == "tma_load":  # done when the phase of its mbarrier is
            signals = [(mbarrier, int(cta)) for mbarrier, cta in zip(touch.signals, touch.ctas, strict=True)]
            agents = [self._watch().group.mbarrier_agent(mbarrier, cta) for mbarrier, cta in signals]
            times = [int(mbarrier.phase[cta]) + 1 for mbarrier, cta in signals]
        else:
            if effect.kind == "tma_store":
                engine = Engine.BULK_WRITE if touch.is_write else Engine.BULK_READ
            else:
                engine = GROUPED[effect.kind]
            agents = [clocks.agent(engine, int(warp)) for warp in distinct]
            times = [clocks.open_time(engine, int(warp)) for warp in distinct]
            agents, times = np.array(agents)[which], np.array(times)[which]
        if engine is Engine.WGMMA:  # starts when all four warps have come to it
            states = np.stack([clocks.state[warp : warp + 4].min(axis=0) for warp in distinct])
        return Issue(engine, np.array(agents), np.array(times), states, which.reshape(-1))

    def _issuers(self, threads: Threads, effect: AsyncEffect, touch: Touch, mask: Mask) -> np.ndarray:
        """The warp that issued each row of a touch; of a warpgroup its first one."""
        ctas, lanes = threads.active_lanes(mask)
        warps = ctas * self._watch().clocks.warps_of_cta + (lanes + threads.first_thread) // WARP
        if effect.kind == "wgmma":
            return warps[(lanes + threads.first_thread) % WARPGROUP == 0]
        if len(warps) == len(touch.offsets):
            return warps
        # Copies of multicast boxes: their CTA's own issuer stands for whoever sent the box; all issue alike.
        by_cta = {int(cta): int(warp) for cta, warp in zip(ctas, warps, strict=True)}
        return np.array([by_cta.get(int(cta), int(warps[0])) for cta in touch.ctas])

    # Groups -------------------------------------------------------------------------------------------------------

    def _warps(self, threads: Threads, mask: Mask) -> np.ndarray:
        ctas, lanes = threads.active_lanes(mask)
        clocks = self._watch().clocks
        return np.unique(ctas * clocks.warps_of_cta + (lanes + threads.first_thread) // WARP)

    def commit_bulk_group(self, threads: Threads, mask: Mask) -> None:
        for warp in self._warps(threads, mask):
            for engine in (Engine.BULK_READ, Engine.BULK_WRITE):
                self._watch().clocks.commit(engine, int(warp))
        self.policy.commit_bulk_group(threads, mask)

    def wait_bulk_group(self, threads: Threads, op: BulkWaitGroup, mask: Mask) -> Wait | None:
        clocks = self._watch().clocks
        for warp in map(int, self._warps(threads, mask)):
            clocks.wait(Engine.BULK_READ, warp, op.pending)
            if not op.read:
                clocks.wait(Engine.BULK_WRITE, warp, op.pending)
        return self.policy.wait_bulk_group(threads, op, mask)

    def commit_group(self, threads: Threads, engine: str, mask: Mask) -> None:
        for warp in self._warps(threads, mask):
            self._watch().clocks.commit(GROUPED[engine], int(warp))
        self.policy.commit_group(threads, engine, mask)

    def wait_group(self, threads: Threads, engine: str, pending: int, mask: Mask) -> Wait | None:
        for warp in self._warps(threads, mask):
            self._watch().clocks.wait(GROUPED[engine], int(warp), pending)
        return self.policy.wait_group(threads, engine, pending, mask)

    def complete(self, threads: Threads, engine: str, mask: Mask) -> None:
        self.commit_group(threads, engine, mask)
        self.wait_group(threads, engine, 0, mask)

    def progress(self) -> bool:
        return self.policy.progress()

    def finish(self) -> None:
        self.policy.finish()

"""Asynchronous effects under the checker: what each will touch is judged when it is issued, since from then on it may
happen at any moment; then another policy decides when it does."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.gpu_ops import BulkWaitGroup
from ptxtile.sim.async_effects import AsyncEffect, EffectPolicy, Touch
from ptxtile.sim.check.clocks import GLOBAL_FENCED, SHARED_FENCED, TO_ASYNC, TO_GENERIC, WARPGROUP, Engine
from ptxtile.sim.check.kernel_facts import KernelFacts
from ptxtile.sim.check.shadow import Actors
from ptxtile.sim.check.watch import Watch
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.masks import Mask
from ptxtile.sim.memory import GlobalTensor

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedThreads
    from ptxtile.sim.machine import Threads


def _nothing() -> None:
    return None


GROUPED = {"wgmma": Engine.WGMMA, "cp_async": Engine.CP_ASYNC}


class CheckedEffects:
    """``policy`` carries the effects out; ``watch`` judges them. What waits do to the clocks is a hook's matter."""

    def __init__(self, policy: EffectPolicy, facts: KernelFacts) -> None:
        self.policy = policy
        self.facts = facts
        self.watch: Watch | None = None

    def issue(self, threads: Threads, effect: AsyncEffect, mask: Mask) -> None:
        assert threads.statement is not None and self.watch is not None
        issuers = cast("CheckedThreads", threads).numbers(mask)
        for touch in effect.touches():
            self.watch.touch(threads.statement, touch, self._actors(issuers, effect, touch))
        if effect.kind == "wgmma" and not self.facts.products_matter:
            effect = replace(effect, read=_nothing, write=lambda data: None)
        self.policy.issue(threads, effect, mask)

    def _actors(self, issuers: np.ndarray, effect: AsyncEffect, touch: Touch) -> Actors:
        """The engine that makes each row of a touch, and what its issuer knows. ``issuers``: the active threads."""
        assert self.watch is not None
        clocks = self.watch.clocks
        fence_row = GLOBAL_FENCED if isinstance(touch.memory, GlobalTensor) else SHARED_FENCED
        if effect.kind == "wgmma":
            return self._of_warpgroups(issuers, fence_row)
        issuers = issuers if touch.issuers is None else issuers[touch.issuers]
        proxy = TO_ASYNC
        if effect.kind == "tma_load":  # done when the phase of its mbarrier is
            signals = [(mbarrier, int(cta)) for mbarrier, cta in zip(touch.signals, touch.ctas, strict=True)]
            agents = np.array([self.watch.group.mbarrier_agent(mbarrier, cta) for mbarrier, cta in signals])
            times = np.array([int(mbarrier.phase[cta]) + 1 for mbarrier, cta in signals])
        else:
            if effect.kind == "tma_store":
                engine = Engine.BULK_WRITE if touch.is_write else Engine.BULK_READ
            else:  # cp.async belongs to the generic proxy (PTX ISA, «Memory Consistency Model», proxies)
                engine, proxy = GROUPED[effect.kind], TO_GENERIC
            agents = clocks.agents_of(engine, issuers)
            times = clocks.time_now[agents]
        return Actors(agents, times, clocks.strand_of[issuers], issuers, clocks.state, proxy, fence_row)

    def _of_warpgroups(self, issuers: np.ndarray, fence_row: int) -> Actors:
        """A wgmma starts when all of its warpgroup have come to it, and relies on what each of them knows."""
        assert self.watch is not None
        clocks = self.watch.clocks
        agents = clocks.agents_of(Engine.WGMMA, issuers[::WARPGROUP])
        by_group = issuers.reshape(-1, WARPGROUP)
        state = np.stack([clocks.state[np.unique(clocks.strand_of[threads])].min(axis=0) for threads in by_group])
        nobody = np.full(len(agents), -1, dtype=np.int32)
        return Actors(agents, clocks.time_now[agents], np.arange(len(agents)), nobody, state, TO_ASYNC, fence_row)

    # The policy's part --------------------------------------------------------------------------------------------

    def commit_bulk_group(self, threads: Threads, mask: Mask) -> None:
        self.policy.commit_bulk_group(threads, mask)

    def wait_bulk_group(self, threads: Threads, op: BulkWaitGroup, mask: Mask) -> Wait | None:
        return self.policy.wait_bulk_group(threads, op, mask)

    def commit_group(self, threads: Threads, engine: str, mask: Mask) -> None:
        self.policy.commit_group(threads, engine, mask)

    def wait_group(self, threads: Threads, engine: str, pending: int, mask: Mask) -> Wait | None:
        return self.policy.wait_group(threads, engine, pending, mask)

    def complete(self, threads: Threads, engine: str, mask: Mask) -> None:
        self.policy.complete(threads, engine, mask)

    def progress(self) -> bool:
        return self.policy.progress()

    def finish(self) -> None:
        """All threads have ended: what is under way is reported here, so a policy's own complaint about it adds
        nothing."""
        assert self.watch is not None
        before = self.watch.reported
        self.watch.outstanding.check()
        try:
            self.policy.finish()
        except SimulationError:
            if self.watch.reported == before:
                raise

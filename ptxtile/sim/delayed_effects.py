"""Asynchronous effects as late as the waits allow, or some early and some late: what a program may rely on is what it
waits for, so a missing or too weak wait gives wrong numbers under this policy.

TMA loads are kept back until no thread of the block can go on without one, and then come in random order. Stores
through TMA read shared memory when a wait for their bulk group asks for it, and write global memory when a full wait
does, or after the block. wgmma and cp.async happen when a wait for their group asks for it.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.gpu_ops import BulkWaitGroup
from ptxtile.sim.async_effects import AsyncEffect, ImmediateEffects
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

BULK = "bulk"
"""The engine of TMA stores, beside ``wgmma`` and ``cp_async``."""

ALWAYS = {"tma_load": 1.0, "tma_store": 1.0, "wgmma": 1.0, "cp_async": 1.0}
NEVER = {"tma_load": 0.0, "tma_store": 0.0, "wgmma": 0.0, "cp_async": 0.0}


@dataclass(eq=False)
class _Pending:
    """An effect that has not ended, and what it has read already."""

    effect: AsyncEffect
    lanes: np.ndarray
    read: bool = False
    data: Any = None

    def take(self) -> None:
        if not self.read:
            self.read, self.data = True, self.effect.read()

    def carry_out(self) -> None:
        self.take()
        self.effect.write(self.data)
        self.effect.complete()


@dataclass(eq=False)
class _Group:
    """The effects that the threads ``lanes`` ([CTA, thread], bool) committed together."""

    lanes: np.ndarray
    effects: list[_Pending]


@dataclass
class _Engine:
    open: list[_Pending] = field(default_factory=list)
    groups: list[_Group] = field(default_factory=list)

    def commit(self, lanes: np.ndarray) -> None:
        taken = [pending for pending in self.open if (pending.lanes & lanes).any()]
        self.open = [pending for pending in self.open if not (pending.lanes & lanes).any()]
        self.groups.append(_Group(lanes, taken))

    def demanded(self, lanes: np.ndarray, allowed: int) -> list[_Group]:
        """The groups, oldest first, that are not among the latest ``allowed`` of one of the threads that wait."""
        later = np.zeros(lanes.shape, dtype=np.int64)
        found = []
        for group in reversed(self.groups):
            if (group.lanes & lanes & (later >= allowed)).any():
                found.append(group)
            later += group.lanes
        return found[::-1]


class DelayedEffects(ImmediateEffects):
    """``delay``: how likely an effect of a kind is late; wgmma and cp.async are late all or none, since the effects of
    one thread keep their order. ``seed``: of that choice and of the order in which loads arrive."""

    def __init__(self, seed: int = 0, delay: Mapping[str, float] = ALWAYS) -> None:
        self._random = random.Random(seed)
        self._delay = dict(delay)
        for engine in ("wgmma", "cp_async"):
            self._delay[engine] = float(self._random.random() < self._delay[engine])
        self._loads: list[_Pending] = []
        self._engines: dict[str, _Engine] = defaultdict(_Engine)

    def issue(self, threads: Threads, effect: AsyncEffect, mask: Mask) -> None:
        if self._random.random() >= self._delay[effect.kind]:
            super().issue(threads, effect, mask)
            return
        pending = _Pending(effect, _lanes(threads, mask))
        if effect.kind == "tma_load":
            self._loads.append(pending)
        else:
            self._engines[BULK if effect.kind == "tma_store" else effect.kind].open.append(pending)

    def commit_group(self, threads: Threads, engine: str, mask: Mask) -> None:
        self._engines[engine].commit(_lanes(threads, mask))

    def wait_group(self, threads: Threads, engine: str, pending: int, mask: Mask) -> Wait | None:
        known = self._engines[engine]
        done = known.demanded(_lanes(threads, mask), pending)
        for group in done:
            for effect in group.effects:
                effect.carry_out()
        known.groups = [group for group in known.groups if group not in done]
        return None

    def complete(self, threads: Threads, engine: str, mask: Mask) -> None:
        self.commit_group(threads, engine, mask)
        self.wait_group(threads, engine, 0, mask)

    def commit_bulk_group(self, threads: Threads, mask: Mask) -> None:
        self.commit_group(threads, BULK, mask)

    def wait_bulk_group(self, threads: Threads, op: BulkWaitGroup, mask: Mask) -> Wait | None:
        if not op.read:
            return self.wait_group(threads, BULK, op.pending, mask)
        for group in self._engines[BULK].demanded(_lanes(threads, mask), op.pending):
            for effect in group.effects:
                effect.take()
        return None

    def progress(self) -> bool:
        if not self._loads:
            return False
        self._loads.pop(self._random.randrange(len(self._loads))).carry_out()
        return True

    def finish(self) -> None:
        bulk = self._engines[BULK]
        left = [*bulk.open, *(effect for group in bulk.groups for effect in group.effects)]
        if any(not pending.read for pending in left):
            raise SimulationError(
                "a block ends while a store through TMA may still read its shared memory",
                expected="a wait for its bulk group before the end",
            )
        for pending in left:
            pending.carry_out()


def _lanes(threads: Threads, mask: Mask) -> np.ndarray:
    """[CTA, thread of the block]: the active threads."""
    group = threads.group
    lanes = np.zeros((group.ctas, group.context.kernel.threads), dtype=bool)
    own = slice(threads.first_thread, threads.first_thread + threads.lanes)
    lanes[:, own] = True if mask is None else np.broadcast_to(mask, (group.ctas, threads.lanes))
    return lanes

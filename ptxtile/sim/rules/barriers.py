"""Named barriers: bar.sync (PTX ISA 9.7.13.1). The hardware counts whole warps."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.gpu_ops import BarSync
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

WARP = 32
NAMED_BARRIERS = 16
"""Barriers 0 to 15 of a CTA (PTX ISA 9.7.13.1)."""


class NamedBarrier:
    """One barrier id in every CTA of a group: threads that arrived, threads awaited, completed rounds."""

    def __init__(self, ctas: int) -> None:
        self.arrived = np.zeros(ctas, dtype=np.int64)
        self.awaited = np.zeros(ctas, dtype=np.int64)
        self.rounds = np.zeros(ctas, dtype=np.int64)


class BarrierWait(Wait):
    def __init__(self, threads: Threads, op: BarSync, barrier: NamedBarrier, waiting: np.ndarray) -> None:
        self.threads, self.op, self.barrier, self.waiting = threads, op, barrier, waiting
        self.location = op.location
        self.rounds = barrier.rounds.copy()

    def _blocked(self) -> np.ndarray:
        return self.waiting & (self.barrier.rounds == self.rounds)

    def ready(self) -> bool:
        return not self._blocked().any()

    def describe(self) -> list[str]:
        cta = int(np.flatnonzero(self._blocked())[0])
        arrived = int(self.barrier.arrived[cta])
        return [
            f"{self.threads.describe(cta)} waits at bar.sync {self.op.id} for {self.op.threads} threads: "
            f"{arrived} arrived, {int(self.barrier.awaited[cta]) - arrived} missing"
        ]


def sync(threads: Threads, op: BarSync, mask: Mask) -> Wait | None:
    if not 0 <= op.id < NAMED_BARRIERS:
        raise SimulationError("bar.sync of an unknown barrier", expected="an id from 0 to 15", got=str(op.id))
    group = threads.group
    barrier = group.named_barriers.setdefault(op.id, NamedBarrier(group.ctas))
    arriving = _arriving_threads(threads, op, mask)
    awaited = -(-op.threads // WARP) * WARP
    waiting = arriving > 0
    conflicting = waiting & (barrier.arrived > 0) & (barrier.awaited != awaited)
    if conflicting.any():
        other = int(barrier.awaited[conflicting][0])
        raise SimulationError(f"bar.sync {op.id} with two thread counts", expected=str(other), got=str(awaited))
    barrier.awaited[waiting] = awaited
    result = BarrierWait(threads, op, barrier, waiting)
    barrier.arrived += arriving
    if (barrier.arrived[waiting] > awaited).any():
        raise SimulationError(
            f"more threads arrive at bar.sync {op.id} than it counts",
            expected=f"{op.threads} threads",
            got=f"{int(barrier.arrived[waiting].max())}, with role {threads.name} (threads {threads.thread_range})",
        )
    complete = waiting & (barrier.arrived == awaited)
    barrier.rounds += complete
    barrier.arrived[complete] = 0
    return None if result.ready() else result


def _arriving_threads(threads: Threads, op: BarSync, mask: Mask) -> np.ndarray:
    """Threads that arrive in each CTA, in whole warps; a warp of which only some lanes are here is an error."""
    warps = -(-threads.lanes // WARP)
    if mask is None:
        return np.full(threads.group.ctas, warps * WARP, dtype=np.int64)
    lanes = np.zeros((threads.group.ctas, warps * WARP), dtype=bool)
    lanes[:, : threads.lanes] = mask
    if warps * WARP > threads.lanes:  # the missing lanes of the last warp do not exist
        lanes[:, threads.lanes :] = lanes[:, threads.lanes - 1 : threads.lanes]
    by_warp = lanes.reshape(-1, warps, WARP)
    here = by_warp.any(axis=2)
    divergent = here & ~by_warp.all(axis=2)
    if divergent.any():
        cta, warp = (int(found[0]) for found in np.nonzero(divergent))
        first = threads.first_thread + warp * WARP
        raise SimulationError(
            f"only some threads of a warp reach bar.sync {op.id}",
            expected=f"threads {first} to {first + WARP - 1} together",
            got=f"{int(by_warp[cta, warp].sum())} of them, {threads.describe(cta)}",
        )
    return here.sum(axis=1) * WARP

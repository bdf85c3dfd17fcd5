"""Named barriers: bar.sync and bar.red (PTX ISA 9.7.13.1), whose hardware counts whole warps; the grid's barrier."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.gpu_ops import BarSync
from ptxtile.ir.manual_ops import BarReduce, GridSync
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.dtypes import as_array
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

WARP = 32
NAMED_BARRIERS = 16
"""Barriers 0 to 15 of a CTA (PTX ISA 9.7.13.1)."""


class NamedBarrier:
    """One barrier id in every CTA of a group: threads that arrived, threads awaited, completed rounds.

    Of a bar.red: ``holding`` and ``voters`` are the threads of this round whose condition holds, and all of them;
    ``results`` has both for the last completed round, [2, CTA]. ``kinds``: the instruction that the round began with.
    """

    def __init__(self, ctas: int) -> None:
        self.arrived = np.zeros(ctas, dtype=np.int64)
        self.awaited = np.zeros(ctas, dtype=np.int64)
        self.rounds = np.zeros(ctas, dtype=np.int64)
        self.holding = np.zeros(ctas, dtype=np.int64)
        self.voters = np.zeros(ctas, dtype=np.int64)
        self.results = np.zeros((2, ctas), dtype=np.int64)
        self.kinds = np.zeros(ctas, dtype=object)


class BarrierWait(Wait):
    def __init__(
        self, threads: Threads, op: BarSync | BarReduce, barrier: NamedBarrier, waiting: np.ndarray, mask: Mask
    ) -> None:
        self.threads, self.op, self.barrier, self.waiting, self.mask = threads, op, barrier, waiting, mask
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
            f"{self.threads.describe(cta)} waits at {_name(self.op)} {self.op.id} for {self.op.threads} threads: "
            f"{arrived} arrived, {int(self.barrier.awaited[cta]) - arrived} missing"
        ]

    def finish(self) -> None:
        """The result of a bar.red goes to each thread."""
        op = self.op
        if isinstance(op, BarReduce):
            holding, voters = self.barrier.results[:, :, None]
            found = {"popc": holding.astype(np.uint32), "and": holding == voters, "or": holding > 0}[op.mode]
            whole = np.broadcast_to(found, (self.threads.group.ctas, self.threads.lanes))
            place = self.threads.evaluate(op.destination_offset, self.mask)
            self.threads.store(op.destination, place, whole, op.destination.dtype, self.mask)


def _name(op: BarSync | BarReduce) -> str:
    return "bar.sync" if isinstance(op, BarSync) else f"bar.red.{op.mode}"


def sync(threads: Threads, op: BarSync | BarReduce, mask: Mask) -> Wait | None:
    if not 0 <= op.id < NAMED_BARRIERS:
        raise SimulationError(f"{_name(op)} of an unknown barrier", expected="an id from 0 to 15", got=str(op.id))
    group = threads.group
    barrier = group.named_barriers.setdefault(op.id, NamedBarrier(group.ctas))
    arriving = _arriving_threads(threads, op, mask)
    awaited = -(-op.threads // WARP) * WARP
    waiting = arriving > 0
    conflicting = waiting & (barrier.arrived > 0) & (barrier.awaited != awaited)
    if conflicting.any():
        other = int(barrier.awaited[conflicting][0])
        raise SimulationError(f"{_name(op)} {op.id} with two thread counts", expected=str(other), got=str(awaited))
    mixed = waiting & (barrier.arrived > 0) & (barrier.kinds != _name(op))
    if mixed.any():
        raise SimulationError(
            f"barrier {op.id} is used by different instructions at the same time",
            expected=str(barrier.kinds[mixed][0]), got=_name(op),
        )  # fmt: skip
    barrier.awaited[waiting] = awaited
    barrier.kinds[waiting] = _name(op)
    result = BarrierWait(threads, op, barrier, waiting, mask)
    barrier.arrived += arriving
    if isinstance(op, BarReduce):
        _count(threads, op, mask, barrier)
    if (barrier.arrived[waiting] > awaited).any():
        raise SimulationError(
            f"more threads arrive at {_name(op)} {op.id} than it counts",
            expected=f"{op.threads} threads",
            got=f"{int(barrier.arrived[waiting].max())}, with role {threads.name} (threads {threads.thread_range})",
        )
    complete = waiting & (barrier.arrived == awaited)
    barrier.rounds += complete
    barrier.arrived[complete] = 0
    for position, counted in enumerate((barrier.holding, barrier.voters)):
        barrier.results[position, complete] = counted[complete]
        counted[complete] = 0
    if not result.ready():
        return result
    result.finish()
    return None


def _count(threads: Threads, op: BarReduce, mask: Mask, barrier: NamedBarrier) -> None:
    shape = (threads.group.ctas, threads.lanes)
    here = np.ones(shape, dtype=bool) if mask is None else np.broadcast_to(mask, shape)
    holds = np.broadcast_to(as_array(threads.evaluate(op.condition, mask), op.condition.dtype), shape)
    barrier.holding += (holds.astype(bool) & here).sum(axis=1)
    barrier.voters += here.sum(axis=1)


class GridBarrier:
    """Arrivals of every thread of a grid, by group of CTAs; all groups run at the same time."""

    def __init__(self) -> None:
        self.arrivals: dict[int, np.ndarray] = {}

    def rounds(self, ctas: int) -> int:
        """How often every thread of a grid of ``ctas`` has arrived."""
        if sum(len(arrivals) for arrivals in self.arrivals.values()) < ctas:
            return 0
        return min(int(arrivals.min()) for arrivals in self.arrivals.values())


class GridWait(Wait):
    def __init__(self, threads: Threads, op: GridSync, wanted: int) -> None:
        self.threads, self.wanted = threads, wanted
        self.location = op.location
        x, y, z = threads.group.context.grid
        self.ctas = x * y * z

    def ready(self) -> bool:
        return self.threads.group.context.grid_barrier.rounds(self.ctas) >= self.wanted

    def describe(self) -> list[str]:
        arrivals = self.threads.group.context.grid_barrier.arrivals.values()
        late = self.ctas - sum(int((a.min(axis=1) >= self.wanted).sum()) for a in arrivals)
        return [f"{self.threads.describe(0)} waits for the grid: {late} of {self.ctas} CTAs have not arrived"]


def sync_grid(threads: Threads, op: GridSync, mask: Mask) -> Wait | None:
    group = threads.group
    barrier = group.context.grid_barrier
    arrivals = barrier.arrivals.setdefault(group.first, np.zeros((group.ctas, threads.lanes), dtype=np.int64))
    here = np.ones(arrivals.shape, dtype=bool) if mask is None else np.broadcast_to(mask, arrivals.shape)
    if (here.any(axis=1) != here.all(axis=1)).any():
        raise SimulationError("only some threads of a CTA reach the barrier of the grid", expected="all of them")
    arrivals += here
    waiting = GridWait(threads, op, int(arrivals.max()))
    return None if waiting.ready() else waiting


def _arriving_threads(threads: Threads, op: BarSync | BarReduce, mask: Mask) -> np.ndarray:
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
            f"only some threads of a warp reach {_name(op)} {op.id}",
            expected=f"threads {first} to {first + WARP - 1} together",
            got=f"{int(by_warp[cta, warp].sum())} of them, {threads.describe(cta)}",
        )
    return here.sum(axis=1) * WARP

"""Clusters: barrier.cluster (PTX ISA 9.7.13.3) and arrivals on mbarriers of other CTAs (9.7.13.15.13).

The CTAs of a cluster are always in one group (:mod:`ptxtile.sim.launch`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.cluster_ops import ClusterArrive, ClusterWait, MbarrierArriveRemote
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.masks import Mask
from ptxtile.sim.rules import mbarriers

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads


class ClusterBarrier:
    """The barrier of every cluster of a group: arrivals of each thread, [CTA, thread], and completed rounds, [CTA]."""

    def __init__(self, members: np.ndarray, threads: int) -> None:
        self.members = members
        self.arrivals = np.zeros((len(members), threads), dtype=np.int64)

    def rounds(self) -> np.ndarray:
        """[CTA]: how often every thread of its cluster has arrived."""
        return self.arrivals.min(axis=1)[self.members].min(axis=1)


class ClusterWaiting(Wait):
    def __init__(self, threads: Threads, op: ClusterWait, barrier: ClusterBarrier, mask: Mask) -> None:
        self.threads, self.barrier = threads, barrier
        self.location = op.location
        own = barrier.arrivals[:, threads.first_thread : threads.first_thread + threads.lanes]
        active = np.ones(own.shape, dtype=bool) if mask is None else np.broadcast_to(mask, own.shape)
        self.wanted = np.where(active, own, 0).max(axis=1)

    def _blocked(self) -> np.ndarray:
        return self.barrier.rounds() < self.wanted

    def ready(self) -> bool:
        return not self._blocked().any()

    def describe(self) -> list[str]:
        cta = int(np.flatnonzero(self._blocked())[0])
        late = self.barrier.arrivals[self.barrier.members[cta]] < self.wanted[cta]
        return [f"{self.threads.describe(cta)} waits for its cluster: {int(late.sum())} threads have not arrived"]


def arrive(threads: Threads, op: ClusterArrive, mask: Mask) -> None:
    barrier = threads.group.cluster_barrier()
    own = barrier.arrivals[:, threads.first_thread : threads.first_thread + threads.lanes]
    own += 1 if mask is None else np.broadcast_to(mask, own.shape)


def wait(threads: Threads, op: ClusterWait, mask: Mask) -> Wait | None:
    waiting = ClusterWaiting(threads, op, threads.group.cluster_barrier(), mask)
    return None if waiting.ready() else waiting


def targets(threads: Threads, ctas: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """The CTAs of rank ``ranks`` in the clusters of ``ctas``, as positions in the group."""
    members = threads.group.cluster_members()
    size = members.shape[1]
    wrong = (ranks < 0) | (ranks >= size)
    if wrong.any():
        got = str(int(ranks[wrong][0]))
        raise SimulationError("a CTA that the cluster lacks", expected=f"rank 0 to {size - 1}", got=got)
    return members[ctas, ranks]


def arrive_remote(threads: Threads, op: MbarrierArriveRemote, mask: Mask) -> None:
    for mbarrier, lanes in mbarriers.each(threads, op.barrier, op.index, mask):
        ctas, _ = threads.active_lanes(lanes)
        where = targets(threads, ctas, threads.on_active_lanes(op.cta, lanes))
        counts = np.bincount(where, minlength=threads.group.ctas)
        mbarrier.require_initialised(counts > 0, "arrived at")
        mbarrier.arrive(counts)

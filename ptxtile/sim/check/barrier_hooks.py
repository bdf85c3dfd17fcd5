"""What the checker does around barriers of warps, CTAs, clusters and grids, and around fences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ptxtile.ir import cluster_ops, gpu_ops, manual_ops, warp_ops
from ptxtile.sim.check import mbarrier_hooks
from ptxtile.sim.check.clocks import GLOBAL_FENCED, SHARED_FENCED
from ptxtile.sim.check.mbarrier_hooks import Hook
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedThreads


def meet(threads: CheckedThreads, op: Any, mask: Mask, *, waits: bool = True) -> Hook:
    """bar.sync and bar.red: who takes part knows afterwards what all of them knew when they arrived."""
    watch, group = threads.group.watch, threads.group
    here = list(threads.warps(mask))
    barrier = group.named_barriers.get(op.id)
    before = {cta: 0 if barrier is None else int(barrier.rounds[cta]) for cta, _ in here}
    for cta, numbers in here:
        watch.meetings.gather((op.id, cta), before[cta] + 1, watch.clocks.release(numbers))
    yield
    yield
    if waits:
        for cta, numbers in here:
            clock = watch.meetings.clock((op.id, cta), before[cta] + 1)
            if clock is not None:
                watch.clocks.meet(numbers, clock)


def arrive(threads: CheckedThreads, op: manual_ops.BarArrive, mask: Mask) -> Hook:
    return meet(threads, op, mask, waits=False)


def _arrive_at(threads: CheckedThreads, key: str, mask: Mask) -> None:
    """Every thread's arrival at the barrier of its cluster or grid, in its own count of rounds."""
    meetings = threads.group.watch.meetings
    for cta, numbers in threads.warps(mask):
        where = (key, threads.group.cluster_of(cta) if key == "cluster" else 0)
        meetings.gather(where, meetings.next_round(where, int(numbers[0])), threads.clocks.release(numbers))


def _have_met(threads: CheckedThreads, key: str, mask: Mask) -> None:
    meetings = threads.group.watch.meetings
    for cta, numbers in threads.warps(mask):
        where = (key, threads.group.cluster_of(cta) if key == "cluster" else 0)
        clock = meetings.clock(where, meetings.round_of(where, int(numbers[0])))
        if clock is not None:
            threads.clocks.meet(numbers, clock)


def cluster_arrive(threads: CheckedThreads, op: cluster_ops.ClusterArrive, mask: Mask) -> Hook:
    _arrive_at(threads, "cluster", mask)
    yield


def cluster_wait(threads: CheckedThreads, op: cluster_ops.ClusterWait, mask: Mask) -> Hook:
    yield
    yield
    _have_met(threads, "cluster", mask)


def grid_sync(threads: CheckedThreads, op: manual_ops.GridSync, mask: Mask) -> Hook:
    _arrive_at(threads, "grid", mask)
    yield
    yield
    _have_met(threads, "grid", mask)


def sync_warp(threads: CheckedThreads, op: warp_ops.SyncWarp, mask: Mask) -> Hook:
    """The lanes that a mask names meet; without one, those of the warp."""
    clocks = threads.clocks
    for cta, numbers in threads.warps(mask):
        groups = [numbers]
        if op.mask is not None:
            value = np.broadcast_to(np.asarray(threads.evaluate(op.mask, mask)), (threads.group.ctas, threads.lanes))
            masks = value[cta, numbers % clocks.stride - threads.first_thread]
            groups = [numbers[masks == bits] for bits in np.unique(masks)]
        for group in groups:
            clocks.meet(group, clocks.release(group))
    yield


def fence_proxy(threads: CheckedThreads, op: gpu_ops.FenceProxyAsync, mask: Mask) -> Hook:
    row = SHARED_FENCED if op.space == "shared" else GLOBAL_FENCED
    for _, numbers in threads.warps(mask):
        threads.clocks.fence(numbers, row)
    if op.space == "shared":  # it makes the init of a barrier visible to TMA as well
        yield from mbarrier_hooks.fence_init(threads, op, mask)
    else:
        yield

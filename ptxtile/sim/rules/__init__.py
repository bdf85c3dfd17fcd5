"""What each GPU op does: one rule for each, found by the op's class.

A rule is called with the threads that run the op, the op, and the mask of active lanes. It returns what the threads
then wait for, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ptxtile.ir import (
    async_copy_ops,
    atomic_ops,
    cluster_ops,
    gpu_ops,
    grid_dependency_ops,
    manual_ops,
    tensor_core_ops,
    warp_ops,
)
from ptxtile.ir.tile_ops import Print
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.masks import Mask
from ptxtile.sim.rules import (
    async_copies,
    atomics,
    barriers,
    bulk_groups,
    clusters,
    fences,
    manual,
    matrices,
    mbarriers,
    printing,
    registers,
    tma,
    warps,
    wgmma,
)

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

RULES: dict[type, Callable[[Threads, Any, Mask], Wait | None]] = {
    gpu_ops.MbarrierInit: mbarriers.initialise,
    gpu_ops.FenceMbarrierInit: fences.mbarrier_init,
    gpu_ops.MbarrierArriveExpectTx: mbarriers.arrive_expecting,
    gpu_ops.MbarrierArrive: mbarriers.arrive,
    gpu_ops.MbarrierWait: mbarriers.wait,
    gpu_ops.TmaLoad: tma.load,
    gpu_ops.TmaStore: tma.store,
    gpu_ops.PrefetchTensorMap: tma.prefetch,
    gpu_ops.BulkCommitGroup: bulk_groups.commit,
    gpu_ops.BulkWaitGroup: bulk_groups.wait,
    gpu_ops.FenceProxyAsync: fences.proxy_async,
    grid_dependency_ops.GridDependencyWait: fences.grid_dependency,
    grid_dependency_ops.LaunchDependents: fences.grid_dependency,
    gpu_ops.BarSync: barriers.sync,
    gpu_ops.SetMaxRegisters: registers.set_max_registers,
    Print: printing.print_values,
    atomic_ops.Atomic: atomics.operate,
    atomic_ops.AtomicLoad: atomics.load,
    atomic_ops.AtomicStore: atomics.store,
    manual_ops.BarArrive: manual.arrive,
    manual_ops.BarReduce: barriers.sync,
    manual_ops.GridSync: barriers.sync_grid,
    manual_ops.MbarrierExpectTx: manual.expect,
    manual_ops.DeviceAssert: manual.check,
    manual_ops.InlinePtx: manual.inline,
    tensor_core_ops.LoadMatrix: matrices.load,
    tensor_core_ops.StoreMatrix: matrices.store,
    tensor_core_ops.MmaSync: matrices.multiply,
    tensor_core_ops.WgmmaFence: wgmma.fence,
    tensor_core_ops.Wgmma: wgmma.multiply,
    tensor_core_ops.WgmmaCommitGroup: wgmma.commit,
    tensor_core_ops.WgmmaWaitGroup: wgmma.wait,
    async_copy_ops.CpAsync: async_copies.copy,
    async_copy_ops.CpAsyncCommitGroup: async_copies.commit,
    async_copy_ops.CpAsyncWaitGroup: async_copies.wait,
    async_copy_ops.CpAsyncMbarrierArrive: async_copies.arrive,
    cluster_ops.MbarrierArriveRemote: clusters.arrive_remote,
    cluster_ops.ClusterArrive: clusters.arrive,
    cluster_ops.ClusterWait: clusters.wait,
    warp_ops.Shuffle: warps.shuffle,
    warp_ops.Vote: warps.vote,
    warp_ops.Match: warps.match,
    warp_ops.ActiveMask: warps.active,
    warp_ops.SyncWarp: warps.sync,
    warp_ops.ElectOne: warps.elect,
}

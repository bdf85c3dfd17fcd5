"""What the checker does around each operation that orders something, or that accesses memory in a way of its own.

A hook is a generator: it runs to its first ``yield`` before the operation's rule, to the second after it, and to its
end when the operation has got what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable

from ptxtile.ir import async_copy_ops, atomic_ops, cluster_ops, gpu_ops, manual_ops, tensor_core_ops, warp_ops
from ptxtile.sim.check import barrier_hooks, engine_hooks, mbarrier_hooks
from ptxtile.sim.check.mbarrier_hooks import Hook

HOOKS: dict[type, Callable[..., Hook]] = {
    gpu_ops.MbarrierInit: mbarrier_hooks.initialise,
    gpu_ops.FenceMbarrierInit: mbarrier_hooks.fence_init,
    gpu_ops.MbarrierArrive: mbarrier_hooks.arrive,
    gpu_ops.MbarrierArriveExpectTx: mbarrier_hooks.arrive,
    gpu_ops.MbarrierWait: mbarrier_hooks.wait,
    gpu_ops.TmaLoad: mbarrier_hooks.load,
    gpu_ops.BulkCommitGroup: engine_hooks.bulk_commit,
    gpu_ops.BulkWaitGroup: engine_hooks.bulk_wait,
    gpu_ops.FenceProxyAsync: barrier_hooks.fence_proxy,
    gpu_ops.BarSync: barrier_hooks.meet,
    manual_ops.BarReduce: barrier_hooks.meet,
    manual_ops.BarArrive: barrier_hooks.arrive,
    manual_ops.GridSync: barrier_hooks.grid_sync,
    manual_ops.MbarrierExpectTx: mbarrier_hooks.expect,
    cluster_ops.MbarrierArriveRemote: mbarrier_hooks.arrive_remotely,
    cluster_ops.ClusterArrive: barrier_hooks.cluster_arrive,
    cluster_ops.ClusterWait: barrier_hooks.cluster_wait,
    warp_ops.SyncWarp: barrier_hooks.sync_warp,
    async_copy_ops.CpAsyncCommitGroup: engine_hooks.copy_commit,
    async_copy_ops.CpAsyncWaitGroup: engine_hooks.copy_wait,
    async_copy_ops.CpAsyncMbarrierArrive: mbarrier_hooks.arrive_after_copies,
    tensor_core_ops.Wgmma: engine_hooks.wgmma,
    tensor_core_ops.WgmmaFence: engine_hooks.wgmma_fence,
    tensor_core_ops.WgmmaCommitGroup: engine_hooks.wgmma_commit,
    tensor_core_ops.WgmmaWaitGroup: engine_hooks.wgmma_wait,
    tensor_core_ops.LoadMatrix: engine_hooks.matrix_move,
    tensor_core_ops.StoreMatrix: engine_hooks.matrix_move,
    atomic_ops.Atomic: engine_hooks.atomic,
    atomic_ops.AtomicLoad: engine_hooks.atomic,
    atomic_ops.AtomicStore: engine_hooks.atomic,
}

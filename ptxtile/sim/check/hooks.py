"""What the checker does around each operation that orders something, or that accesses memory in a way of its own.

A hook is a generator: it runs to its first ``yield`` before the operation's rule, to the second after it, and to its
end when the operation has got what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptxtile.ir import async_copy_ops, atomic_ops, cluster_ops, gpu_ops, manual_ops, tensor_core_ops, warp_ops
from ptxtile.ir.statements import Statement
from ptxtile.ir.tile_ops import Print
from ptxtile.sim.check import barrier_hooks, engine_hooks, grids, mbarrier_hooks
from ptxtile.sim.check.kernel_facts import KernelFacts
from ptxtile.sim.check.mbarrier_hooks import Hook
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.masks import Mask
from ptxtile.sim.rules import RULES

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
    tensor_core_ops.MmaSync: engine_hooks.mma_sync,
    tensor_core_ops.LoadMatrix: engine_hooks.matrix_move,
    tensor_core_ops.StoreMatrix: engine_hooks.matrix_move,
    atomic_ops.Atomic: engine_hooks.atomic,
    atomic_ops.AtomicLoad: engine_hooks.atomic,
    atomic_ops.AtomicStore: engine_hooks.atomic,
}


def rule_of(statement: Statement, facts: KernelFacts) -> Callable[[Any, Any, Mask], Wait | None]:
    """What carries an operation out. Where nothing depends on their numbers, tensor cores only check addresses."""
    if type(statement) in _INSTEAD:
        return _INSTEAD[type(statement)]
    if not facts.products_matter and type(statement) in _WITHOUT_NUMBERS:
        return _WITHOUT_NUMBERS[type(statement)]
    return RULES[type(statement)]


_INSTEAD: dict[type, Callable[[Any, Any, Mask], Wait | None]] = {
    manual_ops.GridSync: grids.sync_grid,
    Print: lambda threads, op, mask: None,
}
_WITHOUT_NUMBERS: dict[type, Callable[[Any, Any, Mask], None]] = {
    tensor_core_ops.MmaSync: engine_hooks.multiply_without_numbers,
    tensor_core_ops.LoadMatrix: engine_hooks.move_without_numbers,
    tensor_core_ops.StoreMatrix: engine_hooks.move_without_numbers,
}

"""What each GPU op does: one rule for each, found by the op's class.

A rule is called with the threads that run the op, the op, and the mask of active lanes. It returns what the threads
then wait for, or None.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ptxtile.ir import gpu_ops
from ptxtile.ir.tile_ops import Print
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.masks import Mask
from ptxtile.sim.rules import barriers, bulk_groups, fences, mbarriers, printing, registers, tma

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
    gpu_ops.BarSync: barriers.sync,
    gpu_ops.SetMaxRegisters: registers.set_max_registers,
    Print: printing.print_values,
}

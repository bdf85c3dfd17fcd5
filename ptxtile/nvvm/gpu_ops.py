"""One rule for each GPU op: its operands, and the inline-PTX template that it becomes."""

from __future__ import annotations

from collections.abc import Callable

from ptxtile.ir import gpu_ops as ir
from ptxtile.ir.atomic_ops import ATOMIC_OPS
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, as_expr
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.grid_dependency_ops import GridDependencyWait, LaunchDependents
from ptxtile.ir.types import int32
from ptxtile.nvvm import atomics, inline_ptx, manual_ops, memory, tensor_core_ops, warp_ops
from ptxtile.nvvm.casts import cast
from ptxtile.nvvm.context import Context
from ptxtile.nvvm.expressions import scalar
from ptxtile.target import Feature

MBARRIER_BYTES = 8  # PTX ISA, «Size and alignment of mbarrier object»
MAX_MBARRIER_COUNT = (1 << 20) - 1  # PTX ISA, «Contents of the mbarrier object»: range of counts and of tx-count
NAMED_BARRIERS = 16  # PTX ISA, «bar, barrier»


def run(context: Context, node: GpuOp) -> None:
    rule = _RULES.get(type(node))
    if rule is None:
        raise context.writer.error(f"{type(node).__name__} has no rule of code generation")
    rule(context, node)


def _call(context: Context, name: str, *operands: str | int) -> None:
    inline_ptx.call(context.writer, name, *(str(operand) for operand in operands))


def _barrier(context: Context, barrier: Buffer, index: Expr) -> str:
    return memory.shared_address(context, barrier, scalar(context, index), MBARRIER_BYTES)


def _tile(context: Context, shared: Buffer, offset: Expr) -> str:
    return memory.shared_address(context, shared, scalar(context, offset), shared.dtype.itemsize)


def _coordinates(context: Context, coordinates: tuple[Expr, ...]) -> list[str]:
    writer = context.writer
    if not 1 <= len(coordinates) <= 5:
        raise writer.error(f"a tensor map has 1 to 5 dimensions, not {len(coordinates)}")
    return [writer.operand(cast(writer, scalar(context, coordinate), int32)) for coordinate in coordinates]


def _tensor_map(context: Context, name: str) -> str:
    if name not in context.tensor_maps:
        raise context.writer.error(f"the tensor map {name} is no parameter of this kernel")
    return context.tensor_maps[name]


# -- mbarriers ----------------------------------------
def _init(context: Context, node: ir.MbarrierInit) -> None:
    _check_count(context, "arrivals", node.arrivals, 1)
    _call(context, "mbarrier_init", _barrier(context, node.barrier, node.index), node.arrivals)


def _arrive(context: Context, node: ir.MbarrierArrive) -> None:
    _call(context, "mbarrier_arrive", _barrier(context, node.barrier, node.index))


def _expect(context: Context, node: ir.MbarrierArriveExpectTx) -> None:
    _check_count(context, "bytes", node.bytes, 0)
    _call(context, "mbarrier_arrive_expect_tx", _barrier(context, node.barrier, node.index), node.bytes)


def _wait(context: Context, node: ir.MbarrierWait) -> None:
    parity = cast(context.writer, scalar(context, node.parity), int32)
    _call(context, "mbarrier_wait", _barrier(context, node.barrier, node.index), context.writer.operand(parity))


def _check_count(context: Context, what: str, count: int, least: int) -> None:
    if not least <= count <= MAX_MBARRIER_COUNT:
        raise context.writer.error(f"{count} {what} of an mbarrier", expected=f"{least} to {MAX_MBARRIER_COUNT}")


# -- tensor memory accelerator ----------------------------------------
def _destination_space(context: Context) -> str:
    """``cta`` where the architecture's first PTX ISA has it already, else ``cluster``, which is older (see
    inline_ptx)."""
    target = context.writer.module.target
    known = target.has(Feature.SHARED_CTA_TMA) and target.isa_of(Feature.SHARED_CTA_TMA) <= target.minimum_ptx_isa
    return "cta" if known else "cluster"


def _tma_load(context: Context, node: ir.TmaLoad) -> None:
    coordinates = _coordinates(context, node.coordinates)
    kind = _destination_space(context) if node.multicast is None else "multicast"
    mask = [] if node.multicast is None else [_mask(context, node.multicast)]
    _call(
        context,
        f"tma_load_{len(coordinates)}d_{kind}",
        _tile(context, node.shared, node.offset),
        _tensor_map(context, node.tensor_map),
        _barrier(context, node.barrier, node.index),
        *coordinates,
        *mask,
    )


def _mask(context: Context, mask: int | Expr) -> str:
    """A multicast mask, an i16 operand."""
    writer, value = context.writer, scalar(context, as_expr(mask))
    if value.constant is not None:
        return str(value.constant)
    return writer.register(f"trunc i32 {writer.operand(value)} to i16")


def _tma_store(context: Context, node: ir.TmaStore) -> None:
    coordinates = _coordinates(context, node.coordinates)
    tile = _tile(context, node.shared, node.offset)
    name = f"tma_reduce_{node.operator}" if node.operator else "tma_store"
    _call(context, f"{name}_{len(coordinates)}d", _tensor_map(context, node.tensor_map), tile, *coordinates)


def _prefetch(context: Context, node: ir.PrefetchTensorMap) -> None:
    _call(context, "prefetch_tensor_map", _tensor_map(context, node.tensor_map))


def _commit(context: Context, node: ir.BulkCommitGroup) -> None:
    _call(context, "bulk_commit_group")


def _wait_group(context: Context, node: ir.BulkWaitGroup) -> None:
    _call(context, "bulk_wait_group_read" if node.read else "bulk_wait_group", node.pending)


# -- fences, barriers, registers ----------------------------------------
def _fence_init(context: Context, node: ir.FenceMbarrierInit) -> None:
    _call(context, "fence_mbarrier_init")


def _fence_proxy(context: Context, node: ir.FenceProxyAsync) -> None:
    if node.space not in ("shared", "global"):
        raise context.writer.error(f"fence.proxy.async of {node.space!r}", expected="shared or global")
    _call(context, f"fence_proxy_async_{node.space}")


def _bar_sync(context: Context, node: ir.BarSync) -> None:
    """Without a count when it is all of the CTA: a count has to be a whole number of warps, a CTA does not.

    A named barrier that others arrive at with a count must be waited for with one: an H200 stops with an illegal
    instruction at ``bar.arrive 7, 96`` and ``bar.sync 7`` in a CTA of 96 threads.
    """
    kernel, writer = context.kernel, context.writer
    if not 0 <= node.id < NAMED_BARRIERS:
        raise writer.error(f"barrier {node.id}", expected=f"0 to {NAMED_BARRIERS - 1}")
    if kernel is not None and node.threads == kernel.threads and (node.id == 0 or node.threads % 32):
        _call(context, "bar_sync_all", node.id)
        return
    if node.threads <= 0 or node.threads % 32:
        raise writer.error(f"a barrier of {node.threads} threads", expected="a multiple of 32")
    _call(context, "bar_sync", node.id, node.threads)


def _set_max_registers(context: Context, node: ir.SetMaxRegisters) -> None:
    if node.action not in ("inc", "dec"):
        raise context.writer.error(f"setmaxnreg.{node.action}", expected="inc or dec")
    if not 24 <= node.count <= 256 or node.count % 8:
        raise context.writer.error(f"setmaxnreg of {node.count}", expected="a multiple of 8 from 24 to 256")
    _call(context, f"set_max_registers_{node.action}", node.count)


def _grid_dependency_wait(context: Context, node: GridDependencyWait) -> None:
    _call(context, "grid_dependency_wait")


def _launch_dependents(context: Context, node: LaunchDependents) -> None:
    _call(context, "launch_dependents")


_RULES: dict[type, Callable[..., None]] = {
    ir.MbarrierInit: _init,
    ir.FenceMbarrierInit: _fence_init,
    ir.MbarrierArriveExpectTx: _expect,
    ir.MbarrierArrive: _arrive,
    ir.MbarrierWait: _wait,
    ir.TmaLoad: _tma_load,
    ir.TmaStore: _tma_store,
    ir.BulkCommitGroup: _commit,
    ir.BulkWaitGroup: _wait_group,
    ir.PrefetchTensorMap: _prefetch,
    ir.FenceProxyAsync: _fence_proxy,
    ir.BarSync: _bar_sync,
    ir.SetMaxRegisters: _set_max_registers,
    GridDependencyWait: _grid_dependency_wait,
    LaunchDependents: _launch_dependents,
    **tensor_core_ops.RULES,
    **warp_ops.RULES,
    **dict.fromkeys(ATOMIC_OPS, atomics.run),
    **manual_ops.RULES,
}

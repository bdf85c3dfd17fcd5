"""Rules for cp.async, clusters, and exchanges within a warp."""

from __future__ import annotations

from collections.abc import Callable

from ptxtile.ir import async_copy_ops, cluster_ops, warp_ops
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.types import bool_, int32, uint32
from ptxtile.nvvm import inline_ptx, memory
from ptxtile.nvvm.casts import cast
from ptxtile.nvvm.context import Context
from ptxtile.nvvm.dtypes import value_type
from ptxtile.nvvm.expressions import scalar
from ptxtile.nvvm.function import Value

MBARRIER_BYTES = 8


def _call(context: Context, name: str, *operands: str | int) -> str:
    return inline_ptx.call(context.writer, name, *(str(operand) for operand in operands))


def _barrier(context: Context, barrier: Buffer, index: Expr) -> str:
    return memory.shared_address(context, barrier, scalar(context, index), MBARRIER_BYTES)


def _integer(context: Context, node: Expr) -> str:
    return context.writer.operand(cast(context.writer, scalar(context, node), int32))


# -- cp.async ----------------------------------------
def _copy(context: Context, node: async_copy_ops.CpAsync) -> None:
    writer = context.writer
    target = memory.shared_address(context, node.shared, scalar(context, node.offset), node.shared.dtype.itemsize)
    pointer = memory.address(context, node.source, scalar(context, node.index))
    source = writer.register(f"ptrtoint ptr addrspace(1) {pointer} to i64")
    name = f"cp_async_{node.cache}_{node.bytes}"
    if node.valid_bytes is None:
        _call(context, name, target, source)
    else:
        _call(context, name + "_sized", target, source, _integer(context, node.valid_bytes))


def _commit(context: Context, node: async_copy_ops.CpAsyncCommitGroup) -> None:
    _call(context, "cp_async_commit_group")


def _wait(context: Context, node: async_copy_ops.CpAsyncWaitGroup) -> None:
    _call(context, "cp_async_wait_group", node.pending)


def _copies_arrive(context: Context, node: async_copy_ops.CpAsyncMbarrierArrive) -> None:
    _call(context, "cp_async_mbarrier_arrive", _barrier(context, node.barrier, node.index))


# -- clusters ----------------------------------------
def _arrive_remote(context: Context, node: cluster_ops.MbarrierArriveRemote) -> None:
    barrier = _barrier(context, node.barrier, node.index)
    _call(context, "mbarrier_arrive_remote", barrier, _integer(context, node.cta))


def _cluster_arrive(context: Context, node: cluster_ops.ClusterArrive) -> None:
    _call(context, "cluster_arrive_aligned" if node.aligned else "cluster_arrive")


def _cluster_wait(context: Context, node: cluster_ops.ClusterWait) -> None:
    _call(context, "cluster_wait_aligned" if node.aligned else "cluster_wait")


# -- warps ----------------------------------------
def _mask(context: Context, node: warp_ops.Shuffle | warp_ops.Vote | warp_ops.Match | warp_ops.SyncWarp) -> str:
    """The threads that take part, an i32 operand."""
    return "-1" if node.mask is None else context.writer.operand(scalar(context, node.mask))


def _shuffle(context: Context, node: warp_ops.Shuffle) -> None:
    """The clamp of shfl: segment mask in bits 8 to 12, the last lane (for ``up``: the first) in bits 0 to 4."""
    writer, dtype = context.writer, node.value.dtype
    kind = value_type(dtype)
    text = writer.operand(scalar(context, node.value))
    lane = _integer(context, node.lane)
    clamp = (32 - node.width) << 8 | (0 if node.mode == "up" else 31)
    mask = _mask(context, node)
    bits, integer = dtype.bits, f"i{dtype.bits}"
    if dtype.is_bool:
        whole = writer.register(f"zext i1 {text} to i8")
    else:
        whole = text if kind == integer else writer.register(f"bitcast {kind} {text} to {integer}")
    if bits == 64:
        halves = writer.register(f"bitcast i64 {whole} to <2 x i32>")
        joined = "poison"
        for half in range(2):
            part = writer.register(f"extractelement <2 x i32> {halves}, i32 {half}")
            part = _call(context, f"shuffle_{node.mode}", part, lane, clamp, mask)
            joined = writer.register(f"insertelement <2 x i32> {joined}, i32 {part}, i32 {half}")
        result = writer.register(f"bitcast <2 x i32> {joined} to i64")
    else:
        wide = whole if bits == 32 else writer.register(f"zext {integer} {whole} to i32")
        result = _call(context, f"shuffle_{node.mode}", wide, lane, clamp, mask)
        if bits < 32:
            result = writer.register(f"trunc i32 {result} to {integer}")
    value = memory.reinterpret(context, result, integer, dtype)
    memory.store(context, node.destination, scalar(context, node.destination_offset), [value])


def _vote(context: Context, node: warp_ops.Vote) -> None:
    condition = context.writer.register(f"zext i1 {scalar(context, node.condition).text} to i32")
    result = _call(context, f"vote_{node.mode}", condition, _mask(context, node))
    _store_truth(context, node, result) if node.mode != "ballot" else _store(context, node, Value(result, uint32))


def _match(context: Context, node: warp_ops.Match) -> None:
    writer, dtype = context.writer, node.value.dtype
    text, integer = writer.operand(scalar(context, node.value)), f"i{dtype.bits}"
    kind = value_type(dtype)
    bits = text if kind == integer else writer.register(f"bitcast {kind} {text} to {integer}")
    result = _call(context, f"match_{node.mode}_{dtype.bits}", bits, _mask(context, node))
    _store(context, node, Value(result, uint32))


def _active_mask(context: Context, node: warp_ops.ActiveMask) -> None:
    _store(context, node, Value(_call(context, "active_mask"), uint32))


def _elect(context: Context, node: warp_ops.ElectOne) -> None:
    _store_truth(context, node, _call(context, "elect_one"))


def _store_truth(context: Context, node: warp_ops.Vote | warp_ops.ElectOne, result: str) -> None:
    _store(context, node, context.writer.value(f"icmp ne i32 {result}, 0", bool_))


def _store(
    context: Context, node: warp_ops.Vote | warp_ops.ElectOne | warp_ops.Match | warp_ops.ActiveMask, value: Value
) -> None:
    memory.store(context, node.destination, scalar(context, node.destination_offset), [value])


def _sync_warp(context: Context, node: warp_ops.SyncWarp) -> None:
    _call(context, "sync_warp", _mask(context, node))


RULES: dict[type, Callable[..., None]] = {
    async_copy_ops.CpAsync: _copy,
    async_copy_ops.CpAsyncCommitGroup: _commit,
    async_copy_ops.CpAsyncWaitGroup: _wait,
    async_copy_ops.CpAsyncMbarrierArrive: _copies_arrive,
    cluster_ops.MbarrierArriveRemote: _arrive_remote,
    cluster_ops.ClusterArrive: _cluster_arrive,
    cluster_ops.ClusterWait: _cluster_wait,
    warp_ops.Shuffle: _shuffle,
    warp_ops.Vote: _vote,
    warp_ops.Match: _match,
    warp_ops.ActiveMask: _active_mask,
    warp_ops.ElectOne: _elect,
    warp_ops.SyncWarp: _sync_warp,
}

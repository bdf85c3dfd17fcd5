"""Synchronization and roles by hand: barriers, fences, ``T.ws``, TMA copies onto a barrier of the user's, register
counts.

What is written here is done as it stands, and the automatic barriers fit in around it. ``with T.ws(0, 1)`` runs its
body in those warpgroups of 128 threads; bodies that follow each other run at the same time. A wait on an mbarrier makes
the tiles safe to use that TMA loads onto it, or that the roles which arrive on it touch.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ptxtile.errors import ResourceError, TraceError, TypeMismatchError
from ptxtile.frontend import operations, tile_operations
from ptxtile.frontend.buffers import TracedBuffer
from ptxtile.frontend.current import kernel_tracer
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.tracer import HoistPoint, Tracer
from ptxtile.frontend.values import Value
from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.cluster_ops import MbarrierArriveRemote, rank_in_cluster
from ptxtile.ir.expressions import Const, Expr, cast, constant
from ptxtile.ir.gpu_ops import (
    BarSync,
    BulkCommitGroup,
    BulkWaitGroup,
    FenceProxyAsync,
    MbarrierArrive,
    MbarrierArriveExpectTx,
    MbarrierInit,
    MbarrierWait,
    SetMaxRegisters,
)
from ptxtile.ir.manual_ops import BarArrive, BarAt, MbarrierExpectTx
from ptxtile.ir.rewrite import copy_with, has_load
from ptxtile.ir.statements import Allocate, If, Let, Role, Seq, Specialized, Statement
from ptxtile.ir.tile_ops import Region, TmaCopy
from ptxtile.ir.types import int32, uint64

WARP, WARPGROUP, NAMED_BARRIERS = 32, 128, 16
MOST_ARRIVALS = (1 << 20) - 1
"""PTX ISA 9.7.13.15.2, «Contents of the mbarrier object»."""


def _group(tracer: Tracer) -> tuple[int, int]:
    """(first thread, threads) of the threads that run the present code."""
    assert tracer.kernel is not None
    return tracer.kernel.group or (0, tracer.kernel.threads)


def _outside_parallel(tracer: Tracer, what: str) -> None:
    if tracer.parallel_depth:
        raise TraceError(
            f"{what} inside of T.Parallel", location=user_location(), got="one element's iteration",
            hint="put it before or after the loop: iterations are spread over the threads",
        )  # fmt: skip


# -- barriers and fences ----------------------------------------
def sync_threads(barrier_id: Any = None, arrive_count: int | None = None) -> None:
    """All threads of the block (inside of T.ws: of the role) meet. With an id from 1 to 15 and a count: so many threads
    meet at that named barrier, whole warps of them. An id that is computed has to be the same in all threads of a
    warp."""
    tracer = kernel_tracer("T.sync_threads")
    _outside_parallel(tracer, "T.sync_threads")
    _, threads = _group(tracer)
    whole = -(-threads // WARP) * WARP
    if barrier_id is None and arrive_count is None:
        tracer.emit(BarSync(0, whole, location=user_location()))
        return
    identifier, count = _named_barrier("T.sync_threads", barrier_id, whole if arrive_count is None else arrive_count)
    location = user_location()
    if isinstance(identifier, int):
        tracer.emit(BarSync(identifier, count, location=location))
    else:
        tracer.emit(BarAt(identifier, count, location=location))


def named_barrier_arrive(barrier_id: Any, thread_count: int) -> None:
    """Arrives at the named barrier that ``thread_count`` threads meet at, and goes on; the others wait in
    T.sync_threads(barrier_id, thread_count)."""
    tracer = kernel_tracer("T.named_barrier_arrive")
    _outside_parallel(tracer, "T.named_barrier_arrive")
    identifier, count = _named_barrier("T.named_barrier_arrive", barrier_id, thread_count)
    location = user_location()
    if isinstance(identifier, int):
        tracer.emit(BarArrive(identifier, count, location=location))
    else:
        tracer.emit(BarAt(identifier, count, waits=False, location=location))


def _named_barrier(what: str, identifier: Any, count: Any) -> tuple[int | Expr, int]:
    """(id, threads); an id that is only known in the kernel is an int32."""
    kernel = kernel_tracer(what).kernel
    assert kernel is not None
    most = -(-kernel.threads // WARP) * WARP
    index = identifier.expr if isinstance(identifier, Value) and identifier.expr.dtype.is_integer else None
    known = isinstance(identifier, int) and not isinstance(identifier, bool) and 1 <= identifier < NAMED_BARRIERS
    if index is None and not known:
        raise TraceError(
            f"the barrier of {what}", location=user_location(), expected="a number from 1 to 15, an integer",
            got=operations.describe(identifier), hint="0 is the barrier of the whole block: T.sync_threads()",
        )  # fmt: skip
    if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= most or count % WARP:
        raise TraceError(
            f"the thread count of {what}", location=user_location(),
            expected=f"a multiple of {WARP} up to {most}, known at compile time", got=operations.describe(count),
        )  # fmt: skip
    return (int(identifier) if index is None else cast(index, int32)), count


def fence_proxy_async() -> None:
    """What this thread wrote to shared memory comes before later TMA and wgmma reads of it."""
    kernel_tracer("T.fence_proxy_async").emit(FenceProxyAsync("shared", location=user_location()))


# -- mbarriers ----------------------------------------
def alloc_barrier(arrive_count: int | list[int] | tuple[int, ...]) -> TracedBuffer:
    """One mbarrier, or one for each count: so many arrivals complete a phase. They are ready for use by all threads."""
    what = "T.alloc_barrier"
    tracer = kernel_tracer(what)
    if tracer.regions or (tracer.kernel is not None and tracer.kernel.group is not None):
        raise TraceError(
            f"{what} under control flow or in T.ws", location=user_location(), got="barriers that would be made again",
            hint="allocate barriers at the start of the kernel",
        )  # fmt: skip
    counts = list(arrive_count) if isinstance(arrive_count, (list, tuple)) else [arrive_count]
    legal = all(isinstance(c, int) and not isinstance(c, bool) and 1 <= c <= MOST_ARRIVALS for c in counts)
    if not counts or not legal:
        raise TraceError(
            f"the arrivals of {what}", location=user_location(), expected=f"ints from 1 to {MOST_ARRIVALS}",
            got=repr(arrive_count),
        )  # fmt: skip
    assert tracer.kernel is not None
    location = user_location()
    buffer = allocate(tracer.name_for("barrier"), Scope.BARRIER, uint64, (len(counts),), 8)
    tracer.emit(Allocate(buffer, location=location))
    inits = (MbarrierInit(buffer, constant(k), count, location=location) for k, count in enumerate(counts))
    tracer.emit(If(tracer.kernel.thread.eq(0), Seq(tuple(inits)), location=location))
    return TracedBuffer(buffer)


def _barrier(tracer: Tracer, value: Any, what: str) -> tuple[Buffer, Expr]:
    """The mbarrier that ``value`` names: ``bars[i]``, or the only one of ``bar``."""
    if isinstance(value, TracedBuffer) and value.ir.scope is Scope.BARRIER and value.ir.shape == (1,):
        return value.ir, constant(0)
    if isinstance(value, Value) and value.element is not None and value.element[0].ir.scope is Scope.BARRIER:
        if value.let is not None:
            tracer.discard(value.let)
        buffer, (index,) = value.element
        return buffer.ir, cast(index, int32)
    got, hint = operations.describe(value), None
    if isinstance(value, TracedBuffer) and value.ir.scope is Scope.BARRIER:
        got, hint = f"all {value.ir.shape[0]} barriers of {value.name}", "pick one by its index, such as bars[0]"
    raise TypeMismatchError(
        f"the barrier of {what}", location=user_location(), expected="one barrier of T.alloc_barrier", got=got,
        hint=hint,
    )  # fmt: skip


def mbarrier_arrive(mbarrier: Any, cta_id: Any = None) -> None:
    """One arrival by each thread that runs this. ``cta_id``: on the barrier of the block of that rank in the
    cluster."""
    tracer = kernel_tracer("T.mbarrier_arrive")
    _outside_parallel(tracer, "T.mbarrier_arrive")
    place, location = _barrier(tracer, mbarrier, "T.mbarrier_arrive"), user_location()
    if cta_id is None:
        tracer.emit(MbarrierArrive(*place, location=location))
        return
    rank = operations.converted(cta_id, int32)
    assert tracer.kernel is not None
    if isinstance(rank, Const) and not 0 <= int(rank.value) < prod(tracer.kernel.cluster):
        raise TraceError(
            "cta_id of T.mbarrier_arrive", location=location, got=str(rank.value),
            expected=f"a rank in the cluster, from 0 to {prod(tracer.kernel.cluster) - 1}",
        )  # fmt: skip
    tracer.emit(MbarrierArriveRemote(*place, rank, location=location))


def _bytes(what: str, tx: Any) -> int:
    if isinstance(tx, bool) or not isinstance(tx, int) or not 0 <= tx <= MOST_ARRIVALS:
        raise TraceError(
            f"the bytes of {what}", location=user_location(), expected=f"an int from 0 to {MOST_ARRIVALS}",
            got=operations.describe(tx),
        )  # fmt: skip
    return tx


def mbarrier_expect_tx(mbarrier: Any, tx: int) -> None:
    """So many more bytes complete the phase; by each thread that runs this."""
    what = "T.mbarrier_expect_tx"
    tracer = kernel_tracer(what)
    tracer.emit(MbarrierExpectTx(*_barrier(tracer, mbarrier, what), _bytes(what, tx), location=user_location()))


def mbarrier_arrive_expect_tx(mbarrier: Any, tx: int) -> None:
    """An arrival that announces so many bytes; by each thread that runs this."""
    what = "T.mbarrier_arrive_expect_tx"
    tracer = kernel_tracer(what)
    tracer.emit(MbarrierArriveExpectTx(*_barrier(tracer, mbarrier, what), _bytes(what, tx), location=user_location()))


def mbarrier_wait_parity(mbarrier: Any, parity: Any) -> None:
    """Waits until the phase of that parity has completed; of ``parity`` the lowest bit counts."""
    what = "T.mbarrier_wait_parity"
    tracer = kernel_tracer(what)
    _outside_parallel(tracer, what)
    barrier, index = _barrier(tracer, mbarrier, what)
    expr = operations.converted(parity, int32)
    expr = constant(int(expr.value) & 1) if isinstance(expr, Const) else expr & 1
    tracer.emit(MbarrierWait(barrier, index, expr, location=user_location()))


barrier_wait = mbarrier_wait_parity
barrier_arrive = mbarrier_arrive


# -- TMA ----------------------------------------
def tma_copy(
    src: Any,
    dst: Any,
    *,
    barrier: Any = None,
    cluster_mask: int | None = None,
    leader_scope_threads: int | None = None,
    eviction_policy: str | None = None,
    annotations: Any = None,
) -> None:
    """Starts a TMA copy and goes on.

    Global to shared: one thread of the block (or role) announces the bytes on ``barrier`` and starts the copy; arrivals
    and the wait are the user's. With a ``cluster_mask`` the copy goes to the blocks whose rank in the cluster is a bit
    of it: all announce the bytes, the first of them starts the copy, and blocks that are not named load for themselves.
    Shared to global: one thread stores and commits its group; T.tma_store_wait waits for it.
    """
    what = "T.tma_copy"
    tracer = kernel_tracer(what)
    tile_operations.outside_parallel(tracer, what)
    location = user_location()
    place = None if barrier is None else _barrier(tracer, barrier, what)
    source, destination = tile_operations.matched_regions(tracer, src, dst, what)
    scopes = source.buffer.scope, destination.buffer.scope
    assert tracer.kernel is not None
    elected = tracer.kernel.thread.eq(_group(tracer)[0])
    if scopes == (Scope.GLOBAL, Scope.SHARED):
        if place is None:
            raise TraceError(
                "T.tma_copy to shared memory without a barrier", location=location,
                expected="barrier=, one of T.alloc_barrier, that the bytes arrive on",
                hint="T.copy waits by itself",
            )  # fmt: skip
        expect = MbarrierExpectTx(*place, _size(source), location=location)
        load = _multicast(tracer, cluster_mask, TmaCopy(source, destination, *place, location=location))
        tracer.emit(If(elected, Seq((expect, load)), location=location))
        return
    if cluster_mask is not None:
        raise TraceError("cluster_mask of T.tma_copy from shared memory", location=location, expected="a load")
    if scopes != (Scope.SHARED, Scope.GLOBAL):
        raise TypeMismatchError(
            "T.tma_copy between other than global and shared memory", location=location,
            expected="global to shared, or shared to global", got=f"{scopes[0].value} to {scopes[1].value}",
        )  # fmt: skip
    unused = allocate(tracer.unique("no_barrier"), Scope.BARRIER, uint64, (1,), 8)
    tracer.emit(Allocate(unused, location=location))
    tracer.emit(If(elected, TmaCopy(source, destination, unused, constant(0), location=location), location=location))


def _multicast(tracer: Tracer, mask: Any, load: TmaCopy) -> Statement:
    """What each block of the cluster starts of a load to the blocks of ``mask``."""
    if mask is None:
        return load
    assert tracer.kernel is not None
    cluster = tracer.kernel.cluster
    if isinstance(mask, bool) or not isinstance(mask, int) or not 0 < mask < 1 << prod(cluster):
        raise TraceError(
            "cluster_mask of T.tma_copy", location=load.location, got=operations.describe(mask),
            expected=f"a bit for each of some blocks of the cluster: 1 to {(1 << prod(cluster)) - 1}",
            hint="cluster_dims of T.Kernel makes clusters",
        )  # fmt: skip
    rank = rank_in_cluster(tracer.kernel.block_vars, cluster)
    first = (mask & -mask).bit_length() - 1
    alone = If(((constant(mask) >> rank) & 1).eq(0), load, location=load.location)
    return If(rank.eq(first), copy_with(load, {"multicast": constant(mask)}), alone, location=load.location)


def _size(region: Region) -> int:
    """Bytes that TMA brings in: whole boxes, also where they hang over the tensor's edge."""
    total = region.buffer.dtype.itemsize
    for extent in region.extents:
        total *= extent
    return total


def tma_store_arrive() -> None:
    """Ends the present group of TMA stores; T.tma_copy does it by itself."""
    kernel_tracer("T.tma_store_arrive").emit(BulkCommitGroup(location=user_location()))


def tma_store_wait(count: int = 0, read: bool = True) -> None:
    """Waits until at most ``count`` of this thread's groups of TMA stores are unfinished; with ``read`` only until
    their shared memory has been read."""
    tracer = kernel_tracer("T.tma_store_wait")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise TraceError(
            "the count of T.tma_store_wait", location=user_location(), expected="an int ≥ 0", got=repr(count)
        )
    tracer.emit(BulkWaitGroup(count, bool(read), location=user_location()))


# -- roles ----------------------------------------
class WarpGroups:
    """What ``with T.ws(...)`` enters."""

    def __init__(self, first_thread: int, threads: int, name: str) -> None:
        self.first_thread, self.threads, self.name = first_thread, threads, name

    def __enter__(self) -> None:
        tracer = kernel_tracer("T.ws")
        assert tracer.kernel is not None
        if tracer.kernel.group is not None:
            raise TraceError("T.ws inside of T.ws", location=user_location(), hint="put it after the first one")
        _outside_parallel(tracer, "T.ws")
        self.location = user_location()
        tracer.kernel.group = (self.first_thread, self.threads)
        tracer.open_block()

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None:
            return
        tracer = kernel_tracer("T.ws")
        assert tracer.kernel is not None
        tracer.kernel.group = None
        block = tracer.close_block()
        body = block.close()
        role = Role(self.name, self.first_thread, self.threads, body, location=self.location)
        earlier = _same_time(tracer, role)
        roles = (role,) if earlier is None else (*earlier.roles, role)
        location = self.location if earlier is None else earlier.location
        tracer.emit(Specialized(roles, location=location))


def _same_time(tracer: Tracer, role: Role) -> Specialized | None:
    """The roles of the T.ws just before, of other threads, taken out of the block; what stands between are scalars."""
    items = tracer.block.items
    for position in range(len(items) - 1, -1, -1):
        item = items[position]
        if isinstance(item, Specialized):
            taken = ((r.first_thread, r.first_thread + r.threads) for r in item.roles)
            if any(role.first_thread < end and first < role.first_thread + role.threads for first, end in taken):
                return None
            del items[position]
            return item
        if not _is_scalar(item):
            return None
    return None


def _is_scalar(item: Statement | HoistPoint) -> bool:
    if isinstance(item, HoistPoint):
        return not item.statements
    return isinstance(item, Allocate) or (isinstance(item, Let) and not has_load(item.value))


def WarpSpecialize(*warp_group_idx: int) -> WarpGroups:
    """``with T.ws(0, 1):`` runs its body in warpgroups 0 and 1 (threads 0 to 255) only."""
    tracer = kernel_tracer("T.ws")
    groups = [int(g) if isinstance(g, int) and not isinstance(g, bool) else -1 for g in warp_group_idx]
    if not groups or min(groups) < 0 or sorted(set(groups)) != list(range(min(groups), min(groups) + len(groups))):
        raise TraceError(
            "the warpgroups of T.ws", location=user_location(),
            expected="consecutive ints from 0 on, such as T.ws(0, 1)",
            got=", ".join(map(operations.describe, warp_group_idx)) or "none",
        )  # fmt: skip
    assert tracer.kernel is not None
    first, threads = min(groups) * WARPGROUP, len(groups) * WARPGROUP
    if first + threads > tracer.kernel.threads:
        raise ResourceError(
            f"T.ws({', '.join(map(str, groups))}) needs threads that the block has not", location=user_location(),
            expected=f"threads={first + threads} or more in T.Kernel", got=str(tracer.kernel.threads),
        )  # fmt: skip
    return WarpGroups(first, threads, "group_" + "_".join(map(str, sorted(groups))))


ws = WarpSpecialize


def set_max_nreg(reg_count: int, is_inc: Any) -> None:
    """The role's threads get so many registers each, from what other roles gave up (setmaxnreg)."""
    what = "T.set_max_nreg"
    tracer = kernel_tracer(what)
    legal = isinstance(reg_count, int) and 24 <= reg_count <= 256 and reg_count % 8 == 0
    if not legal:
        raise TraceError(
            f"the registers of {what}", location=user_location(), expected="a multiple of 8 from 24 to 256",
            got=operations.describe(reg_count),
        )  # fmt: skip
    if tracer.kernel is None or tracer.kernel.group is None or tracer.regions:
        raise TraceError(
            f"{what} outside of T.ws, or under control flow", location=user_location(),
            expected="whole warpgroups that run it together", hint="put it at the start of `with T.ws(...)`",
        )  # fmt: skip
    tracer.emit(SetMaxRegisters("inc" if is_inc else "dec", reg_count, location=user_location()))


def inc_max_nreg(reg_count: int) -> None:
    """``T.set_max_nreg(reg_count, 1)``."""
    set_max_nreg(reg_count, 1)


def dec_max_nreg(reg_count: int) -> None:
    """``T.set_max_nreg(reg_count, 0)``."""
    set_max_nreg(reg_count, 0)


def shuffle_elect(thread_extent: int) -> Value:
    """Whether this thread is the one of its group of ``thread_extent`` threads (0: the block) that does what one shall
    do."""
    tracer = kernel_tracer("T.shuffle_elect")
    assert tracer.kernel is not None
    legal = isinstance(thread_extent, int) and not isinstance(thread_extent, bool) and thread_extent >= 0
    if not legal or thread_extent % WARP:
        raise TraceError(
            "the group of T.shuffle_elect", location=user_location(), expected=f"0 or a multiple of {WARP}",
            got=operations.describe(thread_extent),
        )  # fmt: skip
    thread: Expr = tracer.kernel.thread
    return Value((thread if thread_extent == 0 else thread % thread_extent).eq(0))

"""What the checker does around each operation that orders something.

A hook is a generator: it runs to its first ``yield`` before the operation's rule, to the second after it, and to its
end when the operation has got what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxtile.ir import async_copy_ops, atomic_ops, cluster_ops, gpu_ops, manual_ops, tensor_core_ops
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.tensor_core_ops import fragment_elements
from ptxtile.sim import fragments
from ptxtile.sim.check.clocks import GLOBAL_FENCED, KNOWN, SHARED_FENCED, WARP, Engine
from ptxtile.sim.check.findings import Finding
from ptxtile.sim.check.mbarriers import CheckedMbarrier
from ptxtile.sim.check.registers import InFlight
from ptxtile.sim.masks import Mask
from ptxtile.sim.rules import clusters, matrices, mbarriers

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedThreads

Hook = Generator[None, None, None]


def warps_of(threads: CheckedThreads, mask: Mask) -> Iterator[tuple[int, int, int]]:
    """(CTA, warp of the group, active lanes) of each warp with active lanes."""
    ctas, lanes = threads.active_lanes(mask)
    of_cta = threads.group.watch.clocks.warps_of_cta
    numbers, counts = np.unique(ctas * of_cta + (lanes + threads.first_thread) // WARP, return_counts=True)
    for number, count in zip(numbers, counts, strict=True):
        yield int(number) // of_cta, int(number), int(count)


# mbarriers --------------------------------------------------------------------------------------------------------


def _named(threads: CheckedThreads, op: Any, mask: Mask) -> Iterator[tuple[CheckedMbarrier, Mask]]:
    for mbarrier, lanes in mbarriers.each(threads, op.barrier, op.index, mask):
        assert isinstance(mbarrier, CheckedMbarrier)
        yield mbarrier, lanes


def mbarrier_init(threads: CheckedThreads, op: gpu_ops.MbarrierInit, mask: Mask) -> Hook:
    for mbarrier, lanes in _named(threads, op, mask):
        for cta, warp, _ in warps_of(threads, lanes):
            mbarrier.initialiser[cta] = warp, threads.group.watch.clocks.time(warp)
    yield


def fence_mbarrier_init(threads: CheckedThreads, op: gpu_ops.FenceMbarrierInit, mask: Mask) -> Hook:
    warps = {warp for _, warp, _ in warps_of(threads, mask)}
    for mbarrier in threads.group.mbarriers.values():
        assert isinstance(mbarrier, CheckedMbarrier)
        for cta, known in enumerate(mbarrier.initialiser):
            if known is not None and known[0] in warps:
                mbarrier.fenced[cta] = True
    yield


def _check_init(threads: CheckedThreads, op: Any, mbarrier: CheckedMbarrier, cta: int, warp: int, by_tma: bool) -> None:
    """A use of an mbarrier comes after its init, and a use by TMA or another CTA after the fence too."""
    known = mbarrier.initialiser[cta]
    if known is None:
        return
    clocks = threads.group.watch.clocks
    if clocks.state[warp, KNOWN, known[0]] < known[1]:
        message = f"{clocks_name(threads, warp)} uses {mbarrier.name}, whose init by {clocks_name(threads, known[0])} "
        threads.group.watch.report(Finding("race", message + "is not ordered before that", (op.location,)))
    elif by_tma and not mbarrier.fenced[cta]:
        message = f"a TMA load completes on {mbarrier.name}, whose init no fence.mbarrier_init has followed"
        threads.group.watch.report(Finding("missing fence", message, (op.location,)))


def clocks_name(threads: CheckedThreads, warp: int) -> str:
    return threads.group.watch.who(warp)


def mbarrier_arrive(threads: CheckedThreads, op: Any, mask: Mask) -> Hook:
    """Arrivals with or without expected bytes."""
    for mbarrier, lanes in _named(threads, op, mask):
        for cta, warp, _ in warps_of(threads, lanes):
            _check_init(threads, op, mbarrier, cta, warp, False)
            mbarrier.gather(cta, threads.group.watch.clocks.release(warp))
    yield


def mbarrier_arrive_remote(threads: CheckedThreads, op: cluster_ops.MbarrierArriveRemote, mask: Mask) -> Hook:
    of_cta = threads.group.watch.clocks.warps_of_cta
    for mbarrier, lanes in _named(threads, op, mask):
        ctas, positions = threads.active_lanes(lanes)
        targets = clusters.targets(threads, ctas, threads.on_active_lanes(op.cta, lanes))
        for cta, lane, target in zip(ctas, positions, targets, strict=True):
            warp = int(cta) * of_cta + (int(lane) + threads.first_thread) // WARP
            _check_init(threads, op, mbarrier, int(target), warp, cta != target)
            mbarrier.gather(int(target), threads.group.watch.clocks.release(warp))
    yield


def cp_async_arrive(threads: CheckedThreads, op: async_copy_ops.CpAsyncMbarrierArrive, mask: Mask) -> Hook:
    """The arrival happens when the thread's copies are done, and tells of them."""
    clocks = threads.group.watch.clocks
    for mbarrier, lanes in _named(threads, op, mask):
        for cta, warp, _ in warps_of(threads, lanes):
            clock = clocks.release(warp)
            clock[KNOWN, clocks.agent(Engine.CP_ASYNC, warp)] = clocks.open_time(Engine.CP_ASYNC, warp)
            mbarrier.gather(cta, clock)
    yield


def mbarrier_wait(threads: CheckedThreads, op: gpu_ops.MbarrierWait, mask: Mask) -> Hook:
    clocks, watch = threads.group.watch.clocks, threads.group.watch
    parity = np.broadcast_to(np.asarray(threads.evaluate(op.parity, mask)), (threads.group.ctas, threads.lanes))
    waits = []
    for mbarrier, lanes in _named(threads, op, mask):
        ctas, positions = threads.active_lanes(lanes)
        wanted = {int(cta): int(parity[cta, lane]) for cta, lane in zip(ctas, positions, strict=True)}
        waits += [(mbarrier, cta, warp, wanted[cta]) for cta, warp, _ in warps_of(threads, lanes)]
    for mbarrier, cta, warp, _ in waits:
        _check_init(threads, op, mbarrier, cta, warp, False)
    yield
    yield
    for mbarrier, cta, warp, bit in waits:
        phase = mbarrier.observed(cta, bit)
        if phase > 0:
            clocks.join(warp, mbarrier.completed[cta][phase])
        if mbarrier.seen.get(warp) == phase:
            message = f"{watch.who(warp)} waits for {mbarrier.name} with parity {bit}, a phase that it has seen already"
            watch.report(Finding("stale wait", message, (op.location,)))
        mbarrier.seen[warp] = phase


def tma_load(threads: CheckedThreads, op: gpu_ops.TmaLoad, mask: Mask) -> Hook:
    for mbarrier, lanes in _named(threads, op, mask):
        for cta, warp, _ in warps_of(threads, lanes):
            _check_init(threads, op, mbarrier, cta, warp, True)
    yield


# Barriers of a CTA, a cluster, a warp; fences ------------------------------------------------------------------------


def bar_sync(threads: CheckedThreads, op: Any, mask: Mask, *, waits: bool = True) -> Hook:
    """bar.sync and bar.red: who takes part knows afterwards what all of them knew when they arrived."""
    watch, group = threads.group.watch, threads.group
    here = [(cta, warp) for cta, warp, _ in warps_of(threads, mask)]
    barrier = group.named_barriers.get(op.id)
    before = {cta: 0 if barrier is None else int(barrier.rounds[cta]) for cta, _ in here}
    for cta, warp in here:
        watch.meetings.gather((op.id, cta), before[cta] + 1, watch.clocks.release(warp))
    yield
    yield
    if waits:
        for cta, warp in here:
            watch.clocks.join(warp, watch.meetings.clock((op.id, cta), before[cta] + 1))


def bar_arrive(threads: CheckedThreads, op: manual_ops.BarArrive, mask: Mask) -> Hook:
    return bar_sync(threads, op, mask, waits=False)


def _meet(threads: CheckedThreads, key: str, mask: Mask) -> None:
    """Every warp's arrival at the barrier of its cluster or grid, in its own count of rounds."""
    watch = threads.group.watch
    for cta, warp, _ in warps_of(threads, mask):
        where = (key, threads.group.cluster_of(cta) if key == "cluster" else 0)
        watch.meetings.gather(where, watch.meetings.next_round(where, warp), watch.clocks.release(warp))


def _met(threads: CheckedThreads, key: str, mask: Mask) -> None:
    watch = threads.group.watch
    for cta, warp, _ in warps_of(threads, mask):
        where = (key, threads.group.cluster_of(cta) if key == "cluster" else 0)
        watch.clocks.join(warp, watch.meetings.clock(where, watch.meetings.round_of(where, warp)))


def cluster_arrive(threads: CheckedThreads, op: cluster_ops.ClusterArrive, mask: Mask) -> Hook:
    _meet(threads, "cluster", mask)
    yield


def cluster_wait(threads: CheckedThreads, op: cluster_ops.ClusterWait, mask: Mask) -> Hook:
    yield
    yield
    _met(threads, "cluster", mask)


def grid_sync(threads: CheckedThreads, op: manual_ops.GridSync, mask: Mask) -> Hook:
    _meet(threads, "grid", mask)
    yield
    yield
    _met(threads, "grid", mask)


def fence_proxy(threads: CheckedThreads, op: gpu_ops.FenceProxyAsync, mask: Mask) -> Hook:
    row = SHARED_FENCED if op.space == "shared" else GLOBAL_FENCED
    for _, warp, _ in warps_of(threads, mask):
        threads.group.watch.clocks.fence(warp, row)
    yield


# Tensor cores ---------------------------------------------------------------------------------------------------------


def wgmma(threads: CheckedThreads, op: tensor_core_ops.Wgmma, mask: Mask) -> Hook:
    watch = threads.group.watch
    clocks = watch.clocks
    group = clocks.open_time(Engine.WGMMA, clocks.warp(0, threads.first_thread))
    count_a, _, count = fragment_elements(op)
    watch.registers.quiet = True
    names = [buffer.storage.name for buffer in (op.accumulator, op.a) if buffer is not None]
    watch.registers.check_fence(threads, op, names)
    for buffer, offset, size, accumulator in (
        (op.accumulator, op.accumulator_offset, count, True), (op.a, op.a_offset, count_a, False)
    ):  # fmt: skip
        if buffer is not None and offset is not None:
            first = int(np.asarray(threads.evaluate(offset, mask)).flat[0])
            watch.registers.launch(
                threads, InFlight(buffer.storage.name, first, first + size - 1, group, accumulator, op)
            )
    yield
    watch.registers.quiet = False


def wgmma_fence(threads: CheckedThreads, op: tensor_core_ops.WgmmaFence, mask: Mask) -> Hook:
    threads.group.watch.registers.fence(threads)
    yield


def wgmma_wait(threads: CheckedThreads, op: tensor_core_ops.WgmmaWaitGroup, mask: Mask) -> Hook:
    watch = threads.group.watch
    watch.registers.quiet = True
    yield
    watch.registers.quiet = False
    committed = int(watch.clocks.committed[Engine.WGMMA][watch.clocks.warp(0, threads.first_thread)])
    watch.registers.land(threads, committed - op.pending)


def matrix_move(threads: CheckedThreads, op: Any, mask: Mask) -> Hook:
    """ldmatrix and stmatrix: rows of 16 bytes."""
    groups = fragments.whole_groups(threads, "a matrix move", mask, WARP)
    rows = matrices._row_addresses(threads, op, groups, mask)
    ctas, warp = np.nonzero(groups)
    spread = np.broadcast_to(ctas[:, None, None], rows.shape).reshape(-1)
    watch = threads.group.watch
    warps = ctas * watch.clocks.warps_of_cta + threads.first_thread // WARP + warp
    actors = watch.generic(np.broadcast_to(warps[:, None, None], rows.shape).reshape(-1), Scope.SHARED)
    is_store = isinstance(op, tensor_core_ops.StoreMatrix)
    same = np.zeros(rows.size, dtype=np.uint8) if is_store else None
    watch.shared_access(op, op.shared.name, spread, rows.reshape(-1), 16, actors, same)
    yield


# Atomics --------------------------------------------------------------------------------------------------------------


def atomic(threads: CheckedThreads, op: Any, mask: Mask) -> Hook:
    """Atomic accesses do not race with each other; acquire and release carry clocks through the place."""
    watch = threads.group.watch
    buffer: Buffer = op.buffer
    lanes_of = op.value.dtype.lanes if isinstance(op, atomic_ops.Atomic) else 1
    ctas, lanes = threads.active_lanes(mask)
    index = np.broadcast_to(np.asarray(threads.evaluate(op.indices[0], mask)), (threads.group.ctas, threads.lanes))
    width = buffer.dtype.itemsize * lanes_of
    offsets = index[ctas, lanes].astype(np.int64) * buffer.dtype.itemsize
    warps = ctas * watch.clocks.warps_of_cta + (lanes + threads.first_thread) // WARP
    in_shared = buffer.scope is Scope.SHARED
    if in_shared:
        offsets = offsets + threads.group.shared.bounds(buffer)[0]
    else:
        offsets = offsets + threads.group.tensor(buffer.storage.name).base
    places = [(buffer.storage.name, int(cta) if in_shared else 0, int(o)) for cta, o in zip(ctas, offsets, strict=True)]
    if op.order in atomic_ops.RELEASING and not isinstance(op, atomic_ops.AtomicLoad):
        for place, warp in dict.fromkeys(zip(places, map(int, warps), strict=True)):
            watch.release_to(place, warp)
    same = None if isinstance(op, atomic_ops.AtomicLoad) else np.zeros(len(offsets), dtype=np.uint8)
    actors = watch.generic(warps, buffer.scope)
    if in_shared:
        watch.shared_access(op, buffer.name, ctas, offsets, width, actors, same, atomic=True)
    else:
        tensor = threads.group.tensor(buffer.storage.name)
        watch.global_access(op, tensor, offsets, width, actors, same, atomic=True)
    yield
    if op.order in atomic_ops.ACQUIRING and not isinstance(op, atomic_ops.AtomicStore):
        for place, warp in dict.fromkeys(zip(places, map(int, warps), strict=True)):
            watch.acquire_from(place, warp)


HOOKS: dict[type, Callable[..., Hook]] = {
    gpu_ops.MbarrierInit: mbarrier_init,
    gpu_ops.FenceMbarrierInit: fence_mbarrier_init,
    gpu_ops.MbarrierArrive: mbarrier_arrive,
    gpu_ops.MbarrierArriveExpectTx: mbarrier_arrive,
    gpu_ops.MbarrierWait: mbarrier_wait,
    gpu_ops.TmaLoad: tma_load,
    gpu_ops.BarSync: bar_sync,
    manual_ops.BarReduce: bar_sync,
    gpu_ops.FenceProxyAsync: fence_proxy,
    manual_ops.BarArrive: bar_arrive,
    manual_ops.GridSync: grid_sync,
    cluster_ops.MbarrierArriveRemote: mbarrier_arrive_remote,
    cluster_ops.ClusterArrive: cluster_arrive,
    cluster_ops.ClusterWait: cluster_wait,
    async_copy_ops.CpAsyncMbarrierArrive: cp_async_arrive,
    tensor_core_ops.Wgmma: wgmma,
    tensor_core_ops.WgmmaFence: wgmma_fence,
    tensor_core_ops.WgmmaWaitGroup: wgmma_wait,
    tensor_core_ops.LoadMatrix: matrix_move,
    tensor_core_ops.StoreMatrix: matrix_move,
    atomic_ops.Atomic: atomic,
    atomic_ops.AtomicLoad: atomic,
    atomic_ops.AtomicStore: atomic,
}

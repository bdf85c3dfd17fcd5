"""What the checker does around the operations on mbarriers."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxtile.ir import async_copy_ops, cluster_ops, gpu_ops
from ptxtile.ir.buffers import Scope
from ptxtile.sim.check.findings import Finding
from ptxtile.sim.check.mbarriers import Arrival, CheckedMbarrier
from ptxtile.sim.check.naming import thread_in_words
from ptxtile.sim.check.shadow import Kind
from ptxtile.sim.masks import Mask
from ptxtile.sim.rules import clusters, mbarriers, tma

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedThreads

Hook = Generator[None, None, None]


def _named(threads: CheckedThreads, op: Any, mask: Mask) -> Iterator[tuple[CheckedMbarrier, Mask]]:
    for mbarrier, lanes in mbarriers.each(threads, op.barrier, op.index, mask):
        assert isinstance(mbarrier, CheckedMbarrier)
        if not isinstance(op, gpu_ops.MbarrierWait) or mbarrier.latest_use is None:
            mbarrier.latest_use = op.location
        yield mbarrier, lanes


def initialise(threads: CheckedThreads, op: gpu_ops.MbarrierInit, mask: Mask) -> Hook:
    """An init is an ordinary write of the barrier's eight bytes."""
    for mbarrier, lanes in _named(threads, op, mask):
        numbers = threads.numbers(lanes)
        ctas = numbers // threads.clocks.stride
        mbarrier.initialiser[ctas] = numbers
        mbarrier.fenced[ctas] = False
        _touch(threads, op, mbarrier, numbers, ctas, is_write=True)
    yield


def _touch(
    threads: CheckedThreads, op: Any, mbarrier: CheckedMbarrier, numbers: np.ndarray, ctas: np.ndarray, *,
    is_write: bool = False,
) -> None:  # fmt: skip
    """Every use touches the barrier's bytes: after the init, and before anything else lies there."""
    storage = op.barrier.storage
    offsets = np.full(len(numbers), threads.group.mbarrier_offset(mbarrier))
    actors = threads.group.watch.generic(numbers, Scope.BARRIER)
    kind = Kind.WRITE if is_write else Kind.ATOMIC_READ
    threads.group.watch.shared_access(
        kind, op, storage.name, ctas, offsets, mbarriers.MBARRIER_BYTES, actors, reads=not is_write
    )


def _touch_own(threads: CheckedThreads, op: Any, mbarrier: CheckedMbarrier, lanes: Mask) -> None:
    numbers = threads.numbers(lanes)
    _touch(threads, op, mbarrier, numbers, numbers // threads.clocks.stride)


def fence_init(threads: CheckedThreads, op: Any, mask: Mask) -> Hook:
    """The inits of these threads are visible to TMA and to the cluster."""
    numbers = threads.numbers(mask)
    for mbarrier in threads.group.checked_mbarriers():
        mbarrier.fenced |= np.isin(mbarrier.initialiser, numbers)
    yield


def _check_fence(threads: CheckedThreads, op: Any, mbarrier: CheckedMbarrier, ctas: np.ndarray, who: str) -> None:
    if not mbarrier.fenced[ctas].all() and (mbarrier.initialiser[ctas] >= 0).all():
        message = f"{who} {mbarrier.name}, whose init no fence.mbarrier_init has followed"
        hint = "fence.mbarrier_init is missing between the init and the barrier behind it"
        threads.group.watch.report(Finding("missing fence", message, (op.location,), hint))


def arrive(threads: CheckedThreads, op: Any, mask: Mask, *, copies: bool = False) -> Hook:
    """Arrivals with or without expected bytes; ``copies``: of cp.async."""
    for mbarrier, lanes in _named(threads, op, mask):
        _touch_own(threads, op, mbarrier, lanes)
        announced = [Arrival(cta, threads.shuffled(numbers), op, copies) for cta, numbers in threads.warps(lanes)]
        mbarrier.coming = threads.in_some_order(announced)
    yield


def arrive_after_copies(threads: CheckedThreads, op: async_copy_ops.CpAsyncMbarrierArrive, mask: Mask) -> Hook:
    """The arrival happens when the thread's copies are done, and tells of them."""
    return arrive(threads, op, mask, copies=True)


def arrive_remotely(threads: CheckedThreads, op: cluster_ops.MbarrierArriveRemote, mask: Mask) -> Hook:
    watch = threads.group.watch
    for mbarrier, lanes in _named(threads, op, mask):
        numbers = threads.numbers(lanes)
        ctas = numbers // threads.clocks.stride
        targets = clusters.targets(threads, ctas, threads.on_active_lanes(op.cta, lanes))
        _touch(threads, op, mbarrier, numbers, targets)
        _check_fence(threads, op, mbarrier, targets[targets != ctas], "another CTA arrives on")
        for cta, target, number in zip(ctas.tolist(), targets.tolist(), numbers.tolist(), strict=True):
            if cta != target:
                watch.outstanding.add_signal(op, target, number)
        announced = [Arrival(int(target), numbers[index : index + 1], op) for index, target in enumerate(targets)]
        mbarrier.coming = threads.in_some_order(announced)
    yield


def expect(threads: CheckedThreads, op: Any, mask: Mask) -> Hook:
    for mbarrier, lanes in _named(threads, op, mask):
        _touch_own(threads, op, mbarrier, lanes)
    yield


def load(threads: CheckedThreads, op: gpu_ops.TmaLoad, mask: Mask) -> Hook:
    """A TMA load completes on the barrier of each CTA that it reaches."""
    for mbarrier, lanes in _named(threads, op, mask):
        numbers = threads.numbers(lanes)
        box, ctas = tma._destinations(threads, op, lanes)
        _touch(threads, op, mbarrier, numbers[box], ctas)
        _check_fence(threads, op, mbarrier, ctas, "a TMA load completes on")
        box_bytes = threads.group.tensor_map(op.tensor_map).box_bytes
        mbarrier.loading += np.bincount(ctas, minlength=threads.group.ctas) * box_bytes
    yield


def wait(threads: CheckedThreads, op: gpu_ops.MbarrierWait, mask: Mask) -> Hook:
    clocks = threads.clocks
    parity = np.broadcast_to(np.asarray(threads.evaluate(op.parity, mask)), (threads.group.ctas, threads.lanes))
    waits = []
    for mbarrier, lanes in _named(threads, op, mask):
        _touch_own(threads, op, mbarrier, lanes)
        for cta, numbers in threads.warps(lanes):
            wanted = parity[cta, numbers % clocks.stride - threads.first_thread]
            waits += [(mbarrier, cta, numbers[wanted == bit], int(bit)) for bit in np.unique(wanted)]
    yield
    yield
    for mbarrier, cta, numbers, bit in waits:
        phase = mbarrier.observed(cta, bit)
        if phase > 0:
            clocks.join(numbers, mbarrier.completed[cta][phase])
        stale = numbers[mbarrier.seen[numbers] == phase]
        if len(stale) and mbarrier.is_under_way(cta):
            _report_stale(threads, op, mbarrier, cta, int(stale[0]), bit)
        mbarrier.note_waits(numbers, phase, op.location)


def _report_stale(
    threads: CheckedThreads, op: Any, mbarrier: CheckedMbarrier, cta: int, thread: int, parity: int
) -> None:  # fmt: skip
    watch, phase = threads.group.watch, int(mbarrier.phase[cta])
    message = (
        f"{thread_in_words(watch, thread)} waits for {mbarrier.name} with parity {parity} and goes on at once: it has "
        f"seen that phase complete before, and phase {phase} (parity {phase & 1}) is under way"
    )
    hint = "the parity has to change each time that the barrier has gone through a phase"
    watch.report(Finding("stale wait", message, tuple(dict.fromkeys((op.location, mbarrier.places[thread]))), hint))

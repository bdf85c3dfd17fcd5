"""What the checker does around wgmma, the groups of asynchronous work, matrix moves and atomic operations."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxtile.ir import async_copy_ops, atomic_ops, gpu_ops, tensor_core_ops
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr
from ptxtile.ir.tensor_core_ops import fragment_elements
from ptxtile.sim import fragments
from ptxtile.sim.check.clocks import WARP, WARPGROUP, Engine
from ptxtile.sim.check.mbarrier_hooks import Hook
from ptxtile.sim.check.registers import InFlight
from ptxtile.sim.check.shadow import Kind
from ptxtile.sim.masks import Mask
from ptxtile.sim.rules import matrices

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedThreads

# wgmma ----------------------------------------------------------------------------------------------------------------


def wgmma(threads: CheckedThreads, op: tensor_core_ops.Wgmma, mask: Mask) -> Hook:
    """Judges the registers; what it reads of shared memory is judged as its effect is issued."""
    registers, clocks = threads.group.watch.registers, threads.clocks
    agent = clocks.agents_of(Engine.WGMMA, threads.numbers(mask)[:1])
    group = int(clocks.time_now[agent][0])
    count_a, _, count = fragment_elements(op)
    registers.check_fence(threads, op, [buffer.storage.name for buffer in (op.accumulator, op.a) if buffer is not None])
    for buffer, offset, size, accumulator in (
        (op.accumulator, op.accumulator_offset, count, True), (op.a, op.a_offset, count_a, False)
    ):  # fmt: skip
        if buffer is not None and offset is not None:
            first = _first(threads, offset, mask)
            if not accumulator or np.asarray(threads.evaluate(op.accumulate, mask)).all():
                registers.check_written(threads, buffer, first, first + size - 1)
            if accumulator:
                registers.mark_written(threads, buffer, first, first + size - 1, mask)
            flight = InFlight(buffer.storage.name, first, first + size - 1, group, accumulator, op)
            registers.launch(threads, buffer, flight)
    registers.quiet = True
    yield
    registers.quiet = False


def wgmma_fence(threads: CheckedThreads, op: tensor_core_ops.WgmmaFence, mask: Mask) -> Hook:
    threads.group.watch.registers.fence(threads)
    yield


def wgmma_commit(threads: CheckedThreads, op: tensor_core_ops.WgmmaCommitGroup, mask: Mask) -> Hook:
    clocks = threads.clocks
    yield
    clocks.commit(np.unique(clocks.agents_of(Engine.WGMMA, threads.numbers(mask))))


def wgmma_wait(threads: CheckedThreads, op: tensor_core_ops.WgmmaWaitGroup, mask: Mask) -> Hook:
    registers, clocks = threads.group.watch.registers, threads.clocks
    numbers = threads.numbers(mask)
    registers.quiet = True
    yield
    registers.quiet = False
    clocks.wait_for_wgmma(numbers, op.pending)
    agent = clocks.agents_of(Engine.WGMMA, numbers[::WARPGROUP])
    registers.land(threads, int(clocks.finished(agent, op.pending).min()))


# Groups of threads ----------------------------------------------------------------------------------------------------


def _agents(threads: CheckedThreads, engines: tuple[Engine, ...], mask: Mask) -> list[np.ndarray]:
    """Of each of ``engines`` that the kernel has, the agents of the active threads."""
    numbers = threads.numbers(mask)
    return [threads.clocks.agents_of(engine, numbers) for engine in engines if engine in threads.clocks.first]


def bulk_commit(threads: CheckedThreads, op: gpu_ops.BulkCommitGroup, mask: Mask) -> Hook:
    yield
    for agents in _agents(threads, (Engine.BULK_READ, Engine.BULK_WRITE), mask):
        threads.clocks.commit(agents)


def bulk_wait(threads: CheckedThreads, op: gpu_ops.BulkWaitGroup, mask: Mask) -> Hook:
    yield
    yield
    for agents in _agents(threads, (Engine.BULK_READ,) if op.read else (Engine.BULK_READ, Engine.BULK_WRITE), mask):
        threads.clocks.wait(agents, op.pending)


def copy_commit(threads: CheckedThreads, op: async_copy_ops.CpAsyncCommitGroup, mask: Mask) -> Hook:
    yield
    for agents in _agents(threads, (Engine.CP_ASYNC,), mask):
        threads.clocks.commit(agents)


def copy_wait(threads: CheckedThreads, op: async_copy_ops.CpAsyncWaitGroup, mask: Mask) -> Hook:
    yield
    yield
    for agents in _agents(threads, (Engine.CP_ASYNC,), mask):
        threads.clocks.wait(agents, op.pending)


def _first(threads: CheckedThreads, offset: Expr, mask: Mask) -> int:
    """A register's number, which is the same in all threads."""
    value = threads.evaluate(offset, mask)
    return value if isinstance(value, int) else int(np.asarray(value).flat[0])


# Matrices and atomic operations ---------------------------------------------------------------------------------------


def matrix_move(threads: CheckedThreads, op: Any, mask: Mask) -> Hook:
    """ldmatrix and stmatrix: rows of 16 bytes, each accessed by the thread that gives its address."""
    shared, watch, registers = threads.group.shared, threads.group.watch, threads.group.watch.registers
    is_store = isinstance(op, tensor_core_ops.StoreMatrix)
    buffer, offset = (op.source, op.source_offset) if is_store else (op.destination, op.destination_offset)
    first = _first(threads, offset, mask)
    last = first + tensor_core_ops.matrix_elements(op) - 1
    registers.touch(threads, buffer, first, last, writing=not is_store)
    if is_store:
        registers.use(threads, buffer, first, last, mask)
        threads.report_undefined(f"stores to {op.shared.name}", mask)
    rows = shared.observer = _Rows()
    registers.quiet = True
    yield
    registers.quiet, shared.observer = False, None
    numbers = threads.numbers(mask).reshape(-1, WARP)[:, : 8 * op.count].reshape(-1)  # whole warps
    spread = numbers // watch.clocks.stride
    actors = watch.generic(numbers, Scope.SHARED)
    kind = Kind.WRITE if is_store else Kind.READ
    watch.shared_access(
        kind, op, op.shared.storage.name, spread, rows.offsets.reshape(-1), 16, actors, reads=not is_store
    )
    if not is_store:
        registers.mark_written(threads, buffer, first, last, mask)


class _Rows:
    """Observes where the rows of a matrix lie."""

    offsets: np.ndarray

    def access(self, kind: str, proxy: str, buffer: Any, offsets: np.ndarray, width: int, mask: Mask) -> None:
        self.offsets = offsets


def move_without_numbers(threads: CheckedThreads, op: Any, mask: Mask) -> None:
    matrices._row_addresses(threads, op, fragments.whole_groups(threads, "a matrix move", mask, WARP), mask)


def multiply_without_numbers(threads: CheckedThreads, op: tensor_core_ops.MmaSync, mask: Mask) -> None:
    fragments.whole_groups(threads, "mma.sync", mask, WARP)


def mma_sync(threads: CheckedThreads, op: tensor_core_ops.MmaSync, mask: Mask) -> Hook:
    """A row of an operand that nobody has written does no harm to the others, so only whole registers count."""
    registers = threads.group.watch.registers
    counts = fragment_elements(op)
    parts = ((op.a, op.a_offset), (op.b, op.b_offset), (op.accumulator, op.accumulator_offset))
    for (buffer, offset), count in zip(parts, counts, strict=True):
        first = _first(threads, offset, mask)
        registers.touch(threads, buffer, first, first + count - 1, writing=buffer is op.accumulator)
        registers.check_written(threads, buffer, first, first + count - 1)
    registers.mark_written(threads, op.accumulator, first, first + counts[2] - 1, mask)
    registers.quiet = True
    yield
    registers.quiet = False


def atomic(threads: CheckedThreads, op: Any, mask: Mask) -> Hook:
    """Atomic accesses do not race with each other; acquire and release carry clocks through the place."""
    watch, buffer = threads.group.watch, op.buffer
    numbers = threads.numbers(mask)
    ctas = numbers // watch.clocks.stride
    offsets, width = _atomic_places(threads, op, ctas, mask)
    in_shared = buffer.scope is Scope.SHARED
    kind = Kind.ATOMIC_READ if isinstance(op, atomic_ops.AtomicLoad) else Kind.ATOMIC_WRITE
    reads = isinstance(op, atomic_ops.AtomicLoad) or (isinstance(op, atomic_ops.Atomic) and _uses_old_value(op))
    actors = watch.generic(numbers, buffer.scope)
    if in_shared:
        watch.shared_access(kind, op, buffer.storage.name, ctas, offsets, width, actors, reads=reads)
    else:
        tensor = threads.group.tensor(buffer.storage.name)
        watch.global_access(kind, op, tensor, offsets, width, actors, reads=reads)
    places = [(buffer.storage.name, cta if in_shared else 0, offset) for cta, offset in zip(ctas, offsets, strict=True)]
    together: dict[Hashable, list[int]] = {}
    for place, thread in zip(places, numbers.tolist(), strict=True):
        together.setdefault(place, []).append(thread)
    for place, some in together.items():
        if op.order in atomic_ops.RELEASING and not isinstance(op, atomic_ops.AtomicLoad):
            watch.release_to(place, np.array(some), goes_on=isinstance(op, atomic_ops.Atomic))
        elif isinstance(op, atomic_ops.AtomicStore):
            watch.forget_place(place)
    yield
    threads.report_undefined(f"gives to {buffer.name}", mask)
    if op.order in atomic_ops.ACQUIRING and not isinstance(op, atomic_ops.AtomicStore):
        for place, some in together.items():
            watch.acquire_from(place, np.array(some))


def _uses_old_value(op: atomic_ops.Atomic) -> bool:
    return op.operator != "exchange" or op.result is not None


def _atomic_places(threads: CheckedThreads, op: Any, ctas: np.ndarray, mask: Mask) -> tuple[np.ndarray, int]:
    """Byte offsets of the active lanes' accesses, in shared memory or in the tensor's storage, and their width."""
    buffer: Buffer = op.buffer
    lanes = op.value.dtype.lanes if isinstance(op, atomic_ops.Atomic) else 1
    offsets = threads.on_active_lanes(op.indices[0], mask) * buffer.dtype.itemsize
    if buffer.scope is Scope.SHARED:
        return offsets + threads.group.shared.bounds(buffer)[0], buffer.dtype.itemsize * lanes
    return offsets + threads.group.tensor(buffer.storage.name).base, buffer.dtype.itemsize * lanes

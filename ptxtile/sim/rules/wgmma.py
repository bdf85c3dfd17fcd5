"""wgmma: warpgroup-level multiplication, asynchronous (PTX ISA 9.7.15).

Products of one instruction are summed in float32 (exactly for integers, whose sums stay below 2²⁴), in the order of
NumPy's matrix product; the sum is added to the accumulator and rounded to its type. The card keeps fewer bits of float8
sums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.tensor_core_ops import Wgmma, WgmmaCommitGroup, WgmmaFence, WgmmaWaitGroup, fragment_elements
from ptxtile.ir.types import DType
from ptxtile.sim import fragments
from ptxtile.sim.async_effects import AsyncEffect, Touch
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.dtypes import from_memory, memory_dtype
from ptxtile.sim.masks import Mask
from ptxtile.sim.matrix_descriptors import decode

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

WARPGROUP = fragments.WARPGROUP
ENGINE = "wgmma"
CORE_ROW = 16
"""Bytes of a row of a core matrix."""


class _SharedOperand:
    """An operand in shared memory: the addresses of its elements, [warpgroup, row, k]."""

    def __init__(
        self, threads: Threads, buffer: Buffer, descriptors: np.ndarray, dtype: DType, shape: tuple[int, int],
        transposed: bool, ctas: np.ndarray,
    ) -> None:  # fmt: skip
        self.threads, self.buffer, self.dtype, self.ctas = threads, buffer, dtype, ctas
        self.itemsize = dtype.itemsize
        distinct, which = np.unique(descriptors, return_inverse=True)
        tables = [decode(int(bits)).addresses(*shape, self.itemsize, transposed=transposed) for bits in distinct]
        self.addresses = np.stack(tables)[which.reshape(-1)]
        lowest, highest = threads.group.shared.bounds(buffer)
        first, last = int(self.addresses.min()), int(self.addresses.max()) + self.itemsize
        if first < lowest or last > highest:
            raise SimulationError(
                f"a descriptor of wgmma points outside of {buffer.name}",
                expected=f"bytes {lowest} to {highest - 1} of shared memory",
                got=f"bytes {first} to {last - 1}",
            )

    def touch(self) -> Touch:
        """In whole rows of core matrices, 16 bytes each (PTX ISA 9.7.15.5.1.2); no swizzle divides those."""
        rows = self.addresses.reshape(len(self.addresses), -1)
        starts = rows[:, rows[0] % CORE_ROW == 0]
        if starts.size * CORE_ROW != rows.size * self.itemsize or (starts % CORE_ROW).any():
            return Touch(self.threads.group.shared, False, self.buffer.storage.name, self.ctas, rows, self.itemsize)
        return Touch(self.threads.group.shared, False, self.buffer.storage.name, self.ctas, starts, CORE_ROW)

    def read(self) -> np.ndarray:
        """[warpgroup, row, k] as numbers."""
        shared = self.threads.group.shared
        if shared.observer is not None:
            shared.observer.access("read", "async", self.buffer, self.addresses, self.itemsize, None)
        units = shared.data.view(memory_dtype(self.dtype)).reshape(-1)
        positions = self.ctas[:, None, None] * (shared.row // self.itemsize) + self.addresses // self.itemsize
        return fragments.numbers(from_memory(units.take(positions), self.dtype), self.dtype)


def multiply(threads: Threads, op: Wgmma, mask: Mask) -> None:
    groups = fragments.whole_groups(threads, "wgmma", mask, WARPGROUP)
    ctas = np.nonzero(groups)[0]

    def uniform(expression: Expr, what: str) -> np.ndarray:
        return fragments.uniform_in_groups(threads, expression, mask, groups, WARPGROUP, what)

    b = _SharedOperand(threads, op.shared_b, uniform(op.descriptor_b, "a descriptor"), op.dtype_b, (op.n, op.k),
                       op.transpose_b, ctas)  # fmt: skip
    keeps = uniform(op.accumulate, "accumulate")[:, None, None]
    a = _operand_a(threads, op, mask, groups, ctas)
    place = threads.evaluate(op.accumulator_offset, mask)

    def read() -> np.ndarray:
        return np.matmul(a.read(), b.read().swapaxes(1, 2))

    def write(product: np.ndarray) -> None:
        rows, columns = fragments.warpgroup_accumulator(op.n)
        count = fragment_elements(op)[2]
        values = fragments.elements_at(threads, op.accumulator, place, count, mask)
        values = values.reshape(*groups.shape, WARPGROUP, count).copy()
        before = values[groups]
        kept = np.where(keeps, before, np.zeros((), before.dtype))
        values[groups] = fragments.accumulated(kept, product[:, rows, columns], op.dtype_accumulator)
        whole = values.reshape(threads.group.ctas, threads.lanes, count)
        fragments.store_elements_at(threads, op.accumulator, place, whole, mask)

    def touches() -> list[Touch]:
        return [operand.touch() for operand in (a, b) if isinstance(operand, _SharedOperand)]

    threads.group.effects.issue(threads, AsyncEffect(ENGINE, read, write, lambda: None, touches), mask)


class _RegisterOperand:
    """A in registers, which are read as late as shared memory: they have to stay as they are until the wait."""

    def __init__(self, threads: Threads, op: Wgmma, mask: Mask, groups: np.ndarray) -> None:
        assert op.a is not None and op.a_offset is not None
        self.threads, self.buffer, self.dtype, self.k = threads, op.a, op.dtype_a, op.k
        self.mask, self.groups = mask, groups
        self.count = fragment_elements(op)[0]
        self.index = threads.evaluate(op.a_offset, mask)

    def read(self) -> np.ndarray:
        """[warpgroup, row, k] as numbers."""
        values = fragments.elements_at(self.threads, self.buffer, self.index, self.count, self.mask)
        held = values.reshape(*self.groups.shape, WARPGROUP, self.count)[self.groups]
        matrix = np.zeros((len(held), 64, self.k), dtype=np.float32)
        rows, columns = fragments.warpgroup_operand_a(self.k, self.dtype.bits)
        matrix[:, rows, columns] = fragments.numbers(held, self.dtype)
        return matrix


def _operand_a(
    threads: Threads, op: Wgmma, mask: Mask, groups: np.ndarray, ctas: np.ndarray
) -> _SharedOperand | _RegisterOperand:
    if op.shared_a is not None and op.descriptor_a is not None:
        descriptors = fragments.uniform_in_groups(threads, op.descriptor_a, mask, groups, WARPGROUP, "a descriptor")
        return _SharedOperand(threads, op.shared_a, descriptors, op.dtype_a, (64, op.k), op.transpose_a, ctas)
    return _RegisterOperand(threads, op, mask, groups)


def fence(threads: Threads, op: WgmmaFence, mask: Mask) -> None:
    fragments.whole_groups(threads, "wgmma.fence", mask, WARPGROUP)


def commit(threads: Threads, op: WgmmaCommitGroup, mask: Mask) -> None:
    fragments.whole_groups(threads, "wgmma.commit_group", mask, WARPGROUP)
    threads.group.effects.commit_group(threads, ENGINE, mask)


def wait(threads: Threads, op: WgmmaWaitGroup, mask: Mask) -> Wait | None:
    fragments.whole_groups(threads, "wgmma.wait_group", mask, WARPGROUP)
    return threads.group.effects.wait_group(threads, ENGINE, op.pending, mask)

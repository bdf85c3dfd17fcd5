"""Warp-level matrices: ldmatrix, stmatrix (PTX ISA 9.7.14.5.15, 16) and mma.sync (9.7.14.5.14).

mma.sync sums the products of one instruction in float32 (float64 for float64; exactly for integers), adds the
accumulator and rounds to its type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.tensor_core_ops import LoadMatrix, MmaSync, StoreMatrix, fragment_elements, matrix_elements
from ptxtile.ir.types import DType
from ptxtile.sim import fragments
from ptxtile.sim.dtypes import as_array, from_memory, memory_dtype, to_memory
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

WARP = fragments.WARP
ROW_BYTES = 16
_HALF = np.arange(8)


def _row_addresses(threads: Threads, op: LoadMatrix | StoreMatrix, groups: np.ndarray, mask: Mask) -> np.ndarray:
    """[warp that runs, matrix, row]: byte offsets of the rows in shared memory."""
    shared = threads.group.shared
    lowest, highest = shared.bounds(op.shared)
    offset = as_array(threads.evaluate(op.offset, mask), op.offset.dtype).astype(np.int64)
    spread = np.broadcast_to(offset, (threads.group.ctas, threads.lanes)).reshape(*groups.shape, WARP)[groups]
    places = lowest + spread[:, : 8 * op.count] * op.shared.dtype.itemsize
    for wrong, expected in (
        ((places < lowest) | (places + ROW_BYTES > highest), f"bytes {lowest} to {highest - 1}"),
        (places % ROW_BYTES != 0, f"a multiple of {ROW_BYTES} bytes"),
    ):
        if wrong.any():
            raise SimulationError(
                f"a row of a matrix in {op.shared.name} has an impossible address",
                expected=expected,
                got=f"byte {int(places[wrong][0])} of shared memory",
            )
    if shared.observer is not None:
        kind = "read" if isinstance(op, LoadMatrix) else "write"
        shared.observer.access(kind, "generic", op.shared, places, ROW_BYTES, None)
    return places.reshape(-1, op.count, 8)


def _positions(threads: Threads, groups: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """[warp, matrix, row, column]: positions of the 16-bit elements in all of the group's shared memory."""
    shared = threads.group.shared
    start = np.nonzero(groups)[0][:, None, None] * shared.row + rows
    return start[..., None] // 2 + _HALF


def _ownership(transposed: bool) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of the two 16-bit elements of each thread, [thread, element]."""
    thread, element = np.arange(WARP)[:, None], np.arange(2)[None, :]
    row, column = np.broadcast_to(thread // 4, (WARP, 2)), 2 * (thread % 4) + element
    return (column, row) if transposed else (row, column)


def load(threads: Threads, op: LoadMatrix, mask: Mask) -> None:
    groups = fragments.whole_groups(threads, "ldmatrix", mask, WARP)
    positions = _positions(threads, groups, _row_addresses(threads, op, groups, mask))
    matrices = threads.group.shared.data.view(np.uint16).reshape(-1).take(positions)
    row, column = _ownership(op.transposed)
    pieces = np.ascontiguousarray(matrices[:, :, row, column].swapaxes(1, 2))  # [warp, thread, matrix, element]
    held = from_memory(pieces.view(memory_dtype(op.destination.dtype)), op.destination.dtype)
    count = matrix_elements(op)
    values = np.zeros((*groups.shape, WARP, count), dtype=held.dtype)
    values[groups] = held.reshape(-1, WARP, count)
    whole = values.reshape(threads.group.ctas, threads.lanes, count)
    fragments.store_elements(threads, op.destination, op.destination_offset, whole, mask)


def store(threads: Threads, op: StoreMatrix, mask: Mask) -> None:
    groups = fragments.whole_groups(threads, "stmatrix", mask, WARP)
    positions = _positions(threads, groups, _row_addresses(threads, op, groups, mask))
    count = matrix_elements(op)
    values = fragments.load_elements(threads, op.source, op.source_offset, count, mask)
    held = values.reshape(*groups.shape, WARP, count)[groups]
    pieces = np.ascontiguousarray(to_memory(held, op.source.dtype)).view(np.uint16).reshape(-1, WARP, op.count, 2)
    row, column = _ownership(op.transposed)
    matrices = np.zeros((len(pieces), op.count, 8, 8), dtype=np.uint16)
    matrices[:, :, row, column] = pieces.swapaxes(1, 2)
    threads.group.shared.data.view(np.uint16).reshape(-1)[positions] = matrices


def multiply(threads: Threads, op: MmaSync, mask: Mask) -> None:
    groups = fragments.whole_groups(threads, "mma.sync", mask, WARP)
    count_a, count_b, count = fragment_elements(op)
    places_a = fragments.operand_a(op.m, op.k, op.dtype_a.bits)
    places_b = fragments.operand_b(op.k, op.n, op.dtype_b.bits)
    a = _matrix(threads, op.a, op.a_offset, op.dtype_a, count_a, (op.m, op.k), places_a, groups, mask)
    b = _matrix(threads, op.b, op.b_offset, op.dtype_b, count_b, (op.k, op.n), places_b, groups, mask)
    rows, columns = fragments.accumulator(op.m, op.n)
    values = fragments.load_elements(threads, op.accumulator, op.accumulator_offset, count, mask)
    values = values.reshape(*groups.shape, WARP, count).copy()
    values[groups] = fragments.accumulated(values[groups], np.matmul(a, b)[:, rows, columns], op.dtype_accumulator)
    whole = values.reshape(threads.group.ctas, threads.lanes, count)
    fragments.store_elements(threads, op.accumulator, op.accumulator_offset, whole, mask)


def _matrix(
    threads: Threads, buffer: Buffer, offset: Expr, dtype: DType, count: int, shape: tuple[int, int],
    places: fragments.Places, groups: np.ndarray, mask: Mask,
) -> np.ndarray:  # fmt: skip
    """[warp that runs, row, column]: an operand as numbers, from the threads' fragments."""
    values = fragments.load_elements(threads, buffer, offset, count, mask)
    found = fragments.numbers(values.reshape(*groups.shape, WARP, count)[groups], dtype)
    matrix = np.zeros((len(found), *shape), dtype=found.dtype)
    matrix[:, places[0], places[1]] = found
    return matrix

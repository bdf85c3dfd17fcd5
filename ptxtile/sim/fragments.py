"""Fragments: which thread holds which element of a matrix (PTX ISA 9.7.14.5 and 9.7.15.5.1.1, the figures and formulas
of each shape), and moving them between registers and NumPy matrices.

Here g is a thread's number in its warp divided by 4 and q the remainder, as groupID and threadID_in_group in the
manual.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.types import DType
from ptxtile.sim.dtypes import as_array, decode_small, held_dtype, is_coded, round_float
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

WARP, WARPGROUP = 32, 128
Places = tuple[np.ndarray, np.ndarray]
"""Row and column of each element of each thread: two arrays [thread, element]."""


@cache
def operand_a(m: int, k: int, bits: int) -> Places:
    """A of mma.sync: elements of one 32-bit register are neighbours in a row; registers alternate between the rows g
    and g + 8 and then go on along the columns. A 64-bit element is a register of its own."""
    packed = max(1, 32 // bits)
    thread, element = np.arange(WARP)[:, None], np.arange(m * k // WARP)[None, :]
    register, inside = element // packed, element % packed
    tall = m // 8
    row = thread // 4 + 8 * (register % tall)
    return row, packed * (thread % 4) + inside + 4 * packed * (register // tall)


@cache
def operand_b(k: int, n: int, bits: int) -> Places:
    """B of mma.sync: the same with rows and columns exchanged, one column g for each thread."""
    packed = max(1, 32 // bits)
    thread, element = np.arange(WARP)[:, None], np.arange(k * n // WARP)[None, :]
    row = packed * (thread % 4) + element % packed + 4 * packed * (element // packed)
    return row, np.broadcast_to(thread // 4, row.shape)


@cache
def accumulator(m: int, n: int) -> Places:
    """C and D of mma.sync: pairs of neighbours in row g, then in row g + 8."""
    thread, element = np.arange(WARP)[:, None], np.arange(m * n // WARP)[None, :]
    return thread // 4 + 8 * (element // 2), 2 * (thread % 4) + element % 2


@cache
def warpgroup_operand_a(k: int, bits: int) -> Places:
    """A of wgmma from registers: warp w has rows 16·w to 16·w + 15, as A of a 16-row mma.sync (figures 149 to 153)."""
    row, column = operand_a(16, k, bits)
    return np.concatenate([row + 16 * warp for warp in range(4)]), np.concatenate([column] * 4)


@cache
def warpgroup_accumulator(n: int) -> Places:
    """D of wgmma: four elements for each 8 columns, in warp w's rows 16·w + g and 16·w + g + 8 (figure 150)."""
    thread, element = np.arange(WARPGROUP)[:, None], np.arange(n // 2)[None, :]
    row = 16 * (thread // WARP) + thread % WARP // 4 + 8 * (element // 2 % 2)
    return row, 8 * (element // 4) + 2 * (thread % 4) + element % 2


def whole_groups(threads: Threads, name: str, mask: Mask, size: int) -> np.ndarray:
    """[CTA, group]: which groups of ``size`` consecutive threads run the op. SimulationError where only a part does."""
    shape = (threads.group.ctas, threads.lanes)
    if threads.lanes % size or threads.first_thread % size:
        raise SimulationError(
            f"{name} by threads that are not whole groups of {size}",
            expected=f"multiples of {size} threads",
            got=f"threads {threads.thread_range}",
        )
    if mask is None:
        return np.ones((shape[0], shape[1] // size), dtype=bool)
    lanes = np.broadcast_to(mask, shape)
    by_group = lanes.reshape(shape[0], -1, size)
    some, whole = np.asarray(by_group.any(axis=2)), by_group.all(axis=2)
    if (some & ~whole).any():
        cta, group = (int(found[0]) for found in np.nonzero(some & ~whole))
        first = threads.first_thread + group * size
        raise SimulationError(
            f"only some threads of a group run {name}",
            expected=f"threads {first} to {first + size - 1} together",
            got=f"{int(by_group[cta, group].sum())} of them, {threads.describe(cta)}",
        )
    return some


def uniform_in_groups(threads: Threads, expression: Expr, mask: Mask, groups: np.ndarray, size: int, what: str):
    """The value of ``expression`` in each group of ``groups`` that runs, [group]; the same in all of its threads."""
    value = as_array(threads.evaluate(expression, mask), expression.dtype)
    spread = np.broadcast_to(value, (threads.group.ctas, threads.lanes)).reshape(*groups.shape, size)[groups]
    if (spread != spread[:, :1]).any():
        raise SimulationError(f"{what} differs within a group of {size} threads")
    return spread[:, 0]


def load_elements(threads: Threads, buffer: Buffer, offset: Expr, count: int, mask: Mask) -> np.ndarray:
    """[CTA, lane, element]: ``count`` elements of a thread's buffer, in held form."""
    return elements_at(threads, buffer, threads.evaluate(offset, mask), count, mask)


def elements_at(threads: Threads, buffer: Buffer, index: Any, count: int, mask: Mask) -> np.ndarray:
    """:func:`load_elements` from an index that was evaluated before."""
    value = threads.load(buffer, index, buffer.dtype.with_lanes(count), mask)
    value = as_array(value, buffer.dtype)
    if count == 1:
        value = value[..., None]
    return np.broadcast_to(value, (threads.group.ctas, threads.lanes, count))


def store_elements(threads: Threads, buffer: Buffer, offset: Expr, values: np.ndarray, mask: Mask) -> None:
    """The inverse of :func:`load_elements`."""
    store_elements_at(threads, buffer, threads.evaluate(offset, mask), values, mask)


def store_elements_at(threads: Threads, buffer: Buffer, index: Any, values: np.ndarray, mask: Mask) -> None:
    """The inverse of :func:`elements_at`."""
    count = values.shape[-1]
    threads.store(buffer, index, values if count > 1 else values[..., 0], buffer.dtype.with_lanes(count), mask)


def numbers(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Held elements as the numbers that the tensor cores multiply: float32, or float64 for float64. Of a tfloat32 the
    lowest 13 bits are ignored."""
    if dtype.bits == 64:
        return values
    if is_coded(dtype):
        return decode_small(values, dtype)
    single = np.ascontiguousarray(values, dtype=np.float32)
    if dtype.element_name == "tfloat32":
        return (single.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    return single


def accumulated(total: np.ndarray, product: np.ndarray, dtype: DType) -> np.ndarray:
    """Accumulator + product, in held form: one float32 (float64) addition after the sum over k, then rounded to the
    accumulator's type; integers wrap."""
    if dtype.is_integer:
        return (total.astype(np.int64) + product.astype(np.int64)).astype(held_dtype(dtype))
    return round_float(total.astype(product.dtype) + product, dtype)

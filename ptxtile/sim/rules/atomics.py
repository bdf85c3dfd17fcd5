"""Atomic operations: the active lanes one after another, so that each sees what those before it left (PTX ISA, «atom»).

Lanes that meet in one place are carried out in rounds, each lane of a round at a place of its own; places that very
many lanes meet in are accumulated at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxtile.ir.atomic_ops import Atomic, AtomicLoad, AtomicStore
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr
from ptxtile.ir.types import DType
from ptxtile.sim import arithmetic
from ptxtile.sim.dtypes import Value, as_array, from_memory, held_dtype, memory_dtype, to_memory
from ptxtile.sim.masks import Mask
from ptxtile.sim.memory import unit_dtype

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

MOST_ROUNDS = 64
"""More lanes than this in one place are accumulated."""

_ACCUMULATED = {
    "add": np.add, "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "min": np.minimum, "max": np.maximum,
}  # fmt: skip


def operate(threads: Threads, op: Atomic, mask: Mask) -> None:
    dtype, lanes = op.buffer.dtype, op.value.dtype.lanes
    units, places = _places(threads, op, lanes, mask)
    given = _given(threads, op.value, lanes, mask)
    before = np.zeros(len(places), dtype=held_dtype(dtype))
    for chosen in _rounds(places):
        if isinstance(chosen, np.ndarray):
            old = read(units, places[chosen], dtype)
            new = (
                given[chosen]
                if op.operator == "exchange"
                else arithmetic.binary(op.operator, old, given[chosen], dtype)
            )
            before[chosen] = old
            units[places[chosen]] = bits(new, dtype)
        else:
            _accumulate(units, chosen[0], places, given, before, op.operator, dtype)
    if op.result is not None:
        _give(threads, op.result, before.reshape(-1, lanes) if lanes > 1 else before, op.value.dtype, mask)


def load(threads: Threads, op: AtomicLoad, mask: Mask) -> None:
    units, places = _places(threads, op, 1, mask, "read")
    _give(threads, op.result, read(units, places, op.buffer.dtype), op.buffer.dtype, mask)


def store(threads: Threads, op: AtomicStore, mask: Mask) -> None:
    units, places = _places(threads, op, 1, mask)
    units[places] = bits(_given(threads, op.value, 1, mask), op.buffer.dtype)  # of equal places the last lane's stays


def _places(
    threads: Threads, op: Atomic | AtomicLoad | AtomicStore, lanes: int, mask: Mask, verb: str = "written"
) -> tuple[np.ndarray, np.ndarray]:
    """The memory as units of one element, and the unit of each element of each active lane, in the order of the
    lanes."""
    buffer: Buffer = op.buffer
    size = buffer.dtype.itemsize
    index = np.broadcast_to(np.asarray(threads.evaluate(op.indices[0], mask)), (threads.group.ctas, threads.lanes))
    ctas, thread = threads.active_lanes(mask)
    if buffer.scope is Scope.GLOBAL:
        tensor = threads.group.tensor(buffer.storage.name)
        wide = tensor.positions(buffer, index[ctas, thread], size * lanes, None, verb)
        skipped, units = tensor.units(size)
        first = (wide * size * lanes + tensor.units(size * lanes)[0] - skipped) // size
    else:
        shared = threads.group.shared
        offsets = shared.offsets(buffer, index[ctas, thread], size * lanes, None, verb)
        units = shared.data.view(unit_dtype(size)).reshape(-1)
        first = offsets // size + ctas * (shared.row // size)
    return units, (first[:, None] + np.arange(lanes)).reshape(-1)


def _given(threads: Threads, value: Expr, lanes: int, mask: Mask) -> np.ndarray:
    """The value of each element of each active lane."""
    values = as_array(threads.evaluate(value, mask), value.dtype)
    shape = (threads.group.ctas, threads.lanes, *((lanes,) if lanes > 1 else ()))
    return np.broadcast_to(values, shape)[threads.active_lanes(mask)].reshape(-1)


def read(units: np.ndarray, places: Any, dtype: DType) -> np.ndarray:
    """The elements at some places of memory that is given as units of one element."""
    return from_memory(units[places].view(memory_dtype(dtype)), dtype)


def bits(values: Value, dtype: DType) -> np.ndarray:
    """Elements as such units."""
    return np.ascontiguousarray(to_memory(values, dtype)).view(unit_dtype(dtype.itemsize))


def _rounds(places: np.ndarray) -> Iterator[np.ndarray | tuple[np.ndarray]]:
    """Positions whose places differ, round by round; as a tuple the positions of one place that many meet in."""
    order = np.argsort(places, kind="stable")
    sorted_places = places[order]
    starts = np.flatnonzero(np.r_[True, sorted_places[1:] != sorted_places[:-1]])
    counts = np.diff(np.r_[starts, len(places)])
    rank = np.arange(len(places)) - np.repeat(starts, counts)
    crowded = np.repeat(counts > MOST_ROUNDS, counts)
    for number in range(int(rank[~crowded].max()) + 1 if (~crowded).any() else 0):
        yield order[(rank == number) & ~crowded]
    for start, count in zip(starts[counts > MOST_ROUNDS], counts[counts > MOST_ROUNDS], strict=True):
        yield (order[start : start + count],)


def _accumulate(
    units: np.ndarray, chosen: np.ndarray, places: np.ndarray, given: np.ndarray, before: np.ndarray, operator: str,
    dtype: DType,
) -> None:  # fmt: skip
    """All operations on one place. NumPy's accumulate rounds after each step, as the lanes one after another would."""
    place = places[chosen[:1]]
    sequence = np.concatenate([read(units, place, dtype), given[chosen]])
    function: Any = _ACCUMULATED.get(operator)
    signed_zeros = dtype.is_float and operator in ("min", "max")
    if operator == "exchange":
        running = sequence
    elif function is not None and dtype.element_name != "bfloat16" and not signed_zeros:
        running = function.accumulate(sequence, dtype=sequence.dtype)
    else:
        running = sequence.copy()
        for position in range(1, len(running)):
            running[position] = arithmetic.binary(
                operator, running[position - 1 : position], sequence[position : position + 1], dtype
            )[0]
    before[chosen] = running[:-1]
    units[place] = bits(running[-1:], dtype)


def _give(threads: Threads, result: Buffer, values: np.ndarray, dtype: DType, mask: Mask) -> None:
    """Stores one value, or one vector, for each active lane."""
    whole = np.zeros((threads.group.ctas, threads.lanes, *values.shape[1:]), dtype=values.dtype)
    whole[threads.active_lanes(mask)] = values
    threads.store(result, 0, whole, dtype, mask)

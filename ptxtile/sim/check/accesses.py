"""Loads and stores of shared and global memory by one unit of threads, each judged as it happens.

Where in memory the threads of a unit come to is a :class:`Place`. Indices out of the tables (:mod:`.tables`) are the
same arrays each time, so their places are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.types import DType
from ptxtile.sim.check.clocks import GLOBAL_FENCED, SHARED_FENCED, TO_GENERIC, WARP
from ptxtile.sim.check.naming import element_in_words, thread_in_words
from ptxtile.sim.check.shadow import Actors, Kind
from ptxtile.sim.dtypes import Value
from ptxtile.sim.masks import Mask
from ptxtile.sim.memory import GlobalTensor, units_of, value_of

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedThreads

MOST_PLACES = 1 << 13
"""Places that are kept of a unit."""


@dataclass(slots=True)
class Place:
    """Where the active threads of a unit access a buffer: their ``numbers``, ``warps`` (from ``span[0]`` to
    ``span[1]``) and byte ``offsets`` [active thread], of ``width`` bytes each; the ``positions`` of the units of so
    many bytes in shared memory (of all CTAs of the group) or in the tensor. ``row`` [lane]: who is active, None: all.
    ``is_one``: all at one position. ``of``: what the place was made from, so that it stays what it is."""

    tensor: GlobalTensor | None
    numbers: np.ndarray
    warps: np.ndarray
    span: tuple[int, int]
    offsets: np.ndarray
    width: int
    positions: np.ndarray
    row: np.ndarray | None
    is_one: bool
    of: tuple[Any, ...]


def load(threads: CheckedThreads, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> Value:
    place = _place(threads, buffer, index, dtype, mask, "read")
    units = _units(threads, place)
    if place.is_one:
        value = value_of(units[place.positions[:1]].reshape(()), dtype)
    elif place.row is None:
        value = value_of(units.take(place.positions)[None], dtype)
    else:
        spread = np.zeros((1, threads.lanes), dtype=units.dtype)
        spread[0, place.row] = units.take(place.positions)
        value = value_of(spread, dtype)
    _judge(threads, Kind.READ, buffer, place)
    return value


def store(threads: CheckedThreads, buffer: Buffer, index: Value, value: Value, dtype: DType, mask: Mask) -> None:
    place = _place(threads, buffer, index, dtype, mask, "written")
    units, positions = _units(threads, place), place.positions
    given = np.broadcast_to(units_of(value, dtype), (threads.group.ctas, threads.lanes))[threads.cta or 0]
    given = np.ascontiguousarray(given if place.row is None else given[place.row])
    before = _alike(units.take(positions), given)
    units[positions] = given
    _judge(threads, Kind.WRITE, buffer, place, before, _alike(units.take(positions), given))


def _alike(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """[unit]: whether the bytes are the same."""
    if left.dtype.kind == "u":
        return (left == right).view(np.uint8)
    return (left.view(np.uint64) == right.view(np.uint64)).reshape(len(left), -1).all(axis=1).view(np.uint8)


def _units(threads: CheckedThreads, place: Place) -> np.ndarray:
    if place.tensor is not None:
        return place.tensor.units(place.width)[1]
    return threads.group.shared.units(place.width)


def _judge(
    threads: CheckedThreads, kind: Kind, buffer: Buffer, place: Place, before: np.ndarray | None = None,
    after: np.ndarray | None = None,
) -> None:  # fmt: skip
    statement, watch, clocks = threads.statement, threads.group.watch, threads.clocks
    if statement is None:
        return
    tensor, name, number = place.tensor, buffer.storage.name, -1
    if tensor is None:
        shadow, fence, number = watch.shared[threads.cta or 0], SHARED_FENCED, watch.storage_number(name)
    else:
        shadow, fence, name = watch.global_shadows.shadow_of(tensor), GLOBAL_FENCED, tensor.name
        if shadow is None:
            return
    times, strands = clocks.tick[place.warps], clocks.strand_of[place.numbers]
    actors = Actors(place.numbers, times, strands, place.numbers, clocks.state, TO_GENERIC, fence)
    same = None if before is None or after is None else (before, after)
    site = watch.global_shadows.site(statement)
    conflicts = shadow.access_of_threads(kind, place.offsets, place.width, actors, place.span, site, number, same)
    if conflicts:
        watch.tell(conflicts, kind, shadow, statement, name, actors)


# Places ---------------------------------------------------------------------------------------------------------------


def _place(threads: CheckedThreads, buffer: Buffer, index: Value, dtype: DType, mask: Mask, verb: str) -> Place:
    if mask is not threads.everyone or (isinstance(index, np.ndarray) and index.flags.writeable):
        return _make_place(threads, buffer, index, dtype, mask, verb)
    key = (index if isinstance(index, int) else (id(index),), id(buffer), id(dtype))
    known = threads.places.get(key)
    if known is None:
        if len(threads.places) > MOST_PLACES:
            threads.places.clear()
        known = threads.places[key] = _make_place(threads, buffer, index, dtype, mask, verb)
    return known


def _make_place(threads: CheckedThreads, buffer: Buffer, index: Value, dtype: DType, mask: Mask, verb: str) -> Place:
    """SimulationError where it is out of bounds or misaligned."""
    group, cta, width = threads.group, threads.cta or 0, dtype.itemsize
    row = None if mask is threads.everyone else threads.lanes_of(mask)[cta]
    row = None if row is None or row.all() else row
    numbers = threads.numbers(threads.everyone) if row is None else threads.key + np.flatnonzero(row)
    elements = np.asarray(index)
    is_one = elements.size == 1
    spread = np.broadcast_to(elements, (group.ctas, threads.lanes))[cta]
    offsets = (spread if row is None else spread[row]).astype(np.int64)
    bits = buffer.dtype.bits * buffer.dtype.lanes
    offsets = offsets * (bits // 8) if bits % 8 == 0 else offsets * bits // 8
    tensor = None
    if buffer.scope is Scope.SHARED:
        (lowest, highest), address = group.shared.bounds(buffer), 0
        origin, skipped = lowest, -cta * group.shared.row
    else:
        tensor = group.tensor(buffer.storage.name)
        lowest, highest, address = 0, tensor.data.size, tensor.address
        origin, skipped = tensor.base, tensor.units(width)[0]
    offsets += origin
    if (
        int(offsets.min()) < lowest
        or int(offsets.max()) + width > highest
        or (width > 1 and ((offsets + address) & (width - 1)).any())
    ):
        _refuse(threads, buffer, numbers, offsets, (lowest, highest), (origin, address), width, verb)
    positions = (offsets - skipped) // width
    warps = numbers // WARP
    span = int(warps[0]), int(warps[-1])
    return Place(tensor, numbers, warps, span, offsets, width, positions, row, is_one, (index, buffer, dtype))


def _refuse(
    threads: CheckedThreads, buffer: Buffer, numbers: np.ndarray, offsets: np.ndarray, limits: tuple[int, int],
    start: tuple[int, int], width: int, verb: str,
) -> None:  # fmt: skip
    """Which thread does what the hardware does not allow, and to which element. ``start``: the byte of element 0, and
    the address of byte 0."""
    (lowest, highest), (origin, address) = limits, start
    outside = (offsets < lowest) | (offsets + width > highest)
    wrong = outside if outside.any() else ((offsets + address) & (width - 1)) != 0
    chosen = int(np.argmax(wrong))
    threads.group.culprit = thread_in_words(threads.group.watch, int(numbers[chosen]))
    bits = buffer.dtype.bits * buffer.dtype.lanes
    element = (int(offsets[chosen]) - origin) * 8 // bits
    what = element_in_words(threads.group, buffer, element) or f"element {element}"
    if outside.any():
        first, last = (lowest - origin) * 8 // bits, (highest - origin) * 8 // bits - 1
        raise SimulationError(
            f"{buffer.name} is {verb} out of bounds", expected=f"elements {first} to {last}",
            got=f"{what} ({width} bytes), element {element}",
        )  # fmt: skip
    raise SimulationError(
        f"{buffer.name} is {verb} misaligned", expected=f"an address that is a multiple of {width} bytes",
        got=f"{what}, address {int(offsets[chosen]) + address:#x}",
    )  # fmt: skip

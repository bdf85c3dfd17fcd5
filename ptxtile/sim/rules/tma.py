"""Bulk tensor copies: cp.async.bulk.tensor in both directions (PTX ISA 9.7.9.27.1.2), cp.reduce.async.bulk.tensor
(9.7.9.27.1.3), prefetch.tensormap."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.expressions import as_expr
from ptxtile.ir.gpu_ops import PrefetchTensorMap, TmaLoad, TmaStore
from ptxtile.ir.types import DType
from ptxtile.records import record
from ptxtile.sim import arithmetic
from ptxtile.sim.async_effects import AsyncEffect, Touch
from ptxtile.sim.masks import Mask
from ptxtile.sim.memory import unit_dtype
from ptxtile.sim.rules import atomics, clusters, mbarriers
from ptxtile.sim.tensor_maps import CHUNK, SHARED_ALIGNMENT, TensorMap

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

MOST_CTAS = 16
"""Of a cluster: the bits of a multicast mask (PTX ISA 9.7.9.27.1.2)."""


@record
class _Boxes:
    """The boxes that the active threads copy. ``ctas``, ``shared`` (byte offsets) and each coordinate are [box]."""

    tensor_map: TensorMap
    ctas: np.ndarray
    coordinates: list[np.ndarray]
    shared: np.ndarray

    @property
    def width(self) -> int:
        return self.tensor_map.unit_width(self.coordinates)


def _boxes(threads: Threads, op: TmaLoad | TmaStore, mask: Mask) -> _Boxes:
    tensor_map = threads.group.tensor_map(op.tensor_map)
    if len(op.coordinates) != tensor_map.rank:
        raise SimulationError(
            f"a copy through tensor map {op.tensor_map} with a wrong number of coordinates",
            expected=str(tensor_map.rank),
            got=str(len(op.coordinates)),
        )
    ctas, _ = threads.active_lanes(mask)
    coordinates = [threads.on_active_lanes(coordinate, mask) for coordinate in op.coordinates]
    innermost = coordinates[0] * tensor_map.itemsize
    if (innermost % CHUNK).any():
        raise SimulationError(
            f"a box of tensor map {op.tensor_map} starts inside a 16-byte unit: an illegal instruction on the card",
            expected=f"an innermost coordinate that is a multiple of {CHUNK // tensor_map.itemsize}",
            got=str(int(coordinates[0][innermost % CHUNK != 0][0])),
        )
    if isinstance(op, TmaStore) and any((coordinate < 0).any() for coordinate in coordinates):
        raise SimulationError(
            f"a store through tensor map {op.tensor_map} starts before the tensor: an illegal instruction on the card",
            expected="coordinates of at least 0",
            got=str(tuple(int(coordinate.min()) for coordinate in coordinates)),
        )
    lowest, highest = threads.group.shared.bounds(op.shared)
    element = op.shared.dtype.bits * op.shared.dtype.lanes
    shared = lowest + threads.on_active_lanes(op.offset, mask) * element // 8
    if (shared < lowest).any() or (shared + tensor_map.box_bytes > highest).any():
        raise SimulationError(
            f"a box of tensor map {op.tensor_map} lies outside {op.shared.name}",
            expected=f"{tensor_map.box_bytes} bytes within bytes {lowest} to {highest - 1} of shared memory",
            got=f"bytes from {int(shared[(shared < lowest) | (shared + tensor_map.box_bytes > highest)][0])} on",
        )
    alignment = SHARED_ALIGNMENT[tensor_map.swizzle]
    if (shared % alignment).any():
        raise SimulationError(
            f"the shared address of a copy through tensor map {op.tensor_map} is misaligned",
            expected=f"a multiple of {alignment} bytes (swizzle {tensor_map.swizzle})",
            got=f"byte {int(shared[shared % alignment != 0][0])}",
        )
    return _Boxes(tensor_map, ctas, coordinates, shared)


def _read_global(boxes: _Boxes) -> np.ndarray:
    """[box, unit]; zero out of bounds."""
    width, tensor = boxes.width, boxes.tensor_map.tensor
    offsets, inside = boxes.tensor_map.global_offsets(boxes.coordinates, width)
    skipped, units = tensor.units(width)
    data = units.take((offsets - skipped) // width)
    if inside is not None:
        data[~inside] = np.zeros((), dtype=data.dtype)
    if tensor.observer is not None:
        tensor.observer.access("read", "async", tensor.name, offsets, width, inside)
    return data


def _write_global(boxes: _Boxes, data: np.ndarray) -> None:
    width, tensor = boxes.width, boxes.tensor_map.tensor
    offsets, inside = boxes.tensor_map.global_offsets(boxes.coordinates, width)
    skipped, units = tensor.units(width)
    positions = (offsets - skipped) // width
    if tensor.observer is not None:
        tensor.observer.access("write", "async", tensor.name, offsets, width, inside)
    if inside is None:
        units[positions] = data
    else:
        units[positions[inside]] = data[inside]


def _combine_global(boxes: _Boxes, data: np.ndarray, operator: str, dtype: DType) -> None:
    """Combines one box after another with what lies in memory, element by element, in the arithmetic of the atomic
    operations."""
    width, tensor = boxes.tensor_map.itemsize, boxes.tensor_map.tensor
    offsets, inside = boxes.tensor_map.global_offsets(boxes.coordinates, width)
    skipped, units = tensor.units(width)
    positions = (offsets - skipped) // width
    if tensor.observer is not None:
        tensor.observer.access("write", "async", tensor.name, offsets, width, inside)
    given = np.ascontiguousarray(data).view(unit_dtype(width)).reshape(positions.shape)
    for box in range(len(positions)):
        here = slice(None) if inside is None else inside[box]
        place = positions[box][here]
        combined = arithmetic.binary(
            operator, atomics.read(units, place, dtype), atomics.read(given[box], here, dtype), dtype
        )
        units[place] = atomics.bits(combined, dtype)


def _shared_units(threads: Threads, op: TmaLoad | TmaStore, boxes: _Boxes, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The flat units of the group's shared memory, and the positions [box, unit] of the boxes in it."""
    shared, width = threads.group.shared, boxes.width
    offsets = boxes.tensor_map.shared_offsets(boxes.shared, width)
    if shared.observer is not None:
        shared.observer.access(kind, "async", op.shared, offsets, width, None)
    positions = boxes.ctas[:, None] * (shared.row // width) + offsets // width
    return shared.data.view(unit_dtype(width)).reshape(-1), positions


def _global_touch(boxes: _Boxes, is_write: bool, *, atomic: bool = False) -> Touch:
    tensor = boxes.tensor_map.tensor
    offsets, inside = boxes.tensor_map.global_offsets(boxes.coordinates, boxes.width)
    return Touch(tensor, is_write, tensor.name, boxes.ctas, offsets, boxes.width, inside, atomic=atomic)


def _shared_touch(
    threads: Threads, op: TmaLoad | TmaStore, boxes: _Boxes, is_write: bool,
    signals: tuple[mbarriers.Mbarrier, ...] = (),
) -> Touch:  # fmt: skip
    offsets = boxes.tensor_map.shared_offsets(boxes.shared, boxes.width)
    name = op.shared.storage.name
    return Touch(threads.group.shared, is_write, name, boxes.ctas, offsets, boxes.width, signals=signals)


def _destinations(threads: Threads, op: TmaLoad, mask: Mask) -> tuple[np.ndarray, np.ndarray]:
    """(box, CTA) of each copy of the active lanes' boxes: one of each, or one for each CTA of the multicast mask."""
    ctas, _ = threads.active_lanes(mask)
    if op.multicast is None:
        return np.arange(len(ctas)), ctas
    masks = threads.on_active_lanes(as_expr(op.multicast), mask)
    box, rank = np.nonzero(masks[:, None] >> np.arange(MOST_CTAS) & 1)
    return box, clusters.targets(threads, ctas[box], rank)


def load(threads: Threads, op: TmaLoad, mask: Mask) -> None:
    boxes = _boxes(threads, op, mask)
    completions, signalled = [], {}
    for mbarrier, lanes in mbarriers.each(threads, op.barrier, op.index, mask):
        reached = _destinations(threads, op, lanes)[1]
        counts = np.bincount(reached, minlength=threads.group.ctas)
        mbarrier.require_initialised(counts > 0, "used by a TMA load")
        completions.append((mbarrier, counts * boxes.tensor_map.box_bytes))
        signalled |= {int(cta): mbarrier for cta in reached}
    box, ctas = _destinations(threads, op, mask)
    copies = replace(boxes, ctas=ctas, shared=boxes.shared[box])

    def touches() -> list[Touch]:
        signals = tuple(signalled[int(cta)] for cta in copies.ctas)
        own = tuple(signals[int(np.argmax(box == number))] for number in range(len(boxes.ctas)))
        return [
            replace(_global_touch(boxes, False), signals=own),
            replace(_shared_touch(threads, op, copies, True, signals), issuers=box),
        ]

    def write(data: np.ndarray) -> None:
        units, positions = _shared_units(threads, op, copies, "write")
        units[positions] = data[box]

    def complete() -> None:
        for mbarrier, completed in completions:
            mbarriers.complete_transactions(mbarrier, completed)

    effect = AsyncEffect("tma_load", lambda: _read_global(boxes), write, complete, touches)
    threads.group.effects.issue(threads, effect, mask)


def store(threads: Threads, op: TmaStore, mask: Mask) -> None:
    boxes = _boxes(threads, op, mask)

    def read() -> np.ndarray:
        units, positions = _shared_units(threads, op, boxes, "read")
        return units.take(positions)

    def write(data: np.ndarray) -> None:
        if op.operator:
            _combine_global(boxes, data, op.operator, op.shared.dtype)
        else:
            _write_global(boxes, data)

    def touches() -> list[Touch]:
        return [_shared_touch(threads, op, boxes, False), _global_touch(boxes, True, atomic=bool(op.operator))]

    effect = AsyncEffect("tma_store", read, write, lambda: None, touches)
    threads.group.effects.issue(threads, effect, mask)


def prefetch(threads: Threads, op: PrefetchTensorMap, mask: Mask) -> None:
    threads.group.tensor_map(op.tensor_map)

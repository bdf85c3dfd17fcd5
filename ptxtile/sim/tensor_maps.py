"""Tensor maps as the TMA engine sees them: a box of a tensor as units of bytes, in global and in shared memory.

The rules are those of cuTensorMapEncodeTiled (CUDA driver API, «Tensor Map Object Management») and of the swizzling
modes (PTX ISA 5.5.6, «Swizzling modes»): the 16-byte chunk index of a shared address (bits 4 to 6) is XORed with bits 7
to 9 for 128 bytes, bits 4 and 5 with 7 and 8 for 64 bytes, bit 4 with bit 7 for 32 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.types import parse_dtype
from ptxtile.launch_record import TensorMapRecord, evaluate_size
from ptxtile.sim.memory import GlobalTensor

CHUNK = 16
_CHUNK_MASK = {0: 0, 32: 1, 64: 3, 128: 7}
SHARED_ALIGNMENT = {0: 128, 32: 256, 64: 512, 128: 1024}
"""Bytes after which the swizzle pattern repeats; without one, the 128 bytes that every bulk tensor copy asks for."""


class TensorMap:
    """A tensor map with the sizes of one launch. ``strides`` in bytes, one for each dimension, innermost first."""

    def __init__(self, record: TensorMapRecord, tensor: GlobalTensor, symbols: Mapping[str, int]) -> None:
        dtype = parse_dtype(record.dtype)
        if dtype.bits % 8:
            raise SimulationError(f"tensor map {record.name}: {dtype} is not supported by the simulator")
        self.name = record.name
        self.tensor = tensor
        self.itemsize = dtype.bits // 8
        self.dimensions = tuple(evaluate_size(size, symbols) for size in record.dimensions)
        self.strides = (self.itemsize, *(evaluate_size(size, symbols) for size in record.strides))
        self.box = record.box
        self.swizzle = record.swizzle
        self.start = tensor.base + record.offset
        self.box_bytes = prod(self.box) * self.itemsize
        self._units: dict[int, list[np.ndarray]] = {}
        self._check()

    @property
    def rank(self) -> int:
        return len(self.dimensions)

    def _require(self, holds: bool, rule: str, got: object) -> None:
        if not holds:
            raise SimulationError(f"tensor map {self.name} is one that the driver refuses", expected=rule, got=str(got))

    def _check(self) -> None:
        self._require(1 <= self.rank <= 5, "rank 1 to 5", self.rank)
        self._require(len(self.strides) == self.rank == len(self.box), "a stride and a box size a dimension", self.box)
        address = self.tensor.address + self.start
        self._require(address % CHUNK == 0, "a base address that is a multiple of 16", hex(address))
        for size in self.dimensions:
            self._require(1 <= size <= 1 << 32, "dimensions of 1 to 2^32 elements", self.dimensions)
        for stride in self.strides[1:]:
            legal = 0 <= stride < 1 << 40 and stride % CHUNK == 0
            self._require(legal, "strides that are multiples of 16", self.strides[1:])
        for size in self.box:
            self._require(1 <= size <= 256, "box sizes of 1 to 256", self.box)
        inner = self.box[0] * self.itemsize
        self._require(inner % CHUNK == 0, "an inner box of a multiple of 16 bytes", f"{inner} bytes")
        self._require(self.swizzle in _CHUNK_MASK, "swizzle 0, 32, 64 or 128", self.swizzle)
        self._require(not self.swizzle or inner <= self.swizzle, f"an inner box of ≤ {self.swizzle} bytes", inner)
        if self.swizzle and inner < self.swizzle:
            # The driver takes it, but the manuals leave open where the rows of such a box lie.
            raise SimulationError(
                f"tensor map {self.name} has an inner box smaller than its swizzle",
                expected=f"{self.swizzle} bytes",
                got=f"{inner} bytes",
            )
        last = self.start + sum((n - 1) * d for n, d in zip(self.dimensions, self.strides, strict=True)) + self.itemsize
        if self.start < 0 or last > self.tensor.data.size:
            raise SimulationError(
                f"tensor map {self.name} reaches outside of {self.tensor.name}",
                expected=f"bytes within the tensor's storage of {self.tensor.data.size}",
                got=f"bytes {self.start} to {last - 1}",
            )

    def unit_width(self, coordinates: list[np.ndarray]) -> int:
        """16 bytes where no such chunk of the boxes at ``coordinates`` crosses the tensor's edge, else one element."""
        first = coordinates[0] * self.itemsize
        row = self.dimensions[0] * self.itemsize
        inside = (first >= 0) & (first + self.box[0] * self.itemsize <= row)
        whole = (first % CHUNK == 0).all() and (row % CHUNK == 0 or inside.all())
        return CHUNK if whole else self.itemsize

    def unit_positions(self, width: int) -> list[np.ndarray]:
        """For each dimension, the position (in elements) of each unit of the box, in the order of shared memory."""
        found = self._units.get(width)
        if found is None:
            counts = (self.box[0] * self.itemsize // width, *self.box[1:])
            linear, found = np.arange(prod(counts)), []
            for count in counts:
                found.append(linear % count)
                linear = linear // count
            found[0] = found[0] * (width // self.itemsize)
            self._units[width] = found
        return found

    def global_offsets(self, coordinates: list[np.ndarray], width: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Byte offsets into the tensor's storage, [box, unit], and which of them are in bounds (None: all)."""
        units = self.unit_positions(width)
        starts, steps = np.int64(self.start), np.int64(0)
        inside: np.ndarray | None = None
        axes = zip(coordinates, units, self.strides, self.dimensions, self.box, strict=True)
        for start, step, stride, size, box in axes:
            starts = starts + start * stride
            steps = steps + step * stride
            if ((start < 0) | (start + box > size)).any():
                position = start[:, None] + step[None, :]
                within = (position >= 0) & (position < size)
                inside = within if inside is None else inside & within
        offsets = np.asarray(starts)[:, None] + np.asarray(steps)[None, :]
        return (offsets, None) if inside is None else (np.where(inside, offsets, self.start), inside)

    def shared_offsets(self, starts: np.ndarray, width: int) -> np.ndarray:
        """Byte offsets in the CTA's shared memory of the units of boxes that start at ``starts``: [box, unit]."""
        linear = starts[:, None] + np.arange(self.box_bytes // width)[None, :] * width
        return linear ^ (((linear >> 7) & _CHUNK_MASK[self.swizzle]) << 4)

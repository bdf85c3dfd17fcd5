"""Global and shared memory as bytes, with every access checked for bounds and alignment.

Accesses gather and scatter whole aligned units of 1, 2, 4, 8, 16… bytes. An *observer* (:class:`Observer`) sees each
access with its byte offsets; none is set in the plain mode.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.types import DType
from ptxtile.sim.dtypes import Value, from_memory, memory_dtype, to_memory
from ptxtile.sim.masks import Mask, active

if TYPE_CHECKING:
    import torch

SHARED_POISON = 0xFF
"""Every byte of shared memory before a kernel starts: NaN in the float formats, −1 in the integer ones."""

_UNITS = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.uint32), 8: np.dtype(np.uint64)}
_UNITS[16] = np.dtype(np.complex128)  # only moved, never computed with: NumPy's one portable type of 16 bytes


class Observer(Protocol):
    """What a checker sees. ``kind``: ``read`` or ``write``; ``proxy``: ``generic`` or ``async``; ``offsets``: byte
    offsets of the accesses (into the tensor's storage, or into the CTA's shared memory), of ``width`` bytes each, on
    ``mask``'s lanes."""

    def access(
        self, kind: str, proxy: str, buffer: Buffer | str, offsets: np.ndarray, width: int, mask: Mask
    ) -> None: ...


def unit_dtype(width: int) -> np.dtype:
    """The NumPy dtype that moves ``width`` bytes at once."""
    return _UNITS.get(width) or np.dtype((np.void, width))


def _byte_offsets(buffer: Buffer, index: Value) -> np.ndarray:
    """Element offsets of the buffer's dtype → byte offsets (int64)."""
    bits = buffer.dtype.bits * buffer.dtype.lanes
    elements = np.asarray(index).astype(np.int64, copy=False)
    return elements * (bits // 8) if bits % 8 == 0 else elements * bits // 8


def units_of(value: Value, dtype: DType) -> np.ndarray:
    """A value as an array of memory units, without the axis of the lanes."""
    stored = to_memory(value, dtype)
    if dtype.lanes == 1:
        return stored.view(unit_dtype(dtype.itemsize))
    return np.ascontiguousarray(stored).view(unit_dtype(dtype.itemsize))[..., 0]


def value_of(units: np.ndarray, dtype: DType) -> np.ndarray:
    """The inverse of :func:`units_of`."""
    if dtype.lanes == 1:
        return from_memory(units.view(memory_dtype(dtype)), dtype)
    return from_memory(units[..., None].view(memory_dtype(dtype)), dtype)


def _check_bounds(
    buffer: Buffer, offsets: np.ndarray, origin: int, limits: tuple[int, int], width: int, verb: str
) -> None:
    """``offsets`` (of active lanes) must lie in [lowest, highest − width]; ``origin`` is the byte of element 0."""
    lowest, highest = limits
    first, last = int(offsets.min()), int(offsets.max())
    if first < lowest or last + width > highest:
        wrong = first if first < lowest else last
        bits = buffer.dtype.bits * buffer.dtype.lanes
        raise SimulationError(
            f"{buffer.name} is {verb} out of bounds",
            expected=f"elements {(lowest - origin) * 8 // bits} to {(highest - origin) * 8 // bits - 1}",
            got=f"element {(wrong - origin) * 8 // bits} ({width} bytes)",
        )


def _check_alignment(name: str, addresses: np.ndarray, width: int, verb: str) -> None:
    if width > 1 and (addresses & (width - 1)).any():
        wrong = int(addresses[(addresses & (width - 1)) != 0].flat[0])
        raise SimulationError(
            f"{name} is {verb} misaligned",
            expected=f"an address that is a multiple of {width} bytes",
            got=f"address {wrong:#x}",
        )


class GlobalTensor:
    """One tensor of the caller's: the bytes of its whole storage, reached from its first element."""

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        import torch

        storage = tensor.untyped_storage()
        self.name = name
        whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
        self.data: np.ndarray = whole.numpy()
        self.address = storage.data_ptr()
        self.base = tensor.data_ptr() - self.address if self.data.size else 0
        self.shape, self.strides, self.itemsize = tuple(tensor.shape), tuple(tensor.stride()), tensor.element_size()
        self._words: dict[int, tuple[int, np.ndarray]] = {}
        self.observer: Observer | None = None

    def units(self, width: int) -> tuple[int, np.ndarray]:
        """(bytes before the first whole aligned unit, the units)."""
        found = self._words.get(width)
        if found is None:
            skipped = -self.address % width
            count = max(0, (self.data.size - skipped) // width)
            found = skipped, self.data[skipped : skipped + count * width].view(unit_dtype(width))
            self._words[width] = found
        return found

    def positions(self, buffer: Buffer, index: Value, width: int, mask: Mask, verb: str) -> np.ndarray:
        """Unit positions of an access of ``width`` bytes on the active lanes (flat when there is a mask), checked."""
        offsets = active(mask, _byte_offsets(buffer, index) + self.base)
        _check_bounds(buffer, offsets, self.base, (0, self.data.size), width, verb)
        _check_alignment(self.name, offsets + self.address, width, verb)
        if self.observer is not None:
            kind = "read" if verb == "read" else "write"
            self.observer.access(kind, "generic", buffer, offsets, width, mask)
        return (offsets - self.units(width)[0]) // width

    def load(self, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> Value:
        width = dtype.itemsize
        positions = self.positions(buffer, index, width, mask, "read")
        gathered = self.units(width)[1].take(positions)
        if mask is not None and gathered.size > 1:
            shape = np.broadcast_shapes(mask.shape, np.shape(index))
            spread = np.zeros(shape, dtype=gathered.dtype)
            spread[np.broadcast_to(mask, shape)] = gathered
            gathered = spread
        elif mask is not None:  # one place, or one active lane: the value may stand for every lane
            gathered = gathered.reshape(())
        return value_of(gathered, dtype)

    def store(self, buffer: Buffer, index: Value, value: Value, dtype: DType, mask: Mask) -> None:
        width = dtype.itemsize
        units = units_of(value, dtype)
        shape = np.broadcast_shapes(units.shape, np.shape(index), () if mask is None else mask.shape)
        positions = self.positions(buffer, np.broadcast_to(np.asarray(index), shape), width, mask, "written")
        self.units(width)[1][positions] = active(mask, np.broadcast_to(units, shape))


class SharedMemory:
    """The dynamic shared memory of a group of CTAs, one row of bytes for each; rows are multiples of 1024 bytes, so
    that an offset within a row is aligned as the address on the card is."""

    def __init__(self, ctas: int, size: int) -> None:
        self.ctas = ctas
        self.size = size
        self.row = max(1024, -(-size // 1024) * 1024)
        self.data = np.full((ctas, self.row), SHARED_POISON, dtype=np.uint8)
        self.observer: Observer | None = None
        self._units: dict[int, np.ndarray] = {}

    def units(self, width: int) -> np.ndarray:
        """All rows as one flat array of units of ``width`` bytes."""
        found = self._units.get(width)
        if found is None:
            found = self._units[width] = self.data.reshape(-1).view(unit_dtype(width))
        return found

    def bounds(self, buffer: Buffer) -> tuple[int, int]:
        """First byte and end of the buffer's storage."""
        storage = buffer.storage
        if storage.offset is None or storage.size is None:
            raise SimulationError(f"{storage.name} has no place in shared memory")
        if storage.offset + storage.size > self.size:
            raise SimulationError(
                f"{storage.name} lies outside the kernel's shared memory",
                expected=f"at most {self.size} bytes",
                got=f"bytes {storage.offset} to {storage.offset + storage.size - 1}",
            )
        return storage.offset, storage.offset + storage.size

    def offsets(self, buffer: Buffer, index: Value, width: int, mask: Mask, verb: str) -> np.ndarray:
        """Byte offsets in a row, of the shape of ``index``; checked, and 0 on lanes that are not active."""
        lowest, highest = self.bounds(buffer)
        offsets = _byte_offsets(buffer, index) + lowest
        checked = active(mask, offsets)
        _check_bounds(buffer, checked, lowest, (lowest, highest), width, verb)
        _check_alignment(buffer.name, checked, width, verb)
        if self.observer is not None:
            self.observer.access("read" if verb == "read" else "write", "generic", buffer, offsets, width, mask)
        if mask is None or offsets.size == 1:
            return offsets
        return np.where(mask, offsets, 0)

    def load(self, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> Value:
        width = dtype.itemsize
        positions = self.offsets(buffer, index, width, mask, "read") // width
        units = self.data.view(unit_dtype(width))
        if positions.ndim < 2 or positions.shape[0] == 1:  # the same offsets in every CTA
            return value_of(units.take(positions.reshape(-1), axis=1), dtype)
        return value_of(units.reshape(-1).take(self._flat(positions, width)), dtype)

    def store(self, buffer: Buffer, index: Value, value: Value, dtype: DType, mask: Mask) -> None:
        width = dtype.itemsize
        offsets = self.offsets(buffer, index, width, mask, "written")
        stored = units_of(value, dtype)
        units = self.data.view(unit_dtype(width))
        if mask is None and (offsets.ndim < 2 or offsets.shape[0] == 1) and stored.shape[-1:] != (1,):
            lanes = stored.shape[-1] if stored.ndim and offsets.size == 1 else offsets.size
            units[:, np.broadcast_to(offsets.reshape(-1), lanes) // width] = stored
            return
        shape = np.broadcast_shapes((self.ctas, 1), offsets.shape, stored.shape, () if mask is None else mask.shape)
        positions = np.broadcast_to(self._flat(np.broadcast_to(offsets, shape) // width, width), shape)
        units.reshape(-1)[active(mask, positions)] = active(mask, np.broadcast_to(stored, shape))

    def _flat(self, positions: np.ndarray, width: int) -> np.ndarray:
        """Unit positions within rows → positions in the flat array of all rows."""
        return positions + np.arange(self.ctas)[:, None] * (self.row // width)

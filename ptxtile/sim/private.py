"""Registers and local variables of threads: a value for each element, a Python number while all lanes agree."""

from __future__ import annotations

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.types import DType, uint8
from ptxtile.sim.dtypes import Value, as_array, from_memory, memory_dtype, poison, to_memory
from ptxtile.sim.masks import Mask, active, uniform_integer


class PrivateStorage:
    """Elements of one dtype that each lane has its own of. None stands for an element that nothing was stored to."""

    def __init__(self, name: str, dtype: DType, count: int) -> None:
        self.name = name
        self.dtype = dtype
        self.elements: list[Value | None] = [None] * count

    def get(self, index: int) -> Value:
        value = self.elements[index]
        return poison(self.dtype) if value is None else value

    def put(self, index: int, value: Value, mask: Mask) -> None:
        if mask is not None:
            value = np.where(mask, as_array(value, self.dtype), as_array(self.get(index), self.dtype))
        self.elements[index] = value

    def check(self, lowest: int, highest: int, lanes: int) -> None:
        if lowest < 0 or highest + lanes > len(self.elements):
            raise SimulationError(
                f"{self.name} is accessed out of bounds",
                expected=f"elements 0 to {len(self.elements) - 1}",
                got=f"elements {lowest} to {highest + lanes - 1}",
            )

    def load(self, index: Value, lanes: int, mask: Mask) -> Value:
        position = uniform_integer(index, mask)
        if position is not None:
            self.check(position, position, lanes)
            parts = [self.get(position + lane) for lane in range(lanes)]
        else:
            choices = self._distinct(index, mask, lanes)
            parts = []
            for lane in range(lanes):
                part = as_array(self.get(choices[0] + lane), self.dtype)
                for choice in choices[1:]:
                    part = np.where(index == choice, as_array(self.get(choice + lane), self.dtype), part)
                parts.append(part)
        if lanes == 1:
            return parts[0]
        return np.stack(np.broadcast_arrays(*(as_array(part, self.dtype) for part in parts)), axis=-1)

    def store(self, index: Value, value: Value, lanes: int, mask: Mask) -> None:
        position = uniform_integer(index, mask)
        parts = [value] if lanes == 1 else [value[..., lane] for lane in range(lanes)]
        if position is not None:
            self.check(position, position, lanes)
            for lane, part in enumerate(parts):
                self.put(position + lane, part, mask)
            return
        for choice in self._distinct(index, mask, lanes):
            chosen = (index == choice) if mask is None else (index == choice) & mask
            for lane, part in enumerate(parts):
                self.put(choice + lane, part, chosen)

    def _distinct(self, index: np.ndarray, mask: Mask, lanes: int) -> list[int]:
        choices = [int(choice) for choice in np.unique(active(mask, index))]
        self.check(choices[0], choices[-1], lanes)
        return choices


class PrivateMemory:
    """The private storages of a group of lanes. Those named in ``mixed`` (viewed with several dtypes) are bytes."""

    def __init__(self, mixed: frozenset[str] = frozenset()) -> None:
        self.storages: dict[str, PrivateStorage] = {}
        self.mixed = mixed

    def fork(self) -> PrivateMemory:
        """The same storages; what is allocated from now on is each one's own."""
        forked = PrivateMemory(self.mixed)
        forked.storages = dict(self.storages)
        return forked

    def allocate(self, buffer: Buffer) -> None:
        storage = buffer.storage
        if storage.size is None:
            raise SimulationError(f"{buffer.name} has no size")
        # Four-bit elements pass between registers as whole vectors; each still has its own element here.
        if storage.name in self.mixed:
            self.storages[storage.name] = PrivateStorage(storage.name, uint8, storage.size)
        else:
            count = storage.size * 8 // buffer.dtype.bits
            self.storages[storage.name] = PrivateStorage(storage.name, buffer.dtype.element, count)

    def _storage(self, buffer: Buffer) -> PrivateStorage:
        try:
            return self.storages[buffer.storage.name]
        except KeyError:
            raise SimulationError(f"{buffer.name} is used outside the scope of its Allocate") from None

    def load(self, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> Value:
        storage = self._storage(buffer)
        scale = buffer.dtype.lanes
        if storage.name not in self.mixed:
            return storage.load(index * scale if scale > 1 else index, dtype.lanes, mask)
        width = dtype.itemsize
        raw = storage.load(index * buffer.dtype.itemsize, width, mask)
        raw = as_array(raw, uint8) if width > 1 else as_array(raw, uint8)[..., None]
        values = from_memory(np.ascontiguousarray(raw).view(memory_dtype(dtype)), dtype)
        return values if dtype.lanes > 1 else values[..., 0]

    def store(self, buffer: Buffer, index: Value, value: Value, dtype: DType, mask: Mask) -> None:
        storage = self._storage(buffer)
        scale = buffer.dtype.lanes
        if storage.name not in self.mixed:
            storage.store(index * scale if scale > 1 else index, value, dtype.lanes, mask)
            return
        stored = to_memory(value, dtype)
        raw = np.ascontiguousarray(stored if dtype.lanes > 1 else stored[..., None]).view(np.uint8)
        width = dtype.itemsize
        storage.store(index * buffer.dtype.itemsize, raw if width > 1 else raw[..., 0], width, mask)


PRIVATE_SCOPES = (Scope.REGISTER, Scope.LOCAL)

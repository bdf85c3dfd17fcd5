"""Memory of the reference: bytes with what has been written, and the rules that make a program's meaning unique.

A program is *invalid*, no test of the compiler, when a block reads what another block writes (blocks have no order),
when an iteration of a parallel loop touches what another one writes, or when something is read that was never written.
"""

from __future__ import annotations

import numpy as np

from tests.random_programs.model import Buffer
from tests.random_programs.numbers import STORED, decode, encode, itemsize


class Invalid(Exception):
    """The program has no unique meaning."""


class Storage:
    """``data``: bytes. ``known``: which of them hold a value. ``written``: which the program wrote."""

    def __init__(self, size: int, data: np.ndarray | None = None) -> None:
        self.data = np.zeros(size, np.uint8) if data is None else data
        self.known = np.full(self.data.size, data is not None)
        self.written = np.zeros(self.data.size, bool)
        self.shared_by_blocks = False
        self.forget_blocks()

    def forget_blocks(self) -> None:
        """A launch has ended: everything is ordered before what follows."""
        self.writer = np.full(self.data.size, -1, np.int32)
        self.reader = np.full(self.data.size, -1, np.int32)


class Placed:
    """A buffer in its storage: ``strides`` and ``offset`` in elements."""

    def __init__(self, buffer: Buffer, storage: Storage, strides: tuple[int, ...], offset: int) -> None:
        self.buffer = buffer
        self.storage = storage
        self.strides = strides
        self.offset = offset
        self.dtype = STORED[buffer.dtype]

    def inside(self, indices: tuple[np.ndarray, ...]) -> np.ndarray:
        """Where the indices are in range."""
        result = np.ones((), bool)
        for index, size in zip(indices, self.buffer.shape, strict=True):
            result = result & (index >= 0) & (index < size)
        return result

    def elements(self, indices: tuple[np.ndarray, ...]) -> np.ndarray:
        """Element numbers in the storage."""
        place = np.asarray(self.offset, np.int64)
        for index, stride in zip(indices, self.strides, strict=True):
            place = place + index.astype(np.int64) * stride
        return place


class Memory:
    """All storages during one block; ``iteration`` tells the iterations of a parallel loop apart."""

    def __init__(self) -> None:
        self.placed: dict[str, Placed] = {}
        self.block = 0
        self._log: dict[int, tuple[Storage, list[tuple[bool, np.ndarray, np.ndarray]]]] | None = None

    def begin_parallel(self) -> None:
        self._log = {}

    def end_parallel(self) -> None:
        """Invalid when a byte that one iteration writes is touched by another."""
        log, self._log = self._log, None
        for storage, accesses in (log or {}).values():
            if any(write for write, _, _ in accesses):
                self._check_iterations(storage, accesses)

    def _check_iterations(self, storage: Storage, accesses: list[tuple[bool, np.ndarray, np.ndarray]]) -> None:
        owner = np.full(storage.data.size, -1, np.int64)
        for write, places, iterations in accesses:
            if write:
                owner[places] = iterations
        for write, places, iterations in accesses:
            touched = owner[places]
            if ((touched != -1) & (touched != iterations)).any():
                raise Invalid(f"iterations conflict ({'write' if write else 'read'})")

    def _touch(self, storage: Storage, write: bool, places: np.ndarray, iterations: np.ndarray) -> None:
        if self._log is not None:
            self._log.setdefault(id(storage), (storage, []))[1].append((write, places, iterations))
        if storage.shared_by_blocks:
            others = (storage.writer[places] != -1) & (storage.writer[places] != self.block)
            if write:
                others |= (storage.reader[places] != -1) & (storage.reader[places] != self.block)
            if others.any():
                raise Invalid("blocks conflict")
            if write:
                storage.writer[places] = self.block
            else:
                first = storage.reader[places]
                storage.reader[places] = np.where((first == -1) | (first == self.block), self.block, -2)

    def read(self, name: str, indices: tuple[np.ndarray, ...], active: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Values at ``indices`` where ``active``, 0 out of range."""
        placed = self.placed[name]
        inside = placed.inside(indices) & active
        where = np.where(inside, placed.elements(indices), 0)
        where, inside, number = np.broadcast_arrays(where, inside, number)
        size = placed.dtype.itemsize
        if inside.any():
            places = _bytes(where[inside], size)
            if not placed.storage.known[places].all():
                raise Invalid(f"{name} is read before it is written")
            self._touch(placed.storage, False, places, np.repeat(number[inside], size))
        typed = placed.storage.data.view(placed.dtype)
        raw = np.where(inside, typed[np.where(inside, where, 0)], placed.dtype.type(0)).astype(placed.dtype)
        return decode(raw, placed.buffer.dtype)

    def write(
        self, name: str, indices: tuple[np.ndarray, ...], value: np.ndarray, active: np.ndarray, number: np.ndarray
    ) -> None:
        """Writes ``value`` (of the buffer's dtype) where ``active`` and in range."""
        placed = self.placed[name]
        inside = placed.inside(indices) & active
        raw = encode(value, placed.buffer.dtype)
        where, inside, raw, number = np.broadcast_arrays(placed.elements(indices), inside, raw, number)
        if not inside.any():
            return
        size = placed.dtype.itemsize
        places = _bytes(where[inside], size)
        self._touch(placed.storage, True, places, np.repeat(number[inside], size))
        placed.storage.data.view(placed.dtype)[where[inside]] = raw[inside]
        placed.storage.known[places] = True
        placed.storage.written[places] = True


def _bytes(elements: np.ndarray, size: int) -> np.ndarray:
    return (elements[:, None] * size + np.arange(size)).reshape(-1)


def dense_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def on_chip(buffer: Buffer) -> Placed:
    """A new, unwritten buffer of a block."""
    size = int(np.prod(buffer.shape)) * itemsize(buffer.dtype)
    return Placed(buffer, Storage(size), dense_strides(buffer.shape), 0)

"""The meaning of random programs, carried out by NumPy block after block, each statement for all elements at once."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from tests.random_programs import model as m
from tests.random_programs import numbers
from tests.random_programs.memory import Invalid, Memory, Placed, Storage, dense_strides, on_chip

MOST_STEPS = 60_000
"""Statements carried out before a program is given up as too long."""


class _Break(Exception):
    pass


def run(program: m.Program, storages: Mapping[str, Storage]) -> None:
    """Carries out all kernels on the storages of the tensors, in place. Invalid when the result would not be unique."""
    with np.errstate(all="ignore"):
        steps = [0]
        for kernel in program.kernels:
            for storage in storages.values():
                storage.forget_blocks()
                storage.shared_by_blocks = True
            scalars = {size.name: np.asarray(size.value, np.int32) for size in program.sizes}
            scalars |= {s.name: np.asarray(s.value, numbers.HELD[s.dtype]) for s in program.scalars}
            for scalar in program.scalars:
                if scalar.dtype == "bfloat16":
                    scalars[scalar.name] = numbers.round_to(scalars[scalar.name], "bfloat16")
            host = _Block(Memory(), dict(scalars), steps)
            grid = [int(host.value(size)) for size in kernel.grid]
            order = itertools.product(*(range(size) for size in reversed(grid)))
            for number, position in enumerate(order):
                memory = Memory()
                memory.block = number
                for tensor in program.tensors:
                    storage = storages[tensor.buffer.storage]
                    memory.placed[tensor.buffer.name] = Placed(tensor.buffer, storage, tensor.strides, tensor.offset)
                block = _Block(memory, dict(scalars), steps)
                for name, index in zip(kernel.blocks, reversed(position), strict=True):
                    block.scalars[name] = np.asarray(index, np.int32)
                block.statements(kernel.body)


class _Block:
    """One block. ``scalars``: values by name, arrays over the iterations inside of a parallel loop. ``active``: the
    iterations that the control flow has reached."""

    def __init__(self, memory: Memory, scalars: dict[str, np.ndarray], steps: list[int]) -> None:
        self.memory = memory
        self.scalars = scalars
        self.steps = steps
        self.active: np.ndarray = np.ones((), bool)
        self.number: np.ndarray = np.zeros((), np.int64)
        self.parallel = False

    # ------------------------------------------------------------ statements

    def statements(self, nodes: tuple[m.Statement, ...]) -> None:
        for node in nodes:
            self.steps[0] += 1
            if self.steps[0] > MOST_STEPS:
                raise Invalid("too long")
            self.statement(node)

    def statement(self, node: m.Statement) -> None:
        match node:
            case m.Allocate(buffer):
                self.memory.placed[buffer.name] = on_chip(buffer)
            case m.ViewOf(buffer, source):
                placed = self.memory.placed[source.name]
                offset = placed.offset * placed.dtype.itemsize // numbers.itemsize(buffer.dtype)
                self.memory.placed[buffer.name] = Placed(buffer, placed.storage, dense_strides(buffer.shape), offset)
            case m.Copy():
                self._copy(node)
            case m.Fill(destination, value):
                filled = np.zeros((), numbers.HELD[destination.buffer.dtype])
                if value is not None:
                    filled = self._converted(value, destination.buffer.dtype)
                self.memory.begin_parallel()
                indices, number = self._points(destination)
                self.memory.write(destination.buffer.name, indices, filled, np.ones((), bool), number)
                self.memory.end_parallel()
            case m.Parallel():
                self._parallel(node)
            case m.Store(buffer, indices, value):
                stored = self._converted(value, buffer.dtype)
                where = tuple(self.value(index) for index in indices)
                self.memory.write(buffer.name, where, stored, self.active, self.number)
            case m.Assign(name, value):
                new = self.value(value)
                old = self.scalars.get(name, new)
                self.scalars[name] = np.where(self.active, new, old).astype(new.dtype)
            case m.Loop():
                self._loop(node)
            case m.While(name, stop, body):
                try:
                    while bool(self.scalars[name] < self.value(stop)):
                        self.statements(body)
                        self.scalars[name] = self.scalars[name] + np.int32(1)
                except _Break:
                    pass
            case m.Leave(condition):
                if bool(self.value(condition)):
                    raise _Break
            case m.If(condition, then, otherwise):
                test = self.value(condition)
                outer = self.active
                for branch, mask in ((then, test), (otherwise, ~test)):
                    self.active = outer & mask
                    if self.active.any():
                        self.statements(branch)
                self.active = outer
            case _:
                raise TypeError(node)

    def _points(self, region: m.Region) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
        """The indices of a region's elements in order, and their numbers."""
        count = int(np.prod(region.extents))
        number = np.arange(count)
        positions = np.unravel_index(number, region.extents)
        starts = [int(self.value(start)) for start in region.starts]
        return tuple(p.astype(np.int64) + s for p, s in zip(positions, starts, strict=True)), number

    def _copy(self, node: m.Copy) -> None:
        source, destination = node.source.buffer, node.destination.buffer
        every = np.ones((), bool)
        self.memory.begin_parallel()
        indices, number = self._points(node.source)
        value = self.memory.read(source.name, indices, every, number)
        indices, number = self._points(node.destination)
        converted = numbers.convert(value, source.dtype, destination.dtype)
        self.memory.write(destination.name, indices, converted, every, number)
        self.memory.end_parallel()

    def _parallel(self, node: m.Parallel) -> None:
        shape = node.extents
        for position, (name, extent) in enumerate(zip(node.names, shape, strict=True)):
            axis = [1] * len(shape)
            axis[position] = extent
            self.scalars[name] = np.arange(extent, dtype=np.int32).reshape(axis)
        self.active, self.number = np.ones(shape, bool), np.arange(int(np.prod(shape))).reshape(shape)
        outer = dict(self.scalars)
        self.memory.begin_parallel()
        self.statements(node.body)
        self.memory.end_parallel()
        self.active, self.number = np.ones((), bool), np.zeros((), np.int64)
        self.scalars = outer

    def _loop(self, node: m.Loop) -> None:
        start, stop = self.value(node.start), self.value(node.stop)
        outer = self.active
        starts, stops = np.broadcast_arrays(start, stop)
        longest = max(
            (len(range(int(a), int(b), node.step)) for a, b in zip(starts.flat, stops.flat, strict=True)), default=0
        )
        try:
            for trip in range(longest):
                index = (start + np.int32(trip * node.step)).astype(np.int32)
                self.active = outer & ((index < stop) if node.step > 0 else (index > stop))
                self.scalars[node.name] = index
                self.statements(node.body)
        except _Break:
            pass
        self.active = outer

    # ------------------------------------------------------------ expressions

    def value(self, node: m.Expression) -> np.ndarray:
        """The value in every iteration."""
        match node:
            case m.Number(value, dtype):
                held = np.asarray(value, numbers.HELD[dtype])
                return numbers.round_to(held, dtype) if dtype == "bfloat16" else held
            case m.Name(name):
                return self.scalars[name]
            case m.Read(buffer, indices):
                where = tuple(self.value(index) for index in indices)
                return self.memory.read(buffer.name, where, self.active, self.number)
            case m.Binary(operator, left, right):
                dtype = node.operands
                a, b = (numbers.convert(self.value(side), side.dtype, dtype) for side in (left, right))
                return np.asarray(numbers.binary(operator, a, b, dtype))
            case m.Unary(operator, operand):
                dtype = operand.dtype if operator in ("not", "isnan") else numbers.arithmetic(operand.dtype)
                value = numbers.convert(self.value(operand), operand.dtype, dtype)
                return np.asarray(numbers.unary(operator, value, dtype))
            case m.Cast(operand, dtype):
                return self._converted(operand, dtype)
            case m.Choice(condition, if_true, if_false):
                test = self.value(condition)
                a = numbers.convert(self._under(test, if_true), if_true.dtype, node.dtype)
                b = numbers.convert(self._under(~test, if_false), if_false.dtype, node.dtype)
                return np.where(test, a, b)
            case m.Logical(operator, left, right):
                first = self.value(left)
                second = self._under(first if operator == "and" else ~first, right)
                return first & second if operator == "and" else first | second
        raise TypeError(node)

    def _converted(self, node: m.Expression, dtype: str) -> np.ndarray:
        """The value as ``dtype``. A plain Python float that becomes an integer is truncated and wraps like an int."""
        if isinstance(node, m.Number) and node.dtype == "float32" and dtype in numbers.INTEGERS:
            return np.asarray(int(node.value), np.int64).astype(numbers.HELD[dtype])
        return numbers.convert(self.value(node), node.dtype, dtype)

    def _under(self, condition: np.ndarray, node: m.Expression) -> np.ndarray:
        """The value where ``condition`` holds; elsewhere it is not evaluated."""
        outer, self.active = self.active, self.active & condition
        result = self.value(node)
        self.active = outer
        return result

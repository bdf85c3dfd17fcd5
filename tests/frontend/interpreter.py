"""A direct reading of tile-stage programs, statement by statement, for one thread of each block.

Written from the docstrings of ptxtile.ir alone, and slow: it is what the frontend's tests compare Python with.
"""

from __future__ import annotations

import math
import random
from itertools import product
from typing import Any

import numpy as np

from ptxtile.ir import expressions as e
from ptxtile.ir import statements as s
from ptxtile.ir import tile_ops as t
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.program import Program

NUMPY = {
    "bool": np.bool_,
    **{n: getattr(np, n) for n in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")},
}
NUMPY |= {"uint64": np.uint64, "float16": np.float16, "float32": np.float32, "float64": np.float64}
UNARY = {
    "neg": lambda x: -x, "abs": abs, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "rint": np.rint, "not": lambda x: ~x,
}  # fmt: skip
BINARY = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "floordiv": lambda a, b: a // b, "floormod": lambda a, b: a % b, "min": np.minimum, "max": np.maximum,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
    "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
}  # fmt: skip
COMPARE = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip
CALLS = {"fmod": np.fmod, "pow": np.power, "exp": np.exp, "fma": lambda a, b, c: a * b + c, "tanh": np.tanh}


class Left(Exception):
    """A Break or a Continue on its way to its loop."""

    def __init__(self, goes_on: bool) -> None:
        self.goes_on = goes_on


class Machine:
    """Global tensors by name as NumPy arrays; ``loads`` records every (buffer name, indices) that is read."""

    def __init__(self, tensors: dict[str, np.ndarray], scalars: dict[str, Any], seed: int = 0) -> None:
        self.storages: dict[str, np.ndarray] = {name: tensor for name, tensor in tensors.items()}
        self.scalars = dict(scalars)
        self.vars: dict[str, Any] = {}
        self.loads: list[tuple[str, tuple[int, ...]]] = []
        self.printed: list[Any] = []
        self.random = random.Random(seed)

    # ---------------------------------------------------------------- memory

    def address(self, buffer: Buffer, indices: tuple[int, ...]) -> tuple[np.ndarray, int]:
        flat = self.storages[buffer.storage.name].reshape(-1).view(NUMPY[buffer.dtype.name])
        strides = [self.size(stride) for stride in buffer.strides]
        return flat, int(self.size(buffer.offset)) + sum(i * n for i, n in zip(indices, strides, strict=True))

    def size(self, value: Any) -> int:
        return value if isinstance(value, int) else int(self.value(value))

    def inside(self, buffer: Buffer, indices: tuple[int, ...]) -> bool:
        return all(0 <= i < self.size(n) for i, n in zip(indices, buffer.shape, strict=True))

    # ---------------------------------------------------------------- expressions

    def value(self, node: e.Expr) -> Any:
        if isinstance(node, e.Const):
            return NUMPY[node.dtype.name](node.value)
        if isinstance(node, e.Var):
            return self.vars[node.name] if node.name in self.vars else NUMPY[node.dtype.name](self.scalars[node.name])
        if isinstance(node, e.Binary):
            return self.typed(BINARY[node.operator](self.value(node.left), self.value(node.right)), node)
        if isinstance(node, e.Compare):
            return np.bool_(COMPARE[node.operator](self.value(node.left), self.value(node.right)))
        if isinstance(node, e.Unary):
            return self.typed(UNARY[node.operator](self.value(node.operand)), node)
        if isinstance(node, e.LogicalAnd):
            return np.bool_(self.value(node.left) and self.value(node.right))
        if isinstance(node, e.LogicalOr):
            return np.bool_(self.value(node.left) or self.value(node.right))
        if isinstance(node, e.Select):
            return self.value(node.if_true if self.value(node.condition) else node.if_false)
        if isinstance(node, e.Cast):
            return NUMPY[node.dtype.name](np.asarray(self.value(node.operand)).astype(NUMPY[node.dtype.name]))
        if isinstance(node, e.Bitcast):
            return np.asarray(self.value(node.operand)).view(NUMPY[node.dtype.name])[()]
        if isinstance(node, e.Load):
            indices = tuple(int(self.value(index)) for index in node.indices)
            self.loads.append((node.buffer.name, indices))
            assert self.inside(node.buffer, indices), f"{node.buffer.name}{indices} is out of range"
            flat, address = self.address(node.buffer, indices)
            return flat[address]
        if isinstance(node, e.Call):
            return self.typed(CALLS[node.function](*(self.value(a) for a in node.arguments)), node)
        raise NotImplementedError(type(node))

    def typed(self, value: Any, node: Any) -> Any:
        assert np.asarray(value).dtype == NUMPY[node.dtype.name], (node, np.asarray(value).dtype)
        return value

    # ---------------------------------------------------------------- statements

    def run(self, node: s.Statement) -> None:
        getattr(self, "run_" + type(node).__name__)(node)

    def run_Seq(self, node: s.Seq) -> None:
        for statement in node.statements:
            self.run(statement)

    def run_Let(self, node: s.Let) -> None:
        self.vars[node.var.name] = self.value(node.value)

    def run_Allocate(self, node: s.Allocate) -> None:
        size = math.prod(node.buffer.shape) if node.buffer.shape else 1
        self.storages[node.buffer.storage.name] = np.zeros(size, NUMPY[node.buffer.dtype.name])

    def run_View(self, node: s.View) -> None:
        pass

    def run_Store(self, node: s.Store) -> None:
        value = self.value(node.value)
        indices = tuple(int(self.value(index)) for index in node.indices)
        assert np.asarray(value).dtype == NUMPY[node.buffer.dtype.name]
        assert self.inside(node.buffer, indices), f"{node.buffer.name}{indices} is out of range"
        flat, address = self.address(node.buffer, indices)
        flat[address] = value

    def run_For(self, node: s.For) -> None:
        for i in range(int(self.value(node.start)), int(self.value(node.stop)), node.step):
            self.vars[node.var.name] = NUMPY[node.var.dtype.name](i)
            try:
                self.run(node.body)
            except Left as left:
                if not left.goes_on:
                    break

    def run_While(self, node: s.While) -> None:
        for _ in range(100_000):
            if not self.value(node.condition):
                return
            try:
                self.run(node.body)
            except Left as left:
                if not left.goes_on:
                    return
        raise AssertionError("endless")

    def run_ParallelFor(self, node: s.ParallelFor) -> None:
        points = list(product(*(range(n) for n in node.extents)))
        self.random.shuffle(points)
        for point in points:
            for var, i in zip(node.vars, point, strict=True):
                self.vars[var.name] = np.int32(i)
            self.run(node.body)

    def run_If(self, node: s.If) -> None:
        if self.value(node.condition):
            self.run(node.then)
        elif node.otherwise is not None:
            self.run(node.otherwise)

    def run_Break(self, node: s.Break) -> None:
        raise Left(False)

    def run_Continue(self, node: s.Continue) -> None:
        raise Left(True)

    def run_Print(self, node: t.Print) -> None:
        self.printed.append((node.message, *(self.value(v) for v in node.values)))

    def points(self, region: t.Region) -> list[tuple[int, ...]]:
        starts = [int(self.value(start)) for start in region.starts]
        inner = product(*(range(n) for n in region.extents))
        return [tuple(a + b for a, b in zip(starts, p, strict=True)) for p in inner]

    def run_Copy(self, node: t.Copy) -> None:
        assert node.source.dense_extents == node.destination.dense_extents
        target = NUMPY[node.destination.buffer.dtype.name]
        values = []
        for point in self.points(node.source):
            flat, address = self.address(node.source.buffer, point)
            values.append(target(flat[address]) if self.inside(node.source.buffer, point) else target(0))
        for point, value in zip(self.points(node.destination), values, strict=True):
            if self.inside(node.destination.buffer, point):
                flat, address = self.address(node.destination.buffer, point)
                flat[address] = value

    def run_Fill(self, node: t.Fill) -> None:
        for point in self.points(node.destination):
            flat, address = self.address(node.destination.buffer, point)
            flat[address] = self.value(node.value)


def run(
    program: Program, tensors: dict[str, np.ndarray], scalars: dict[str, Any] | None = None, seed: int = 0
) -> Machine:
    """Runs all kernels, thread 0 of each block; allocations are made and added to ``tensors``."""
    machine = Machine(tensors, scalars or {}, seed)
    for buffer in program.allocations:
        shape = tuple(machine.size(n) for n in buffer.shape)
        tensors[buffer.name] = machine.storages[buffer.name] = np.zeros(shape, NUMPY[buffer.dtype.name])
    with np.errstate(all="ignore"):
        for kernel in program.kernels:
            x, y, z = (machine.size(n) for n in kernel.grid)
            for block in product(range(z), range(y), range(x)):
                for var, index in zip(kernel.block_vars, reversed(block), strict=True):
                    machine.vars[var.name] = np.int32(index)
                machine.vars[kernel.thread.name] = np.int32(0)
                machine.run(kernel.body)
    return machine

"""One thread's program run in plain Python, integers only, with a log of what it touches: the meaning of the
statements, taken from the docstrings of the IR and not from the simulator."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import (
    Binary,
    Broadcast,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    LogicalAnd,
    LogicalOr,
    Select,
    Unary,
    Var,
)
from ptxtile.ir.statements import Allocate, Break, Continue, For, If, Let, Seq, Statement, Store

MEMORY = (Scope.GLOBAL, Scope.SHARED)

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "floormod": operator.mod, "min": min, "max": max, "and": operator.and_, "xor": operator.xor,
}  # fmt: skip
_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
}  # fmt: skip


class Machine:
    """``memory``: by storage name, element values by index. ``aliases``: storage name → the name whose memory it is.
    ``loads`` and ``stores``: each element of memory that was touched, in order."""

    def __init__(self, memory: dict[str, dict[tuple, int]], aliases: dict[str, str] | None = None) -> None:
        self.memory = memory
        self.aliases = aliases or {}
        self.variables: dict[str, Any] = {}
        self.loads: list[tuple[str, tuple]] = []
        self.stores: list[tuple[str, tuple]] = []
        self.widths: list[tuple[str, int]] = []

    def _cells(self, buffer: Buffer) -> dict[tuple, int]:
        name = buffer.storage.name
        return self.memory.setdefault(self.aliases.get(name, name), {})

    def _places(self, buffer: Buffer, indices: tuple[Expr, ...], lanes: int) -> list[tuple]:
        index = tuple(self.value(i) for i in indices)
        return [index] if lanes == 1 else [(*index[:-1], index[-1] + lane) for lane in range(lanes)]

    def value(self, e: Expr) -> Any:
        """An int or bool; a list of as many lanes for a vector."""
        match e:
            case Const(value, _):
                return value
            case Var(name, _):
                return self.variables[name]
            case Binary(name, left, right, _):
                return _BINARY[name](self.value(left), self.value(right))
            case Compare(name, left, right, _):
                return _COMPARISONS[name](self.value(left), self.value(right))
            case LogicalAnd(left, right, _):
                return self.value(left) and self.value(right)
            case LogicalOr(left, right, _):
                return self.value(left) or self.value(right)
            case Unary("not", operand, _):
                return not self.value(operand)
            case Select(condition, if_true, if_false, _):
                return self.value(if_true if self.value(condition) else if_false)
            case Cast(operand, _):
                return self.value(operand)
            case Broadcast(operand, dtype):
                return [self.value(operand)] * dtype.lanes
            case Load(buffer, indices, dtype):
                places = self._places(buffer, indices, dtype.lanes)
                if buffer.scope in MEMORY:
                    self.loads += [(buffer.storage.name, place) for place in places]
                    self.widths.append((buffer.storage.name, dtype.lanes))
                values = [self._cells(buffer).get(place, 0) for place in places]
                return values[0] if dtype.lanes == 1 else values
        raise NotImplementedError(type(e).__name__)

    def run(self, node: Statement) -> None:
        match node:
            case Seq(statements):
                for statement in statements:
                    self.run(statement)
            case Let(var, value):
                self.variables[var.name] = self.value(value)
            case Allocate():
                pass
            case Store(buffer, indices, value):
                lanes = value.dtype.lanes
                places = self._places(buffer, indices, lanes)
                values = self.value(value)
                if buffer.scope in MEMORY:
                    self.stores += [(buffer.storage.name, place) for place in places]
                    self.widths.append((buffer.storage.name, lanes))
                self._cells(buffer).update(zip(places, values if lanes > 1 else [values], strict=True))
            case For(var, start, stop, step, _, body):
                for value in range(self.value(start), self.value(stop), step):
                    self.variables[var.name] = value
                    self.run(body)
            case If(condition, then, otherwise):
                branch = then if self.value(condition) else otherwise
                if branch is not None:
                    self.run(branch)
            case Break() | Continue():
                raise NotImplementedError("the programs that run here leave no loop early")
            case _:
                raise NotImplementedError(type(node).__name__)

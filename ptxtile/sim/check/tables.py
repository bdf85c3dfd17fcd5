"""Tables of what integer expressions are worth: addresses and conditions are mostly functions of the thread, the block
and the variables of loops, and every warp, block and schedule asks for the same ones again.

An expression is *pure* when it reads no memory. Its *sources* are the thread, block variables, and variables of loops
and of what is no expression; scalars that are bound to pure expressions are replaced by theirs. Its value for given
numbers of the sources is worked out once for all threads of a block, and each unit takes its part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ptxtile.ir.expressions import Binary, Cast, Compare, Const, Expr, LogicalAnd, LogicalOr, Select, Unary, Var
from ptxtile.ir.program import Function, Kernel
from ptxtile.ir.rewrite import children, walk
from ptxtile.ir.statements import For, Let
from ptxtile.records import record
from ptxtile.sim.dtypes import Value
from ptxtile.sim.evaluator import Evaluator
from ptxtile.sim.masks import Mask

_PURE = (Binary, Cast, Compare, Const, LogicalAnd, LogicalOr, Select, Unary)
"""Arithmetic on integers is total in the simulator, so that it may be done for threads that are not active."""

MOST_NUMBERS = 1 << 22
"""Numbers that the tables of a launch hold at most; then they begin anew."""


@record
class Pure:
    """An expression of which there is a table, and its sources other than the thread and the launch's parameters."""

    node: Expr
    sources: tuple[str, ...]


class _Definitions(dict[str, Value]):
    """Values of names; those that stand for pure expressions are worked out when they are asked for."""

    def __init__(self, tables: Tables, values: Mapping[str, Value]) -> None:
        super().__init__(values)
        self.tables = tables
        self.worked_out: list[str] = []

    def __missing__(self, name: str) -> Value:
        value = self[name] = self.tables.evaluate(self.tables.definitions[name])
        self.worked_out.append(name)
        return value

    def forget(self) -> None:
        """What depends on the sources."""
        for name in self.worked_out:
            del self[name]
        self.worked_out.clear()


class Tables(Evaluator):
    """Of a kernel in one launch. ``parameters``: the values of the launch's scalars; ``pure``: the outermost pure
    expressions of the kernel by id, and the constants of the device functions."""

    def __init__(self, kernel: Kernel, functions: Iterable[Function], parameters: Mapping[str, Value]) -> None:
        super().__init__()
        fixed = {**parameters, kernel.thread.name: np.arange(kernel.threads, dtype=np.int32)[None, :]}
        self.variables: _Definitions = _Definitions(self, fixed)
        self._constants: dict[int, Value] = {}
        self.definitions: dict[str, Expr] = {}
        self.pure: dict[int, Pure] = {}
        self.numbers = 0
        self._known: dict[tuple[Any, ...], Value] = {}
        self._parts: dict[int, dict[Any, Any]] = {}
        self._places: dict[int, dict[Any, Any]] = {}
        self._sources: dict[str, frozenset[str]] = dict.fromkeys(fixed, frozenset())
        self._sources |= {var.name: frozenset((var.name,)) for var in kernel.block_vars}
        self._collect(kernel.body)
        for function in functions:
            for node in (*walk(function.body), *walk(function.result)):
                if isinstance(node, Const) and node.dtype.lanes == 1:
                    self.pure[id(node)] = Pure(node, ())

    def _collect(self, node: Any) -> None:
        if isinstance(node, Expr):
            sources = self._sources_of(node)
            if sources is not None:
                if not isinstance(node, Var):
                    self.pure[id(node)] = Pure(node, tuple(sorted(sources)))
                return
        if isinstance(node, For):
            self._sources[node.var.name] = frozenset((node.var.name,))
        for child in children(node):
            self._collect(child)
        if isinstance(node, Let):
            sources = self._sources_of(node.value)
            if sources is not None:
                self._sources[node.var.name] = sources
                self.definitions[node.var.name] = node.value

    def _sources_of(self, node: Expr) -> frozenset[str] | None:
        """None for an expression that is not pure."""
        if isinstance(node, Var):
            return self._sources.get(node.name)
        fits = isinstance(node, _PURE) and node.dtype.lanes == 1
        if not fits or (node.dtype.is_float and not isinstance(node, Const)):
            return None
        found: frozenset[str] = frozenset()
        for child in children(node):
            sources = self._sources_of(child)
            if sources is None:
                return None
            found |= sources
        return found

    def part(self, unit: int, first_thread: int) -> tuple[dict[Any, Any], dict[Any, Any]]:
        """What a unit of threads keeps over all blocks: its part of the values, and places made from them."""
        return self._parts.setdefault(first_thread, {}), self._places.setdefault(unit, {})

    def value_of_some(self, key: tuple[Any, ...], pure: Pure, lanes: slice) -> Value:
        """:meth:`value` for some threads. Arrays are not to be written to."""
        value = self.value(key, pure)
        if isinstance(value, np.ndarray):
            value = value[:, lanes] if value.ndim == 2 and value.shape[1] > 1 else value.view()
            value.flags.writeable = False
        return value

    def evaluate(self, node: Expr, mask: Mask = None) -> Value:
        if isinstance(node, Const):
            value = self._constants.get(id(node))
            if value is None:
                value = self._constants[id(node)] = super().evaluate(node, mask)
            return value
        return super().evaluate(node, mask)

    def value(self, key: tuple[Any, ...], pure: Pure) -> Value:
        """For all threads, [1, thread], or a number for all of them alike; ``key``: the expression's id, then the
        numbers of its sources."""
        value = self._known.get(key)
        if value is None:
            self.variables.forget()
            self.variables.update(zip(pure.sources, key[1:], strict=True))
            value = self.evaluate(pure.node)
            self.numbers += value.size if isinstance(value, np.ndarray) else 1
            if self.numbers > MOST_NUMBERS:
                self._known.clear()
                self.numbers = 0
            self._known[key] = value
        return value

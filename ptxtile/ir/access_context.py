"""Where a statement stands, as far as the memory that it touches depends on it: threads, loops, conditions, scalars."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import field
from math import prod

from ptxtile.ir.enumeration import NotEnumerable, evaluate
from ptxtile.ir.expressions import (
    Binary,
    Bitcast,
    Broadcast,
    Call,
    Const,
    Expr,
    Load,
    LogicalAnd,
    LogicalOr,
    Unary,
    Var,
    constant_value,
)
from ptxtile.ir.program import Kernel, Program, ScalarParameter, TensorParameter
from ptxtile.ir.rewrite import contains, copy_with, substitute, walk
from ptxtile.ir.statements import For, Let
from ptxtile.ir.types import bool_, parse_dtype
from ptxtile.records import record

MAXIMUM_INLINED_NODES = 200
"""A Let whose expression is larger than this is kept as a variable of unknown value."""

_NOT_INLINABLE = (Load, Call, Bitcast, Broadcast)


@record
class Axis:
    """A loop around an access: its variable and bounds."""

    name: str
    start: Expr
    stop: Expr
    step: int


class _WithThreads:
    """Keeps what :meth:`Context.active_threads` found: many accesses have one context."""

    __slots__ = ("_active",)

    _active: tuple[int, bool]


@record
class Context(_WithThreads):
    """Where a statement stands: the threads that run it, the loops, conditions and scalar definitions around it.

    ``threads`` counts from ``first_thread``. ``outer``: so many of ``loops`` stay symbolic, the others are enumerated.
    ``repeated``: inside a loop of unknown trip count that is no axis (While). ``uniform``: names of variables with one
    value in the CTA. ``memories``: global storage name → name of the memory it is part of (tensors that may alias
    share one). ``tensor_maps``: name → tensor, box in elements (innermost first), bytes of the box, and what the map's
    coordinates mean, equal for maps that mean the same. ``assumed``:
    conditions that all threads decide alike, which say in which iterations of the loops around the statement runs.
    ``blocks``: block indices of the grid whose number is known.
    """

    thread: str
    first_thread: int
    threads: int
    uniform: frozenset[str]
    memories: Mapping[str, str]
    tensor_maps: Mapping[str, tuple[str, tuple[int, ...], int, Hashable]]
    loops: tuple[Axis, ...] = ()
    outer: int = 0
    conditions: tuple[Expr, ...] = ()
    lets: Mapping[str, Expr] = field(default_factory=dict)
    repeated: bool = False
    assumed: tuple[Expr, ...] = ()
    blocks: Mapping[str, int] = field(default_factory=dict)

    def with_let(self, statement: Let) -> Context:
        value = inlined(statement.value, self)
        if value is None:
            return self
        return copy_with(self, {"lets": {**self.lets, statement.var.name: value}})

    def with_loop(self, statement: For, *, symbolic: bool) -> Context:
        start, stop = (inlined(bound, self) or bound for bound in (statement.start, statement.stop))
        loops = (*self.loops, Axis(statement.var.name, start, stop, statement.step))
        return copy_with(self, {"loops": loops, "outer": len(loops) if symbolic else self.outer})

    def with_condition(self, condition: Expr, holds: bool = True) -> Context:
        value = inlined(condition, self)
        if value is None:
            value = condition  # not evaluable: kept, so that the footprint knows that its mask is incomplete
        if not holds:
            value = Unary("not", value, bool_)
        return copy_with(self, {"conditions": (*self.conditions, *_conjuncts(value))})

    def with_uniform_condition(self, condition: Expr, holds: bool = True) -> Context:
        """Inside a condition that all threads decide alike."""
        value = inlined(condition, self)
        if value is None:
            return self
        value = value if holds else Unary("not", value, bool_)
        return copy_with(self, {"assumed": (*self.assumed, *_conjuncts(value))})

    def for_threads(self, first_thread: int, threads: int) -> Context:
        return copy_with(self, {"first_thread": first_thread, "threads": threads})

    def active_threads(self) -> tuple[int, bool]:
        """The threads that satisfy the conditions (bit t: thread t), and whether no other per-thread condition may
        exclude some of them."""
        found = getattr(self, "_active", None)
        if found is None:
            found = _active_threads(self)
            _remember_active(self, found)
        return found


_remember_active = _WithThreads._active.__set__  # type: ignore[attr-defined]  # a record refuses to be changed


def kernel_context(program: Program, kernel: Kernel) -> Context:
    """The context of ``kernel.body``."""
    memories = {buffer.storage.name: buffer.storage.name for buffer in program.allocations}
    for parameter in program.parameters:
        if isinstance(parameter, TensorParameter):
            group = parameter.alias_group
            memories[parameter.buffer.storage.name] = parameter.name if group is None else f"alias group {group}"
    uniform = {var.name for var in (*program.symbols, *kernel.block_vars)}
    uniform |= {p.name for p in program.parameters if isinstance(p, ScalarParameter)}
    boxes = {
        record.name: (
            record.tensor,
            record.box,
            prod(record.box) * parse_dtype(record.dtype).bits // 8,
            (record.dtype, record.dimensions, record.strides, record.offset),
        )
        for record in program.tensor_maps
    }
    sizes = zip(kernel.block_vars, kernel.grid, strict=True)
    blocks = {var.name: value for var, size in sizes if (value := constant_value(size)) is not None}
    return Context(kernel.thread.name, 0, kernel.threads, frozenset(uniform), memories, boxes, blocks=blocks)


def inlined(expression: Expr, context: Context) -> Expr | None:
    """``expression`` with the scalar definitions of ``context`` filled in; None when it reads memory, calls or is
    large."""
    if isinstance(expression, (Const, Var)):
        return context.lets.get(expression.name, expression) if isinstance(expression, Var) else expression
    if contains(expression, *_NOT_INLINABLE):
        return None
    nodes = list(walk(expression))
    if len(nodes) > MAXIMUM_INLINED_NODES:
        return None
    if not context.lets:
        return expression
    values = {n.name: context.lets[n.name] for n in nodes if isinstance(n, Var) and n.name in context.lets}
    result = substitute(expression, values)
    if values and sum(1 for _ in walk(result)) > MAXIMUM_INLINED_NODES:
        return None
    return result


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    """The conditions that all have to hold for ``condition`` to hold."""
    match condition:
        case LogicalAnd(left, right, _):
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case Binary("and", left, right, dtype) if dtype.is_bool:
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case Unary("not", LogicalOr(left, right, _), _):
            yield from _conjuncts(Unary("not", left, bool_))
            yield from _conjuncts(Unary("not", right, bool_))
        case Unary("not", Unary("not", inner, _), _):
            yield from _conjuncts(inner)
        case _:
            yield condition


def _active_threads(context: Context) -> tuple[int, bool]:
    import numpy as np

    everyone = ((1 << context.threads) - 1) << context.first_thread
    if not context.conditions:
        return everyone, True
    threads = np.arange(context.first_thread, context.first_thread + context.threads)
    inside, known = np.ones(context.threads, bool), True
    for condition in context.conditions:
        try:
            inside &= np.asarray(evaluate(condition, {context.thread: threads})).astype(bool)
        except NotEnumerable:
            names = {node.name for node in walk(condition, Var)}
            loops = {axis.name for axis in context.loops}
            reads = contains(condition, Load)
            known &= not reads and names <= context.uniform | loops
    if inside.all():
        return everyone, known
    mask = 0
    for thread in threads[inside]:
        mask |= 1 << int(thread)
    return mask, known

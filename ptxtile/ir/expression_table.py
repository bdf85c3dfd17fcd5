"""Expressions by structure: keys for equal expressions, their operands, rebuilding them. Fast paths without
reflection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import is_not
from typing import Any

from ptxtile.ir.expressions import (
    Binary,
    Bitcast,
    Broadcast,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    LogicalAnd,
    LogicalOr,
    Select,
    SharedAddress,
    Unary,
    Var,
)
from ptxtile.ir.types import Kind


class ExpressionTable:
    """Gives equal expressions equal keys, at the cost of one look-up for each object.

    Dataclass hashes walk whole trees, buffers included, which is too slow for the inner loop of every pass.
    """

    def __init__(self) -> None:
        self._by_object: dict[int, int] = {}
        self._by_structure: dict[tuple, int] = {}
        self.expressions: list[Expr] = []
        self._alive: list[Expr] = []  # an id is only good while its object lives

    def key(self, expression: Expr) -> int:
        found = self._by_object.get(id(expression))
        if found is not None:
            return found
        structure = self._structure(expression)
        key = self._by_structure.get(structure)
        if key is None:
            key = self._by_structure[structure] = len(self.expressions)
            self.expressions.append(expression)
        self._by_object[id(expression)] = key
        self._alive.append(expression)
        return key

    def known_variable(self, name: str) -> bool:
        return ("var", name) in self._by_structure

    def _structure(self, e: Expr) -> tuple:
        rule = _STRUCTURES.get(type(e))
        if rule is None:
            raise TypeError(f"unknown expression {type(e).__name__}")
        return rule(self.key, e)


def _constant(key: Callable[[Expr], int], e: Const) -> tuple:
    return "const", repr(e.value) if e.dtype.kind is Kind.FLOAT else int(e.value), e.dtype.name


# A buffer counts by identity: the table keeps the expression alive, and with it the buffer.
_STRUCTURES: dict[type[Expr], Callable[[Callable[[Expr], int], Any], tuple]] = {
    Var: lambda key, e: ("var", e.name),
    Const: _constant,
    Binary: lambda key, e: (e.operator, key(e.left), key(e.right), e.dtype.name),
    Compare: lambda key, e: (e.operator, key(e.left), key(e.right)),
    Unary: lambda key, e: (e.operator, key(e.operand)),
    Cast: lambda key, e: ("cast", key(e.operand), e.dtype.name),
    Load: lambda key, e: ("load", id(e.buffer), e.dtype.name, *map(key, e.indices)),
    Select: lambda key, e: ("select", key(e.condition), key(e.if_true), key(e.if_false)),
    LogicalAnd: lambda key, e: ("logical_and", key(e.left), key(e.right)),
    LogicalOr: lambda key, e: ("logical_or", key(e.left), key(e.right)),
    Call: lambda key, e: ("call", e.function, e.dtype.name, *map(key, e.arguments)),
    Bitcast: lambda key, e: ("bitcast", key(e.operand), e.dtype.name),
    Broadcast: lambda key, e: ("broadcast", key(e.operand), e.dtype.name),
    SharedAddress: lambda key, e: ("shared_address", id(e.buffer), key(e.offset)),
}
"""What makes an expression of each class the same as another, over the keys of its operands."""

_OPERANDS: dict[type[Expr], Callable[[Any], tuple[Expr, ...]]] = {
    **dict.fromkeys((Binary, Compare, LogicalAnd, LogicalOr), lambda e: (e.left, e.right)),
    **dict.fromkeys((Unary, Cast, Bitcast, Broadcast), lambda e: (e.operand,)),
    Load: lambda e: e.indices,
    Select: lambda e: (e.condition, e.if_true, e.if_false),
    Call: lambda e: e.arguments,
    SharedAddress: lambda e: (e.offset,),
}


def operands(e: Expr) -> tuple[Expr, ...]:
    """The expressions directly inside ``e``; the same as ``rewrite.children``, without reflection."""
    look = _OPERANDS.get(type(e))
    return () if look is None else look(e)


def subexpressions(e: Expr) -> Iterator[Expr]:
    """``e`` and everything inside it."""
    stack = [e]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(operands(current))


def map_operands(e: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """``e`` with each direct operand changed; the same object when none is."""
    old = operands(e)
    new = tuple([change(operand) for operand in old])
    if not any(map(is_not, old, new)):
        return e
    match e:
        case Binary() | Compare():
            return type(e)(e.operator, *new, dtype=e.dtype)
        case Unary():
            return Unary(e.operator, *new, dtype=e.dtype)
        case LogicalAnd() | LogicalOr() | Select() | Cast() | Bitcast() | Broadcast():
            return type(e)(*new, dtype=e.dtype)
        case Load():
            return Load(e.buffer, new, e.dtype)
        case Call():
            return Call(e.function, new, e.dtype)
        case SharedAddress():
            return SharedAddress(e.buffer, *new, dtype=e.dtype)
    raise TypeError(f"unknown expression {type(e).__name__}")


def substitute_variables(e: Expr, values: Mapping[str, Expr]) -> Expr:
    """``e`` with the variables of the given names replaced."""
    if isinstance(e, Var):
        return values.get(e.name, e)
    return map_operands(e, lambda operand: substitute_variables(operand, values))


def has_load(e: Expr) -> bool:
    return any(isinstance(x, Load) for x in subexpressions(e))

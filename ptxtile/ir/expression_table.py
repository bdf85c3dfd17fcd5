"""Expressions by structure: keys for equal expressions, their operands, rebuilding them. Fast paths without
reflection."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

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
        key = self.key
        match e:
            case Var():
                return ("var", e.name)
            case Const():
                return ("const", repr(e.value) if e.dtype.kind is Kind.FLOAT else int(e.value), e.dtype.name)
            case Binary():
                return (e.operator, key(e.left), key(e.right), e.dtype.name)
            case Compare():
                return (e.operator, key(e.left), key(e.right))
            case Unary():
                return (e.operator, key(e.operand))
            case Cast():
                return ("cast", key(e.operand), e.dtype.name)
            case Load():
                return ("load", id(e.buffer), e.dtype.name, *map(key, e.indices))  # _alive keeps the buffer, too
            case Select():
                return ("select", key(e.condition), key(e.if_true), key(e.if_false))
            case LogicalAnd():
                return ("logical_and", key(e.left), key(e.right))
            case LogicalOr():
                return ("logical_or", key(e.left), key(e.right))
            case Call():
                return ("call", e.function, e.dtype.name, *map(key, e.arguments))
            case Bitcast():
                return ("bitcast", key(e.operand), e.dtype.name)
            case Broadcast():
                return ("broadcast", key(e.operand), e.dtype.name)
            case SharedAddress():
                return ("shared_address", id(e.buffer), key(e.offset))  # _alive keeps the buffer, too
        raise TypeError(f"unknown expression {type(e).__name__}")


def operands(e: Expr) -> Iterable[Expr]:
    """The expressions directly inside ``e``; the same as ``rewrite.children``, without reflection."""
    match e:
        case Binary() | Compare() | LogicalAnd() | LogicalOr():
            return (e.left, e.right)
        case Unary() | Cast() | Bitcast() | Broadcast():
            return (e.operand,)
        case Load():
            return e.indices
        case Select():
            return (e.condition, e.if_true, e.if_false)
        case Call():
            return e.arguments
        case SharedAddress():
            return (e.offset,)
    return ()


def subexpressions(e: Expr) -> Iterator[Expr]:
    """``e`` and everything inside it."""
    stack = [e]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(operands(current))


def map_operands(e: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """``e`` with each direct operand changed; the same object when none is."""
    old = tuple(operands(e))
    new = tuple(change(operand) for operand in old)
    if all(a is b for a, b in zip(old, new, strict=True)):
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

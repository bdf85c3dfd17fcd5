"""Integer expressions evaluated over whole index spaces at once, with NumPy.

:func:`evaluate` computes an expression for arrays of variable values that broadcast against each other (threads along
one axis, loop counters along others). :func:`separate` splits an index into a part that can be enumerated and a
*residual* of uniform terms that two accesses may have in common, such as the offset of the block's tile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    constant_value,
)
from ptxtile.ir.rewrite import contains, walk
from ptxtile.ir.types import DType, Kind

Residual = frozenset  # of (expression, integer factor) pairs, whose sum is the residual's value


class NotEnumerable(Exception):
    """The expression depends on something whose values are not known: memory, an unknown variable, a call."""


def _wrapped(value: Any, dtype: DType) -> Any:
    """``value`` in the range of an integer ``dtype`` (integer arithmetic wraps)."""
    import numpy as np

    if dtype.bits >= 64:
        return value
    if isinstance(value, int):
        value &= (1 << dtype.bits) - 1
        return value - (1 << dtype.bits) if dtype.kind is Kind.INT and value > dtype.maximum else value
    if dtype.bits == 4:
        raise NotEnumerable
    sign = "int" if dtype.kind is Kind.INT else "uint"
    return np.asarray(value).astype(f"{sign}{dtype.bits}").astype(np.int64)


def _truncated_division(left: Any, right: Any) -> Any:
    import numpy as np

    quotient = np.abs(left) // np.abs(right)
    return np.where((np.asarray(left) < 0) != (np.asarray(right) < 0), -quotient, quotient)


def _binary(operator: str, left: Any, right: Any, dtype: DType) -> Any:
    import numpy as np

    if operator in ("floordiv", "floormod", "truncdiv", "truncmod"):  # division by zero is unspecified, not an error
        right = (right or 1) if isinstance(right, int) else np.where(right == 0, 1, right)
    match operator:
        case "add":
            return _wrapped(left + right, dtype)
        case "sub":
            return _wrapped(left - right, dtype)
        case "mul":
            return _wrapped(left * right, dtype)
        case "floordiv":
            return left // right
        case "floormod":
            return left % right
        case "truncdiv":
            return _truncated_division(left, right)
        case "truncmod":
            return left - right * _truncated_division(left, right)
        case "min":
            return np.minimum(left, right)
        case "max":
            return np.maximum(left, right)
        case "and":
            return left & right
        case "or":
            return left | right
        case "xor":
            return left ^ right
        case "shl" | "shr":
            return _shifted(operator, left, right, dtype)
    raise NotEnumerable


def _shifted(operator: str, left: Any, right: Any, dtype: DType) -> Any:
    outside = (right < 0) | (right >= min(dtype.bits, 63))
    if outside if isinstance(right, int) else outside.any():
        raise NotEnumerable
    return left >> right if operator == "shr" else _wrapped(left << right, dtype)


_COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def evaluate(expression: Expr, values: Mapping[str, Any]) -> Any:
    """The values of an integer or bool expression: an int, a bool, or an int64 or bool array of the broadcast shape.

    ``values``: what variables are known to be, ints or int64 arrays. Raises :class:`NotEnumerable` for anything else.
    uint64 values above 2⁶³ are not represented.
    """
    import numpy as np

    match expression:
        case Const(value, _) if isinstance(value, (bool, int)):
            return value
        case Var(name, _):
            if name not in values:
                raise NotEnumerable
            return values[name]
        case Binary(operator, left, right, dtype) if dtype.lanes == 1 and not dtype.is_float:
            return _binary(operator, evaluate(left, values), evaluate(right, values), dtype)
        case Compare(operator, left, right, _) if not left.dtype.is_float and left.dtype.lanes == 1:
            return _COMPARISONS[operator](evaluate(left, values), evaluate(right, values))
        case LogicalAnd(left, right, _):
            return np.logical_and(evaluate(left, values), evaluate(right, values))
        case LogicalOr(left, right, _):
            return np.logical_or(evaluate(left, values), evaluate(right, values))
        case Select(condition, if_true, if_false, _):
            parts = (evaluate(part, values) for part in (condition, if_true, if_false))
            return np.where(*parts)
        case Unary("not", operand, dtype):
            value = evaluate(operand, values)
            return np.logical_not(value) if dtype.is_bool else _wrapped(~value, dtype)
        case Unary("neg", operand, dtype) if dtype.is_integer:
            return _wrapped(-evaluate(operand, values), dtype)
        case Unary("abs", operand, dtype) if dtype.is_integer:
            return _wrapped(abs(evaluate(operand, values)), dtype)
        case Cast(operand, dtype) if not dtype.is_float and not operand.dtype.is_float and dtype.lanes == 1:
            value = evaluate(operand, values)
            if dtype.is_bool:
                return np.asarray(value) != 0
            return _wrapped(int(value) if isinstance(value, bool) else value, dtype)
    raise NotEnumerable


def depends_on(expression: Expr, names: Collection[str]) -> bool:
    """Whether a variable of ``names`` occurs in ``expression``."""
    return any(var.name in names for var in walk(expression, Var))


def depends_only_on(expression: Expr, names: Collection[str]) -> bool:
    """Whether all variables in ``expression`` are of ``names``."""
    return all(var.name in names for var in walk(expression, Var))


def separate(
    expression: Expr, known: Collection[str], uniform: Collection[str]
) -> tuple[list[tuple[int, Expr]], Residual]:
    """``expression`` as a sum of (factor, enumerable expression) plus a residual of (uniform expression, factor).

    ``known``: variables that can be enumerated; ``uniform``: variables that have one value for all threads. Products
    are distributed over sums where one factor is a constant; index arithmetic is taken not to overflow across the
    split. Raises :class:`NotEnumerable` where a term mixes known and unknown variables or depends on anything else.
    """
    enumerable: list[tuple[int, Expr]] = []
    residual: dict[Expr, int] = {}
    if contains(expression, Load, Call, Bitcast, Broadcast, SharedAddress):  # it is more than arithmetic
        raise NotEnumerable

    def add(term: Expr, factor: int) -> None:
        if depends_only_on(term, known):
            enumerable.append((factor, term))
        elif isinstance(term, Binary) and term.operator in ("add", "sub"):
            add(term.left, factor)
            add(term.right, factor if term.operator == "add" else -factor)
        elif (scaled := _scaled(term)) is not None:
            add(scaled[0], factor * scaled[1])
        elif depends_only_on(term, uniform):
            residual[term] = residual.get(term, 0) + factor
        elif isinstance(term, Cast) and term.dtype.is_integer and term.operand.dtype.is_integer:
            add(term.operand, factor)
        else:
            raise NotEnumerable

    add(expression, 1)
    return enumerable, frozenset((term, factor) for term, factor in residual.items() if factor)


def _scaled(term: Expr) -> tuple[Expr, int] | None:
    """``term`` as (operand, constant factor), when it is a product or a left shift by a constant, or a widening
    cast."""
    if isinstance(term, Cast) and term.dtype.is_integer and term.operand.dtype.is_integer:
        return (term.operand, 1) if term.dtype.bits >= term.operand.dtype.bits else None
    if not isinstance(term, Binary):
        return None
    left, right = constant_value(term.left), constant_value(term.right)
    if term.operator == "mul":
        if right is not None:
            return term.left, right
        return (term.right, left) if left is not None else None
    if term.operator == "shl" and right is not None and 0 <= right < 63:
        return term.left, 1 << right
    return None

"""Integer arithmetic on constants, so that indices of registers in unrolled loops really are constants.

Results wrap to the dtype as the expressions' semantics say (:mod:`ptxtile.ir.expressions`).
"""

from __future__ import annotations

import operator

from ptxtile.ir.types import DType, Kind, wrap_integer


def wrap(value: int, dtype: DType) -> int | bool:
    return bool(value) if dtype.kind is Kind.BOOL else wrap_integer(value, dtype)


def fold_binary(name: str, left: int, right: int, dtype: DType) -> int | None:
    """The value of an integer or bool operator, or None when it has none (division by zero) or the dtype no such
    operator."""
    if dtype.kind is Kind.FLOAT:
        return None
    if dtype.kind is Kind.BOOL and name not in ("and", "or", "xor", "min", "max"):
        return None
    rule = _RULES.get(name)
    result = rule(int(left), int(right), dtype) if rule is not None else None
    return None if result is None else wrap(result, dtype)


def _truncating_division(left: int, right: int, dtype: DType) -> int | None:
    if right == 0:
        return None
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _truncating_remainder(left: int, right: int, dtype: DType) -> int | None:
    quotient = _truncating_division(left, right, dtype)
    return None if quotient is None else left - quotient * right


def _shift_left(left: int, right: int, dtype: DType) -> int:
    return left << right if 0 <= right < dtype.bits else 0


def _shift_right(left: int, right: int, dtype: DType) -> int:
    if 0 <= right < dtype.bits:
        return left >> right
    return -1 if left < 0 else 0


_RULES = {
    "add": lambda a, b, d: a + b,
    "sub": lambda a, b, d: a - b,
    "mul": lambda a, b, d: a * b,
    "mulhi": lambda a, b, d: (a * b) >> d.bits,
    "floordiv": lambda a, b, d: a // b if b else None,
    "floormod": lambda a, b, d: a % b if b else None,
    "truncdiv": _truncating_division,
    "truncmod": _truncating_remainder,
    "min": lambda a, b, d: min(a, b),
    "max": lambda a, b, d: max(a, b),
    "and": lambda a, b, d: a & b,
    "or": lambda a, b, d: a | b,
    "xor": lambda a, b, d: a ^ b,
    "shl": _shift_left,
    "shr": _shift_right,
}


_COMPARISONS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}


def fold_compare(name: str, left: int, right: int) -> bool:
    return _COMPARISONS[name](left, right)

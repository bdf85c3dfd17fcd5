"""Operators applied to constants, with the semantics of :mod:`ptxtile.ir.expressions`.

Integers fold always, except division by zero (its value is unspecified). Floats fold only in conversions that are
exact, in comparisons, ``neg`` and ``abs``: nothing here rounds.
"""

from __future__ import annotations

import math
import struct

from ptxtile.ir import intervals
from ptxtile.ir.expressions import Const, constant
from ptxtile.ir.types import DType, bool_


def fold_binary(operator: str, left: int, right: int, dtype: DType) -> Const | None:
    """The wrapped result for integer constants of ``dtype``; None for a division by zero or an unknown operator."""
    bits = dtype.bits
    match operator:
        case "add":
            value = left + right
        case "sub":
            value = left - right
        case "mul":
            value = left * right
        case "mulhi":
            value = left * right >> bits
        case "min":
            value = min(left, right)
        case "max":
            value = max(left, right)
        case "and":
            value = left & right
        case "or":
            value = left | right
        case "xor":
            value = left ^ right
        case "shl":
            value = left << right if 0 <= right < bits else 0
        case "shr":
            value = left >> right if 0 <= right < bits else (-1 if left < 0 else 0)
        case "floordiv" | "floormod" | "truncdiv" | "truncmod":
            if right == 0:
                return None
            value = {
                "floordiv": lambda: left // right,
                "floormod": lambda: left % right,
                "truncdiv": lambda: intervals.truncated_quotient(left, right),
                "truncmod": lambda: intervals.truncated_remainder(left, right),
            }[operator]()
        case _:
            return None
    return constant(value, dtype)


def fold_compare(operator: str, left: Const, right: Const) -> Const:
    """Python compares ints exactly and floats as IEEE 754 does (false with NaN, except ne)."""
    a, b = left.value, right.value
    result = {"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[operator]
    return Const(result, bool_)


def fold_unary(operator: str, operand: Const) -> Const | None:
    value, dtype = operand.value, operand.dtype
    if dtype.is_float:
        if operator == "neg":
            return Const(-value, dtype)
        return Const(math.fabs(value), dtype) if operator == "abs" else None
    match operator:
        case "neg":
            return constant(-int(value), dtype)
        case "abs":
            return constant(abs(int(value)), dtype)
        case "not":
            return constant(~int(value), dtype)
    return None


def fold_cast(operand: Const, dtype: DType) -> Const | None:
    """The converted constant where no rounding is involved; None otherwise."""
    value = operand.value
    if dtype.lanes != 1 or operand.dtype.lanes != 1:
        return None
    if operand.dtype.is_float:
        if dtype.is_bool:
            return Const(value != 0, bool_)
        if dtype.is_float and (math.isinf(value) or is_representable(value, dtype)):
            return Const(value, dtype) if dtype.name in _EXACT else None
        return None
    if dtype.is_bool:
        return Const(value != 0, bool_)
    if dtype.is_integer:
        return constant(int(value), dtype)
    try:
        as_float = float(value)
    except OverflowError:
        return None
    return Const(as_float, dtype) if int(as_float) == int(value) and is_representable(as_float, dtype) else None


_EXACT = {"float16": "e", "float32": "f", "float64": "d", "bfloat16": "f"}
"""Formats whose values Python's struct can round-trip; bfloat16 is the upper half of a float32."""


def is_representable(value: float, dtype: DType) -> bool:
    """Whether a finite float is a value of one of the arithmetic float formats."""
    code = _EXACT.get(dtype.name)
    if code is None or not math.isfinite(value):
        return False
    try:
        packed = struct.pack("<" + code, value)
    except OverflowError:
        return False
    if struct.unpack("<" + code, packed)[0] != value:
        return False
    return dtype.name != "bfloat16" or packed[:2] == b"\0\0"

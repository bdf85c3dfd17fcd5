"""The operators of the IR on values (:mod:`ptxtile.sim.dtypes`): integers wrap, floats round once for each operation.

Semantics: :mod:`ptxtile.ir.expressions`. float16 arithmetic in NumPy and bfloat16 arithmetic here compute in float32
and round; for add, sub, mul, div and sqrt the double rounding is harmless, because float32 has more than twice the
precision plus two bits (Figueroa, «When is double rounding innocuous?», SIGNUM Newsletter 30(3), 1995). Call with
NumPy's floating-point warnings off (``np.errstate(all="ignore")``).
"""

from __future__ import annotations

import operator as python_operator
from collections.abc import Callable

import numpy as np

from ptxtile.ir.types import DType, Kind
from ptxtile.sim.dtypes import Value, as_array, held_dtype, is_coded, round_bfloat16, wrap_array, wrap_integer

_COMPARISONS: dict[str, tuple[Callable, Callable]] = {
    "eq": (python_operator.eq, np.equal),
    "ne": (python_operator.ne, np.not_equal),
    "lt": (python_operator.lt, np.less),
    "le": (python_operator.le, np.less_equal),
    "gt": (python_operator.gt, np.greater),
    "ge": (python_operator.ge, np.greater_equal),
}


def binary(operator: str, left: Value, right: Value, dtype: DType) -> Value:
    """``left operator right``, both of ``dtype``."""
    if dtype.kind is not Kind.FLOAT and isinstance(left, int) and isinstance(right, int):
        return wrap_integer(_PYTHON_INTEGER[operator](left, right, dtype), dtype)
    if is_coded(dtype):
        raise TypeError(f"{dtype} has no arithmetic: {operator}")
    left, right = as_array(left, dtype), as_array(right, dtype)
    if dtype.kind is Kind.FLOAT:
        result = _FLOAT[operator](left, right)
        return round_bfloat16(result) if dtype.element_name == "bfloat16" and operator not in ("min", "max") else result
    if dtype.kind is Kind.BOOL:
        return _BOOL[operator](left, right)
    return wrap_array(_INTEGER[operator](left, right, dtype), dtype)


def compare(operator: str, left: Value, right: Value, dtype: DType) -> Value:
    """A bool value; ``dtype`` is that of the operands."""
    if isinstance(left, int) and isinstance(right, int):
        return _COMPARISONS[operator][0](left, right)
    if is_coded(dtype):
        raise TypeError(f"{dtype} has no comparison: {operator}")
    return _COMPARISONS[operator][1](as_array(left, dtype), as_array(right, dtype))


def unary(operator: str, operand: Value, dtype: DType) -> Value:
    if dtype.kind is Kind.BOOL and operator == "not":
        return (not operand) if isinstance(operand, int) else np.logical_not(operand)
    if is_coded(dtype):
        raise TypeError(f"{dtype} has no arithmetic: {operator}")
    if dtype.kind is not Kind.FLOAT:
        return _integer_unary(operator, operand, dtype)
    result = _FLOAT_UNARY[operator](as_array(operand, dtype))
    return round_bfloat16(result) if dtype.element_name == "bfloat16" and operator == "sqrt" else result


def _integer_unary(operator: str, operand: Value, dtype: DType) -> Value:
    if operator in ("floor", "ceil", "trunc", "rint"):
        return operand
    if isinstance(operand, int):
        return wrap_integer({"neg": -operand, "abs": abs(operand), "not": ~operand}[operator], dtype)
    function = {"neg": np.negative, "abs": np.abs, "not": np.invert}[operator]
    return wrap_array(function(operand), dtype)


_FLOAT_UNARY = {
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt,
    "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "rint": np.rint,
}  # fmt: skip


# --- floats ---------------------------------------------------------------------------------------------------------


def _float_minimum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """NaN propagates and −0 is less than +0 (PTX ISA, «min» with .NaN); NumPy leaves the sign of a zero open."""
    result = np.minimum(left, right)
    zeros = (left == 0) & (right == 0)
    if not zeros.any():
        return result
    return np.where(zeros, np.copysign(result, np.where(np.signbit(right), right, left)), result)


def _float_maximum(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    result = np.maximum(left, right)
    zeros = (left == 0) & (right == 0)
    if not zeros.any():
        return result
    return np.where(zeros, np.copysign(result, np.where(np.signbit(right), left, right)), result)


_FLOAT: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": _float_minimum,
    "max": _float_maximum,
    # Lowering expands these four before the gpu stage; here they mean what torch makes of them.
    "floordiv": np.floor_divide,
    "floormod": np.remainder,
    "truncdiv": lambda a, b: np.trunc(np.divide(a, b)),
    "truncmod": np.fmod,
}


# --- bools and integers ---------------------------------------------------------------------------------------------

_BOOL: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "min": np.logical_and,
    "max": np.logical_or,
}


def _truncated_division(a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
    """Toward zero. NumPy's floor_divide gives 0 for a zero divisor and wraps minimum // -1."""
    quotient = np.floor_divide(a, b)
    if dtype.kind is Kind.UINT:
        return quotient
    inexact = np.multiply(quotient, b) != a
    return quotient + ((quotient < 0) & inexact & (b != 0)).astype(quotient.dtype)


def _multiply_high(a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
    """The upper half of the product of twice the width."""
    if dtype.bits < 64:
        wide = np.int64 if dtype.is_signed else np.uint64
        return ((a.astype(wide) * b.astype(wide)) >> wide(dtype.bits)).astype(a.dtype)
    unsigned = _unsigned_multiply_high(a.astype(np.uint64), b.astype(np.uint64))
    if not dtype.is_signed:
        return unsigned
    # Hacker's Delight (2nd ed., 2012), section 8-3: signed from unsigned high halves.
    result = unsigned.astype(np.int64)
    return result - np.where(a < 0, b, np.int64(0)) - np.where(b < 0, a, np.int64(0))


def _unsigned_multiply_high(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    half, mask = np.uint64(32), np.uint64(0xFFFFFFFF)
    a_low, a_high, b_low, b_high = a & mask, a >> half, b & mask, b >> half
    middle = a_high * b_low + ((a_low * b_low) >> half)
    return a_high * b_high + (middle >> half) + ((a_low * b_high + (middle & mask)) >> half)


def _shift_left(a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
    inside = (b >= 0) & (b < dtype.bits)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0)), a.dtype.type(0))


def _shift_right(a: np.ndarray, b: np.ndarray, dtype: DType) -> np.ndarray:
    """Arithmetic for signed integers: a count outside [0, bits) leaves only the sign."""
    inside = (b >= 0) & (b < dtype.bits)
    shifted = np.right_shift(a, np.where(inside, b, 0))
    zero = a.dtype.type(0)
    beyond = np.where(a < 0, a.dtype.type(-1), zero) if dtype.is_signed else zero
    return np.where(inside, shifted, beyond)


_INTEGER: dict[str, Callable[[np.ndarray, np.ndarray, DType], np.ndarray]] = {
    "add": lambda a, b, _: np.add(a, b),
    "sub": lambda a, b, _: np.subtract(a, b),
    "mul": lambda a, b, _: np.multiply(a, b),
    "div": _truncated_division,
    "floordiv": lambda a, b, _: np.floor_divide(a, b),
    "floormod": lambda a, b, _: np.remainder(a, b),
    "truncdiv": _truncated_division,
    "truncmod": lambda a, b, _: np.fmod(a, b),
    "min": lambda a, b, _: np.minimum(a, b),
    "max": lambda a, b, _: np.maximum(a, b),
    "mulhi": _multiply_high,
    "and": lambda a, b, _: np.bitwise_and(a, b),
    "or": lambda a, b, _: np.bitwise_or(a, b),
    "xor": lambda a, b, _: np.bitwise_xor(a, b),
    "shl": _shift_left,
    "shr": _shift_right,
}


def _python_truncated_division(a: int, b: int, _: DType) -> int:
    if b == 0:
        return 0
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _python_shift_right(a: int, b: int, dtype: DType) -> int:
    if 0 <= b < dtype.bits:
        return a >> b
    return -1 if a < 0 else 0


# A zero divisor gives 0, as NumPy's integer division does.
_PYTHON_INTEGER: dict[str, Callable[[int, int, DType], int]] = {
    "add": lambda a, b, _: a + b,
    "sub": lambda a, b, _: a - b,
    "mul": lambda a, b, _: a * b,
    "div": _python_truncated_division,
    "floordiv": lambda a, b, _: a // b if b else 0,
    "floormod": lambda a, b, _: a % b if b else 0,
    "truncdiv": _python_truncated_division,
    "truncmod": lambda a, b, t: a - b * _python_truncated_division(a, b, t) if b else 0,
    "min": lambda a, b, _: min(a, b),
    "max": lambda a, b, _: max(a, b),
    "mulhi": lambda a, b, t: (a * b) >> t.bits,
    "and": lambda a, b, _: a & b,
    "or": lambda a, b, _: a | b,
    "xor": lambda a, b, _: a ^ b,
    "shl": lambda a, b, t: a << b if 0 <= b < t.bits else 0,
    "shr": _python_shift_right,
}


# --- bit counting ---------------------------------------------------------------------------------------------------


def population_count(value: Value, source: DType, target: DType) -> Value:
    """Number of one bits in an integer of ``source``, as ``target``."""
    unsigned = _unsigned_bits(value, source)
    return np.bitwise_count(unsigned).astype(held_dtype(target))


def leading_zeros(value: Value, source: DType, target: DType) -> Value:
    """Number of zero bits above the highest one bit; all of them for 0."""
    bits = _unsigned_bits(value, source).astype(np.uint64)
    for shift in (1, 2, 4, 8, 16, 32):
        bits = bits | (bits >> np.uint64(shift))
    return (source.bits - np.bitwise_count(bits).astype(np.int64)).astype(held_dtype(target))


def _unsigned_bits(value: Value, dtype: DType) -> np.ndarray:
    array = np.asarray(as_array(value, dtype))
    unsigned = array.astype(np.dtype(f"uint{8 * array.dtype.itemsize}"))
    return unsigned & np.uint8(0xF) if dtype.bits == 4 else unsigned

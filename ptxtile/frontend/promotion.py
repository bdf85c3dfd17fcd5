"""The dtype of an operation from the dtypes of its operands.

The rules are those of TileLang 0.1.15 (TVM's BinaryOpMatchTypes), checked against its own answers for every pair
(tests/frontend/tilelang_promotion.json):

* equal dtypes stay; bool gives way to any other; a float wins over any integer;
* of two floats the wider wins; float16 with bfloat16 gives float16; two different 8-bit floats do not go together;
* of two integers the wider wins, and at equal width the unsigned one;
* a Python int counts as int32 (int64 when it does not fit), a Python float as float32, a Python bool as bool;
* in bit operations and shifts a Python int takes the dtype of the other side (of a bool: 0 and 1 do).

Two rules are ours. Arithmetic of two bools is int32, as True + True is 2 in Python (TileLang wraps it in one bit). The
true division ``/`` of two integers is float32 (TileLang refuses it for signed integers and truncates unsigned ones).
"""

from __future__ import annotations

from ptxtile.ir.types import ARITHMETIC_FLOATS, DType, bool_, float16, float32, int32, int64, uint64


def promote(left: DType, right: DType) -> DType | None:
    """The common dtype of two operands, or None when there is none."""
    if left == right:
        return left
    if left.is_bool or right.is_bool:
        return right if left.is_bool else left
    if left.is_float != right.is_float:
        return left if left.is_float else right
    if left.bits != right.bits:
        return left if left.bits > right.bits else right
    if left.is_float:
        return _promote_equal_floats(left, right)
    return right if left.is_signed else left


def _promote_equal_floats(left: DType, right: DType) -> DType | None:
    names = {left.name, right.name}
    if names == {"float16", "bfloat16"}:
        return float16
    if names == {"float32", "tfloat32"}:
        return float32
    return None


def number_dtype(value: int | float | bool) -> DType:
    """The dtype that a Python number has when nothing else says one."""
    if isinstance(value, bool):
        return bool_
    if isinstance(value, float):
        return float32
    if int32.minimum <= value <= int32.maximum:
        return int32
    return int64 if value <= int64.maximum else uint64


def promote_number(dtype: DType, value: int | float | bool, *, bitwise: bool = False) -> DType | None:
    """The common dtype of an operand of ``dtype`` and a Python number."""
    if bitwise and isinstance(value, int) and (dtype.is_integer or (dtype.is_bool and value in (0, 1))):
        return dtype
    return promote(dtype, number_dtype(value))


def arithmetic(dtype: DType) -> DType:
    """The dtype that ``+ - * // %`` compute in: bool counts as int32."""
    return int32 if dtype.is_bool else dtype


def floating(dtype: DType) -> DType:
    """The dtype that a float function computes in: integers and bools count as float32."""
    return dtype if dtype.is_float else float32


def has_arithmetic(dtype: DType) -> bool:
    """Whether values of ``dtype`` can be computed with, or only be stored, copied and cast."""
    if dtype.is_float:
        return dtype.element in ARITHMETIC_FLOATS
    return dtype.is_bool or dtype.bits >= 8


def fits(value: DType, variable: DType) -> bool:
    """Whether a variable of dtype ``variable`` may take a value of dtype ``value`` by an implicit cast."""
    return promote(variable, value) == variable

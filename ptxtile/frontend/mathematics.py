"""The functions of the language on scalars. Names and argument order are TileLang's.

A float function of an integer computes in float32. Results keep the dtype of their float arguments; ``lower`` expands
each :class:`~ptxtile.ir.expressions.Call` to arithmetic.
"""

from __future__ import annotations

import math
from typing import Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations, promotion
from ptxtile.frontend.dtypes import as_dtype
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.values import Value
from ptxtile.ir.expressions import Binary, Bitcast, Call, Compare, Const, Expr, Select, Unary, cast
from ptxtile.ir.types import BY_NAME, DType, Kind, bool_


def _floats(what: str, *values: Any) -> tuple[list[Expr], DType]:
    """The arguments of a float function in their common float dtype."""
    operands = [operations.operand(value, what) for value in values]
    dtype: DType | None = None
    for value in operands:
        mine = operations.dtype_of(value)
        dtype = mine if dtype is None else promotion.promote(dtype, mine)
        if dtype is None:
            raise TypeMismatchError(
                f"the arguments of {what} have no common dtype", location=user_location(),
                got=" and ".join(str(operations.dtype_of(o)) for o in operands), hint="cast them, such as T.float32(x)",
            )  # fmt: skip
    assert dtype is not None
    dtype = promotion.floating(dtype)
    if not promotion.has_arithmetic(dtype):
        raise TypeMismatchError(
            f"{what} of {dtype}", location=user_location(), expected="float16, bfloat16, float32 or float64",
            got=str(dtype), hint="cast it, such as T.float32(x)",
        )  # fmt: skip
    return [operations.as_dtype_expr(value, dtype) for value in operands], dtype


def _call(name: str, *values: Any) -> Value:
    arguments, dtype = _floats(f"T.{name}", *values)
    return Value(Call(name, tuple(arguments), dtype))


def _unary_function(name: str, meaning: str) -> Any:
    def function(x: Any) -> Value:
        return _call(name, x)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{meaning}, of a float (an integer counts as float32)."
    return function


exp = _unary_function("exp", "e to the power x")
exp2 = _unary_function("exp2", "2 to the power x")
exp10 = _unary_function("exp10", "10 to the power x")
expm1 = _unary_function("expm1", "exp(x) − 1, exact near 0")
log = _unary_function("log", "The natural logarithm")
log2 = _unary_function("log2", "The logarithm of base 2")
log10 = _unary_function("log10", "The logarithm of base 10")
log1p = _unary_function("log1p", "log(1 + x), exact near 0")
rsqrt = _unary_function("rsqrt", "1 / sqrt(x)")
sin = _unary_function("sin", "The sine of radians")
cos = _unary_function("cos", "The cosine of radians")
tan = _unary_function("tan", "The tangent of radians")
asin = _unary_function("asin", "The arc sine")
acos = _unary_function("acos", "The arc cosine")
atan = _unary_function("atan", "The arc tangent")
sinh = _unary_function("sinh", "The hyperbolic sine")
cosh = _unary_function("cosh", "The hyperbolic cosine")
tanh = _unary_function("tanh", "The hyperbolic tangent")
erf = _unary_function("erf", "The error function")
sigmoid = _unary_function("sigmoid", "1 / (1 + exp(−x))")


def sqrt(x: Any) -> Value:
    """The correctly rounded square root."""
    (operand,), dtype = _floats("T.sqrt", x)
    return Value(Unary("sqrt", operand, dtype))


def atan2(y: Any, x: Any) -> Value:
    """The angle of the point (x, y), in (−π, π]."""
    return _call("atan2", y, x)


def fmod(x: Any, y: Any) -> Value:
    """The remainder of x / y with the sign of x, exact (C's fmod)."""
    return _call("fmod", x, y)


def pow_(x: Any, y: Any) -> Value:
    """x to the power y."""
    return operations.power(x if isinstance(x, Value) else _scalar(x, "T.pow"), y)


def fma(x: Any, y: Any, z: Any) -> Value:
    """x · y + z with one rounding."""
    return _call("fma", x, y, z)


def floor(x: Any) -> Value:
    """The largest whole number ≤ x."""
    return operations.rounded("floor", x)


def ceil(x: Any) -> Value:
    """The smallest whole number ≥ x."""
    return operations.rounded("ceil", x)


def trunc(x: Any) -> Value:
    """x without its fraction."""
    return operations.rounded("trunc", x)


def nearbyint(x: Any) -> Value:
    """The nearest whole number, halves to even."""
    return operations.rounded("rint", x)


rint = nearbyint


def round_(x: Any, rounding_mode: str = "ties-to-even") -> Value:
    """The nearest whole number; halves to even, or away from zero with ``rounding_mode="ties-away-from-zero"``."""
    if rounding_mode == "ties-to-even":
        return operations.rounded("rint", x)
    if rounding_mode != "ties-away-from-zero":
        raise TraceError(
            "rounding_mode of T.round", location=user_location(), expected="ties-to-even or ties-away-from-zero",
            got=repr(rounding_mode),
        )  # fmt: skip
    value = x if isinstance(x, Value) else _scalar(x, "T.round")
    return _call("round", value) if value.ir_dtype.is_float else operations.rounded("rint", value)


def abs_(x: Any) -> Value:
    """The absolute value."""
    return operations.absolute(x)


fabs = abs_


def min_(a: Any, b: Any, *more: Any) -> Any:
    """The smallest; NaN when one is NaN. Of Python numbers, a Python number."""
    return _extremum("min", min, (a, b, *more))


def max_(a: Any, b: Any, *more: Any) -> Any:
    """The largest; NaN when one is NaN. Of Python numbers, a Python number."""
    return _extremum("max", max, (a, b, *more))


def _extremum(name: str, of_numbers: Any, values: tuple[Any, ...]) -> Any:
    if all(isinstance(value, (int, float)) for value in values):
        return of_numbers(values)
    result = values[0]
    for value in values[1:]:
        result = operations.extremum(name, result, value)
    return result


def clamp(dst: Any, min_val: Any, max_val: Any) -> Any:
    """min(max(dst, min_val), max_val); NaN stays NaN."""
    return min_(max_(dst, min_val), max_val)


def _scalar(value: Any, what: str) -> Value:
    operand = operations.operand(value, what)
    return Value(operand if isinstance(operand, Expr) else operations.number_expr(operand))


def cast_(value: Any, dtype: Any) -> Value:
    """``value`` converted to ``dtype`` as torch does."""
    return operations.cast_value(value, dtype)


def typed_cast(dtype: Any, value: Any) -> Value:
    """:func:`cast_` with the arguments in the order of TVM's ``Cast``."""
    return cast_(value, dtype)


def reinterpret(value: Any, dtype: Any) -> Value:
    """The bits of ``value`` as another dtype of the same width. Both argument orders of TileLang are taken."""
    if isinstance(value, str) or type(value).__name__ == "DataType":
        value, dtype = dtype, value
    source, target = _scalar(value, "T.reinterpret").expr, as_dtype(dtype)
    if source.dtype.bits != target.bits:
        raise TypeMismatchError(
            "T.reinterpret between dtypes of different widths", location=user_location(),
            expected=f"a dtype of {source.dtype.bits} bits", got=f"{target}, {target.bits} bits",
        )  # fmt: skip
    return Value(source if source.dtype == target else Bitcast(source, target))


def if_then_else(condition: Any, true_value: Any, false_value: Any) -> Any:
    """true_value where the condition holds, else false_value; in a traced function only one side is evaluated."""
    a, b, dtype = operations.common(true_value, false_value, "T.if_then_else")
    first, second = operations.as_dtype_expr(a, dtype), operations.as_dtype_expr(b, dtype)
    if not isinstance(condition, Value):
        return Value(first if condition else second)
    test = operations.truth(condition, "T.if_then_else")
    return Value(Select(test, first, second, dtype))


Select_ = if_then_else


def isnan(x: Any) -> Value:
    """Whether x is NaN."""
    operand = _scalar(x, "T.isnan").expr
    return Value(Compare("ne", operand, operand, bool_) if operand.dtype.is_float else Const(False, bool_))


def isinf(x: Any) -> Value:
    """Whether x is an infinity."""
    operand = _scalar(x, "T.isinf").expr
    if not operand.dtype.is_float:
        return Value(Const(False, bool_))
    return Value(Compare("eq", Unary("abs", operand, operand.dtype), Const(math.inf, operand.dtype), bool_))


def isfinite(x: Any) -> Value:
    """Whether x is neither NaN nor an infinity."""
    operand = _scalar(x, "T.isfinite").expr
    if not operand.dtype.is_float:
        return Value(Const(True, bool_))
    return Value(Compare("lt", Unary("abs", operand, operand.dtype), Const(math.inf, operand.dtype), bool_))


def infinity(dtype: Any) -> Value:
    """+∞ of a float dtype that has one; float8_e4m3fn, float8_e8m0fnu and float4_e2m1fn have none."""
    target = as_dtype(dtype)
    if target.name != "float8_e5m2":
        target = _float_dtype(target, "T.infinity")
    return Value(Const(math.inf, target))


def _float_dtype(dtype: Any, what: str) -> DType:
    target = as_dtype(dtype)
    if not target.is_float or not promotion.has_arithmetic(target):
        raise TypeMismatchError(
            f"{what} of {target}", location=user_location(), expected="a float dtype", got=str(target)
        )
    return target


_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
"""IEEE 754 and bfloat16: (2 − 2^(1−p)) · 2^emax."""


def max_value(dtype: Any) -> Value:
    """The largest finite value of a dtype."""
    target = as_dtype(dtype)
    if not target.is_float:
        return Value(Const(bool(target.maximum) if target.is_bool else target.maximum, target))
    return Value(Const(_LARGEST.get(_float_dtype(target, "T.max_value").name, 1.7976931348623157e308), target))


def min_value(dtype: Any) -> Value:
    """The smallest finite value of a dtype."""
    target = as_dtype(dtype)
    if not target.is_float:
        return Value(Const(bool(target.minimum) if target.is_bool else target.minimum, target))
    return Value(Const(-_LARGEST.get(_float_dtype(target, "T.min_value").name, 1.7976931348623157e308), target))


def ceildiv(a: Any, b: Any) -> Any:
    """a / b rounded up; of Python ints, a Python int."""
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    if isinstance(b, int):
        return (a + (b - 1)) // b
    return (a + (b - 1)) // b


cdiv = ceildiv


def align_up(a: Any, b: Any) -> Any:
    """The smallest multiple of b that is ≥ a."""
    return ceildiv(a, b) * b


def floordiv(a: Any, b: Any) -> Any:
    """a // b, rounded toward minus infinity."""
    return a // b


def floormod(a: Any, b: Any) -> Any:
    """a % b with the sign of b."""
    return a % b


def truncdiv(a: Any, b: Any) -> Value:
    """The integer quotient rounded toward zero (C's /)."""
    return _truncated("truncdiv", a, b)


def truncmod(a: Any, b: Any) -> Value:
    """The remainder of truncdiv, with the sign of a (C's %)."""
    return _truncated("truncmod", a, b)


def _truncated(operator: str, a: Any, b: Any) -> Value:
    left, right, dtype = operations.common(a, b, f"T.{operator}")
    if not dtype.is_integer:
        raise TypeMismatchError(f"T.{operator}", location=user_location(), expected="integers", got=str(dtype))
    left, right = operations.as_dtype_expr(left, dtype), operations.as_dtype_expr(right, dtype)
    return Value(Binary(operator, left, right, dtype))


def bitwise_and(a: Any, b: Any) -> Any:
    return a & b


def bitwise_or(a: Any, b: Any) -> Any:
    return a | b


def bitwise_xor(a: Any, b: Any) -> Any:
    return a ^ b


def bitwise_not(a: Any) -> Any:
    return ~a


def shift_left(a: Any, b: Any) -> Any:
    return a << b


def shift_right(a: Any, b: Any) -> Any:
    return a >> b


def popcount(x: Any) -> Value:
    """The number of one bits."""
    return _bits("popcount", x)


def ffs(x: Any) -> Value:
    """The place of the lowest one bit, counted from 1; 0 where there is none (CUDA's __ffs)."""
    value = _scalar(x, "T.__ffs")
    return value.ir_dtype.bits - clz(value & -value)


def clz(x: Any) -> Value:
    """The number of zero bits above the highest one bit."""
    return _bits("leading_zeros", x)


def _bits(name: str, x: Any) -> Value:
    operand = _scalar(x, f"T.{name}").expr
    if not operand.dtype.is_integer or operand.dtype.bits not in (32, 64):
        raise TypeMismatchError(
            f"T.{name}", location=user_location(), expected="an integer of 32 or 64 bits", got=str(operand.dtype)
        )
    unsigned = BY_NAME[f"uint{operand.dtype.bits}"]
    bits = operand if operand.dtype.kind is Kind.UINT else Bitcast(operand, unsigned)
    return Value(cast(Call(name, (bits,), unsigned), BY_NAME["int32"]))

"""Scalar operations on traced values and Python numbers: promotion, then one IR node each."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ptxtile.errors import TypeMismatchError
from ptxtile.frontend import promotion
from ptxtile.frontend.dtypes import as_dtype
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.promotion import number_dtype
from ptxtile.ir.expressions import Binary, Call, Compare, Const, Expr, Select, Unary, cast, constant
from ptxtile.ir.types import DType, Kind, bool_, float32

if TYPE_CHECKING:
    from ptxtile.frontend.values import Value

_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "floormod": "%", "pow": "**",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip


def numpy_number(value: object) -> bool | int | float | None:
    """The Python number in a NumPy scalar, else None."""
    if type(value).__module__ == "numpy" and hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return value.item()  # type: ignore[attr-defined]
    return None


def describe(value: object) -> str:
    """What an operand is, for messages."""
    from ptxtile.frontend.values import Value

    if isinstance(value, Value):
        return str(value.ir_dtype)
    if isinstance(value, (bool, int, float)):
        return f"the Python number {value!r}"
    described = getattr(value, "description", None)
    return described if isinstance(described, str) else f"{type(value).__name__} {value!r}"[:80]


def operand(value: Any, what: str) -> Expr | bool | int | float:
    """The expression of a Value, or a plain Python number; everything else is an error at the user's line."""
    from ptxtile.frontend.values import Value

    if isinstance(value, Value):
        return value.expr
    if isinstance(value, (bool, int, float)):
        return value
    number = numpy_number(value)
    if number is not None:
        return number
    hint = None
    if hasattr(value, "description"):
        hint = "compute elements in `for i, j in T.Parallel(...)`, such as C[i, j] = A[i, j] + B[i, j]"
    raise TypeMismatchError(
        f"an operand of {what} is not a scalar", location=user_location(), expected="a traced scalar or a number",
        got=describe(value), hint=hint,
    )  # fmt: skip


def dtype_of(value: Expr | bool | int | float) -> DType:
    return value.dtype if isinstance(value, Expr) else number_dtype(value)


def number_expr(value: Any, dtype: DType | None = None) -> Const:
    """A Python number as a constant of ``dtype``; it must be representable where dtype is an integer type."""
    number = numpy_number(value)
    number = value if number is None else number
    dtype = dtype or number_dtype(number)
    if dtype.is_float:
        return Const(float(number), dtype)
    if dtype.is_bool:
        return Const(bool(number), dtype)
    if isinstance(number, float) and (not math.isfinite(number) or number != int(number)):
        raise TypeMismatchError(
            f"the number {number!r} does not fit in {dtype}", location=user_location(), expected="an integer"
        )
    return constant(int(number), dtype)


def as_dtype_expr(value: Expr | bool | int | float, dtype: DType) -> Expr:
    """A promoted operand: a number becomes a constant of ``dtype``, an expression is cast."""
    return cast(value, dtype) if isinstance(value, Expr) else number_expr(value, dtype)


def common(left: Any, right: Any, what: str, *, bitwise: bool = False) -> tuple[Any, Any, DType]:
    """Both operands and their common dtype."""
    a, b = operand(left, what), operand(right, what)
    if bitwise and not isinstance(b, Expr) and isinstance(a, Expr):
        dtype = promotion.promote_number(a.dtype, b, bitwise=True)
    elif bitwise and not isinstance(a, Expr) and isinstance(b, Expr):
        dtype = promotion.promote_number(b.dtype, a, bitwise=True)
    else:
        dtype = promotion.promote(dtype_of(a), dtype_of(b))
    if dtype is None:
        raise TypeMismatchError(
            f"{dtype_of(a)} {what} {dtype_of(b)} has no common dtype", location=user_location(),
            expected="dtypes that promote to one", got=f"{dtype_of(a)} and {dtype_of(b)}",
            hint="cast one side, such as T.float32(x)",
        )  # fmt: skip
    return a, b, dtype


def _require_arithmetic(dtype: DType, what: str) -> None:
    if not promotion.has_arithmetic(dtype):
        raise TypeMismatchError(
            f"{dtype} can be stored, copied and cast, but not computed with", location=user_location(),
            expected="float16, bfloat16, float32, float64, an integer of 8 bits or more, or bool",
            got=f"{dtype} in {what}", hint="cast the operands, such as T.float32(x)",
        )  # fmt: skip


def _value(expr: Expr) -> Value:
    from ptxtile.frontend.values import Value

    return Value(expr)


def arithmetic(operator: str, left: Any, right: Any) -> Value:
    """``+ - *`` with promotion; two bools give int32."""
    sign = _SIGNS[operator]
    a, b, dtype = common(left, right, sign)
    dtype = promotion.arithmetic(dtype)
    _require_arithmetic(dtype, sign)
    return _value(Binary(operator, as_dtype_expr(a, dtype), as_dtype_expr(b, dtype), dtype))


def extremum(operator: str, left: Any, right: Any) -> Value:
    """``min`` or ``max``; NaN propagates. Of bools it is ``and`` or ``or``; of narrow floats it is found in float32,
    exactly, and has the operands' dtype."""
    a, b, dtype = common(left, right, f"T.{operator}")
    if dtype.is_bool:
        operator = "and" if operator == "min" else "or"
        return _value(Binary(operator, as_dtype_expr(a, dtype), as_dtype_expr(b, dtype), dtype))
    wide = _widened(dtype)
    _require_arithmetic(wide, f"T.{operator}")
    return _value(cast(Binary(operator, _in(wide, dtype, a), _in(wide, dtype, b), wide), dtype))


def _widened(dtype: DType) -> DType:
    """The dtype in which values are compared: float32 holds those of every float of 8 bits or less."""
    return float32 if dtype.is_float and dtype.bits <= 8 else dtype


def _in(wide: DType, dtype: DType, value: Expr | bool | int | float) -> Expr:
    """An operand rounded to ``dtype``, in the dtype ``wide`` that it is compared in."""
    return cast(as_dtype_expr(value, dtype), wide)


def true_divide(left: Any, right: Any) -> Value:
    """``/``: of floats in their common dtype, of integers as float32."""
    a, b, dtype = common(left, right, "/")
    dtype = promotion.floating(dtype)
    _require_arithmetic(dtype, "/")
    return _value(Binary("div", as_dtype_expr(a, dtype), as_dtype_expr(b, dtype), dtype))


def _bound(expr: Expr) -> Expr:
    """The expression bound to a name, so that it may be used twice; outside of a kernel it is repeated."""
    from ptxtile.frontend.current import active_tracer

    tracer = active_tracer()
    return expr if tracer is None or tracer.kernel is None else tracer.bind("operand", expr)


def _float_modulo(a: Expr, b: Expr) -> Expr:
    """Python's ``%`` of floats: fmod, moved to the sign of the divisor."""
    remainder = _bound(Call("fmod", (a, b), a.dtype))
    zero = constant(0.0, a.dtype)
    wrong_sign = Compare("ne", Compare("lt", remainder, zero, bool_), Compare("lt", b, zero, bool_), bool_)
    move = Binary("and", Compare("ne", remainder, zero, bool_), wrong_sign, bool_)
    return Select(move, Binary("add", remainder, b, a.dtype), remainder, a.dtype)


def floor_divide(left: Any, right: Any) -> Value:
    """``//``, rounded toward minus infinity, also for floats; those of 16 bits are divided in float32, as in torch."""
    a, b, dtype = common(left, right, "//")
    dtype = promotion.arithmetic(dtype)
    _require_arithmetic(dtype, "//")
    x, y = as_dtype_expr(a, dtype), as_dtype_expr(b, dtype)
    if dtype.is_float:
        inner = float32 if dtype.bits == 16 else dtype
        x, y = _bound(cast(x, inner)), _bound(cast(y, inner))
        whole = Binary("div", Binary("sub", x, _float_modulo(x, y), inner), y, inner)
        return _value(cast(Unary("rint", whole, inner), dtype))
    _refuse_zero(y, "//")
    return _value(Binary("floordiv", x, y, dtype))


def modulo(left: Any, right: Any) -> Value:
    """``%`` with the sign of the divisor, as in Python."""
    a, b, dtype = common(left, right, "%")
    dtype = promotion.arithmetic(dtype)
    _require_arithmetic(dtype, "%")
    x, y = as_dtype_expr(a, dtype), as_dtype_expr(b, dtype)
    if dtype.is_float:
        return _value(_float_modulo(_bound(x), _bound(y)))
    _refuse_zero(y, "%")
    return _value(Binary("floormod", x, y, dtype))


def _refuse_zero(divisor: Expr, sign: str) -> None:
    if isinstance(divisor, Const) and divisor.value == 0:
        raise TypeMismatchError(f"integer {sign} by zero", location=user_location())


def power(left: Any, right: Any) -> Value:
    """``**``. A constant integer exponent of 0 … 8 becomes multiplications; integers otherwise compute in float32."""
    a, b = operand(left, "**"), operand(right, "**")
    exponent = b if not isinstance(b, Expr) else b.value if isinstance(b, Const) else None
    if isinstance(a, Expr) and isinstance(exponent, int) and 0 <= exponent <= 8:
        _require_arithmetic(a.dtype, "**")
        return _value(_repeated(cast(a, promotion.arithmetic(a.dtype)), exponent))
    a, b, dtype = common(left, right, "**")
    dtype = promotion.floating(dtype)
    _require_arithmetic(dtype, "**")
    return _value(Call("pow", (as_dtype_expr(a, dtype), as_dtype_expr(b, dtype)), dtype))


def _repeated(base: Expr, exponent: int) -> Expr:
    """base ** exponent by squaring."""
    if exponent == 0:
        return number_expr(1, base.dtype)
    base = _bound(base)
    result: Expr | None = None
    while exponent:
        if exponent & 1:
            result = base if result is None else Binary("mul", result, base, base.dtype)
        exponent >>= 1
        if exponent:
            base = _bound(Binary("mul", base, base, base.dtype))
    assert result is not None
    return result


def bitwise(operator: str, left: Any, right: Any) -> Value:
    """``& | ^`` of integers or bools."""
    sign = _SIGNS[operator]
    a, b, dtype = common(left, right, sign, bitwise=True)
    _require_integer(dtype, sign, allow_bool=True)
    return _value(Binary(operator, as_dtype_expr(a, dtype), as_dtype_expr(b, dtype), dtype))


def shift(operator: str, left: Any, right: Any) -> Value:
    """``<< >>``; ``>>`` keeps the sign of a signed integer."""
    sign = _SIGNS[operator]
    a, b, dtype = common(left, right, sign, bitwise=True)
    dtype = promotion.arithmetic(dtype)
    _require_integer(dtype, sign)
    if not isinstance(b, Expr) and b < 0:
        raise TypeMismatchError("negative shift count", location=user_location(), got=repr(b))
    return _value(Binary(operator, as_dtype_expr(a, dtype), as_dtype_expr(b, dtype), dtype))


def _require_integer(dtype: DType, what: str, *, allow_bool: bool = False) -> None:
    if (dtype.is_integer and dtype.bits >= 8) or (allow_bool and dtype.is_bool):
        return
    raise TypeMismatchError(
        f"{what} needs integers", location=user_location(), expected="integer operands", got=str(dtype),
        hint="T.reinterpret(x, T.int32) gives the bits of a float32",
    )  # fmt: skip


def comparison(operator: str, left: Any, right: Any) -> Value:
    sign = _SIGNS[operator]
    if operator in ("eq", "ne") and (right is None or isinstance(right, str)):
        raise TypeMismatchError(
            f"a traced value is compared with {right!r}", location=user_location(),
            hint="`x is None` asks whether Python holds None",
        )  # fmt: skip
    a, b, dtype = common(left, right, sign)
    if operator not in ("eq", "ne"):
        dtype = promotion.arithmetic(dtype)
    wide = _widened(dtype)
    _require_arithmetic(wide, sign)
    return _value(Compare(operator, _in(wide, dtype, a), _in(wide, dtype, b), bool_))


def negate(value: Value) -> Value:
    expr = cast(value.expr, promotion.arithmetic(value.ir_dtype))
    _require_arithmetic(expr.dtype, "unary -")
    return _value(Unary("neg", expr, expr.dtype))


def invert(value: Value) -> Value:
    """``~``: inverts the bits of an integer, the truth of a bool (as TileLang and torch do)."""
    expr = value.expr
    _require_integer(expr.dtype, "~", allow_bool=True)
    return _value(Unary("not", expr, expr.dtype))


def absolute(value: Any) -> Value:
    expr = operand(value, "abs")
    expr = as_dtype_expr(expr, promotion.arithmetic(dtype_of(expr)))
    _require_arithmetic(expr.dtype, "abs")
    return _value(expr if expr.dtype.kind is Kind.UINT else Unary("abs", expr, expr.dtype))


def rounded(operator: str, value: Any) -> Value:
    """floor, ceil, trunc or rint of a float; an integer is its own rounding."""
    expr = operand(value, operator)
    expr = as_dtype_expr(expr, promotion.arithmetic(dtype_of(expr)))
    _require_arithmetic(expr.dtype, operator)
    return _value(Unary(operator, expr, expr.dtype) if expr.dtype.is_float else expr)


def truth(value: Any, what: str) -> Expr:
    """A traced value as a bool: ``!= 0`` unless it is one already."""
    expr = operand(value, what)
    if not isinstance(expr, Expr):
        return Const(bool(expr), bool_)
    if expr.dtype.is_bool:
        return expr
    _require_arithmetic(expr.dtype, what)
    return Compare("ne", expr, number_expr(0, expr.dtype), bool_)


def cast_value(value: Any, dtype: Any) -> Value:
    """``T.cast(value, dtype)`` and ``T.float32(value)``: torch's conversion; a Python number becomes a constant."""
    target = as_dtype(dtype)
    expr = operand(value, f"a cast to {target}")
    if not isinstance(expr, Expr):
        if target.is_integer and isinstance(expr, float):
            if not math.isfinite(expr):
                raise TypeMismatchError(f"{expr} does not fit in {target}", location=user_location())
            expr = math.trunc(expr)
        return _value(number_expr(expr, target))
    return _value(cast(expr, target))


def converted(value: Any, dtype: DType) -> Expr:
    """A value as it is stored in a buffer of ``dtype``: cast like ``T.cast``."""
    return cast_value(value, dtype).expr


def fitting(name: str, value: Any, dtype: DType) -> Expr:
    """A value for a variable of ``dtype``, which must hold it without loss of range or of being a float."""
    expr = operand(value, f"the assignment to {name}")
    if promotion.fits(dtype_of(expr), dtype):
        return as_dtype_expr(expr, dtype)
    wanted = promotion.promote(dtype_of(expr), dtype) or dtype_of(expr)
    raise TypeMismatchError(
        f"{name} is a {dtype} here, because it is rebound under traced control flow and started as one",
        location=user_location(), expected=f"a value that fits in {dtype}", got=describe(value),
        hint=f"start it as `{name} = T.{wanted}(...)`, or cast the new value: T.{dtype}(...)",
    )  # fmt: skip

"""What each operator of the IR gives, in Python's integers and fractions (ptxtile.ir.expressions has the semantics).

Every function takes and gives Python numbers of the operands' dtype; None is a result that the IR leaves open.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from ptxtile.ir import expressions as ir
from ptxtile.ir.types import DType, Kind, bfloat16, float16, float32, int32, int64
from tests.conformance.values import Number, round_number, rounded

# --- integers and bools ---------------------------------------------------------------------------------------------


def _truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _shift_right(a: int, b: int, dtype: DType) -> int:
    if 0 <= b < dtype.bits:
        return a >> b
    return -1 if a < 0 else 0


INTEGER: dict[str, Callable[[int, int, DType], int | None]] = {
    "add": lambda a, b, d: a + b,
    "sub": lambda a, b, d: a - b,
    "mul": lambda a, b, d: a * b,
    "mulhi": lambda a, b, d: (a * b) >> d.bits,
    "floordiv": lambda a, b, d: a // b if b else None,
    "floormod": lambda a, b, d: a % b if b else None,
    "truncdiv": lambda a, b, d: _truncated(a, b) if b else None,
    "truncmod": lambda a, b, d: a - _truncated(a, b) * b if b else None,
    "min": lambda a, b, d: min(a, b),
    "max": lambda a, b, d: max(a, b),
    "and": lambda a, b, d: a & b,
    "or": lambda a, b, d: a | b,
    "xor": lambda a, b, d: a ^ b,
    "shl": lambda a, b, d: a << b if 0 <= b < d.bits else 0,
    "shr": _shift_right,
}
BOOL: dict[str, Callable[[bool, bool], bool]] = {
    "and": lambda a, b: a and b,
    "or": lambda a, b: a or b,
    "xor": lambda a, b: a != b,
}
INTEGER_UNARY: dict[str, Callable[[int], int]] = {"neg": lambda a: -a, "abs": abs, "not": lambda a: ~a}


def popcount(a: int, dtype: DType) -> int:
    return (a & ((1 << dtype.bits) - 1)).bit_count()


def leading_zeros(a: int, dtype: DType) -> int:
    return dtype.bits - (a & ((1 << dtype.bits) - 1)).bit_length()


# --- floats ---------------------------------------------------------------------------------------------------------


def _finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def add(a: float, b: float, dtype: DType) -> float:
    total = Fraction(a) + Fraction(b) if _finite(a, b) else None
    return rounded(total, dtype) if total else a + b  # an exact 0 has the sign that float64 gives it


def multiply(a: float, b: float, dtype: DType) -> float:
    return rounded(Fraction(a) * Fraction(b), dtype) if _finite(a, b) and a and b else a * b


def divide(a: float, b: float, dtype: DType) -> float:
    if b == 0:
        invalid = a == 0 or math.isnan(a)
        return math.nan if invalid else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return rounded(Fraction(a) / Fraction(b), dtype) if _finite(a, b) and a else a / b


def fma(a: float, b: float, c: float, dtype: DType) -> float:
    if not _finite(a, b):
        return a * b + c
    if not _finite(c):
        return c
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total:
        return rounded(total, dtype)
    product_sign = math.copysign(1.0, a) * math.copysign(1.0, b)
    both_negative = product_sign < 0 and math.copysign(1.0, c) < 0
    return -0.0 if both_negative and (a == 0 or b == 0) else 0.0


def minimum(a: float, b: float, dtype: DType) -> float:
    if math.isnan(a) or math.isnan(b):
        return math.nan
    return min(a, b, key=lambda x: (x, math.copysign(1, x)))


def maximum(a: float, b: float, dtype: DType) -> float:
    if math.isnan(a) or math.isnan(b):
        return math.nan
    return max(a, b, key=lambda x: (x, math.copysign(1, x)))


FLOAT: dict[str, Callable[[float, float, DType], float]] = {
    "add": add, "sub": lambda a, b, d: add(a, -b, d), "mul": multiply, "div": divide, "min": minimum, "max": maximum,
}  # fmt: skip


def square_root(a: float, dtype: DType) -> float:
    """float64 has more than twice the precision of the other formats, so rounding twice is exact (Figueroa)."""
    if math.isnan(a) or a < 0:
        return math.nan
    return round_number(math.sqrt(a), dtype)


def _to_integral(function: Callable[[float], int]) -> Callable[[float, DType], float]:
    return lambda a, d: math.copysign(float(function(a)), a) if math.isfinite(a) else a


FLOAT_UNARY: dict[str, Callable[[float, DType], float]] = {
    "neg": lambda a, d: -a, "abs": lambda a, d: abs(a), "sqrt": square_root,
    "floor": _to_integral(math.floor), "ceil": _to_integral(math.ceil), "trunc": _to_integral(math.trunc),
    "rint": _to_integral(round),
}  # fmt: skip

COMPARISON: dict[str, Callable[[Number, Number], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


# --- conversions ----------------------------------------------------------------------------------------------------


def cast(value: Number, source: DType, target: DType) -> Number:
    """:class:`ptxtile.ir.expressions.Cast`; an integer result is still to be wrapped to the target's width."""
    if target.kind is Kind.BOOL:
        return value != 0
    if target.kind is Kind.FLOAT:
        through_float32 = target.bits == 8 or (target in (float16, bfloat16) and source != float32)
        number = float(value) if source.kind is Kind.FLOAT else int(value)
        return round_number(round_number(number, float32) if through_float32 else number, target)
    if source.kind is not Kind.FLOAT:
        return int(value)
    if math.isnan(value):
        return 0
    carrier = target if target.bits >= 32 else int32 if target.is_signed else int64
    if math.isinf(value):
        return carrier.maximum if value > 0 else carrier.minimum
    return max(carrier.minimum, min(carrier.maximum, math.trunc(value)))


# --- trees ----------------------------------------------------------------------------------------------------------


def binary(operator: str, a: Number, b: Number, dtype: DType) -> Number | None:
    if dtype.is_bool:
        return BOOL[operator](a, b)  # type: ignore[arg-type]
    table = FLOAT if dtype.is_float else INTEGER
    return table[operator](a, b, dtype)  # type: ignore[arg-type, operator]


def unary(operator: str, a: Number, dtype: DType) -> Number:
    if dtype.is_bool:
        return not a
    return FLOAT_UNARY[operator](a, dtype) if dtype.is_float else INTEGER_UNARY[operator](a)  # type: ignore[arg-type]


def wrapped(value: Number | None, dtype: DType) -> Number | None:
    return ir.constant(value, dtype).value if dtype.is_integer and value is not None else value


def evaluate(node: ir.Expr, variables: Mapping[str, Number]) -> Number | None:
    """The value of a scalar expression without loads; None where something that it needs is left open."""
    return wrapped(_evaluate(node, variables), node.dtype)


def _evaluate(node: ir.Expr, variables: Mapping[str, Number]) -> Number | None:
    if isinstance(node, ir.Var):
        return variables[node.name]
    if isinstance(node, ir.Const):
        return round_number(node.value, node.dtype) if node.dtype.is_float else node.value
    if isinstance(node, ir.Select):
        condition = evaluate(node.condition, variables)
        return None if condition is None else evaluate(node.if_true if condition else node.if_false, variables)
    if isinstance(node, ir.Call):
        operands = [evaluate(argument, variables) for argument in node.arguments]
        assert node.function == "fma"
        return None if None in operands else fma(*operands, node.dtype)  # type: ignore[arg-type]
    if isinstance(node, (ir.Unary, ir.Cast)):
        operand = evaluate(node.operand, variables)
        if operand is None:
            return None
        if isinstance(node, ir.Cast):
            return cast(operand, node.operand.dtype, node.dtype)
        return unary(node.operator, operand, node.dtype)
    assert isinstance(node, (ir.Binary, ir.Compare)), node
    left, right = evaluate(node.left, variables), evaluate(node.right, variables)
    if left is None or right is None:
        return None
    if isinstance(node, ir.Compare):
        return COMPARISON[node.operator](left, right)
    return binary(node.operator, left, right, node.dtype)

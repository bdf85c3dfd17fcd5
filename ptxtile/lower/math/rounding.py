"""round (halves away from zero) and copysign: exact."""

from __future__ import annotations

from ptxtile.ir.expressions import unary
from ptxtile.ir.program import Function
from ptxtile.ir.types import DType
from ptxtile.lower.math.builder import FunctionBuilder


def round(dtype: DType) -> Function:
    """C's round. x − trunc(x) is exact, and its sign and that of the result are x's, also for ±0."""
    b = FunctionBuilder("round", dtype, "x")
    x = b.parameter("x")
    whole = b.let("whole", unary("trunc", x))
    away = b.let("away", whole + b.with_sign_of(b.constant(1.0), x))
    return b.finish(b.select(b.absolute(x - whole).ge(0.5), away, whole))


def copysign(dtype: DType) -> Function:
    b = FunctionBuilder("copysign", dtype, "magnitude", "sign")
    return b.finish(b.with_sign_of(b.absolute(b.parameter("magnitude")), b.parameter("sign")))

"""erf: x + x·P(x²) up to 1, then 1 − e^g with a polynomial g ≈ log(erfc(x))."""

from __future__ import annotations

from ptxtile.ir.program import Function
from ptxtile.ir.types import DType, float32
from ptxtile.lower.math.builder import FunctionBuilder
from ptxtile.lower.math.exponentials import exponential


def erf(dtype: DType) -> Function:
    b = FunctionBuilder("erf", dtype, "x")
    x = b.parameter("x")
    magnitude = b.let("magnitude", b.absolute(x))
    z = b.let("z", x * x)
    near = b.let("near", b.fma(magnitude, b.polynomial("erf", z), magnitude))
    # Beyond the limit erfc is less than half an ulp of 1.
    limit = 3.95 if dtype == float32 else 5.95
    distance = b.let("distance", b.clamp(magnitude, 0.0, limit) - b.split("erf_center")[0])
    exponent = b.let("exponent", -b.polynomial("erf_tail", distance))
    far = b.let("far", 1.0 - exponential(b, exponent))
    return b.finish(b.with_sign_of(b.select(magnitude.lt(1.0), near, far), x))

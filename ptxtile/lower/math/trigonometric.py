"""sin, cos, tan.

x = n·π/2 + r with |r| ≤ π/4. Up to a limit, n·π/2 is subtracted in three parts with fma (W. Cody, W. Waite, «Software
Manual for the Elementary Functions», 1980): the first step is exact, since x and n·(first part) are multiples of the
same power of two and their difference is below 1. Larger arguments go to a function of their own
(:mod:`large_arguments`).
"""

from __future__ import annotations

from ptxtile.ir.expressions import Expr
from ptxtile.ir.program import Function
from ptxtile.ir.types import DType, float32
from ptxtile.lower.math.builder import INFINITY, FunctionBuilder
from ptxtile.lower.math.large_arguments import Angle, reduce_large

LIMIT = {"float32": 105000.0, "float64": 2.0**30}
"""Up to here the part of π/2 that the three constants leave out matters less than 2^-9 ulp of the smallest r there
is."""


def reduce_small(b: FunctionBuilder, x: Expr, pair: bool = False) -> Angle:
    """The angle of x within ±LIMIT; r_low is 0 unless ``pair``."""
    shift = b.format.rounding_shift
    shifted = b.let("shifted", b.fma(x, b.split("two_over_pi")[0], shift))
    n = b.let("n", shifted - shift)
    first, second, third = b.split("pi_over_2")
    exact = b.fma(n, -first, x)
    if not pair:
        r = b.let("r", b.fma(n, -third, b.fma(n, -second, exact)))
        return r, b.constant(0.0), b.bits(shifted)
    exact = b.let("exact", exact)
    product, product_low = b.two_product("product", n, second)
    high, rest = b.two_sum("difference", exact, b.let("negated", -product))
    low = b.let("low", b.fma(n, -third, rest - product_low))
    r_high, r_low = b.fast_two_sum("r", high, low)
    return r_high, r_low, b.bits(shifted)


def sine_of(b: FunctionBuilder, angle: Angle, quarter_turns: int) -> Expr:
    """sin(angle + quarter_turns·π/2)."""
    r, _, quadrant = angle
    z = b.let("z", r * r)
    sine = b.let("sine", b.fma(r * z, b.polynomial("sin", z), r))
    cosine = b.let("cosine", b.fma(z, b.polynomial("cos", z), 1.0))
    quadrant = b.let("turned", quadrant + quarter_turns) if quarter_turns else b.let("turned", quadrant)
    value = b.select((quadrant & 1).ne(0), cosine, sine)
    sign = (quadrant & 2) << (b.dtype.bits - 2)
    return b.number(b.bits(value) ^ sign)


def tangent_of(b: FunctionBuilder, angle: Angle) -> Expr:
    """tan(angle): r + u in even quadrants, −1/(r + u) in odd ones; float64 keeps both as pairs."""
    r, r_low, quadrant = angle
    odd = b.let("odd", (quadrant & 1).ne(0))
    z = b.let("z", r * r)
    if b.dtype == float32:
        tangent = b.let("tangent", b.fma(r * z, b.polynomial("tan", z), r))
        return b.select(odd, -1.0 / tangent, tangent)
    tail = b.let("tail", (r * z) * b.polynomial("tan", z))
    estimate = b.let("estimate", r + tail)
    tail = b.let("tail", b.fma(r_low, b.fma(estimate, estimate, 1.0), tail))  # tan' = 1 + tan²
    high, low = b.fast_two_sum("tangent", r, tail)
    inverse = b.let("inverse", -1.0 / high)
    error = b.let("error", b.fma(low, inverse, b.fma(high, inverse, 1.0)))
    return b.select(odd, b.fma(inverse, error, inverse), high)


def _large(name: str, dtype: DType) -> Function:
    """The function for |x| > LIMIT; infinity gives NaN."""
    b = FunctionBuilder(f"{name}_large", dtype, "x")
    x = b.parameter("x")
    magnitude = b.let("magnitude", b.absolute(x))
    angle = reduce_large(b, magnitude)
    if name == "cos":
        result = sine_of(b, angle, 1)
    else:
        of_magnitude = sine_of(b, angle, 0) if name == "sin" else tangent_of(b, angle)
        result = b.flip_sign(of_magnitude, b.sign_of(x))
    return b.finish(b.select(magnitude.lt(INFINITY), result, x - x), out_of_line=True)


def _trigonometric(name: str, dtype: DType) -> Function:
    b = FunctionBuilder(name, dtype, "x")
    x = b.parameter("x")
    angle = reduce_small(b, x, pair=name == "tan" and dtype != float32)
    if name == "cos":
        small = sine_of(b, angle, 1)
    else:
        small = sine_of(b, angle, 0) if name == "sin" else tangent_of(b, angle)
        small = b.select(x.eq(0.0), x, small)  # keeps the sign of zero
    result = b.variable("result")
    result.set(small)
    with b.branch(b.absolute(x).gt(LIMIT[dtype.name])):
        result.set(b.call(f"{name}_large", x))
    return b.finish(result.value)


def sin_large(dtype: DType) -> Function:
    return _large("sin", dtype)


def cos_large(dtype: DType) -> Function:
    return _large("cos", dtype)


def tan_large(dtype: DType) -> Function:
    return _large("tan", dtype)


def sin(dtype: DType) -> Function:
    return _trigonometric("sin", dtype)


def cos(dtype: DType) -> Function:
    return _trigonometric("cos", dtype)


def tan(dtype: DType) -> Function:
    return _trigonometric("tan", dtype)

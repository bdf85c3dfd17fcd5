"""sinh, cosh, tanh and their inverses: from e^x where that does not cancel, from odd polynomials near 0."""

from __future__ import annotations

from ptxtile.ir.expressions import Expr
from ptxtile.ir.program import Function
from ptxtile.ir.types import DType, float32
from ptxtile.lower.math.builder import NAN, FunctionBuilder
from ptxtile.lower.math.exponentials import exponential, reduce_by_ln2


def _odd_polynomial(b: FunctionBuilder, name: str, x: Expr) -> Expr:
    z = b.let("z", x * x)
    return b.let("near", b.fma(x * z, b.polynomial(name, z), x))


def sinh(dtype: DType) -> Function:
    b = FunctionBuilder("sinh", dtype, "x")
    x = b.parameter("x")
    magnitude = b.let("magnitude", b.absolute(x))
    half_power = b.let("half_power", exponential(b, magnitude, exponent=-1))
    far = b.let("far", half_power - 0.25 / half_power)
    near = _odd_polynomial(b, "sinh", magnitude)
    return b.finish(b.with_sign_of(b.select(magnitude.lt(1.0), near, far), x))


def cosh(dtype: DType) -> Function:
    b = FunctionBuilder("cosh", dtype, "x")
    half_power = b.let("half_power", exponential(b, b.absolute(b.parameter("x")), exponent=-1))
    return b.finish(half_power + 0.25 / half_power)


def tanh(dtype: DType) -> Function:
    """1 − 2/(e^2|x| + 1), and an odd polynomial below 0.55."""
    b = FunctionBuilder("tanh", dtype, "x")
    x = b.parameter("x")
    magnitude = b.let("magnitude", b.absolute(x))
    # From the limit on tanh rounds to 1, and up to it 2^n is a normal number that one addition to the exponent makes.
    limit = 10.0 if dtype == float32 else 20.0
    doubled = b.let("doubled", b.clamp(magnitude, 0.0, limit) * 2.0)
    r, _, shifted = reduce_by_ln2(b, doubled)
    tail = b.let("tail", b.fma(b.polynomial("exp", r), r, 1.0))
    mantissa = b.let("mantissa", b.fma(tail, r, 1.0))
    bias_bits = 2 * b.format.bias << b.format.mantissa_bits
    power = b.number(b.bits(mantissa) + (b.bits(shifted) << b.format.mantissa_bits) - bias_bits)
    far = b.let("far", 1.0 - 2.0 / (power + 1.0))
    near = _odd_polynomial(b, "tanh", magnitude)
    # NaN fails the comparison and takes ``near``: the addition to the exponent would have made a number of it.
    return b.finish(b.with_sign_of(b.select(magnitude.ge(0.55), far, near), x))


LARGE = {"float32": 2.0**30, "float64": 2.0**60}
"""From here on x + 1, x and √(x² ± 1) are the same number, and log1p(x) is log(x)."""


def _log_of_twice_large(b: FunctionBuilder, argument: Expr, large: Expr) -> Expr:
    """log1p(argument), plus ln 2 where ``large``."""
    ln2 = sum(b.split("ln2"))
    return b.call("log1p", b.let("argument", argument)) + b.select(large, ln2, 0.0)


def asinh(dtype: DType) -> Function:
    """log1p(a + a²/(1 + √(a² + 1))); for large a, log(2a)."""
    b = FunctionBuilder("asinh", dtype, "x")
    x = b.parameter("x")
    a = b.let("a", b.absolute(x))
    large = b.let("large", a.gt(LARGE[dtype.name]))
    square = b.let("square", a * a)
    excess = a + square / (b.sqrt(square + 1.0) + 1.0)
    return b.finish(b.with_sign_of(_log_of_twice_large(b, b.select(large, a, excess), large), x))


def acosh(dtype: DType) -> Function:
    """log1p(t + √(t² + 2t)) with t = x − 1; for large x, log(2x)."""
    b = FunctionBuilder("acosh", dtype, "x")
    x = b.parameter("x")
    large = b.let("large", x.gt(LARGE[dtype.name]))
    t = b.let("t", x - 1.0)
    excess = t + b.sqrt(b.fma(t, t, t + t))
    return b.finish(b.select(x.lt(1.0), NAN, _log_of_twice_large(b, b.select(large, x, excess), large)))


def atanh(dtype: DType) -> Function:
    """½·log1p(2a/(1 − a))."""
    b = FunctionBuilder("atanh", dtype, "x")
    x = b.parameter("x")
    a = b.let("a", b.absolute(x))
    result = b.call("log1p", b.let("argument", (a + a) / (1.0 - a))) * 0.5
    return b.finish(b.with_sign_of(b.select(a.gt(1.0), NAN, result), x))

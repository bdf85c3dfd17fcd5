"""exp, exp2, exp10, expm1, sigmoid.

All reduce x = n·L + r with n an integer and r within half a step, evaluate a polynomial in r, and scale by 2^n in two
multiplications, so that subnormal results round once and overflow gives infinity, without a branch.
"""

from __future__ import annotations

from ptxtile.ir.expressions import Expr
from ptxtile.ir.program import Function
from ptxtile.ir.types import DType, float32
from ptxtile.lower.math.builder import FunctionBuilder


def nearest_integer(b: FunctionBuilder, x: Expr, factor: float | None, exponent: int = 0) -> tuple[Expr, Expr]:
    """n = rint(x·factor) as a float, and a float whose low bits are 2·bias + n + exponent, for :func:`scale`."""
    shift = b.format.rounding_shift + 2 * b.format.bias + exponent
    shifted = b.let("shifted", x + shift if factor is None else b.fma(x, factor, shift))
    return b.let("n", shifted - shift), shifted


def scale(b: FunctionBuilder, value: Expr, n: Expr, shifted: Expr) -> Expr:
    """value·2^(n + exponent), n within twice the exponent range: two factors 2^⌊n/2⌉ and the rest, made by shifts.

    The low bits of ``half`` are bias + n/2, those of the difference bias + rest: moved into the exponent field, the
    bits above them fall off.
    """
    half = b.let("half", b.fma(n, 0.5, b.format.rounding_shift + b.format.bias))
    first = b.number(b.bits(half) << b.format.mantissa_bits)
    second = b.number((b.bits(shifted) - b.bits(half)) << b.format.mantissa_bits)
    return value * first * second


def exp_limits(dtype: DType) -> tuple[float, float]:
    """Arguments past which exp is 0 or infinite (for exp/2 too), yet n stays in the range of :func:`scale`."""
    return (-105.0, 90.0) if dtype == float32 else (-747.0, 711.0)


def reduce_by_ln2(b: FunctionBuilder, x: Expr, exponent: int = 0) -> tuple[Expr, Expr, Expr]:
    """r = x − n·ln 2, with n and ``shifted`` of :func:`nearest_integer`. The first product is exact: ln 2 is short
    there."""
    n, shifted = nearest_integer(b, x, b.split("log2_e")[0], exponent)
    ln2_high, ln2_low = b.split("ln2")
    r = b.let("r", b.fma(n, -ln2_low, b.fma(n, -ln2_high, x)))
    return r, n, shifted


def exponential(b: FunctionBuilder, x: Expr, exponent: int = 0) -> Expr:
    """e^x · 2^exponent for any x; the exponent is -1, 0 or 1."""
    x = b.let("clamped", b.clamp(x, *exp_limits(b.dtype)))
    r, n, shifted = reduce_by_ln2(b, x, exponent)
    tail = b.let("tail", b.fma(b.polynomial("exp", r), r, 1.0))
    return scale(b, b.fma(tail, r, 1.0), n, shifted)


def exp(dtype: DType) -> Function:
    b = FunctionBuilder("exp", dtype, "x")
    return b.finish(exponential(b, b.parameter("x")))


def exp2(dtype: DType) -> Function:
    b = FunctionBuilder("exp2", dtype, "x")
    low, high = (-152.0, 130.0) if dtype == float32 else (-1077.0, 1026.0)
    x = b.let("clamped", b.clamp(b.parameter("x"), low, high))
    n, shifted = nearest_integer(b, x, None)
    f = b.let("f", x - n)
    return b.finish(scale(b, b.fma(b.polynomial("exp2", f), f, 1.0), n, shifted))


def exp10(dtype: DType) -> Function:
    b = FunctionBuilder("exp10", dtype, "x")
    low, high = (-46.0, 39.0) if dtype == float32 else (-325.0, 309.0)
    x = b.let("clamped", b.clamp(b.parameter("x"), low, high))
    n, shifted = nearest_integer(b, x, b.split("log2_10")[0])
    step_high, step_low = b.split("log10_2")
    r = b.let("r", b.fma(n, -step_low, b.fma(n, -step_high, x)))
    return b.finish(scale(b, b.fma(b.polynomial("exp10", r), r, 1.0), n, shifted))


def expm1_parts(b: FunctionBuilder, x: Expr) -> Expr:
    """e^x − 1 = 2^n·q + (2^n − 1) with q = e^r − 1, for x within :func:`exp_limits`; -0 becomes 0.

    Everything is halved until the end, so that 2^n itself never overflows.
    """
    fmt = b.format
    r, n, shifted = reduce_by_ln2(b, x)
    tail = b.let("tail", b.polynomial("expm1", r) * (r * r))
    q = b.let("q", r + tail)
    power = b.let("power", b.number((b.bits(shifted) - (fmt.bias + 1)) << fmt.mantissa_bits))  # 2^(n − 1)
    rest = b.let("rest", power - 0.5)
    rounding = b.let("rounding", (r - q) + tail)  # what q lost; it matters next to n = 0, where much of 2^n − 1 cancels
    doubled = b.let("doubled", b.fma(power, rounding, b.fma(power, q, rest)))
    return b.select(n.eq(0.0), q, doubled + doubled)


def expm1(dtype: DType) -> Function:
    b = FunctionBuilder("expm1", dtype, "x")
    x = b.parameter("x")
    # Below the lower limit e^x is less than half an ulp of 1; 2^n stays a normal number.
    # At the upper limit n is the exponent of infinity, no more.
    low, high = (-40.0, 88.9) if dtype == float32 else (-60.0, 709.9)
    result = expm1_parts(b, b.let("clamped", b.clamp(x, low, high)))
    return b.finish(b.with_sign_of(result, x))


def sigmoid(dtype: DType) -> Function:
    """1/(1 + e^-x), as e^x/(1 + e^x) for negative x, so that small results are not lost to an overflow."""
    b = FunctionBuilder("sigmoid", dtype, "x")
    x = b.parameter("x")
    power = b.let("power", exponential(b, -b.absolute(x)))
    return b.finish(b.select(x.lt(0.0), power, 1.0) / (power + 1.0))

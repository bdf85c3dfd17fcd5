"""log, log2, log10, log1p.

x = 2^n·m; log(m) from f = m − 1. float32: m in [2/3, 4/3), f + f²·P(f). float64: m in [√½, √2), with s = f/(2 + f) and
log(1 + f) = 2·atanh(s), written as f − (f²/2 − s·(f²/2 + s²·P(s²))) so that the leading term is exact.
"""

from __future__ import annotations

from ptxtile.ir.expressions import Expr, cast, logical_and
from ptxtile.ir.program import Function
from ptxtile.ir.types import DType, float32, int32
from ptxtile.lower.math.builder import INFINITY, NAN, FunctionBuilder

ORIGIN_BITS = {"float32": 0x3F2AAAAB, "float64": 0x3FE6A09E667F3BCD}
"""The bit patterns of 2/3 and √½, where m starts: the exponent field of (bits − this) is n."""


def normalise(b: FunctionBuilder, x: Expr) -> tuple[Expr, Expr]:
    """x scaled up where it is subnormal, and by which power of two (as a float, to be added to n)."""
    fmt = b.format
    small = b.let("small", x.lt(fmt.smallest_normal))
    scaled = b.let("scaled", b.select(small, x * 2.0**fmt.precision, x))
    return scaled, b.let("scaled_by", b.select(small, -float(fmt.precision), 0.0))


def split_exponent(b: FunctionBuilder, x: Expr, origin: int) -> tuple[Expr, Expr]:
    """(n·2^mantissa_bits as an integer, m): x = 2^n·m with m between the number of pattern ``origin`` and its
    double."""
    fmt = b.format
    field = b.let("field", (b.bits(x) - origin) & -(1 << fmt.mantissa_bits))
    return field, b.let("m", b.number(b.bits(x) - field))


def exponent_value(b: FunctionBuilder, field: Expr, scaled_by: Expr) -> Expr:
    """n as a float, with the scaling of :func:`normalise` added."""
    fmt = b.format
    if b.dtype == float32:
        return b.let("n", b.fma(cast(field, b.dtype), 2.0**-fmt.mantissa_bits, scaled_by))
    return b.let("n", cast(cast(field >> fmt.mantissa_bits, int32), b.dtype) + scaled_by)


def log_of_one_plus(b: FunctionBuilder, f: Expr) -> tuple[Expr, Expr]:
    """log(1 + f) as f + tail."""
    if b.dtype == float32:
        return f, b.let("tail", (f * f) * b.polynomial("log1p", f))
    s = b.let("s", f / (f + 2.0))
    z = b.let("z", s * s)
    half_square = b.let("half_square", f * f * 0.5)
    inner = b.let("inner", b.fma(b.polynomial("log_tail", z), z, half_square))
    return f, b.let("tail", b.fma(s, inner, -half_square))


def special_cases(b: FunctionBuilder, x: Expr, result: Expr) -> Expr:
    """log's limits: ±0 → −inf, negative → NaN, +inf → +inf, NaN → NaN."""
    limit = b.select(x.eq(0.0), -INFINITY, b.select(x.lt(0.0), NAN, x))
    inside = (b.unsigned_bits(x) - 1).lt(b.format.infinity_bits - 1)  # +0 wraps around; negative numbers are large
    return b.select(inside, result, limit)


def log(dtype: DType) -> Function:
    b = FunctionBuilder("log", dtype, "x")
    x = b.parameter("x")
    scaled, scaled_by = normalise(b, x)
    field, m = split_exponent(b, scaled, ORIGIN_BITS[dtype.name])
    n = exponent_value(b, field, scaled_by)
    f, tail = log_of_one_plus(b, b.let("f", m - 1.0))
    return b.finish(special_cases(b, x, natural_log(b, n, f, tail)))


def natural_log(b: FunctionBuilder, n: Expr, f: Expr, tail: Expr, careful: bool = False) -> Expr:
    """n·ln 2 + f + tail; ``careful``: also where f is rounded, which matters when it cancels with ln 2 (float32)."""
    ln2_high, ln2_low = b.split("ln2")
    if b.dtype == float32 and not careful:
        return b.fma(n, ln2_high + ln2_low, f + tail)
    # n·ln2_high is exact, its sum with f nearly so: small terms first.
    high = b.let("high", n * ln2_high)
    total, rest = b.fast_two_sum("sum", high, f)
    return total + (b.fma(n, ln2_low, tail) + rest)


def _log_to_base(name: str, dtype: DType, factor: str, step: tuple[float, float] | None) -> Function:
    """log(x)·factor: the products with the two-part factor are kept exact where it counts; ``step`` is log_base(2)."""
    b = FunctionBuilder(name, dtype, "x")
    x = b.parameter("x")
    scaled, scaled_by = normalise(b, x)
    field, m = split_exponent(b, scaled, ORIGIN_BITS[dtype.name])
    n = exponent_value(b, field, scaled_by)
    f, tail = log_of_one_plus(b, b.let("f", m - 1.0))
    factor_high, factor_low = b.split(factor)
    # f·factor as high + low; tail is small enough for one rounding.
    high, low = b.two_product("product", f, factor_high)
    low = b.let("low", b.fma(tail, factor_high, b.fma(f, factor_low, low)))
    whole = n
    if step is not None:
        whole = b.let("whole", n * step[0])
        low = b.let("low", b.fma(n, step[1], low))
    total, rest = b.fast_two_sum("sum", whole, high)
    return b.finish(special_cases(b, x, total + (rest + low)))


def log2(dtype: DType) -> Function:
    return _log_to_base("log2", dtype, "log2_e", None)


def log10(dtype: DType) -> Function:
    step = FunctionBuilder("log10", dtype).split("log10_2")
    return _log_to_base("log10", dtype, "log10_e", (step[0], step[1]))


def log1p(dtype: DType) -> Function:
    """log(1 + x). With 2^n the power of two of 1 + x, f = x·2^-n + (2^-n − 1) has one rounding, and none for n = 0."""
    b = FunctionBuilder("log1p", dtype, "x")
    fmt = b.format
    x = b.parameter("x")
    one_plus = b.let("one_plus", x + 1.0)
    field = b.let("field", (b.bits(one_plus) - ORIGIN_BITS[dtype.name]) & -(1 << fmt.mantissa_bits))
    n = exponent_value(b, field, b.constant(0.0))
    # 4·2^-n, since 2^-n is subnormal for the largest x.
    four_bits = (fmt.bias + 2) << fmt.mantissa_bits
    quarter = b.let("quarter", b.number(-field + four_bits))
    x_quarter = b.let("x_quarter", x * 0.25)
    offset = b.let("offset", b.fma(quarter, 0.25, -1.0))
    reduced = b.let("reduced", b.fma(x_quarter, quarter, offset))
    reduced_low = b.fma(x_quarter, quarter, offset - reduced)  # what the rounding took
    whole = b.let("whole", field.eq(0))
    f, tail = log_of_one_plus(b, b.let("f", b.select(whole, x, reduced)))
    tail = b.let("tail", tail + b.select(whole, 0.0, reduced_low))
    result = natural_log(b, n, f, tail, careful=True)
    limit = b.select(x.eq(-1.0), -INFINITY, b.select(x.lt(-1.0), NAN, x))
    inside = logical_and(x.gt(-1.0), x.lt(INFINITY))
    return b.finish(b.select(inside, b.with_sign_of(result, x), limit))

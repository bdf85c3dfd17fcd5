"""pow, rsqrt, hypot.

pow(x, y) = 2^(y·log2|x|). The logarithm is an unevaluated sum of two numbers of relative error about 2^-(p + 12)
(p: the format's precision), because its error is multiplied by up to the largest exponent of a result.
"""

from __future__ import annotations

from ptxtile.ir.expressions import Expr, logical_and, logical_not, logical_or, unary
from ptxtile.ir.program import Function
from ptxtile.ir.types import DType, float32
from ptxtile.lower.math.builder import INFINITY, NAN, FunctionBuilder
from ptxtile.lower.math.exponentials import nearest_integer, scale
from ptxtile.lower.math.logarithms import exponent_value, normalise, split_exponent

SQRT_HALF_BITS = {"float32": 0x3F3504F3, "float64": 0x3FE6A09E667F3BCD}


def _log_pair(b: FunctionBuilder, f: Expr) -> tuple[Expr, Expr]:
    """log(1 + f) for √½ ≤ 1 + f < √2 as a pair: 2·atanh(s) = 2s + s³·(2/3 + s²·R(s²)) with s = f/(2 + f) a pair."""
    base, base_low = b.fast_two_sum("base", b.let("two", b.constant(2.0)), f)
    reciprocal = b.let("reciprocal", 1.0 / base)
    s = b.let("s", f * reciprocal)
    s_low = b.let("s_low", b.fma(-s, base_low, b.fma(-s, base, f)) * reciprocal)
    z, z_low = b.two_product("z", s, s)
    z_low = b.let("z_low", b.fma(s + s, s_low, z_low))
    third_high, third_low = b.split("two_thirds")
    rest = b.let("rest", b.fma(z, b.polynomial("log_tail_rest", z), third_low))
    p, p_low = b.fast_two_sum("p", b.constant(third_high), rest)
    cube, cube_low = b.two_product("cube", s, z)
    cube_low = b.let("cube_low", b.fma(s, z_low, b.fma(s_low, z, cube_low)))
    tail, tail_low = b.two_product("tail", cube, p)
    tail_low = b.let("tail_low", b.fma(cube, p_low, b.fma(cube_low, p, tail_low)))
    high, low = b.fast_two_sum("log", b.let("double_s", s + s), tail)
    return high, b.let("log_rest", low + (tail_low + (s_low + s_low)))


def _log2_pair(b: FunctionBuilder, x: Expr) -> tuple[Expr, Expr]:
    """log2(x) as a pair, for finite x > 0."""
    scaled, scaled_by = normalise(b, x)
    field, m = split_exponent(b, scaled, SQRT_HALF_BITS[b.dtype.name])
    n = exponent_value(b, field, scaled_by)
    log_high, log_low = _log_pair(b, b.let("f", m - 1.0))
    factor_high, factor_low = b.split("log2_e")
    product, low = b.two_product("product", log_high, factor_high)
    low = b.let("product_rest", b.fma(log_low, factor_high, b.fma(log_high, factor_low, low)))
    high, rest = b.fast_two_sum("log2", n, product)
    return b.fast_two_sum("log2", high, b.let("log2_rest", rest + low))


def _power(b: FunctionBuilder, x: Expr, y: Expr) -> Expr:
    """x^y for finite x > 0 and any y that is not NaN."""
    high, low = _log2_pair(b, x)
    # The smallest |log2(x)| is about 2^-precision; a larger y than this only overflows or underflows even more.
    most = 2.0 ** (b.format.precision + 12)
    y = b.let("y_held", b.clamp(y, -most, most))
    exponent, exponent_low = b.two_product("exponent", y, high)
    exponent_low = b.let("exponent_rest", b.fma(y, low, exponent_low))
    least, largest = (-160.0, 140.0) if b.dtype == float32 else (-1100.0, 1100.0)
    held = b.let("held", b.clamp(exponent, least, largest))
    n, shifted = nearest_integer(b, held, None)
    g = b.let("g", (held - n) + b.select(held.eq(exponent), exponent_low, 0.0))
    return scale(b, b.fma(b.polynomial("exp2", g), g, 1.0), n, shifted)


def pow(dtype: DType) -> Function:
    """x^y with the special values of C99 F.9.4.4."""
    b = FunctionBuilder("pow", dtype, "x", "y")
    x, y = b.parameter("x"), b.parameter("y")
    magnitude = b.let("magnitude", b.absolute(x))
    result = b.let("finite", _power(b, magnitude, y))
    # |x| is 0 or infinite: itself, or for a negative y its reciprocal, which the exponent field gives by subtraction.
    extreme = logical_or(magnitude.eq(0.0), magnitude.eq(INFINITY))
    reciprocal = b.number(b.format.infinity_bits - b.bits(magnitude))
    result = b.let("magnitude_of_result", b.select(extreme, b.select(y.lt(0.0), reciprocal, magnitude), result))
    whole = b.let("whole", unary("trunc", y).eq(y))  # infinity counts as even
    half = b.let("half_y", y * 0.5)
    odd = logical_and(whole, unary("trunc", half).ne(half))
    negative = b.let("negative", b.bits(x).lt(0))
    signed = b.let("signed", b.select(logical_and(negative, odd), -result, result))
    undefined = logical_and(logical_and(x.lt(0.0), magnitude.lt(INFINITY)), logical_not(whole))
    signed = b.select(undefined, NAN, signed)
    with_nan = b.select(logical_or(x.ne(x), y.ne(y)), x + y, signed)
    return b.finish(b.select(logical_or(x.eq(1.0), y.eq(0.0)), 1.0, with_nan))


def rsqrt(dtype: DType) -> Function:
    """1/√x; ±0 → ±inf, negative → NaN. Two roundings, the second of which dominates: within 1.5 ulp."""
    b = FunctionBuilder("rsqrt", dtype, "x")
    return b.finish(1.0 / b.sqrt(b.parameter("x")))


def hypot(dtype: DType) -> Function:
    """√(x² + y²), scaled by a power of two where squares would overflow or underflow; infinite if either is."""
    b = FunctionBuilder("hypot", dtype, "x", "y")
    x, y = b.let("width", b.absolute(b.parameter("x"))), b.let("height", b.absolute(b.parameter("y")))
    larger = b.let("larger", b.select(x.gt(y), x, y))
    high, down, low, up = (63, -66, -40, 100) if dtype == float32 else (500, -600, -400, 600)
    is_high = b.let("is_high", larger.gt(2.0**high))
    is_low = b.let("is_low", larger.lt(2.0**low))
    factor = b.let("factor", b.select(is_high, 2.0**down, b.select(is_low, 2.0**up, 1.0)))
    back = b.let("back", b.select(is_high, 2.0**-down, b.select(is_low, 2.0**-up, 1.0)))
    x_scaled, y_scaled = b.let("x_scaled", x * factor), b.let("y_scaled", y * factor)
    result = b.sqrt(b.fma(x_scaled, x_scaled, y_scaled * y_scaled)) * back
    infinite = logical_or(x.eq(INFINITY), y.eq(INFINITY))
    return b.finish(b.select(infinite, INFINITY, result))

"""asin, acos, atan, atan2: odd polynomials on a reduced range, and the rest by the functions' symmetries.

Constants such as π/2 are pairs: result = high − (small − low), so that only the last subtraction rounds.
"""

from __future__ import annotations

from ptxtile.ir.expressions import Expr
from ptxtile.ir.program import Function
from ptxtile.ir.types import DType
from ptxtile.lower.math.builder import FunctionBuilder


def _subtracted_from(b: FunctionBuilder, constant: str, small: Expr) -> Expr:
    high, low = b.split(constant)[:2]
    return high - (small - low)


def _arcsine_parts(b: FunctionBuilder, x: Expr) -> tuple[Expr, Expr]:
    """(whether |x| ≤ ½, p): p = asin(|x|) there, else asin(√((1 − |x|)/2)), which is half of acos(|x|). NaN for |x| >
    1."""
    magnitude = b.let("magnitude", b.absolute(x))
    near = b.let("near", magnitude.le(0.5))
    half = b.let("half", b.fma(magnitude, -0.5, 0.5))
    z = b.let("z", b.select(near, x * x, half))
    s = b.let("s", b.select(near, magnitude, b.sqrt(half)))
    return near, b.let("p", b.fma(s * z, b.polynomial("asin", z), s))


def asin(dtype: DType) -> Function:
    b = FunctionBuilder("asin", dtype, "x")
    x = b.parameter("x")
    near, p = _arcsine_parts(b, x)
    return b.finish(b.with_sign_of(b.select(near, p, _subtracted_from(b, "pi_over_2", p + p)), x))


def acos(dtype: DType) -> Function:
    b = FunctionBuilder("acos", dtype, "x")
    x = b.parameter("x")
    near, p = _arcsine_parts(b, x)
    doubled = b.let("doubled", p + p)
    far = b.select(x.lt(0.0), _subtracted_from(b, "pi", doubled), doubled)
    middle = _subtracted_from(b, "pi_over_2", b.flip_sign(p, b.sign_of(x)))
    return b.finish(b.select(near, middle, far))


def _arctangent(b: FunctionBuilder, q: Expr) -> Expr:
    """atan(q) for 0 ≤ q ≤ 1."""
    z = b.let("z", q * q)
    return b.let("p", b.fma(q * z, b.polynomial("atan", z), q))


def atan(dtype: DType) -> Function:
    b = FunctionBuilder("atan", dtype, "x")
    x = b.parameter("x")
    magnitude = b.let("magnitude", b.absolute(x))
    far = b.let("far", magnitude.gt(1.0))
    p = _arctangent(b, b.let("q", b.select(far, 1.0 / magnitude, magnitude)))
    return b.finish(b.with_sign_of(b.select(far, _subtracted_from(b, "pi_over_2", p), p), x))


def atan2(dtype: DType) -> Function:
    """The angle of the point (x, y); ±0 and ±inf as C99 F.9.1.4 has them."""
    b = FunctionBuilder("atan2", dtype, "y", "x")
    y, x = b.parameter("y"), b.parameter("x")
    height, width = b.let("height", b.absolute(y)), b.let("width", b.absolute(x))
    steep = b.let("steep", height.gt(width))
    small = b.let("small", b.select(steep, width, height))
    large = b.let("large", b.select(steep, height, width))
    equal = b.select(large.eq(0.0), 0.0, 1.0)  # 0/0 and inf/inf count as the corner that C99 gives them
    p = _arctangent(b, b.let("q", b.select(small.eq(large), equal, small / large)))
    p = b.let("first_octants", b.select(steep, _subtracted_from(b, "pi_over_2", p), p))
    left = b.bits(x).lt(0)  # also for -0
    return b.finish(b.with_sign_of(b.select(left, _subtracted_from(b, "pi", p), p), y))

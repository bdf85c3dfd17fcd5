"""Functions that are a few operations: written in place, without a device function."""

from __future__ import annotations

from ptxtile.ir.expressions import Expr, binary, bitcast, select, unary
from ptxtile.ir.types import float16, bfloat16, float32, float64, uint16, uint32, uint64
from ptxtile.lower.math.builder import INFINITY

_PATTERNS = {float16: uint16, bfloat16: uint16, float32: uint32, float64: uint64}


def isnan(x: Expr) -> Expr:
    return x.ne(x)


def isinf(x: Expr) -> Expr:
    return unary("abs", x).eq(INFINITY)


def isfinite(x: Expr) -> Expr:
    return unary("abs", x).lt(INFINITY)


def copysign(magnitude: Expr, sign: Expr) -> Expr:
    """|magnitude| with the sign of ``sign``."""
    pattern = _PATTERNS[magnitude.dtype]
    top = 1 << (pattern.bits - 1)
    combined = (bitcast(magnitude, pattern) & (top - 1)) | (bitcast(sign, pattern) & top)
    return bitcast(combined, magnitude.dtype)


def round_half_away(x: Expr) -> Expr:
    """C's round: to the nearest integer, halves away from zero. x − trunc(x) is exact."""
    whole = unary("trunc", x)
    fraction = unary("abs", binary("sub", x, whole))
    return select(fraction.ge(0.5), binary("add", whole, copysign(unary_one(x), x)), whole)


def unary_one(x: Expr) -> Expr:
    from ptxtile.ir.expressions import constant

    return constant(1.0, x.dtype)

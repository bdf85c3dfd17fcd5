"""isnan, isinf, isfinite, written in place: each names its argument once, so that nothing is computed twice."""

from __future__ import annotations

from ptxtile.ir.expressions import Expr, logical_not, unary
from ptxtile.lower.math.builder import INFINITY


def isnan(x: Expr) -> Expr:
    return logical_not(unary("abs", x).le(INFINITY))


def isinf(x: Expr) -> Expr:
    return unary("abs", x).eq(INFINITY)


def isfinite(x: Expr) -> Expr:
    return unary("abs", x).lt(INFINITY)

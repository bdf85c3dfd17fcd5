"""Loops that numba compiles. Import this module only when one of them is needed: it loads numba and LLVM."""

from __future__ import annotations

from numba import float32, float64, vectorize
from numba.extending import intrinsic


@intrinsic
def _fma(typing_context, a, b, c):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.fma(*arguments)

    return a(a, a, a), generate


@vectorize([float64(float64, float64, float64)], cache=True)
def fma_float64(a, b, c):  # type: ignore[no-untyped-def]
    """a·b + c in float64 with one rounding."""
    return _fma(a, b, c)  # pyright: ignore[reportCallIssue]


@vectorize([float32(float32, float32, float32)], cache=True)
def fma_float32(a, b, c):  # type: ignore[no-untyped-def]
    """a·b + c in float32 with one rounding."""
    return _fma(a, b, c)  # pyright: ignore[reportCallIssue]

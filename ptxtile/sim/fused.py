"""Fused multiply-add with a single rounding, in each float format.

float32 and the 16-bit formats: the product of two of them is exact in float64; the sum with the addend is rounded *to
odd* there (Boldo and Melquiond, «Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd»,
IEEE Transactions on Computers 57(4), 2008), after which one more rounding to a format at least two bits narrower gives
the correctly rounded result. float64: LLVM's fma through numba, compiled when first needed and cached on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from ptxtile.ir.types import DType
from ptxtile.sim.dtypes import round_bfloat16

_COMPILE_AFTER = 4_000_000
"""Elements of float32 fma in NumPy, at 30 ns each, before loading numba (0.3 to 0.5 s) for 1 ns each pays off."""


class _Float32Fma:
    """float32 fma that goes from NumPy to numba once enough elements went through it; both give the same bits."""

    def __init__(self) -> None:
        self.elements = 0

    def __call__(self, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        if self.elements >= _COMPILE_AFTER:
            return compiled_fma("float32")(a, b, c)
        result = exact_fma_float32(a, b, c)
        self.elements += result.size
        return result


_float32_fma = _Float32Fma()


def numba_is_loaded() -> None:
    """Whoever has loaded numba for other reasons gets the compiled form at once."""
    _float32_fma.elements = _COMPILE_AFTER


def fused_multiply_add(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: DType) -> np.ndarray:
    """``a * b + c`` with one rounding; held arrays of ``dtype`` in and out."""
    name = dtype.element_name
    if name == "float64":
        return compiled_fma("float64")(a, b, c)
    if name == "float32":
        return _float32_fma(a, b, c)
    product = a.astype(np.float64) * b.astype(np.float64)
    single = _float32_to_odd(_round_to_odd_sum(product, c.astype(np.float64)))
    return single.astype(np.float16) if name == "float16" else round_bfloat16(single)


def exact_fma_float32(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The NumPy form for float32."""
    return _round_to_odd_sum(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64)).astype(np.float32)


def _round_to_odd_sum(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x + y in float64, where inexact the neighbour with an odd last bit (Knuth's TwoSum gives the error's sign)."""
    total = np.asarray(x + y)
    part = total - x
    error = (x - (total - part)) + (y - part)
    bits = total.view(np.int64)
    # An infinite or NaN total has a NaN error, for which neither comparison holds: it stays as it is.
    inexact = (error > 0) | (error < 0)
    toward_larger_magnitude = (error > 0) == (total > 0)
    odd = np.where(toward_larger_magnitude, bits + 1, bits - 1)
    return np.where(inexact & (bits & 1 == 0), odd, bits).view(np.float64)


def _float32_to_odd(values: np.ndarray) -> np.ndarray:
    """float64 → float32, where inexact the neighbour with an odd last bit; overflow stays at the largest finite value,
    which is odd and rounds to infinity in the narrower formats."""
    nearest = np.asarray(values.astype(np.float32))
    bits = nearest.view(np.int32)
    back = nearest.astype(np.float64)
    away = np.abs(back) > np.abs(values)
    even = (bits & 1) == 0
    odd = np.where(away, bits - 1, bits + 1)
    inexact = (back != values) & ~np.isnan(values)
    return np.where(inexact & even, odd, bits).view(np.float32)


@cache
def compiled_fma(name: str) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """A ufunc (a, b, c) → fma for ``float32`` or ``float64``, compiled by numba."""
    from ptxtile.sim import compiled

    return {"float32": compiled.fma_float32, "float64": compiled.fma_float64}[name]

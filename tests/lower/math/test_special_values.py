"""Zeros, infinities, NaN and domain errors: C99, Annex F.9 (the same as IEEE 754-2019, 9.2.1). exp10, rsqrt and sigmoid
follow from their definitions; signs of zero count."""

from __future__ import annotations

from math import inf, nan, pi

import numpy as np
import pytest

from ptxtile.ir.types import DType, bfloat16, float16, float32, float64
from tests.lower.math import reference

TABLE: dict[str, list[tuple[float, float]]] = {
    # F.9.3
    "exp": [(0.0, 1.0), (-0.0, 1.0), (-inf, 0.0), (inf, inf), (1e5, inf), (-1e5, 0.0)],
    "exp2": [(0.0, 1.0), (-0.0, 1.0), (-inf, 0.0), (inf, inf), (5.0, 32.0), (-3.0, 0.125), (1e5, inf), (-1e5, 0.0)],
    "exp10": [(0.0, 1.0), (-0.0, 1.0), (-inf, 0.0), (inf, inf), (1e5, inf), (-1e5, 0.0)],
    "expm1": [(0.0, 0.0), (-0.0, -0.0), (-inf, -1.0), (inf, inf), (1e5, inf), (-1e5, -1.0)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (-inf, 0.0), (inf, 1.0), (-1e5, 0.0), (1e5, 1.0)],
    "log": [(1.0, 0.0), (0.0, -inf), (-0.0, -inf), (-1.0, nan), (-inf, nan), (inf, inf)],
    "log2": [(1.0, 0.0), (8.0, 3.0), (0.0, -inf), (-0.0, -inf), (-1.0, nan), (-inf, nan), (inf, inf)],
    "log10": [(1.0, 0.0), (1000.0, 3.0), (0.0, -inf), (-0.0, -inf), (-1.0, nan), (-inf, nan), (inf, inf)],
    "log1p": [(0.0, 0.0), (-0.0, -0.0), (-1.0, -inf), (-2.0, nan), (-inf, nan), (inf, inf)],
    "rsqrt": [(4.0, 0.5), (0.0, inf), (-0.0, -inf), (-1.0, nan), (-inf, nan), (inf, 0.0)],
    # F.9.1
    "sin": [(0.0, 0.0), (-0.0, -0.0), (inf, nan), (-inf, nan)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (inf, nan), (-inf, nan)],
    "tan": [(0.0, 0.0), (-0.0, -0.0), (inf, nan), (-inf, nan)],
    "asin": [(0.0, 0.0), (-0.0, -0.0), (1.0, pi / 2), (-1.0, -pi / 2), (1.5, nan), (-1.5, nan), (inf, nan)],
    "acos": [(1.0, 0.0), (-1.0, pi), (1.5, nan), (-1.5, nan), (inf, nan), (-inf, nan)],
    "atan": [(0.0, 0.0), (-0.0, -0.0), (inf, pi / 2), (-inf, -pi / 2)],
    # F.9.2
    "sinh": [(0.0, 0.0), (-0.0, -0.0), (inf, inf), (-inf, -inf), (1e5, inf), (-1e5, -inf)],
    "cosh": [(0.0, 1.0), (-0.0, 1.0), (inf, inf), (-inf, inf), (-1e5, inf)],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (inf, 1.0), (-inf, -1.0)],
    "asinh": [(0.0, 0.0), (-0.0, -0.0), (inf, inf), (-inf, -inf)],
    "acosh": [(1.0, 0.0), (0.5, nan), (-2.0, nan), (-inf, nan), (inf, inf)],
    "atanh": [(0.0, 0.0), (-0.0, -0.0), (1.0, inf), (-1.0, -inf), (2.0, nan), (-inf, nan)],
    # F.9.5
    "erf": [(0.0, 0.0), (-0.0, -0.0), (inf, 1.0), (-inf, -1.0)],
    "round": [(0.5, 1.0), (-0.5, -1.0), (2.5, 3.0), (-0.25, -0.0), (-0.0, -0.0), (inf, inf), (-inf, -inf)],
}

FORMATS = (float32, float64, float16, bfloat16)


def as_numbers(values: list[float], dtype: DType) -> np.ndarray:
    from mpmath import mpf

    return np.array([reference.rounded(mpf(v), dtype) if v == v and v else v for v in values])


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("name", TABLE)
def test_table(name: str, dtype: DType) -> None:
    with np.errstate(over="ignore"):
        arguments = as_numbers([x for x, _ in TABLE[name]] + [nan], dtype)
        expected = as_numbers([y for _, y in TABLE[name]] + [nan], dtype)
    got = reference.evaluate(name, dtype, arguments)
    tolerance = [1 if abs(y) in (pi, pi / 2) else 0 for _, y in TABLE[name]] + [0]
    assert (reference.distances(got, expected, dtype) <= tolerance).all(), list(
        zip(arguments, got, expected, strict=True)
    )


def specials(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    largest = np.finfo(dtype.name).max
    tiny = np.finfo(dtype.name).smallest_subnormal
    values = [0.0, 1.0, 2.0, 3.0, 0.5, 1.5, 1e10, tiny, largest, inf]
    both = np.array([v * s for v in values for s in (1.0, -1.0)] + [nan], dtype=dtype.name)
    x, y = np.meshgrid(both, both)
    return x.ravel(), y.ravel()


def pow_expected(x: float, y: float) -> float | None:
    """C99 F.9.4.4, line by line; None where the power is an ordinary number."""
    odd = np.isfinite(y) and y == np.floor(y) and np.fmod(y, 2) != 0
    if y == 0 or x == 1 or (x == -1 and np.isinf(y)):
        return 1.0
    if np.isnan(x) or np.isnan(y):
        return nan
    if x == 0:
        size = inf if y < 0 else 0.0
        return float(np.copysign(size, x)) if odd else size
    if np.isfinite(x) and x < 0 and np.isfinite(y) and y != np.floor(y):
        return nan
    if np.isinf(y):
        return inf if (abs(x) > 1) == (y > 0) else 0.0
    if np.isinf(x):
        size = 0.0 if y < 0 else inf
        return -size if x < 0 and odd else size
    return None


@pytest.mark.parametrize("dtype", (float32, float64), ids=str)
def test_pow(dtype: DType) -> None:
    x, y = specials(dtype)
    got = reference.evaluate("pow", dtype, x, y)
    tested = 0
    for a, b, result in zip(x, y, got, strict=True):
        expected = pow_expected(float(a), float(b))
        if expected is None:
            ordinary = reference.correct("pow", dtype, np.array([a]), np.array([b]))
            assert reference.distances(np.array([result]), ordinary, dtype)[0] <= 4, (a, b, result)
            continue
        tested += 1
        assert reference.distances(np.array([result]), np.array([expected]), dtype)[0] == 0, (a, b, result, expected)
    assert tested > 200


@pytest.mark.parametrize("name", ["atan2", "hypot", "fmod"])
@pytest.mark.parametrize("dtype", (float32, float64), ids=str)
def test_pairs_as_the_c_library(name: str, dtype: DType) -> None:
    """F.9.1.4, F.9.4.3, F.9.7.1, through NumPy in extended precision."""
    x, y = specials(dtype)
    function = {"atan2": np.arctan2, "hypot": np.hypot, "fmod": np.fmod}[name]
    with np.errstate(all="ignore"):
        expected = function(x.astype(np.longdouble), y.astype(np.longdouble)).astype(dtype.name)
    got = reference.evaluate(name, dtype, x, y)
    apart = reference.distances(got, expected, dtype)
    worst = int(np.argmax(apart))
    assert apart.max() <= (0 if name == "fmod" else 1), (x[worst], y[worst], got[worst], expected[worst])

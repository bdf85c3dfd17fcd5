"""Fused multiply-add against exact rational arithmetic."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch

from ptxtile.ir.expressions import Var, call
from ptxtile.ir.types import BY_NAME
from ptxtile.sim.expressions import evaluate
from ptxtile.sim.fused import compiled_fma, exact_fma_float32

# (significant bits, exponent of the smallest subnormal, exponent above the largest finite number)
FORMATS = {
    "float16": (11, -24, 16),
    "bfloat16": (8, -133, 128),
    "float32": (24, -149, 128),
    "float64": (53, -1074, 1024),
}


def rounded(value: Fraction, name: str) -> float:
    """``value`` to the nearest number of the format, ties to even."""
    precision, smallest, limit = FORMATS[name]
    if value == 0:
        return 0.0
    magnitude = abs(value)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** max(exponent - precision + 1, smallest)
    multiple = magnitude / step
    whole = multiple.numerator // multiple.denominator
    remainder = multiple - whole
    if remainder > Fraction(1, 2) or (remainder == Fraction(1, 2) and whole % 2):
        whole += 1
    result = whole * step
    number = float("inf") if result >= Fraction(2) ** limit else float(result)
    return -number if value < 0 else number


def operands(name: str, random: np.random.Generator, count: int) -> list[np.ndarray]:
    """Random significands; exponents so that a·b and c overlap, cancel, under- and overflow."""
    precision, smallest, limit = FORMATS[name]
    significand = [random.integers(2 ** (precision - 1), 2**precision, count) for _ in range(3)]
    low, high = smallest // 2 + 2, (limit - precision) // 2
    a_exponent, b_exponent = random.integers(low, high, count), random.integers(low, high, count)
    c_exponent = a_exponent + b_exponent + random.integers(-precision - 3, 2 * precision + 3, count)
    c_exponent = np.clip(c_exponent, smallest, limit - precision)
    signs = random.choice([-1.0, 1.0], (3, count))
    exponents = (a_exponent, b_exponent, c_exponent)
    numbers = [signs[i] * np.ldexp(significand[i].astype(np.float64), exponents[i]) for i in range(3)]
    # Every fourth c nearly cancels the product; the half-way cases come from few significand bits.
    with np.errstate(over="ignore"):
        numbers[2][::4] = -(numbers[0] * numbers[1])[::4]
    coarse = slice(1, None, 4)
    for i in (0, 1):
        few_bits = 1.0 + random.integers(0, 4, count)[coarse] / 4
        numbers[i][coarse] = signs[i][coarse] * np.ldexp(few_bits, exponents[i][coarse])
    torch_dtype = getattr(torch, name)
    arrays = [torch.from_numpy(number).to(torch_dtype) for number in numbers]
    keep = torch.stack([torch.isfinite(array) for array in arrays]).all(0)
    held = torch.float32 if name == "bfloat16" else torch_dtype
    return [array[keep].to(held).numpy() for array in arrays]


@pytest.mark.parametrize("name", list(FORMATS))
def test_fma_rounds_once(name: str) -> None:
    random = np.random.default_rng(2024)
    a, b, c = operands(name, random, 4000)
    x, y, z = (Var(n, BY_NAME[name]) for n in "xyz")
    got = evaluate(call("fma", x, y, z), {"x": a, "y": b, "z": c})
    inexact = 0
    for index in range(len(a)):
        exact = Fraction(float(a[index])) * Fraction(float(b[index])) + Fraction(float(c[index]))
        expected = rounded(exact, name)
        inexact += np.isfinite(expected) and Fraction(expected) != exact
        assert float(got[index]) == expected, (a[index], b[index], c[index])
    assert inexact > 500


def test_half_way_cases_that_two_roundings_get_wrong() -> None:
    """1 + 2^-24 + 2^-77 is just above the tie between 1 and 1 + 2^-23; rounded to float64 first it would be the tie."""
    a, b, c = np.float32([1 + 2**-12]), np.float32([2**-24]), np.float32([1])
    assert exact_fma_float32(a, b, c)[0] == np.float32(1 + 2**-23)
    small = np.float32([2**-24 * (1 + 2**-23)])
    assert exact_fma_float32(small, np.float32([1 + 2**-23]), c)[0] == np.float32(1 + 2**-23)
    assert exact_fma_float32(np.float32([2**-24]), np.float32([1]), c)[0] == 1
    # The product is 2^-24 less 2^-70: just below the tie.
    below = np.float32([2**-24 * (1 + 2**-23)]), np.float32([1 - 2**-23])
    assert exact_fma_float32(*below, c)[0] == 1


def test_special_values() -> None:
    inf, nan = np.inf, np.nan
    cases = [(inf, 0, 1), (inf, 1, -inf), (inf, 1, 1), (1, 1, -inf)]
    cases += [(nan, 1, 1), (0, 0, nan), (-0.0, 1, -0.0), (0, 1, -0.0)]
    expected = [nan, nan, inf, -inf, nan, nan, -0.0, 0.0]
    for name in ("float16", "float32", "float64"):
        arrays = [np.array(column, dtype=name) for column in zip(*cases, strict=True)]
        x, y, z = (Var(n, BY_NAME[name]) for n in "xyz")
        got = evaluate(call("fma", x, y, z), dict(zip("xyz", arrays, strict=True)))
        np.testing.assert_array_equal(got, np.array(expected, dtype=name))
        np.testing.assert_array_equal(np.signbit(got[-2:]), [True, False])


def test_compiled_and_numpy_forms_agree() -> None:
    random = np.random.default_rng(7)
    patterns = [random.integers(0, 2**32, 50000, dtype=np.uint64).astype(np.uint32).view(np.float32) for _ in range(3)]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(exact_fma_float32(*patterns), compiled_fma("float32")(*patterns))

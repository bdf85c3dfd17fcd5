"""Every function is within its documented bound of the correctly rounded result, over the whole range of arguments."""

from __future__ import annotations

import numpy as np
import pytest
from mpmath import mp

from ptxtile.ir.types import DType, bfloat16, float16, float32, float64
from ptxtile.lower.math import NAMES, ULP
from tests.lower.math import reference

BINARY = ("atan2", "pow", "hypot")
UNARY = tuple(name for name in NAMES if name in reference.FUNCTIONS and name not in BINARY)
NATIVE = (float32, float64)


def check(name: str, dtype: DType, *arguments: np.ndarray) -> None:
    expected = reference.correct(name, dtype, *arguments)
    real = ~np.isnan(expected)
    assert real.any()
    got = reference.evaluate(name, dtype, *arguments)
    apart = reference.distances(got[real], expected[real], dtype)
    worst = int(np.argmax(apart))
    values = ", ".join(float(a[real][worst]).hex() for a in arguments)
    assert apart[worst] <= ULP[name, dtype.name], (
        f"{name}({values}) in {dtype}: got {got[real][worst]!r}, correctly rounded {expected[real][worst]!r}"
    )


def test_every_function_has_a_reference() -> None:
    exact = {"fmod", "round", "copysign"}  # tested against NumPy's below
    assert set(NAMES) == set(reference.FUNCTIONS) | exact
    assert {(name, dtype.name) for name in NAMES for dtype in (*NATIVE, float16, bfloat16)} == set(ULP)


@pytest.mark.parametrize("dtype", NATIVE, ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_unary(name: str, dtype: DType, random_generator: np.random.Generator) -> None:
    check(name, dtype, reference.unary_arguments(random_generator, dtype, 3000))


@pytest.mark.parametrize("dtype", NATIVE, ids=str)
@pytest.mark.parametrize("name", BINARY)
def test_binary(name: str, dtype: DType, random_generator: np.random.Generator) -> None:
    check(name, dtype, *reference.binary_arguments(random_generator, dtype, 3000))


@pytest.mark.parametrize("dtype", (float16, bfloat16), ids=str)
@pytest.mark.parametrize("name", UNARY)
def test_narrow_formats(name: str, dtype: DType, random_generator: np.random.Generator) -> None:
    check(name, dtype, reference.unary_arguments(random_generator, dtype, 800))


@pytest.mark.parametrize(
    "name",
    ["exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sinh", "cosh", "tanh", "arcsin", "arccos", "arctan"],
)
def test_dense_float32_against_numpy(name: str, random_generator: np.random.Generator) -> None:
    """Many float32 arguments, with NumPy's float64 functions as the reference: their own error is 2^-29 of an ulp
    here."""
    ours = name.replace("arc", "a")
    x = reference.unary_arguments(random_generator, float32, 400_000)
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x.astype(np.float64)).astype(np.float32)
    zeros = (x == 0) & (name in ("expm1", "log1p", "sinh", "tanh", "arcsin", "arctan"))
    assert np.array_equal(np.signbit(expected[zeros]), np.signbit(x[zeros]))
    apart = reference.distances(reference.evaluate(ours, float32, x), expected, float32)
    assert apart.max() <= ULP[ours, "float32"], float(x[int(np.argmax(apart))]).hex()


@pytest.mark.parametrize("dtype", NATIVE, ids=str)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_near_multiples_of_half_pi(name: str, dtype: DType, random_generator: np.random.Generator) -> None:
    """The numbers closest to k·π/2, where all leading bits cancel, for k up to the largest there is."""
    top = 126 if dtype == float32 else 1022
    with mp.workprec(1400):
        multiples = [
            int(random_generator.integers(1, 1 << 40)) << int(shift)
            for shift in random_generator.integers(0, top - 40, 300)
        ]
        multiples += random_generator.integers(1, 1 << 17, 300).tolist()
        numbers = [reference.rounded(k * mp.pi / 2, dtype) for k in multiples]
    with mp.workprec(1400):
        function = reference.FUNCTIONS[name]
        expected = np.array([reference.rounded(function(mp.mpf(x)), dtype) for x in numbers])
    got = reference.evaluate(name, dtype, np.array(numbers))
    assert reference.distances(got, expected, dtype).max() <= ULP[name, dtype.name]


HARDEST = {
    "float32": (16367173 * 2.0**72, 2.0**127, 3.4028234663852886e38, 1e30, 105000.0, 105001.0),
    "float64": (6381956970095103 * 2.0**797, 2.0**1023, 1.7976931348623157e308, 1e300, 1e22, 2.0**30, 2.0**30 + 1),
}
"""The first of each is the closest that any number of the format comes to a multiple of π/2 (J.-M. Muller, «Elementary
Functions», table of worst cases for range reduction)."""


@pytest.mark.parametrize("dtype", NATIVE, ids=str)
@pytest.mark.parametrize("name", ["sin", "cos", "tan"])
def test_huge_arguments(name: str, dtype: DType) -> None:
    numbers = np.array([sign * x for x in HARDEST[dtype.name] for sign in (1, -1)], dtype=dtype.name)
    with mp.workprec(1400):
        expected = np.array([reference.rounded(reference.FUNCTIONS[name](mp.mpf(float(x))), dtype) for x in numbers])
    got = reference.evaluate(name, dtype, numbers)
    assert reference.distances(got, expected, dtype).max() <= ULP[name, dtype.name]


@pytest.mark.parametrize("dtype", NATIVE, ids=str)
def test_fmod_is_exact(dtype: DType, random_generator: np.random.Generator) -> None:
    x, y = reference.binary_arguments(random_generator, dtype, 4000)
    with np.errstate(all="ignore"):
        multiple = (np.floor(random_generator.uniform(1, 50, y.size)) * y).astype(dtype.name)
        for left, right in ((x, y), (multiple, y), (np.abs(x), np.abs(y) * dtype_scale(dtype))):
            left, right = left.astype(dtype.name), right.astype(dtype.name)
            expected = np.fmod(left, right)
            assert reference.distances(reference.evaluate("fmod", dtype, left, right), expected, dtype).max() == 0


def dtype_scale(dtype: DType) -> float:
    return 2.0**-100 if dtype == float32 else 2.0**-900


@pytest.mark.parametrize("dtype", (*NATIVE, float16), ids=str)
def test_round_and_copysign_are_exact(dtype: DType, random_generator: np.random.Generator) -> None:
    halves = random_generator.integers(-3000, 3000, 2000) / 2
    corners = np.array([0.49999997, 0.49999999999999994, -0.0, -0.3, np.inf, -np.inf, 8388609.0])
    with np.errstate(over="ignore"):
        given = np.concatenate([halves, corners]).astype(dtype.name)
    x = np.concatenate([reference.random_patterns(random_generator, dtype, 2000), given])
    with np.errstate(all="ignore"):
        wide = x.astype(np.longdouble)  # where adding a half is exact for every number below 2^62
        expected = np.copysign(np.where(np.abs(wide) < 2.0**62, np.floor(np.abs(wide) + 0.5), np.abs(wide)), wide)
    got = reference.evaluate("round", dtype, x)
    assert reference.distances(got, expected.astype(dtype.name), dtype).max() == 0
    sign = reference.random_patterns(random_generator, dtype, x.size)
    finite = ~np.isnan(x)
    got = reference.evaluate("copysign", dtype, x, sign)
    assert reference.distances(got[finite], np.copysign(x, sign)[finite], dtype).max() == 0

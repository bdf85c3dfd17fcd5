"""Correctly rounded values of the functions by mpmath, distances in ulp, and arguments that are worth testing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from mpmath import mp, mpf

from ptxtile.ir.types import DType, bfloat16, float16, float32, float64
from ptxtile.lower.math import closure
from ptxtile.sim.expressions import call

PRECISION = 200
"""Bits of mpmath's arithmetic here; the functions themselves cope with cancellation."""

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": mp.exp, "exp2": lambda x: mp.power(2, x), "exp10": lambda x: mp.power(10, x), "expm1": mp.expm1,
    "sigmoid": lambda x: 1 / (1 + mp.exp(-x)),
    "log": mp.log, "log2": lambda x: mp.log(x) / mp.log(2), "log10": mp.log10, "log1p": mp.log1p,
    "sin": mp.sin, "cos": mp.cos, "tan": mp.tan, "asin": mp.asin, "acos": mp.acos, "atan": mp.atan, "atan2": mp.atan2,
    "sinh": mp.sinh, "cosh": mp.cosh, "tanh": mp.tanh, "asinh": mp.asinh, "acosh": mp.acosh, "atanh": mp.atanh,
    "erf": mp.erf, "pow": mp.power, "rsqrt": lambda x: 1 / mp.sqrt(x), "hypot": mp.hypot,
}  # fmt: skip

DOMAINS: dict[str, Callable[..., bool]] = {
    "log": lambda x: x > 0, "log2": lambda x: x > 0, "log10": lambda x: x > 0, "log1p": lambda x: x > -1,
    "asin": lambda x: abs(x) <= 1, "acos": lambda x: abs(x) <= 1, "acosh": lambda x: x >= 1,
    "atanh": lambda x: abs(x) < 1, "rsqrt": lambda x: x > 0, "pow": lambda x, y: x > 0 or y == int(y),
}  # fmt: skip
"""Where the value is a finite real number; elsewhere special values are tested by tables of their own."""

_SHAPES = {float16: (11, -24, 15), bfloat16: (8, -133, 127), float32: (24, -149, 127), float64: (53, -1074, 1023)}
"""Precision, exponent of the smallest subnormal, largest exponent (IEEE 754; bfloat16: float32 cut to 8 bits)."""


def rounded(value: Any, dtype: DType) -> float:
    """The mpmath number in ``dtype``, to nearest even, subnormals and overflow included."""
    precision, smallest, largest = _SHAPES[dtype]
    sign, mantissa, exponent, bits = value._mpf_
    if not mantissa:
        return float(value)  # 0, infinities, NaN
    top = exponent + bits
    if top > largest + 2:
        return -math.inf if sign else math.inf
    if top < smallest - 2:
        return -0.0 if sign else 0.0
    unit = max(top - precision, smallest)
    shift = unit - exponent
    if shift > 0:
        quotient, rest = mantissa >> shift, mantissa & ((1 << shift) - 1)
        middle = 1 << (shift - 1)
        quotient += rest > middle or (rest == middle and quotient & 1)
    else:
        quotient = mantissa << -shift
    try:
        result = math.ldexp(quotient, unit)
    except OverflowError:
        result = math.inf
    if result >= 2.0**largest * 2:
        result = math.inf
    return -result if sign else result


def correct(name: str, dtype: DType, *arguments: np.ndarray) -> np.ndarray:
    """The correctly rounded results as float64 numbers; NaN where the function has no finite real value, and for zeros,
    whose sign mpmath does not know."""
    function, domain = FUNCTIONS[name], DOMAINS.get(name)
    results = np.full(arguments[0].shape, np.nan)
    with mp.workprec(PRECISION), np.errstate(invalid="ignore"):
        for index, values in enumerate(zip(*(a.astype(np.float64).tolist() for a in arguments), strict=True)):
            if all(math.isfinite(v) and v for v in values) and (domain is None or domain(*values)):
                results[index] = rounded(mpf(function(*map(mpf, values))), dtype)
    return results


def positions(values: np.ndarray, dtype: DType) -> np.ndarray:
    """Each number's place in the ordered list of all numbers of ``dtype``; both zeros are 0."""
    if dtype == bfloat16:
        patterns = values.astype(np.float32).view(np.int32).astype(np.int64) >> 16
        width = 16
    else:
        integer = {16: np.int16, 32: np.int32, 64: np.int64}[dtype.bits]
        patterns, width = values.astype(dtype.name).view(integer).astype(np.int64), dtype.bits
    return np.where(patterns < 0, -(patterns & ((1 << (width - 1)) - 1)), patterns)


def distances(got: np.ndarray, expected: np.ndarray, dtype: DType) -> np.ndarray:
    """How many numbers of ``dtype`` lie between; where only one is NaN, or the signs differ, infinitely many."""
    apart = np.abs(positions(got, dtype) - positions(expected, dtype)).astype(np.float64)
    wrong = (np.isnan(got) != np.isnan(expected)) | (np.signbit(got) != np.signbit(expected))
    return np.where(np.isnan(got) & np.isnan(expected), 0.0, np.where(wrong, np.inf, apart))


def evaluate(name: str, dtype: DType, *arguments: np.ndarray) -> np.ndarray:
    """The device function on arrays in the simulator's arithmetic (bfloat16 numbers are held as float32)."""
    *callees, function = closure(name, dtype)
    held = "float32" if dtype == bfloat16 else dtype.name
    return call(function, *(a.astype(held) for a in arguments), functions=callees)


# --- arguments
# -----------------------------------------------------------------------------------------------------------


def random_patterns(generator: np.random.Generator, dtype: DType, count: int) -> np.ndarray:
    """Numbers of random bit patterns: all exponents alike, NaN and subnormals among them."""
    unsigned = {16: np.uint16, 32: np.uint32, 64: np.uint64}[dtype.bits]
    patterns = generator.integers(0, 1 << dtype.bits, count, dtype=np.uint64).astype(unsigned)
    if dtype == bfloat16:
        return (patterns.astype(np.uint32) << 16).view(np.float32)
    return patterns.view(dtype.name)


LANDMARKS = (
    0.25, 1 / 3, 0.5, 0.55, 2 / 3, math.sqrt(0.5), 0.75, 1.0, 4 / 3, math.sqrt(2), 2.0, 3.95, 4.0, 5.95, 9.0, 10.0,
    20.0, math.log(2) / 2, math.log(2), 88.0, 88.72, 103.97, 104.0, 127.0, 128.0, -149.0, 149.5, 38.53, 45.15, 105000.0,
    709.78, 745.13, 1023.9, 1074.9, 308.25, 323.6, 2.0**30, 2.0**60, 2.0**63,
)  # fmt: skip
"""Where algorithms change pieces, and where results overflow or underflow."""


def near_landmarks(generator: np.random.Generator, dtype: DType, count: int) -> np.ndarray:
    centers = generator.choice(np.array(LANDMARKS), count) * generator.choice([-1.0, 1.0], count)
    return centers * (1 + generator.normal(size=count) * 2.0 ** -generator.uniform(2, 53, count))


def unary_arguments(generator: np.random.Generator, dtype: DType, count: int) -> np.ndarray:
    """Random patterns, numbers near 1 in all magnitudes and signs, landmarks, and subnormals: about ``count`` in
    all."""
    part = count // 4
    signs = generator.choice([-1.0, 1.0], part)
    moderate = np.exp2(generator.uniform(-30, 10, part)) * signs
    near_one = 1 + signs * np.exp2(-generator.uniform(0, 52, part))
    tiny = generator.integers(0, 1000, part // 4) * 2.0 ** _SHAPES[dtype][1]
    with np.errstate(over="ignore"):
        pieces = [moderate, near_one, near_landmarks(generator, dtype, part), tiny]
        held = np.float32 if dtype == bfloat16 else dtype.name
        values = np.concatenate([random_patterns(generator, dtype, part), *(p.astype(held) for p in pieces)])
    if dtype == bfloat16:
        values = (values.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return values


def binary_arguments(generator: np.random.Generator, dtype: DType, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of random patterns, of like magnitudes, a power's base and exponent with results up to the limits."""
    part = count // 4
    largest = _SHAPES[dtype][2]
    base = np.exp(generator.uniform(-8, 8, part))
    exponent = generator.uniform(-1.05, 1.05, part) * largest / np.log2(base)
    near_one = 1 + generator.normal(size=part) * 1e-3
    long_exponent = generator.uniform(-1, 1, part) * largest / np.abs(np.log2(near_one))
    like = generator.normal(size=part)
    whole = generator.integers(-40, 40, part).astype(np.float64)
    first = [base, near_one, like, -base]
    second = [exponent, long_exponent, like * (1 + generator.normal(size=part) * 0.1), whole]
    with np.errstate(over="ignore"):
        return tuple(
            np.concatenate([random_patterns(generator, dtype, part), *(p.astype(dtype.name) for p in pieces)])
            for pieces in (first, second)
        )

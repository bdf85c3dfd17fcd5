"""Makes ptxtile/lower/math/coefficients.py: minimax polynomials and split constants for the math functions.

    python tools/fit_math_coefficients.py            # rewrites the file (about a minute), prints each fit's error in
    bits

Every polynomial P minimises ``max |weight(x) · (target(x) − P(x))|`` on an interval, where the weight turns the error
of P into a relative error of the function that P is part of. The fit is Lawson's algorithm (iteratively reweighted
least squares on Chebyshev-distributed nodes) in 240-bit arithmetic. Coefficients are rounded to the format one at a
time from the lowest power on, and the others are fitted again after each of the first few, so that rounding costs next
to nothing.
"""

from __future__ import annotations

import pathlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mpmath import mp, mpf

mp.prec = 240
OUTPUT = pathlib.Path(__file__).parent.parent / "ptxtile" / "lower" / "math" / "coefficients.py"
Real = Any


def rounded(value: Real, dtype: str) -> float:
    """``value`` rounded to nearest in ``dtype``, as a Python float."""
    if dtype == "float64":
        return float(value)
    return struct.unpack("f", struct.pack("f", float(value)))[0]


def split(value: Real, dtype: str, parts: int, leading_bits: int | None = None) -> tuple[float, ...]:
    """``value`` as an unevaluated sum of ``parts`` numbers; the first has only ``leading_bits`` significant bits, if
    given."""
    result = []
    for index in range(parts):
        if index == 0 and leading_bits is not None:
            scale = mpf(2) ** (leading_bits - 1 - mp.floor(mp.log(abs(value), 2)))
            part = float(mp.nint(value * scale) / scale)
        else:
            part = rounded(value, dtype)
        result.append(part)
        value = value - mpf(part)
    return tuple(result)


@dataclass
class Problem:
    target: Callable[[Real], Real]
    weight: Callable[[Real], Real]
    low: Real
    high: Real


def lawson(
    values: list[Real], weights: list[Real], nodes: list[Real], first: int, degree: int, rounds: int
) -> list[Real]:
    """Coefficients of x^first … x^degree of the weighted minimax approximation of ``values`` on ``nodes``."""
    size = degree + 1 - first
    importance = [mpf(1)] * len(nodes)
    powers = [[x ** (first + k) for k in range(size)] for x in nodes]
    best, best_error = [], mp.inf
    for _ in range(rounds):
        gram, right = mp.zeros(size), mp.zeros(size, 1)
        for node, value, weight, mass in zip(powers, values, weights, importance, strict=True):
            scale = weight * weight * mass
            for i in range(size):
                scaled = scale * node[i]
                right[i] += scaled * value
                for j in range(i + 1):
                    gram[i, j] += scaled * node[j]
        for i in range(size):
            for j in range(i):
                gram[j, i] = gram[i, j]
        solution = list(mp.lu_solve(gram, right))
        errors = [
            abs(weight * (value - sum(c * p for c, p in zip(solution, node, strict=True))))
            for node, value, weight in zip(powers, values, weights, strict=True)
        ]
        worst = max(errors)
        if worst < best_error:
            best, best_error = solution, worst
        mean = sum(m * e for m, e in zip(importance, errors, strict=True))
        importance = [m * e / mean for m, e in zip(importance, errors, strict=True)]
    return best


def fit(name: str, problem: Problem, degree: int, dtype: str, fixed: tuple[float, ...] = ()) -> tuple[float, ...]:
    """Coefficients in ``dtype``, lowest power first; ``fixed`` are those of the lowest powers, given."""
    count = 6 * (degree + 4)
    middle, half = (problem.high + problem.low) / 2, (problem.high - problem.low) / 2
    nodes = [middle + half * mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]
    values = [problem.target(x) for x in nodes]
    weights = [problem.weight(x) for x in nodes]
    chosen = [mpf(c) for c in fixed]
    rest = [v - sum(c * x**k for k, c in enumerate(chosen)) for v, x in zip(values, nodes, strict=True)]
    while len(chosen) <= degree:
        first = len(chosen)
        solution = lawson(rest, weights, nodes, first, degree, rounds=12)
        take = 1 if first - len(fixed) < 4 else len(solution)
        for coefficient in solution[:take]:
            value = mpf(rounded(coefficient, dtype))
            power = len(chosen)
            chosen.append(value)
            rest = [r - value * x**power for r, x in zip(rest, nodes, strict=True)]
    error = max(abs(w * r) for w, r in zip(weights, rest, strict=True))
    print(f"{name:24} {dtype}  degree {degree:2}  error 2^{float(mp.log(error, 2)):.1f}", flush=True)
    return tuple(float(c) for c in chosen)


HALF_LN2 = mp.log(2) / 2 * mpf("1.005")
TINY = mpf(2) ** -60
PI4 = (mp.pi / 4 * mpf("1.01")) ** 2


def odd(function: Callable[[Real], Real]) -> tuple[Callable[[Real], Real], Callable[[Real], Real]]:
    """For f(x) = x + x³·P(x²): the target (f − x)/x³ as a function of x², and the weight of its relative error."""
    return (
        lambda z: (function(mp.sqrt(z)) - mp.sqrt(z)) / mp.sqrt(z) ** 3,
        lambda z: mp.sqrt(z) ** 3 / function(mp.sqrt(z)),
    )


def log_tail(z: Real) -> Real:
    """(2·atanh(s)/s − 2)/s² as a function of z = s²."""
    s = mp.sqrt(z)
    return (2 * mp.atanh(s) / s - 2) / z


PROBLEMS: dict[str, tuple[Problem, int, int, tuple[float, ...]]] = {
    # name: (problem, degree for float32, degree for float64 (0: not used), fixed lowest coefficients)
    "exp": (Problem(lambda r: (mp.expm1(r) - r) / r**2, lambda r: r**2 / mp.exp(r), -HALF_LN2, HALF_LN2), 4, 9, ()),
    "expm1": (
        Problem(lambda r: (mp.expm1(r) - r) / r**2, lambda r: r**2 / mp.expm1(r), -HALF_LN2, HALF_LN2), 4, 10, ()
    ),
    "exp2": (
        Problem(lambda f: (mpf(2) ** f - 1) / f, lambda f: f / mpf(2) ** f, -mpf("0.501"), mpf("0.501")), 5, 10, ()
    ),
    "exp10": (
        Problem(lambda r: (mpf(10) ** r - 1) / r, lambda r: r / mpf(10) ** r, -mpf("0.1512"), mpf("0.1512")), 5, 10, ()
    ),
    "log1p": (
        Problem(lambda f: (mp.log1p(f) - f) / f**2, lambda f: f**2 / mp.log1p(f), -mpf(1) / 3, mpf(1) / 3), 8, 0, ()
    ),
    "log_tail": (Problem(log_tail, lambda z: z / 2, TINY, mpf("0.02945")), 2, 6, ()),
    "log_tail_rest": (
        Problem(lambda z: (log_tail(z) - mpf(2) / 3) / z, lambda z: z**2 / 2, TINY, mpf("0.02945")), 2, 7, ()
    ),
    "sin": (Problem(*odd(mp.sin), TINY, PI4), 2, 5, ()),
    "cos": (Problem(lambda z: (mp.cos(mp.sqrt(z)) - 1) / z, lambda z: z, TINY, PI4), 3, 6, (-0.5,)),
    "tan": (Problem(*odd(mp.tan), TINY, PI4), 6, 14, ()),
    "atan": (Problem(*odd(mp.atan), TINY, mpf(1)), 8, 21, ()),
    "asin": (Problem(*odd(mp.asin), TINY, mpf("0.25")), 4, 12, ()),
    "sinh": (Problem(*odd(mp.sinh), TINY, mpf(1)), 3, 6, ()),
    "tanh": (Problem(*odd(mp.tanh), TINY, mpf("0.3025")), 4, 9, ()),
    "erf": (
        Problem(
            lambda z: mp.erf(mp.sqrt(z)) / mp.sqrt(z) - 1, lambda z: mp.sqrt(z) / mp.erf(mp.sqrt(z)), TINY, mpf(1)
        ), 6, 12, ()
    ),
}  # fmt: skip


def erf_tail(dtype: str) -> tuple[float, ...]:
    """−log(erfc(x)) in powers of x − center; the weight erfc(x) makes the error an absolute one of erf."""
    low, high, degree = (1, mpf("3.95"), 8) if dtype == "float32" else (1, mpf("5.95"), 18)
    center = mpf(ERF_CENTER)
    problem = Problem(
        lambda t: -mp.log(mp.erfc(t + center)), lambda t: mp.erfc(t + center), low - center, high - center
    )
    return fit("erf_tail", problem, degree, dtype)


ERF_CENTER = 1.5


def constants(dtype: str) -> dict[str, tuple[float, ...]]:
    short = 15 if dtype == "float32" else 41
    return {
        "ln2": split(mp.log(2), dtype, 2, short),
        "log10_2": split(mp.log10(2), dtype, 2, short),
        "log2_e": split(1 / mp.log(2), dtype, 2),
        "log2_10": split(mp.log(10, 2), dtype, 1),
        "log10_e": split(1 / mp.log(10), dtype, 2),
        "two_over_pi": split(2 / mp.pi, dtype, 1),
        "pi_over_2": split(mp.pi / 2, dtype, 3),
        "pi": split(mp.pi, dtype, 2),
        "two_thirds": split(mpf(2) / 3, dtype, 2),
        "erf_center": (ERF_CENTER,),
    }


def two_over_pi_words(bits: int, count: int) -> tuple[int, ...]:
    """The binary fraction of 2/π, most significant word first."""
    mp.prec = bits * count + 100
    fraction = int(mp.floor(2 / mp.pi * mpf(2) ** (bits * count)))
    mp.prec = 240
    return tuple((fraction >> (bits * (count - 1 - k))) & ((1 << bits) - 1) for k in range(count))


def table(name: str, entries: dict[tuple[str, str], tuple], digits: str) -> str:
    lines = [f"{name}: {digits} = {{"]
    for key, values in entries.items():
        head = f'    ("{key[0]}", "{key[1]}"): ('
        if len(values) == 1:
            lines.append(f"{head}{values[0]!r},),")
            continue
        lines += [head, *(f"        {value!r}," for value in values), "    ),"]
    return "\n".join([*lines, "}"])


def main() -> None:
    polynomials: dict[tuple[str, str], tuple] = {}
    splits: dict[tuple[str, str], tuple] = {}
    for dtype in ("float32", "float64"):
        for name, (problem, degree32, degree64, fixed) in PROBLEMS.items():
            degree = degree32 if dtype == "float32" else degree64
            if degree == 0:
                continue
            polynomials[name, dtype] = fit(name, problem, degree, dtype, fixed)
        polynomials["erf_tail", dtype] = erf_tail(dtype)
        for name, values in constants(dtype).items():
            splits[name, dtype] = values
    words = {("two_over_pi", "uint32"): two_over_pi_words(32, 7), ("two_over_pi", "uint64"): two_over_pi_words(64, 20)}
    text = "\n".join(
        [
            '"""Polynomials and constants of the math functions, made by tools/fit_math_coefficients.py."""',
            "",
            "from __future__ import annotations",
            "",
            table("POLYNOMIALS", polynomials, "dict[tuple[str, str], tuple[float, ...]]"),
            '"""(name, dtype) → coefficients, lowest power first."""',
            "",
            table("CONSTANTS", splits, "dict[tuple[str, str], tuple[float, ...]]"),
            '"""(name, dtype) → a number as an unevaluated sum, largest part first."""',
            "",
            table("WORDS", words, "dict[tuple[str, str], tuple[int, ...]]"),
            '"""(name, dtype) → the binary fraction of a number, most significant word first."""',
            "",
        ]
    )
    OUTPUT.write_text(text)


if __name__ == "__main__":
    main()

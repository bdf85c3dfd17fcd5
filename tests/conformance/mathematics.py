"""Cases of the language's mathematical functions (ptxtile.lower.math) and of the card's approximate instructions."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from functools import cache

import numpy as np

from ptxtile.ir import expressions as ir
from ptxtile.ir.expressions import HARDWARE_FUNCTIONS
from ptxtile.ir.program import Function
from ptxtile.ir.types import DType, float32
from ptxtile.lower.math import IN_PLACE, NAMES, closure
from ptxtile.target import Feature
from tests.conformance.cases import Case
from tests.conformance.operators import COUNT, Operator, case
from tests.conformance.values import FLOATS, decode, encode, limits, round_number, special, triples

GROUPS = tuple(NAMES[start : start + 4] for start in range(0, len(NAMES), 4))
"""Functions of one module: few modules are quick to compile, and a failure still names its functions."""


def arguments_of(name: str) -> int:
    return len(closure(name, float32)[-1].parameters)


@cache
def _columns(dtype: DType) -> dict[str, tuple[DType, np.ndarray]]:
    """Pairs of special numbers, random patterns, numbers of all moderate sizes, and numbers near 1."""
    generator = np.random.default_rng(zlib.crc32(f"mathematics_{dtype}".encode()))
    first, second, _ = triples(generator, dtype, COUNT)
    start = len(special(dtype)) ** 2 + len(limits(dtype))
    for column in (first, second):
        places = np.arange(start, COUNT)[generator.permutation(COUNT - start)[: (COUNT - start) * 3 // 4]]
        sizes = np.exp2(generator.uniform(-30, 10, len(places))) * generator.choice([-1.0, 1.0], len(places))
        near_one = 1 + generator.choice([-1.0, 1.0], len(places)) * np.exp2(-generator.uniform(0, 52, len(places)))
        numbers = np.where(generator.integers(0, 3, len(places)) == 0, near_one, sizes)
        column[places] = encode([round_number(x, dtype) for x in numbers.tolist()], dtype)
    return {"a": (dtype, first), "b": (dtype, second)}


@cache
def function_case(group: int, dtype: DType) -> Case:
    """Four functions of the language."""
    operators = []
    functions: dict[str, Function] = {}
    for name in GROUPS[group]:
        closed = closure(name, dtype)
        functions |= {function.name: function for function in closed}
        operands = ("a", "b")[: arguments_of(name)]
        build = lambda *a, f=closed[-1].name: ir.Call(f, a, dtype)  # noqa: E731
        operators.append(Operator(name, operands, build))
    title = f"math_{'_'.join(GROUPS[group])}_{dtype}"
    columns = _columns(dtype)
    made = case(title, columns, operators, functions=tuple(functions.values()))
    if "copysign" in GROUPS[group] and dtype.bits == 16:
        # The card gives a NaN that it widens to float32 a sign of its own, so what copysign takes from it is open.
        raw_dtype, signs = columns["b"]
        made.unspecified["copysign"] = np.isnan(decode(signs, raw_dtype))  # type: ignore[index]
    return made


@cache
def classification_case(dtype: DType) -> Case:
    rules: dict[str, Callable[[float], bool]] = {"isnan": math.isnan, "isinf": math.isinf, "isfinite": math.isfinite}
    operators = [Operator(name, ("a",), IN_PLACE[name], rules[name]) for name in IN_PLACE]
    return case(f"classification_{dtype}", _columns(dtype), operators)


# --- approximate instructions ---------------------------------------------------------------------------------------

SMALLEST_NORMAL = 2.0**-126

APPROXIMATIONS: dict[str, tuple[Callable[..., float], Callable[..., tuple[float, float]]]] = {
    "approx_ex2": (lambda x: 2.0**x if x < 1024 else math.inf, lambda x: (2.0**-22, 0.0)),
    "approx_lg2": (math.log2, lambda x: (0.0, 2.0**-22) if 0.5 <= x <= 2 else (2.0**-22, 0.0)),
    "approx_sin": (math.sin, lambda x: (0.0, 2.0**-20.5 if abs(x) <= 2 * math.pi else 2.0**-14.7)),
    "approx_cos": (math.cos, lambda x: (0.0, 2.0**-20.5 if abs(x) <= 2 * math.pi else 2.0**-14.7)),
    "approx_tanh": (math.tanh, lambda x: (2.0**-11, 0.0)),
    "approx_rcp": (lambda x: 1 / x, lambda x: (2.0**-23, 0.0)),
    "approx_rsqrt": (lambda x: 1 / math.sqrt(x), lambda x: (2.0**-22.9, 0.0)),
    "approx_sqrt": (math.sqrt, lambda x: (2.0**-22, 0.0)),
    "approx_div": (lambda x, y: x / y, lambda x, y: (2.0**-22, 0.0)),
}
"""(function, its largest relative and absolute error): PTX ISA, «Floating Point Instructions», each instruction's
section; sin and cos within 100π. Of div.full, 2 ulp."""


def _approximation(name: str, *values: float) -> tuple[float, float] | None:
    """(the exact value, the error allowed), or None where nothing is promised: subnormals, which are flushed, results
    out of range, arguments without a value."""
    function, errors = APPROXIMATIONS[name]
    if not all(math.isfinite(x) and abs(x) >= SMALLEST_NORMAL for x in values):
        return None
    if name in ("approx_sin", "approx_cos") and abs(values[0]) > 100 * math.pi:
        return None
    if name == "approx_div" and abs(values[1]) > 2.0**126:
        return None
    try:
        exact = function(*values)
    except (ValueError, OverflowError):
        return None
    if not SMALLEST_NORMAL <= abs(exact) < 2.0**127 and name not in ("approx_sin", "approx_cos", "approx_lg2"):
        return None
    relative, absolute = errors(*values)
    return exact, absolute + relative * abs(exact)


@cache
def approximation_case() -> Case:
    """The outputs may differ from the simulator's by what the manual allows from the exact value."""
    names = [name for name in HARDWARE_FUNCTIONS if name.startswith("approx_")]
    assert set(names) == set(APPROXIMATIONS)
    columns = _columns(float32)
    operators = [
        Operator(name, ("a", "b")[: HARDWARE_FUNCTIONS[name]], lambda *a, name=name: ir.call(name, *a))
        for name in names
    ]
    made = case("approximations", columns, operators, (Feature.TANH_APPROX,))
    numbers = {key: decode(raw, dtype) for key, (dtype, raw) in columns.items()}
    for name in names:
        rows = zip(*(numbers[key] for key in made.operands[name]), strict=True)
        promised = [_approximation(name, *row) for row in rows]
        made.unspecified[name] = np.array([p is None for p in promised])  # type: ignore[index]
        exact = np.array([p[0] if p else math.nan for p in promised])
        allowed = np.array([p[1] if p else math.nan for p in promised])
        within = lambda got, exact=exact, allowed=allowed: np.abs(got - exact) <= allowed  # noqa: E731
        made.errors[name] = within  # type: ignore[index]
    return made


CASES: dict[str, Callable[[], Case]] = {"approximations": approximation_case}
"""Makers of all cases by name."""
for _dtype in FLOATS:
    CASES[f"classification_{_dtype}"] = lambda d=_dtype: classification_case(d)
    for _group, _names in enumerate(GROUPS):
        CASES[f"math_{'_'.join(_names)}_{_dtype}"] = lambda g=_group, d=_dtype: function_case(g, d)


# --- references -----------------------------------------------------------------------------------------------------


def _elementwise(function: Callable[[float], float]) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.array([function(v) for v in x.astype(np.float64).tolist()], dtype=np.longdouble)


REFERENCES: dict[str, Callable[..., np.ndarray]] = {
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: np.power(np.longdouble(10), x), "expm1": np.expm1,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "log": np.log, "log2": np.log2, "log10": np.log10, "log1p": np.log1p,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
    "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh,
    "atanh": np.arctanh, "erf": _elementwise(math.erf), "pow": np.power, "rsqrt": lambda x: 1 / np.sqrt(x),
    "hypot": np.hypot, "fmod": np.fmod, "round": lambda x: np.copysign(np.trunc(np.abs(x) + 0.5), x),
    "copysign": np.copysign,
}  # fmt: skip
"""The processor's functions on arrays of long doubles; ``round`` is C's, halves away from zero."""

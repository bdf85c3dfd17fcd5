"""``fast_math``: float32 functions as the card's approximate instructions, with the scaling that their bases need.

Subnormal arguments and results are flushed. The documented errors (CUDA C++ Programming Guide, «Intrinsic Functions»;
PTX ISA, «Floating Point Instructions»): see :data:`ERRORS`.
"""

from __future__ import annotations

from collections.abc import Callable

from ptxtile.ir.expressions import Call, Expr
from ptxtile.ir.program import Function
from ptxtile.ir.types import DType, float32
from ptxtile.lower.math.builder import FunctionBuilder
from ptxtile.lower.math.coefficients import CONSTANTS

LOG2_E = CONSTANTS["log2_e", "float32"][0]
LOG2_10 = CONSTANTS["log2_10", "float32"][0]
LN_2 = sum(CONSTANTS["ln2", "float32"])
LOG10_2 = sum(CONSTANTS["log10_2", "float32"])


def approximate(name: str, *arguments: Expr) -> Call:
    return Call(f"approx_{name}", arguments, float32)


EXPANSIONS: dict[str, Callable[..., Expr]] = {
    "exp": lambda x: approximate("ex2", x * LOG2_E),
    "exp2": lambda x: approximate("ex2", x),
    "exp10": lambda x: approximate("ex2", x * LOG2_10),
    "log": lambda x: approximate("lg2", x) * LN_2,
    "log2": lambda x: approximate("lg2", x),
    "log10": lambda x: approximate("lg2", x) * LOG10_2,
    "sin": lambda x: approximate("sin", x),
    "cos": lambda x: approximate("cos", x),
    "tan": lambda x: Call("math_fast_tan_float32", (x,), float32),
    "tanh": lambda x: approximate("tanh", x),
    "pow": lambda x, y: approximate("ex2", y * approximate("lg2", x)),
    "rsqrt": lambda x: approximate("rsqrt", x),
    "sqrt": lambda x: approximate("sqrt", x),
    "sigmoid": lambda x: approximate("rcp", approximate("ex2", x * -LOG2_E) + 1.0),
}
"""Each names its arguments once."""

ERRORS: dict[str, str] = {
    "exp": "2 + floor(abs(1.173·x)) ulp",
    "exp2": "2 ulp",
    "exp10": "2 + floor(abs(2.97·x)) ulp",
    "log": "2^-21.41 absolute for x in [0.5, 2], else 3 ulp",
    "log2": "2^-22 absolute for x in [0.5, 2], else 2 ulp",
    "log10": "2^-24 absolute for x in [0.5, 2], else 3 ulp",
    "sin": "2^-21.41 absolute for x in [-π, π], larger elsewhere",
    "cos": "2^-21.19 absolute for x in [-π, π], larger elsewhere",
    "tan": "derived: the quotient of sin and cos",
    "tanh": "2^-11 relative",
    "pow": "derived: ex2(y·lg2(x)); NaN for x < 0",
    "rsqrt": "2^-22.9 relative",
    "sqrt": "2^-23 relative",
    "div": "2 ulp",
    "sigmoid": "derived: rcp (1 ulp) of 1 + exp(-x)",
}


def fast_tan(dtype: DType) -> Function:
    b = FunctionBuilder("fast_tan", dtype, "x")
    x = b.parameter("x")
    return b.finish(approximate("div", approximate("sin", x), approximate("cos", x)))

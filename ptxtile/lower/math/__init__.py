"""The mathematical functions of the language as device functions in IR arithmetic.

Integer operations, IEEE addition, multiplication, division and square root, ``fma``, and selects: the simulator and the
card run the same algorithm and give the same bits. One file per family; coefficients.py is generated.

    build("sin", float32)         the device function math_sin_float32
    closure("sin", float32)       it and what it calls, callees first
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from ptxtile.errors import LoweringError
from ptxtile.ir.expressions import HARDWARE_FUNCTIONS, Call, Var, cast
from ptxtile.ir.program import Function
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Seq
from ptxtile.ir.types import DType, bfloat16, float16, float32, parse_dtype
from ptxtile.lower.math import (
    classification,
    error_function,
    exponentials,
    fast,
    hyperbolic,
    inverse_trigonometric,
    logarithms,
    powers,
    remainders,
    rounding,
    trigonometric,
)
from ptxtile.lower.math.bounds import ULP
from ptxtile.lower.math.builder import FORMATS, function_name

__all__ = ["IN_PLACE", "NAMES", "ULP", "build", "closure", "function_name"]

_FAMILIES = (
    exponentials.exp, exponentials.exp2, exponentials.exp10, exponentials.expm1, exponentials.sigmoid,
    logarithms.log, logarithms.log2, logarithms.log10, logarithms.log1p,
    trigonometric.sin, trigonometric.cos, trigonometric.tan,
    inverse_trigonometric.asin, inverse_trigonometric.acos, inverse_trigonometric.atan, inverse_trigonometric.atan2,
    hyperbolic.sinh, hyperbolic.cosh, hyperbolic.tanh, hyperbolic.asinh, hyperbolic.acosh, hyperbolic.atanh,
    error_function.erf, powers.pow, powers.rsqrt, powers.hypot,
    remainders.fmod, rounding.round, rounding.copysign,
)  # fmt: skip
_INTERNAL = (
    trigonometric.sin_large, trigonometric.cos_large, trigonometric.tan_large, remainders.fmod_large, fast.fast_tan
)  # fmt: skip

_BUILDERS: dict[str, Callable[[DType], Function]] = {f.__name__: f for f in (*_FAMILIES, *_INTERNAL)}

NAMES: tuple[str, ...] = tuple(f.__name__ for f in _FAMILIES)
"""The functions of the language that :func:`build` knows."""

IN_PLACE = {"isnan": classification.isnan, "isinf": classification.isinf, "isfinite": classification.isfinite}
"""Functions that are one expression of their argument."""


@cache
def build(name: str, dtype: DType) -> Function:
    """The device function ``name`` for ``dtype``; float16 and bfloat16 compute in float32 and round once."""
    if name not in _BUILDERS:
        raise LoweringError(f"there is no function {name!r}", expected=f"one of {', '.join(NAMES)}", got=name)
    if dtype in FORMATS:
        return _BUILDERS[name](dtype)
    if dtype not in (float16, bfloat16):
        raise LoweringError(f"{name} of {dtype}", expected="float16, bfloat16, float32 or float64", got=str(dtype))
    wide = build(name, float32)
    own = function_name(name, dtype)
    parameters = tuple(Var(p.name.replace(wide.name, own), dtype) for p in wide.parameters)
    result = Call(wide.name, tuple(cast(p, float32) for p in parameters), float32)
    return Function(own, parameters, Seq(()), cast(result, dtype))


@cache
def closure(name: str, dtype: DType) -> tuple[Function, ...]:
    """The function and all that it calls, callees before callers."""
    function = build(name, dtype)
    ordered: dict[str, Function] = {}
    for root in (function.body, function.result):
        for node in walk(root):
            if isinstance(node, Call) and node.function not in HARDWARE_FUNCTIONS:
                ordered.update((f.name, f) for f in closure_of(node.function))
    return (*ordered.values(), function)


def closure_of(device_name: str) -> tuple[Function, ...]:
    """:func:`closure` by the name of the device function, such as ``math_sin_float32``."""
    name, _, dtype = device_name.removeprefix("math_").rpartition("_")
    return closure(name, parse_dtype(dtype))

"""Evaluation of IR expressions and device functions on NumPy arrays, outside any kernel.

    from ptxtile.sim.expressions import evaluate
    evaluate(expression, {"x": np.float32([1, 2, 3])}, functions=program.functions)

Arrays are in the held form of their dtype (:mod:`ptxtile.sim.dtypes`): bfloat16 as float32 numbers, the 8-bit floats as
codes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ptxtile.ir.expressions import Expr
from ptxtile.ir.program import Function
from ptxtile.sim.control_flow import Executor, mixed_storages
from ptxtile.sim.dtypes import as_array


def evaluate(
    expression: Expr,
    variables: Mapping[str, Any] | None = None,
    functions: Iterable[Function] = (),
) -> np.ndarray:
    """The value of ``expression`` as an array of its held dtype.

    ``variables``: by name, arrays of shapes that broadcast together (Python numbers for uniform integers and bools).
    ``functions``: device functions that calls may name, in any order. Loads of global and shared memory are an error.
    """
    functions = tuple(functions)
    executor = Executor(functions, mixed_storages(*(function.body for function in functions)))
    executor.variables.update(variables or {})
    with np.errstate(all="ignore"):
        return np.asarray(as_array(executor.evaluate(expression), expression.dtype))


def call(function: Function, *arguments: Any, functions: Iterable[Function] = ()) -> np.ndarray:
    """The result of a device function on arrays in held form; ``functions`` are those that it calls."""
    functions = (function, *functions)
    executor = Executor(functions, mixed_storages(*(inner.body for inner in functions)))
    with np.errstate(all="ignore"):
        result = executor.call_function(function, list(arguments), 1, None)
        return np.asarray(as_array(result, function.result.dtype))

"""Shortcuts of the frontend's tests: trace a function, or run one body both as plain Python and as a kernel."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

import ptxtile.language as T
from ptxtile.frontend.functions import UserFunction
from ptxtile.frontend.signature import typical
from ptxtile.frontend.trace import learn_signature, trace
from ptxtile.ir.program import Program
from ptxtile.ir.verifier import verify
from tests.frontend.interpreter import Machine, run


def traced(
    function: Any, outputs: tuple[str, ...] = (), constants: dict[str, int] | None = None, **python: Any
) -> Program:
    """The verified tile program of a function or prim_func, for typical arguments."""
    user = function if isinstance(function, UserFunction) else UserFunction(function)
    signature = learn_signature(user, python, outputs)
    program = trace(user, python, typical(signature, constants or {}), signature)
    verify(program)
    return program


def from_source(source: str, **names: Any) -> Any:
    """What ``main`` is in ``source``, whose lines the tracer can find as if they were in a file."""
    filename = f"<test source {next(_numbers)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    namespace: dict[str, Any] = {"T": T, **names}
    exec(compile(source, filename, "exec"), namespace)
    return namespace["main"]


_numbers = count()


_kernels: dict[Any, Program] = {}


def kernel_of(body: Callable[..., Any], arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> Program:
    """The kernel of a body, traced once for each body, closure and set of types."""
    closure = tuple(repr(cell.cell_contents) for cell in body.__closure__ or ())
    types = tuple((a.shape, a.dtype) for a in arrays.values()), tuple(type(v) for v in scalars.values())
    key = (body.__code__, closure, types)
    if key not in _kernels:
        _kernels[key] = _traced_kernel(body, arrays, scalars)
    return _kernels[key]


def _traced_kernel(body: Callable[..., Any], arrays: dict[str, np.ndarray], scalars: dict[str, Any]) -> Program:
    """A one-block kernel whose body is ``body(*arrays, *scalars)``, inlined as a macro."""
    dtypes = {bool: "T.bool", int: "T.int32", float: "T.float32"}
    parameters = [f"{n}: T.Tensor({a.shape}, '{a.dtype}')" for n, a in arrays.items()]
    parameters += [f"{n}: {dtypes[type(v)]}" for n, v in scalars.items()]
    call = f"inline({', '.join([*arrays, *scalars])})"
    source = f"def main({', '.join(parameters)}):\n    with T.Kernel(1, threads=1):\n        {call}\n"
    return traced(from_source(source, inline=T.macro(body)))


def same_as_python(body: Callable[..., Any], *arrays: np.ndarray, **scalars: Any) -> Machine:
    """Runs ``body`` on copies of the arrays as Python and as a kernel; the arrays must come out equal."""
    names = list(body.__code__.co_varnames[: len(arrays)])
    plain = {name: array.copy() for name, array in zip(names, arrays, strict=True)}
    device = {name: array.copy() for name, array in zip(names, arrays, strict=True)}
    typed = {
        n: (np.int32(v) if type(v) is int else np.float32(v) if type(v) is float else v) for n, v in scalars.items()
    }
    with np.errstate(all="ignore"):
        body(**plain, **typed)
    machine = run(kernel_of(body, device, scalars), device, scalars)
    for name in names:
        np.testing.assert_array_equal(device[name], plain[name], err_msg=name)
    return machine

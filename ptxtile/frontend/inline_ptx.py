"""``T.ptx``: the user's own PTX instructions."""

from __future__ import annotations

from typing import Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.current import kernel_tracer
from ptxtile.frontend.dtypes import as_dtype, is_dtype
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.values import Local, Value
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.manual_ops import InlinePtx, is_operand, template_problem
from ptxtile.ir.types import DType


def ptx(template: str, outs: Any = (), ins: Any = ()) -> Any:
    """PTX as it stands, run by every thread that comes here.

    ``$0``, ``$1``… stand for the operands: first ``outs`` (dtypes, whose values are returned, or variables of
    T.alloc_var, which are assigned), then ``ins`` (numbers of 16, 32 or 64 bits; 16-bit floats are passed as their
    bits, a Python number as int32 or float32). ``$$`` is a dollar sign, ``L_${:uid}`` a label of its own. Use
    ``T.ptx("clz.b32 $0, $1;", T.uint32, [x])`` as a value. It is never moved, dropped or repeated, but the compiler
    knows nothing else about it: memory that it touches needs T.sync_threads where other threads touch it.
    """
    tracer = kernel_tracer("T.ptx")
    if not isinstance(template, str) or not template.strip():
        raise TypeMismatchError(
            "the template of T.ptx", location=user_location(), expected="PTX instructions as a string",
            got=operations.describe(template),
        )  # fmt: skip
    wanted = list(outs) if isinstance(outs, (list, tuple)) else [outs]
    given = list(ins) if isinstance(ins, (list, tuple)) else [ins]
    inputs = tuple(_input(value, number) for number, value in enumerate(given))
    problem = template_problem(template, len(wanted) + len(inputs))
    if problem:
        raise TraceError(
            f"T.ptx has {problem}", location=user_location(), got=template,
            expected=f"each of $0 to ${len(wanted) + len(inputs) - 1}" if wanted or inputs else "no operands",
        )  # fmt: skip
    places = [_output(out, number) for number, out in enumerate(wanted)]
    buffers: list[Buffer] = []
    returned: list[Local] = []
    for place in places:
        if isinstance(place, DType):
            local = tracer.new_local(tracer.pending_name or "ptx", place, None, implicit=True)
            returned.append(local)
            buffers.append(local.buffer)
        else:
            buffers.append(place.buffer)
    tracer.emit(InlinePtx(template, tuple(buffers), inputs, location=user_location()))
    values = [local.snapshot() for local in returned]
    return None if not values else values[0] if len(values) == 1 else tuple(values)


def _output(out: Any, number: int) -> DType | Local:
    """A dtype, or the variable that is assigned."""
    dtype = out.ir_dtype if isinstance(out, Local) else as_dtype(out) if is_dtype(out) or isinstance(out, str) else None
    if dtype is None or (isinstance(out, Value) and not isinstance(out, Local)):
        raise TypeMismatchError(
            f"output {number} of T.ptx", location=user_location(),
            expected="a dtype, such as T.float32, or a variable of T.alloc_var", got=operations.describe(out),
        )  # fmt: skip
    _check(dtype, f"output {number}")
    return out if isinstance(out, Local) else dtype


def _input(value: Any, number: int) -> Expr:
    expr = operations.operand(value, "T.ptx")
    expr = expr if isinstance(expr, Expr) else operations.number_expr(expr)
    _check(expr.dtype, f"input {number}")
    return expr


def _check(dtype: DType, what: str) -> None:
    if not is_operand(dtype):
        raise TypeMismatchError(
            f"{what} of T.ptx fits no PTX register", location=user_location(), expected="a number of 16, 32 or 64 bits",
            got=str(dtype), hint="cast it, such as T.int32(x)",
        )  # fmt: skip

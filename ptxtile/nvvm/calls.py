"""Rules for Call: fma, the card's own functions, and the program's device functions."""

from __future__ import annotations

from collections.abc import Sequence

from ptxtile.ir.expressions import HARDWARE_FUNCTIONS, Call
from ptxtile.ir.types import Kind
from ptxtile.nvvm import inline_ptx
from ptxtile.nvvm.casts import cast
from ptxtile.nvvm.context import Context
from ptxtile.nvvm.dtypes import intrinsic_suffix, value_type
from ptxtile.nvvm.function import Value


def call(context: Context, node: Call, arguments: Sequence[Value]) -> Value:
    """One lane of a call."""
    writer, name = context.writer, node.function
    if name in HARDWARE_FUNCTIONS:
        if len(arguments) != HARDWARE_FUNCTIONS[name]:
            raise writer.error(f"{name} takes {HARDWARE_FUNCTIONS[name]} arguments", got=str(len(arguments)))
        return _hardware(context, node, arguments)
    function = writer.module.device_functions.get(name)
    if function is None:
        known = ", ".join(sorted([*HARDWARE_FUNCTIONS, *writer.module.device_functions]))
        raise writer.error(f"call of an unknown function {name!r}", expected=f"one of {known}")
    if [p.dtype for p in function.parameters] != [a.dtype for a in arguments]:
        got = ", ".join(str(a.dtype) for a in arguments)
        raise writer.error(f"arguments of {name} have other dtypes", got=got)
    typed = ", ".join(writer.typed(argument) for argument in arguments)
    result = function.result.dtype
    before = len(writer.lines)
    value = writer.value(f'call {value_type(result)} @"{name}"({typed})', result)
    writer.module.calls[writer.function_name, name] += len(writer.lines) - before  # 0 for one that was written before
    return value


def _hardware(context: Context, node: Call, arguments: Sequence[Value]) -> Value:
    writer, name, first = context.writer, node.function, arguments[0]
    kind = value_type(first.dtype)
    if name in ("popcount", "leading_zeros"):
        if not first.dtype.is_integer:
            raise writer.error(f"{name} takes an integer", got=str(first.dtype))
        intrinsic, more = ("ctpop", ()) if name == "popcount" else ("ctlz", ("false",))
        counted = writer.call_intrinsic(f"llvm.{intrinsic}.{kind}", writer.operand(first), *more)
        return cast(writer, Value(counted, first.dtype), node.dtype)
    if name == "fma":
        if first.dtype.kind is not Kind.FLOAT or kind.startswith("i"):
            raise writer.error("fma takes floats", got=str(first.dtype))
        result = writer.call_intrinsic(f"llvm.fma.{intrinsic_suffix(kind)}", *(a.text for a in arguments))
        return Value(result, first.dtype)
    if kind != "float":
        raise writer.error(f"{name} takes float32", got=str(first.dtype))
    return Value(inline_ptx.call(writer, name, *(a.text for a in arguments)), first.dtype)

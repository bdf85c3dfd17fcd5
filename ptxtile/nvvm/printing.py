"""Print through the device's ``vprintf`` (CUDA C++ Programming Guide, «Formatted Output»): a format string and a
buffer with the values, integers as at least 32 bits and floats as float64, each aligned to its size, as C's varargs
promote them.

Every thread that reaches the statement prints; lowering guards it so that one thread of the CTA does.
"""

from __future__ import annotations

from ptxtile.ir.tile_ops import Print
from ptxtile.ir.types import Kind, float64, int32, int64, uint32, uint64
from ptxtile.nvvm.casts import cast
from ptxtile.nvvm.context import Context
from ptxtile.nvvm.dtypes import value_type
from ptxtile.nvvm.expressions import evaluate
from ptxtile.nvvm.function import Value

_FORMATS = {int32: "%d", uint32: "%u", int64: "%lld", uint64: "%llu", float64: "%g"}


def run(context: Context, node: Print) -> None:
    writer = context.writer
    values = [_promoted(context, value) for expression in node.values for value in evaluate(context, expression)]
    formats = [_FORMATS[value.dtype] for value in values]
    message = node.message.replace("%", "%%")
    text = " ".join(part for part in (message, *formats) if part) + "\n"
    writer.module.declare("vprintf", "declare i32 @vprintf(ptr, ptr)")
    symbol = writer.module.string(text.encode())
    format_pointer = writer.register(f"addrspacecast ptr addrspace(1) {symbol} to ptr")
    arguments = _pack(context, values) if values else "null"
    writer.effect(f"call i32 @vprintf(ptr {format_pointer}, ptr {arguments})")


def _promoted(context: Context, value: Value) -> Value:
    dtype = value.dtype
    if dtype.kind is Kind.FLOAT:
        return cast(context.writer, value, float64)
    if dtype.bits == 64:
        return value
    if dtype.kind is Kind.UINT and dtype.bits == 32:
        return value
    return cast(context.writer, value, int32)


def _pack(context: Context, values: list[Value]) -> str:
    writer, offset, places = context.writer, 0, []
    for value in values:
        size = value.dtype.bits // 8
        offset = -(-offset // size) * size
        places.append(offset)
        offset += size
    buffer = writer.allocate(f"[{offset} x i8]", 8)
    for value, place in zip(values, places, strict=True):
        pointer = writer.register(f"getelementptr i8, ptr {buffer}, i64 {place}")
        writer.line(f"store {value_type(value.dtype)} {writer.operand(value)}, ptr {pointer}")
    return buffer

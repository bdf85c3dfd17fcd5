"""Conversions between element types, equal to torch's (see :class:`ptxtile.ir.expressions.Cast`).

float16 and bfloat16 convert through float32, as torch does: a float64 or a wide integer is then rounded twice.
"""

from __future__ import annotations

from ptxtile.errors import TargetError
from ptxtile.ir.types import DType, Kind, float32, int32, int64
from ptxtile.nvvm import inline_ptx
from ptxtile.nvvm.dtypes import is_float8, value_type
from ptxtile.nvvm.folding import wrap
from ptxtile.nvvm.function import FunctionWriter, Value, constant_value
from ptxtile.target import Feature, get, names

_FLOAT8 = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def cast(writer: FunctionWriter, value: Value, dtype: DType) -> Value:
    """``value`` as ``dtype`` (one element)."""
    source, dtype = value.dtype, dtype.element
    if source == dtype:
        return value
    for storage_only in (source, dtype):
        unsupported = storage_only.kind is Kind.FLOAT and (
            storage_only.bits < 8 or storage_only.element_name == "tfloat32"
        )
        if unsupported or storage_only.element_name == "float8_e8m0fnu":
            raise writer.error(f"a cast from {source} to {dtype} is not supported")
    if is_float8(source):
        return cast(writer, _from_float8(writer, value), dtype)
    if is_float8(dtype):
        return _to_float8(writer, cast(writer, value, float32), dtype)
    if source.kind is Kind.FLOAT:
        return _from_float(writer, value, dtype)
    return _from_integer(writer, value, dtype)


# -- from integers and bool ----------------------------------------
def _from_integer(writer: FunctionWriter, value: Value, dtype: DType) -> Value:
    source, kind = value.dtype, value_type(value.dtype)
    if dtype.kind is Kind.FLOAT:
        if value_type(dtype) in ("half", "bfloat"):
            return _from_float(writer, _from_integer(writer, value, float32), dtype)
        instruction = "sitofp" if source.kind is Kind.INT else "uitofp"
        return writer.value(f"{instruction} {kind} {writer.operand(value)} to {value_type(dtype)}", dtype)
    if value.constant is not None:
        known = value.constant != 0 if dtype.kind is Kind.BOOL else wrap(int(value.constant), dtype)
        return constant_value(known, dtype)
    operand = writer.operand(value)
    if dtype.kind is Kind.BOOL:
        return writer.value(f"icmp ne {kind} {operand}, 0", dtype)
    if source.kind is not Kind.BOOL and source.bits == dtype.bits:
        return Value(operand, dtype)
    if source.kind is not Kind.BOOL and source.bits > dtype.bits:
        return writer.value(f"trunc {kind} {operand} to {value_type(dtype)}", dtype)
    extend = "sext" if source.kind is Kind.INT else "zext"
    return writer.value(f"{extend} {kind} {operand} to {value_type(dtype)}", dtype)


# -- from floats ----------------------------------------
def _from_float(writer: FunctionWriter, value: Value, dtype: DType) -> Value:
    source, kind = value.dtype, value_type(value.dtype)
    if dtype.kind is Kind.BOOL:
        return writer.value(f"fcmp une {kind} {value.text}, {'0xR0000' if kind == 'bfloat' else '0.0'}", dtype)
    if dtype.kind is Kind.FLOAT:
        return _between_floats(writer, value, dtype)
    if source.bits == 16:
        value = _between_floats(writer, value, float32)
    if dtype.bits >= 32:
        return _saturating(writer, value, dtype)
    through = int64 if dtype.kind is Kind.UINT else int32
    return _from_integer(writer, _saturating(writer, value, through), dtype)


def _between_floats(writer: FunctionWriter, value: Value, dtype: DType) -> Value:
    source, kind, target = value.dtype, value_type(value.dtype), value_type(dtype)
    if source.bits < dtype.bits:
        return writer.value(f"fpext {kind} {value.text} to {target}", dtype)
    if dtype.bits == 16 and source.element_name != "float32":  # double, or the other 16-bit format
        return _between_floats(writer, _between_floats(writer, value, float32), dtype)
    return writer.value(f"fptrunc {kind} {value.text} to {target}", dtype)


def _saturating(writer: FunctionWriter, value: Value, dtype: DType) -> Value:
    """cvt.rzi to 32 or 64 bits. It saturates; its NaN gives 0 only from float32 to 32 bits (PTX ISA, «cvt»)."""
    letter = "d" if value.dtype.bits == 64 else "f"
    letters = {(32, True): "i", (32, False): "ui", (64, True): "ll", (64, False): "ull"}[dtype.bits, dtype.is_signed]
    result = writer.call_intrinsic(f"llvm.nvvm.{letter}2{letters}.rz", value.text)
    if letter == "f" and dtype.bits == 32:
        return Value(result, dtype)
    kind, target = value_type(value.dtype), value_type(dtype)
    ordered = writer.register(f"fcmp ord {kind} {value.text}, {value.text}")
    return writer.value(f"select i1 {ordered}, {target} {result}, {target} 0", dtype)


# -- float8 ----------------------------------------
def _require_float8(writer: FunctionWriter) -> None:
    """TargetError where the target has no instructions that convert 8-bit floats."""
    target, feature = writer.module.target, Feature.FP8_CONVERT
    if not target.has(feature):
        able = ", ".join(name for name in names() if get(name).has(feature))
        raise TargetError(
            f"{target.name} does not convert 8-bit floats",
            location=writer.location,
            expected=f"a target with {feature.name}: {able}",
            got=target.name,
            hint="copies of 8-bit floats work everywhere; a product or sum of them converts them",
        )


def _from_float8(writer: FunctionWriter, value: Value) -> Value:
    """One float8 as float32, exactly."""
    _require_float8(writer)
    wide = writer.register(f"zext i8 {value.text} to i16")
    pair = inline_ptx.call(writer, f"from_{_FLOAT8[value.dtype.element_name]}", wide)
    low = writer.register(f"trunc i32 {pair} to i16")
    half = writer.register(f"bitcast i16 {low} to half")
    return writer.value(f"fpext half {half} to float", float32)


def _to_float8(writer: FunctionWriter, value: Value, dtype: DType) -> Value:
    """One float32 as float8. The instruction saturates, torch overflows: to NaN (e4m3fn, above 464, where rounding
    would pass the largest value 448) or to infinity (e5m2, from 61440 on). The sign of a NaN is kept."""
    _require_float8(writer)
    form = _FLOAT8[dtype.element_name]
    packed = inline_ptx.call(writer, f"to_{form}", "0.0", value.text)
    byte = writer.register(f"trunc i16 {packed} to i8")
    bits = writer.register(f"bitcast float {value.text} to i32")
    top = writer.register(f"lshr i32 {bits}, 24")
    narrow = writer.register(f"trunc i32 {top} to i8")
    sign = writer.register(f"and i8 {narrow}, -128")
    size = writer.call_intrinsic("llvm.fabs.f32", value.text)
    if form == "e4m3":
        over = writer.register(f"fcmp ugt float {size}, 464.0")  # unordered: NaN too
        special = writer.register(f"or i8 {sign}, 127")
    else:
        number = writer.register(f"fcmp oge float {size}, 61440.0")
        invalid = writer.register(f"fcmp uno float {size}, {size}")
        over = writer.register(f"or i1 {number}, {invalid}")
        code = writer.register(f"select i1 {invalid}, i8 127, i8 124")
        special = writer.register(f"or i8 {sign}, {code}")
    return writer.value(f"select i1 {over}, i8 {special}, i8 {byte}", dtype)

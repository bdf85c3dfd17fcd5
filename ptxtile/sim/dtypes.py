"""How values of each dtype are held in NumPy arrays, how they lie in memory, and the conversions between dtypes.

A value of the simulator is either a Python int or bool (an integer or bool that is the same everywhere) or a NumPy
array or NumPy scalar of the *held* dtype. A value with several lanes has one more, last, axis of that length.

========================= ================================= ==========================
dtype                     held as                           in memory
========================= ================================= ==========================
bool                      bool                              one byte, 0 or 1
int8 … uint64             the same                          the same
int4, uint4               int8, uint8                       two a byte, the first in the low half
float16, float32, float64 the same                          the same
bfloat16                  float32 with 8 significant bits   upper half of the float32
tfloat32                  float32 with 11 significant bits  float32
float8_*, float4_*        uint8: the code                   the code (float4: two a byte)
========================= ================================= ==========================

Conversions are those of :class:`ptxtile.ir.expressions.Cast`; torch converts float64 and integers to the 8- and 16-bit
floats *through float32*, and so does this module. A NaN keeps no particular payload.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ptxtile.ir.types import DType

Value = Any
"""A Python int or bool, or a NumPy array or scalar (see the module's docstring)."""

_HELD: dict[str, type] = {
    "bool": np.bool_,
    "int4": np.int8, "int8": np.int8, "int16": np.int16, "int32": np.int32, "int64": np.int64,
    "uint4": np.uint8, "uint8": np.uint8, "uint16": np.uint16, "uint32": np.uint32, "uint64": np.uint64,
    "float16": np.float16, "float32": np.float32, "float64": np.float64, "bfloat16": np.float32, "tfloat32": np.float32,
    "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8, "float8_e8m0fnu": np.uint8, "float4_e2m1fn": np.uint8,
}  # fmt: skip

_CODED = ("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "float4_e2m1fn")

_SMALL_FORMATS = {"float8_e4m3fn": (4, 3, 7), "float8_e5m2": (5, 2, 15), "float4_e2m1fn": (2, 1, 1)}
"""(exponent bits, mantissa bits, bias): OCP 8-bit Floating Point 1.0 §5, OCP Microscaling Formats 1.0 §5.3.3."""

_HIGHEST_FINITE_CODE = {"float8_e4m3fn": 0x7E, "float8_e5m2": 0x7B, "float4_e2m1fn": 0x7}


def held_dtype(dtype: DType) -> np.dtype:
    """The NumPy dtype that holds one lane of ``dtype``."""
    return np.dtype(_HELD[dtype.element_name])


def memory_dtype(dtype: DType) -> np.dtype:
    """The NumPy dtype of one lane in memory (for 4-bit elements: of a byte, which is two of them)."""
    if dtype.element_name == "bfloat16":
        return np.dtype(np.uint16)
    return np.dtype(np.uint8) if dtype.is_bool else held_dtype(dtype)


def is_coded(dtype: DType) -> bool:
    """Whether values are held as codes, so that arithmetic on the held numbers means nothing."""
    return dtype.element_name in _CODED


def as_array(value: Value, dtype: DType) -> np.ndarray:
    """``value`` as an array of the held dtype (0-dimensional for a Python number)."""
    return value if isinstance(value, np.ndarray) else np.asarray(value, dtype=held_dtype(dtype))


def wrap_integer(value: int, dtype: DType) -> int:
    """A Python int wrapped to the width of an integer dtype; a bool is its truth."""
    if dtype.is_bool:
        return value != 0
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.is_signed and value > dtype.maximum else value


def wrap_array(values: np.ndarray, dtype: DType) -> np.ndarray:
    """4-bit integers wrapped to their width; wider integers wrap by themselves."""
    if dtype.bits != 4:
        return values
    low = values & 0xF
    return ((low ^ 8) - 8).astype(np.int8) if dtype.is_signed else low.astype(np.uint8)


def constant_value(value: int | float | bool, dtype: DType) -> Value:
    """A number of the IR as a value of one lane."""
    if not dtype.is_float:
        return wrap_integer(int(value), dtype)
    if is_coded(dtype):
        return encode_small(np.float32(value), dtype)[()]
    return round_float(np.asarray(value, dtype=np.float64), dtype)[()]


def poison(dtype: DType) -> Value:
    """What an uninitialised register or local variable holds: NaN, or a large integer that no program expects."""
    if dtype.is_bool:
        return True
    if is_coded(dtype):
        return np.uint8(0x7F if dtype.bits == 8 else 0x7)
    if dtype.is_float:
        return held_dtype(dtype).type(np.nan)
    return wrap_integer(0x5BAD5BAD5BAD5BAD, dtype)


# --- rounding -------------------------------------------------------------------------------------------------------


def round_bfloat16(values: np.ndarray) -> np.ndarray:
    """float32 → the nearest bfloat16 (ties to even), as float32."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(values), np.float32(np.nan), rounded.view(np.float32))


def round_tfloat32(values: np.ndarray) -> np.ndarray:
    """float32 → the nearest value with 11 significant bits (ties to even), as float32."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + (np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1)))) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(values), rounded.view(np.float32), values)


def round_float(values: np.ndarray, dtype: DType) -> np.ndarray:
    """A float32 or float64 array as the held array of an arithmetic float ``dtype``; 16-bit formats through float32."""
    name = dtype.element_name
    if name == "float64":
        return values.astype(np.float64, copy=False)
    single = values.astype(np.float32, copy=False)
    if name == "float32":
        return single
    if name == "float16":
        return single.astype(np.float16)
    return round_bfloat16(single) if name == "bfloat16" else round_tfloat32(single)


# --- 8-bit and 4-bit floats -----------------------------------------------------------------------------------------


@cache
def _decoded(name: str) -> np.ndarray:
    """float32 value of each code of a small format."""
    if name == "float8_e8m0fnu":  # a bare exponent, 2^(code - 127); 255 is NaN
        table = np.ldexp(np.float64(1), np.arange(256) - 127).astype(np.float32)
        table[255] = np.nan
        return table
    exponent_bits, mantissa_bits, bias = _SMALL_FORMATS[name]
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    mantissa = codes & ((1 << mantissa_bits) - 1)
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    significand = np.where(exponent == 0, mantissa, mantissa + (1 << mantissa_bits)).astype(np.float64)
    table = np.ldexp(significand, np.maximum(exponent, 1) - bias - mantissa_bits)
    magnitude = codes & (len(codes) // 2 - 1)
    if name == "float8_e5m2":
        table = np.where(magnitude == 0x7C, np.inf, np.where(magnitude > 0x7C, np.nan, table))
    if name == "float8_e4m3fn":
        table = np.where(magnitude == 0x7F, np.nan, table)
    return np.where(codes >= len(codes) // 2, -table, table).astype(np.float32)


@cache
def _midpoints(name: str) -> np.ndarray:
    """Between each finite magnitude and the next; the last one is where rounding overflows (absent for float4)."""
    finite = _decoded(name)[: _HIGHEST_FINITE_CODE[name] + 1].astype(np.float64)
    if name != "float4_e2m1fn":
        finite = np.append(finite, 2 * finite[-1] - finite[-2])
    return ((finite[1:] + finite[:-1]) / 2).astype(np.float32)


def encode_small(values: np.ndarray | np.floating, dtype: DType) -> np.ndarray:
    """float32 → codes of a small format, rounding to nearest even.

    Overflow gives infinity (e5m2) or NaN (e4m3fn), as in torch; float4 has neither and saturates, NaN to +6, as
    cvt.rn.satfinite.e2m1x2 does (PTX ISA, «cvt»). e8m0 has no sign and no zero.
    """
    single = np.asarray(values, dtype=np.float32)
    name = dtype.element_name
    if name == "float8_e8m0fnu":
        return _encode_e8m0(single)
    midpoints = _midpoints(name)
    magnitude = np.abs(single)
    code = np.searchsorted(midpoints, magnitude, side="left")
    tie = midpoints[np.minimum(code, len(midpoints) - 1)] == magnitude
    code = code + (tie & (code % 2 == 1))
    sign_bit = len(_decoded(name)) // 2
    code = np.where(np.isnan(single), sign_bit - 1, code)
    sign = np.signbit(single) & ~(np.isnan(single) & (name == "float4_e2m1fn"))
    return (code + sign * sign_bit).astype(np.uint8)


def _encode_e8m0(single: np.ndarray) -> np.ndarray:
    """The exponent, one more where the significand is above 1.5, or is 1.5 and not from the subnormals (as torch)."""
    bits = np.ascontiguousarray(single).view(np.uint32)
    exponent = (bits >> np.uint32(23)) & np.uint32(0xFF)
    guard = (bits & np.uint32(0x400000)) != 0
    below = (bits & np.uint32(0x3FFFFF)) != 0
    up = guard & (below | (exponent > 0)) & (exponent < 0xFF)
    return (exponent + up).astype(np.uint8).reshape(single.shape)


def decode_small(codes: np.ndarray, dtype: DType) -> np.ndarray:
    """Codes of a small format → float32."""
    return _decoded(dtype.element_name)[codes]


# --- conversions ----------------------------------------------------------------------------------------------------


def convert(value: Value, source: DType, target: DType) -> Value:
    """:class:`~ptxtile.ir.expressions.Cast` of a value from ``source`` to ``target`` (lanes are left alone)."""
    if source.element_name == target.element_name:
        return value
    if isinstance(value, (int, bool)) and not target.is_float:
        return wrap_integer(int(value), target)
    values = as_array(value, source)
    if is_coded(source):
        values = decode_small(values, source)
    if target.is_bool:
        return values != 0
    if target.is_integer:
        return _float_to_integer(values, target) if source.is_float else _narrow(values, target)
    if is_coded(target):
        return encode_small(values.astype(np.float32), target)
    return round_float(values if target.element_name == "float64" else values.astype(np.float32, copy=False), target)


def _narrow(values: np.ndarray, target: DType) -> np.ndarray:
    return wrap_array(values.astype(held_dtype(target)), target)


def _float_to_integer(values: np.ndarray, target: DType) -> np.ndarray:
    """Truncates, saturating at 32 or 64 bits; narrower integers go through int32, unsigned ones through int64."""
    if target.bits < 32:
        carrier = np.int32 if target.is_signed else np.int64
        return _narrow(_saturate(values, np.dtype(carrier)), target)
    return _saturate(values, held_dtype(target))


def _saturate(values: np.ndarray, integer: np.dtype) -> np.ndarray:
    limits = np.iinfo(integer)
    double = values.astype(np.float64, copy=False)
    above = double >= float(limits.max)  # for 64 bits float(max) is one more than max: the first value too large
    below = double <= float(limits.min)
    inside = ~(above | below | np.isnan(double))
    result = np.where(inside, double, 0.0).astype(integer)
    result = np.where(above, integer.type(limits.max), result)
    return np.where(below, integer.type(limits.min), result)


# --- memory ---------------------------------------------------------------------------------------------------------


def to_memory(value: Value, dtype: DType) -> np.ndarray:
    """The value as memory elements, same shape; 4-bit elements (whole bytes of lanes) halve the last axis."""
    values = as_array(value, dtype)
    if dtype.element_name == "bfloat16":
        return (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16).reshape(values.shape)
    if dtype.is_bool:
        return values.astype(np.uint8)
    if dtype.bits == 4:
        nibbles = values.astype(np.uint8) & np.uint8(0xF)
        return nibbles[..., 0::2] | (nibbles[..., 1::2] << np.uint8(4))
    return values


def from_memory(stored: np.ndarray, dtype: DType) -> np.ndarray:
    """The inverse of :func:`to_memory`."""
    if dtype.element_name == "bfloat16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if dtype.is_bool:
        return stored != 0
    if dtype.bits == 4:
        nibbles = np.stack([stored & np.uint8(0xF), stored >> np.uint8(4)], axis=-1)
        return wrap_array(nibbles.reshape(*stored.shape[:-1], -1), dtype)
    return stored


def reinterpret(value: Value, source: DType, target: DType) -> Value:
    """:class:`~ptxtile.ir.expressions.Bitcast`: the bits of ``source`` as ``target``, lanes included."""
    stored = to_memory(value, source)
    if source.lanes == 1:
        stored = stored[..., None]
    raw = np.ascontiguousarray(stored).view(memory_dtype(target))
    result = from_memory(raw, target)
    return result[..., 0] if target.lanes == 1 else result

"""LLVM types and constants of the IR's element types.

A value of a type lives in LLVM registers as :func:`value_type` says, in memory as :func:`memory_type` says; they
differ for bool (i1 against one byte of 0 or 1). float8 values are carried as their bytes."""

from __future__ import annotations

import math
import struct

from ptxtile.errors import VerificationError
from ptxtile.ir.types import DType, Kind

_FLOAT_TYPES = {"float16": "half", "bfloat16": "bfloat", "float32": "float", "float64": "double", "tfloat32": "float"}
_INTRINSIC_SUFFIXES = {"half": "f16", "bfloat": "bf16", "float": "f32", "double": "f64"}


def value_type(dtype: DType) -> str:
    """The LLVM type of one element in a register. VerificationError for a sub-byte element."""
    if dtype.kind is Kind.BOOL:
        return "i1"
    return memory_type(dtype)


def memory_type(dtype: DType) -> str:
    """The LLVM type of one element in memory."""
    if dtype.bits < 8:
        raise VerificationError(
            f"{dtype.element} has no memory access of its own: elements smaller than a byte are packed"
        )
    return _FLOAT_TYPES.get(dtype.element_name) or f"i{dtype.bits}"


def intrinsic_suffix(llvm_type: str) -> str:
    """How an overloaded intrinsic names the type: ``float`` → ``f32``, ``i32`` → ``i32``."""
    return _INTRINSIC_SUFFIXES.get(llvm_type, llvm_type)


def is_float8(dtype: DType) -> bool:
    return dtype.kind is Kind.FLOAT and dtype.bits == 8


def round_to_float32(value: float) -> float:
    """The float32 nearest to ``value``, infinite beyond its range."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def constant_text(value: int | float | bool, dtype: DType) -> str:
    """``value`` as an LLVM constant; floats by their bits. A float is rounded as a cast from float64 would round it."""
    if dtype.kind is Kind.BOOL:
        return "true" if value else "false"
    if dtype.kind is not Kind.FLOAT:
        return str(int(value))
    value = float(value)
    if dtype.element_name == "float64":
        return f"0x{_double_bits(value):016X}"
    if dtype.element_name in ("float32", "tfloat32"):
        return f"0x{_double_bits(round_to_float32(value)):016X}"
    if dtype.element_name == "float16":
        return f"0xH{_half_bits(value):04X}"
    if dtype.element_name == "bfloat16":
        return f"0xR{_bfloat_bits(value):04X}"
    if is_float8(dtype):
        return str(_float8_code(round_to_float32(value), dtype))
    raise VerificationError(f"a constant of {dtype} cannot be written: cast a float32 constant instead")


_FLOAT8 = {"float8_e4m3fn": (3, -6, 448.0, 464.0, 0x7F), "float8_e5m2": (2, -14, 57344.0, 61440.0, 0x7C)}
"""(mantissa bits, smallest exponent of a normal number, largest number, what rounds beyond it, code of overflow): OCP
8-bit Floating Point 1.0, §5. 464 itself rounds to the even 448 of e4m3fn, 61440 to e5m2's infinity."""


def _float8_code(value: float, dtype: DType) -> int:
    """The byte of a float32 in a float8 format, rounded to nearest even, overflowing as a cast does."""
    if dtype.element_name == "float8_e8m0fnu":  # an exponent, no sign, no zero (OCP Microscaling 1.0, §5.4)
        bits = struct.unpack("<I", struct.pack("<f", value))[0]
        exponent, fraction = (bits >> 23) & 0xFF, bits & 0x7FFFFF
        up = fraction > 0x400000 or (fraction == 0x400000 and exponent > 0)
        return exponent + (up and exponent < 0xFF)
    mantissa_bits, smallest, largest, limit, overflow = _FLOAT8[dtype.element_name]
    sign = 0x80 if math.copysign(1.0, value) < 0 else 0
    if math.isnan(value):
        return sign | 0x7F
    size = abs(value)
    if size > limit or (size == limit and overflow != 0x7F):
        return sign | overflow
    size = min(size, largest)
    exponent = max(math.frexp(size)[1] - 1, smallest) if size else smallest
    units = round(math.ldexp(size, mantissa_bits - exponent))  # half to even; a carry goes on into the exponent
    return sign | (((exponent - smallest) << mantissa_bits) + units)


def _double_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FF8 << 48
    return struct.unpack("<Q", struct.pack("<d", value))[0]


def _half_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7E00
    value = round_to_float32(value)
    try:
        return struct.unpack("<H", struct.pack("<e", value))[0]
    except OverflowError:
        return 0xFC00 if value < 0 else 0x7C00


def _bfloat_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FC0
    bits = struct.unpack("<I", struct.pack("<f", round_to_float32(value)))[0]
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # round half to even; infinity stays, a carry reaches it

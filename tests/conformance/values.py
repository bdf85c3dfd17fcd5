"""Numbers of every dtype as bit patterns: the special ones, random ones, and conversions to and from Python's numbers.

Nothing here comes from the code under test. Formats: IEEE 754; bfloat16 is the upper half of a float32; OCP 8-bit
Floating Point Specification 1.0 (e4m3, e5m2).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np
import torch

from ptxtile.ir import types
from ptxtile.ir.types import DType, Kind

INTEGERS = tuple(types.BY_NAME[f"{sign}{bits}"] for sign in ("int", "uint") for bits in (8, 16, 32, 64))
FLOATS = types.ARITHMETIC_FLOATS
SMALL_FLOATS = (types.float8_e4m3fn, types.float8_e5m2)
ARITHMETIC = (*INTEGERS, *FLOATS)

Number = int | float | bool


@dataclass(frozen=True)
class Format:
    """``precision``: significant bits. ``smallest``: exponent of the smallest subnormal. ``largest``: exponent of the
    largest finite numbers. ``bias`` of the stored exponent, which is ``exponent_bits`` wide."""

    precision: int
    smallest: int
    largest: int
    exponent_bits: int

    @property
    def mantissa_bits(self) -> int:
        return self.precision - 1

    @property
    def bias(self) -> int:
        return (1 << (self.exponent_bits - 1)) - 1


FORMATS = {
    "float16": Format(11, -24, 15, 5), "bfloat16": Format(8, -133, 127, 8), "float32": Format(24, -149, 127, 8),
    "float64": Format(53, -1074, 1023, 11), "float8_e4m3fn": Format(4, -9, 8, 4), "float8_e5m2": Format(3, -16, 15, 5),
}  # fmt: skip


# --- rounding -------------------------------------------------------------------------------------------------------


def rounded(value: Fraction, dtype: DType) -> float:
    """The exact ``value``, not 0, in ``dtype``: to nearest even, subnormals kept, infinite beyond (e4m3fn: NaN)."""
    form = FORMATS[dtype.element_name]
    numerator, denominator = abs(value.numerator), value.denominator
    exponent = numerator.bit_length() - denominator.bit_length()  # or one more than the number's
    if numerator << max(-exponent, 0) < denominator << max(exponent, 0):
        exponent -= 1
    unit = max(exponent - form.mantissa_bits, form.smallest)
    quotient, rest = divmod(numerator << max(-unit, 0), denominator << max(unit, 0))
    quotient += 2 * rest > denominator << max(unit, 0) or (2 * rest == denominator << max(unit, 0) and quotient & 1)
    sign = -1.0 if value < 0 else 1.0
    if dtype.element_name == "float8_e4m3fn" and quotient << max(unit, 0) > 448 << max(-unit, 0):
        return math.nan
    if quotient.bit_length() + unit > form.largest + 1:
        return sign * math.inf
    return sign * math.ldexp(quotient, unit)


def round_number(value: float | int, dtype: DType) -> float:
    """A Python number in ``dtype``, keeping zeros, infinities and NaN (e4m3fn has no infinity: NaN)."""
    if isinstance(value, float) and not math.isfinite(value):
        return math.nan if dtype.element_name == "float8_e4m3fn" else value
    return rounded(Fraction(value), dtype) if value else float(value)


# --- bit patterns ---------------------------------------------------------------------------------------------------


def raw_dtype(dtype: DType) -> np.dtype:
    """The unsigned NumPy dtype of an element's bits."""
    return np.dtype(f"uint{dtype.bits}")


def decode(raw: np.ndarray, dtype: DType) -> list[Number]:
    """Bit patterns as Python numbers."""
    if dtype.kind is Kind.BOOL:
        return [bool(x) for x in raw.tolist()]
    if dtype.kind is not Kind.FLOAT:
        return raw.view(np.dtype(dtype.element_name)).tolist()
    if dtype.element_name not in FORMATS:
        return raw.tolist()
    if dtype.bits == 8:
        table = small_float_table(dtype.element_name)
        return [table[x] for x in raw.tolist()]
    if dtype.element_name == "bfloat16":
        return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32).tolist()
    return raw.view(np.dtype(dtype.element_name)).tolist()


def encode(numbers: Sequence[Number], dtype: DType) -> np.ndarray:
    """Python numbers as bit patterns: integers wrap; floats must be exact in ``dtype``."""
    if dtype.kind is not Kind.FLOAT:
        mask = 1 if dtype.kind is Kind.BOOL else (1 << dtype.bits) - 1
        return np.array([int(x) & mask for x in numbers], dtype=raw_dtype(dtype))
    if dtype.bits == 8:
        codes = {(x, math.copysign(1, x)): code for code, x in enumerate(small_float_table(dtype.element_name))}
        nan = 0x7F
        found = [nan if math.isnan(x) else codes[float(x), math.copysign(1, x)] for x in numbers]
        return np.array(found, dtype=np.uint8)
    numbers = [math.nan if x != x else x for x in numbers]  # without a payload, which a cast may cut off
    with np.errstate(over="raise"):
        if dtype.element_name == "bfloat16":
            bits = np.array(numbers, dtype=np.float64).astype(np.float32).view(np.uint32)
            assert not (bits & 0xFFFF).any()
            return (bits >> np.uint32(16)).astype(np.uint16)
        return np.array(numbers, dtype=np.float64).astype(dtype.element_name).view(raw_dtype(dtype))


@cache
def small_float_table(name: str) -> tuple[float, ...]:
    """The value of each code of an 8-bit float."""
    form, table = FORMATS[name], []
    for code in range(256):
        mantissa = code & ((1 << form.mantissa_bits) - 1)
        exponent = (code & 0x7F) >> form.mantissa_bits
        if name == "float8_e4m3fn" and code & 0x7F == 0x7F:
            value = math.nan
        elif name == "float8_e5m2" and exponent == 31:
            value = math.nan if mantissa else math.inf
        else:
            whole = mantissa + (1 << form.mantissa_bits if exponent else 0)
            value = math.ldexp(whole, max(exponent, 1) - form.bias - form.mantissa_bits)
        table.append(-value if code & 0x80 else value)
    return tuple(table)


def is_nan(raw: np.ndarray, dtype: DType) -> np.ndarray:
    """Which bit patterns are NaN."""
    if dtype.element_name not in FORMATS:
        return np.zeros(raw.shape, dtype=bool)
    form = FORMATS[dtype.element_name]
    magnitude = raw & raw.dtype.type((1 << (dtype.bits - 1)) - 1)
    if dtype.element_name == "float8_e4m3fn":
        return magnitude == 0x7F
    return magnitude > raw.dtype.type(((1 << form.exponent_bits) - 1) << form.mantissa_bits)


# --- tensors --------------------------------------------------------------------------------------------------------


def as_tensor(raw: np.ndarray, dtype: DType) -> torch.Tensor:
    """Bit patterns as a torch tensor on the CPU."""
    return torch.from_numpy(raw.copy().view(f"int{dtype.bits}")).view(getattr(torch, dtype.element_name))


def as_raw(tensor: torch.Tensor, dtype: DType) -> np.ndarray:
    """A tensor's bit patterns, flat."""
    whole = tensor.detach().cpu().contiguous().reshape(-1)
    return whole.view(getattr(torch, f"int{dtype.bits}")).numpy().view(raw_dtype(dtype))


# --- samples --------------------------------------------------------------------------------------------------------


@cache
def special(dtype: DType) -> np.ndarray:
    """Bit patterns of the numbers that operators treat specially; few enough to be crossed pairwise."""
    if dtype.kind is Kind.BOOL:
        return np.array([0, 1], dtype=np.uint8)
    if dtype.kind is Kind.FLOAT:
        return _special_floats(dtype)
    low, high, bits = dtype.minimum, dtype.maximum, dtype.bits
    pattern = int("55" * 8, 16) & high
    found = [0, 1, 2, 3, 7, bits - 1, bits, bits + 1, high, high - 1, high // 2, pattern]
    found += [-1, -2, -3, -7, -bits, low, low + 1, ~pattern] if dtype.is_signed else [high - bits, high ^ pattern]
    return encode(sorted(set(found)), dtype)


def _special_floats(dtype: DType) -> np.ndarray:
    form = FORMATS[dtype.element_name]
    mantissa = form.mantissa_bits
    one, infinity = form.bias << mantissa, ((1 << form.exponent_bits) - 1) << mantissa
    patterns = [0, 1, (1 << mantissa) - 1, 1 << mantissa, one - 1, one, one + 1, infinity]
    patterns += [infinity - 1, infinity + (1 << (mantissa - 1)), infinity + 1]  # largest, quiet NaN, signalling NaN
    numbers = [0.5, 1.5, 2.5, 3.0, round_number(0.1, dtype), float(1 << mantissa)]
    unsigned = np.concatenate([np.array(patterns, dtype=raw_dtype(dtype)), encode(numbers, dtype)])
    return np.concatenate([unsigned, unsigned | raw_dtype(dtype).type(1 << (dtype.bits - 1))])


LIMITS = (
    127, 127.5, 128, 128.5, 255, 255.5, 256, 32767, 32768, 65504, 65519, 65520, 65535, 65536, 2**24 + 1, 2**31 - 128,
    2**31 - 1, 2**31, 2**32 - 256, 2**32 - 1, 2**32, 2**53 + 2, 2**62, 2**63 - 2**39, 2**63, 2**64 - 2**40, 2**64,
    448, 463.9, 464, 465, 480, 57344, 61439, 61440, 1e5, 1e-3, 2**-9, 2**-10, 3 * 2**-11, 2**-16, 2**-17, 2**-24,
    2**-25, 3 * 2**-26, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 1 + 2**-24, 1 + 3 * 2**-24, 3.4e38,
    3.4028235677973366e38, 2.0**128, 2**-149, 2**-150, 3 * 2**-151, 2**-133, 2**-134,
)  # fmt: skip
"""Where conversions change what they do: the ends of integer types, and ties and overflow of the narrower floats."""


def limits(dtype: DType) -> np.ndarray:
    """:data:`LIMITS` and their negatives, as far as ``dtype`` has them."""
    if dtype.kind is Kind.BOOL:
        return special(dtype)
    if dtype.kind is not Kind.FLOAT:
        numbers: Iterable[float] = (s * int(x) for x in LIMITS for s in (1, -1))
        return encode([x for x in numbers if dtype.minimum <= x <= dtype.maximum], dtype)
    return encode([round_number(float(s * x), dtype) for x in LIMITS for s in (1, -1)], dtype)


def random_patterns(generator: np.random.Generator, dtype: DType, count: int) -> np.ndarray:
    """Random bits; of integers, half of them small numbers."""
    if dtype.kind is Kind.BOOL:
        return generator.integers(0, 2, count).astype(np.uint8)
    raw = generator.integers(0, 1 << dtype.bits, count, dtype=np.uint64, endpoint=False) if dtype.bits < 64 else (
        generator.integers(0, (1 << 64) - 1, count, dtype=np.uint64, endpoint=True)
    )  # fmt: skip
    raw = raw.astype(raw_dtype(dtype))
    if dtype.kind is Kind.FLOAT:
        return raw
    small = encode([int(x) for x in generator.integers(-40 if dtype.is_signed else 0, 100, count)], dtype)
    return np.where(generator.integers(0, 2, count) == 0, raw, small)


def triples(generator: np.random.Generator, dtype: DType, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three columns of ``count`` bit patterns: every pair of special numbers in the first two, then random ones, pairs
    that cancel, and third operands that cancel the product of the first two."""
    edges = special(dtype)
    crossed = np.repeat(edges, len(edges)), np.tile(edges, len(edges))
    extra = limits(dtype)
    left = np.concatenate([crossed[0], extra, random_patterns(generator, dtype, count)])[:count]
    right = np.concatenate([crossed[1], np.roll(extra, 7), random_patterns(generator, dtype, count)])[:count]
    third = np.concatenate([generator.permutation(crossed[0]), random_patterns(generator, dtype, count)])[:count]
    if dtype.kind is Kind.FLOAT:
        first = len(crossed[0]) + len(extra)
        near = np.arange(first, count, 3)  # b = -a, give or take a few units in the last place
        sign = raw_dtype(dtype).type(1 << (dtype.bits - 1))
        right[near] = (left[near] ^ sign) + generator.integers(0, 4, len(near)).astype(raw_dtype(dtype))
        cancelling = np.arange(first + 1, count, 3)
        factors = zip(decode(left[cancelling], dtype), decode(right[cancelling], dtype), strict=True)
        products = [-(a * b) for a, b in factors]
        third[cancelling] = encode([round_number(p, dtype) for p in products], dtype)
        # moderate magnitudes, so that products and quotients of wide formats stay in range
        moderate = np.arange(first + 2, count, 6)
        for column in (left, right, third):
            numbers = (generator.normal(size=len(moderate)) * 8).tolist()
            column[moderate] = encode([round_number(x, dtype) for x in numbers], dtype)
    return left, right, third

"""Element types of the language: names, widths, kinds, and the values that each can hold.

A :class:`DType` is an element format with a number of lanes (``bfloat16x2``). Sub-byte formats count bits. ``bool`` is
one byte in memory, as in torch. The formats and their special values: IEEE 754; OCP 8-bit Floating Point Specification
1.0 (e4m3, e5m2); OCP Microscaling Formats 1.0 (e8m0, e2m1).
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from ptxtile.records import record


class Kind(Enum):
    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"


@record
class DType:
    """An element format and a lane count. ``bits`` is the width of one element in memory."""

    element_name: str
    kind: Kind
    bits: int
    lanes: int = 1

    @property
    def name(self) -> str:
        return self.element_name if self.lanes == 1 else f"{self.element_name}x{self.lanes}"

    @property
    def is_float(self) -> bool:
        return self.kind is Kind.FLOAT

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned integer; bool is not one."""
        kind = self.kind
        return kind is Kind.INT or kind is Kind.UINT

    @property
    def is_signed(self) -> bool:
        return self.kind in (Kind.INT, Kind.FLOAT)

    @property
    def is_bool(self) -> bool:
        return self.kind is Kind.BOOL

    @property
    def element(self) -> DType:
        return self if self.lanes == 1 else replace(self, lanes=1)

    def with_lanes(self, lanes: int) -> DType:
        return self if lanes == self.lanes else replace(self, lanes=lanes)

    @property
    def itemsize(self) -> int:
        """Bytes of a whole value, all lanes; a sub-byte value must fill whole bytes."""
        bits = self.bits * self.lanes
        if bits % 8:
            raise ValueError(f"{self.name} does not fill whole bytes")
        return bits // 8

    @property
    def minimum(self) -> int:
        """Smallest value of an integer or bool type."""
        return -(1 << (self.bits - 1)) if self.kind is Kind.INT else 0

    @property
    def maximum(self) -> int:
        """Largest value of an integer or bool type."""
        if self.kind is Kind.BOOL:
            return 1
        return (1 << (self.bits - 1)) - 1 if self.kind is Kind.INT else (1 << self.bits) - 1

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


def _integers(kind: Kind, prefix: str) -> dict[str, DType]:
    return {f"{prefix}{bits}": DType(f"{prefix}{bits}", kind, bits) for bits in (4, 8, 16, 32, 64)}


_FLOATS = {
    "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64, "tfloat32": 32,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e8m0fnu": 8, "float4_e2m1fn": 4,
}  # fmt: skip

BY_NAME: dict[str, DType] = {
    "bool": DType("bool", Kind.BOOL, 8),
    **_integers(Kind.INT, "int"),
    **_integers(Kind.UINT, "uint"),
    **{name: DType(name, Kind.FLOAT, bits) for name, bits in _FLOATS.items()},
}

bool_ = BY_NAME["bool"]
int8, int16, int32, int64 = (BY_NAME[f"int{bits}"] for bits in (8, 16, 32, 64))
uint8, uint16, uint32, uint64 = (BY_NAME[f"uint{bits}"] for bits in (8, 16, 32, 64))
float16, bfloat16, float32, float64 = (BY_NAME[name] for name in ("float16", "bfloat16", "float32", "float64"))
float8_e4m3fn, float8_e5m2 = BY_NAME["float8_e4m3fn"], BY_NAME["float8_e5m2"]

ARITHMETIC_FLOATS = (float16, bfloat16, float32, float64)
"""Float formats with arithmetic; the others are storage formats: they can be copied, and cast where a rule says so."""


def parse_dtype(name: str) -> DType:
    """``"bfloat16x2"`` → the type. KeyError for an unknown name."""
    if name in BY_NAME:
        return BY_NAME[name]
    element, separator, lanes = name.rpartition("x")
    if separator and lanes.isdigit() and element in BY_NAME and int(lanes) > 0:
        return BY_NAME[element].with_lanes(int(lanes))
    raise KeyError(name)


def wrap_integer(value: int, dtype: DType) -> int:
    """``value`` as an integer type of that width holds it, in two's complement where it is signed."""
    value &= (1 << dtype.bits) - 1
    if dtype.kind is Kind.INT and value >> (dtype.bits - 1):
        value -= 1 << dtype.bits
    return value

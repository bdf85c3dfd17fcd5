"""Element types of the language: names, widths, kinds, and the values that each can hold.

A :class:`DType` is an element format with a number of lanes (``bfloat16x2``). Sub-byte formats count bits. ``bool`` is
one byte in memory, as in torch. The formats and their special values: IEEE 754; OCP 8-bit Floating Point Specification
1.0 (e4m3, e5m2); OCP Microscaling Formats 1.0 (e8m0, e2m1).
"""

from __future__ import annotations

from enum import Enum
from functools import cache

from ptxtile.records import record


class Kind(Enum):
    BOOL = "bool"
    INT = "int"
    UINT = "uint"
    FLOAT = "float"


class _Derived:
    """What follows from the fields of a :class:`DType`. Passes ask for it at nearly every node, so it is worked out
    once for each type."""

    __slots__ = ("is_bool", "is_float", "is_integer", "maximum", "minimum", "name")

    name: str
    is_float: bool
    is_integer: bool
    """Signed or unsigned integer; bool is not one."""
    is_bool: bool
    minimum: int
    """Smallest value of an integer or bool type."""
    maximum: int
    """Largest value of an integer or bool type."""


@record
class DType(_Derived):
    """An element format and a lane count. ``bits`` is the width of one element in memory."""

    element_name: str
    kind: Kind
    bits: int
    lanes: int = 1

    def __post_init__(self) -> None:
        kind, bits = self.kind, self.bits
        values = {
            "name": self.element_name if self.lanes == 1 else f"{self.element_name}x{self.lanes}",
            "is_float": kind is Kind.FLOAT,
            "is_integer": kind is Kind.INT or kind is Kind.UINT,
            "is_bool": kind is Kind.BOOL,
            "minimum": -(1 << (bits - 1)) if kind is Kind.INT else 0,
            "maximum": 1 if kind is Kind.BOOL else (1 << (bits - 1 if kind is Kind.INT else bits)) - 1,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __reduce__(self) -> tuple[type[DType], tuple[str, Kind, int, int]]:
        return DType, (self.element_name, self.kind, self.bits, self.lanes)

    @property
    def is_signed(self) -> bool:
        return self.kind in (Kind.INT, Kind.FLOAT)

    @property
    def element(self) -> DType:
        return self.with_lanes(1)

    def with_lanes(self, lanes: int) -> DType:
        return self if lanes == self.lanes else _with_lanes(self, lanes)

    @property
    def itemsize(self) -> int:
        """Bytes of a whole value, all lanes; a sub-byte value must fill whole bytes."""
        bits = self.bits * self.lanes
        if bits % 8:
            raise ValueError(f"{self.name} does not fill whole bytes")
        return bits // 8

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


@cache
def _with_lanes(dtype: DType, lanes: int) -> DType:
    return DType(dtype.element_name, dtype.kind, dtype.bits, lanes)


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

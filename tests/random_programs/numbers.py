"""Scalar meaning of the random programs, in NumPy and torch: promotion, conversions, operators.

Values are NumPy arrays; a bfloat16 value is a float32 array whose elements are bfloat16 numbers. Written from the
language's rules (TileLang's promotion; torch's conversions; wrapping integers; IEEE arithmetic, rounded after each
operation), not from the compiler.
"""

from __future__ import annotations

import numpy as np
import torch

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
DTYPES: tuple[str, ...] = (*FLOATS, *INTEGERS, "bool")

HELD = {name: np.dtype(name) for name in DTYPES if name != "bfloat16"} | {"bfloat16": np.dtype(np.float32)}
"""The NumPy dtype of values."""

STORED = HELD | {"bfloat16": np.dtype(np.uint16), "bool": np.dtype(np.uint8)}
"""The NumPy dtype of elements in memory."""


def itemsize(dtype: str) -> int:
    """Bytes of an element."""
    return STORED[dtype].itemsize


def promote(left: str, right: str) -> str:
    """The common dtype of two operands: bool < integers < floats, then the wider, unsigned over signed, f16 over
    bf16."""
    if left == right:
        return left
    for a, b in ((left, right), (right, left)):
        if a == "bool" or (a in INTEGERS and b in FLOATS):
            return b
    if itemsize(left) != itemsize(right):
        return left if itemsize(left) > itemsize(right) else right
    if left in FLOATS:
        return "float16"
    return left if left in UNSIGNED else right


def arithmetic(dtype: str) -> str:
    """bool computes as int32."""
    return "int32" if dtype == "bool" else dtype


def _through_torch(value: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.array(value, order="C", copy=True)).to(dtype)


def round_to(value: np.ndarray, dtype: str) -> np.ndarray:
    """A float value rounded to ``dtype``."""
    if dtype == "bfloat16":
        return _through_torch(value, torch.bfloat16).to(torch.float32).numpy()
    return value.astype(HELD[dtype])


def convert(value: np.ndarray, source: str, target: str) -> np.ndarray:
    """``value`` of dtype ``source`` as ``target``. Out-of-range floats saturate at 32 and 64 bits, NaN gives 0;
    narrower integers wrap from int32 (uint8 and uint16: from int64)."""
    if source == target:
        return value
    if target == "bool":
        return value != 0
    if target == "bfloat16":
        return round_to(value, target)
    if target == "float16":
        return _through_torch(value, torch.float16).numpy()
    if target in FLOATS or source not in FLOATS:
        return value.astype(HELD[target])
    wide = target if itemsize(target) >= 4 else "int64" if target in UNSIGNED else "int32"
    limits = np.iinfo(wide)
    exact = np.trunc(value.astype(np.float64))
    exact = np.where(np.isnan(exact), 0.0, exact)
    low, high = exact <= float(limits.min), exact >= float(limits.max)
    inside = np.where(low | high, 0.0, exact).astype(HELD[wide])
    result = np.where(low, limits.min, np.where(high, limits.max, inside)).astype(HELD[wide])
    return result.astype(HELD[target])


def _floor_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.floor_divide(a, b)


def _trunc_divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    quotient = np.floor_divide(a, b)
    remainder = a - quotient * b
    return np.where((remainder != 0) & ((a < 0) != (b < 0)), quotient + a.dtype.type(1), quotient).astype(a.dtype)


def _shift(operator: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Counts outside of [0, bits) shift everything out."""
    bits = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < bits)
    count = np.where(inside, b, 0).astype(a.dtype)
    zero = np.zeros((), a.dtype)  # of the same dtype: NumPy would go through float64 for uint64 with a signed number
    if operator == "shl":
        return np.where(inside, np.left_shift(a, count), zero)
    return np.where(inside, np.right_shift(a, count), np.where(a < zero, ~zero, zero))


_BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.true_divide, "min": np.minimum, "max": np.maximum,
    "floordiv": _floor_divide, "floormod": np.mod, "truncdiv": _trunc_divide,
    "truncmod": lambda a, b: (a - _trunc_divide(a, b) * b).astype(a.dtype),
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": lambda a, b: _shift("shl", a, b), "shr": lambda a, b: _shift("shr", a, b),
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

_UNARY = {
    "neg": np.negative, "abs": np.abs, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "trunc": np.trunc,
    "rint": np.rint, "isnan": np.isnan,
}  # fmt: skip


def binary(operator: str, a: np.ndarray, b: np.ndarray, dtype: str) -> np.ndarray:
    """Both operands of ``dtype``; a comparison gives bool, everything else ``dtype``."""
    result = _BINARY[operator](a, b)
    if operator in COMPARISONS or dtype not in FLOATS:
        return result
    return round_to(result, dtype)


def unary(operator: str, a: np.ndarray, dtype: str) -> np.ndarray:
    if operator == "not":
        return np.logical_not(a) if dtype == "bool" else np.invert(a)
    result = _UNARY[operator](a)
    return round_to(result, dtype) if dtype == "bfloat16" and operator == "sqrt" else result


def decode(raw: np.ndarray, dtype: str) -> np.ndarray:
    """Memory elements as values."""
    if dtype == "bfloat16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    return raw != 0 if dtype == "bool" else raw


def encode(value: np.ndarray, dtype: str) -> np.ndarray:
    """Values as memory elements."""
    if dtype == "bfloat16":
        return (_through_torch(value, torch.bfloat16).view(torch.int16).numpy()).view(np.uint16)
    return value.astype(STORED[dtype])

"""Numbers passed to a kernel: which Python values stand for which dtype, and the bits that the kernel gets.

A value is accepted when the dtype can represent it: integers within range, whole floats for an integer parameter, 0
and 1 for a bool. A float is rounded to the parameter's precision (through float32 for the narrower formats, as torch
does), but one that would overflow to infinity is refused.
"""

from __future__ import annotations

import math
import struct
from numbers import Real
from typing import Any

from ptxtile.errors import ArgumentError
from ptxtile.runtime.dtypes import FORMATS, ElementFormat, torch_dtype


def accept(value: Any, dtype: str, subject: str) -> int | float:
    """``value`` as the number of format ``dtype`` that the kernel will see. ``subject`` starts the error message.

    Takes int, float, bool, NumPy scalars and 0-dimensional CPU tensors and arrays. ArgumentError for anything else,
    and for a value that the dtype cannot represent.
    """
    element = FORMATS.get(dtype)
    if element is None:
        raise ArgumentError(f"{subject}: a {dtype} number cannot be passed", expected="one of " + ", ".join(FORMATS))
    number = _plain_number(value, element, subject)
    if element.kind == "float":
        return _round(_float_of(number, element, subject), element, subject)
    return _whole(number, element, subject)


def _plain_number(value: Any, element: ElementFormat, subject: str) -> int | float:
    """The Python number in ``value``."""
    if type(value) in (int, float, bool):
        return value
    item = getattr(value, "item", None)
    if item is not None and hasattr(value, "shape"):
        if len(value.shape):
            raise _refused(subject, element, f"a value of shape {tuple(value.shape)}", None)
        device = getattr(value, "device", "cpu")
        if str(device) != "cpu":
            hint = "pass tensor.item(): reading it waits for the card, so that is not done for you"
            raise _refused(subject, element, f"a tensor on {device}", hint)
        value = item()
    if isinstance(value, Real) and not isinstance(value, (int, float)):
        value = float(value)
    if not isinstance(value, (int, float)):
        index = getattr(type(value), "__index__", None)
        if index is None:
            raise _refused(subject, element, f"{type(value).__name__} {shortened(value)}", None)
        value = index(value)
    return value


def _float_of(number: int | float, element: ElementFormat, subject: str) -> float:
    try:
        return float(number)
    except OverflowError:
        raise _out_of_range(number, element, subject) from None


def _whole(number: int | float, element: ElementFormat, subject: str) -> int:
    if isinstance(number, float) and not number.is_integer():
        raise _refused(
            subject, element, f"float {number!r}", "it would lose its fraction: convert it with int() or round()"
        )
    whole = int(number)
    if not element.minimum <= whole <= element.maximum:
        raise _out_of_range(number, element, subject)
    return whole


def _round(number: float, element: ElementFormat, subject: str) -> float:
    """``number`` rounded to the nearest value of the format; NaN and infinity stay what they are."""
    rounded = decode(encode(number, element), element)
    if math.isfinite(number) and (not math.isfinite(rounded) or abs(number) > _largest_of_saturating(element)):
        raise _out_of_range(number, element, subject)
    return rounded


def _largest_of_saturating(element: ElementFormat) -> float:
    """Where the 8-bit floats end, since torch may saturate there instead of giving infinity or NaN; else infinite."""
    if element.bytes > 1:
        return math.inf
    import torch

    return torch.finfo(torch_dtype(element.name)).max


def encode(number: int | float, element: ElementFormat) -> int | float:
    """What ``struct`` packs with ``element.packing``: the number, or its bits as an integer for bfloat16 and 8-bit
    floats.

    A finite float beyond the format's range becomes infinity (NaN where it has none).
    """
    if element.kind != "float" or element.name == "float64":
        return number
    single = _to_single(float(number))
    if element.name == "bfloat16":
        return _bfloat16_bits(single)
    if element.bytes == 1:
        import torch

        return torch.tensor(single, dtype=torch.float32).to(torch_dtype(element.name)).view(torch.uint8).item()
    if element.name == "float16" and math.isfinite(single):
        # struct raises for what rounds beyond the largest half, 65504; 65520 is halfway to the next step (IEEE 754,
        # 4.3.1).
        return single if abs(single) < 65520.0 else math.copysign(math.inf, single)
    return single


def decode(encoded: int | float, element: ElementFormat) -> float:
    """The value that the bits stand for."""
    if element.name == "bfloat16":
        return struct.unpack("<f", struct.pack("<I", int(encoded) << 16))[0]
    if element.bytes == 1:
        import torch

        bits = torch.tensor(encoded, dtype=torch.uint8)
        return bits.view(torch_dtype(element.name)).to(torch.float32).item()
    return struct.unpack("<" + element.packing, struct.pack("<" + element.packing, encoded))[0]


def _to_single(number: float) -> float:
    try:
        return struct.unpack("<f", struct.pack("<f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)


def _bfloat16_bits(single: float) -> int:
    """The upper half of the float32, rounded to nearest, ties to even; a NaN stays a quiet NaN."""
    bits = struct.unpack("<I", struct.pack("<f", single))[0]
    if math.isnan(single):
        return (bits >> 16) | 0x40
    return (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16


def _refused(subject: str, element: ElementFormat, got: str, hint: str | None) -> ArgumentError:
    kind = {"float": "a number", "bool": "a bool"}.get(element.kind, "an integer")
    return ArgumentError(f"{subject}: not {kind}", expected=f"{kind} of {element.name}", got=got, hint=hint)


def _out_of_range(number: int | float, element: ElementFormat, subject: str) -> ArgumentError:
    expected = f"a finite value of {element.name}"
    if element.kind != "float":
        expected = f"{element.minimum} to {element.maximum} ({element.name})"
    return ArgumentError(f"{subject}: out of range", expected=expected, got=shortened(number))


def shortened(value: object) -> str:
    """``repr(value)`` on one line of a message."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."

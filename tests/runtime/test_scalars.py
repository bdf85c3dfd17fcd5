"""Numbers: what is accepted for each dtype, rounding against NumPy and torch, ranges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ptxtile.errors import ArgumentError
from ptxtile.runtime.dtypes import FORMATS
from ptxtile.runtime.scalars import accept, encode

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_ranges(dtype) -> None:
    limits = np.iinfo(dtype)
    for value in (limits.min, limits.max, 0, 1):
        assert accept(int(value), dtype, "f") == value
    for value in (int(limits.min) - 1, int(limits.max) + 1):
        with pytest.raises(ArgumentError, match=f"f: out of range(.|\n)*{limits.min} to {limits.max} .{dtype}."):
            accept(value, dtype, "f")


@pytest.mark.parametrize(
    "value, dtype, expected",
    [
        (True, "int32", 1),
        (3.0, "int32", 3),
        (np.int16(-5), "int32", -5),
        (np.float32(0.5), "float32", 0.5),
        (np.bool_(True), "bool", 1),
        (torch.tensor(7), "int64", 7),
        (torch.tensor(0.25, dtype=torch.bfloat16), "float32", 0.25),
        (np.array(9), "int8", 9),
        (True, "bool", 1),
        (0, "bool", 0),
        (3, "float16", 3.0),
        (math.inf, "float32", math.inf),
        (-math.inf, "bfloat16", -math.inf),
        (1e300, "float64", 1e300),
    ],
)
def test_accepted(value, dtype, expected) -> None:
    accepted = accept(value, dtype, "f")
    assert accepted == expected
    assert type(accepted) is type(expected)


@pytest.mark.parametrize(
    "value, dtype, part",
    [
        (1.5, "int32", "lose its fraction"),
        (math.nan, "int32", "float nan"),
        (math.inf, "int64", "float inf"),
        ("3", "int32", "str '3'"),
        (None, "float32", "NoneType None"),
        (1j, "float32", "complex"),
        ([1], "int32", "list [1]"),
        (2, "bool", "0 to 1 (bool)"),
        (torch.zeros(1), "float32", "shape (1,)"),
        (torch.zeros((), device="meta"), "float32", "tensor on meta"),
        (1e39, "float32", "a finite value of float32"),
        (65520.0, "float16", "a finite value of float16"),
        (3.4e38, "bfloat16", "a finite value of bfloat16"),
        (10**400, "float64", "a finite value of float64"),
        (1000.0, "float8_e4m3fn", "a finite value of float8_e4m3fn"),
        (1, "int4", "a int4 number cannot be passed"),
    ],
)
def test_refused(value, dtype, part) -> None:
    with pytest.raises(ArgumentError) as caught:
        accept(value, dtype, "add: argument 'k' (3 of 3)")
    assert str(caught.value).startswith("add: argument 'k' (3 of 3): ") and part in str(caught.value)


@given(st.floats(width=32))
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_floats_round_as_torch_rounds(dtype, value) -> None:
    expected = torch.tensor(value, dtype=torch.float32).to(getattr(torch, dtype)).float().item()
    if math.isinf(expected) and not math.isinf(value):
        with pytest.raises(ArgumentError):
            accept(value, dtype, "f")
        return
    accepted = accept(value, dtype, "f")
    assert accepted == expected or (math.isnan(accepted) and math.isnan(expected))
    assert math.copysign(1, accepted) == math.copysign(1, expected) or math.isnan(expected)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_round_to_single_as_numpy_rounds(value) -> None:
    with np.errstate(over="ignore"):
        expected = float(np.float32(value))
    if math.isinf(expected):
        with pytest.raises(ArgumentError):
            accept(value, "float32", "f")
    else:
        assert accept(value, "float32", "f") == expected


@given(st.floats(width=32, allow_nan=False))
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_bits(dtype, value) -> None:
    integer = torch.int16 if dtype == "bfloat16" else torch.uint8
    expected = torch.tensor(value, dtype=torch.float32).to(getattr(torch, dtype)).view(integer).item()
    assert encode(value, FORMATS[dtype]) == expected % (1 << 8 * FORMATS[dtype].bytes)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_the_table_agrees_with_torch(name) -> None:
    """Sizes and integer ranges as torch has them."""
    element = FORMATS[name]
    dtype = getattr(torch, element.torch_name)
    assert element.bytes == dtype.itemsize
    if element.kind in ("int", "uint"):
        assert (element.minimum, element.maximum) == (torch.iinfo(dtype).min, torch.iinfo(dtype).max)

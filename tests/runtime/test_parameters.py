"""The bytes of kernel parameters, against struct packing at offsets worked out by hand."""

from __future__ import annotations

import struct

import pytest

from ptxtile.errors import LaunchError
from ptxtile.launch_record import KernelLaunch, KernelParameter, SizeOperation, Symbol
from ptxtile.runtime.parameters import ParameterLayout


def layout(*parameters: KernelParameter) -> ParameterLayout:
    return ParameterLayout(KernelLaunch("k", (1, 1, 1), (32, 1, 1), 0, parameters))


def scalar(name: str, dtype: str, value=None) -> KernelParameter:
    return KernelParameter("scalar", name, dtype, value)


def test_offsets_and_bytes() -> None:
    made = layout(
        scalar("flag", "bool"),
        KernelParameter("pointer", "A"),
        scalar("half", "float16"),
        KernelParameter("tensor_map", "A_map"),
        scalar("brain", "bfloat16"),
        scalar("count", "int32"),
        scalar("double", "float64"),
    )
    assert made.offsets == (0, 8, 16, 64, 192, 196, 200) and made.size == 208
    encoded = bytes(range(128))
    scalars = {"flag": 1, "half": 1.5, "brain": -2.0, "count": -7, "double": 0.1}
    numbers = [
        made.number(parameter, scalars, {}) if parameter.kind == "scalar" else 0 for parameter in made.parameters
    ]
    numbers[1], numbers[3] = 0x1122334455667788, encoded
    packed = made.pack(numbers)
    expected = bytearray(208)
    expected[0] = 1
    struct.pack_into("<Q", expected, 8, 0x1122334455667788)
    struct.pack_into("<H", expected, 16, 0x3E00)  # 1.5 in IEEE 754 binary16
    expected[64:192] = encoded
    struct.pack_into("<H", expected, 192, 0xC000)  # −2 in bfloat16: the upper half of 0xC0000000
    struct.pack_into("<i", expected, 196, -7)
    struct.pack_into("<d", expected, 200, 0.1)
    assert packed == bytes(expected)


@pytest.mark.parametrize("dtype, code", [
    ("int8", "b"), ("uint8", "B"), ("int16", "h"), ("uint16", "H"), ("int32", "i"), ("uint32", "I"), ("int64", "q"),
    ("uint64", "Q"),
])  # fmt: skip
def test_computed_sizes(dtype, code) -> None:
    made = layout(scalar("s", dtype, SizeOperation("mul", Symbol("N"), 3)))
    number = made.number(made.parameters[0], {}, {"N": 41})
    assert made.pack([number]) == struct.pack("<" + code, 123)


def test_a_size_beyond_its_type_is_named() -> None:
    made = layout(KernelParameter("pointer", "A"), scalar("stride", "int32", SizeOperation("mul", Symbol("N"), 4)))
    number = made.number(made.parameters[1], {}, {"N": 2**30})
    with pytest.raises(LaunchError) as caught:
        made.pack([0, number])
    assert "kernel 'k': parameter 'stride' does not fit" in str(caught.value)
    assert "a value of int32" in str(caught.value) and "(N * 4) = 4294967296" in str(caught.value)


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(LaunchError, match="parameter 'x' cannot be passed"):
        layout(scalar("x", "int4"))


def test_no_parameters() -> None:
    assert layout().pack([]) == b"" and layout().size == 0

"""Tensor maps: the driver's rules with our messages, and what the driver is given.

Rules: CUDA driver API, cuTensorMapEncodeTiled. Enumeration values: cuda.h, through cuda-python's enumerations.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from cuda.bindings import driver as bindings

from ptxtile.errors import ArgumentError
from ptxtile.launch_record import SizeOperation, Symbol, TensorMapRecord
from ptxtile.runtime import tensor_maps
from ptxtile.runtime.driver import Driver
from ptxtile.runtime.dtypes import FORMATS
from tests.runtime.fake_bindings import FakeBindings

M, N = Symbol("M"), Symbol("N")
RECORD = TensorMapRecord(
    "A_map", "A", "float32", (N, M), (SizeOperation("mul", N, 4),), (32, 64), swizzle=128, l2_promotion=256
)
SIZES = {"M": 100, "N": 1024}


def describe(address: int = 0x1000, symbols=SIZES, **changes) -> tensor_maps.TiledMap:
    return tensor_maps.describe(dataclasses.replace(RECORD, **changes), address, symbols, "add")


def test_what_the_driver_is_given() -> None:
    fake = FakeBindings()
    encoded = tensor_maps.encode(Driver(fake), describe(offset=32), "add: the tensor map of 'A'")
    assert encoded == b"\x01" * 128
    assert fake.encoded == [
        {
            "aligned": True,
            "data_type": int(bindings.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_FLOAT32),
            "address": 0x1020,
            "dimensions": (1024, 100),
            "strides": (4096,),
            "box": (32, 64),
            "element_strides": (1, 1),
            "modes": (
                int(bindings.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE),
                int(bindings.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B),
                int(bindings.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B),
                int(bindings.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            ),
        }
    ]


def test_enumerations_are_those_of_the_header() -> None:
    for name, value in tensor_maps.DATA_TYPES.items():
        assert int(getattr(bindings.CUtensorMapDataType, "CU_TENSOR_MAP_DATA_TYPE_" + name)) == value
    for size, value in tensor_maps.SWIZZLES.items():
        name = f"CU_TENSOR_MAP_SWIZZLE_{size}B" if size else "CU_TENSOR_MAP_SWIZZLE_NONE"
        assert int(getattr(bindings.CUtensorMapSwizzle, name)) == value
    for size, value in tensor_maps.L2_PROMOTIONS.items():
        name = f"CU_TENSOR_MAP_L2_PROMOTION_L2_{size}B" if size else "CU_TENSOR_MAP_L2_PROMOTION_NONE"
        assert int(getattr(bindings.CUtensorMapL2promotion, name)) == value


@pytest.mark.parametrize("dtype", sorted(FORMATS))
def test_every_dtype_moves_as_a_type_of_its_width(dtype) -> None:
    width = {"UINT8": 1, "UINT16": 2, "FLOAT16": 2, "BFLOAT16": 2, "UINT32": 4, "INT32": 4, "FLOAT32": 4}
    expected = width.get(FORMATS[dtype].tensor_map, 8)
    assert FORMATS[dtype].bytes == expected
    box = (32 // expected, 8)
    assert describe(dtype=dtype, box=box, swizzle=32).data_type == tensor_maps.DATA_TYPES[FORMATS[dtype].tensor_map]


def test_bool_goes_as_uint8() -> None:
    assert describe(dtype="bool", box=(64, 64)).data_type == 0


@pytest.mark.parametrize(
    "changes, parts",
    [
        ({"dimensions": (), "strides": (), "box": ()}, ["number of dimensions", "1 to 5", "0"]),
        ({"dimensions": (N,) * 6, "strides": (16,) * 5, "box": (4,) * 6}, ["number of dimensions", "6"]),
        ({"strides": ()}, ["number of strides", "1", "0"]),
        ({"box": (32,)}, ["number of box sizes"]),
        ({"address": 0}, ["no address", "null"]),
        ({"address": 0x1008}, ["address is not aligned", "16 bytes", "0x1008"]),
        ({"offset": 4}, ["address is not aligned", "0x1004"]),
        ({"dimensions": (N, 0)}, ["size of dimension 1", "1 to 4294967296", "0"]),
        ({"dimensions": (2**32 + 1, M)}, ["size of dimension 0", "4294967297"]),
        ({"strides": (4092,)}, ["stride of dimension 1", "multiple of 16 bytes", "4092 bytes"]),
        ({"strides": (2**40,)}, ["stride of dimension 1", "less than 1099511627776"]),
        ({"box": (32, 257)}, ["box size of dimension 1", "1 to 256", "257"]),
        ({"box": (0, 4)}, ["box size of dimension 0", "0"]),
        ({"box": (3, 4), "swizzle": 0}, ["innermost side of the box", "16 bytes", "12 bytes"]),
        ({"box": (64, 4)}, ["innermost side of the box", "at most the swizzle, 128 bytes", "256 bytes"]),
        ({"swizzle": 16}, ["unknown swizzle", "16"]),
        ({"l2_promotion": 100}, ["unknown L2 promotion", "100"]),
        ({"dtype": "int4"}, ["TMA cannot move int4"]),
    ],
)
def test_rules(changes, parts) -> None:
    address = changes.pop("address", 0x1000)
    with pytest.raises(ArgumentError) as caught:
        describe(address, **changes)
    assert str(caught.value).startswith("add: the tensor map of 'A': ")
    for part in parts:
        assert part in str(caught.value)


def test_limits_are_inclusive() -> None:
    describe(dimensions=(2**32, 2**32), strides=(2**40 - 16,), box=(256, 256), swizzle=0)


def test_the_stride_of_a_single_row_does_not_matter() -> None:
    assert describe(symbols={"M": 1, "N": 1023}).strides == (4096,)  # 1023 · 4 rounded up to a multiple of 16
    assert describe(symbols={"M": 1, "N": 1024}).strides == (4096,)
    outer = describe(dimensions=(8, 1, 5), strides=(0, 64), box=(8, 1, 1))
    assert outer.strides == (32, 64)


def test_a_refusal_of_the_driver_shows_what_it_was_given() -> None:
    fake = FakeBindings()
    fake.results["cuTensorMapEncodeTiled"] = bindings.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(ArgumentError, match="CUDA_ERROR_INVALID_VALUE(.|\n)*box=.32, 64."):
        tensor_maps.encode(Driver(fake), describe(), "add: the tensor map of 'A'")


def test_a_tensor_without_elements_reads_as_zeros() -> None:
    fake = FakeBindings()
    empty = torch.zeros(0, 1024)
    _, kept = tensor_maps.of_binding(Driver(fake), RECORD, empty, {"M": 0, "N": 1024}, "add")
    assert fake.encoded[0]["dimensions"] == (1, 1) and fake.encoded[0]["address"] == kept.data_ptr()
    assert kept.numel() * kept.element_size() >= 8 and not kept.any()

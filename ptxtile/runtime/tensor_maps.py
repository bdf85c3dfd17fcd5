"""Tensor maps: from a :class:`TensorMapRecord` and a tensor's address to the 128 bytes that TMA instructions read.

The rules of cuTensorMapEncodeTiled (CUDA driver API, «Tensor Map Object Management») are checked here first, because
the driver answers every violation with CUDA_ERROR_INVALID_VALUE.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ptxtile.errors import ArgumentError
from ptxtile.launch_record import TensorMapRecord, evaluate_size
from ptxtile.records import record
from ptxtile.runtime.driver import ENCODE_TILED, Driver
from ptxtile.runtime.dtypes import FORMATS

if TYPE_CHECKING:
    import torch

BYTES = 128
ALIGNMENT = 64
MAX_RANK = 5
MAX_DIMENSION = 2**32
MAX_STRIDE = 2**40
MAX_BOX = 256
STRIDE_MULTIPLE = 16

DATA_TYPES = {
    "UINT8": 0, "UINT16": 1, "UINT32": 2, "INT32": 3, "UINT64": 4, "INT64": 5, "FLOAT16": 6, "FLOAT32": 7, "FLOAT64": 8,
    "BFLOAT16": 9, "FLOAT32_FTZ": 10, "TFLOAT32": 11, "TFLOAT32_FTZ": 12,
}  # fmt: skip
"""CUtensorMapDataType (cuda.h)."""
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""Bytes of the swizzled row → CUtensorMapSwizzle (cuda.h)."""
L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
"""Bytes → CUtensorMapL2promotion (cuda.h)."""
_INTERLEAVE_NONE = 0
_FILL_WITH_ZEROS = 0


@record
class TiledMap:
    """The arguments of one cuTensorMapEncodeTiled call, as numbers; innermost dimension first. strides in bytes."""

    data_type: int
    element_bytes: int
    address: int
    dimensions: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    l2_promotion: int


def describe(record: TensorMapRecord, address: int, symbols: Mapping[str, int], function: str = "") -> TiledMap:
    """The call's arguments for a tensor at ``address``, checked. ArgumentError names the tensor and the rule.

    The stride of a dimension of size 1 is never used, so one that breaks the rules is replaced.
    """
    subject = f"{function + ': ' if function else ''}the tensor map of {record.tensor!r}"
    if record.dtype not in FORMATS:
        raise ArgumentError(f"{subject}: TMA cannot move {record.dtype}", expected="one of " + ", ".join(FORMATS))
    element = FORMATS[record.dtype]
    dimensions = tuple(evaluate_size(size, symbols) for size in record.dimensions)
    strides = tuple(evaluate_size(size, symbols) for size in record.strides)
    strides = _legal_where_unused(dimensions, strides, element.bytes)
    tiled = TiledMap(
        DATA_TYPES[element.tensor_map],
        element.bytes,
        address + record.offset,
        dimensions,
        strides,
        record.box,
        record.swizzle,
        record.l2_promotion,
    )
    check(tiled, subject)
    return tiled


def _legal_where_unused(dimensions: tuple[int, ...], strides: tuple[int, ...], element_bytes: int) -> tuple[int, ...]:
    """``strides`` with those of dimensions of size 1 made multiples of 16 where they are not, or where they are 0."""
    legal: list[int] = []
    extent = dimensions[0] * element_bytes if dimensions else 0
    for size, stride in zip(dimensions[1:], strides, strict=False):
        if size == 1 and (stride % STRIDE_MULTIPLE or not 0 < stride < MAX_STRIDE):
            stride = min(-(-extent // STRIDE_MULTIPLE) * STRIDE_MULTIPLE, MAX_STRIDE - STRIDE_MULTIPLE)
        extent = size * stride
        legal.append(stride)
    return (*legal, *strides[len(legal) :])


def check(tiled: TiledMap, subject: str) -> None:
    """ArgumentError for the first rule of cuTensorMapEncodeTiled that does not hold."""

    def require(holds: bool, what: str, expected: str, got: object) -> None:
        if not holds:
            raise ArgumentError(f"{subject}: {what}", expected=expected, got=str(got))

    rank = len(tiled.dimensions)
    require(1 <= rank <= MAX_RANK, "wrong number of dimensions", f"1 to {MAX_RANK}", rank)
    require(len(tiled.strides) == rank - 1, "wrong number of strides", str(rank - 1), len(tiled.strides))
    require(len(tiled.box) == rank, "wrong number of box sizes", str(rank), len(tiled.box))
    address = tiled.address
    require(address != 0, "no address", "a tensor with memory", "a null pointer")
    require(address % 16 == 0, "the address is not aligned", "a multiple of 16 bytes", hex(address))
    for index, size in enumerate(tiled.dimensions):
        require(1 <= size <= MAX_DIMENSION, f"size of dimension {index} out of range", f"1 to {MAX_DIMENSION}", size)
    for index, stride in enumerate(tiled.strides, start=1):
        multiple = stride % STRIDE_MULTIPLE == 0
        require(multiple, f"stride of dimension {index}", f"a multiple of {STRIDE_MULTIPLE} bytes", f"{stride} bytes")
        require(0 <= stride < MAX_STRIDE, f"stride of dimension {index}", f"less than {MAX_STRIDE} bytes", stride)
    for index, size in enumerate(tiled.box):
        require(1 <= size <= MAX_BOX, f"box size of dimension {index} out of range", f"1 to {MAX_BOX}", size)
    inner = tiled.box[0] * tiled.element_bytes
    require(inner % 16 == 0, "innermost side of the box", "a multiple of 16 bytes", f"{inner} bytes")
    require(tiled.swizzle in SWIZZLES, "unknown swizzle", f"one of {tuple(SWIZZLES)} bytes", tiled.swizzle)
    within = tiled.swizzle == 0 or inner <= tiled.swizzle
    require(within, "innermost side of the box", f"at most the swizzle, {tiled.swizzle} bytes", f"{inner} bytes")
    known = tiled.l2_promotion in L2_PROMOTIONS
    require(known, "unknown L2 promotion", f"one of {tuple(L2_PROMOTIONS)} bytes", tiled.l2_promotion)


class MapArrays:
    """The arrays that cuTensorMapEncodeTiled reads, in memory of their own, and their addresses."""

    __slots__ = ("_memory", "box_at", "element_strides_at", "sizes_at", "strides_at")

    def __init__(self, tiled: TiledMap) -> None:
        rank = len(tiled.dimensions)
        wide = struct.pack(f"{2 * rank - 1}Q", *tiled.dimensions, *tiled.strides)
        narrow = struct.pack(f"{2 * rank}I", *tiled.box, *(1,) * rank)
        sizes, boxes = ctypes.create_string_buffer(wide, len(wide)), ctypes.create_string_buffer(narrow, len(narrow))
        self._memory = (sizes, boxes)
        self.sizes_at, self.box_at = ctypes.addressof(sizes), ctypes.addressof(boxes)
        self.strides_at, self.element_strides_at = self.sizes_at + 8 * rank, self.box_at + 4 * rank


class MapEncoder:
    """Encodes the tensor map ``tiled`` again and again, for tensors at other addresses, into 128 bytes at ``target``.

    ``offset`` in bytes is added to each tensor's address; ``address`` is that of the tensor whose map is there now.
    """

    __slots__ = ("_arguments", "_driver", "_encode", "_global", "_keep", "_offset", "_subject", "_tiled", "address")

    def __init__(self, driver: Driver, tiled: TiledMap, subject: str, target: int, offset: int = 0) -> None:
        rank, given = len(tiled.dimensions), MapArrays(tiled)
        number, pointer = ctypes.c_int, ctypes.c_void_p
        self._global = pointer(0)
        # Ready-made C values, which ctypes takes as they are: it would convert twelve Python integers at each call.
        self._arguments = (
            pointer(target), number(tiled.data_type), ctypes.c_uint32(rank), self._global, pointer(given.sizes_at),
            pointer(given.strides_at), pointer(given.box_at), pointer(given.element_strides_at),
            number(_INTERLEAVE_NONE), number(SWIZZLES[tiled.swizzle]),
            number(L2_PROMOTIONS[tiled.l2_promotion]), number(_FILL_WITH_ZEROS),
        )  # fmt: skip
        self._keep = given
        self._encode = driver.by_address(ENCODE_TILED)
        self._driver, self._tiled, self._subject, self._offset = driver, tiled, subject, offset
        self.address = 0

    def encode(self, address: int) -> None:
        """The map of the tensor at ``address``. ArgumentError when the driver refuses what passed :func:`check`."""
        self._global.value = address + self._offset
        self.address = 0
        result = self._encode(*self._arguments)
        if result != 0:
            name, text = self._driver.describe(result)
            got = str(replace(self._tiled, address=address + self._offset))
            raise ArgumentError(f"{self._subject}: the driver refused it: {name}: {text}", got=got)
        self.address = address


def encode(driver: Driver, tiled: TiledMap, subject: str) -> bytes:
    """The 128 bytes of the CUtensorMap. ArgumentError when the driver refuses what passed :func:`check`."""
    room = ctypes.create_string_buffer(BYTES + ALIGNMENT)
    start = ctypes.addressof(room)
    aligned = -start % ALIGNMENT
    MapEncoder(driver, tiled, subject, start + aligned).encode(tiled.address)
    return room.raw[aligned : aligned + BYTES]


def of_binding(
    driver: Driver,
    record: TensorMapRecord,
    tensor: torch.Tensor,
    symbols: Mapping[str, int],
    function: str,
) -> tuple[bytes, torch.Tensor]:
    """The encoded map of ``tensor``, and the tensor whose memory it points to, which must live until the kernel is
    launched.

    A tensor without elements has no legal map: it gets one of a single zero, so that every read gives zero as out of
    bounds would, and writes go nowhere that matters.
    """
    subject = f"{function}: the tensor map of {record.tensor!r}"
    if tensor.numel():
        return encode(driver, describe(record, tensor.data_ptr(), symbols, function), subject), tensor
    import torch

    zero = torch.zeros(16, dtype=torch.uint8, device=tensor.device)
    element = FORMATS[record.dtype]
    tiled = TiledMap(
        DATA_TYPES[element.tensor_map],
        element.bytes,
        zero.data_ptr(),
        (1,) * record.rank,
        (STRIDE_MULTIPLE,) * (record.rank - 1),
        record.box,
        record.swizzle,
        record.l2_promotion,
    )
    check(tiled, subject)
    return encode(driver, tiled, subject), zero

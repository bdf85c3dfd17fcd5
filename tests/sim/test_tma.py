"""TMA copies against a brute-force model: element by element, with the swizzle tables of the PTX manual written out."""

from __future__ import annotations

import itertools
from dataclasses import replace
from math import prod

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile import sim
from ptxtile.errors import SimulationError
from ptxtile.ir.buffers import Scope
from ptxtile.ir.gpu_ops import (
    BarSync,
    BulkCommitGroup,
    BulkWaitGroup,
    MbarrierArriveExpectTx,
    MbarrierInit,
    MbarrierWait,
    TmaLoad,
    TmaStore,
)
from ptxtile.ir.program import Program
from ptxtile.ir.statements import If, LoopKind, seq
from ptxtile.ir.types import BY_NAME, uint8
from ptxtile.launch_record import TensorMapRecord
from tests.sim.programs import BLOCK_X, THREAD, Var, barriers, get, int32, loop, number, on_chip, program, put, tensor

# PTX ISA, «Swizzling modes»: where each 16-byte chunk of consecutive 128-byte lines goes within its line.
SWIZZLE_TABLES = {
    0: [[0, 1, 2, 3, 4, 5, 6, 7]],
    32: [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6]],
    64: [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6], [2, 3, 0, 1, 6, 7, 4, 5], [3, 2, 1, 0, 7, 6, 5, 4]],
    128: [
        [0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6], [2, 3, 0, 1, 6, 7, 4, 5], [3, 2, 1, 0, 7, 6, 5, 4],
        [4, 5, 6, 7, 0, 1, 2, 3], [5, 4, 7, 6, 1, 0, 3, 2], [6, 7, 4, 5, 2, 3, 0, 1], [7, 6, 5, 4, 3, 2, 1, 0],
    ],
}  # fmt: skip


def shared_position(linear: int, swizzle: int) -> int:
    table = SWIZZLE_TABLES[swizzle]
    line, within = divmod(linear, 128)
    return line * 128 + table[line % len(table)][within // 16] * 16 + within % 16


def box_model(
    source: np.ndarray, coordinates: list[int], box: list[int], swizzle: int, element_bytes: int
) -> np.ndarray:
    """The bytes that a load leaves in shared memory. ``source``: [..., element bytes]; coordinates innermost first."""
    result = np.zeros(prod(box) * element_bytes, dtype=np.uint8)
    shape = source.shape[:-1][::-1]
    for linear, index in enumerate(itertools.product(*(range(n) for n in reversed(box)))):
        where = [c + i for c, i in zip(coordinates, reversed(index), strict=True)]
        if all(0 <= w < n for w, n in zip(where, shape, strict=True)):
            for byte, value in enumerate(source[tuple(reversed(where))]):
                result[shared_position(linear * element_bytes + byte, swizzle)] = value
    return result


def copy_program(
    record: TensorMapRecord, source_shape: tuple[int, ...], coordinates: list[int], back: list[int]
) -> Program:
    """Loads one box, dumps shared memory byte by byte into ``dump``, stores the box at ``back`` through ``out_map``."""
    box_bytes = prod(record.box) * BY_NAME[record.dtype].itemsize
    source = tensor("source", source_shape, BY_NAME[record.dtype])
    target = tensor("target", source_shape, BY_NAME[record.dtype])
    dump = tensor("dump", (box_bytes,), uint8)
    tile = on_chip("tile", Scope.SHARED, uint8, box_bytes, 1024)
    full, zero, i = barriers("full", 1, 0), number(0), Var("i", int32)
    body = seq(
        If(THREAD.eq(0), MbarrierInit(full, zero, 1)),
        BarSync(0, 32),
        If(
            THREAD.eq(5),
            seq(
                MbarrierArriveExpectTx(full, zero, box_bytes),
                TmaLoad(record.name, tuple(number(c) for c in coordinates), tile, zero, full, zero),
            ),
        ),
        MbarrierWait(full, zero, zero, (tile,)),
        loop(i, box_bytes // 16, If(THREAD.lt(16), put(dump, i * 16 + THREAD, get(tile, i * 16 + THREAD)))),
        If(
            THREAD.eq(0),
            seq(
                TmaStore("out_map", tuple(number(c) for c in back), tile, zero),
                BulkCommitGroup(),
                BulkWaitGroup(0, False),
            ),
        ),
    )
    out = replace(record, name="out_map", tensor="target")
    return program(body, [source, target, dump], threads=32, shared_bytes=1024 + box_bytes, tensor_maps=(record, out))


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_round_trip_against_the_model(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(["uint8", "float16", "float32", "float64"]))
    width = BY_NAME[dtype].itemsize
    swizzle = data.draw(st.sampled_from([0, 32, 64, 128]))
    rank = data.draw(st.integers(1, 5))
    inner = (swizzle or data.draw(st.integers(1, 4)) * 16) // width
    box = [inner] + [data.draw(st.integers(1, {2: 11, 3: 4}.get(rank, 2))) for _ in range(rank - 1)]
    sizes = [data.draw(st.integers(1, 2 * n + 3)) for n in box]
    row = -(-sizes[0] * width // 16) * 16  # rows are padded to 16 bytes
    strides, running = [], row
    for size in sizes[1:]:
        strides.append(running)
        running *= size
    coordinates, back = (
        [data.draw(st.integers(-n - 1, size + 1)) for n, size in zip(box, sizes, strict=True)] for _ in range(2)
    )
    unit = 16 // width  # the innermost coordinate has to be a multiple of 16 bytes
    coordinates[0], back[0] = (start // unit * unit for start in (coordinates[0], back[0]))
    back = [max(start, 0) for start in back]  # a store may not start before the tensor
    record = TensorMapRecord("in_map", "source", dtype, tuple(sizes), tuple(strides), tuple(box), swizzle)
    seed = data.draw(st.integers(0, 2**31))
    padded = (*reversed(sizes[1:]), row // width)
    shape = (prod(padded),)
    random = np.random.default_rng(seed)
    raw = {name: random.integers(0, 256, prod(padded) * width, dtype=np.uint8) for name in ("source", "target")}
    torch_dtype = getattr(torch, dtype)
    tensors = {name: torch.from_numpy(bytes_.copy()).view(torch_dtype) for name, bytes_ in raw.items()}
    tensors["dump"] = torch.zeros(prod(box) * width, dtype=torch.uint8)
    sim.run(copy_program(record, shape, coordinates, back), tensors, {})

    source = raw["source"].reshape(*padded, width)[..., : sizes[0], :]
    expected = box_model(source, coordinates, box, swizzle, width)
    np.testing.assert_array_equal(tensors["dump"].numpy(), expected)

    written = raw["target"].reshape(*padded, width).copy()
    for linear, index in enumerate(itertools.product(*(range(n) for n in reversed(box)))):
        where = [c + i for c, i in zip(back, reversed(index), strict=True)]
        if all(0 <= w < n for w, n in zip(where, sizes, strict=True)):
            for byte in range(width):
                written[(*reversed(where), byte)] = expected[shared_position(linear * width + byte, swizzle)]
    np.testing.assert_array_equal(tensors["target"].view(torch.uint8).numpy(), written.reshape(-1))


def small(**changes: object) -> TensorMapRecord:
    record = TensorMapRecord("in_map", "source", "float32", (64, 8), (256,), (32, 8), 128)
    return replace(record, **changes)  # type: ignore[arg-type]


def run_small(record: TensorMapRecord, coordinates: int = 2, base: int = 0) -> None:
    storage = torch.zeros(8 * 64 + 64)
    tensors = {"source": storage[base : base + 512], "target": torch.zeros(8 * 64)}
    tensors["dump"] = torch.zeros(prod(record.box) * BY_NAME[record.dtype].itemsize, dtype=torch.uint8)
    sim.run(copy_program(record, (512,), [0] * coordinates, [0] * coordinates), tensors, {})


def test_the_small_map_is_legal() -> None:
    run_small(small())


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (small(box=(64, 8)), "128"),
        (small(box=(16, 8)), "smaller than its swizzle"),
        (small(box=(30, 8)), "16 bytes"),
        (small(strides=(260,)), "multiples of 16"),
        (small(box=(32, 257)), "1 to 256"),
        (small(dimensions=(64, 9000)), "outside of source"),
        (small(dimensions=(0, 8)), "2\\^32"),
        (small(offset=4), "multiple of 16"),
        (small(swizzle=48), "swizzle"),
    ],
)
def test_maps_that_the_driver_refuses(record: TensorMapRecord, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        run_small(record)


def test_a_misaligned_base_address_is_refused() -> None:
    with pytest.raises(SimulationError, match="base address"):
        run_small(small(), base=1)


@pytest.mark.parametrize("column", [-2, 1, 6])
def test_a_box_that_starts_inside_a_16_byte_unit_is_refused(column: int) -> None:
    tensors = {name: torch.zeros(8 * 64) for name in ("source", "target")}
    tensors["dump"] = torch.zeros(8 * 128, dtype=torch.uint8)
    sim.run(copy_program(small(), (512,), [-4, 0], [8, 0]), tensors, {})
    for coordinates in ([column, 0], [0, 0]), ([0, 0], [column, 0]):
        with pytest.raises(SimulationError, match="inside a 16-byte unit(.|\n)*multiple of 4"):
            sim.run(copy_program(small(), (512,), *coordinates), tensors, {})


def test_a_store_may_not_start_before_the_tensor() -> None:
    """An H200 stops with an illegal instruction; a load from there gives zeros."""
    tensors = {"source": torch.zeros(512), "target": torch.zeros(512)}
    tensors["dump"] = torch.zeros(prod(small().box) * 4, dtype=torch.uint8)
    sim.run(copy_program(small(), (512,), [-4, -1], [0, 0]), tensors, {})
    for before in ([-4, 0], [0, -1]):
        with pytest.raises(SimulationError, match="before the tensor"):
            sim.run(copy_program(small(), (512,), [0, 0], before), tensors, {})


def test_wrong_number_of_coordinates() -> None:
    with pytest.raises(SimulationError, match="coordinates"):
        run_small(small(), coordinates=3)


@pytest.mark.parametrize(
    ("offset", "swizzle", "legal"),
    [(128, 0, True), (64, 0, False), (512, 128, False), (512, 64, True), (256, 64, False)],
)
def test_shared_address_alignment(offset: int, swizzle: int, legal: bool) -> None:
    record = TensorMapRecord("in_map", "source", "float32", (64, 8), (256,), ((swizzle or 64) // 4, 8), swizzle)
    tile = on_chip("tile", Scope.SHARED, uint8, 2048, 1024)
    full, zero = barriers("full", 1, 0), number(0)
    body = If(
        THREAD.eq(0),
        seq(MbarrierInit(full, zero, 1), TmaLoad("in_map", (zero, zero), tile, number(offset), full, zero)),
    )
    built = program(body, [tensor("source", (8, 64))], shared_bytes=4096, tensor_maps=(record,))
    if legal:
        sim.run(built, {"source": torch.zeros(8, 64)}, {})
    else:
        with pytest.raises(SimulationError, match="misaligned"):
            sim.run(built, {"source": torch.zeros(8, 64)}, {})


def test_box_outside_of_the_shared_buffer() -> None:
    record = TensorMapRecord("in_map", "source", "float32", (64, 8), (256,), (16, 8), 0)
    tile = on_chip("tile", Scope.SHARED, uint8, 512, 1024)
    full, zero = barriers("full", 1, 0), number(0)
    body = If(
        THREAD.eq(0), seq(MbarrierInit(full, zero, 1), TmaLoad("in_map", (zero, zero), tile, number(128), full, zero))
    )
    with pytest.raises(SimulationError, match="outside tile"):
        sim.run(
            program(body, [tensor("source", (8, 64))], shared_bytes=4096, tensor_maps=(record,)),
            {"source": torch.zeros(8, 64)},
            {},
        )


def test_each_cta_loads_its_own_box_from_different_threads() -> None:
    """Two threads of each of six CTAs load a box each; coordinates differ by CTA and thread."""
    source, target = tensor("source", (12, 32)), tensor("target", (12, 32))
    record = TensorMapRecord("in_map", "source", "float32", (32, 12), (128,), (32, 1), 0)
    tile = on_chip("tile", Scope.SHARED, BY_NAME["float32"], 64, 1024)
    full, zero, row = barriers("full", 2, 0), number(0), Var("row", int32)
    body = seq(
        If(THREAD.lt(2), MbarrierInit(full, THREAD, 1)),
        BarSync(0, 32),
        If(
            THREAD.lt(2),
            seq(
                MbarrierArriveExpectTx(full, THREAD, 128),
                TmaLoad("in_map", (zero, BLOCK_X * 2 + THREAD), tile, THREAD * 32, full, THREAD),
            ),
        ),
        MbarrierWait(full, zero, zero),
        MbarrierWait(full, number(1), zero),
        loop(
            row,
            2,
            put(target, (BLOCK_X * 2 + row) * 32 + THREAD, get(tile, row * 32 + THREAD)),
            LoopKind.UNROLLED,
        ),
    )
    built = program(body, [source, target], grid=(6, 1, 1), shared_bytes=2048, tensor_maps=(record,))
    tensors = {"source": torch.randn(12, 32), "target": torch.zeros(12, 32)}
    sim.run(built, tensors, {})
    assert torch.equal(tensors["source"], tensors["target"])

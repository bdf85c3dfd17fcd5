"""How warps share a gemm's tile, and where the manual puts accumulators and operands."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.expressions import constant
from ptxtile.ir.tile_ops import Gemm, GemmPath, Region
from ptxtile.ir.types import DType, bfloat16, float32, parse_dtype
from ptxtile.lower.gemm_geometry import (
    Grid,
    accumulator_fragment,
    grid_of,
    operand_b_fragment,
    operand_fragment,
)
from ptxtile.lower.gemm_sizes import sizes_that_fit


def gemm_of(
    m: int, n: int, k: int, dtype: DType = bfloat16, accumulator: DType = float32, policy: str = "square"
) -> Gemm:
    def region(name: str, scope: Scope, dtype: DType, *shape: int) -> Region:
        return Region(allocate(name, scope, dtype, shape), (constant(0),) * 2, shape)

    a, b = region("a", Scope.SHARED, dtype, m, k), region("b", Scope.SHARED, dtype, k, n)
    return Gemm(a, b, region("c", Scope.FRAGMENT, accumulator, m, n), m, n, k, policy=policy)


@pytest.mark.parametrize(
    ("m", "n", "threads", "grid"),
    [
        (128, 256, 256, Grid(2, 1)), (256, 128, 256, Grid(2, 1)), (128, 128, 256, Grid(2, 1)),
        (64, 256, 256, Grid(1, 2)), (192, 128, 384, Grid(3, 1)), (64, 512, 128, Grid(1, 1)),
        (256, 256, 512, Grid(4, 1)), (64, 136, 256, None),
    ],
)  # fmt: skip
def test_warpgroups_read_as_few_operand_rows_as_they_can(m, n, threads, grid):
    """A 128×256 tile as 2×1 reads 64 + 256 rows in each warpgroup, as 1×2 it would read 2·(64 + 128)."""
    assert grid_of(gemm_of(m, n, 64), threads, GemmPath.WGMMA) == grid


def test_warps_of_mma_take_square_parts():
    assert grid_of(gemm_of(128, 128, 64), 128, GemmPath.MMA) == Grid(2, 2)
    assert grid_of(gemm_of(256, 64, 64), 128, GemmPath.MMA) == Grid(4, 1)
    assert grid_of(gemm_of(64, 256, 64), 128, GemmPath.MMA) == Grid(1, 4)


@pytest.mark.parametrize("path", [GemmPath.WGMMA, GemmPath.MMA])
def test_the_users_policy_counts(path):
    groups = 2 if path is GemmPath.WGMMA else 8
    assert grid_of(gemm_of(128, 256, 64, policy="full_row"), 256, path) == Grid(groups, 1)
    assert grid_of(gemm_of(128, 256, 64, policy="full_col"), 256, path) == Grid(1, groups)


# -- what the manual says ----------------------------------------
def manual_accumulator(lane: int, i: int) -> tuple[int, int]:
    """PTX ISA 9.0, «Matrix Fragments for mma.m16n8k16», C: row = groupID for c0, c1, groupID + 8 for c2, c3; column =
    threadID_in_group·2 + (i & 1). «Register Fragments for wgmma.mma_async.m64n*», D: the same for each 8 columns."""
    group, thread = lane >> 2, lane % 4
    return (group if i % 4 < 2 else group + 8), 8 * (i // 4) + thread * 2 + (i & 1)


def manual_operand_a(bits: int, lane: int, i: int) -> tuple[int, int]:
    """A of m16n8k16 with 16 bits, m16n8k8 with 32 (tf32) and m16n8k32 with 8: the manual's case distinctions. wgmma's A
    is the same for each 16 rows of a warp."""
    group, thread = lane >> 2, lane % 4
    if bits == 16:
        row = group if 0 <= i < 2 or 4 <= i < 6 else group + 8
        return row, (thread * 2 + (i & 1) if i < 4 else thread * 2 + (i & 1) + 8)
    if bits == 32:
        return (group if i in (0, 2) else group + 8), (thread if i in (0, 1) else thread + 4)
    row = group if 0 <= i < 4 or 8 <= i < 12 else group + 8
    return row, (thread * 4 + (i & 3) if i < 8 else thread * 4 + (i & 3) + 16)


def manual_operand_b(bits: int, lane: int, i: int) -> tuple[int, int]:
    """B of the same shapes: k and n."""
    group, thread = lane >> 2, lane % 4
    if bits == 16:
        return (thread * 2 + (i & 1) if i < 2 else thread * 2 + (i & 1) + 8), group
    if bits == 32:
        return (thread if i == 0 else thread + 4), group
    return (thread * 4 + (i & 3) if i < 4 else thread * 4 + (i & 3) + 16), group


DEPTHS = {8: 32, 16: 16, 32: 8}
"""Of the instruction that the formulas above are about, by bits of an element."""
DTYPES = {"bfloat16": "float32", "float16": "float16", "float32": "float32", "float8_e4m3fn": "float32",
          "float8_e5m2": "float32", "int8": "int32", "uint8": "int32"}  # fmt: skip


@st.composite
def gemms(draw: st.DrawFn):
    """A gemm with its threads, on a path that takes it."""
    path = draw(st.sampled_from([GemmPath.WGMMA, GemmPath.MMA]))
    group, unit = (128, 64) if path is GemmPath.WGMMA else (32, 16)
    dtype = draw(st.sampled_from(list(DTYPES)))
    rows, columns = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2), (3, 1), (4, 1)]))
    m = unit * rows * draw(st.integers(1, 3))
    n = 8 * columns * draw(st.integers(1, 32))
    k = DEPTHS[parse_dtype(dtype).bits] * draw(st.integers(1, 4))
    policy = draw(st.sampled_from(["square", "full_row", "full_col"]))
    gemm = gemm_of(m, n, k, parse_dtype(dtype), parse_dtype(DTYPES[dtype]), policy)
    threads = group * rows * columns
    assume(grid_of(gemm, threads, path) is not None)
    return gemm, threads, path


@given(gemms())
def test_accumulators_lie_where_the_manual_says(drawn):
    gemm, threads, path = drawn
    grid, fragment = grid_of(gemm, threads, path), accumulator_fragment(gemm, threads, path)
    fragment.check()
    assert fragment.is_exclusive
    group, unit = (128, 64) if path is GemmPath.WGMMA else (32, 16)
    columns = gemm.n // grid.columns
    values = columns // 2  # of one row tile: 64·n/128, and 16·n/32
    table = fragment.table()
    for thread in sampled(threads):
        number, warp, lane = thread // group, thread % group // 32, thread % 32
        for value in sampled(fragment.values):
            tile, i = divmod(value, values)
            row, column = manual_accumulator(lane, i)
            row += unit * (tile * grid.rows + number // grid.columns) + 16 * warp
            assert table[thread, value] == row * gemm.n + column + number % grid.columns * columns


@given(gemms(), st.booleans())
def test_operands_lie_where_the_manual_says(drawn, transposed):
    gemm, threads, path = drawn
    gemm = replace(gemm, transpose_a=transposed)
    grid, fragment = grid_of(gemm, threads, path), operand_fragment(gemm, threads, path)
    fragment.check()
    assert fragment.is_exclusive == (grid.columns == 1)
    group, unit = (128, 64) if path is GemmPath.WGMMA else (32, 16)
    bits = gemm.a.buffer.dtype.bits
    depth = DEPTHS[bits]
    each = unit * depth // group
    table = fragment.table()
    for thread in sampled(threads):
        number, warp, lane = thread // group, thread % group // 32, thread % 32
        for value in sampled(fragment.values):
            tile, rest = divmod(value, each * (gemm.k // depth))
            step, i = divmod(rest, each)
            row, column = manual_operand_a(bits, lane, i)
            row += unit * (tile * grid.rows + number // grid.columns) + 16 * warp
            column += step * depth
            wanted = column * gemm.m + row if transposed else row * gemm.k + column
            assert table[thread, value] == wanted


@given(gemms(), st.booleans())
def test_b_operands_lie_where_the_manual_says(drawn, transposed):
    gemm, threads, _ = drawn
    gemm = replace(gemm, transpose_b=transposed)
    grid = grid_of(gemm, threads, GemmPath.MMA)
    assume(grid is not None)
    fragment = operand_b_fragment(gemm, threads)
    fragment.check()
    assert fragment.is_exclusive == (grid.rows == 1)
    bits = gemm.b.buffer.dtype.bits
    depth = DEPTHS[bits]
    each = 8 * depth // 32
    table = fragment.table()
    for thread in sampled(threads):
        warp, lane = thread // 32, thread % 32
        for value in sampled(fragment.values):
            tile, rest = divmod(value, each * (gemm.k // depth))
            step, i = divmod(rest, each)
            row, column = manual_operand_b(bits, lane, i)
            row += step * depth
            column += 8 * tile + warp % grid.columns * (gemm.n // grid.columns)
            assert table[thread, value] == (column * gemm.k + row if transposed else row * gemm.n + column)


def sampled(count: int) -> list[int]:
    """Some numbers below ``count``, all kinds of them: few enough to look at in Python."""
    return sorted({*range(min(count, 24)), *range(0, count, count // 12 | 1), count - 1})


@pytest.mark.parametrize("path", [GemmPath.WGMMA, GemmPath.MMA])
@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_width_covers_its_tile_exactly_once(path, n):
    accumulator = accumulator_fragment(gemm_of(64, n, 64), 128, path)
    accumulator.check()
    assert accumulator.is_exclusive and accumulator.values * 128 == 64 * n


def test_an_accumulator_of_pairs_is_the_operand_of_16_bits():
    """What lets a product go on in registers: the same ownership of the same tile."""
    for path, threads in ((GemmPath.WGMMA, 128), (GemmPath.WGMMA, 256), (GemmPath.MMA, 128)):
        first = gemm_of(128, 64, 32, policy="full_row")
        second = gemm_of(128, 80, 64, policy="full_row")
        assert accumulator_fragment(first, threads, path) == operand_fragment(second, threads, path)
        bytes_ = gemm_of(128, 80, 64, parse_dtype("float8_e4m3fn"), policy="full_row")
        assert accumulator_fragment(first, threads, path) != operand_fragment(bytes_, threads, path)


# -- sizes that would do ----------------------------------------
@given(st.integers(1, 80), st.integers(1, 80), st.integers(1, 80), st.sampled_from([32, 64, 96, 128, 256, 384]))
def test_the_sizes_that_users_are_told_are_taken(m, n, k, threads):
    gemm = gemm_of(m, n, k)
    told = sizes_that_fit(gemm, threads)
    sizes = {"M": m, "N": n, "K": k} | {name: int(size) for name, size in re.findall(r"([MNK]) = (\d+)", told)}
    counts = [int(count) for count in re.findall(r"(\d+)(?= or \d+ threads| threads)", told)] or [threads]
    assert sizes["K"] % 8 == 0
    for count in counts:
        assert grid_of(gemm_of(*sizes.values()), count, GemmPath.MMA) is not None
    if not told:
        assert m % 16 == 0 and n % 8 == 0 and k % 8 == 0

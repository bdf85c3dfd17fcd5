"""Shapes, tiles, threads, dtypes, targets and options that Hypothesis draws: the add and copy kernels against torch."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ptxtile
from ptxtile import target as targets
from tests.kernels import inputs
from tests.kernels.case import Call, run
from tests.kernels.elementwise import TARGETS, add, add_factory, total
from tests.kernels.tensors import copy_into, copy_of_rank

SIZES = st.integers(0, 140)
TILES = st.sampled_from([1, 2, 3, 8, 16, 24, 32, 33, 48, 64, 80, 96])
THREADS = st.one_of(st.sampled_from([32, 64, 96, 128, 256, 384, 1024]), st.integers(1, 300))
DTYPES = st.sampled_from(inputs.ARITHMETIC)
SEEDS = st.integers(0, 2**32 - 1)


def wide_enough(tile: int, size: int, blocks: int = 6) -> int:
    """A tile of which no more than ``blocks`` are needed: the simulator takes its time over each block."""
    return max(tile, -(-size // blocks))


@settings(max_examples=40)
@given(SIZES, SIZES, TILES, TILES, THREADS, DTYPES, st.booleans(), st.sampled_from(TARGETS),
       st.sampled_from(["auto", True, False]), st.booleans(), SEEDS)  # fmt: skip
def test_add(M, N, block_M, block_N, threads, dtype, shared_out, target, specialize_warps, disable_tma, seed):
    generator = np.random.default_rng(seed)
    a, b = (inputs.moderate(generator, (M, N), dtype) for _ in range(2))
    options = {"target": target, "specialize_warps": specialize_warps, "disable_tma": disable_tma}
    tile = (wide_enough(block_M, M), wide_enough(block_N, N), threads, inputs.name(dtype))
    assume(3 * tile[0] * tile[1] * dtype.itemsize + 1024 <= targets.get(target).max_shared_bytes)
    if shared_out:
        run(Call(ptxtile.jit(out_idx=-1, **options)(add_factory)(M, N, *tile), (a, b), total(a, b)))
    else:
        eager = ptxtile.jit(add.function.function, **options)
        run(Call(lambda *arguments: eager(*arguments, *tile), (a, b), total(a, b)))


@st.composite
def views(draw, rows, columns, dtype):
    """A view of ``rows`` × ``columns`` elements that starts anywhere and has any strides, transposed ones too."""
    generator = np.random.default_rng(draw(SEEDS))
    step_y, step_x = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 1, 2]))
    gap, first = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    width = columns * step_x + gap
    flat = inputs.random_bits(generator, (first + (rows * step_y + 1) * (width + 1),), dtype)
    strides = (width * step_y, step_x)
    if draw(st.booleans()):
        height = rows * step_x + gap
        flat = inputs.random_bits(generator, (first + (columns * step_y + 1) * (height + 1),), dtype)
        strides = (step_x, height * step_y)
    return flat.as_strided((rows, columns), strides, first)


@settings(max_examples=40)
@given(st.data(), st.integers(0, 90), st.integers(0, 90), TILES, TILES, THREADS, st.sampled_from(inputs.ALL))
def test_copy_between_views(data, rows, columns, block_M, block_N, threads, dtype):
    a, b = data.draw(views(rows, columns, dtype)), data.draw(views(rows, columns, dtype))
    tile = {"block_M": wide_enough(block_M, rows), "block_N": wide_enough(block_N, columns)}
    arguments = {**tile, "threads": threads, "dtype": inputs.name(dtype)}
    run(Call(lambda a, b: copy_into(a, b, **arguments), (a, b), changes={1: a.clone()}))


@settings(max_examples=20)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=5),
    THREADS,
    DTYPES,
    SEEDS,
)
def test_ranks(sizes_and_tiles, threads, dtype, seed):
    shape = tuple(size for size, _ in sizes_and_tiles)
    tile = tuple(wide_enough(part, size, 2) for size, part in sizes_and_tiles)
    assume(math.prod(tile) <= 4096)
    a = inputs.moderate(np.random.default_rng(seed), shape, dtype)
    kernel = ptxtile.compile(copy_of_rank(shape, tile, inputs.name(dtype), threads=threads), out_idx=-1)
    run(Call(kernel, (a,), total(a, torch.ones((), dtype=dtype))))

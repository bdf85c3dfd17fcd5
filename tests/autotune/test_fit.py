"""What is left out before compiling would not have compiled, or only with accumulators in local memory."""

from __future__ import annotations

import itertools

import pytest

import ptxtile
from ptxtile.compiler import lower
from ptxtile.errors import ResourceError
from ptxtile.target import get
from ptxtile.tune.fit import ring_bytes, why_not
from tests.autotune import kernels

FACTORY = ptxtile.jit(out_idx=[-1])(kernels.product_factory)
TILES = [
    dict(block_M=m, block_N=n, block_K=k, num_stages=stages, threads=threads)
    for (m, n), k, stages, threads in itertools.product(
        [(64, 64), (128, 256)], [64, 256], [1, 4], [128, 256]
    )
]  # fmt: skip


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
def test_refusals_are_right_and_most_are_seen_early(target: str) -> None:
    seen = missed = 0
    for tile in TILES:
        made = FACTORY(1024, 1024, 4096, **tile)
        program = made.variant.tile_program
        said = why_not(program, get(target))
        if said is not None and "shared memory" not in said:
            assert "registers" in said and tile["threads"] == 128 and tile["block_N"] == 256
            continue
        try:
            lower(program, get(target))
        except ResourceError:
            seen += said is not None
            missed += said is None
        else:
            assert said is None, f"{tile}: {said}"
    assert seen > 0 and missed <= seen


def test_a_short_loop_needs_no_more_stages_than_turns() -> None:
    (kernel,) = FACTORY(64, 64, 128, block_M=64, block_N=64, block_K=64, num_stages=4).variant.tile_program.kernels
    assert ring_bytes(kernel) == 2 * (64 * 64 + 64 * 64) * 2
    (kernel,) = FACTORY(64, 64, 4096, block_M=64, block_N=64, block_K=64, num_stages=4).variant.tile_program.kernels
    assert ring_bytes(kernel) == 4 * (64 * 64 + 64 * 64) * 2

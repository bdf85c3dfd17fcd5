"""T.gemm on a card: wgmma, and mma.sync through the PTX of older targets, against float64; random gemms too."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.gemm import kernels, problem
from tests.gemm.check_problem import check_on_card

BOUND = 1e-5
TFLOAT32 = 1.5e-3
"""Operands lose their lowest 13 bits."""
FLOAT8 = 3e-3
"""The tensor cores keep 14 bits of sums of 8-bit floats."""


@pytest.fixture(autouse=True)
def fresh_kernels(card):
    kernels.gemm._kernels.clear()


@pytest.fixture(params=["sm_80", "sm_90", None])
def target(request, monkeypatch):
    """PTX of an older target runs on a newer card; None: the card's own."""
    settings = kernels.gemm.settings
    monkeypatch.setattr(kernels.gemm, "settings", type(settings)(settings.options, request.param, settings.verbose))
    return request.param


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_transposes(transpose_a, transpose_b):
    assert kernels.run(256, 128, 192, "cuda", transpose_A=transpose_a, transpose_B=transpose_b) < BOUND


@pytest.mark.parametrize("tile", [(64, 64), (128, 128), (128, 256), (64, 96), (192, 64), (128, 80)])
@pytest.mark.parametrize("stages", [1, 3, 4])
def test_tiles_and_stages(target, tile, stages):
    threads = 128 if tile[0] < 128 else 256
    if target == "sm_80" and tile == (128, 256):
        stages = min(stages, 3)  # four take 192 KiB, and sm_80 has 163
    error = kernels.run(
        300, 264, 520, "cuda", block_M=tile[0], block_N=tile[1], num_stages=stages, threads=threads, transpose_B=True
    )
    assert error < BOUND


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize(
    ("dtype", "accum", "bound"),
    [
        ("float16", "float32", BOUND), ("float16", "float16", 5e-3), ("float32", "float32", TFLOAT32),
        ("float64", "float64", 1e-14), ("int8", "int32", 0), ("uint8", "int32", 0),
        ("float8_e4m3fn", "float32", FLOAT8), ("float8_e5m2", "float32", FLOAT8),
    ],
)  # fmt: skip
def test_dtypes(target, dtype, accum, bound):
    if bound == FLOAT8 and target == "sm_80":
        pytest.skip("sm_80 has no instruction for 8-bit floats")
    options = dict(dtype=dtype, accum=accum, out=accum, block_K=32, transpose_B=True, num_stages=2)
    assert kernels.run(128, 64, 160, "cuda", **options) <= bound


@pytest.mark.usefixtures("card")
@pytest.mark.parametrize("target", [None, "sm_80", "sm_90"])
@pytest.mark.parametrize("sample", range(5))
def test_random_gemms(target, sample, random_generator: np.random.Generator):
    """Five times five problems of those that tests/gemm runs in the simulator, for each target. A failure names its
    problem: ``python -m tests.gemm.random_gemms --card --one "Problem(...)"`` runs it alone."""
    rng = random.Random(int(random_generator.integers(2**31)))
    for _ in range(5):
        p = problem.draw(rng.choice, (target or "sm_90a",))
        try:
            check_on_card(p, target)
        except Exception as error:
            pytest.fail(f"{type(error).__name__} on the card: {p}\n{error}")

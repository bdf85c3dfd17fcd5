"""T.gemm against float64 in the simulator, on every path, over tiles, transposes, stages, threads, tails and dtypes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import ptxtile.language as T
from ptxtile.errors import TypeMismatchError
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Specialized
from ptxtile.ir.tensor_core_ops import MmaSync, Wgmma
from tests.gemm import kernels

ARCHITECTURES = ("sm_80", "sm_90", "sm_90a", "sm_120a")
BOUND = 1e-5
"""Products of 16-bit values are exact in float32; what is left is the rounding of sums of some hundred terms."""

TF32_BOUND = 2e-3
"""Both operands of float32 lose up to 2⁻¹⁰ of their value on tensor cores, and always towards zero."""

TILES = ((64, 64), (128, 64), (64, 96), (128, 80), (192, 64), (64, 192), (128, 256), (256, 64), (16, 8), (96, 40))


@pytest.fixture(autouse=True)
def fresh_kernels():
    kernels.gemm._kernels.clear()
    kernels.gemm_bias_relu._kernels.clear()


def nodes(program, kind: type) -> list:
    return [node for node in walk(program.kernels[0].body) if isinstance(node, kind)]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_transposes(architecture, transpose_a, transpose_b, monkeypatch):
    monkeypatch.setenv("PTXTILE_TARGET", architecture)
    assert kernels.run(64, 128, 128, transpose_A=transpose_a, transpose_B=transpose_b) < BOUND
    program = next(iter(kernels.gemm._kernels.values())).program
    assert nodes(program, Wgmma if architecture == "sm_90a" else MmaSync)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("k", [16, 64, 65, 128, 192, 256, 448])
def test_stages_and_trip_counts(stages, k, monkeypatch):
    """Trip counts 1, fewer than stages, as many, more; K tails."""
    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")
    assert kernels.run(64, 64, k, num_stages=stages, transpose_B=True) < BOUND
    if stages > 1 and k % 8 == 0 and k > 64:  # a loop of one iteration is no loop
        assert nodes(next(iter(kernels.gemm._kernels.values())).program, Specialized)


@settings(max_examples=25)
@given(
    st.sampled_from(ARCHITECTURES), st.integers(1, 200), st.integers(1, 200), st.integers(1, 150),
    st.sampled_from(TILES),
    st.sampled_from([16, 32, 64, 128]), st.sampled_from([32, 64, 128, 256, 384, 512]), st.integers(1, 4), st.booleans(),
    st.booleans(), st.sampled_from(list(kernels.T.GemmWarpPolicy)),
)  # fmt: skip
def test_any_tile(architecture, m, n, k, tile, block_k, threads, stages, transpose_a, transpose_b, policy):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTXTILE_TARGET", architecture)
        kernels.gemm._kernels.clear()
        error = kernels.run(
            m, n, k, block_M=tile[0], block_N=tile[1], block_K=block_k, threads=threads, num_stages=stages,
            transpose_A=transpose_a, transpose_B=transpose_b, policy=policy,
        )  # fmt: skip
        assert error < BOUND


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    ("dtype", "accum", "bound"),
    [
        ("float16", "float32", BOUND), ("float16", "float16", 5e-3), ("bfloat16", "float32", BOUND),
        ("float32", "float32", TF32_BOUND), ("float64", "float64", 1e-14), ("int8", "int32", 0), ("uint8", "int32", 0),
    ],
)  # fmt: skip
def test_dtypes(architecture, dtype, accum, bound, monkeypatch):
    monkeypatch.setenv("PTXTILE_TARGET", architecture)
    error = kernels.run(64, 64, 96, dtype=dtype, accum=accum, out=accum, block_K=32, transpose_B=True, num_stages=2)
    assert error <= bound


def test_epilogue_on_the_accumulator(monkeypatch):
    for architecture in ("sm_80", "sm_90a"):
        monkeypatch.setenv("PTXTILE_TARGET", architecture)
        kernels.gemm_bias_relu._kernels.clear()
        a, b = kernels.operands(100, 72, 80, torch.bfloat16, "cpu", 1)
        bias = torch.randn(72)
        found = kernels.gemm_bias_relu(a, b.T.contiguous(), bias)
        wanted = torch.relu(a.float() @ b.float() + bias)
        torch.testing.assert_close(found.float(), wanted, rtol=8e-3, atol=2e-2)


def test_operands_that_do_not_fit_are_refused_at_the_users_line():
    with pytest.raises(TypeMismatchError, match="do not fit together") as raised:
        wrong_gemm.compile(N=64)
    assert "T.gemm(A_shared, A_shared, C_local)" in str(raised.value)


@kernels.ptxtile.jit
def wrong_gemm(A):
    N = kernels.T.const("N")
    A: kernels.T.Tensor((N, N), "float16")
    with kernels.T.Kernel(1, threads=128):
        A_shared = kernels.T.alloc_shared((64, 32), "float16")
        C_local = kernels.T.alloc_fragment((64, 64), "float32")
        T.gemm(A_shared, A_shared, C_local)

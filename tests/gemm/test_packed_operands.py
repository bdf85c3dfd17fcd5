"""Weights of 4 bits, two in a byte, unpacked in registers on their way to a gemm: right, and with no detour."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from tests import ptxas

BLOCK_K = 64


@ptxtile.jit
def unpacked_gemm(W, B, form="halves", through_shared=True, block_M=128, block_N=64, threads=128):
    """W: [M, K/2] uint8 (even columns in the low halves), B: [N, K] → unpacked W · Bᵀ."""
    M, N, K = T.const("M, N, K")
    W: T.Tensor((M, K // 2), "uint8")
    B: T.Tensor((N, K), "bfloat16")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        packed_shared = T.alloc_shared((block_M, BLOCK_K // 2), "uint8")
        packed = T.alloc_fragment((block_M, BLOCK_K // 2), "uint8")
        weights = T.alloc_fragment((block_M, BLOCK_K), "bfloat16")
        W_shared = T.alloc_shared((block_M, BLOCK_K), "bfloat16")
        B_shared = T.alloc_shared((block_N, BLOCK_K), "bfloat16")
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(C_local)
        for k in T.Pipelined(K // BLOCK_K, num_stages=2):
            T.copy(W[by * block_M, k * BLOCK_K // 2], packed_shared)
            T.copy(B[bx * block_N, k * BLOCK_K], B_shared)
            T.copy(packed_shared, packed)
            if form == "halves":
                for i, j in T.Parallel(block_M, BLOCK_K):
                    weights[i, j] = T.cast((packed[i, j // 2] >> T.cast((j % 2) * 4, "uint8")) & 15, "bfloat16")
            else:
                for i, j in T.Parallel(block_M, BLOCK_K // 2):
                    weights[i, 2 * j] = T.cast(packed[i, j] & 15, "bfloat16")
                    weights[i, 2 * j + 1] = T.cast(packed[i, j] >> 4, "bfloat16")
            if through_shared:
                T.copy(weights, W_shared)
                T.gemm(W_shared, B_shared, C_local, transpose_B=True)
            else:
                T.gemm(weights, B_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("through_shared", [True, False])
@pytest.mark.parametrize("form", ["halves", "bytes"])
def test_unpacking_stays_in_registers(form: str, through_shared: bool, target: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PTXTILE_TARGET", target)
    m, n, k = 128, 64, 192
    w, b = torch.randint(0, 256, (m, k // 2), dtype=torch.uint8), torch.randn(n, k).bfloat16()
    unpacked_gemm._kernels.clear()
    found = unpacked_gemm(w, b, form=form, through_shared=through_shared)
    wanted = torch.stack((w & 15, w >> 4), dim=2).reshape(m, k).double() @ b.double().T
    assert float((found.double() - wanted).norm() / wanted.norm()) < 1e-5
    (kernel,) = unpacked_gemm._kernels.values()
    detours = [str(why) for why in kernel.variant.lowered().program.why if "goes through shared memory" in why.decision]
    assert not detours, detours
    assert "0 bytes spill stores" in ptxas.assemble(kernel.ptx, target)

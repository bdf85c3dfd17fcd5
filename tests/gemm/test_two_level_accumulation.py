"""8-bit products of each k block in one accumulator, scaled and added up in another: right, and with no detour."""

from __future__ import annotations

import re

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Allocate
from ptxtile.ir.tensor_core_ops import Wgmma, WgmmaWaitGroup
from tests import ptxas
from tests.nvvm.test_tensor_cores import SERIALIZED

BLOCK = 128


@ptxtile.jit
def scaled_gemm(
    A, B, scale_A, scale_B, scales="fragment", block_M=128, block_N=128, num_stages=3, threads=256, accum="float32"
):
    """C = Σ over k blocks of scale_A[:, k] · scale_B[k] · (A block · B blockᵀ)."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float8_e4m3fn")
    B: T.Tensor((N, K), "float8_e4m3fn")
    scale_A: T.Tensor((K // BLOCK, M), "float32")
    scale_B: T.Tensor((K // BLOCK,), "float32")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, BLOCK), "float8_e4m3fn")
        B_shared = T.alloc_shared((block_N, BLOCK), "float8_e4m3fn")
        rows_shared = T.alloc_shared((block_M,), "float32")
        rows = T.alloc_fragment((block_M,), "float32")
        partial = T.alloc_fragment((block_M, block_N), accum)
        total = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(total)
        for k in T.Pipelined(K // BLOCK, num_stages=num_stages):
            T.copy(A[by * block_M, k * BLOCK], A_shared)
            T.copy(B[bx * block_N, k * BLOCK], B_shared)
            if scales == "fragment":
                for i in T.Parallel(block_M):
                    rows[i] = scale_A[k, by * block_M + i] * scale_B[k]
            elif scales == "shared":
                T.copy(scale_A[k, by * block_M], rows_shared)
            T.gemm(A_shared, B_shared, partial, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(block_M, block_N):
                if scales == "fragment":
                    total[i, j] += partial[i, j] * rows[i]
                elif scales == "shared":
                    total[i, j] += partial[i, j] * (rows_shared[i] * scale_B[k])
                else:
                    total[i, j] += partial[i, j] * (scale_A[k, by * block_M + i] * scale_B[k])
        T.copy(total, C[by * block_M, bx * block_N])
    return C


def compiled(m=256, n=128, k=384, **options):
    generator = torch.Generator().manual_seed(8)
    a, b = (torch.randn(rows, k, generator=generator).to(torch.float8_e4m3fn) for rows in (m, n))
    scale_a, scale_b = (torch.rand(shape, generator=generator) + 0.5 for shape in ((k // BLOCK, m), (k // BLOCK,)))
    scaled_gemm._kernels.clear()
    found = scaled_gemm(a, b, scale_a, scale_b, **options)
    blocks = [slice(start, start + BLOCK) for start in range(0, k, BLOCK)]
    parts = (
        (a[:, s].double() @ b[:, s].double().T) * scale_a[number][:, None].double() * scale_b[number].double()
        for number, s in enumerate(blocks)
    )
    wanted = sum(parts)
    error = float((found.double() - wanted).norm() / wanted.norm())
    return error, next(iter(scaled_gemm._kernels.values()))


@pytest.mark.parametrize("scales", ["fragment", "shared", "global"])
def test_promotion_stays_in_registers(scales, monkeypatch):
    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")
    error, kernel = compiled(scales=scales)
    assert error < 1e-5
    body = list(walk(kernel.program.kernels[0].body))
    tiles = {node.buffer.name for node in body if isinstance(node, Allocate) and node.buffer.scope.value == "shared"}
    assert not any("exchange" in name for name in tiles), tiles
    assert [node.a for node in body if isinstance(node, Wgmma)] == [None] * 4
    waits = [node for node in body if isinstance(node, WgmmaWaitGroup)]
    assert len(waits) == 1 and waits[0].pending == 0
    log = ptxas.assemble(kernel.ptx, "sm_90a")
    assert not any(word in log for word in SERIALIZED) and "0 bytes spill stores" in log, log
    # of a row a thread needs one scale, for each of its two rows, and one of the block
    loads = re.findall(r"\bld(?:\.\w+)*\.(?:global|shared)\S*", kernel.ptx)
    assert 2 <= len(loads) <= 4, loads


def test_a_float16_partial_sum(monkeypatch):
    """Tensor cores add 8-bit products up in float16 too; the promotion is in float32."""
    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")
    error, kernel = compiled(accum="float16")
    assert error < 1e-2
    assert "m64n128k32.f16.e4m3.e4m3" in kernel.ptx
    log = ptxas.assemble(kernel.ptx, "sm_90a")
    assert not any(word in log for word in SERIALIZED) and "0 bytes spill stores" in log, log

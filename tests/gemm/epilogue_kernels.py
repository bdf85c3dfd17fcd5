"""Gemms that end in different ways: straight from the accumulator, through a tile of the user's, with more outputs."""

from __future__ import annotations

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def plain(
    A, B, block_M=128, block_N=128, block_K=64, stages=2, threads=128, dtype="bfloat16", accum="float32",
    out="bfloat16",
):  # fmt: skip
    """C = A · Bᵀ, one tile a CTA."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), dtype)
    B: T.Tensor((N, K), dtype)
    C = T.empty((M, N), out)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_N, block_K), dtype)
        C_local = T.alloc_fragment((block_M, block_N), accum)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[bx * block_N, k * block_K], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit
def persistent(
    A, B, block_M=128, block_N=256, block_K=64, stages=4, threads=256, blocks=2, dtype="bfloat16", out="bfloat16"
):  # fmt: skip
    """C = A · Bᵀ, a few CTAs that take one tile after the other."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), dtype)
    B: T.Tensor((N, K), dtype)
    C = T.empty((M, N), out)
    with T.Kernel(blocks, threads=threads) as block:
        A_shared = T.alloc_shared((block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_N, block_K), dtype)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        for by, bx in T.Persistent([T.ceildiv(M, block_M), T.ceildiv(N, block_N)], blocks, block):
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit
def of_any_height(A, B, waves: T.int32, blocks=2):
    """As many waves of tiles of ``persistent`` as the call says."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(blocks, threads=256) as block:
        A_shared, B_shared = T.alloc_shared((128, 64), T.bfloat16), T.alloc_shared((128, 64), T.bfloat16)
        C_local = T.alloc_fragment((128, 128), T.float32)
        for wave in range(T.min(waves, 512)):
            tile = wave * blocks + block
            by, bx = tile // (N // 128), tile % (N // 128)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=3):
                T.copy(A[by * 128, k * 64], A_shared)
                T.copy(B[bx * 128, k * 64], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C[by * 128, bx * 128])
    return C


@ptxtile.jit
def through_shared(
    A, B, block_M=128, block_N=128, block_K=64, stages=2, threads=256, blocks=2, out="bfloat16", transposed=False
):  # fmt: skip
    """C = A · Bᵀ (or its transpose) by way of the user's own tile in shared memory, a few persistent CTAs."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    C = T.empty((N, M) if transposed else (M, N), out)
    with T.Kernel(blocks, threads=threads) as block:
        A_shared = T.alloc_shared((block_M, block_K), T.bfloat16)
        B_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
        C_shared = T.alloc_shared((block_N, block_M) if transposed else (block_M, block_N), out)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        for by, bx in T.Persistent([T.ceildiv(M, block_M), T.ceildiv(N, block_N)], blocks, block):
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            if transposed:
                for i, j in T.Parallel(block_M, block_N):
                    C_shared[j, i] = C_local[i, j]
                T.copy(C_shared, C[bx * block_N, by * block_M])
            else:
                T.copy(C_local, C_shared)
                T.copy(C_shared, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit
def two_outputs(A, B, bias, block_M=128, block_N=128, block_K=64, stages=2, threads=128):
    """C = A · Bᵀ + bias in float32 and D = relu(C) in bfloat16, through a fragment of its own."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    bias: T.Tensor((N,), T.float32)
    C = T.empty((M, N), T.float32)
    D = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), T.bfloat16)
        B_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
        bias_local = T.alloc_fragment((block_N,), T.float32)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        D_local = T.alloc_fragment((block_M, block_N), T.bfloat16)
        T.copy(bias[bx * block_N], bias_local)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[bx * block_N, k * block_K], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        for i, j in T.Parallel(block_M, block_N):
            C_local[i, j] = C_local[i, j] + bias_local[j]
        for i, j in T.Parallel(block_M, block_N):
            D_local[i, j] = T.max(C_local[i, j], 0.0)
        T.copy(C_local, C[by * block_M, bx * block_N])
        T.copy(D_local, D[by * block_M, bx * block_N])
    return C, D


@ptxtile.jit
def batched(A, B, block_M=64, block_N=64, block_K=64, threads=128):
    """C[b] = A[b] · B[b]ᵀ in float16."""
    Z, M, N, K = T.const("Z, M, N, K")
    A: T.Tensor((Z, M, K), T.float16)
    B: T.Tensor((Z, N, K), T.float16)
    C = T.empty((Z, M, N), T.float16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), Z, threads=threads) as (bx, by, bz):
        A_shared = T.alloc_shared((block_M, block_K), T.float16)
        B_shared = T.alloc_shared((block_N, block_K), T.float16)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
            T.copy(A[bz, by * block_M, k * block_K], A_shared)
            T.copy(B[bz, bx * block_N, k * block_K], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        T.copy(C_local, C[bz, by * block_M, bx * block_N])
    return C

"""Kernels whose consumers use the tiles of a ring in several ways."""

from __future__ import annotations

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def gemm_and_rows(A, B, block_K=64, num_stages=3):
    """A · Bᵀ on tensor cores and the sums of the rows of A, which threads read one by one."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    C = T.empty((M, N), "float32")
    R = T.empty((M,), "float32")
    with T.Kernel(1, threads=128):
        A_shared = T.alloc_shared((M, block_K), "bfloat16")
        B_shared = T.alloc_shared((N, block_K), "bfloat16")
        C_local = T.alloc_fragment((M, N), "float32")
        rows = T.alloc_fragment((M,), "float32")
        T.clear(C_local)
        T.clear(rows)
        for k in T.Pipelined(K // block_K, num_stages=num_stages):
            T.copy(A[0, k * block_K], A_shared)
            T.copy(B[0, k * block_K], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            for i in T.Parallel(M):
                for j in T.serial(block_K):
                    rows[i] += T.cast(A_shared[i, j], "float32")
        T.copy(C_local, C)
        T.copy(rows, R)
    return C, R


@ptxtile.jit
def gated(A, B, G, block_M=64, block_N=64, block_K=64, num_stages=4, between=False, first_alone=False):
    """(A · Bᵀ) ⊙ (A · Gᵀ): two gemms on one tile of A. ``between``: something is done between them; ``first_alone``:
    the first accumulator is read in the loop."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    G: T.Tensor((N, K), "bfloat16")
    C = T.empty((M, N), "float32")
    with T.Kernel(N // block_N, M // block_M, threads=128) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), "bfloat16")
        B_shared = T.alloc_shared((block_N, block_K), "bfloat16")
        G_shared = T.alloc_shared((block_N, block_K), "bfloat16")
        up = T.alloc_fragment((block_M, block_N), "float32")
        gate = T.alloc_fragment((block_M, block_N), "float32")
        rounds = T.alloc_var("int32", 0)
        T.clear(up)
        T.clear(gate)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[bx * block_N, k * block_K], B_shared)
            T.copy(G[bx * block_N, k * block_K], G_shared)
            T.gemm(A_shared, B_shared, up, transpose_B=True)
            if between:
                rounds += 1
            T.gemm(A_shared, G_shared, gate, transpose_B=True)
            if first_alone:
                for i, j in T.Parallel(block_M, block_N):
                    up[i, j] = up[i, j] * 1.0
        for i, j in T.Parallel(block_M, block_N):
            up[i, j] = up[i, j] * gate[i, j]
        T.copy(up, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit
def two_rings(A, B, index, block=64, num_stages=4):
    """A · Bᵀ where the tile of B is looked up between the two copies, so that each copy is a group of its own."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    index: T.Tensor((K // block,), "int32")
    C = T.empty((M, N), "float32")
    with T.Kernel(N // block, M // block, threads=128) as (bx, by):
        A_shared = T.alloc_shared((block, block), "bfloat16")
        B_shared = T.alloc_shared((block, block), "bfloat16")
        C_local = T.alloc_fragment((block, block), "float32")
        T.clear(C_local)
        for k in T.Pipelined(K // block, num_stages=num_stages):
            T.copy(A[by * block, k * block], A_shared)
            place = index[k]
            T.copy(B[bx * block, place * block], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block, bx * block])
    return C


@ptxtile.jit
def rewritten_operand(A, B, block=64, num_stages=4):
    """(2 A) · Bᵀ, where the threads write the doubled tile: the next iteration may not overwrite it too early."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    C = T.empty((M, N), "float32")
    with T.Kernel(N // block, M // block, threads=128) as (bx, by):
        A_shared = T.alloc_shared((block, block), "bfloat16")
        doubled = T.alloc_shared((block, block), "bfloat16")
        B_shared = T.alloc_shared((block, block), "bfloat16")
        C_local = T.alloc_fragment((block, block), "float32")
        T.clear(C_local)
        for k in T.Pipelined(K // block, num_stages=num_stages):
            T.copy(A[by * block, k * block], A_shared)
            T.copy(B[bx * block, k * block], B_shared)
            for i, j in T.Parallel(block, block):
                doubled[i, j] = A_shared[i, j] * 2
            T.gemm(doubled, B_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block, bx * block])
    return C


@ptxtile.jit
def raised(A, B, block=64, num_stages=3):
    """(A + 1) · Bᵀ, where the threads raise the tile of A by atomic additions."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    C = T.empty((M, N), "float32")
    with T.Kernel(N // block, M // block, threads=128) as (bx, by):
        A_shared = T.alloc_shared((block, block), "bfloat16")
        B_shared = T.alloc_shared((block, block), "bfloat16")
        C_local = T.alloc_fragment((block, block), "float32")
        T.clear(C_local)
        for k in T.Pipelined(K // block, num_stages=num_stages):
            T.copy(A[by * block, k * block], A_shared)
            T.copy(B[bx * block, k * block], B_shared)
            for i, j in T.Parallel(block, block):
                T.atomic_add(A_shared[i, j], T.bfloat16(1))
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block, bx * block])
    return C

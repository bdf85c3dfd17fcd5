"""Kernels that the tests register as operators."""

from __future__ import annotations

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def gemm(A, B, block_M=64, block_N=64, block_K=32, threads=128):
    """A: [M, K], B: [N, K] float16 → A · Bᵀ, [M, N] float16."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.float16)
    B: T.Tensor((N, K), T.float16)
    C = T.empty((M, N), T.float16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), T.float16)
        B_shared = T.alloc_shared((block_N, block_K), T.float16)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[bx * block_N, k * block_K], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit
def silu_scale(X, scale, tile=64, threads=64):
    """X: [M, N] float16 → silu(X) · scale."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N), T.float16)
    scale: T.float32
    Y = T.empty((M, N), T.float16)
    with T.Kernel(T.ceildiv(N, tile), M, threads=threads) as (bx, by):
        for j in T.Parallel(tile):
            x = T.cast(X[by, bx * tile + j], T.float32)
            Y[by, bx * tile + j] = x * T.sigmoid(x) * scale
    return Y


@ptxtile.jit
def silu_scale_backward(X, scale, dY, tile=64, threads=64):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), T.float16)
    scale: T.float32
    dY: T.Tensor((M, N), T.float16)
    dX = T.empty((M, N), T.float16)
    with T.Kernel(T.ceildiv(N, tile), M, threads=threads) as (bx, by):
        for j in T.Parallel(tile):
            x = T.cast(X[by, bx * tile + j], T.float32)
            s = T.sigmoid(x)
            dX[by, bx * tile + j] = T.cast(dY[by, bx * tile + j], T.float32) * scale * s * (1.0 + x * (1.0 - s))
    return dX


@ptxtile.jit
def row_sums_and_doubles(X, tile=32):
    """Two results of a dynamic number of rows: [rows + 1, 2] and [rows]."""
    rows = T.dynamic("rows")
    N = T.const("N")
    X: T.Tensor((rows, N), T.float32)
    Wide = T.empty((rows + 1, 2), T.float32)
    Narrow = T.empty((rows,), T.int32)
    with T.Kernel(T.ceildiv(rows + 1, tile), threads=tile) as bx:
        for i in T.Parallel(tile):
            if bx * tile + i < rows:
                Narrow[bx * tile + i] = bx * tile + i
            Wide[bx * tile + i, 0] = 1.0
            Wide[bx * tile + i, 1] = 2.0
    return Wide, Narrow


@ptxtile.jit
def add_into(A, B, factor, tile=32):
    """B += factor · A, and B is given back."""
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B: T.Tensor((N,), T.float32)
    factor: T.int32
    with T.Kernel(T.ceildiv(N, tile), threads=tile) as bx:
        for i in T.Parallel(tile):
            B[bx * tile + i] = B[bx * tile + i] + A[bx * tile + i] * T.cast(factor, T.float32)
    return B


@ptxtile.jit
def activated(X, kind="relu", slope=0.0, dtype=T.float32, tile=32):
    N = T.const("N")
    X: T.Tensor((N,), dtype)
    Y = T.empty((N,), dtype)
    with T.Kernel(T.ceildiv(N, tile), threads=tile) as bx:
        for i in T.Parallel(tile):
            x = X[bx * tile + i]
            Y[bx * tile + i] = T.max(x, x * slope) if kind == "relu" else x * x
    return Y


@ptxtile.jit(out_idx=[-1])
def transposed(M, N, dtype="float32", tile=32):
    @T.prim_func
    def transpose(A: T.Tensor((M, N), dtype), B: T.Tensor((N, M), dtype)):
        with T.Kernel(T.ceildiv(N, tile), T.ceildiv(M, tile), threads=128) as (bx, by):
            S = T.alloc_shared((tile, tile), dtype)
            T.copy(A[by * tile, bx * tile], S)
            for i, j in T.Parallel(tile, tile):
                if bx * tile + i < N and by * tile + j < M:
                    B[bx * tile + i, by * tile + j] = S[j, i]

    return transpose

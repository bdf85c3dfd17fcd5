"""Kernels with clusters as users write them."""

from __future__ import annotations

import ptxtile
import ptxtile.language as T


@ptxtile.jit(specialize_warps=True)
def gemm(
    A, B, block_M=64, block_N=64, block_K=64, threads=128, num_stages=3, cluster=2, panel=0, transpose_B=True,
    dtype="bfloat16",
):  # fmt: skip
    """C = A · op(B), a tile for each block; x counts columns of tiles."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), dtype)
    B: T.Tensor((N, K) if transpose_B else (K, N), dtype)
    C = T.empty((M, N), "float32")
    with T.Kernel(N // block_N, M // block_M, threads=threads, cluster_dims=cluster) as (bx, by):
        if panel:
            T.use_swizzle(panel)
        A_shared = T.alloc_shared((block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_N, block_K) if transpose_B else (block_K, block_N), dtype)
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            if transpose_B:
                T.copy(B[bx * block_N, k * block_K], B_shared)
            else:
                T.copy(B[k * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=transpose_B)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit(specialize_warps=True)
def persistent_gemm(
    A, B, block_M=64, block_N=64, block_K=64, threads=128, num_stages=3, cluster=2, blocks=4, group=8,
    columns_first=False, out="float32",
):  # fmt: skip
    """C = A · Bᵀ, blocks that go through all tiles. ``columns_first``: the blocks of a cluster share rows of A."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    C = T.empty((M, N), out)
    with T.Kernel(blocks, threads=threads, cluster_dims=cluster) as block:
        A_shared = T.alloc_shared((block_M, block_K), "bfloat16")
        B_shared = T.alloc_shared((block_N, block_K), "bfloat16")
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        m_tiles, n_tiles = T.ceildiv(M, block_M), T.ceildiv(N, block_N)
        for i, j in T.Persistent([n_tiles, m_tiles] if columns_first else [m_tiles, n_tiles], blocks, block, group):
            by, bx = (j, i) if columns_first else (i, j)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit(specialize_warps=True)
def partial_gemm(A, B, rounds, block_M=64, block_N=64, block_K=32, num_stages=3, cluster=2, blocks=2):
    """A · Bᵀ over the first ``rounds[0]`` tiles of K, which nobody knows before the launch."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    rounds: T.Tensor((1,), "int32")
    C = T.empty((M, N), "float32")
    with T.Kernel(blocks, threads=128, cluster_dims=cluster) as block:
        A_shared = T.alloc_shared((block_M, block_K), "bfloat16")
        B_shared = T.alloc_shared((block_N, block_K), "bfloat16")
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        for by, bx in T.Persistent([M // block_M, N // block_N], blocks, block):
            T.clear(C_local)
            for k in T.Pipelined(rounds[0], num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit(specialize_warps=True)
def common_left(A, B, block_M=64, block_N=64, D=64, cluster=2):
    """A · Bᵀ without a loop: every block needs all of A."""
    M, N = T.const("M, N")
    A: T.Tensor((M, D), "bfloat16")
    B: T.Tensor((N, D), "bfloat16")
    C = T.empty((M, N), "float32")
    with T.Kernel(N // block_N, threads=128, cluster_dims=cluster) as bx:
        A_shared = T.alloc_shared((block_M, D), "bfloat16")
        B_shared = T.alloc_shared((block_N, D), "bfloat16")
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        T.copy(A, A_shared)
        T.copy(B[bx * block_N, 0], B_shared)
        T.gemm(A_shared, B_shared, C_local, transpose_B=True, clear_accum=True)
        T.copy(C_local, C[0, bx * block_N])
    return C


@ptxtile.jit(specialize_warps=True)
def counting_gemm(A, B, tiles_done, block_M=64, block_N=64, block_K=64, cluster=2, blocks=4):
    """A persistent product that also counts its tiles, so that no block may run along without one."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    tiles_done: T.Tensor((1,), "int32")
    C = T.empty((M, N), "float32")
    with T.Kernel(blocks, threads=128, cluster_dims=cluster) as block:
        A_shared = T.alloc_shared((block_M, block_K), "bfloat16")
        B_shared = T.alloc_shared((block_N, block_K), "bfloat16")
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        for by, bx in T.Persistent([T.ceildiv(M, block_M), T.ceildiv(N, block_N)], blocks, block):
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C[by * block_M, bx * block_N])
            T.atomic_add(tiles_done[0], 1)
    return C


@ptxtile.jit(specialize_warps=True)
def by_hand(A, B, block=64, cluster=2, blocks=4, stages=2, rows_fastest=True):
    """C = A · Bᵀ, a persistent loop of the user's own: the tile's row is the fastest (or the slowest) coordinate."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    C = T.empty((M, N), "float32")
    rows, columns = M // block, N // block
    with T.Kernel(blocks, threads=128, cluster_dims=cluster) as number:
        A_shared = T.alloc_shared((block, block), "bfloat16")
        B_shared = T.alloc_shared((block, block), "bfloat16")
        C_local = T.alloc_fragment((block, block), "float32")
        for wave in T.serial(T.ceildiv(rows * columns, blocks)):
            tile = wave * blocks + number
            if tile < rows * columns:
                by = tile % rows if rows_fastest else tile // columns
                bx = tile // rows if rows_fastest else tile % columns
                T.clear(C_local)
                for k in T.Pipelined(T.ceildiv(K, block), num_stages=stages):
                    T.copy(A[by * block, k * block], A_shared)
                    T.copy(B[bx * block, k * block], B_shared)
                    T.gemm(A_shared, B_shared, C_local, transpose_B=True)
                T.copy(C_local, C[by * block, bx * block])
    return C


@ptxtile.jit(specialize_warps=True)
def scores(Q, K, block=64, D=64, cluster=2, stages=2):
    """S = Q · Kᵀ: a block loads its rows of Q once and goes over all rows of K, which every block needs."""
    M, N = T.const("M, N")
    Q: T.Tensor((M, D), "bfloat16")
    K: T.Tensor((N, D), "bfloat16")
    S = T.empty((M, N), "float32")
    with T.Kernel(M // block, threads=128, cluster_dims=cluster) as bx:
        Q_shared = T.alloc_shared((block, D), "bfloat16")
        K_shared = T.alloc_shared((block, D), "bfloat16")
        S_local = T.alloc_fragment((block, block), "float32")
        T.copy(Q[bx * block, 0], Q_shared)
        for k in T.Pipelined(T.ceildiv(N, block), num_stages=stages):
            T.copy(K[k * block, 0], K_shared)
            T.gemm(Q_shared, K_shared, S_local, transpose_B=True, clear_accum=True)
            T.copy(S_local, S[bx * block, k * block])
    return S

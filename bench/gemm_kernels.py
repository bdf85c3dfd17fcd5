"""The kernels that are measured: tile code of copies, T.gemm, T.Pipelined and T.Persistent, nothing else.

``persistent`` is examples/gemm_persistent.py with more to choose: the dtype, the order of the tiles, clusters. ``grid``
is examples/gemm.py with the tiles of a column next to each other in the grid, so that they share its weights.
"""

from __future__ import annotations

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def persistent(
    A, B, ctas, block_M=128, block_N=256, block_K=64, num_stages=4, threads=256, group=8, rows_first=False, cluster=1,
    ctas_of_one=1, dtype="bfloat16",
):  # fmt: skip
    """A: [M, K], B: [N, K] → [M, N] bfloat16, accumulated in float32.

    ``ctas``: of the launch. Tiles are counted in groups of ``group`` columns of tiles, in each row by row; with
    ``rows_first`` in groups of rows, column by column. ``cluster``: CTAs that run together, next to each other in that
    order. ``ctas_of_one``: CTAs that share a multiprocessor.
    """
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), dtype)
    B: T.Tensor((N, K), dtype)
    C = T.empty((M, N), "bfloat16")
    rows, columns = T.ceildiv(M, block_M), T.ceildiv(N, block_N)
    with T.Kernel(ctas, threads=threads, cluster_dims=cluster if cluster > 1 else None) as cta:
        if ctas_of_one > 1:
            T.annotate_min_blocks_per_sm(ctas_of_one)
        A_shared = T.alloc_shared((block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_N, block_K), dtype)
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        for first, second in T.Persistent([columns, rows] if rows_first else [rows, columns], ctas, cta, group):
            by, bx = (second, first) if rows_first else (first, second)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit
def grid(A, B, block_M=128, block_N=128, block_K=64, num_stages=6, threads=256):
    """A: [M, K], B: [N, K] → [M, N], all bfloat16, accumulated in float32; one CTA a tile."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    C = T.empty((M, N), "bfloat16")
    with T.Kernel(T.ceildiv(M, block_M), T.ceildiv(N, block_N), threads=threads) as (by, bx):
        A_shared = T.alloc_shared((block_M, block_K), "bfloat16")
        B_shared = T.alloc_shared((block_N, block_K), "bfloat16")
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[bx * block_N, k * block_K], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C

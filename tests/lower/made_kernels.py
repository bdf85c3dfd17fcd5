"""Kernels whose consumers make an operand of a gemm in each iteration."""

from __future__ import annotations

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def scaled(
    A, B, S, through="shared", block_M=64, block_N=64, block_K=64, num_stages=3, threads=128, rows=None, first=0,
    left=True, after=False, padding=0, blocks=0,
):  # fmt: skip
    """(A ⊙ S) · Bᵀ from column ``first`` on, where row i of A is multiplied by S[i] on its way; in registers first, and
    ``through`` shared memory, none, or written there at once (direct). ``rows``: only so many rows of the tile are
    written each time, after the loop has started; ``left`` False: the made tile is the right operand; ``after``: the
    tile is read behind the loop as well; ``padding``: bytes of shared memory taken by something else; ``blocks``: a
    persistent loop over the tiles."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    S: T.Tensor((M,), "float32")
    C = T.empty((M, N), "float32")
    tiles_M, tiles_N = M // block_M, N // block_N
    with T.Kernel(blocks or tiles_M * tiles_N, threads=threads) as block:
        A_shared = T.alloc_shared((block_M, block_K), "bfloat16")
        B_shared = T.alloc_shared((block_N, block_K), "bfloat16")
        made = T.alloc_shared((block_M, block_K), "bfloat16")
        made_local = T.alloc_fragment((block_M, block_K), "bfloat16")
        factors = T.alloc_fragment((block_M,), "float32")
        C_shape = (block_M, block_N) if left else (block_N, block_M)
        C_local = T.alloc_fragment(C_shape, "float32")
        if padding:
            taken = T.alloc_shared((padding,), "uint8")
            taken[0] = T.uint8(1)
        for tile in T.serial(block, tiles_M * tiles_N, blocks or tiles_M * tiles_N):
            by, bx = tile // tiles_N, tile % tiles_N
            T.clear(C_local)
            for k in T.Pipelined(first // block_K, T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.copy(S[by * block_M], factors)
                if through == "direct":
                    for i, j in T.Parallel(rows or block_M, block_K):
                        made[i, j] = A_shared[i, j] * factors[i]
                else:
                    for i, j in T.Parallel(block_M, block_K):
                        made_local[i, j] = A_shared[i, j] * factors[i]
                if through == "shared":
                    T.copy(made_local, made)
                if through == "registers":
                    T.gemm(made_local, B_shared, C_local, transpose_B=True)
                elif left:
                    T.gemm(made, B_shared, C_local, transpose_B=True)
                else:
                    T.gemm(B_shared, made, C_local, transpose_B=True)
            if after:
                for i, j in T.Parallel(block_M, block_N):
                    C_local[i, j] += T.cast(made[i, 0], "float32")
            if left:
                T.copy(C_local, C[by * block_M, bx * block_N])
            else:
                for i, j in T.Parallel(block_N, block_M):
                    C[by * block_M + j, bx * block_N + i] = C_local[i, j]
    return C

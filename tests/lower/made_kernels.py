"""Kernels whose consumers make an operand of a gemm in each iteration."""

from __future__ import annotations

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def scaled(
    A, B, S, through="shared", block_M=64, block_N=64, block_K=64, num_stages=3, threads=128, rows=None, first=0,
    left=True, after=False, padding=0, blocks=0,
):  # fmt: skip
    """(A ⊙ S) · Bᵀ from column ``first`` on, where row i of A is multiplied by S[i] on its way: in registers first and
    ``through`` shared memory, or staying there (registers; late: by way of float32), or at once to shared memory
    (direct). ``rows``: of the tile, only so many are written in the loop; ``left`` False: the made tile is the right
    operand; ``after``: the tile is read behind the loop as well; ``padding``: bytes of shared memory taken by something
    else; ``blocks``: a persistent loop over the tiles."""
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
        wide = T.alloc_fragment((block_M, block_K), "float32")
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
                elif through == "late":
                    for i, j in T.Parallel(block_M, block_K):
                        wide[i, j] = A_shared[i, j] * factors[i]
                    T.copy(wide, made_local)
                else:
                    for i, j in T.Parallel(block_M, block_K):
                        made_local[i, j] = A_shared[i, j] * factors[i]
                if through == "shared":
                    T.copy(made_local, made)
                if through in ("registers", "late"):
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


@ptxtile.jit
def two_products(Q, K, V, block=64, threads=128, num_stages=3, through="registers", rescaled=False, keys=64):
    """(Q · Kᵀ / 8) · V for blocks of rows of Q, ``keys`` rows of K and V at a time; the first product is cast on its
    way, in registers or ``through`` shared memory. ``rescaled``: the sum so far is halved in each iteration, as the
    maximum of a softmax would."""
    M, N, D = T.const("M, N, D")
    Q: T.Tensor((M, D), "bfloat16")
    K: T.Tensor((N, D), "bfloat16")
    V: T.Tensor((N, D), "bfloat16")
    O = T.empty((M, D), "float32")
    with T.Kernel(M // block, threads=threads) as bx:
        Q_shared = T.alloc_shared((block, D), "bfloat16")
        K_shared = T.alloc_shared((keys, D), "bfloat16")
        V_shared = T.alloc_shared((keys, D), "bfloat16")
        P_shared = T.alloc_shared((block, keys), "bfloat16")
        S = T.alloc_fragment((block, keys), "float32")
        P = T.alloc_fragment((block, keys), "bfloat16")
        total = T.alloc_fragment((block, D), "float32")
        T.copy(Q[bx * block, 0], Q_shared)
        T.clear(total)
        for k in T.Pipelined(N // keys, num_stages=num_stages):
            T.copy(K[k * keys, 0], K_shared)
            T.gemm(Q_shared, K_shared, S, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
            for i, j in T.Parallel(block, keys):
                P[i, j] = S[i, j] * 0.125
            if rescaled:
                for i, j in T.Parallel(block, D):
                    total[i, j] = total[i, j] * 0.5
            T.copy(V[k * keys, 0], V_shared)
            if through == "shared":
                T.copy(P, P_shared)
                T.gemm(P_shared, V_shared, total, policy=T.GemmWarpPolicy.FullRow)
            else:
                T.gemm(P, V_shared, total, policy=T.GemmWarpPolicy.FullRow)
        T.copy(total, O[bx * block, 0])
    return O


@ptxtile.jit
def scaled_in_cluster(A, B, S, block=64, num_stages=3):
    """(A ⊙ S) · Bᵀ by clusters of two blocks that load a tile of A together."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    S: T.Tensor((M,), "float32")
    C = T.empty((M, N), "float32")
    with T.Kernel(N // block, M // block, threads=128, cluster_dims=2) as (bx, by):
        A_shared = T.alloc_shared((block, block), "bfloat16")
        B_shared = T.alloc_shared((block, block), "bfloat16")
        made = T.alloc_shared((block, block), "bfloat16")
        C_local = T.alloc_fragment((block, block), "float32")
        T.clear(C_local)
        for k in T.Pipelined(K // block, num_stages=num_stages):
            T.copy(A[by * block, k * block], A_shared)
            T.copy(B[bx * block, k * block], B_shared)
            for i, j in T.Parallel(block, block):
                made[i, j] = A_shared[i, j] * S[by * block + i]
            T.gemm(made, B_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block, bx * block])
    return C

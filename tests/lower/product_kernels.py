"""Kernels with several products in an iteration."""

from __future__ import annotations

import ptxtile
import ptxtile.language as T
from ptxtile.records import record


@record
class Product:
    """One of the products of an iteration. ``accumulator``: the number of the one that it adds to. ``left``: what its
    left operand is: a tile of its own (own), that of the first product (common), a fragment that the threads make of
    its tile (made). ``late``: its tiles are loaded right before it, not at the start of the iteration. ``scalar``: the
    threads count in front of it."""

    accumulator: int = 0
    left: str = "own"
    late: bool = False
    scalar: bool = False


@ptxtile.jit
def products(A, B, rounds, plan, block_M=64, block_N=64, block_K=32, num_stages=2, threads=128):
    """For each accumulator the sum of A[p] · B[p]ᵀ over its products p and the first ``rounds[0]`` tiles of K, twice of
    those whose left operand is made."""
    P, M, N, K = T.const("P, M, N, K")
    A: T.Tensor((P, M, K), "bfloat16")
    B: T.Tensor((P, N, K), "bfloat16")
    rounds: T.Tensor((1,), "int32")
    accumulators = 1 + max(product.accumulator for product in plan)
    C = T.empty((accumulators, M, N), "float32")
    counted = T.empty((1,), "int32")
    with T.Kernel(1, threads=threads):
        count = T.alloc_var("int32", 0)
        lefts = [T.alloc_shared((block_M, block_K), "bfloat16") for _ in plan]
        rights = [T.alloc_shared((block_N, block_K), "bfloat16") for _ in plan]
        made = [T.alloc_fragment((block_M, block_K), "bfloat16") for _ in plan]
        sums = [T.alloc_fragment((block_M, block_N), "float32") for _ in [None] * accumulators]
        for total in sums:
            T.clear(total)
        for k in T.Pipelined(rounds[0], num_stages=num_stages):
            for p, product in enumerate(plan):
                if not product.late:
                    if product.left != "common":
                        T.copy(A[p, 0, k * block_K], lefts[p])
                    T.copy(B[p, 0, k * block_K], rights[p])
            for p, product in enumerate(plan):
                if product.left == "made" and not product.late:
                    for i, j in T.Parallel(block_M, block_K):
                        made[p][i, j] = lefts[p][i, j] * 2
            for p, product in enumerate(plan):
                if product.scalar:
                    count += 1
                if product.late:
                    if product.left != "common":
                        T.copy(A[p, 0, k * block_K], lefts[p])
                    T.copy(B[p, 0, k * block_K], rights[p])
                    if product.left == "made":
                        for i, j in T.Parallel(block_M, block_K):
                            made[p][i, j] = lefts[p][i, j] * 2
                left = {"own": lefts[p], "common": lefts[0], "made": made[p]}[product.left]
                T.gemm(left, rights[p], sums[product.accumulator], transpose_B=True)
        for number, total in enumerate(sums):
            T.copy(total, C[number, 0, 0])
        counted[0] = count
    return C, counted


@ptxtile.jit
def two_types(A, B, D, E, num_stages=2):
    """A · Bᵀ + D · Eᵀ in one accumulator, in bfloat16 and in float16: instructions of two kinds."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    D: T.Tensor((M, K), "float16")
    E: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(1, threads=128):
        A_shared, B_shared = T.alloc_shared((M, 32), "bfloat16"), T.alloc_shared((N, 32), "bfloat16")
        D_shared, E_shared = T.alloc_shared((M, 32), "float16"), T.alloc_shared((N, 32), "float16")
        C_local = T.alloc_fragment((M, N), "float32")
        T.clear(C_local)
        for k in T.Pipelined(K // 32, num_stages=num_stages):
            T.copy(A[0, k * 32], A_shared)
            T.copy(B[0, k * 32], B_shared)
            T.copy(D[0, k * 32], D_shared)
            T.copy(E[0, k * 32], E_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.gemm(D_shared, E_shared, C_local, transpose_B=True)
        T.copy(C_local, C)
    return C


@ptxtile.jit
def chained(Q, K, V, num_stages=3):
    """(Q · Kᵀ) · V, where the float16 sums of the first product are the left operand of the second as they are."""
    M, N, D = T.const("M, N, D")
    Q: T.Tensor((M, D), "float16")
    K: T.Tensor((N, D), "float16")
    V: T.Tensor((N, D), "float16")
    O = T.empty((M, D), "float32")
    with T.Kernel(1, threads=128):
        Q_shared = T.alloc_shared((M, D), "float16")
        K_shared, V_shared = T.alloc_shared((64, D), "float16"), T.alloc_shared((64, D), "float16")
        S = T.alloc_fragment((M, 64), "float16")
        total = T.alloc_fragment((M, D), "float32")
        T.copy(Q, Q_shared)
        T.clear(total)
        for k in T.Pipelined(N // 64, num_stages=num_stages):
            T.copy(K[k * 64, 0], K_shared)
            T.copy(V[k * 64, 0], V_shared)
            T.gemm(Q_shared, K_shared, S, transpose_B=True, clear_accum=True)
            T.gemm(S, V_shared, total)
        T.copy(total, O)
    return O


@ptxtile.jit
def two_scores(Q, K, L, V, num_stages=3):
    """((Q · Kᵀ) ⊙ (Q · Lᵀ)) · V: two products early in the iteration, one that is waited for with them."""
    M, N, D = T.const("M, N, D")
    Q: T.Tensor((M, D), "bfloat16")
    K: T.Tensor((N, D), "bfloat16")
    L: T.Tensor((N, D), "bfloat16")
    V: T.Tensor((N, D), "bfloat16")
    O = T.empty((M, D), "float32")
    with T.Kernel(1, threads=128):
        Q_shared = T.alloc_shared((M, D), "bfloat16")
        K_shared, L_shared = T.alloc_shared((64, D), "bfloat16"), T.alloc_shared((64, D), "bfloat16")
        V_shared = T.alloc_shared((64, D), "bfloat16")
        S, R = T.alloc_fragment((M, 64), "float32"), T.alloc_fragment((M, 64), "float32")
        P = T.alloc_fragment((M, 64), "bfloat16")
        total = T.alloc_fragment((M, D), "float32")
        T.copy(Q, Q_shared)
        T.clear(total)
        for k in T.Pipelined(N // 64, num_stages=num_stages):
            T.copy(K[k * 64, 0], K_shared)
            T.copy(L[k * 64, 0], L_shared)
            T.gemm(Q_shared, K_shared, S, transpose_B=True, clear_accum=True)
            T.gemm(Q_shared, L_shared, R, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(M, 64):
                P[i, j] = S[i, j] * R[i, j]
            T.copy(V[k * 64, 0], V_shared)
            T.gemm(P, V_shared, total)
        T.copy(total, O)
    return O


@ptxtile.jit
def straight(A, B, D, handed_over=False):
    """A · Bᵀ and A · Dᵀ without a loop. ``handed_over``: a barrier stands between the two."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    D: T.Tensor((N, K), "bfloat16")
    C = T.empty((2, M, N), "float32")
    with T.Kernel(1, threads=128):
        A_shared = T.alloc_shared((M, K), "bfloat16")
        B_shared, D_shared = T.alloc_shared((N, K), "bfloat16"), T.alloc_shared((N, K), "bfloat16")
        first, second = T.alloc_fragment((M, N), "float32"), T.alloc_fragment((M, N), "float32")
        T.copy(A, A_shared)
        T.copy(B, B_shared)
        T.copy(D, D_shared)
        T.gemm(A_shared, B_shared, first, transpose_B=True, clear_accum=True)
        if handed_over:
            T.sync_threads()
        T.gemm(A_shared, D_shared, second, transpose_B=True, clear_accum=True)
        T.copy(first, C[0, 0, 0])
        T.copy(second, C[1, 0, 0])
    return C

"""Kernels whose pipelined loops load with cp.async, beyond the plain gemm of :mod:`tests.gemm.kernels`."""

from __future__ import annotations

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def split(A, B, C, first, stages=3, block=32, threads=128, dtype="bfloat16"):
    """C += A[:, first·block:] · B[first·block:, :]: every size and the trip count come with the call."""
    M, N, K = T.dynamic("M, N, K")
    A: T.Tensor((M, K), dtype)
    B: T.Tensor((K, N), dtype)
    C: T.Tensor((M, N), "float32")
    first: T.int32
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block, block), dtype)
        B_shared = T.alloc_shared((block, block), dtype)
        C_local = T.alloc_fragment((block, block), "float32")
        T.copy(C[by * block, bx * block], C_local)
        for k in T.Pipelined(first, T.ceildiv(K, block), num_stages=stages):
            T.copy(A[by * block, k * block], A_shared)
            T.copy(B[k * block, bx * block], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[by * block, bx * block])


@ptxtile.jit
def persistent(A, B, blocks=3, stages=3, block=32, threads=128):
    """C = A · Bᵀ by ``blocks`` CTAs that go through the tiles."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(blocks, threads=threads) as cta:
        A_shared = T.alloc_shared((block, block), "float16")
        B_shared = T.alloc_shared((block, block), "float16")
        C_local = T.alloc_fragment((block, block), "float32")
        columns = T.ceildiv(N, block)
        for tile in T.serial(T.ceildiv(T.ceildiv(M, block) * columns - cta, blocks)):
            row = (cta + tile * blocks) // columns * block
            column = (cta + tile * blocks) % columns * block
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block), num_stages=stages):
                T.copy(A[row, k * block], A_shared)
                T.copy(B[column, k * block], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C[row, column])
    return C


@ptxtile.jit
def attention(Q, K, V, block_M=64, block_N=32, stages=2, threads=128):
    """exp(Q · Kᵀ) · V: two copies and two gemms an iteration, the second one with A in registers."""
    queries, keys, D = T.const("queries, keys, D")
    Q: T.Tensor((queries, D), "float16")
    K: T.Tensor((keys, D), "float16")
    V: T.Tensor((keys, D), "float16")
    O = T.empty((queries, D), "float32")
    with T.Kernel(T.ceildiv(queries, block_M), threads=threads) as bx:
        Q_shared = T.alloc_shared((block_M, D), "float16")
        K_shared = T.alloc_shared((block_N, D), "float16")
        V_shared = T.alloc_shared((block_N, D), "float16")
        S = T.alloc_fragment((block_M, block_N), "float32")
        P = T.alloc_fragment((block_M, block_N), "float16")
        O_local = T.alloc_fragment((block_M, D), "float32")
        T.copy(Q[bx * block_M, 0], Q_shared)
        T.clear(O_local)
        for j in T.Pipelined(T.ceildiv(keys, block_N), num_stages=stages):
            T.copy(K[j * block_N, 0], K_shared)
            T.gemm(Q_shared, K_shared, S, transpose_B=True, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
            for r, c in T.Parallel(block_M, block_N):
                P[r, c] = T.if_then_else(j * block_N + c < keys, T.exp(S[r, c]), 0.0)
            T.copy(V[j * block_N, 0], V_shared)
            T.gemm(P, V_shared, O_local, policy=T.GemmWarpPolicy.FullRow)
        T.copy(O_local, O[bx * block_M, 0])
    return O


@ptxtile.jit
def gathered(A, B, order, stages=3, block=32, threads=128):
    """C = A · B, the blocks of K in the order of a table; each tile of A is used twice: sums[i] = Σ A[i, :]."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    order: T.Tensor((K // block,), "int32")
    C = T.empty((M, N), "float32")
    sums = T.empty((M,), "float32")
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block, block), "float16")
        B_shared = T.alloc_shared((block, block), "float16")
        C_local = T.alloc_fragment((block, block), "float32")
        row_sums = T.alloc_fragment((block,), "float32")
        T.clear(C_local)
        T.clear(row_sums)
        for k in T.Pipelined(K // block, num_stages=stages):
            place = order[k] * block
            T.copy(A[by * block, place], A_shared)
            T.copy(B[place, bx * block], B_shared)
            T.gemm(A_shared, B_shared, C_local)
            for i in T.Parallel(block):
                for j in range(block):
                    row_sums[i] += T.cast(A_shared[i, j], "float32")
        T.copy(C_local, C[by * block, bx * block])
        if bx == 0:
            T.copy(row_sums, sums[by * block])
    return C, sums


@ptxtile.jit
def scaled(A, B, scales, stages=4, block_M=64, block_N=64, block_K=64, threads=128):
    """C = Σ over blocks of K of scales[block, row] · (A · B)[row, :]: big tiles that TMA can load, and small ones."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((N, K), "float16")
    scales: T.Tensor((K // block_K, M), "float32")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), "float16")
        B_shared = T.alloc_shared((block_N, block_K), "float16")
        scale = T.alloc_shared((block_M,), "float32")
        part = T.alloc_fragment((block_M, block_N), "float32")
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        T.clear(C_local)
        for k in T.Pipelined(K // block_K, num_stages=stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[bx * block_N, k * block_K], B_shared)
            T.copy(scales[k, by * block_M], scale)
            T.gemm(A_shared, B_shared, part, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] += scale[i] * part[i, j]
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit
def two_loops(A, B, D, E, first_stages=2, second_stages=4, block=32, threads=128):
    """C = A · B + D · E through the same tiles, in two loops with rings of different lengths."""
    M, N, K, L = T.const("M, N, K, L")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    D: T.Tensor((M, L), "float16")
    E: T.Tensor((L, N), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=threads) as (bx, by):
        left = T.alloc_shared((block, block), "float16")
        right = T.alloc_shared((block, block), "float16")
        C_local = T.alloc_fragment((block, block), "float32")
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block), num_stages=first_stages):
            T.copy(A[by * block, k * block], left)
            T.copy(B[k * block, bx * block], right)
            T.gemm(left, right, C_local)
        for k in T.Pipelined(T.ceildiv(L, block), num_stages=second_stages):
            T.copy(D[by * block, k * block], left)
            T.copy(E[k * block, bx * block], right)
            T.gemm(left, right, C_local)
        T.copy(C_local, C[by * block, bx * block])
    return C


@ptxtile.jit
def nested(A, B, outer_stages=2, inner_stages=3, block=32, threads=128):
    """C[b] = Σ over k of A[k] · B[b, k]: a pipelined loop in a pipelined loop, each with a tile of its own."""
    batches, M, N, K = T.const("batches, M, N, K")
    A: T.Tensor((batches, M, K), "float16")
    B: T.Tensor((batches, K, N), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block, K), "float16")
        B_shared = T.alloc_shared((block, block), "float16")
        C_local = T.alloc_fragment((block, block), "float32")
        T.clear(C_local)
        for b in T.Pipelined(batches, num_stages=outer_stages):
            T.copy(A[b, by * block, 0], A_shared)
            for k in T.Pipelined(K // block, num_stages=inner_stages):
                T.copy(B[b, k * block, bx * block], B_shared)
                T.gemm(A_shared[:, k * block : (k + 1) * block], B_shared, C_local)
        T.copy(C_local, C[by * block, bx * block])
    return C


@ptxtile.jit
def column_sums(A, stages=3, rows=16, columns=64, threads=64, dtype="float32"):
    """Sums over rows without tensor cores."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), dtype)
    C = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, columns), threads=threads) as bx:
        tile = T.alloc_shared((rows, columns), dtype)
        total = T.alloc_fragment((columns,), "float32")
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(M, rows), num_stages=stages):
            T.copy(A[k * rows, bx * columns], tile)
            for j in T.Parallel(columns):
                for i in range(rows):
                    total[j] += T.cast(tile[i, j], "float32")
        T.copy(total, C[bx * columns])
    return C


@ptxtile.jit
def in_a_role(A, B, stages=3, block=32):
    """C = A · B by a role of 128 threads that the user made, beside another role that scales a vector."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    C = T.empty((M, N), "float32")
    ones = T.empty((128,), "float32")
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=256) as (bx, by):
        A_shared = T.alloc_shared((block, block), "float16")
        B_shared = T.alloc_shared((block, block), "float16")
        with T.ws(0):
            if bx == 0 and by == 0:
                for i in T.Parallel(128):
                    ones[i] = 1.0
        with T.ws(1):
            C_local = T.alloc_fragment((block, block), "float32")
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block), num_stages=stages):
                T.copy(A[by * block, k * block], A_shared)
                T.copy(B[k * block, bx * block], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block, bx * block])
    return C, ones


@ptxtile.jit
def carried(A):
    """Each iteration adds the tile that the iteration before it loaded."""
    M = T.const("M")
    A: T.Tensor((M, 64), "float32")
    C = T.empty((64,), "float32")
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((16, 64), "float32")
        total = T.alloc_fragment((64,), "float32")
        T.clear(total)
        for k in T.Pipelined(M // 16, num_stages=2):
            if k > 0:
                for j in T.Parallel(64):
                    for i in range(16):
                        total[j] += tile[i, j]
            T.copy(A[k * 16, 0], tile)
        T.copy(total, C[0])
    return C


@ptxtile.jit
def kept(A):
    """The last tile is read again after the loop."""
    M = T.const("M")
    A: T.Tensor((M, 64), "float32")
    C = T.empty((64,), "float32")
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((16, 64), "float32")
        total = T.alloc_fragment((64,), "float32")
        T.clear(total)
        for k in T.Pipelined(M // 16, num_stages=2):
            T.copy(A[k * 16, 0], tile)
            for j in T.Parallel(64):
                total[j] += tile[0, j]
        for j in T.Parallel(64):
            total[j] += tile[15, j]
        T.copy(total, C[0])
    return C


@ptxtile.jit
def ring_by_hand(A):
    """The user's own double buffer: iteration k loads into half k % 2 and adds the other one."""
    M = T.const("M")
    A: T.Tensor((M, 64), "float32")
    C = T.empty((64,), "float32")
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((2, 16, 64), "float32")
        total = T.alloc_fragment((64,), "float32")
        T.clear(total)
        T.clear(tile)
        for k in T.Pipelined(M // 16, num_stages=2):
            T.copy(A[k * 16 : k * 16 + 16, :], tile[k % 2, :, :])
            for j in T.Parallel(64):
                for i in range(16):
                    total[j] += tile[(k + 1) % 2, i, j]
        T.copy(total, C[0])
    return C


@ptxtile.jit
def changed_on_the_way(A):
    """Iteration k reads rows that iteration k - 1 wrote: prefix sums of blocks of rows, and the sums of the last."""
    M = T.const("M")
    A: T.Tensor((M, 64), "float32")
    C = T.empty((64,), "float32")
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((16, 64), "float32")
        total = T.alloc_fragment((64,), "float32")
        for k in T.Pipelined(M // 16 - 1, num_stages=2):
            T.copy(A[k * 16, 0], tile)
            for i, j in T.Parallel(16, 64):
                A[k * 16 + 16 + i, j] += tile[i, j]
        T.clear(total)
        for j in T.Parallel(64):
            for i in range(16):
                total[j] += A[M - 16 + i, j]
        T.copy(total, C[0])
    return C


@ptxtile.jit
def counted_on_the_way(A):
    """The position is a variable that each iteration moves on."""
    M = T.const("M")
    A: T.Tensor((M, 64), "float32")
    C = T.empty((64,), "float32")
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((16, 64), "float32")
        total = T.alloc_fragment((64,), "float32")
        T.clear(total)
        place = 0
        for k in T.Pipelined(M // 16, num_stages=2):
            T.copy(A[place, 0], tile)
            for j in T.Parallel(64):
                for i in range(16):
                    total[j] += tile[i, j]
            place += 16
        T.copy(total, C[0])
    return C


@ptxtile.jit
def filled_twice(A):
    """One tile for two blocks of rows, one after the other."""
    M = T.const("M")
    A: T.Tensor((M, 64), "float32")
    C = T.empty((64,), "float32")
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((16, 64), "float32")
        total = T.alloc_fragment((64,), "float32")
        T.clear(total)
        for k in T.Pipelined(M // 32, num_stages=2):
            T.copy(A[k * 32, 0], tile)
            for j in T.Parallel(64):
                for i in range(16):
                    total[j] += tile[i, j]
            T.copy(A[k * 32 + 16, 0], tile)
            for j in T.Parallel(64):
                for i in range(16):
                    total[j] += tile[i, j]
        T.copy(total, C[0])
    return C


@ptxtile.jit
def under_a_condition(A):
    """Every other tile is not loaded."""
    M = T.const("M")
    A: T.Tensor((M, 64), "float32")
    C = T.empty((64,), "float32")
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((16, 64), "float32")
        total = T.alloc_fragment((64,), "float32")
        T.clear(total)
        T.clear(tile)
        for k in T.Pipelined(M // 16, num_stages=2):
            if k % 2 == 0:
                T.copy(A[k * 16, 0], tile)
            for j in T.Parallel(64):
                for i in range(16):
                    total[j] += tile[i, j]
        T.copy(total, C[0])
    return C


@ptxtile.jit
def converting(A):
    """The tile has another dtype than the tensor."""
    M = T.const("M")
    A: T.Tensor((M, 64), "float32")
    C = T.empty((64,), "float32")
    with T.Kernel(1, threads=64):
        tile = T.alloc_shared((16, 64), "float64")
        total = T.alloc_fragment((64,), "float64")
        T.clear(total)
        for k in T.Pipelined(M // 16, num_stages=2):
            T.copy(A[k * 16, 0], tile)
            for j in T.Parallel(64):
                for i in range(16):
                    total[j] += tile[i, j]
        T.copy(total, C[0])
    return C


STAYING = {
    "carried": (carried, "before the copy", lambda a: a[:-16].sum(0)),
    "kept": (kept, "outside of the loop", lambda a: a[::16].sum(0) + a[-1]),
    "ring_by_hand": (ring_by_hand, "differs between iterations", lambda a: a[:-16].sum(0)),
    "changed_on_the_way": (changed_on_the_way, "writes A", lambda a: a.sum(0)),
    "counted_on_the_way": (counted_on_the_way, "writes place", lambda a: a.sum(0)),
    "filled_twice": (filled_twice, "filled twice", lambda a: a.sum(0)),
    "under_a_condition": (under_a_condition, "under a condition", lambda a: 2 * a.view(-1, 32, 64)[:, :16].sum((0, 1))),
    "converting": (converting, "converts", lambda a: a.sum(0)),
}
"""By name: the kernel, a part of the reason why its copies stay where they are, C as a function of A."""

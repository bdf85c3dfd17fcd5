"""Kernels in the language, each with a fault that ``wrong=True`` turns on; the lines that a report has to show are
marked ``# later`` and ``# earlier``, and ``# refused`` the line of an error before the kernel runs. The faults of
some lie in an argument; others are sound, and get their fault when the tests take away what the compiler added."""

from __future__ import annotations

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def unordered(A):
    """One role writes a tile, the other reads it, and there is no barrier at all: refused before it runs."""
    A: T.Tensor((64, 128), T.float32)
    B = T.empty((64, 128), T.float32)
    with T.Kernel(1, threads=256):
        S = T.alloc_shared((64, 128), T.float32)
        with T.ws(0):
            for i, j in T.Parallel(64, 128):
                S[i, j] = A[i, j] * 2  # refused
        with T.ws(1):
            for i, j in T.Parallel(64, 128):
                B[i, j] = S[63 - i, j]  # refused
    return B


@ptxtile.jit
def handed_over(A, wrong=False):
    """The role that writes a tile arrives on the barrier before it has written, and not behind."""
    A: T.Tensor((64, 128), T.float32)
    B = T.empty((64, 128), T.float32)
    with T.Kernel(1, threads=256):
        S = T.alloc_shared((64, 128), T.float32)
        full = T.alloc_barrier(128)
        with T.ws(0):
            if wrong:
                T.barrier_arrive(full)
            for i, j in T.Parallel(64, 128):
                S[i, j] = A[i, j] * 2  # earlier
            if not wrong:
                T.barrier_arrive(full)
        with T.ws(1):
            T.barrier_wait(full, 0)
            for i, j in T.Parallel(64, 128):
                B[i, j] = S[63 - i, j]  # later
    return B


@ptxtile.jit
def next_turn(A, wrong=False):
    """A tile is written again while the other role still reads it: nobody waits for its release."""
    A: T.Tensor((4, 64, 128), T.float32)
    B = T.empty((4, 64, 128), T.float32)
    with T.Kernel(1, threads=256):
        S = T.alloc_shared((64, 128), T.float32)
        full, free = T.alloc_barrier(128), T.alloc_barrier(128)
        with T.ws(0):
            for k in range(4):
                T.barrier_wait(free, (k & 1) ^ 1 if not wrong else 1)
                for i, j in T.Parallel(64, 128):
                    S[i, j] = A[k, i, j] * 2  # later
                T.barrier_arrive(full)
        with T.ws(1):
            for k in range(4):
                T.barrier_wait(full, k & 1)
                for i, j in T.Parallel(64, 128):
                    B[k, i, j] = S[63 - i, j]  # earlier
                T.barrier_arrive(free)
    return B


@ptxtile.jit
def divided(A):
    """A barrier that only some threads reach, as the data say: refused before it runs."""
    A: T.Tensor((128,), T.int32)
    B = T.empty((128,), T.int32)
    with T.Kernel(1, threads=128):
        S = T.alloc_shared((128,), T.int32)
        tx = T.get_thread_binding()
        S[tx] = A[tx]
        if A[tx] > 0:
            T.sync_threads()  # refused
            B[tx] = S[127 - tx]
        else:
            B[tx] = 0
    return B


@ptxtile.jit
def some_warps(A, wrong=False):
    """A barrier of all warps in a branch that one of them does not take, as the data say."""
    A: T.Tensor((4,), T.int32)
    B = T.empty((128,), T.int32)
    with T.Kernel(1, threads=128):
        S = T.alloc_shared((128,), T.int32)
        tx = T.get_thread_binding()
        S[tx] = tx
        if not wrong:
            T.sync_threads(1, 128)
        if A[tx // 32] > 0:
            if wrong:
                T.sync_threads(1, 128)  # later
            B[tx] = S[127 - tx]
        else:
            B[tx] = 0
    return B


@ptxtile.jit
def ring(A, wrong=False, stages=2):
    """A ring whose consumers arrive once too few a turn."""
    A: T.Tensor((512, 64), T.float32)
    B = T.empty((512, 64), T.float32)
    with T.Kernel(1, threads=256):
        S = T.alloc_shared((stages, 64, 64), T.float32)
        R = T.alloc_shared((64, 64), T.float32)
        full, empty = T.alloc_barrier([1] * stages), T.alloc_barrier([128 + wrong] * stages)
        with T.ws(1):
            for k in range(8):
                T.barrier_wait(empty[k % stages], ((k // stages) & 1) ^ 1)  # later
                T.tma_copy(A[k * 64, 0], S[k % stages, :, :], barrier=full[k % stages])
                if T.shuffle_elect(128):
                    T.barrier_arrive(full[k % stages])
        with T.ws(0):
            for k in range(8):
                T.barrier_wait(full[k % stages], (k // stages) & 1)  # earlier
                for i, j in T.Parallel(64, 64):
                    R[i, j] = S[k % stages, i, j] + k
                T.barrier_arrive(empty[k % stages])
                T.copy(R, B[k * 64, 0])
    return B


@ptxtile.jit
def beyond(A, places, wrong=False):
    """Rows of a shared tile that do not exist, although the kernel has assumed that they do."""
    A: T.Tensor((64, 64), T.float32)
    places: T.Tensor((4,), T.int32)
    B = T.empty((4, 64), T.float32)
    with T.Kernel(4, threads=64) as bx:
        S = T.alloc_shared((64, 64), T.float32)
        T.copy(A, S)
        row = places[bx] + 8 * wrong
        T.assume(0 <= row)
        T.assume(row < 64)
        T.copy(S[row, 0:64], B[bx, 0:64])  # later
    return B


@ptxtile.jit
def written_twice(A, wrong=False):
    """Both roles write the last row of a tile; right, one of them leaves it to the other."""
    A: T.Tensor((64, 128), T.float32)
    B = T.empty((64, 128), T.float32)
    with T.Kernel(1, threads=256):
        S = T.alloc_shared((64, 128), T.float32)
        done = T.alloc_barrier(256)
        with T.ws(0):
            T.barrier_arrive(done)
            for i, j in T.Parallel(32 + wrong, 128):
                S[i, j] = A[i, j]  # later
            T.barrier_wait(done, 0)
        with T.ws(1):
            for i, j in T.Parallel(32, 128):
                S[i + 32, j] = A[i + 32, j] * 2  # later
            T.barrier_arrive(done)
        T.sync_threads()
        for i, j in T.Parallel(64, 128):
            B[i, j] = S[63 - i, j]
    return B


@ptxtile.jit
def half_a_tile(A, wrong=False):
    """The lower half of a tile is read that nobody wrote."""
    A: T.Tensor((64, 128), T.float32)
    B = T.empty((64, 128), T.float32)
    with T.Kernel(1, threads=128):
        S = T.alloc_shared((64, 128), T.float32)
        for i, j in T.Parallel(32 if wrong else 64, 128):
            S[i, j] = A[i, j] * 2
        T.sync_threads()
        for i, j in T.Parallel(64, 128):
            B[i, j] = S[63 - i, j]  # later
    return B


@ptxtile.jit
def multiplied_too_long(A, B, wrong=False, stages=2):
    """A stage is given back before the product that reads it."""
    A: T.Tensor((64, 512), T.bfloat16)
    B: T.Tensor((512, 64), T.bfloat16)
    C = T.empty((64, 64), T.float32)
    with T.Kernel(1, threads=256):
        left, right = T.alloc_shared((stages, 64, 64), T.bfloat16), T.alloc_shared((stages, 64, 64), T.bfloat16)
        full, empty = T.alloc_barrier([1] * stages), T.alloc_barrier([128] * stages)
        with T.ws(1):
            for k in range(8):
                T.barrier_wait(empty[k % stages], ((k // stages) & 1) ^ 1)
                T.tma_copy(A[0, k * 64], left[k % stages, :, :], barrier=full[k % stages])  # later
                T.tma_copy(B[k * 64, 0], right[k % stages, :, :], barrier=full[k % stages])
                if T.shuffle_elect(128):
                    T.barrier_arrive(full[k % stages])
        with T.ws(0):
            total = T.alloc_fragment((64, 64), T.float32)
            T.clear(total)
            for k in range(8):
                T.barrier_wait(full[k % stages], (k // stages) & 1)
                if wrong:
                    T.barrier_arrive(empty[k % stages])
                T.gemm(left[k % stages, :, :], right[k % stages, :, :], total)  # earlier
                if not wrong:
                    T.barrier_arrive(empty[k % stages])
            T.copy(total, C)
    return C


@ptxtile.jit
def wrong_bytes(A, wrong=False):
    """More bytes are expected than the load brings."""
    A: T.Tensor((64, 128), T.float32)
    B = T.empty((64, 128), T.float32)
    with T.Kernel(1, threads=128):
        S = T.alloc_shared((64, 128), T.float32)
        full = T.alloc_barrier(1)
        T.tma_copy(A[0, 0], S, barrier=full)
        if T.shuffle_elect(128):
            if wrong:
                T.mbarrier_arrive_expect_tx(full, 16)
            else:
                T.barrier_arrive(full)
        T.barrier_wait(full, 0)  # later
        for i, j in T.Parallel(64, 128):
            B[i, j] = S[63 - i, j]
    return B


@ptxtile.jit
def same_parity(A, wrong=False):
    """Each tile is waited for with the parity of the first."""
    A: T.Tensor((4, 64, 128), T.float32)
    B = T.empty((4, 64, 128), T.float32)
    with T.Kernel(1, threads=256):
        S = T.alloc_shared((64, 128), T.float32)
        full, free = T.alloc_barrier(128), T.alloc_barrier(128)
        with T.ws(0):
            for k in range(4):
                T.barrier_wait(free, (k & 1) ^ 1)
                for i, j in T.Parallel(64, 128):
                    S[i, j] = A[k, i, j] * 2
                T.barrier_arrive(full)
        with T.ws(1):
            for k in range(4):
                T.barrier_wait(full, 0 if wrong else k & 1)  # later
                for i, j in T.Parallel(64, 128):
                    B[k, i, j] = S[63 - i, j]
                T.barrier_arrive(free)
    return B


@ptxtile.jit
def counted_too_low(A, wrong=False):
    """A barrier that counts fewer arrivals than come."""
    A: T.Tensor((64, 128), T.float32)
    B = T.empty((64, 128), T.float32)
    with T.Kernel(1, threads=256):
        S = T.alloc_shared((64, 128), T.float32)
        full = T.alloc_barrier(96 if wrong else 128)
        with T.ws(0):
            for i, j in T.Parallel(64, 128):
                S[i, j] = A[i, j] * 2  # earlier
            T.barrier_arrive(full)
        with T.ws(1):
            T.barrier_wait(full, 0)
            for i, j in T.Parallel(64, 128):
                B[i, j] = S[63 - i, j]  # later
    return B


@ptxtile.jit
def beyond_tensor(A, row):
    """A row of a tensor that does not exist, although the kernel has assumed that it does."""
    A: T.Tensor((64, 64), T.float32)
    row: T.int32
    B = T.empty((64,), T.float32)
    with T.Kernel(1, threads=64):
        T.assume(0 <= row)
        T.assume(row < 64)
        for j in T.Parallel(64):
            B[j] = A[row, j]  # later
    return B


@ptxtile.jit
def beyond_map(A, places, wrong=False):
    """A box of TMA that does not fit into the rows of a shared tile."""
    A: T.Tensor((256, 64), T.float32)
    places: T.Tensor((1,), T.int32)
    B = T.empty((64, 64), T.float32)
    with T.Kernel(1, threads=128):
        S = T.alloc_shared((96, 64), T.float32)
        full = T.alloc_barrier(1)
        row = places[0] + 16 * wrong
        T.assume(0 <= row)
        T.assume(row <= 32)
        T.tma_copy(A[0:64, 0:64], S[row : row + 64, 0:64], barrier=full)  # later
        if T.shuffle_elect(128):
            T.barrier_arrive(full)
        T.barrier_wait(full, 0)
        for i, j in T.Parallel(64, 64):
            B[i, j] = S[row + i, j]
    return B


@ptxtile.jit
def uncleared(A, B, wrong=False):
    """An accumulator that nobody has cleared."""
    A: T.Tensor((64, 64), T.bfloat16)
    B: T.Tensor((64, 64), T.bfloat16)
    C = T.empty((64, 64), T.float32)
    with T.Kernel(1, threads=128):
        left, right = T.alloc_shared((64, 64), T.bfloat16), T.alloc_shared((64, 64), T.bfloat16)
        total = T.alloc_fragment((64, 64), T.float32)
        T.copy(A, left)
        T.copy(B, right)
        if not wrong:
            T.clear(total)
        T.gemm(left, right, total)  # later
        T.copy(total, C)
    return C


@ptxtile.jit
def unwritten_fragment(A, wrong=False):
    """A fragment of which only a part has been written."""
    A: T.Tensor((64, 128), T.float32)
    B = T.empty((64, 128), T.float32)
    with T.Kernel(1, threads=128):
        F = T.alloc_fragment((64, 128), T.float32)
        for i, j in T.Parallel(64, 128):
            if i < (32 if wrong else 64):
                F[i, j] = A[i, j]
        for i, j in T.Parallel(64, 128):
            B[i, j] = F[i, j] + 1  # later
    return B


@ptxtile.jit
def same_element(A, wrong=False):
    """Blocks of a grid write one row of the result."""
    A: T.Tensor((4, 128), T.float32)
    B = T.empty((4, 128), T.float32)
    with T.Kernel(4, threads=128) as bx:
        tx = T.get_thread_binding()
        B[0 if wrong else bx, tx] = A[bx, tx]  # later
    return B


@ptxtile.jit
def odd_box(A, row):
    """TMA into rows that begin at no multiple of 128 bytes, as far as the compiler can tell: refused before it runs."""
    A: T.Tensor((64, 8), T.float32)
    row: T.int32
    B = T.empty((32, 8), T.float32)
    with T.Kernel(1, threads=128):
        S = T.alloc_shared((64, 8), T.float32)
        full = T.alloc_barrier(1)
        T.tma_copy(A[0:32, 0:8], S[row : row + 32, 0:8], barrier=full)  # refused
        if T.shuffle_elect(128):
            T.barrier_arrive(full)
        T.barrier_wait(full, 0)
        for i, j in T.Parallel(32, 8):
            B[i, j] = S[row + i, j]
    return B


@ptxtile.jit
def handed_to_tma(A):
    """Threads write a tile, another role stores it by TMA: the compiler adds the proxy fence, the wait for the store's
    reads before the tile is given back, and the wait at the end."""
    A: T.Tensor((4, 64, 128), T.float32)
    B = T.empty((4, 64, 128), T.float32)
    with T.Kernel(1, threads=256):
        S = T.alloc_shared((64, 128), T.float32)
        full, free = T.alloc_barrier(128), T.alloc_barrier(128)
        with T.ws(0):
            for k in range(4):
                T.barrier_wait(free, (k & 1) ^ 1)
                for i, j in T.Parallel(64, 128):
                    S[i, j] = A[k, i, j] * 2  # written
                T.barrier_arrive(full)
        with T.ws(1):
            for k in range(4):
                T.barrier_wait(full, k & 1)
                T.tma_copy(S, B[k, 0, 0])  # stored
                T.barrier_arrive(free)
    return B


@ptxtile.jit
def product(A, B):
    """A product of tensor cores: the compiler adds their fences and waits, and those for what it brings in."""
    A: T.Tensor((64, 64), T.bfloat16)
    B: T.Tensor((64, 64), T.bfloat16)
    C = T.empty((64, 64), T.float32)
    with T.Kernel(1, threads=128):
        left, right = T.alloc_shared((64, 64), T.bfloat16), T.alloc_shared((64, 64), T.bfloat16)
        total = T.alloc_fragment((64, 64), T.float32)
        T.copy(A, left)  # left
        T.copy(B, right)  # right
        T.clear(total)
        T.gemm(left, right, total)  # multiplied
        T.copy(total, C)  # taken
    return C


@ptxtile.jit
def pipelined(A, B, blocks, trips=None, stages=3):
    """The product of A and the transpose of B over the first ``blocks`` blocks of 32 of k; over ``trips`` of them where
    that is given, so that the number is known to the compiler."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    blocks: T.int32
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        left = T.alloc_shared((64, 32), T.bfloat16)
        right = T.alloc_shared((64, 32), T.bfloat16)
        total = T.alloc_fragment((64, 64), T.float32)
        T.clear(total)
        for k in T.Pipelined(blocks if trips is None else trips, num_stages=stages):
            T.copy(A[by * 64, k * 32], left)
            T.copy(B[bx * 64, k * 32], right)
            T.gemm(left, right, total, transpose_B=True)
        T.copy(total, C[by * 64, bx * 64])
    return C

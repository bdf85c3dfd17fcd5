"""Warps that go different ways by conditions on the thread, and hand things to each other by named barriers and
mbarriers.

``without`` names a piece of synchronization that is left out, which makes the kernel wrong.
"""

from __future__ import annotations

import torch

import ptxtile
import ptxtile.language as T
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []


def _numbers(generator, rows: int, columns: int) -> torch.Tensor:
    return torch.from_numpy(generator.integers(-100, 100, (rows, columns))).to(torch.int32)


@ptxtile.jit
def one_word(A, without=""):
    """One thread writes a word, one of the other warp reads it."""
    A: T.Tensor((1,), T.int32)
    B = T.empty((1,), T.int32)
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        slot = T.alloc_shared((1,), T.int32)
        if tx < 32:
            if tx == 0:
                slot[0] = A[0] + 1
            if without != "arrival":
                T.named_barrier_arrive(10, 64)
            T.sync_threads(11, 64)
        else:
            if without != "wait":
                T.sync_threads(10, 64)
            if tx == 32:
                B[0] = slot[0]
            T.named_barrier_arrive(11, 64)
    return B


@ptxtile.jit
def rounds(A, without=""):
    """The condition is inside of the loop, whose number of iterations is only known at launch."""
    N = T.dynamic("N")
    A: T.Tensor((N, 32), T.int32)
    B = T.empty((N, 32), T.int32)
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        slot = T.alloc_shared((32,), T.int32)
        for k in range(N):
            if tx < 32:
                slot[tx] = A[k, tx] + 1
                if without != "full":
                    T.named_barrier_arrive(10, 64)
                if without != "free":
                    T.sync_threads(11, 64)
            else:
                if without != "full":
                    T.sync_threads(10, 64)
                B[k, tx - 32] = slot[63 - tx]
                if without != "free":
                    T.named_barrier_arrive(11, 64)
    return B


@ptxtile.jit
def three_ways(A, N=6, without=""):
    """The warp in the middle takes from one and gives to the other."""
    A: T.Tensor((N, 32), T.int32)
    B = T.empty((N, 32), T.int32)
    with T.Kernel(1, threads=96):
        tx = T.get_thread_binding()
        warp, lane = tx // 32, tx % 32
        first, second = T.alloc_shared((32,), T.int32), T.alloc_shared((32,), T.int32)
        if warp == 0:
            for k in range(N):
                first[lane] = A[k, lane] + 1
                T.named_barrier_arrive(1, 64)
                T.sync_threads(2, 64)
        elif warp == 1:
            for k in range(N):
                T.sync_threads(1, 64)
                value = first[31 - lane]
                T.named_barrier_arrive(2, 64)
                if k > 0 and without != "free":
                    T.sync_threads(4, 64)
                second[lane] = value * 2
                T.named_barrier_arrive(3, 64)
        else:
            for k in range(N):
                T.sync_threads(3, 64)
                B[k, lane] = second[31 - lane]
                if k < N - 1 and without != "free":
                    T.named_barrier_arrive(4, 64)
    return B


@ptxtile.jit
def two_buffers(A, N=6, without=""):
    """A named barrier for each of two buffers, chosen by the number of the round."""
    A: T.Tensor((N, 64), T.int32)
    B = T.empty((N, 64), T.int32)
    with T.Kernel(1, threads=128):
        tx = T.get_thread_binding()
        tile = T.alloc_shared((2, 64), T.int32)
        if tx < 64:
            for k in range(N):
                if k % 2 == 0:
                    T.sync_threads(3, 128)
                else:
                    T.sync_threads(4, 128)
                tile[k % 2, tx] = A[k, tx] + 1
                if k % 2 == 0 or without == "parity":
                    T.named_barrier_arrive(1, 128)
                else:
                    T.named_barrier_arrive(2, 128)
        else:
            T.named_barrier_arrive(3, 128)
            T.named_barrier_arrive(4, 128)
            for k in range(N):
                if k % 2 == 0 or without == "parity":
                    T.sync_threads(1, 128)
                else:
                    T.sync_threads(2, 128)
                B[k, tx - 64] = tile[k % 2, 127 - tx]
                if k < N - 2:
                    if k % 2 == 0:
                        T.named_barrier_arrive(3, 128)
                    else:
                        T.named_barrier_arrive(4, 128)
    return B


@ptxtile.jit
def ring_of_words(A, N=7, stages=2, without=""):
    """Mbarriers for each stage of a ring of rows; all threads arrive."""
    A: T.Tensor((N, 32), T.int32)
    B = T.empty((N, 32), T.int32)
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        tile = T.alloc_shared((stages, 32), T.int32)
        full, free = T.alloc_barrier([32] * stages), T.alloc_barrier([32] * stages)
        if tx < 32:
            for k in range(N):
                if without != "free":
                    T.mbarrier_wait_parity(free[k % stages], (k // stages) % 2 ^ 1)
                tile[k % stages, tx] = A[k, tx] + 1
                T.mbarrier_arrive(full[k % stages])
        else:
            for k in range(N):
                if without != "full":
                    T.mbarrier_wait_parity(full[k % stages], (k // stages) % 2)
                B[k, tx - 32] = tile[k % stages, 63 - tx]
                T.mbarrier_arrive(free[k % stages])
    return B


@ptxtile.jit
def phases(A, N=5, without=""):
    """The consumer comes first in the text, and each side counts the phases in a variable of its own."""
    A: T.Tensor((N, 32), T.int32)
    B = T.empty((N, 32), T.int32)
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        tile = T.alloc_shared((32,), T.int32)
        full, free = T.alloc_barrier(32), T.alloc_barrier(32)
        if tx < 32:
            turn = 0
            for k in range(N):
                T.mbarrier_wait_parity(full, turn)
                B[k, tx] = tile[31 - tx]
                T.mbarrier_arrive(free)
                if without != "turn":
                    turn ^= 1
        else:
            phase = 1
            for k in range(N):
                T.mbarrier_wait_parity(free, phase)
                tile[tx - 32] = A[k, tx - 32] + 1
                T.mbarrier_arrive(full)
                phase ^= 1
    return B


_WAYS = {kernel.__name__: kernel for kernel in (rounds, two_buffers, ring_of_words, phases, three_ways)}


@cases(CASES, card=True, way=list(_WAYS))
def ways(generator, way):
    a = _numbers(generator, {"ring_of_words": 7, "phases": 5}.get(way, 6), 64 if way == "two_buffers" else 32)
    return Call(_WAYS[way], (a,), expected=(a + 1) * 2 if way == "three_ways" else (a + 1).flip(1))


@cases(CASES, card=True)
def words(generator):
    a = _numbers(generator, 1, 1)[0]
    return Call(one_word, (a,), expected=a + 1)


@ptxtile.jit
def own_barriers(A, count=32):
    """Each warp meets at a barrier whose id is worked out from the thread."""
    A: T.Tensor((128,), T.int32)
    B = T.empty((128,), T.int32)
    with T.Kernel(1, threads=128):
        tx = T.get_thread_binding()
        tile = T.alloc_shared((128,), T.int32)
        tile[tx] = A[tx] * 2
        T.sync_threads(tx // 32 + 1, count)
        B[tx] = tile[tx // 32 * 32 + 31 - tx % 32]
    return B


@ptxtile.jit
def turns(A, N=3):
    """Two warps take turns: each waits at its own barrier, and arrives at the other's, over and over."""
    A: T.Tensor((N, 64), T.int32)
    B = T.empty((N, 64), T.int32)
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        warp = tx // 32
        total = T.alloc_shared((1,), T.int32)
        if tx == 0:
            total[0] = 0
        T.sync_threads()
        if warp == 1:
            T.named_barrier_arrive(4, 64)
        for k in range(N):
            T.sync_threads(4 + warp, 64)
            if tx % 32 == 0:
                total[0] += A[k, tx]
            T.sync_warp()
            B[k, tx] = total[0]
            if k < N - 1 or warp == 0:
                T.named_barrier_arrive(5 - warp, 64)
    return B


@ptxtile.jit
def number_from_memory(A, B, C):
    """Which barrier the two warps meet at is a number in memory."""
    A: T.Tensor((1,), T.int32)
    B: T.Tensor((64,), T.int32)
    C: T.Tensor((64,), T.int32)
    with T.Kernel(1, threads=64):
        tx = T.get_thread_binding()
        tile = T.alloc_shared((64,), T.int32)
        tile[tx] = B[tx] + 1
        T.sync_threads(A[0])
        C[tx] = tile[63 - tx]


@cases(CASES, card=True)
def computed_barriers(generator):
    a = _numbers(generator, 1, 128)[0]
    return Call(own_barriers, (a,), expected=(2 * a).reshape(4, 32).flip(1).flatten())


@cases(CASES, card=True)
def warps_in_turn(generator):
    a = _numbers(generator, 3, 64)
    expected = a[:, ::32].flatten().cumsum(0).to(torch.int32).reshape(3, 2).repeat_interleave(32, dim=1)
    return Call(turns, (a,), expected=expected)


@cases(CASES, card=True, number=[1, 15])
def barriers_from_memory(generator, number):
    b = _numbers(generator, 1, 64)[0]
    a = torch.tensor([number], dtype=torch.int32)
    return Call(number_from_memory, (a, b, torch.zeros_like(b)), changes={2: (b + 1).flip(0)})

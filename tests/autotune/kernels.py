"""Kernels that the tests tune; their sizes are small, for the simulator."""

from __future__ import annotations

import ptxtile
import ptxtile.language as T
from tests.profile.stand_in_clock import StandInClock


def product_factory(M, N, K, block_M=32, block_N=32, block_K=32, num_stages=1, threads=64):
    """C = A · B, float16 → float32."""

    @T.prim_func
    def product(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "float16")
            B_shared = T.alloc_shared((block_K, block_N), "float16")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[k * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return product


@ptxtile.jit(target="sm_90a")
def add(A, B, block=32, threads=32, shift=0.0):
    """A + B + shift, float32; a ``shift`` is a mistake that a check has to find."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B: T.Tensor((M, N), T.float32)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, block), M, threads=threads) as (bx, by):
        for j in T.Parallel(block):
            C[by, bx * block + j] = A[by, bx * block + j] + B[by, bx * block + j] + shift
    return C


@ptxtile.jit(target="sm_90a")
def scale(A, factor: T.float32, threads=32):
    """A · factor."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B = T.empty((M, N), T.float32)
    with T.Kernel(M, threads=threads) as row:
        for j in T.Parallel(N):
            B[row, j] = A[row, j] * factor
    return B


@ptxtile.jit(target="sm_90a")
def double(A, threads=32):
    """A ← 2 A."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    with T.Kernel(M, threads=threads) as row:
        for j in T.Parallel(N):
            A[row, j] = A[row, j] * 2


@ptxtile.jit(target="sm_90a")
def spin(A, forever=False, threads=32):
    """A + 1; ``forever``: a loop that does not end."""
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=threads):
        turns = T.alloc_var(T.int32)
        turns = 0
        if forever:
            while turns >= 0:
                turns = (turns + 1) % 1000
        for j in T.Parallel(N):
            B[j] = A[j] + 1.0
    return B


@ptxtile.jit(target="sm_90a")
def incomplete(A, rows=4, threads=32):
    """A copy of the first ``rows`` rows alone: the others are never written."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B = T.empty((M, N), T.float32)
    with T.Kernel(rows, threads=threads) as row:
        for j in T.Parallel(N):
            B[row, j] = A[row, j]
    return B


class _Shaped(StandInClock):
    """A clock on which the n-th call of a sweep takes a time of its own. It lives in one process."""

    turn = 0

    def milliseconds(self, start: float, stop: float) -> float:
        return float(_Shaped.turn)


def numbered_clock() -> StandInClock:
    """A clock for each configuration: the first takes 1 ms, the second 2 ms, and so on."""
    _Shaped.turn += 1
    return _Shaped()


def restart_clocks() -> None:
    _Shaped.turn = 0


def identity_of_process(value: int) -> tuple[int, int]:
    """For the pool's tests."""
    import os

    return value, os.getpid()


def fail(message: str) -> None:
    raise ValueError(message)


def die() -> None:
    import os

    os._exit(3)


def sleep(seconds: float) -> float:
    import time

    time.sleep(seconds)
    return seconds


def unsendable() -> object:
    return lambda: None


def loaded_modules() -> list[str]:
    import sys

    return sorted(sys.modules)


def threads_of_process() -> int:
    import os

    return len(os.listdir("/proc/self/task"))


def ask_for_replacement() -> None:
    from ptxtile.errors import WorkerError

    raise WorkerError("this process is of no use any more")

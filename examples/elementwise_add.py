"""Adds two float32 matrices tile by tile: the smallest complete kernel, in both forms of the language.

Run it:  python examples/elementwise_add.py [M N]

With a CUDA card the kernel runs on it and the bandwidth is printed; without one the same lowered program runs in the
simulator. Either way the result is checked against torch.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def elementwise_add(A, B, block_M=64, block_N=64, threads=128):
    """C = A + B for float32 [M, N]; M and N are compile-time sizes, taken from the tensors of the call."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B: T.Tensor((M, N), T.float32)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_N), T.float32)
        B_shared = T.alloc_shared((block_M, block_N), T.float32)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.copy(A[by * block_M, bx * block_N], A_shared)
        T.copy(B[by * block_M, bx * block_N], B_shared)
        for i, j in T.Parallel(block_M, block_N):
            C_local[i, j] = A_shared[i, j] + B_shared[i, j]
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit(out_idx=[-1])
def elementwise_add_factory(M, N, block_M=64, block_N=64, threads=128):
    """The same kernel from a factory: call it with sizes, then call the result with tensors."""

    @T.prim_func
    def add(
        A: T.Tensor((M, N), "float32"),
        B: T.Tensor((M, N), "float32"),
        C: T.Tensor((M, N), "float32"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_N), "float32")
            B_shared = T.alloc_shared((block_M, block_N), "float32")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            C_shared = T.alloc_shared((block_M, block_N), "float32")
            T.copy(A[by * block_M, bx * block_N], A_shared)
            T.copy(B[by * block_M, bx * block_N], B_shared)
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] = A_shared[i, j] + B_shared[i, j]
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])

    return add


def bandwidth(run, tensors: int, bytes_each: int) -> float:
    """GB/s moved by ``run``: the median of 50 launches that wait in a full queue, so that host time does not count."""
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(50)]
    torch.cuda._sleep(50_000_000)
    for start, stop in events:
        start.record()
        run()
        stop.record()
    torch.cuda.synchronize()
    times = sorted(start.elapsed_time(stop) for start, stop in events)
    return tensors * bytes_each / times[len(times) // 2] / 1e6


def check(M: int, N: int, device: str) -> None:
    """Both forms equal torch to the bit for random inputs."""
    a, b = torch.randn(M, N, device=device), torch.randn(M, N, device=device)
    torch.testing.assert_close(elementwise_add(a, b), a + b, rtol=0, atol=0)
    torch.testing.assert_close(elementwise_add_factory(M, N)(a, b), a + b, rtol=0, atol=0)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    M, N = [int(size) for size in sys.argv[1:3]] or ([8192, 8192] if device == "cuda" else [1000, 1023])
    check(M, N, device)
    rate = ""
    if device == "cuda":
        a, b = torch.randn(M, N, device=device), torch.randn(M, N, device=device)
        rate = f", {bandwidth(lambda: elementwise_add(a, b), 3, a.nbytes):.0f} GB/s"
    print(f"{M}x{N} float32 on {device}: both forms equal torch{rate}")


if __name__ == "__main__":
    main()

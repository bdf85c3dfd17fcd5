"""Copies in roles made by hand (T.ws): synchronous for the role's threads, by TMA where that is legal."""

from __future__ import annotations

import numpy as np
import torch

import ptxtile
import ptxtile.language as T
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []


def integers(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return torch.from_numpy(generator.integers(-8, 9, shape)).to(dtype)


@ptxtile.jit
def copying_ring(A, C, stages=2, groups=1, columns=64):
    """A loading role, ``groups`` computing warpgroups that store what they computed; every copy is a T.copy."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    C: T.Tensor((M, N), T.float32)
    consumers = 128 * groups
    with T.Kernel(T.ceildiv(N, columns), threads=consumers + 128) as bx:
        S = T.alloc_shared((stages, 64, columns), T.float32)
        R = T.alloc_shared((64, columns), T.float32)
        full, empty = T.alloc_barrier([128] * stages), T.alloc_barrier([consumers] * stages)
        with T.ws(groups):
            for k in range(T.ceildiv(M, 64)):
                T.barrier_wait(empty[k % stages], ((k // stages) & 1) ^ 1)
                T.copy(A[k * 64, bx * columns], S[k % stages, :, :])
                T.barrier_arrive(full[k % stages])
        with T.ws(*range(groups)):
            for k in range(T.ceildiv(M, 64)):
                T.barrier_wait(full[k % stages], (k // stages) & 1)
                for i, j in T.Parallel(64, columns):
                    R[i, j] = S[k % stages, i, j] * 2 + k
                T.barrier_arrive(empty[k % stages])
                T.copy(R, C[k * 64, bx * columns])


@cases(CASES, card=True, rows=[{"stages": s, "groups": g, "columns": c} for s, g, c in
       ((1, 1, 64), (2, 1, 32), (3, 2, 64), (2, 1, 30))])  # fmt: skip
def copying_rings(generator, stages, groups, columns):
    """With a tail of rows; tiles of 30 columns have to be copied by the threads."""
    a = integers(generator, (300, 2 * columns))
    expected = a * 2 + (torch.arange(300) // 64)[:, None]
    return Call(lambda *args: copying_ring(*args, stages=stages, groups=groups, columns=columns),
                (a, torch.full_like(a, 9.0)), changes={1: expected})  # fmt: skip


@cases(CASES, card=True, rounds=[1, 3])
def roles_with_tiles_of_their_own(generator, rounds):
    """Three roles load, change and store at the same time, with nothing between them."""

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((3, rounds, 32, 64), T.float16)
        B: T.Tensor((3, rounds, 32, 64), T.float16)
        with T.Kernel(1, threads=384):
            S = T.alloc_shared((3, 32, 64), T.float16)
            for number in list(range(3)):
                with T.ws(number):
                    for k in range(rounds):
                        T.copy(A[number, k, 0, 0], S[number, :, :])
                        for i, j in T.Parallel(32, 64):
                            S[number, i, j] = S[number, i, j] + number
                        T.copy(S[number, :, :], B[number, k, 0, 0])

    a = integers(generator, (3, rounds, 32, 64), torch.float16)
    changed = a + torch.arange(3, dtype=torch.float16)[:, None, None, None]
    return Call(kernel, (a, torch.zeros_like(a)), changes={1: changed})


@cases(CASES, card=True)
def stored_by_another_role(generator):
    """One role writes a tile, another one stores it by TMA; the first loads what it needs into registers."""

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((5, 32, 64), T.float32)
        B: T.Tensor((5, 32, 64), T.float32)
        with T.Kernel(1, threads=256):
            S = T.alloc_shared((32, 64), T.float32)
            full, empty = T.alloc_barrier(128), T.alloc_barrier(128)
            with T.ws(0):
                F = T.alloc_fragment((32, 64), T.float32)
                for k in range(5):
                    T.copy(A[k, 0, 0], F)
                    T.barrier_wait(empty, (k & 1) ^ 1)
                    for i, j in T.Parallel(32, 64):
                        S[i, j] = F[i, j] - k
                    T.barrier_arrive(full)
            with T.ws(1):
                for k in range(5):
                    T.barrier_wait(full, k & 1)
                    T.copy(S, B[k, 0, 0])
                    T.barrier_arrive(empty)

    a = integers(generator, (5, 32, 64))
    return Call(kernel, (a, torch.zeros_like(a)), changes={1: a - torch.arange(5.0)[:, None, None]})


@cases(CASES, card=True)
def stored_between_named_barriers(generator):
    """The same with named barriers: the storing role's tile has been read when it arrives."""

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((5, 32, 64), T.float32)
        B: T.Tensor((5, 32, 64), T.float32)
        with T.Kernel(1, threads=256):
            S = T.alloc_shared((32, 64), T.float32)
            with T.ws(0):
                for k in range(5):
                    for i, j in T.Parallel(32, 64):
                        S[i, j] = A[k, i, j] - k
                    T.named_barrier_arrive(3, 256)
                    T.sync_threads(4, 256)
            with T.ws(1):
                for k in range(5):
                    T.sync_threads(3, 256)
                    T.copy(S, B[k, 0, 0])
                    T.named_barrier_arrive(4, 256)

    a = integers(generator, (5, 32, 64))
    return Call(kernel, (a, torch.zeros_like(a)), changes={1: a - torch.arange(5.0)[:, None, None]})


@cases(CASES, card=True)
def handed_over_in_global_memory(generator):
    """One role stores a tile to global memory by TMA, the other one reads it from there; one thread arrives for all."""

    @ptxtile.jit
    def kernel(A, B, C):
        A: T.Tensor((5, 32, 64), T.float32)
        B: T.Tensor((5, 32, 64), T.float32)
        C: T.Tensor((5, 32, 64), T.float32)
        with T.Kernel(1, threads=256):
            full = T.alloc_barrier([1] * 5)
            with T.ws(0):
                S = T.alloc_shared((32, 64), T.float32)
                for k in range(5):
                    for i, j in T.Parallel(32, 64):
                        S[i, j] = A[k, i, j] - k
                    T.copy(S, B[k, 0, 0])
                    if T.get_thread_binding() == 96:
                        T.barrier_arrive(full[k])
            with T.ws(1):
                for k in range(5):
                    T.barrier_wait(full[k], 0)
                    for i, j in T.Parallel(32, 64):
                        C[k, i, j] = B[k, 31 - i, j]

    a = integers(generator, (5, 32, 64))
    stored = a - torch.arange(5.0)[:, None, None]
    return Call(kernel, (a, torch.zeros_like(a), torch.zeros_like(a)), changes={1: stored, 2: stored.flip(1)})


@ptxtile.jit
def multiply(A, B, C, stages=2):
    """A gemm by hand whose loading role uses T.copy, in a persistent loop."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((K, N), T.bfloat16)
    C: T.Tensor((M, N), T.float32)
    rounds = T.ceildiv(K, 64)
    with T.Kernel(2, threads=256) as block:
        left, right = T.alloc_shared((stages, 128, 64), T.bfloat16), T.alloc_shared((stages, 64, 64), T.bfloat16)
        full, empty = T.alloc_barrier([128] * stages), T.alloc_barrier([128] * stages)
        with T.ws(1):
            for tile in range(M // 128):
                for k in range(rounds):
                    use = tile * rounds + k
                    T.barrier_wait(empty[use % stages], ((use // stages) & 1) ^ 1)
                    T.copy(A[tile * 128, k * 64], left[use % stages, :, :])
                    T.copy(B[k * 64, block * 64], right[use % stages, :, :])
                    T.barrier_arrive(full[use % stages])
        with T.ws(0):
            total = T.alloc_fragment((128, 64), T.float32)
            for tile in range(M // 128):
                T.clear(total)
                for k in range(rounds):
                    use = tile * rounds + k
                    T.barrier_wait(full[use % stages], (use // stages) & 1)
                    T.gemm(left[use % stages, :, :], right[use % stages, :, :], total)
                    T.barrier_arrive(empty[use % stages])
                T.copy(total, C[tile * 128, block * 64])


@cases(CASES, card=True, stages=[2, 3])
def gemm_with_copies_in_a_role(generator, stages):
    a, b = integers(generator, (256, 320), torch.bfloat16), integers(generator, (320, 128), torch.bfloat16)
    c = torch.zeros(256, 128)
    return Call(lambda *args: multiply(*args, stages=stages), (a, b, c), changes={2: a.float() @ b.float()})

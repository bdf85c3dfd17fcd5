"""Threads that meet: masks of warps, matches, barriers that count, and the barrier of the grid."""

from __future__ import annotations

import numpy as np
import torch

import ptxtile
import ptxtile.language as T
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []


def integers(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype = torch.int32, low: int = -3
) -> torch.Tensor:
    return torch.from_numpy(generator.integers(low, 4, shape)).to(dtype)


def lanes(chosen: torch.Tensor) -> torch.Tensor:
    """[…, 32] of bools as the bits of an int64."""
    return (chosen.long() << torch.arange(32)).sum(-1)


# --- warps ----------------------------------------------------------------------------------------------------------


@cases(CASES, card=True, dtype=[torch.int8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64])
def matches(generator, dtype):
    """Of every width; floats by their bits, so that a NaN matches itself and −0 does not match 0."""

    @ptxtile.jit
    def kernel(A, B, dtype=dtype):
        A: T.Tensor((64,), dtype)
        B: T.Tensor((3, 64), T.int64)
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            B[0, tx] = T.match_any_sync(A[tx])
            B[1, tx] = T.match_all_sync(A[tx])
            B[2, tx] = T.match_all_sync(A[tx // 32])

    a = integers(generator, (64,), dtype)
    if dtype.is_floating_point:
        a[5::9], a[3::7] = float("nan"), -0.0
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    bits = a.view(integer).reshape(2, 32)
    equal = bits[:, :, None] == bits[:, None, :]
    every = lanes(torch.ones(32, dtype=torch.bool))
    everywhere = torch.where(equal.flatten(1).all(1), every, 0).repeat_interleave(32)
    expected = torch.stack([lanes(equal).flatten(), everywhere, every.expand(64)])
    return Call(kernel, (a, torch.zeros(3, 64, dtype=torch.int64)), changes={1: expected})


@cases(CASES, card=True)
def parts_of_a_warp(generator):
    """Under a condition, with the lanes that it holds for as the mask: known beforehand, or found by a ballot."""

    @ptxtile.jit
    def kernel(A, B, C):
        A: T.Tensor((64,), T.int32)
        B: T.Tensor((3, 64), T.int32)
        C: T.Tensor((4, 64), T.int64)
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            a = A[tx]
            if T.get_lane_idx() < 8:
                B[0, tx] = T.shfl_sync(a, 3, mask=0xFF)
                B[1, tx] = T.shfl_xor(a, 1, mask=0xFF)
                T.sync_warp(0xFF)
            positive = T.ballot_sync(a > 0)
            if a > 0:
                C[0, tx] = T.ballot_sync(a == 2, positive)
                C[1, tx] = T.match_any_sync(a, positive)
                C[2, tx] = T.any_sync(a == 3, mask=positive)
                C[3, tx] = T.all_sync(a < 3, mask=positive)
            B[2, tx] = T.shfl_down(a, 1, width=4, mask=15 << (T.get_lane_idx() // 4 * 4))

    a = integers(generator, (64,))
    a[[1, 40]] = 2  # some lane of each warp is positive
    t, b, c = torch.arange(64), torch.zeros(3, 64, dtype=torch.int32), torch.zeros(4, 64, dtype=torch.int64)
    few = t % 32 < 8
    b[0, few], b[1, few] = a[t // 32 * 32 + 3][few], a[t ^ 1][few]
    b[2] = a[torch.where(t % 4 < 3, t + 1, t)]
    warp = a.reshape(2, 1, 32).expand(2, 32, 32)
    own, positive = a.reshape(2, 32, 1), (a > 0).reshape(2, 1, 32)
    some, every = ((warp == 3) & positive).any(-1), ((warp < 3) | ~positive).all(-1)
    found = [lanes((warp == 2) & positive), lanes((warp == own) & positive), some.long(), every.long()]
    c[:, a > 0] = torch.stack([rows.flatten() for rows in found])[:, a > 0]
    return Call(kernel, (a, b * 0, c * 0), changes={1: b, 2: c})


@cases(CASES, card=True)
def active_lanes(generator):
    """All lanes where nothing divides them; in a branch each finds itself among lanes that take it too."""

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((64,), T.int32)
        B: T.Tensor((2, 64), T.int64)
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            B[0, tx] = T.activemask()
            taken = T.ballot_sync(A[tx] > 0)
            if A[tx] > 0:
                here = T.activemask()
                B[1, tx] = ((here >> (tx % 32)) & 1) + 2 * T.if_then_else((here & ~taken) == 0, 1, 0)

    a = integers(generator, (64,))
    expected = torch.stack([torch.full((64,), 0xFFFFFFFF), torch.where(a > 0, 3, 0)])
    return Call(kernel, (a, torch.zeros(2, 64, dtype=torch.int64)), changes={1: expected})


# --- blocks ---------------------------------------------------------------------------------------------------------


@cases(CASES, card=True, threads=[32, 96, 256])
def counting_barriers(generator, threads):
    """They count, and order memory as any barrier; what they tell is the same for all threads, so tiles may depend on
    it."""

    @ptxtile.jit
    def kernel(A, B, C):
        A: T.Tensor((threads,), T.int32)
        B: T.Tensor((4, threads), T.int32)
        C: T.Tensor((16, 16), T.float32)
        with T.Kernel(1, threads=threads):
            S = T.alloc_shared((threads,), T.int32)
            tx = T.get_thread_binding()
            S[tx] = A[tx]
            positive = T.syncthreads_count(S[tx] > 0)
            B[0, tx] = positive
            B[1, tx] = S[threads - 1 - tx]
            B[2, tx] = T.syncthreads_and(A[tx] < 4) + 2 * T.syncthreads_and(A[tx] - 3)
            B[3, tx] = T.syncthreads_or(A[tx] == 3) + 2 * T.syncthreads_or(0)
            if positive > 1:
                T.fill(C, 1.0)

    a = integers(generator, (threads,))
    ones = torch.ones(threads, dtype=torch.int32)
    b = torch.stack([ones * (a > 0).sum(), a.flip(0), ones + 2 * (a != 3).all(), ones * (a == 3).any()]).int()
    c = torch.full((16, 16), float((a > 0).sum() > 1))
    return Call(kernel, (a, torch.zeros(4, threads, dtype=torch.int32), torch.zeros(16, 16)), changes={1: b, 2: c})


@cases(CASES, card=True)
def counting_in_roles(generator):
    """In T.ws the threads of the role meet, and no others."""

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((384,), T.int32)
        B: T.Tensor((384,), T.int32)
        with T.Kernel(1, threads=384):
            tx = T.get_thread_binding()
            with T.ws(0):
                B[tx] = T.syncthreads_count(A[tx] > 0)
            with T.ws(1, 2):
                for _ in range(3):
                    B[tx] += T.syncthreads_count(A[tx] < 0)

    a = integers(generator, (384,))
    counts = torch.cat([(a[:128] > 0).sum().expand(128), 3 * (a[128:] < 0).sum().expand(256)]).int()
    return Call(kernel, (a, torch.zeros(384, dtype=torch.int32)), changes={1: counts})


# --- grids ----------------------------------------------------------------------------------------------------------


@cases(CASES, card=True, path=["elements", "vector", "tma"])
def grid_barriers(generator, path):
    """Blocks read what others wrote in the same launch: by elements, by vectors, by TMA both ways."""
    rounds = 4

    @ptxtile.jit(target="sm_80" if path == "vector" else None)
    def kernel(A, B):
        A: T.Tensor((6, 32, 32), T.float32)
        B: T.Tensor((6, 32, 32), T.float32)
        with T.Kernel(3, 2, threads=64) as (bx, by):
            me = by * 3 + bx
            S = T.alloc_shared((32, 32), T.float32)
            for step in range(rounds):
                if path == "elements":
                    for i, j in T.Parallel(32, 32):
                        B[(me + 1) % 6, j, i] = A[me, i, j] + step
                else:
                    T.copy(A[me, 0, 0], S)
                    for i, j in T.Parallel(32, 32):
                        S[i, j] += step
                    T.copy(S, B[(me + 1) % 6, 0, 0])
                T.sync_grid()
                if path == "elements":
                    for i, j in T.Parallel(32, 32):
                        A[me, i, j] = B[me, i, j] * 2
                else:
                    T.copy(B[me, 0, 0], S)
                    for i, j in T.Parallel(32, 32):
                        A[me, j, i] = S[i, j] * 2
                T.sync_grid()

    a = integers(generator, (6, 32, 32), torch.float32)
    expected_a = a.clone()
    expected_b = torch.zeros_like(a)
    for step in range(rounds):
        moved = expected_a + step
        expected_b = torch.roll(moved.transpose(1, 2) if path == "elements" else moved, 1, 0)
        expected_a = (expected_b if path == "elements" else expected_b.transpose(1, 2)) * 2
    return Call(kernel, (a, torch.zeros_like(a)), changes={0: expected_a, 1: expected_b})


@cases(CASES, card=True)
def two_passes_over_a_sum(generator):
    """Partial sums of all blocks, a barrier of the grid, then every block uses the total."""

    @ptxtile.jit
    def kernel(A, partial, B):
        M = T.const("M")
        A: T.Tensor((M,), T.float32)
        partial: T.Tensor((1,), T.float32)
        B: T.Tensor((M,), T.float32)
        with T.Kernel(T.ceildiv(M, 64), threads=64) as bx:
            for i in T.Parallel(64):
                if bx * 64 + i < M:
                    T.atomic_add(partial[0], A[bx * 64 + i])
            T.sync_grid()
            total = partial[0]
            for i in T.Parallel(64):
                if bx * 64 + i < M:
                    B[bx * 64 + i] = A[bx * 64 + i] * total

    a = integers(generator, (500,), torch.float32)
    total = a.sum().reshape(1)
    return Call(kernel, (a, torch.zeros(1), torch.zeros(500)), changes={1: total, 2: a * total})

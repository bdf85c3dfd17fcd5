"""T.Pipelined with order and stage: whatever the schedule, the result is that of the sequential loop."""

from __future__ import annotations

import numpy as np
import torch

import ptxtile
import ptxtile.language as T
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []
TARGETS = {"tma": "sm_90a", "cp.async": "sm_80"}


def integers(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    return torch.from_numpy(generator.integers(-8, 9, shape)).to(dtype)


def adding(target: str):
    @ptxtile.jit(target=target)
    def add(A, B, C, order=(0, 1, 2), stage=(0, 0, 1), rounds=1):
        M = T.dynamic("M")
        A: T.Tensor((M, 64), T.float32)
        B: T.Tensor((M, 64), T.float32)
        C: T.Tensor((M, 64), T.float32)
        with T.Kernel(2, threads=128) as block:
            S, R = T.alloc_shared((16, 32), T.float32), T.alloc_shared((16, 32), T.float32)
            for _ in range(rounds):
                for k in T.Pipelined(T.ceildiv(M, 16), order=list(order), stage=list(stage)):
                    row = k * 16
                    T.copy(A[row, block * 32], S)
                    T.copy(B[row, block * 32], R)
                    for i, j in T.Parallel(16, 32):
                        if row + i < M:
                            C[row + i, block * 32 + j] += S[i, j] * 2 + R[i, j]

    return add


ADD = {name: adding(target) for name, target in TARGETS.items()}
SCHEDULES = [((0, 1, 2), (0, 0, 1)), ((1, 2, 0), (0, 0, 1)), ((0, 1, 2), (0, 1, 2)), ((2, 0, 1), (0, 1, 2)),
             ((0, 2, 1), (0, 2, 3)), ((1, 0, 2), (0, 0, 0)), ((2, 1, 0), (1, 0, 3))]  # fmt: skip


@cases(CASES, card=True, schedule=SCHEDULES, engine=list(TARGETS), rows=[{"m": m, "rounds": r} for m, r in
       ((1, 1), (16, 1), (30, 1), (90, 1), (70, 3))])  # fmt: skip
def ordered_sums(generator, m, rounds, schedule, engine):
    """Trip counts known at launch, below and above the depth of the pipeline, and in a loop around it."""
    order, stage = schedule
    a, b, c = (integers(generator, (m, 64)) for _ in range(3))
    expected = c + rounds * (a * 2 + b)
    return Call(lambda *args: ADD[engine](*args, order=order, stage=stage, rounds=rounds), (a, b, c),
                changes={2: expected})  # fmt: skip


def multiplying(target: str):
    @ptxtile.jit(target=target)
    def multiply(A, B, C, order=(0, 1, 2, 3), stage=(0, 0, 1, 2)):
        M, N, K = T.const("M, N, K")
        A: T.Tensor((M, K), T.float16)
        B: T.Tensor((K, N), T.float16)
        C: T.Tensor((M, N), T.float32)
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            left, right = T.alloc_shared((64, 32), T.float16), T.alloc_shared((32, 64), T.float16)
            part, total = T.alloc_fragment((64, 64), T.float32), T.alloc_fragment((64, 64), T.float32)
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, 32), order=list(order), stage=list(stage)):
                T.copy(A[by * 64, k * 32], left)
                T.copy(B[k * 32, bx * 64], right)
                T.gemm(left, right, part, clear_accum=True)
                for i, j in T.Parallel(64, 64):
                    total[i, j] += part[i, j]
            T.copy(total, C[by * 64, bx * 64])

    return multiply


MULTIPLY = {name: multiplying(target) for name, target in TARGETS.items()}


@cases(CASES, card=True, engine=list(TARGETS), schedule=[
    ((0, 1, 2, 3), (0, 0, 1, 1)), ((2, 3, 1, 0), (0, 0, 1, 2)), ((0, 1, 3, 2), (0, 1, 2, 3)),
    ((3, 2, 1, 0), (0, 0, 2, 3)),
])  # fmt: skip
def ordered_gemms(generator, engine, schedule):
    """Two-level accumulation: what a gemm left is added up a step later, before the next gemm overwrites it."""
    order, stage = schedule
    a, b = integers(generator, (96, 200), torch.float16), integers(generator, (200, 64), torch.float16)
    return Call(lambda *args: MULTIPLY[engine](*args, order=order, stage=stage), (a, b, torch.zeros(96, 64)),
                changes={2: a.float() @ b.float()})  # fmt: skip


@cases(CASES, card=True, engine=list(TARGETS))
def ordered_scalars(generator, engine):
    """Scalars of the iteration go with the statements that use them; one that the loop writes is a statement."""

    @ptxtile.jit(target=TARGETS[engine])
    def kernel(A, rows, C, seen):
        A: T.Tensor((64, 32), T.float32)
        rows: T.Tensor((8,), T.int32)
        C: T.Tensor((8, 32), T.float32)
        seen: T.Tensor((8,), T.int32)
        with T.Kernel(1, threads=32):
            S = T.alloc_shared((1, 32), T.float32)
            for k in T.Pipelined(8, order=[2, 0, 1], stage=[0, 1, 1]):
                row = rows[k]
                twice = row * 2
                T.copy(A[row, 0], S)
                for i in T.Parallel(32):
                    C[k, i] = S[0, i] + twice
                seen[k] = row

    a = integers(generator, (64, 32))
    rows = torch.from_numpy(generator.integers(0, 64, 8)).int()
    c = a[rows.long()] + 2 * rows[:, None]
    return Call(kernel, (a, rows, torch.zeros(8, 32), torch.zeros(8, dtype=torch.int32)), changes={2: c, 3: rows})


@cases(CASES, card=True, engine=list(TARGETS))
def ordered_registers(generator, engine):
    """A tile is fetched into registers a step ahead, after the step's work has used what was in them."""

    @ptxtile.jit(target=TARGETS[engine])
    def kernel(A, C):
        A: T.Tensor((10, 256), T.float32)
        C: T.Tensor((10, 256), T.float32)
        with T.Kernel(1, threads=64):
            F = T.alloc_fragment((256,), T.float32)
            for k in T.Pipelined(10, order=[1, 0], stage=[0, 1]):
                T.copy(A[k, 0], F)
                for i in T.Parallel(256):
                    C[k, i] = F[i] * F[i]

    a = integers(generator, (10, 256))
    return Call(kernel, (a, torch.zeros(10, 256)), changes={1: a * a})


@cases(CASES, card=True)
def ordered_in_a_role(generator):
    """A role by hand loads and computes in a pipeline of its own."""

    @ptxtile.jit(target="sm_90a")
    def kernel(A, C):
        A: T.Tensor((2, 12, 32, 32), T.float32)
        C: T.Tensor((2, 12, 32, 32), T.float32)
        with T.Kernel(1, threads=256):
            for role in list(range(2)):
                with T.ws(role):
                    S = T.alloc_shared((32, 32), T.float32)
                    for k in T.Pipelined(12, order=[0, 1], stage=[1, 3]):
                        T.copy(A[role, k, 0, 0], S)
                        for i, j in T.Parallel(32, 32):
                            C[role, k, i, j] = S[j, i] + k

    a = integers(generator, (2, 12, 32, 32))
    expected = a.transpose(2, 3) + torch.arange(12.0)[:, None, None]
    return Call(kernel, (a, torch.zeros_like(a)), changes={1: expected})

"""Elementwise kernels: shapes that tiles do not divide, tiles, threads, dtypes, targets, both forms of a kernel."""

from __future__ import annotations

import numpy as np
import torch

import ptxtile
import ptxtile.language as T
from tests.kernels import inputs
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []


@ptxtile.jit
def add(A, B, block_M=64, block_N=64, threads=128, dtype=T.float32):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), dtype)
    B: T.Tensor((M, N), dtype)
    C = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_N), dtype)
        B_shared = T.alloc_shared((block_M, block_N), dtype)
        C_local = T.alloc_fragment((block_M, block_N), dtype)
        T.copy(A[by * block_M, bx * block_N], A_shared)
        T.copy(B[by * block_M, bx * block_N], B_shared)
        for i, j in T.Parallel(block_M, block_N):
            C_local[i, j] = A_shared[i, j] + B_shared[i, j]
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def add_factory(M, N, block_M=64, block_N=64, threads=128, dtype="float32"):
    """The same through a shared tile on the way out, as a prim_func."""

    @T.prim_func
    def main(A: T.Tensor((M, N), dtype), B: T.Tensor((M, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_N), dtype)
            B_shared = T.alloc_shared((block_M, block_N), dtype)
            C_local = T.alloc_fragment((block_M, block_N), dtype)
            C_shared = T.alloc_shared((block_M, block_N), dtype)
            T.copy(A[by * block_M, bx * block_N], A_shared)
            T.copy(B[by * block_M, bx * block_N], B_shared)
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] = A_shared[i, j] + B_shared[i, j]
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])

    return main


@ptxtile.jit
def add_direct(A, B, block_M=32, block_N=32, threads=128):
    """Without shared memory: global memory is read and written in T.Parallel."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B: T.Tensor((M, N), T.float32)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        for i, j in T.Parallel(block_M, block_N):
            y, x = by * block_M + i, bx * block_N + j
            if y < M and x < N:
                C[y, x] = A[y, x] + B[y, x]
    return C


@ptxtile.jit
def add_unguarded(A, B, block_M=32, block_N=32, threads=64):
    """The same without a guard: reads outside give 0, writes outside are dropped."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B: T.Tensor((M, N), T.float32)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        for i, j in T.Parallel(block_M, block_N):
            C[by * block_M + i, bx * block_N + j] = (
                A[by * block_M + i, bx * block_N + j] + B[by * block_M + i, bx * block_N + j]
            )
    return C


def pair(generator, shape, dtype=torch.float32):
    return inputs.moderate(generator, shape, dtype), inputs.moderate(generator, shape, dtype)


def total(a, b):
    """a + b, also for the dtypes that torch does not add on the CPU."""
    if a.dtype in inputs.UNSIGNED:
        return torch.from_numpy(a.numpy() + b.numpy())
    return a + b


SHAPES = [(1000, 1023), (1, 1), (0, 7), (7, 0), (0, 0), (1, 300), (300, 1), (64, 64), (65, 127), (128, 4), (63, 1025)]


@cases(CASES, card=True, shape=SHAPES)
def shapes(generator, shape):
    a, b = pair(generator, shape)
    return Call(add, (a, b), a + b)


@cases(CASES, card=lambda shape, form: shape in ((1000, 1023), (1, 1), (0, 7)),
       shape=[*SHAPES[:5], (65, 127), (96, 160)], form=["factory", "direct", "unguarded"])  # fmt: skip
def forms(generator, shape, form):
    a, b = pair(generator, shape)
    if form == "factory":
        return Call(ptxtile.jit(out_idx=[-1])(add_factory)(*shape), (a, b), a + b)
    return Call(add_direct if form == "direct" else add_unguarded, (a, b), a + b)


BLOCKS = [
    *((b, b) for b in (32, 48, 80, 96)), (64, 128), (128, 64), (32, 192), (192, 32), (32, 256), (256, 32), (1, 256),
    (256, 1), (64, 80), (80, 64), (100, 36), (33, 65),
]  # fmt: skip


@cases(CASES, card=lambda block: 80 in block or 192 in block or 33 in block, block=BLOCKS)
def blocks(generator, block):
    a, b = pair(generator, (150, 260))
    return Call(lambda *args: add(*args, *block), (a, b), a + b)


THREADS = [32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 640, 768, 1000, 1024]


@cases(CASES, card=lambda threads: threads in (32, 96, 192, 1000, 1024), threads=THREADS)
def threads(generator, threads):
    a, b = pair(generator, (70, 130))
    return Call(lambda *args: add(*args, 64, 64, threads), (a, b), a + b)


@cases(CASES, rows=[{"block": b, "threads": t} for b, t in
       [((32, 80), 96), ((96, 96), 192), ((48, 80), 1024), ((192, 64), 96), ((17, 19), 32), ((80, 192), 320),
        ((3, 5), 128),
        ((1, 1), 32), ((5, 256), 256), ((96, 48), 33), ((32, 32), 1), ((64, 32), 7)]],
       card=lambda block, threads: threads in (96, 33, 7))  # fmt: skip
def blocks_and_threads(generator, block, threads):
    a, b = pair(generator, (131, 197))
    kernel = ptxtile.jit(out_idx=[-1])(add_factory)(131, 197, *block, threads)
    return Call(kernel, (a, b), a + b)


@cases(CASES, card=True, dtype=inputs.ARITHMETIC)
def dtypes(generator, dtype):
    a, b = pair(generator, (67, 129), dtype)
    return Call(lambda *args: add(*args, 32, 64, 128, inputs.name(dtype)), (a, b), total(a, b))


@cases(CASES, card=lambda dtype: dtype in (torch.float16, torch.int8), dtype=inputs.ARITHMETIC)
def dtypes_by_tma(generator, dtype):
    """Rows of whole 16 bytes, stored through shared memory."""
    a, b = pair(generator, (70, 96), dtype)
    kernel = ptxtile.jit(out_idx=[-1])(add_factory)(70, 96, 32, 64, 128, inputs.name(dtype))
    return Call(kernel, (a, b), total(a, b))


def _integer_wrap(generator, dtype):
    a, b = inputs.random_bits(generator, (40, 50), dtype), inputs.random_bits(generator, (40, 50), dtype)
    with np.errstate(over="ignore"):
        return a, b, torch.from_numpy(a.numpy() + b.numpy())


@cases(CASES, dtype=inputs.INTEGERS)
def integers_wrap(generator, dtype):
    a, b, expected = _integer_wrap(generator, dtype)
    return Call(lambda *args: add(*args, 32, 32, 64, dtype), (a, b), expected)


TARGETS = ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_100a", "sm_120a"]
OPTIONS = [
    {}, {"specialize_warps": True}, {"specialize_warps": "auto"}, {"specialize_warps": False}, {"disable_tma": True},
    {"specialize_warps": True, "disable_tma": True}, {"fast_math": True}, {"contract": False},
]  # fmt: skip


def option_text(options):
    return ",".join(f"{key}={value}" for key, value in options.items()) or "defaults"


TARGET_CASES: list[Case] = []
"""Each for a target of its own, so they run in the simulator alone."""


@cases(TARGET_CASES, target=TARGETS, number=range(len(OPTIONS)), shape=[(64, 128), (130, 70)])
def targets(generator, target, number, shape):
    a, b = pair(generator, shape)
    kernel = ptxtile.jit(out_idx=[-1], target=target, **OPTIONS[number])(add_factory)(*shape, 32, 64, 128)
    return Call(kernel, (a, b), a + b)


@cases(CASES, card=lambda number, shape: shape != (65, 63), number=range(len(OPTIONS)),
       shape=[(256, 128), (130, 70), (65, 63)])  # fmt: skip
def options(generator, number, shape):
    a, b = pair(generator, shape)
    kernel = ptxtile.jit(out_idx=[-1], **OPTIONS[number])(add_factory)(*shape, 64, 64, 128)
    return Call(kernel, (a, b), a + b)


@cases(CASES, card=lambda threads, block: threads == 256, threads=[64, 128, 256, 384, 896, 1024],
       block=[(64, 64), (96, 80)])  # fmt: skip
def specialized(generator, threads, block):
    a, b = pair(generator, (200, 176))
    kernel = ptxtile.jit(out_idx=[-1], specialize_warps=True)(add_factory)(200, 176, *block, threads)
    return Call(kernel, (a, b), a + b)

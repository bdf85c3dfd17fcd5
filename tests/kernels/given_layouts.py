"""Layouts that users give to shared tiles and fragments: the results are those of any other layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import ptxtile
import ptxtile.language as T
from ptxtile import layout
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []

SWIZZLES: dict[str, Callable[[Any], Any]] = {
    "swizzled": layout.make_swizzled_layout, "full": layout.make_full_bank_swizzled_layout,
    "half": layout.make_half_bank_swizzled_layout, "quarter": layout.make_quarter_bank_swizzled_layout,
    "linear": layout.make_linear_layout, "mma": T.make_mma_swizzle_layout,
}  # fmt: skip
FORMULAS: dict[str, Callable[[int, int], Callable[..., Any]]] = {
    "transposed": lambda rows, columns: lambda i, j: (j, i),
    "padded": lambda rows, columns: lambda i, j: i * (columns + 8) + j,
    "blocked": lambda rows, columns: lambda i, j: (i // 8, j // 8, i % 8, j % 8),
    "rotated": lambda rows, columns: lambda i, j: i * columns + (i + j) % columns,
    "rotated by 8": lambda rows, columns: lambda i, j: (i, (j + 8 * i) % columns),
    "backwards": lambda rows, columns: lambda i, j: rows * columns - 1 - i * columns - j,
    "exchanged": lambda rows, columns: lambda i, j: i * columns + (j ^ (i % 4)),
    "chosen": lambda rows, columns: lambda i, j: T.if_then_else(i < 4, i * columns + j, (i ^ 3) * columns + j),
}


def given(name: str, tile: Any) -> Any:
    if name in SWIZZLES:
        return SWIZZLES[name](tile)
    rows, columns = tile.shape[-2:]
    arranged = T.Layout((rows, columns), FORMULAS[name](rows, columns))
    return arranged if tile.ndim == 2 else arranged.expand(tile.shape[:-2])


def integers(generator: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(generator.integers(-8, 9, shape)).to(dtype)


@ptxtile.jit
def through_a_tile(A, B, name="linear", rows=32, columns=64, dtype=T.float16):
    """A + 1, by copies both ways and elements in between."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), dtype)
    B: T.Tensor((M, N), dtype)
    with T.Kernel(T.ceildiv(N, columns), T.ceildiv(M, rows), threads=64) as (bx, by):
        S = T.alloc_shared((rows, columns), dtype)
        T.annotate_layout({S: given(name, S)})
        T.copy(A[by * rows, bx * columns], S)
        for i, j in T.Parallel(rows, columns):
            S[i, j] = S[i, j] + 1
        T.copy(S, B[by * rows, bx * columns])


@cases(CASES, card=lambda name, dtype: dtype == torch.float16, name=[*SWIZZLES, *FORMULAS],
       dtype=[torch.int8, torch.float16, torch.float32, torch.float64])  # fmt: skip
def copies_through_layouts(generator, name, dtype):
    """With a tail of rows and of columns."""
    rows = 32
    a = integers(generator, (75, 176 if dtype != torch.int8 else 208), dtype)
    columns = 128 if dtype == torch.int8 else 64
    return Call(
        lambda *args: through_a_tile(*args, name=name, rows=rows, columns=columns, dtype=dtype),
        (a, torch.zeros_like(a)), changes={1: a + 1},
    )  # fmt: skip


def multiply_on(target: str | None, roles: Any):
    @ptxtile.jit(target=target, specialize_warps=roles)
    def multiply(A, B, C, name_a="swizzled", name_b="swizzled", stages=2, transposed=False):
        M, N, K = T.const("M, N, K")
        A: T.Tensor((M, K), T.float16)
        B: T.Tensor((N, K) if transposed else (K, N), T.float16)
        C: T.Tensor((M, N), T.float32)
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
            left = T.alloc_shared((64, 64), T.float16)
            right = T.alloc_shared((64, 64), T.float16)
            total = T.alloc_fragment((64, 64), T.float32)
            T.annotate_layout({left: given(name_a, left), right: given(name_b, right)})
            T.clear(total)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=stages):
                T.copy(A[by * 64, k * 64], left)
                if transposed:
                    T.copy(B[bx * 64, k * 64], right)
                else:
                    T.copy(B[k * 64, bx * 64], right)
                T.gemm(left, right, total, transpose_B=transposed)
            T.copy(total, C[by * 64, bx * 64])

    return multiply


MULTIPLY = {
    "sm_90a": multiply_on("sm_90a", "auto"), "without roles": multiply_on("sm_90a", False),
    "sm_80": multiply_on("sm_80", "auto"),
}  # fmt: skip
PAIRS = [("swizzled", "swizzled"), ("half", "quarter"), ("linear", "full"), ("padded", "blocked"),
         ("rotated by 8", "padded"), ("rotated", "transposed")]  # fmt: skip


@cases(CASES, card=True, target=list(MULTIPLY), pair=PAIRS, transposed=[False, True])
def gemms_with_layouts(generator, target, pair, transposed):
    """Operands in layouts that wgmma takes, that only ldmatrix takes, and that neither does."""
    a, b = integers(generator, (96, 200), torch.float16), integers(generator, (200, 128), torch.float16)
    given_b = b.T.contiguous() if transposed else b
    return Call(
        lambda *args: MULTIPLY[target](*args, name_a=pair[0], name_b=pair[1], transposed=transposed),
        (a, given_b, torch.zeros(96, 128)), changes={2: a.float() @ b.float()},
    )  # fmt: skip


@cases(CASES, card=True, name=["swizzled", "rotated"])
def stages_by_hand(generator, name):
    """A tile with a dimension of stages, each laid out alike, in a ring by hand."""

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((4, 64, 64), T.float16)
        B: T.Tensor((4, 64, 64), T.float16)
        with T.Kernel(1, threads=256):
            S = T.alloc_shared((2, 64, 64), T.float16)
            T.annotate_layout({S: given(name, S)})
            full, empty = T.alloc_barrier([128] * 2), T.alloc_barrier([128] * 2)
            with T.ws(1):
                for k in range(4):
                    T.barrier_wait(empty[k % 2], ((k // 2) & 1) ^ 1)
                    T.copy(A[k, 0, 0], S[k % 2, :, :])
                    T.barrier_arrive(full[k % 2])
            with T.ws(0):
                for k in range(4):
                    T.barrier_wait(full[k % 2], (k // 2) & 1)
                    for i, j in T.Parallel(64, 64):
                        B[k, i, j] = S[k % 2, j, i] * 2
                    T.barrier_arrive(empty[k % 2])

    a = integers(generator, (4, 64, 64), torch.float16)
    return Call(kernel, (a, torch.zeros_like(a)), changes={1: a.transpose(1, 2) * 2})


FRAGMENTS: dict[str, Callable[[], Any]] = {
    "rows": lambda: T.Fragment((32, 64), forward_fn=lambda i, j: (i * 2 + j // 32, j % 32)),
    "columns": lambda: T.Fragment((32, 64), forward_fn=lambda i, j: (j, i)),
    "quads": lambda: T.Fragment((32, 64), forward_thread_fn=lambda i, j: i % 8 * 8 + j % 8,
                                forward_index_fn=lambda i, j: (i // 8, j // 8)),
    "twice": lambda: T.Fragment((32, 64), forward_fn=lambda i, j, copy: (i + 32 * copy, j), replicate=2),
}  # fmt: skip


@cases(CASES, card=True, name=list(FRAGMENTS), name_of_loop=[None, "rows", "columns"])
def given_fragments(generator, name, name_of_loop):
    """A fragment whose distribution is given, used with others that are free, in loops that may be given one too."""

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((32, 64), T.float32)
        B: T.Tensor((32, 64), T.float32)
        with T.Kernel(1, threads=64):
            F = T.alloc_fragment((32, 64), T.float32)
            G = T.alloc_fragment((32, 64), T.float32)
            T.annotate_layout({F: FRAGMENTS[name]()})
            T.copy(A, F)
            for i, j in T.Parallel(32, 64, loop_layout=FRAGMENTS[name_of_loop]() if name_of_loop else None):
                G[i, j] = F[i, j] * 2 + j
            for i, j in T.Parallel(32, 64):
                F[i, j] = G[i, j] - i
            T.copy(F, B)

    a = integers(generator, (32, 64), torch.float32)
    expected = a * 2 + torch.arange(64.0) - torch.arange(32.0)[:, None]
    return Call(kernel, (a, torch.zeros_like(a)), changes={1: expected})


@cases(CASES, card=True)
def replicated_table(generator):
    """A small table that every thread holds."""

    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((8,), T.float32)
        B: T.Tensor((64, 8), T.float32)
        with T.Kernel(1, threads=64):
            F = T.alloc_fragment((8,), T.float32)
            T.annotate_layout({F: layout.make_fully_replicated_layout_fragment(F, 64)})
            T.copy(A, F)
            for i, j in T.Parallel(64, 8):
                B[i, j] = F[j] * i

    a = integers(generator, (8,), torch.float32)
    return Call(kernel, (a, torch.zeros(64, 8)), changes={1: a * torch.arange(64.0)[:, None]})

"""Sizes and scalars that a call brings: T.dynamic dims, scalar parameters of every dtype."""

from __future__ import annotations

import torch

import ptxtile
import ptxtile.language as T
from tests.kernels import inputs
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []

m, n = T.dynamic("m, n")
k = T.dynamic("k", dtype="int64")


@ptxtile.jit
def add_dynamic(A, B, block=32, threads=64):
    A: T.Tensor((m, n), T.float32)
    B: T.Tensor((m, n), T.float32)
    C = T.empty((m, n), T.float32)
    with T.Kernel(T.ceildiv(n, block), T.ceildiv(m, block), threads=threads) as (bx, by):
        a = T.alloc_shared((block, block), T.float32)
        b = T.alloc_fragment((block, block), T.float32)
        T.copy(A[by * block, bx * block], a)
        T.copy(B[by * block, bx * block], b)
        for i, j in T.Parallel(block, block):
            b[i, j] += a[i, j]
        T.copy(b, C[by * block, bx * block])
    return C


@cases(CASES, card=True, shape=[(64, 96), (65, 63), (1, 1), (0, 5), (5, 0), (100, 16), (33, 100)])
def dynamic(generator, shape):
    """One kernel for all shapes of the same divisibility."""
    a, b = inputs.moderate(generator, shape), inputs.moderate(generator, shape)
    return Call(add_dynamic, (a, b), a + b)


def concatenate(block=64):
    """Sizes that are sums and products of others, an int64 one among them."""

    @T.prim_func
    def main(A: T.Tensor((m, 4), "int32"), B: T.Tensor((k, 4), "int32"), C: T.Tensor((m + k, 4), "int32"),
             D: T.Tensor((m * 4,), "int32")):  # fmt: skip
        with T.Kernel(T.ceildiv(m + k, block), threads=64) as bx:
            for i, j in T.Parallel(block, 4):
                row = bx * block + i
                if row < m:
                    C[row, j] = A[row, j]
                    D[row * 4 + j] = A[row, j] + A.shape[0]
                elif row < m + k:
                    C[row, j] = B[row - m, j]

    return main


@cases(CASES, card=True, rows=[{"sizes": (5, 9)}, {"sizes": (64, 64)}, {"sizes": (1, 130)}, {"sizes": (70, 0)}])
def computed_sizes(generator, sizes):
    a, b = (inputs.moderate(generator, (size, 4), torch.int32) for size in sizes)
    kernel = ptxtile.jit(out_idx=[2, 3])(concatenate)()
    return Call(kernel, (a, b), (torch.cat([a, b]), (a + sizes[0]).reshape(-1)))


def interleaved(block=64):
    """Sizes of which no tensor has one alone: n from 3 n + 1 rows, then m from m + n."""

    @T.prim_func
    def main(A: T.Tensor((n * 3 + 1,), "int32"), B: T.Tensor((m + n, 2), "int32"), C: T.Tensor((m, 3), "int32")):
        with T.Kernel(T.ceildiv(m, block), threads=64) as bx:
            for i, j in T.Parallel(block, 3):
                row = bx * block + i
                if row < m:
                    C[row, j] = A[(row % n) * 3 + j + 1] + B[n + row, 1] + A.shape[0]

    return main


@cases(CASES, card=True, rows=[{"few": 5, "rows": 9}, {"few": 16, "rows": 64}, {"few": 1, "rows": 130}])
def sizes_from_sums(generator, few, rows):
    a = inputs.moderate(generator, (few * 3 + 1,), torch.int32)
    b = inputs.moderate(generator, (rows + few, 2), torch.int32)
    expected = a[1:].reshape(few, 3)[torch.arange(rows) % few] + b[few:, 1:] + (few * 3 + 1)
    kernel = ptxtile.jit(out_idx=[2])(interleaved)()
    return Call(kernel, (a, b), expected)


@cases(CASES, card=lambda view: True, view=["transposed", "part", "strided"])
def dynamic_views(generator, view):
    base = inputs.moderate(generator, (90, 90))
    a = {"transposed": base.t(), "part": base[3:70, 5:81], "strided": base[::2, ::3]}[view]
    b = inputs.moderate(generator, tuple(a.shape))
    return Call(add_dynamic, (a, b), a + b)


def affine(dtype):
    """B = A * factor + offset, both scalars of the tensor's dtype; with ``flip`` the sign is turned."""

    @T.prim_func
    def main(A: T.Tensor((n,), dtype), factor: dtype, offset: dtype, flip: T.bool, B: T.Tensor((n,), dtype)):
        with T.Kernel(T.ceildiv(n, 64), threads=64) as bx:
            for i in T.Parallel(64):
                if bx * 64 + i < n:
                    value = A[bx * 64 + i] * factor + offset
                    if flip:
                        value = value + value
                    B[bx * 64 + i] = value

    return main


@cases(CASES, card=lambda dtype, flip: flip, dtype=inputs.ARITHMETIC, flip=[False, True])
def scalars(generator, dtype, flip):
    """Small whole numbers, exact in every dtype."""
    a = torch.from_numpy(generator.integers(0, 5, 100)).to(dtype)
    values = torch.from_numpy(generator.integers(0, 4, 2))
    factor, offset = values.tolist()
    expected = (a.to(torch.int64) * factor + offset) * (2 if flip else 1)
    kernel = ptxtile.jit(out_idx=-1)(affine)(getattr(T, inputs.name(dtype)))
    return Call(kernel, (a, factor, offset, flip), expected.to(dtype))


@cases(CASES, card=True, rows=[
    {"dtype": "int8", "value": -128}, {"dtype": "uint8", "value": 255}, {"dtype": "int16", "value": -32768},
    {"dtype": "uint16", "value": 65535}, {"dtype": "int32", "value": -(2**31)}, {"dtype": "uint32", "value": 2**32 - 1},
    {"dtype": "int64", "value": -(2**63)}, {"dtype": "uint64", "value": 2**64 - 1}, {"dtype": "float16", "value": 0.1},
    {"dtype": "bfloat16", "value": 0.1}, {"dtype": "float32", "value": 0.1}, {"dtype": "float64", "value": 0.1},
    {"dtype": "float32", "value": float("inf")}, {"dtype": "float16", "value": float("nan")},
    {"dtype": "bool", "value": True},
])  # fmt: skip
def extreme_scalars(generator, dtype, value):
    """A scalar arrives with all its bits."""
    kernel = ptxtile.jit(out_idx=-1)(store_scalar)(getattr(T, dtype))
    return Call(kernel, (value,), torch.tensor([value] * 3, dtype=getattr(torch, dtype)))


def store_scalar(dtype):
    @T.prim_func
    def main(value: dtype, B: T.Tensor((3,), dtype)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(3):
                B[i] = value

    return main


@ptxtile.jit
def scalars_in_the_body(A, alpha, count, plain: int = 3):
    A: T.Tensor((n,), T.float32)
    alpha: T.float32
    count: T.int64
    B = T.empty((n,), T.float32)
    with T.Kernel(T.ceildiv(n, 32), threads=32) as bx:
        for i in T.Parallel(32):
            at = bx * 32 + i
            if at < n:
                B[at] = A[at] * alpha if at < count else A[at] + plain
    return B


@cases(CASES, card=True, count=[0, 40, 2**40], plain=[3, -1])
def mixed_scalars(generator, count, plain):
    a = inputs.moderate(generator, (70,))
    expected = torch.where(torch.arange(70) < count, a * -1.5, a + plain)
    return Call(lambda *args: scalars_in_the_body(*args, plain=plain), (a, -1.5, count), expected)


@ptxtile.jit
def grid_of_a_scalar(A, blocks):
    """The grid is a scalar argument; blocks stride over the tensor."""
    A: T.Tensor((n,), T.int32)
    blocks: T.int32
    B = T.empty((n,), T.int32)
    with T.Kernel(blocks, threads=32) as bx:
        for tile in range(T.ceildiv(n, 32)):
            if tile % blocks == bx:
                for i in T.Parallel(32):
                    if tile * 32 + i < n:
                        B[tile * 32 + i] = A[tile * 32 + i] * 2
    return B


@cases(CASES, card=True, blocks=[1, 3, 7])
def grids(generator, blocks):
    a = inputs.moderate(generator, (150,), torch.int32)
    return Call(grid_of_a_scalar, (a, blocks), a * 2)

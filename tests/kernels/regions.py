"""Copies of each thread's own arrays, tiles of convolutions, forms of launches, regions that reach beyond an end."""

from __future__ import annotations

import torch

import ptxtile
import ptxtile.language as T
from tests.kernels import inputs
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []


# ---------------------------------------------------------------- arrays of each thread's own


@ptxtile.jit
def rows_by_threads(A, n, wide):
    """Each thread has a row: copies and fills of its own arrays are its own, not shared out among the threads."""
    N = T.const("N")
    A: T.Tensor((N, 64, n), T.float32)
    B = T.empty((N, 64, n), T.float32)
    with T.Kernel(N, threads=64) as bx:
        thread = T.get_thread_binding()
        tile = T.alloc_shared((64, n), T.float32)
        row = T.alloc_local((n,), T.float32)
        copied = T.alloc_local((n,), T.float64 if wide else T.float32)
        total = T.alloc_local((1,), T.float32)
        T.copy(A[bx, :, :], tile)
        T.fill(total, 10)
        T.copy(tile[thread, :], row)
        for i in T.serial(n):
            total[0] += row[i]
        T.copy(row, copied)
        T.clear(row)
        row[0] = total[0]
        for i in T.serial(n):
            copied[i] = copied[i] + row[i]
        T.copy(copied, B[bx, thread, 0:n])
    return B


@cases(CASES, card=True, n=[1, 4, 7, 80], wide=[False, True])
def copies_of_each_thread(generator, n, wide):
    a = torch.from_numpy(generator.integers(-50, 50, (3, 64, n))).float()
    expected = a.clone()
    expected[:, :, 0] += 10 + a.sum(-1)
    return Call(lambda *args: rows_by_threads(*args, n, wide), (a,), expected)


@ptxtile.jit
def table_in_every_thread(A, table):
    """All threads copy the same row of a tensor, the part beyond its end is 0."""
    N, K = T.const("N, K")
    A: T.Tensor((N, 64), T.int32)
    table: T.Tensor((K,), T.float32)
    B = T.empty((N, 64), T.float32)
    with T.Kernel(N, threads=64) as bx:
        values = T.alloc_local((8,), T.float32)
        T.copy(table[0:8], values)
        for i in T.Parallel(64):
            B[bx, i] = values[0] + values[7]
        index = A[bx, T.get_thread_binding()]
        B[bx, T.get_thread_binding()] += values[index]
    return B


@cases(CASES, card=True, size=[8, 5])
def tables_of_each_thread(generator, size):
    a = torch.from_numpy(generator.integers(0, 8, (3, 64))).int()
    table = inputs.moderate(generator, (size,)).round()
    padded = torch.nn.functional.pad(table, (0, 8 - size))
    return Call(table_in_every_thread, (a, table), padded[0] + padded[7] + padded[a.long()])


# ---------------------------------------------------------------- tiles of convolutions


@ptxtile.jit
def unfolded(A, kernel, stride, dilation, pad, rows=16, columns=24):
    """The whole matrix of a convolution, tile by tile."""
    N, H, W, C, P, K = T.const("N, H, W, C, P, K")
    A: T.Tensor((N, H, W, C), T.float32)
    B = T.empty((P, K), T.float32)
    with T.Kernel(T.ceildiv(K, columns), T.ceildiv(P, rows), threads=64) as (bx, by):
        tile = T.alloc_shared((rows, columns), T.float32)
        T.im2col(A, tile, by, bx, kernel, stride, dilation, pad)
        T.copy(tile, B[by * rows, bx * columns])
    return B


@cases(
    CASES, card=True, shape=[(2, 7, 9, 8), (1, 6, 6, 5)],
    form=[(3, 1, 1, 1), (3, 2, 1, 0), (2, 1, 2, 1), (1, 1, 1, 0)],
)  # fmt: skip
def matrices_of_convolutions(generator, shape, form):
    kernel, stride, dilation, pad = form
    a = inputs.moderate(generator, shape)
    columns = torch.nn.functional.unfold(
        a.permute(0, 3, 1, 2), kernel, dilation=dilation, padding=pad, stride=stride
    )  # (N, C · kernel², pixels), the channel first
    n, _, pixels = columns.shape
    expected = columns.view(n, shape[3], kernel * kernel, pixels).permute(0, 3, 2, 1).reshape(n * pixels, -1)
    made = unfolded.compile(N=n, H=shape[1], W=shape[2], C=shape[3], P=n * pixels, K=expected.shape[1], kernel=kernel,
                            stride=stride, dilation=dilation, pad=pad)  # fmt: skip
    return Call(made, (a,), expected)


# ---------------------------------------------------------------- forms of grids, regions and views


@ptxtile.jit
def one_block(A):
    """A launch without sizes, targets that are tuples of one, elements copied in T.Parallel, a view by memory."""
    N = T.const("N")
    A: T.Tensor((N, 16), T.float32)
    B = T.empty((N, 16), T.float32)
    C = T.empty((N,), T.float32)
    with T.Kernel(threads=32):
        flat = T.Tensor((N * 16,), T.float32, A.data)
        for i, j in T.Parallel(8, 16):
            T.copy(A[i, j], B[i, j])
        for (i,) in T.Parallel(8):
            if i < N:
                C[i] = flat[i * 16] + 1
    with T.Kernel(N, threads=32) as (row,):
        for (j,) in T.grid(1):
            B[row, j] = -1
    return B, C


@cases(CASES, card=True, rows_of_a=[8, 5])
def forms_of_launches(generator, rows_of_a):
    a = inputs.moderate(generator, (rows_of_a, 16))
    expected = a.clone()
    expected[:, 0] = -1
    return Call(one_block, (a,), (expected, a[:, 0] + 1))


@ptxtile.jit
def beyond_the_end(A):
    """Regions with known bounds that begin in a tensor and reach beyond its end: read as 0, and not written."""
    A: T.Tensor((5, 100), T.float32)
    B = T.empty((8, 64), T.float32)
    with T.Kernel(threads=64):
        tile = T.alloc_shared((8, 64), T.float32)
        T.copy(A[0:8, 64:128], tile)
        T.copy(tile, B)
        for i, j in T.Parallel(8, 64):
            tile[i, j] = tile[i, j] + 1
        T.copy(tile, A[0:8, 64:128])
    return B


@cases(CASES, card=True)
def regions_beyond_the_end(generator):
    a = inputs.moderate(generator, (5, 100))
    changed = a.clone()
    changed[:, 64:] += 1
    return Call(beyond_the_end, (a,), torch.nn.functional.pad(a[:, 64:], (0, 28, 0, 3)), {0: changed})

"""Views and reshapes, fill and clear, regions, several kernels in one function, workspaces, several outputs."""

from __future__ import annotations

import math

import torch

import ptxtile
import ptxtile.language as T
from tests.kernels import inputs
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []


# ---------------------------------------------------------------- views


@ptxtile.jit
def reshaped_tile(A, block=64):
    """A shared tile of [8, block] seen as [block, 8] and as one row."""
    N = T.const("N")
    A: T.Tensor((N, 8, block), T.float32)
    B = T.empty((N, block, 8), T.float32)
    C = T.empty((N, 8 * block), T.float32)
    with T.Kernel(N, threads=96) as bx:
        tile = T.alloc_shared((8, block), T.float32)
        T.copy(A[bx, :, :], tile)
        tall = T.reshape(tile, (block, 8))
        flat = T.view(tile, (8 * block,))
        for i in T.Parallel(8 * block):
            flat[i] = flat[i] + 1
        T.copy(tall, B[bx, :, :])
        T.copy(flat, C[bx, :])
    return B, C


@cases(CASES, card=True, block=[64, 20])
def reshapes_of_shared(generator, block):
    a = inputs.moderate(generator, (3, 8, block))
    return Call(lambda *args: reshaped_tile(*args, block), (a,), ((a + 1).view(3, block, 8), (a + 1).view(3, -1)))


@ptxtile.jit
def tensor_views(A):
    """A tensor argument reshaped, and its bits seen as integers; a transposed view by strides."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B = T.empty((M * N,), T.float32)
    C = T.empty((M, N), T.int32)
    D = T.empty((N, M), T.float32)
    flat = T.reshape(A, (M * N,))
    bits = T.view(A, (M, N), T.int32)
    turned = T.view(A, (N, M), strides=(1, N))
    with T.Kernel(T.ceildiv(M * N, 64), threads=64) as bx:
        for i in T.Parallel(64):
            if bx * 64 + i < M * N:
                at = bx * 64 + i
                B[at] = flat[at] * 2
                C[at // N, at % N] = bits[at // N, at % N]
                D[at // M, at % M] = turned[at // M, at % M]
    return B, C, D


@cases(CASES, card=True, shape=[(16, 24), (7, 9)])
def views_of_a_tensor(generator, shape):
    a = inputs.random_bits(generator, shape, torch.float32)
    a = torch.where(a.isnan(), torch.zeros(()), a)
    return Call(tensor_views, (a,), (a.view(-1) * 2, a.view(torch.int32), a.t().contiguous()))


@ptxtile.jit
def bytes_of_words(A):
    """The bytes of int32 in shared memory, in the order of memory, and pairs of float16 as one int32."""
    N = T.const("N")
    A: T.Tensor((N, 32), T.int32)
    B = T.empty((N, 128), T.uint8)
    C = T.empty((N, 64), T.float16)
    with T.Kernel(N, threads=64) as bx:
        words = T.alloc_shared((32,), T.int32)
        T.copy(A[bx, :], words)
        T.copy(T.view(words, (128,), T.uint8), B[bx, :])
        T.copy(T.view(words, (64,), "float16"), C[bx, :])
    return B, C


@cases(CASES, card=True)
def views_of_another_dtype(generator):
    a = inputs.random_bits(generator, (5, 32), torch.int32)
    return Call(bytes_of_words, (a,), (a.view(torch.uint8), a.view(torch.float16)))


@ptxtile.jit
def reshaped_fragment(A):
    N = T.const("N")
    A: T.Tensor((N, 32, 8), T.float32)
    B = T.empty((N, 256), T.float32)
    with T.Kernel(N, threads=64) as bx:
        tile = T.alloc_fragment((32, 8), T.float32)
        T.copy(A[bx, :, :], tile)
        flat = T.reshape(tile, (256,))
        for i in T.Parallel(256):
            flat[i] = flat[i] * 2
        T.copy(flat, B[bx, :])
    return B


@cases(CASES, card=True)
def reshapes_of_fragments(generator):
    a = inputs.moderate(generator, (3, 32, 8))
    return Call(reshaped_fragment, (a,), (a * 2).view(3, 256))


# ---------------------------------------------------------------- fill, clear, regions


@ptxtile.jit
def filled(A, value=3, dtype=T.float32):
    """Fill and clear of every scope, of regions too; then everything is added up."""
    N = T.const("N")
    A: T.Tensor((N, 32, 40), dtype)
    B = T.empty((N, 32, 40), dtype)
    with T.Kernel(N, threads=128) as bx:
        shared = T.alloc_shared((32, 40), dtype)
        fragment = T.alloc_fragment((32, 40), dtype)
        T.clear(shared)
        T.fill(fragment, value)
        T.fill(shared[4:8, 0:40], value)
        T.fill(shared[:, 3:5], 2)
        shared[30:32, 8:16] = 1
        T.fill(A[bx, :, :], 0)
        T.fill(A[bx, 0:5, 7:9], value)
        for i, j in T.Parallel(32, 40):
            fragment[i, j] += shared[i, j]
        T.copy(fragment, B[bx, :, :])
    return B


@cases(CASES, card=True, dtype=[torch.float32, torch.float16, torch.int8, torch.uint64])
def fills(generator, dtype):
    a = inputs.moderate(generator, (3, 32, 40), dtype)
    tile = torch.zeros(32, 40)
    tile[4:8] = 3
    tile[:, 3:5] = 2
    tile[30:, 8:16] = 1
    after = torch.zeros(3, 32, 40)
    after[:, :5, 7:9] = 3
    expected = (tile + 3).expand(3, -1, -1)
    return Call(lambda *args: filled(*args, dtype=dtype), (a,), expected.to(dtype), {0: after.to(dtype)})


@ptxtile.jit
def filled_output(value, rows: int, columns: int, block=64):
    """No tensor argument at all: the sizes are Python's."""
    value: T.float32
    B = T.empty((rows, columns), T.float32)
    with T.Kernel(T.ceildiv(columns, block), T.ceildiv(rows, block), threads=64) as (bx, by):
        T.fill(B[by * block : (by + 1) * block, bx * block : (bx + 1) * block], value)
    return B


@cases(CASES, card=True, shape=[(64, 64), (70, 100)])
def fills_of_an_output(generator, shape):
    return Call(lambda value: filled_output(value, *shape), (2.5,), torch.full(shape, 2.5))


@ptxtile.jit
def halo(A, block=32):
    """Tiles that start outside of the tensor: what is not there reads as 0."""
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
        wide = T.alloc_shared((block + 2,), T.float32)
        T.copy(A[bx * block - 1 : bx * block + block + 1], wide)
        for i in T.Parallel(block):
            B[bx * block + i] = wide[i] + wide[i + 1] * 2 + wide[i + 2]
    return B


@cases(CASES, card=True, count=[64, 100, 1, 33])
def halos(generator, count):
    a = torch.from_numpy(generator.integers(-50, 50, count)).float()
    padded = torch.nn.functional.pad(a, (1, 1))
    return Call(halo, (a,), padded[:-2] + padded[1:-1] * 2 + padded[2:])


@ptxtile.jit
def gathered(A, rows):
    """Regions whose start is read from a tensor."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, N), T.float32)
    rows: T.Tensor((K,), T.int32)
    B = T.empty((K, N), T.float32)
    with T.Kernel(K, threads=32) as k:
        line = T.alloc_fragment((N,), T.float32)
        T.copy(A[rows[k], 0:N], line)
        T.copy(line, B[k, 0:N])
    return B


@cases(CASES, card=True, width=[64, 45])
def gathers(generator, width):
    a = inputs.moderate(generator, (20, width))
    rows = torch.from_numpy(generator.integers(0, 20, 11)).to(torch.int32)
    return Call(gathered, (a, rows), a[rows.long()])


@ptxtile.jit
def moved_within(A, block=32):
    """Shared to shared, fragment to fragment, region to region, global to global."""
    N = T.const("N")
    A: T.Tensor((N, 32, 32), T.float32)
    B = T.empty((N, 32, 32), T.float32)
    C = T.empty((N, 32, 32), T.float32)
    with T.Kernel(N, threads=64) as bx:
        first = T.alloc_shared((32, 32), T.float32)
        second = T.alloc_shared((32, 32), T.float32)
        held = T.alloc_fragment((32, 32), T.float32)
        other = T.alloc_fragment((32, 32), T.float32)
        T.copy(A[bx, :, :], first)
        T.copy(first[0:16, :], second[16:32, :])
        T.copy(first[16:32, :], second[0:16, :])
        T.copy(second, held)
        T.copy(held, other)
        T.copy(other, B[bx, :, :])
        T.copy(A[bx, 0:32, 0:16], C[bx, 0:32, 16:32])
        T.copy(A[bx, 0:32, 16:32], C[bx, 0:32, 0:16])
    return B, C


@cases(CASES, card=True)
def copies_between_scopes(generator):
    a = inputs.moderate(generator, (2, 32, 32))
    return Call(moved_within, (a,), (a.roll(16, 1), a.roll(16, 2)))


@ptxtile.jit
def transposed_tile(A, block=32, threads=128):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B = T.empty((N, M), T.float32)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=threads) as (bx, by):
        tile = T.alloc_shared((block, block), T.float32)
        turned = T.alloc_shared((block, block), T.float32)
        T.copy(A[by * block, bx * block], tile)
        for i, j in T.Parallel(block, block):
            turned[i, j] = tile[j, i]
        T.copy(turned, B[bx * block, by * block])
    return B


@cases(CASES, card=True, shape=[(64, 96), (50, 71)])
def transposes(generator, shape):
    a = inputs.moderate(generator, shape)
    return Call(transposed_tile, (a,), a.t().contiguous())


@ptxtile.jit
def softmax_free_row_scale(A, s, block=32):
    """A row vector and a column vector, spread over a tile: fragments of one dimension read by a loop of two."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    s: T.Tensor((M,), T.float32)
    B = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=64) as (bx, by):
        tile = T.alloc_fragment((block, block), T.float32)
        scale = T.alloc_fragment((block,), T.float32)
        columns = T.alloc_shared((block,), T.float32)
        T.copy(A[by * block, bx * block], tile)
        T.copy(s[by * block], scale)
        for j in T.Parallel(block):
            columns[j] = bx * block + j
        for i, j in T.Parallel(block, block):
            tile[i, j] = tile[i, j] * scale[i] + columns[j]
        T.copy(tile, B[by * block, bx * block])
    return B


@cases(CASES, card=True, shape=[(64, 64), (50, 71)])
def broadcasts(generator, shape):
    a = torch.from_numpy(generator.integers(-9, 9, shape)).float()
    s = torch.from_numpy(generator.integers(-9, 9, shape[0])).float()
    return Call(softmax_free_row_scale, (a, s), a * s[:, None] + torch.arange(shape[1]))


@ptxtile.jit
def filled_with_constants(rows: int, columns: int, values, dtype):
    """Constants of a dtype that has no arithmetic."""
    B = T.empty((len(values), rows, columns), dtype)
    with T.Kernel(1, threads=64):
        shared = T.alloc_shared((rows, columns), dtype)
        for number, value in enumerate(values):
            T.fill(shared, value)
            T.copy(shared, B[number, :, :])
    return B


@cases(CASES, card=True, dtype=inputs.EIGHT_BIT_FLOATS)
def fills_of_float8(generator, dtype):
    values = [0.0, -0.0, 1.0, 1.0625, -1.1875, 448.0, 2.0**-9, 3 * 2.0**-11, 0.013, -(2.0**-17), math.nan]
    expected = torch.tensor(values).to(dtype)[:, None, None].expand(-1, 5, 32).contiguous()
    return Call(lambda: filled_with_constants(5, 32, values, dtype), (), expected)


# ---------------------------------------------------------------- several kernels, workspaces, outputs


@ptxtile.jit
def two_steps(A, block=32):
    """A workspace between two kernels: the second reads, turned around, what other blocks of the first wrote."""
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    work = T.empty((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
        for i in T.Parallel(block):
            if bx * block + i < N:
                work[bx * block + i] = A[bx * block + i] * 2
    with T.Kernel(T.ceildiv(N, block), threads=64) as bx:
        for i in T.Parallel(block):
            if bx * block + i < N:
                B[bx * block + i] = work[N - 1 - (bx * block + i)] + 1
    return B


@cases(CASES, card=True, count=[64, 77, 0])
def several_kernels(generator, count):
    a = inputs.moderate(generator, (count,))
    return Call(two_steps, (a,), (a * 2).flip(0) + 1)


@ptxtile.jit
def many_steps(A, steps=3):
    """One kernel for each iteration of a Python loop, back and forth between two workspaces."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.int32)
    first = T.empty((M, N), T.int32)
    second = T.empty((M, N), T.int32)
    source, target = A, first
    for step in [*range(steps)]:
        with T.Kernel(T.ceildiv(N, 32), M, threads=32) as (bx, by):
            for j in T.Parallel(32):
                x = bx * 32 + j
                if x < N:
                    target[by, x] = source[by, x] + (source[by, x - 1] if x > 0 else 0)
        source, target = target, second if target is first else first
    return source


@cases(CASES, card=True, steps=[1, 2, 4])
def chains_of_kernels(generator, steps):
    a = inputs.moderate(generator, (4, 50), torch.int32)
    expected = a
    for _ in range(steps):
        expected = expected + torch.nn.functional.pad(expected, (1, 0))[:, :-1]
    return Call(lambda *args: many_steps(*args, steps), (a,), expected)


@ptxtile.jit
def several_outputs(A):
    """Outputs of other shapes and dtypes than the input; an argument is returned too."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    whole = T.empty((M, N), T.int32)
    fraction = T.empty((M, N), dtype=T.float16)
    positive = T.empty(M, N, T.bool)
    first = T.empty((M,), T.float64)
    with T.Kernel(T.ceildiv(M * N, 64), threads=64) as bx:
        for i in T.Parallel(64):
            at = bx * 64 + i
            if at < M * N:
                y, x = at // N, at % N
                value = A[y, x]
                whole[y, x] = T.floor(value)
                fraction[y, x] = value - T.floor(value)
                positive[y, x] = value > 0
                if x == 0:
                    first[y] = value
                A[y, x] = -value
    return whole, fraction, positive, first, A


@cases(CASES, card=True, shape=[(8, 16), (9, 7)])
def outputs(generator, shape):
    a = inputs.moderate(generator, shape) * 5
    floor = a.floor()
    expected = (floor.to(torch.int32), (a - floor).to(torch.float16), a > 0, a[:, 0].double(), -a)
    return Call(several_outputs, (a,), expected, {0: -a})

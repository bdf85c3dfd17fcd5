"""Loops, branches and scalars of a kernel's Python: each means what the same Python means, written out beside it."""

from __future__ import annotations

import numpy as np
import torch

import ptxtile
import ptxtile.language as T
from tests.kernels import inputs
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []

LOOPS = {"range": range, "serial": T.serial, "unroll": T.unroll, "pipelined": None}


@ptxtile.jit
def sum_rows(A, kind="range", stages=2, block=32):
    """Sums the tiles of each row of tiles; the trip count is the number of tiles."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B = T.empty((M, block), T.float32)
    with T.Kernel(T.ceildiv(M, block), threads=64) as by:
        tile = T.alloc_shared((block, block), T.float32)
        total = T.alloc_fragment((block, block), T.float32)
        T.clear(total)
        loop = T.Pipelined(T.ceildiv(N, block), num_stages=stages) if kind == "pipelined" else LOOPS[kind](
            T.ceildiv(N, block)
        )  # fmt: skip
        for k in loop:
            T.copy(A[by * block, k * block], tile)
            for i, j in T.Parallel(block, block):
                total[i, j] += tile[i, j]
        T.copy(total, B[by * block, 0])
    return B


def _row_sums(a, block):
    total = torch.zeros(a.shape[0], block)
    for start in range(0, a.shape[1], block):
        piece = a[:, start : start + block]
        total[:, : piece.shape[1]] += piece
    return total


@cases(CASES, card=lambda kind, tiles: tiles in (0, 3), kind=["range", "serial", "unroll"], tiles=[0, 1, 2, 3])
def trip_counts(generator, kind, tiles):
    a = inputs.moderate(generator, (48, tiles * 32 - (tiles > 1)))
    return Call(lambda *args: sum_rows(*args, kind=kind), (a,), _row_sums(a, 32))


@cases(CASES, card=lambda stages, tiles: stages == 3, rows=[{"stages": s, "tiles": t} for s in (0, 1, 2, 3, 4)
       for t in sorted({0, 1, 2, max(s - 1, 0), s, s + 1})])  # fmt: skip
def pipelined_trip_counts(generator, stages, tiles):
    """Trip counts 0, 1, 2 and the number of stages less one, itself, plus one."""
    a = inputs.moderate(generator, (40, tiles * 32))
    return Call(lambda *args: sum_rows(*args, kind="pipelined", stages=stages), (a,), _row_sums(a, 32))


def pipelined_dynamic(stages, block=32):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((32, n), "float32"), first: T.int32, B: T.Tensor((32, block), "float32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((32, block), "float32")
            total = T.alloc_fragment((32, block), "float32")
            T.fill(total, 0)
            for k in T.Pipelined(first, T.ceildiv(n, block), num_stages=stages):
                T.copy(A[0, k * block], tile)
                for i, j in T.Parallel(32, block):
                    total[i, j] = total[i, j] + tile[i, j]
            T.copy(total, B)

    return main


@cases(CASES, card=True, stages=[1, 3], tiles=[1, 2, 5], first=[0, 1])
def pipelined_with_a_dynamic_trip_count(generator, stages, tiles, first):
    a = inputs.moderate(generator, (32, tiles * 32 - 3))
    kernel = ptxtile.jit(out_idx=-1)(pipelined_dynamic)(stages)
    return Call(kernel, (a, first), _row_sums(a[:, 32 * first :], 32))


@ptxtile.jit
def ranges(A, B, start, stop, step=1):
    """B[i] counts how often i comes up."""
    N = T.const("N")
    A: T.Tensor((N,), T.int32)
    B: T.Tensor((N,), T.int32)
    start: T.int32
    stop: T.int32
    with T.Kernel(1, threads=1):
        for i in range(start, stop, step):
            B[i] = B[i] + A[i]


@cases(
    CASES,
    card=lambda step, bounds: step in (1, -2),
    step=[1, 3, -1, -2],
    bounds=[(0, 8), (5, 2), (2, 2), (7, -1), (3, 4)],
)
def range_bounds(generator, step, bounds):
    a, b = inputs.moderate(generator, (8,), torch.int32), inputs.moderate(generator, (8,), torch.int32)
    expected = b.clone()
    for i in range(*bounds, step):
        expected[i] += a[i]
    return Call(lambda *args: ranges(*args, step), (a, b, *bounds), changes={1: expected})


@ptxtile.jit
def vectorized_copy(A, lanes=4):
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, 32 * lanes), threads=32) as bx:
        t = T.get_thread_binding()
        for v in T.vectorized(lanes):
            B[(bx * 32 + t) * lanes + v] = A[(bx * 32 + t) * lanes + v] * 2
    return B


@cases(CASES, card=lambda lanes, count: lanes in (4, 3), lanes=[1, 2, 3, 4, 8], count=[256, 250])
def vectorized(generator, lanes, count):
    a = inputs.moderate(generator, (count,))
    return Call(lambda *args: vectorized_copy(*args, lanes), (a,), a * 2)


# ---------------------------------------------------------------- per-thread scalar code


@ptxtile.jit
def collatz(A):
    """Steps of the Collatz sequence: a while loop of another length in each thread."""
    N = T.const("N")
    A: T.Tensor((N,), T.int32)
    B = T.empty((N,), T.int32)
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        for i in T.Parallel(64):
            if bx * 64 + i < N:
                x = A[bx * 64 + i]
                steps = 0
                while x > 1:
                    x = x // 2 if x % 2 == 0 else 3 * x + 1
                    steps += 1
                B[bx * 64 + i] = steps
    return B


def _collatz(x):
    steps = 0
    while x > 1:
        x, steps = (x // 2 if x % 2 == 0 else 3 * x + 1), steps + 1
    return steps


@cases(CASES, card=True)
def while_loops(generator):
    a = torch.from_numpy(generator.integers(-3, 200, 150)).to(torch.int32)
    return Call(collatz, (a,), torch.tensor([_collatz(x) for x in a.tolist()], dtype=torch.int32))


@ptxtile.jit
def search(A, limit):
    """For each row: its first element above the limit, and the sum of the even ones before it."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.int32)
    limit: T.int32
    where = T.empty((M,), T.int32)
    total = T.empty((M,), T.int32)
    with T.Kernel(T.ceildiv(M, 32), threads=32) as bx:
        for i in T.Parallel(32):
            row = bx * 32 + i
            if row < M:
                found = -1
                even = 0
                for j in range(N):
                    if A[row, j] > limit:
                        found = j
                        break
                    if A[row, j] % 2 != 0:
                        continue
                    even += A[row, j]
                where[row] = found
                total[row] = even
    return where, total


@cases(CASES, card=True, limit=[60, 1000, -1000])
def break_and_continue(generator, limit):
    a = inputs.moderate(generator, (40, 9), torch.int32)
    where, total = [], []
    for row in a.tolist():
        found = next((j for j, x in enumerate(row) if x > limit), -1)
        where.append(found)
        total.append(sum(x for x in (row if found < 0 else row[:found]) if x % 2 == 0))
    return Call(search, (a, limit), (torch.tensor(where, dtype=torch.int32), torch.tensor(total, dtype=torch.int32)))


@ptxtile.jit
def classify(A):
    """Branches, ternaries, chained comparisons, and/or/not; sides that are not taken are not read."""
    N = T.const("N")
    A: T.Tensor((N,), T.int32)
    B = T.empty((N,), T.int32)
    with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
        for t in T.Parallel(32):
            i = bx * 32 + t
            if i < N:
                x = A[i]
                if -10 <= x < 10:
                    kind = 1
                elif x > 50 or x == 20:
                    kind = 2
                elif not x < 0 and x % 3 == 0:
                    kind = 3
                else:
                    kind = 4 if x != -50 else 5
                left = A[i - 1] if i > 0 else 1000
                right = A[i + 1] if i + 1 < N and left > 0 else -1000
                B[i] = kind + 10 * (1 if left < x < right else 0) + 100 * T.if_then_else(left == 1000, 1, 0)
    return B


def _classify(a):
    result = []
    for i, x in enumerate(a):
        if -10 <= x < 10:
            kind = 1
        elif x > 50 or x == 20:
            kind = 2
        elif not x < 0 and x % 3 == 0:
            kind = 3
        else:
            kind = 4 if x != -50 else 5
        left = a[i - 1] if i > 0 else 1000
        right = a[i + 1] if i + 1 < len(a) and left > 0 else -1000
        result.append(kind + 10 * (1 if left < x < right else 0) + 100 * (left == 1000))
    return torch.tensor(result, dtype=torch.int32)


@cases(CASES, card=True, count=[1, 32, 77])
def branches(generator, count):
    a = inputs.moderate(generator, (count,), torch.int32)
    return Call(classify, (a,), _classify(a.tolist()))


@ptxtile.jit
def horner(A, coefficients=(1.0, -2.0, 0.5, 3.0)):
    """A Python tuple unrolls; alloc_var is assigned and read."""
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=64):
        for i in T.Parallel(N):
            y = T.alloc_var(T.float32, init=0.0)
            for number, c in enumerate(coefficients):
                y = y * A[i] + c if number else c
            B[i] = y
    return B


@cases(CASES, card=True)
def variables(generator):
    a = torch.from_numpy(generator.integers(-8, 9, 90)).float() / 4
    return Call(horner, (a,), ((a - 2.0) * a + 0.5) * a + 3.0)


@ptxtile.jit
def sort_local(A):
    """Each thread sorts eight numbers in an array of its own, with indices that only run time knows."""
    N = T.const("N")
    A: T.Tensor((N, 8), T.int32)
    B = T.empty((N, 8), T.int32)
    with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
        row = bx * 32 + T.get_thread_binding(0)
        mine = T.alloc_local((8,), T.int32)
        if row < N:
            for j in range(8):
                mine[j] = A[row, j]
            for j in range(1, 8):
                key = mine[j]
                k = j - 1
                while k >= 0 and mine[k] > key:
                    mine[k + 1] = mine[k]
                    k -= 1
                mine[k + 1] = key
            for j in range(8):
                B[row, j] = mine[j]
    return B


@cases(CASES, card=True)
def local_arrays(generator):
    a = inputs.moderate(generator, (50, 8), torch.int32)
    return Call(sort_local, (a,), a.sort(dim=1).values)


@ptxtile.jit
def bindings(A, threads=(8, 4, 2)):
    """Threads in three dimensions, their extents, blocks in three dimensions."""
    X, Y, Z = T.const("X, Y, Z")
    A: T.Tensor((Z, Y, X), T.int32)
    B = T.empty((Z, Y, X), T.int32)
    with T.Kernel(T.ceildiv(X, threads[0]), T.ceildiv(Y, threads[1]), T.ceildiv(Z, threads[2]), threads=threads) as (
        a,
        b,
        c,
    ):
        tx, ty, tz = T.get_thread_bindings()
        ex, ey, ez = T.get_thread_extents()
        x, y, z = a * ex + tx, b * ey + ty, c * ez + tz
        if x < X and y < Y and z < Z:
            B[z, y, x] = A[z, y, x] + 100 * T.get_block_binding(2) + 1000 * T.get_block_extent(0)
    return B


@cases(CASES, card=True, threads=[(8, 4, 2), (3, 5, 7), (32, 1, 1)])
def thread_bindings(generator, threads):
    a = inputs.moderate(generator, (5, 9, 33), torch.int32)
    z = torch.arange(5, dtype=torch.int32)[:, None, None] // threads[2]
    blocks = -(-33 // threads[0])
    return Call(lambda *args: bindings(*args, threads), (a,), a + 100 * z + 1000 * blocks)


@T.macro
def clipped(value, low, high):
    if value < low:
        value = low
    if value > high:
        value = high
    return value


@T.macro
def scale_tile(tile, factor, rows, columns):
    for i, j in T.Parallel(rows, columns):
        tile[i, j] = clipped(tile[i, j] * factor, -2.0, 2.0)


def macros_and_closures(M, N, factors):
    """Macros that call macros, a closure over Python objects, a plain Python function, a lambda."""
    settings = {"block": 32}

    def doubled(x):
        return x + x

    halved = lambda x: x * 0.5  # noqa: E731

    @T.prim_func
    def main(A: T.Tensor((M, N), "float32"), B: T.Tensor((M, N), "float32")):
        block = settings["block"]
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=96) as (bx, by):
            tile = T.alloc_fragment((block, block), "float32")
            T.copy(A[by * block, bx * block], tile)
            for factor in factors:
                scale_tile(tile, factor, block, block)
            for i, j in T.Parallel(block, block):
                tile[i, j] = halved(doubled(tile[i, j])) - 1
            T.copy(tile, B[by * block, bx * block])

    return main


@cases(CASES, card=True, factors=[(), (2.0,), (3.0, 0.5, -2.0)])
def macros(generator, factors):
    a = inputs.moderate(generator, (70, 40))
    expected = a.clone()
    for factor in factors:
        expected = (expected * factor).clamp(-2, 2)
    return Call(ptxtile.jit(out_idx=[1])(macros_and_closures)(70, 40, factors), (a,), expected - 1)


@ptxtile.jit
def grid_loops(A):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.int32)
    B = T.empty((N, M), T.int32)
    with T.Kernel(1, threads=1):
        for i, j in T.grid(M, N):
            B[j, i] = A[i, j] + i - j
    return B


@cases(CASES, card=True)
def nested_grid(generator):
    a = inputs.moderate(generator, (5, 7), torch.int32)
    i, j = torch.meshgrid(torch.arange(5), torch.arange(7), indexing="ij")
    return Call(grid_loops, (a,), (a + i - j).t().contiguous().to(torch.int32))


@ptxtile.jit
def prefix_in_shared(A, block=64):
    """A scan in shared memory: every step reads what other threads wrote in the one before."""
    N = T.const("N")
    A: T.Tensor((N, block), T.int32)
    B = T.empty((N, block), T.int32)
    with T.Kernel(N, threads=64) as row:
        front = T.alloc_shared((block,), T.int32)
        back = T.alloc_shared((block,), T.int32)
        T.copy(A[row, 0:block], front)
        distance = T.alloc_var(T.int32, init=1)
        while distance < block:
            for i in T.Parallel(block):
                back[i] = front[i] + (front[i - distance] if i >= distance else 0)
            T.copy(back, front)
            distance = distance * 2
        T.copy(front, B[row, 0:block])
    return B


@cases(CASES, card=True, block=[64, 100])
def scans(generator, block):
    a = inputs.moderate(generator, (3, block), torch.int32)
    expected = torch.from_numpy(np.cumsum(a.numpy(), axis=1, dtype=np.int32))
    return Call(lambda *args: prefix_in_shared(*args, block), (a,), expected)


@ptxtile.jit
def reverse_in_shared(A, block=96):
    """Neighbours exchange through shared memory, so a barrier between write and read is needed."""
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, block), threads=96) as bx:
        tile = T.alloc_shared((block,), T.float32)
        T.copy(A[bx * block], tile)
        for i in T.Parallel(block):
            B[bx * block + i] = tile[block - 1 - i]
    return B


@cases(CASES, card=True, block=[96, 32, 250])
def exchanges(generator, block):
    a = inputs.moderate(generator, (block * 3,))
    return Call(lambda *args: reverse_in_shared(*args, block), (a,), a.view(3, block).flip(1).reshape(-1))

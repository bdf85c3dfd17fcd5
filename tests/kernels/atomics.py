"""Atomic operations: on elements and tiles, of every dtype, in global and shared memory, and where they stand in the
program.

Sums that must be exact whatever their order are of small integers, which every float format holds.
"""

from __future__ import annotations

import functools
import operator

import numpy as np
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.ir.atomic_ops import TMA_REDUCTIONS
from tests.kernels import inputs
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []

FUNCTIONS = {
    "add": T.atomic_add, "max": T.atomic_max, "min": T.atomic_min,
    "and": T.atomic_and, "or": T.atomic_or, "xor": T.atomic_xor,
}  # fmt: skip
BITWISE = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}


def small(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype, low: int, high: int
) -> torch.Tensor:
    values = torch.from_numpy(generator.integers(low, high, shape))
    return values.bool() if dtype == torch.bool else values.to(dtype)


def folded(name: str, values: torch.Tensor) -> torch.Tensor:
    """All rows of ``values`` in one: exact for what :func:`small` draws."""
    dtype = values.dtype
    if name in BITWISE:
        wide = values if dtype == torch.bool else values.view(_SIGNED.get(dtype, dtype))
        return functools.reduce(BITWISE[name], wide).view(dtype)
    wide = values.double() if dtype.is_floating_point else values.to(torch.int64)
    return {"add": wide.sum(0), "max": wide.amax(0), "min": wide.amin(0)}[name].to(dtype)


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@ptxtile.jit
def scatter(A, C, name="add", dtype=T.float32, block=64):
    """Folds the rows of A into C, a tile after the other in different blocks."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), dtype)
    C: T.Tensor((N,), dtype)
    with T.Kernel(T.ceildiv(M, 4), T.ceildiv(N, block), threads=64) as (by, bx):
        for i, j in T.Parallel(4, block):
            if by * 4 + i < M and bx * block + j < N:
                FUNCTIONS[name](C[bx * block + j], A[by * 4 + i, bx * block + j])


@ptxtile.jit
def scatter_shared(A, C, name="add", dtype=T.float32):
    """Folds the rows of A into a shared tile, and that into C."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), dtype)
    C: T.Tensor((N,), dtype)
    with T.Kernel(1, threads=96):
        S = T.alloc_shared((N,), dtype)
        T.copy(C, S)
        for i, j in T.Parallel(M, N):
            FUNCTIONS[name](S[j], A[i, j])
        T.copy(S, C)


def _dtypes(name: str) -> list[torch.dtype]:
    integers = [*inputs.SIGNED, *inputs.UNSIGNED]
    return [torch.bool, *integers] if name in BITWISE else [*inputs.FLOATS, *integers]


@cases(CASES, card=True, rows=[{"name": name, "dtype": dtype} for name in FUNCTIONS for dtype in _dtypes(name)],
       memory=["global", "shared"])  # fmt: skip
def every_dtype(generator, name, dtype, memory):
    unsigned = dtype in inputs.UNSIGNED or dtype == torch.bool
    low, high = (0 if unsigned else -4), (2 if dtype == torch.bool else 5)
    if name in BITWISE and dtype != torch.bool:
        a, c = inputs.random_bits(generator, (9, 70), dtype), inputs.random_bits(generator, (70,), dtype)
    else:
        a, c = small(generator, (9, 70), dtype, low, high), small(generator, (70,), dtype, low, high)
    kernel = scatter if memory == "global" else scatter_shared
    expected = folded(name, torch.cat([a, c[None]]))
    return Call(lambda *args: kernel(*args, name=name, dtype=dtype), (a, c), changes={1: expected})


@ptxtile.jit
def add_tiles(A, C, dtype=T.float32, accumulated=T.float32, source="fragment", order=None, block=32):
    """C += each tile of A in turn."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), dtype)
    C: T.Tensor((block, N), accumulated)
    with T.Kernel(T.ceildiv(M, block), T.ceildiv(N, block), threads=128) as (by, bx):
        tile = (
            T.alloc_fragment((block, block), dtype) if source == "fragment" else T.alloc_shared((block, block), dtype)
        )
        T.copy(A[by * block, bx * block], tile)
        T.atomic_add(C[0, bx * block], tile, memory_order=order)


@cases(CASES, card=True, dtype=[torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int32],
       source=["fragment", "shared"], columns=[64, 90])  # fmt: skip
def tiles(generator, dtype, source, columns):
    """Whole tiles, vectorised where the columns allow it, and with a tail where they do not."""
    a, c = small(generator, (90, columns), dtype, -4, 5), small(generator, (32, columns), dtype, -4, 5)
    padded = torch.zeros(96, columns, dtype=dtype)
    padded[:90] = a
    expected = folded("add", torch.cat([padded.reshape(3, 32, columns), c[None]]))
    return Call(
        lambda *args: add_tiles(*args, dtype=dtype, accumulated=dtype, source=source), (a, c), changes={1: expected}
    )


@ptxtile.jit
def combine_by_tma(A, C, name="add", dtype=T.float32, combined=T.float32, source="fragment", rows=32, columns=64):
    """C combined with each tile of A in turn, by TMA."""
    M, N, R = T.const("M, N, R")
    A: T.Tensor((M, N), dtype)
    C: T.Tensor((R, N), combined)
    with T.Kernel(T.ceildiv(M, rows), T.ceildiv(N, columns), threads=128) as (by, bx):
        shape = (rows, columns)
        tile = T.alloc_fragment(shape, dtype) if source == "fragment" else T.alloc_shared(shape, dtype)
        T.copy(A[by * rows, bx * columns], tile)
        FUNCTIONS[name](C[0, bx * columns], tile, use_tma=True)


@cases(CASES, card=True, source=["fragment", "shared"], rows=[
    {"name": name, "dtype": getattr(torch, dtype)} for name, types in TMA_REDUCTIONS.items() for dtype in types
])  # fmt: skip
def tiles_by_tma(generator, name, dtype, source):
    """Every operator and dtype of TMA; C has fewer rows than a tile and fewer columns than two."""
    if name in BITWISE:
        a, c = inputs.random_bits(generator, (96, 112), dtype), inputs.random_bits(generator, (30, 112), dtype)
    else:
        low = 0 if dtype in inputs.UNSIGNED else -4
        a, c = small(generator, (96, 112), dtype, low, 5), small(generator, (30, 112), dtype, low, 5)
    expected = folded(name, torch.cat([a.reshape(3, 32, 112)[:, :30], c[None]]))
    return Call(
        lambda *args: combine_by_tma(*args, name=name, dtype=dtype, combined=dtype, source=source), (a, c),
        changes={1: expected},
    )  # fmt: skip


@cases(CASES, card=True, source=["fragment", "shared"], columns=[64, 512])
def converted_tiles_by_tma(generator, source, columns):
    """Sums of another dtype, and tiles that are longer than a box of TMA."""
    a, c = small(generator, (96, 512), torch.float16, -4, 5), small(generator, (32, 512), torch.float32, -4, 5)
    expected = folded("add", torch.cat([a.float().reshape(3, 32, 512), c[None]]))
    return Call(
        lambda *args: combine_by_tma(*args, dtype=T.float16, source=source, columns=columns), (a, c),
        changes={1: expected},
    )  # fmt: skip


@cases(CASES, card=True)
def read_after_an_addition_by_tma(generator):
    """What TMA added is waited for before the block reads it, and what the block wrote before TMA adds to it."""

    @ptxtile.jit
    def kernel(A, C, D):
        A: T.Tensor((32, 64), T.float32)
        C: T.Tensor((32, 64), T.float32)
        D: T.Tensor((32, 64), T.float32)
        with T.Kernel(1, threads=128):
            S = T.alloc_shared((32, 64), T.float32)
            T.copy(A, S)
            for i, j in T.Parallel(32, 64):
                C[i, j] = i
            T.atomic_add(C, S, use_tma=True)
            T.atomic_add(C, S, annotations={"use_tma": 1})
            for i, j in T.Parallel(32, 64):
                D[i, j] = C[31 - i, 63 - j]

    a = small(generator, (32, 64), torch.float32, -4, 5)
    c = torch.arange(32.0)[:, None] + 2 * a
    return Call(kernel, (a, torch.full((32, 64), 9.0), torch.zeros(32, 64)), changes={1: c, 2: c.flip(0, 1)})


@cases(CASES, card=True, order=["relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst"])
def orders_of_tiles(generator, order):
    a, c = small(generator, (64, 64), torch.float16, -4, 5), torch.zeros(32, 64)
    expected = a.double().reshape(2, 32, 64).sum(0).float()
    return Call(lambda *args: add_tiles(*args, dtype=T.float16, order=order), (a, c), changes={1: expected})


@cases(
    CASES,
    card=True,
    pair=[(torch.float32, 2), (torch.float32, 4), (torch.float16, 2), (torch.bfloat16, 2)],
    prev=[False, True],
)
def consecutive_elements(generator, pair, prev):
    """T.atomic_addx2 and T.atomic_addx4."""
    dtype, lanes = pair
    function = {2: T.atomic_addx2, 4: T.atomic_addx4}[lanes]

    @ptxtile.jit
    def kernel(A, C, P, dtype=dtype):
        A: T.Tensor((32, 64), dtype)
        C: T.Tensor((32, 64), dtype)
        P: T.Tensor((32, 64), dtype)
        with T.Kernel(1, threads=64):
            for i, j in T.Parallel(32, 64 // lanes):
                if prev:
                    before = function(C[i, j * lanes], A[i, j * lanes], return_prev=True)
                    for lane in list(range(lanes)):
                        P[i, j * lanes + lane] = before[lane]
                else:
                    function(C[i, j * lanes], A[i, j * lanes])

    a, c = small(generator, (32, 64), dtype, -4, 5), small(generator, (32, 64), dtype, -4, 5)
    p = torch.zeros_like(c)
    changes = {1: (a.double() + c.double()).to(dtype)} | ({2: c.clone()} if prev else {})
    return Call(kernel, (a, c, p), changes=changes)


@ptxtile.jit
def tickets(taken, count, at_block_level=True):
    """Each block (or each thread) draws a number; what was drawn is marked."""
    n = T.const("n")
    taken: T.Tensor((n,), T.int32)
    count: T.Tensor((2,), T.int32)
    with T.Kernel(n if at_block_level else n // 64, threads=64):
        if at_block_level:
            number = T.atomic_add(count[0], 1, return_prev=True)
            taken[number] += 1
            T.atomic_add(count[1], number)
        else:
            for i in T.Parallel(64):
                number = T.atomic_add(count[0], 1, return_prev=True)
                taken[number] = taken[number] + 1
                T.atomic_add(count[1], number)


@cases(CASES, card=True, at_block_level=[True, False])
def every_ticket_is_drawn_once(generator, at_block_level):
    taken, count = torch.zeros(192, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    expected = {0: torch.ones_like(taken), 1: torch.tensor([192, 191 * 96], dtype=torch.int32)}
    return Call(lambda *args: tickets(*args, at_block_level=at_block_level), (taken, count), changes=expected)


@cases(CASES, card=True)
def once_for_each_block(generator):
    """At block level once; in a branch on the thread, once for each thread that takes it; the loop around counts."""

    @ptxtile.jit
    def kernel(count):
        count: T.Tensor((5,), T.int32)
        with T.Kernel(3, threads=96) as bx:
            T.atomic_add(count[0], 1)
            tx = T.get_thread_binding()
            if tx < 5:
                T.atomic_add(count[1], 1)
            for _ in range(4):
                T.atomic_add(count[2], 1)
            T.atomic_add(count[3], tx)
            if bx == 1:
                T.atomic_add(count[4], 7)

    count = torch.zeros(5, dtype=torch.int32)
    return Call(kernel, (count,), changes={0: torch.tensor([3, 15, 12, 3 * 95 * 48, 7], dtype=torch.int32)})


@cases(CASES, card=True)
def results_reach_every_thread(generator):
    """The value from before steers the whole block, in a loop."""

    @ptxtile.jit
    def kernel(queue, out):
        queue: T.Tensor((1,), T.int32)
        out: T.Tensor((24, 70), T.int32)
        with T.Kernel(4, threads=128):
            row = T.alloc_var(T.int32, 0)
            row = T.atomic_add(queue[0], 1, return_prev=True)
            while row < 24:
                for j in T.Parallel(70):
                    out[row, j] += row * 100 + j
                row = T.atomic_add(queue[0], 1, return_prev=True)

    out = torch.from_numpy(generator.integers(-50, 50, (24, 70))).int()
    expected = out + torch.arange(24)[:, None] * 100 + torch.arange(70)
    return Call(
        kernel,
        (torch.zeros(1, dtype=torch.int32), out),
        changes={0: torch.tensor([28], dtype=torch.int32), 1: expected.int()},
    )


@cases(CASES, card=True)
def histogram(generator):
    """In shared memory, over several rounds, then to global memory."""

    @ptxtile.jit
    def kernel(A, H):
        n = T.const("n")
        A: T.Tensor((n,), T.uint8)
        H: T.Tensor((256,), T.int32)
        with T.Kernel(T.ceildiv(n, 512), threads=128) as bx:
            counts = T.alloc_shared((256,), T.int32)
            T.clear(counts)
            for round in range(4):
                for i in T.Parallel(128):
                    if bx * 512 + round * 128 + i < n:
                        T.atomic_add(counts[T.int32(A[bx * 512 + round * 128 + i])], 1)
            T.atomic_add(H, counts)

    a = torch.from_numpy(generator.integers(0, 256, 1300, dtype=np.uint8))
    expected = torch.bincount(a.int(), minlength=256).int()
    return Call(kernel, (a, torch.zeros(256, dtype=torch.int32)), changes={1: expected})


@cases(CASES, card=True)
def reads_stay_on_their_side(generator):
    """What an iteration reads after its atomic operation is not what it was before."""

    @ptxtile.jit
    def kernel(A, B, C):
        A: T.Tensor((256,), T.int32)
        B: T.Tensor((256,), T.int32)
        C: T.Tensor((256,), T.int32)
        with T.Kernel(1, threads=64):
            for i in T.Parallel(256):
                before = A[i]
                T.atomic_add(A[i], 10)
                B[i] = A[i]
                C[i] = before

    a = torch.from_numpy(generator.integers(-1000, 1000, 256)).int()
    blank = torch.zeros(256, dtype=torch.int32)
    return Call(kernel, (a, blank, blank.clone()), changes={0: a + 10, 1: a + 10, 2: a.clone()})


@cases(CASES, card=True)
def out_of_bounds(generator):
    """Nothing happens outside of the tensor, and the value from before is 0."""

    @ptxtile.jit
    def kernel(A, B):
        n = T.const("n")
        A: T.Tensor((n,), T.float32)
        B: T.Tensor((64,), T.float32)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                B[i] = T.atomic_add(A[i], 1, return_prev=True)
            fragment = T.alloc_fragment((64,), T.float32)
            T.fill(fragment, 2)
            T.atomic_add(A[8], fragment)

    a = small(generator, (50,), torch.float32, 1, 9)
    expected = a + 1
    expected[8:] += 2
    return Call(kernel, (a, torch.full((64,), 5.0)), changes={0: expected, 1: torch.cat([a, torch.zeros(14)])})


@cases(CASES, card=True)
def results_in_fragments(generator):
    """The values from before go to a fragment that rows of threads would share."""

    @ptxtile.jit
    def kernel(A, B, C):
        A: T.Tensor((32,), T.int32)
        B: T.Tensor((32,), T.int32)
        C: T.Tensor((32, 32), T.int32)
        with T.Kernel(1, threads=128):
            tile = T.alloc_fragment((32, 32), T.int32)
            row = T.alloc_fragment((32,), T.int32)
            T.copy(C, tile)
            for i in T.Parallel(32):
                row[i] = T.atomic_add(A[i], 3, return_prev=True)
            for i, j in T.Parallel(32, 32):
                tile[i, j] += row[i]
            T.copy(tile, C)
            T.copy(row, B)

    a, c = (torch.from_numpy(generator.integers(-100, 100, shape)).int() for shape in ((32,), (32, 32)))
    changes = {0: a + 3, 1: a.clone(), 2: c + a[:, None]}
    return Call(kernel, (a, torch.zeros(32, dtype=torch.int32), c), changes=changes)


@cases(
    CASES,
    card=True,
    order=["relaxed", "acquire", "seq_cst"],
    dtype=[torch.int32, torch.float16, torch.int8, torch.float64],
)
def loads_and_stores(generator, order, dtype):
    store_order = {"acquire": "release"}.get(order, order)

    @ptxtile.jit
    def kernel(A, B, dtype=dtype):
        A: T.Tensor((70,), dtype)
        B: T.Tensor((140,), dtype)
        with T.Kernel(1, threads=64):
            for i in T.Parallel(70):
                T.atomic_store(B[i], T.atomic_load(A[i], memory_order=order), memory_order=store_order)
            first = T.atomic_load(A[3], memory_order=order)
            for i in T.Parallel(69):
                B[70 + i] = first
            T.atomic_store(B[139], T.cast(7, dtype))

    a, b = inputs.moderate(generator, (70,), dtype), torch.zeros(140, dtype=dtype)
    expected = torch.cat([a, a[3:4].expand(69), torch.tensor([7], dtype=dtype)])
    return Call(kernel, (a, b), changes={1: expected})


@cases(CASES, card=True, dtype=[torch.int32, torch.uint8, torch.float32, torch.int64, torch.bool])
def exchange(generator, dtype):
    @ptxtile.jit
    def kernel(A, B, dtype=dtype):
        A: T.Tensor((100,), dtype)
        B: T.Tensor((100,), dtype)
        with T.Kernel(1, threads=64):
            for i in T.Parallel(100):
                B[i] = T.atomic_exchange(A[i], B[i])

    a, b = inputs.moderate(generator, (100,), dtype), inputs.moderate(generator, (100,), dtype)
    return Call(kernel, (a, b), changes={0: b.clone(), 1: a.clone()})


@cases(CASES, card=True, name=["max", "min"], dtype=[torch.float32, torch.float16, torch.bfloat16, torch.float64])
def special_floats(generator, name, dtype):
    """NaN propagates and −0 is less than +0, as in torch.maximum and torch.minimum."""
    values = inputs.special(dtype)
    a, b = values.repeat(len(values)), values.repeat_interleave(len(values))
    function, reference = FUNCTIONS[name], {"max": torch.maximum, "min": torch.minimum}[name]

    @ptxtile.jit
    def kernel(A, B, dtype=dtype):
        n = T.const("n")
        A: T.Tensor((n,), dtype)
        B: T.Tensor((n,), dtype)
        with T.Kernel(T.ceildiv(n, 128), threads=128) as bx:
            for i in T.Parallel(128):
                if bx * 128 + i < n:
                    function(B[bx * 128 + i], A[bx * 128 + i])

    expected = reference(a, b)
    zeros = (a == 0) & (b == 0)
    sign = torch.signbit(a) & torch.signbit(b) if name == "max" else torch.signbit(a) | torch.signbit(b)
    expected[zeros] = torch.where(sign, -0.0, 0.0).to(dtype)[zeros]
    return Call(kernel, (a, b), changes={1: expected})

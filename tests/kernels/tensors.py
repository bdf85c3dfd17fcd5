"""How arguments lie in memory: views, strides, unaligned bases, one to five dimensions, aliases, every dtype."""

from __future__ import annotations

import torch

import ptxtile
import ptxtile.language as T
from tests.kernels import inputs
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []


@ptxtile.jit
def copy_2d(A, block_M=32, block_N=64, threads=128, dtype=T.float32, through="shared"):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), dtype)
    B = T.empty((M, N), dtype)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        tile = (T.alloc_shared if through == "shared" else T.alloc_fragment)((block_M, block_N), dtype)
        T.copy(A[by * block_M, bx * block_N], tile)
        T.copy(tile, B[by * block_M, bx * block_N])
    return B


@ptxtile.jit
def copy_into(A, B, block_M=32, block_N=64, threads=128, dtype=T.float32):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), dtype)
    B: T.Tensor((M, N), dtype)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        tile = T.alloc_shared((block_M, block_N), dtype)
        T.copy(A[by * block_M, bx * block_N], tile)
        T.copy(tile, B[by * block_M, bx * block_N])


VIEWS = {
    "transposed": lambda base: base.t(),
    "transposed_part": lambda base: base[3:80, 5:70].t(),
    "columns": lambda base: base[:, 4:68],
    "odd_columns": lambda base: base[:, 3:70],
    "rows": lambda base: base[7:90],
    "every_second_row": lambda base: base[::2],
    "every_third_column": lambda base: base[:, ::3],
    "every_second_of_both": lambda base: base[1::2, 1::2],
    "expanded_rows": lambda base: base[5:6].expand(70, -1),
    "expanded_columns": lambda base: base[:, 9:10].expand(-1, 66),
    "expanded_both": lambda base: base[2:3, 3:4].expand(40, 72),
    "one_row": lambda base: base[11:12],
    "one_column": lambda base: base[:, 11:12],
    "overlapping_windows": lambda base: base.as_strided((50, 64), (3, 1)),
    "diagonals": lambda base: base.as_strided((60, 40), (129, 1), 2),
}


@cases(CASES, card=lambda view, dtype: dtype == torch.float32, view=VIEWS, dtype=[torch.float32, torch.float16])
def views(generator, view, dtype):
    a = VIEWS[view](inputs.random_bits(generator, (100, 128), dtype))
    return Call(lambda *args: copy_2d(*args, dtype=inputs.name(dtype)), (a,), a.clone())


WRITABLE = ["transposed", "transposed_part", "columns", "odd_columns", "every_second_row", "every_third_column", "rows",
            "every_second_of_both", "one_row", "one_column"]  # fmt: skip


@cases(CASES, card=lambda view: view in ("transposed", "odd_columns", "every_second_of_both", "columns"), view=WRITABLE)
def views_written(generator, view):
    """What lies between the elements of the view stays as it was."""
    b = VIEWS[view](inputs.random_bits(generator, (100, 128), torch.float32))
    a = inputs.random_bits(generator, tuple(b.shape), torch.float32)
    return Call(copy_into, (a, b), changes={1: a})


@cases(CASES, card=lambda dtype, offset: offset in (1, 3) and dtype != torch.float64,
       dtype=[torch.int8, torch.float16, torch.float32, torch.float64], offset=[1, 2, 3, 4, 8])  # fmt: skip
def unaligned(generator, dtype, offset):
    """Base pointers at element 1, 2, 3, … of an allocation: only narrower accesses are right."""
    a = inputs.placed(inputs.random_bits(generator, (40, 64), dtype), offset)
    b = inputs.placed(inputs.random_bits(generator, (40, 64), dtype), offset + 1)
    return Call(lambda *args: copy_into(*args, dtype=inputs.name(dtype)), (a, b), changes={1: a.clone()})


@cases(CASES, card=lambda width: width in (63, 66), width=[60, 62, 63, 64, 66, 68, 72])
def row_lengths(generator, width):
    """Rows that are a multiple of 16, 8, 4 bytes or of none of them."""
    a = inputs.random_bits(generator, (33, width), torch.float16)
    return Call(lambda *args: copy_2d(*args, dtype="float16"), (a,), a.clone())


@cases(CASES, card=lambda dtype, through, width: width == 130 and through == "shared",
       dtype=[*inputs.ALL, torch.float8_e8m0fnu], through=["shared", "fragment"], width=[64, 130])  # fmt: skip
def every_dtype(generator, dtype, through, width):
    """Plain copies keep every bit pattern."""
    a = inputs.random_bits(generator, (37, width), dtype)
    return Call(lambda *args: copy_2d(*args, dtype=inputs.name(dtype), through=through), (a,), a.clone())


# ---------------------------------------------------------------- one to five dimensions

RANKS = {1: ((1000,), (256,)), 2: ((70, 50), (32, 32)), 3: ((5, 33, 40), (2, 8, 16)), 4: ((3, 5, 9, 40), (1, 2, 4, 32)),
         5: ((3, 2, 5, 7, 24), (2, 1, 2, 4, 16))}  # fmt: skip
"""(shape, tile) by rank."""


def copy_of_rank(shape, tile, dtype, threads=64):
    """A + 1 for a tensor of any rank: its tiles are numbered along one grid axis."""
    counts = [-(-size // part) for size, part in zip(shape, tile, strict=True)]
    blocks = 1
    for count in counts:
        blocks *= count

    @T.prim_func
    def main(A: T.Tensor(shape, dtype), B: T.Tensor(shape, dtype)):
        with T.Kernel(blocks, threads=threads) as block:
            staged = T.alloc_shared(tile, dtype)
            starts = []
            rest = block
            for count, part in zip(reversed(counts), reversed(tile), strict=True):
                starts.insert(0, rest % max(count, 1) * part)
                rest = rest // max(count, 1)
            T.copy(A[tuple(starts)], staged)
            for indices in T.Parallel(*tile):
                where = indices if len(tile) > 1 else (indices,)
                staged[where] = staged[where] + 1
            T.copy(staged, B[tuple(starts)])

    return main


@cases(
    CASES,
    card=lambda rank, dtype: dtype == torch.float32,
    rank=RANKS,
    dtype=[torch.float32, torch.float16, torch.int64],
)
def ranks(generator, rank, dtype):
    shape, tile = RANKS[rank]
    a = inputs.moderate(generator, shape, dtype)
    return Call(ptxtile.jit(out_idx=-1)(copy_of_rank)(shape, tile, inputs.name(dtype)), (a,), a + 1)


@cases(CASES, card=lambda rank: rank in (3, 5), rank=[2, 3, 4, 5])
def permuted_ranks(generator, rank):
    shape, tile = RANKS[rank]
    a = inputs.moderate(generator, tuple(reversed(shape))).permute(*reversed(range(rank)))
    b = inputs.moderate(generator, (shape[0] + 2, *shape[1:]))[1:-1]
    kernel = ptxtile.compile(copy_of_rank(shape, tile, "float32"))
    return Call(kernel, (a, b), changes={1: a + 1})


@ptxtile.jit
def heads(A, block=32):
    """[batch, length, heads, width] → [batch, heads, length, width], by regions with single indices in between."""
    batch, length, count, width = T.const("batch, length, count, width")
    A: T.Tensor((batch, length, count, width), T.float16)
    B = T.empty((batch, count, length, width), T.float16)
    with T.Kernel(T.ceildiv(length, block), count, batch, threads=64) as (x, head, b):
        tile = T.alloc_shared((block, width), T.float16)
        T.copy(A[b, x * block : (x + 1) * block, head, :], tile)
        T.copy(tile, B[b, head, x * block : (x + 1) * block, :])
    return B


@cases(CASES, card=True, shape=[(2, 70, 3, 64), (1, 32, 2, 36)])
def heads_moved(generator, shape):
    a = inputs.moderate(generator, shape, torch.float16)
    return Call(heads, (a,), a.transpose(1, 2).contiguous())


# ---------------------------------------------------------------- in place, and arguments that alias


@ptxtile.jit
def scale_in_place(A, factor=2.0, block=64, shared=False):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=128) as (bx, by):
        tile = (T.alloc_shared if shared else T.alloc_fragment)((block, block), T.float32)
        T.copy(A[by * block, bx * block], tile)
        for i, j in T.Parallel(block, block):
            tile[i, j] *= factor
        T.copy(tile, A[by * block, bx * block])
    return A


@cases(CASES, card=True, shared=[False, True], shape=[(100, 90), (64, 64)])
def in_place(generator, shared, shape):
    a = inputs.moderate(generator, shape)
    return Call(lambda *args: scale_in_place(*args, shared=shared), (a,), a * 2, changes={0: a * 2})


def _aliasing_add(A, B, C, block=32):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B: T.Tensor((M, N), T.float32)
    C: T.Tensor((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=64) as (bx, by):
        a = T.alloc_fragment((block, block), T.float32)
        b = T.alloc_shared((block, block), T.float32)
        T.copy(A[by * block, bx * block], a)
        T.copy(B[by * block, bx * block], b)
        for i, j in T.Parallel(block, block):
            a[i, j] = a[i, j] - b[i, j] * 3
        T.copy(a, C[by * block, bx * block])


aliasing_add = ptxtile.jit(_aliasing_add)


@cases(CASES, card=True, same=["A=C", "B=C", "A=B", "A=B=C"], shape=[(64, 96), (50, 67)])
def aliases(generator, same, shape):
    a, b, c = (inputs.moderate(generator, shape) for _ in range(3))
    if "A=B" in same:
        b = a
    if same.startswith("A=C") or same == "A=B=C":
        c = a
    if same == "B=C":
        c = b
    expected = torch.addcmul(a.double(), b.double(), torch.tensor(-3.0, dtype=torch.float64)).float()
    return Call(ptxtile.jit(_aliasing_add, contract=True), (a, b, c), changes={2: expected})


@ptxtile.jit
def shift_rows(A, B):
    """B[i] = A[i] in order of i within one block: with B one row below A, the first row spreads over all."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.int32)
    B: T.Tensor((M, N), T.int32)
    with T.Kernel(1, threads=64):
        for i in range(M):
            for j in T.Parallel(N):
                B[i, j] = A[i, j] + 1


@cases(CASES, card=True, width=[32, 100])
def overlapping_arguments(generator, width):
    """Writes through one argument are seen by reads through the other that overlaps it."""
    base = inputs.moderate(generator, (9, width), torch.int32)
    expected = base[:1] + torch.arange(1, 9, dtype=torch.int32)[:, None]
    return Call(shift_rows, (base[:-1], base[1:]), changes={1: expected})


@ptxtile.jit
def strided_declared(A):
    M, N = T.const("M, N")
    A: T.StridedTensor((M, N), (N * 2, 2), T.float32)
    B = T.empty((M, N), T.float32)
    with T.Kernel(M, threads=32) as i:
        for j in T.Parallel(N):
            B[i, j] = A[i, j] * A.strides[1]
    return B


@cases(CASES, card=True)
def declared_strides(generator):
    a = inputs.moderate(generator, (6, 80))[:, ::2]
    return Call(strided_declared, (a,), a * 2)

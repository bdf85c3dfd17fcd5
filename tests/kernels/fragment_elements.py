"""Single elements of fragments outside of T.Parallel: tables of rows, masks of blocks, counters."""

from __future__ import annotations

import numpy as np
import torch

import ptxtile
import ptxtile.language as T
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []


def integers(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype, low=-8, high=9
) -> torch.Tensor:
    return torch.from_numpy(generator.integers(low, high, shape)).to(dtype)


@ptxtile.jit
def picked_rows(A, index, B, count, columns=32, threads=64, way="outside"):
    """``B[k] = A[index[k]]``, with a loop of a constant number of rows or one that the launch knows."""
    M, K = T.const("M, K")
    A: T.Tensor((M, columns), T.float32)
    index: T.Tensor((K,), T.int32)
    B: T.Tensor((K, columns), T.float32)
    count: T.int32
    with T.Kernel(1, threads=threads):
        rows = T.alloc_fragment((K,), T.int32)
        T.copy(index, rows)
        if way == "outside":
            for k in T.serial(K):
                r = rows[k]
                for j in T.Parallel(columns):
                    B[k, j] = A[r, j]
        elif way == "inside":
            for k in range(count):
                for j in T.Parallel(columns):
                    B[k, j] = A[rows[k], j]
        elif way == "unrolled":
            for k in T.unroll(K):
                T.copy(A[rows[k], 0:columns], B[k, 0:columns])
        else:
            for k in range(count):
                for j in T.Parallel(columns):
                    if rows[k] % 2 == 0:
                        B[k, j] = A[rows[k], j]
                    else:
                        B[k, j] = A[rows[k], columns - 1 - j] + rows[0]


@cases(CASES, card=lambda way, **_: way != "unrolled", rows=[
    {"way": way, "K": K, "threads": threads, "columns": columns}
    for way in ("outside", "inside", "unrolled", "condition")
    for K, threads, columns in ((4, 64, 32), (7, 128, 96), (96, 32, 20))
])  # fmt: skip
def rows_by_a_table(generator, way, K, threads, columns):
    a = integers(generator, (50, columns), torch.float32)
    index = integers(generator, (K,), torch.int32, 0, 50)
    expected = a[index.long()].clone()
    if way == "condition":
        odd = index % 2 == 1
        expected[odd] = expected[odd].flip(1) + index[0]
    kernel = picked_rows
    return Call(lambda *args: kernel(*args, columns=columns, threads=threads, way=way),
                (a, index, torch.full((K, columns), 99.0), K), changes={2: expected})  # fmt: skip


@cases(CASES, card=True, dtype=[torch.int32, torch.float16, torch.int8])
def elements_that_all_threads_write(generator, dtype):
    """Elements set one by one, by the index of a loop and by one that is read; then used as a tile."""

    @ptxtile.jit
    def kernel(A, places, B, C):
        A: T.Tensor((8,), dtype)
        places: T.Tensor((8,), T.int32)
        B: T.Tensor((64, 8), dtype)
        C: T.Tensor((8,), dtype)
        with T.Kernel(1, threads=64):
            row = T.alloc_fragment((8,), dtype)
            T.clear(row)
            for k in T.serial(8):
                row[places[k]] = A[k] + A[k]
            first = row[3]
            row[3] = row[3] + 1
            for i, j in T.Parallel(64, 8):
                B[i, j] = row[j] - first
            T.copy(row, C)

    a = integers(generator, (8,), dtype)
    places = torch.from_numpy(generator.permutation(8)).to(torch.int32)
    row = torch.zeros(8, dtype=dtype)
    row[places.long()] = a + a
    first = row[3].clone()
    row[3] += 1
    expected = (row - first).repeat(64, 1)
    return Call(kernel, (a, places, torch.full((64, 8), 5, dtype=dtype), torch.zeros(8, dtype=dtype)),
                changes={2: expected, 3: row})  # fmt: skip


@cases(CASES, card=True, threads=[32, 128, 96])
def counted_by_value(generator, threads):
    """A histogram in registers: elements are read and written at indices that come from memory."""

    @ptxtile.jit
    def kernel(A, H, best):
        N = T.const("N")
        A: T.Tensor((N,), T.int32)
        H: T.Tensor((2, 16), T.int32)
        best: T.Tensor((2,), T.int32)
        with T.Kernel(2, threads=threads) as bx:
            count = T.alloc_fragment((16,), T.int32)
            T.clear(count)
            for k in range(N):
                if A[k] % 2 == bx:
                    count[A[k]] += 1
            most = T.alloc_var(T.int32, init=0)
            for k in range(16):
                if count[k] > count[most]:
                    most = k
            best[bx] = most
            T.copy(count, H[bx, 0:16])

    a = integers(generator, (75,), torch.int32, 0, 16)
    counts = torch.bincount(a, minlength=16).to(torch.int32)
    even = torch.arange(16) % 2 == 0
    expected = torch.stack([counts * even, counts * ~even])
    best = torch.from_numpy(expected.numpy().argmax(axis=1)).to(torch.int32)
    return Call(kernel, (a, torch.full((2, 16), -1, dtype=torch.int32), torch.full((2,), -1, dtype=torch.int32)),
                changes={1: expected, 2: best})  # fmt: skip


@cases(CASES, card=True, source=["shared", "loop", "tile"])
def elements_of_a_tile_that_is_computed(generator, source):
    """What T.Parallel leaves in a fragment is read element by element and by another T.Parallel."""

    @ptxtile.jit
    def kernel(A, B, C):
        A: T.Tensor((8, 16), T.float32)
        B: T.Tensor((8, 16), T.float32)
        C: T.Tensor((16, 8), T.float32)
        with T.Kernel(1, threads=64):
            tile = T.alloc_fragment((8, 16), T.float32)
            if source == "shared":
                S = T.alloc_shared((8, 16), T.float32)
                T.copy(A, S)
                T.copy(S, tile)
            elif source == "loop":
                for i, j in T.Parallel(8, 16):
                    tile[i, j] = A[i, j]
            else:
                other = T.alloc_fragment((8, 16), T.float32)
                T.copy(A, other)
                T.copy(other, tile)
            for i, j in T.Parallel(8, 16):
                B[i, j] = tile[i, j] * 2
            for i in T.serial(8):
                for j in T.serial(16):
                    C[j, i] = tile[i, j] + tile[0, 0]

    a = integers(generator, (8, 16), torch.float32)
    return Call(
        kernel, (a, torch.zeros(8, 16), torch.zeros(16, 8)), changes={1: a * 2, 2: (a + a[0, 0]).T.contiguous()}
    )


@cases(CASES, card=True)
def a_table_in_a_role(generator):
    """Each role has a table of its own; one that all threads have filled serves both."""

    @ptxtile.jit
    def kernel(A, index, B):
        A: T.Tensor((16, 64), T.float32)
        index: T.Tensor((3, 4), T.int32)
        B: T.Tensor((2, 4, 64), T.float32)
        with T.Kernel(1, threads=256):
            common = T.alloc_fragment((4,), T.int32)
            T.copy(index[2, 0:4], common)
            for number in [0, 1]:
                with T.ws(number):
                    rows = T.alloc_fragment((4,), T.int32)
                    T.copy(index[number, 0:4], rows)
                    for k in T.serial(4):
                        for j in T.Parallel(64):
                            B[number, k, j] = A[rows[k], j] + common[k]

    a = integers(generator, (16, 64), torch.float32)
    index = integers(generator, (3, 4), torch.int32, 0, 16)
    expected = a[index[:2].long()] + index[2][None, :, None]
    return Call(kernel, (a, index, torch.zeros(2, 4, 64)), changes={2: expected})


@cases(CASES, card=True)
def a_table_from_a_tensor_that_changes(generator):
    """The branch's tile operations need one answer in all threads, whatever is stored meanwhile."""

    @ptxtile.jit
    def kernel(flags, B):
        flags: T.Tensor((4,), T.int32)
        B: T.Tensor((4, 64), T.float32)
        with T.Kernel(1, threads=64):
            S = T.alloc_shared((64,), T.float32)
            flag = T.alloc_fragment((4,), T.int32)
            T.copy(flags, flag)
            for k in T.serial(4):
                if flag[k] != 0:
                    flags[(k + 1) % 4] = 7
                    for j in T.Parallel(64):
                        S[j] = j + flag[k]
                    for j in T.Parallel(64):
                        B[k, j] = S[63 - j]

    flags = integers(generator, (4,), torch.int32, 0, 2)
    b = torch.full((4, 64), -1.0)
    after = flags.clone()
    for k in range(4):
        if flags[k]:
            after[(k + 1) % 4] = 7
            b[k] = torch.arange(63, -1, -1) + flags[k]
    return Call(kernel, (flags, torch.full((4, 64), -1.0)), changes={0: after, 1: b})


@cases(CASES, card=True, count=[1, 200, 1024])
def a_long_table(generator, count):
    """More elements than a thread has registers: local memory."""

    @ptxtile.jit
    def kernel(index, A, total):
        index: T.Tensor((count,), T.int32)
        A: T.Tensor((64,), T.int32)
        total: T.Tensor((1,), T.int32)
        with T.Kernel(1, threads=32):
            places = T.alloc_fragment((count,), T.int32)
            T.copy(index, places)
            found = T.alloc_var(T.int32, init=0)
            for k in range(count):
                found += A[places[count - 1 - k]] * (k % 5)
            total[0] = found

    index, a = integers(generator, (count,), torch.int32, 0, 64), integers(generator, (64,), torch.int32)
    picked = a[index.long().flip(0)]
    total = (picked * (torch.arange(count) % 5)).sum().to(torch.int32)
    return Call(kernel, (index, a, torch.zeros(1, dtype=torch.int32)), changes={2: total[None]})


@cases(CASES, card=True)
def a_view_of_a_table(generator):
    """Elements by a view of another shape, in the condition of a loop, an assertion, and where an atomic goes."""

    @ptxtile.jit
    def kernel(index, A, C):
        index: T.Tensor((2, 4), T.int32)
        A: T.Tensor((8, 32), T.float32)
        C: T.Tensor((8, 32), T.float32)
        with T.Kernel(1, threads=64):
            table = T.alloc_fragment((2, 4), T.int32)
            flat = T.reshape(table, (8,))
            T.copy(index, table)
            flat[3] = flat[3] + 1
            n = T.alloc_var(T.int32, init=0)
            while n < 8 and flat[n] >= 0:
                T.device_assert(flat[n] < 8)
                for j in T.Parallel(32):
                    C[n, j] = A[flat[n], j]
                if table[n // 4, n % 4] == 5:
                    T.atomic_add(C[flat[2], 0], 1.0)
                n += 1

    index = torch.tensor([[1, 5, 0, 6], [5, 2, -1, 3]], dtype=torch.int32)
    a, c = integers(generator, (8, 32), torch.float32), torch.zeros(8, 32)
    expected = c.clone()
    expected[:6] = a[[1, 5, 0, 7, 5, 2]]
    expected[0, 0] += 2
    return Call(kernel, (index, a, c), changes={2: expected})


# ---- block-sparse products


@ptxtile.jit
def sparse_product(A, B, mask, C, block=64, depth=32, stages=2, threads=128, table="fragment"):
    """C = A @ B without the blocks that ``mask`` leaves out, as TileLang's block-sparse example."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.float16)
    B: T.Tensor((K, N), T.float16)
    mask: T.Tensor((M // block, N // block, K // depth), T.bool)
    C: T.Tensor((M, N), T.float16)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block, depth), T.float16)
        B_shared = T.alloc_shared((depth, block), T.float16)
        C_local = T.alloc_fragment((block, block), T.float32)
        C_shared = T.alloc_shared((block, block), T.float16)
        T.use_swizzle(panel_size=10)
        T.clear(C_local)
        if table == "memory":
            for k in T.Pipelined(T.ceildiv(K, depth), num_stages=stages):
                if mask[by, bx, k]:
                    T.copy(A[by * block, k * depth], A_shared)
                    T.copy(B[k * depth, bx * block], B_shared)
                    T.gemm(A_shared, B_shared, C_local)
        else:
            allocate = T.alloc_fragment if table == "fragment" else T.alloc_local
            block_mask = allocate((K // depth,), T.bool)
            T.copy(mask[by, bx, 0], block_mask)
            for k in T.Pipelined(T.ceildiv(K, depth), num_stages=stages):
                if block_mask[k]:
                    T.copy(A[by * block, k * depth], A_shared)
                    T.copy(B[k * depth, bx * block], B_shared)
                    T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C_shared)
        T.copy(C_shared, C[by * block, bx * block])


@cases(CASES, card=True, rows=[{"table": table, "stages": stages, "threads": threads} for table, stages, threads in (
    ("fragment", 2, 128), ("fragment", 3, 256), ("fragment", 1, 128), ("local", 2, 128), ("memory", 2, 128),
)])  # fmt: skip
def block_sparse_products(generator, table, stages, threads):
    M, N, K, block, depth = 128, 192, 256, 64, 32
    a, b = integers(generator, (M, K), torch.float16, -2, 3), integers(generator, (K, N), torch.float16, -2, 3)
    mask = torch.from_numpy(generator.random((M // block, N // block, K // depth)) > 0.5)
    mask[0, 0] = False
    wide = mask.repeat_interleave(block, 0).repeat_interleave(block, 1)
    expected = torch.zeros(M, N)
    for k in range(K // depth):
        part = a[:, k * depth : (k + 1) * depth].float() @ b[k * depth : (k + 1) * depth].float()
        expected += part * wide[:, :, k]
    return Call(lambda *args: sparse_product(*args, block, depth, stages, threads, table),
                (a, b, mask, torch.full((M, N), 9.0, dtype=torch.float16)), changes={3: expected.half()})  # fmt: skip


@ptxtile.jit
def gathered_product(A, B, index, C, block=64, depth=64, stages=3, table="fragment"):
    """C[by] = Σ A[index[by, k]] @ B[k] over blocks of rows: the places of loads come from a table."""
    M, N, tiles, count = T.const("M, N, tiles, count")
    A: T.Tensor((M, depth), T.float16)
    B: T.Tensor((count * depth, N), T.float16)
    index: T.Tensor((tiles, count), T.int32)
    C: T.Tensor((tiles * block, N), T.float32)
    with T.Kernel(T.ceildiv(N, block), tiles, threads=128) as (bx, by):
        A_shared = T.alloc_shared((block, depth), T.float16)
        B_shared = T.alloc_shared((depth, block), T.float16)
        C_local = T.alloc_fragment((block, block), T.float32)
        rows = T.alloc_fragment((count,), T.int32) if table == "fragment" else T.alloc_local((count,), T.int32)
        T.copy(index[by, 0], rows)
        T.clear(C_local)
        for k in T.Pipelined(count, num_stages=stages):
            T.copy(A[rows[k] * block, 0], A_shared)
            T.copy(B[k * depth, bx * block], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[by * block, bx * block])


@cases(CASES, card=True, rows=[{"table": t, "stages": s} for t, s in (("fragment", 3), ("fragment", 1), ("local", 2))])
def products_of_gathered_blocks(generator, table, stages):
    tiles, count, block, depth, N = 2, 5, 64, 64, 128
    a = integers(generator, (6 * block, depth), torch.float16, -2, 3)
    b = integers(generator, (count * depth, N), torch.float16, -2, 3)
    index = integers(generator, (tiles, count), torch.int32, 0, 6)
    blocks = a.float().reshape(6, block, depth)[index.long()]
    expected = torch.einsum("tkmd,kdn->tmn", blocks, b.float().reshape(count, depth, N)).reshape(tiles * block, N)
    return Call(lambda *args: gathered_product(*args, block, depth, stages, table),
                (a, b, index, torch.full((tiles * block, N), 9.0)), changes={3: expected})  # fmt: skip


@ptxtile.jit
def ragged_product(A, B, counts, index, C, stages=3, table="whole"):
    """C[by] = Σ A[index[by, k]] @ B[k] over the first counts[by] of k; the tables are read before or in the loop."""
    tiles, most = T.const("tiles, most")
    A: T.Tensor((6 * 64, 64), T.float16)
    B: T.Tensor((most * 64, 64), T.float16)
    counts: T.Tensor((tiles,), T.int32)
    index: T.Tensor((tiles, most), T.int32)
    C: T.Tensor((tiles * 64, 64), T.float32)
    with T.Kernel(tiles, threads=128) as by:
        A_shared, B_shared = T.alloc_shared((64, 64), T.float16), T.alloc_shared((64, 64), T.float16)
        C_local = T.alloc_fragment((64, 64), T.float32)
        many, rows = T.alloc_fragment((tiles,), T.int32), T.alloc_fragment((most,), T.int32)
        T.copy(counts, many)
        T.clear(C_local)
        if table == "whole":
            T.copy(index[by, 0], rows)
            for k in T.Pipelined(many[by], num_stages=stages):
                T.copy(A[rows[k] * 64, 0], A_shared)
                T.copy(B[k * 64, 0], B_shared)
                T.gemm(A_shared, B_shared, C_local)
        else:
            for k in T.Pipelined(many[by], num_stages=stages):
                T.copy(index[by, k : k + 1], rows[0:1])
                T.copy(A[rows[0] * 64, 0], A_shared)
                T.copy(B[k * 64, 0], B_shared)
                T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[by * 64, 0])


@cases(CASES, card=True, rows=[{"table": t, "stages": s} for t, s in (("whole", 3), ("whole", 2), ("each", 3))])
def products_of_as_many_blocks_as_a_table_says(generator, table, stages):
    counts = torch.tensor([0, 3, 5], dtype=torch.int32)
    a, b = integers(generator, (384, 64), torch.float16, -2, 3), integers(generator, (320, 64), torch.float16, -2, 3)
    index = integers(generator, (3, 5), torch.int32, 0, 6)
    products = torch.einsum("tkmd,kdn->tkmn", a.float().reshape(6, 64, 64)[index.long()], b.float().reshape(5, 64, 64))
    expected = torch.cat([products[t, : counts[t]].sum(dim=0) for t in range(3)])
    return Call(lambda *args: ragged_product(*args, stages, table),
                (a, b, counts, index, torch.full((192, 64), 9.0)), changes={4: expected})  # fmt: skip

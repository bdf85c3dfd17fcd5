"""The kernel of a :class:`tests.gemm.problem.Problem`: copies, one or more gemms in a pipelined loop, an epilogue."""

from __future__ import annotations

import functools
from typing import Any

import ptxtile
import ptxtile.language as T
from ptxtile.jit_function import JITFunction
from tests.gemm.problem import Problem
from tests.kernels.given_layouts import given


@T.macro
def load(tensor: Any, tile: Any, row: Any, column: Any, transposed: bool) -> None:
    """The tile of op(tensor) that starts at (row, column); ``transposed``: it lies in memory as its transpose."""
    if transposed:
        T.copy(tensor[column, row], tile)
    else:
        T.copy(tensor[row, column], tile)


@T.macro
def one_tile(A: Any, B: Any, bias: Any, C: Any, tiles: Any, by: Any, bx: Any, k_tiles: Any, p: Problem) -> None:
    A_tiles, B_tiles, A_operands, B_operands, C_local, C_shared, C_cast, bias_local = tiles
    row, column, policy = by * p.block_m, bx * p.block_n, T.GemmWarpPolicy(p.policy)
    if p.clears == "clear":
        T.clear(C_local)
    for k in T.Pipelined(k_tiles, num_stages=p.stages):
        for chunk, A_shared, B_shared in zip(range_of(p.chunks), A_tiles, B_tiles, strict=True):
            start = (k * p.chunks + chunk) * p.block_k
            load(A, A_shared, row, start, p.transpose_a)
            load(B, B_shared, start, column, p.transpose_b)
        for chunk, A_tile, B_tile in zip(range_of(p.chunks), A_operands, B_operands, strict=True):
            if "A" in p.registers:
                T.copy(A_tiles[chunk], A_tile)
            if "B" in p.registers:
                T.copy(B_tiles[chunk], B_tile)
            if p.clears == "first" and chunk == 0:
                if k == 0:
                    T.gemm(A_tile, B_tile, C_local, p.transpose_a, p.transpose_b, policy, clear_accum=True)
                else:
                    T.gemm(A_tile, B_tile, C_local, p.transpose_a, p.transpose_b, policy)
            elif p.clears == "condition" and chunk == 0:
                T.gemm(A_tile, B_tile, C_local, p.transpose_a, p.transpose_b, policy, clear_accum=k == 0)
            else:
                T.gemm(A_tile, B_tile, C_local, p.transpose_a, p.transpose_b, policy)
    if "bias" in p.epilogue:
        T.copy(bias[column], bias_local)
        for i, j in T.Parallel(p.block_m, p.block_n):
            C_local[i, j] += bias_local[j]
    if "add" in p.epilogue:
        T.copy(C[row, column], C_cast)
        for i, j in T.Parallel(p.block_m, p.block_n):
            C_local[i, j] += C_cast[i, j]
    if "shared" in p.epilogue:
        T.copy(C_local, C_shared)
        T.copy(C_shared, C[row, column])
    elif p.epilogue == "cast":
        T.copy(C_local, C_cast)
        T.copy(C_cast, C[row, column])
    else:
        T.copy(C_local, C[row, column])


def range_of(count: int) -> list[int]:
    """A Python loop, not one of the device."""
    return list(range(count))


def product(A: Any, B: Any, bias: Any, C: Any, p: Problem) -> None:
    if p.dynamic:
        M, N, K = T.dynamic("M, N, K")
    else:
        M, N, K = T.const("M, N, K")
    A: T.Tensor((K, M) if p.transpose_a else (M, K), p.dtypes[0])
    B: T.Tensor((N, K) if p.transpose_b else (K, N), p.dtypes[1])
    bias: T.Tensor((N,), p.dtypes[2])
    C: T.Tensor((M, N), p.dtypes[3])
    rows, columns, k_tiles = T.ceildiv(M, p.block_m), T.ceildiv(N, p.block_n), T.ceildiv(K, p.block_k * p.chunks)
    x, y = p.cluster
    # A grid is made of whole clusters; the blocks beyond the matrix have nothing to do.
    grid = (p.persistent,) if p.persistent else (T.ceildiv(columns, x) * x, T.ceildiv(rows, y) * y)
    with T.Kernel(*grid, threads=p.threads, cluster_dims=(x, y, 1) if x * y > 1 else None) as blocks:
        A_tile = (p.block_k, p.block_m) if p.transpose_a else (p.block_m, p.block_k)
        B_tile = (p.block_n, p.block_k) if p.transpose_b else (p.block_k, p.block_n)
        A_tiles = [T.alloc_shared(A_tile, p.dtypes[0]) for _ in range_of(p.chunks)]
        B_tiles = [T.alloc_shared(B_tile, p.dtypes[1]) for _ in range_of(p.chunks)]
        A_operands = [T.alloc_fragment(A_tile, p.dtypes[0]) for _ in A_tiles] if "A" in p.registers else A_tiles
        B_operands = [T.alloc_fragment(B_tile, p.dtypes[1]) for _ in B_tiles] if "B" in p.registers else B_tiles
        C_tile = (p.block_m, p.block_n)
        C_local = T.alloc_fragment(C_tile, p.dtypes[2])
        C_shared = T.alloc_shared(C_tile, p.dtypes[3]) if "shared" in p.epilogue else None
        C_cast = T.alloc_fragment(C_tile, p.dtypes[3]) if p.epilogue == "cast" or "add" in p.epilogue else None
        bias_local = T.alloc_fragment((p.block_n,), p.dtypes[2]) if "bias" in p.epilogue else None
        for layout, shared_tiles in zip(p.layouts, (A_tiles, B_tiles), strict=True):
            if layout:
                T.annotate_layout({tile: given(layout, tile) for tile in shared_tiles})
        tiles = (A_tiles, B_tiles, A_operands, B_operands, C_local, C_shared, C_cast, bias_local)
        if p.persistent:
            for by, bx in T.Persistent([rows, columns], p.persistent, blocks, p.group):
                one_tile(A, B, bias, C, tiles, by, bx, k_tiles, p)
        else:
            if p.group:
                T.use_swizzle(p.group)
            one_tile(A, B, bias, C, tiles, blocks[1], blocks[0], k_tiles, p)


@functools.lru_cache(maxsize=64)
def compiled_for(target: str | None, specialize_warps: str | bool) -> JITFunction:
    """The kernel for a target (None: that of the card)."""
    return ptxtile.jit(product, target=target, specialize_warps=specialize_warps)

"""Loops over tiles that users write by hand, and groups of rows from a table in memory: they get a producer role, and
what they compute is right whatever the sizes of the groups, down to none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile import sim
from ptxtile.ir.gpu_ops import TmaLoad, TmaStore
from ptxtile.ir.statements import Specialized
from ptxtile.sim.delayed_effects import DelayedEffects
from tests.clusters.simulate import decisions, nodes, outputs, policies, specialized
from tests.ptxas import assemble

# --- loops over tiles ---------------------------------------------------------------------------------------------


@T.macro
def one_tile(A, B, C, tile, across, K):
    """C's tile number ``tile`` of 64x64, of which ``across`` lie side by side."""
    by, bx = tile // across, tile % across
    left, right = T.alloc_shared((64, 32), T.float16), T.alloc_shared((64, 32), T.float16)
    total = T.alloc_fragment((64, 64), T.float32)
    T.clear(total)
    for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
        T.copy(A[by * 64, k * 32], left)
        T.copy(B[bx * 64, k * 32], right)
        T.gemm(left, right, total, transpose_B=True)
    T.copy(total, C[by * 64, bx * 64])


@ptxtile.jit
def by_waves(A, B, ctas=3):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.float16)
    B: T.Tensor((N, K), T.float16)
    C = T.empty((M, N), T.float32)
    across, total = T.ceildiv(N, 64), T.ceildiv(N, 64) * T.ceildiv(M, 64)
    with T.Kernel(ctas, threads=128) as block:
        for wave in T.serial(T.ceildiv(total, ctas)):
            tile = block + wave * ctas
            if tile < total:
                one_tile(A, B, C, tile, across, K)
    return C


@ptxtile.jit
def by_while(A, B, ctas=3):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.float16)
    B: T.Tensor((N, K), T.float16)
    C = T.empty((M, N), T.float32)
    across, total = T.ceildiv(N, 64), T.ceildiv(N, 64) * T.ceildiv(M, 64)
    with T.Kernel(ctas, threads=128) as block:
        tile = T.alloc_var(T.int32, block)
        while tile < total:
            one_tile(A, B, C, tile, across, K)
            tile += ctas
    return C


@ptxtile.jit
def by_steps(A, B, ctas=3):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.float16)
    B: T.Tensor((N, K), T.float16)
    C = T.empty((M, N), T.float32)
    across, total = T.ceildiv(N, 64), T.ceildiv(N, 64) * T.ceildiv(M, 64)
    with T.Kernel(ctas, threads=128) as block:
        for tile in T.serial(block, total, ctas):
            one_tile(A, B, C, tile, across, K)
    return C


@ptxtile.jit
def until_break(A, B, ctas=3):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.float16)
    B: T.Tensor((N, K), T.float16)
    C = T.empty((M, N), T.float32)
    across, total = T.ceildiv(N, 64), T.ceildiv(N, 64) * T.ceildiv(M, 64)
    with T.Kernel(ctas, threads=128) as block:
        for wave in T.serial(total):
            tile = block + wave * ctas
            if tile >= total:
                break
            one_tile(A, B, C, tile, across, K)
    return C


@ptxtile.jit
def in_panels(A, B, ctas=0):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.float16)
    B: T.Tensor((N, K), T.float16)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), threads=128) as (bx, by):
        T.use_swizzle(2, order="column")
        one_tile(A, B, C, by * T.ceildiv(N, 64) + bx, T.ceildiv(N, 64), K)
    return C


@ptxtile.jit
def by_a_counter(A, B, tickets, ctas=3):
    """Whoever is done takes the next tile."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.float16)
    B: T.Tensor((N, K), T.float16)
    tickets: T.Tensor((1,), T.int32)
    C = T.empty((M, N), T.float32)
    across, total = T.ceildiv(N, 64), T.ceildiv(N, 64) * T.ceildiv(M, 64)
    with T.Kernel(ctas, threads=128):
        taken, tile = T.alloc_shared((1,), T.int32), T.alloc_var(T.int32, 0)
        while tile < total:
            if T.get_thread_binding() == 0:
                taken[0] = T.atomic_add(tickets[0], 1, return_prev=True)
            T.sync_threads()
            tile = taken[0]
            T.sync_threads()
            if tile < total:
                one_tile(A, B, C, tile, across, K)
    return C


def matrices(generator: np.random.Generator, *shape: int) -> torch.Tensor:
    """Small integers, whose products and sums are exact in float32."""
    return torch.from_numpy(generator.integers(-4, 5, shape)).half()


SIZES = [(200, 136, 104, 3), (64, 64, 64, 2), (64, 320, 40, 4)]


@pytest.mark.parametrize("function", [by_waves, by_while, by_steps, until_break, in_panels])
@pytest.mark.parametrize(("m", "n", "k", "ctas"), SIZES)
def test_loops_over_tiles(function: Any, m: int, n: int, k: int, ctas: int, random_generator) -> None:
    kernel = specialized(function, "sm_90a", M=m, N=n, K=k, ctas=ctas)
    assert nodes(kernel.program, Specialized), decisions(kernel, "kernel")
    assert nodes(kernel.program, TmaLoad) and nodes(kernel.program, TmaStore)
    assemble(kernel.ptx, "sm_90a")
    a, b = matrices(random_generator, m, k), matrices(random_generator, n, k)
    for effects in policies([m]):
        assert torch.equal(outputs(kernel.program, effects, A=a, B=b)["C"], a.float() @ b.float().T)


@pytest.mark.parametrize("target", ["sm_80", "sm_120a"])
@pytest.mark.parametrize("function", [by_waves, by_while])
def test_loops_over_tiles_elsewhere(function: Any, target: str, random_generator) -> None:
    kernel = specialized(function, target, M=200, N=136, K=104)
    assemble(kernel.ptx, target)
    a, b = matrices(random_generator, 200, 104), matrices(random_generator, 136, 104)
    assert torch.equal(outputs(kernel.program, DelayedEffects, A=a, B=b)["C"], a.float() @ b.float().T)


def test_tiles_that_ctas_take_as_they_are_done(random_generator) -> None:
    """The producer cannot know them: they come through shared memory."""
    kernel = specialized(by_a_counter, "sm_90a", M=200, N=136, K=104)
    (reason,) = decisions(kernel, "kernel")
    assert not nodes(kernel.program, Specialized) and "depends on taken" in reason, reason
    a, b = matrices(random_generator, 200, 104), matrices(random_generator, 136, 104)
    for effects in policies([1]):
        tickets = torch.zeros(1, dtype=torch.int32)
        found = outputs(kernel.program, effects, A=a, B=b, tickets=tickets)["C"]
        assert torch.equal(found, a.float() @ b.float().T)
        assert tickets.item() == 12 + 3


# --- groups of rows from a table --------------------------------------------------------------------------------------


@T.macro
def group_tile(X, W, C, g, at, rows, column, K, total, epilogue):
    """The product of 64 rows of X from ``at`` on, of which the first ``rows`` belong to group ``g``."""
    left, right = T.alloc_shared((64, 32), T.float16), T.alloc_shared((64, 32), T.float16)
    T.clear(total)
    for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):
        T.copy(X[at, k * 32], left)
        T.copy(W[g, column, k * 32], right)
        T.gemm(left, right, total, transpose_B=True)
    if epilogue == "masked":
        for i, j in T.Parallel(64, 64):
            if i < rows:
                C[at + i, column + j] = total[i, j]
    elif epilogue == "through shared":
        out = T.alloc_shared((64, 64), T.float32)
        T.copy(total, out)
        for i, j in T.Parallel(64, 64):
            if i < rows:
                C[at + i, column + j] = out[i, j]
    elif rows >= 64:
        T.copy(total, C[at, column])
    else:
        for i, j in T.Parallel(64, 64):
            if i < rows:
                C[at + i, column + j] = total[i, j]


@ptxtile.jit
def group_by_group(X, W, table, C, ctas=3, epilogue="masked"):
    """C[first + i] = X[first + i] · W[g]ᵀ for i < rows, where (first, rows) is table[g]; other rows of C stay."""
    groups, N, K, tokens = T.const("groups, N, K, tokens")
    X: T.Tensor((tokens, K), T.float16)
    W: T.Tensor((groups, N, K), T.float16)
    table: T.Tensor((groups, 2), T.int32)
    C: T.Tensor((tokens, N), T.float32)
    across = T.ceildiv(N, 64)
    with T.Kernel(ctas, threads=128) as block:
        total = T.alloc_fragment((64, 64), T.float32)
        before = T.alloc_var(T.int32, 0)
        for g in T.serial(groups):
            first, rows = table[g, 0], table[g, 1]
            tiles = T.ceildiv(rows, 64) * across
            start = (block - before) % ctas  # CTA b takes the tiles that are b modulo the CTAs, over all groups
            for wave in T.serial(T.ceildiv(tiles - start, ctas)):
                tile = start + wave * ctas
                row, column = tile // across * 64, tile % across * 64
                at = first + row
                T.assume(at >= 0)  # so that a TMA store may go there
                group_tile(X, W, C, g, at, rows - row, column, K, total, epilogue)
            before += tiles


@ptxtile.jit
def with_a_cursor(X, W, table, C, ctas=3, epilogue="masked"):
    """The same, tile by tile, with the group's number kept from one to the next."""
    groups, N, K, tokens = T.const("groups, N, K, tokens")
    X: T.Tensor((tokens, K), T.float16)
    W: T.Tensor((groups, N, K), T.float16)
    table: T.Tensor((groups, 2), T.int32)
    C: T.Tensor((tokens, N), T.float32)
    across = T.ceildiv(N, 64)
    with T.Kernel(ctas, threads=128) as block:
        total = T.alloc_fragment((64, 64), T.float32)
        g, tile, passed = T.alloc_var(T.int32, 0), T.alloc_var(T.int32, block), T.alloc_var(T.int32, 0)
        while g < groups:
            tiles = T.ceildiv(table[g, 1], 64) * across
            if tile - passed < tiles:
                row, column = (tile - passed) // across * 64, (tile - passed) % across * 64
                at = table[g, 0] + row
                T.assume(at >= 0)
                group_tile(X, W, C, g, at, table[g, 1] - row, column, K, total, epilogue)
                tile += ctas
            else:
                passed += tiles
                g += 1


@ptxtile.jit
def a_block_for_each_tile(X, W, table, C, ctas=3, epilogue="masked"):
    """The same, with as many blocks as there can be tiles."""
    groups, N, K, tokens = T.const("groups, N, K, tokens")
    X: T.Tensor((tokens, K), T.float16)
    W: T.Tensor((groups, N, K), T.float16)
    table: T.Tensor((groups, 2), T.int32)
    C: T.Tensor((tokens, N), T.float32)
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(tokens, 64) + groups, threads=128) as (bx, by):
        total = T.alloc_fragment((64, 64), T.float32)
        group, passed = T.alloc_var(T.int32, 0), T.alloc_var(T.int32, 0)
        while group < groups:
            tiles = T.ceildiv(table[group, 1], 64)
            if by - passed < tiles:
                break
            passed += tiles
            group += 1
        if group < groups:
            at = table[group, 0] + (by - passed) * 64
            T.assume(at >= 0)
            rows = table[group, 1] - (by - passed) * 64
            group_tile(X, W, C, group, at, rows, bx * 64, K, total, epilogue)


@dataclass(frozen=True)
class Groups:
    """Groups of rows somewhere in a matrix, in any order, with rows between them that belong to none."""

    table: torch.Tensor
    tokens: int

    @staticmethod
    def of(sizes: list[int], generator: np.random.Generator) -> Groups:
        first, end = {}, int(generator.integers(4))
        for g in generator.permutation(len(sizes)):
            first[int(g)] = end
            end += sizes[g] + int(generator.integers(3))
        rows = [[first[g], size] for g, size in enumerate(sizes)]
        return Groups(torch.tensor(rows, dtype=torch.int32), end + 1)

    def slices(self) -> list[slice]:
        return [slice(first, first + rows) for first, rows in self.table.tolist()]


RAGGED = [[70, 0, 64, 1, 130, 0], [0, 0, 0], [63, 65, 128, 127], [0, 5], [200]]
EPILOGUES = ["masked", "through shared", "copies of whole tiles"]


@pytest.mark.parametrize("function", [group_by_group, with_a_cursor, a_block_for_each_tile])
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("sizes", RAGGED, ids=str)
def test_products_of_groups(function: Any, epilogue: str, sizes: list[int], random_generator) -> None:
    n, k = 136, 72
    groups = Groups.of(sizes, random_generator)
    arguments = dict(groups=len(sizes), N=n, K=k, tokens=groups.tokens, epilogue=epilogue)
    kernel = specialized(function, "sm_90a", **arguments)
    assert nodes(kernel.program, Specialized), decisions(kernel, "kernel")
    assert bool(nodes(kernel.program, TmaStore)) == (epilogue == "copies of whole tiles")
    x, w = matrices(random_generator, groups.tokens, k), matrices(random_generator, len(sizes), n, k)
    wanted = torch.full((groups.tokens, n), -7777.0)
    for g, rows in enumerate(groups.slices()):
        wanted[rows] = x[rows].float() @ w[g].float().T
    for effects in policies([len(sizes)]):
        c = torch.full_like(wanted, -7777.0)
        sim.run(kernel.program, dict(X=x, W=w, table=groups.table, C=c), {}, effects=effects)
        assert torch.equal(c, wanted)


@ptxtile.jit
def products_over_groups(X, Y, table, num_stages=3):
    """C[g] = Xᵀ · Y over the rows of group g, for which T.Pipelined has as many iterations as they need."""
    groups, M, N, tokens = T.const("groups, M, N, tokens")
    X: T.Tensor((tokens, M), T.float16)
    Y: T.Tensor((tokens, N), T.float16)
    table: T.Tensor((groups, 2), T.int32)
    C = T.empty((groups, M, N), T.float32)
    with T.Kernel(T.ceildiv(N, 64), T.ceildiv(M, 64), groups, threads=128) as (bx, by, g):
        left, right = T.alloc_shared((32, 64), T.float16), T.alloc_shared((32, 64), T.float16)
        total = T.alloc_fragment((64, 64), T.float32)
        first, rows = table[g, 0], table[g, 1]
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(rows, 32), num_stages=num_stages):
            T.copy(X[first + k * 32, by * 64], left)
            T.copy(Y[first + k * 32, bx * 64], right)
            for i, j in T.Parallel(32, 64):
                if k * 32 + i >= rows:  # these rows are those of another group
                    left[i, j] = 0
            T.gemm(left, right, total, transpose_A=True)
        T.copy(total, C[g, by * 64, bx * 64])
    return C


@pytest.mark.parametrize("sizes", RAGGED, ids=str)
def test_products_over_groups(sizes: list[int], random_generator) -> None:
    groups = Groups.of(sizes, random_generator)
    kernel = specialized(products_over_groups, "sm_90a", groups=len(sizes), M=72, N=136, tokens=groups.tokens)
    assert nodes(kernel.program, Specialized), decisions(kernel, "kernel")
    x, y = matrices(random_generator, groups.tokens, 72), matrices(random_generator, groups.tokens, 136)
    wanted = torch.stack([x[rows].float().T @ y[rows].float() for rows in groups.slices()])
    for effects in policies([len(sizes)]):
        assert torch.equal(outputs(kernel.program, effects, X=x, Y=y, table=groups.table)["C"], wanted)


def test_a_table_that_the_kernel_writes_is_for_the_consumers(random_generator) -> None:
    @ptxtile.jit(specialize_warps=True)
    def kernel_function(A, table):
        A: T.Tensor((256, 32), T.float32)
        table: T.Tensor((4,), T.int32)
        C = T.empty((128, 32), T.float32)
        with T.Kernel(1, threads=128):
            S = T.alloc_shared((32, 32), T.float32)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(A[table[k], 0], S)
                T.copy(S, C[k * 32, 0])
                if T.get_thread_binding() == 0:
                    table[k] = 0
        return C

    kernel = specialized(kernel_function, "sm_90a")
    (reason,) = decisions(kernel, "kernel")
    assert not nodes(kernel.program, Specialized) and "table, which the kernel writes" in reason, reason
    a = matrices(random_generator, 256, 32).float()
    places = random_generator.integers(0, 224, 4)
    wanted = torch.cat([a[place : place + 32] for place in places])
    for effects in policies([0]):
        table = torch.from_numpy(places).int()
        assert torch.equal(outputs(kernel.program, effects, A=a, table=table)["C"], wanted)
        assert table.tolist() == [0, 0, 0, 0]

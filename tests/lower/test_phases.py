"""Nobody comes to the wait for a phase of an mbarrier when the next phase may be over as well."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.ir import gpu_ops as g
from ptxtile.ir.expressions import Expr, binary
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import For, Role, Statement, seq
from ptxtile.ir.tensor_core_ops import Wgmma
from tests.lower.hazard_programs import (
    THREAD,
    TRIPS,
    barriers,
    elected,
    loop,
    number,
    outline,
    program,
    read,
    registers,
    shared,
    synchronized,
    tensor,
    write,
)
from tests.lower.race_referee import faults

SIZE = 64
S, R = shared("S", 2 * SIZE), registers("R", 2)
BAR, START = barriers("bar", 2), "if[I I FI] B "


def load(k: Expr, stage: Expr | int = 0, thread: int = 0) -> Statement:
    index = stage if isinstance(stage, Expr) else number(stage)
    copy = g.TmaLoad("m", (binary("mul", k, SIZE),), S, binary("mul", index, SIZE), BAR, index)
    return elected(thread, g.MbarrierArriveExpectTx(BAR, index, 4 * SIZE), copy)


def wait(k: Expr, stage: Expr | int = 0, stages: int = 1) -> Statement:
    index = stage if isinstance(stage, Expr) else number(stage)
    return g.MbarrierWait(BAR, index, binary("and", binary("floordiv", k, stages), 1), (S,))


def check(*body: Statement, expected: str, arrivals: int = 1) -> None:
    start = elected(0, *(g.MbarrierInit(BAR, number(i), arrivals) for i in (0, 1)), g.FenceMbarrierInit())
    p = program(start, g.BarSync(0, 64), *body, threads=64, tensors=(tensor("T"),), maps=(("m", "T", SIZE),))
    q = synchronized(p)
    assert outline(q) == START + expected
    for n in (1, 2, 4):
        assert faults(q, n=n) == []


def test_a_tile_that_nobody_reads_is_loaded_again_behind_a_barrier() -> None:
    check(loop("k", TRIPS, lambda k: seq(load(k), wait(k))), expected="for[B if[E TL] W]")
    check(load(number(0)), wait(number(0)), load(number(1)), wait(number(1)), expected="if[E TL] W B if[E TL] W")


def test_a_tile_that_the_loading_thread_reads_alone() -> None:
    use = elected(0, write(R, 0, read(S, 3)))
    check(loop("k", TRIPS, lambda k: seq(load(k), wait(k), use)), expected="for[Fs B if[E TL] W if[S]]")


def test_the_barrier_for_the_reuse_of_the_tile_is_enough() -> None:
    use = write(R, 0, read(S, binary("sub", number(SIZE - 1), THREAD)))
    check(loop("k", TRIPS, lambda k: seq(load(k), wait(k), use)), expected="for[Fs B if[E TL] W S]")


def test_stages_have_phases_of_their_own() -> None:
    """Two loads by turns: the mbarrier of the other stage may go on."""
    turn = lambda k: binary("and", k, 1)  # noqa: E731
    once = seq(load(number(0), 0), load(number(1), 1), wait(number(0), 0), wait(number(1), 1, 2))
    check(once, expected="if[E TL] if[E TL] W W")
    check(loop("k", TRIPS, lambda k: seq(load(k, turn(k)), wait(k, turn(k), 2))), expected="for[B if[E TL] W]")


def test_those_who_wait_and_arrive_themselves_need_no_barrier() -> None:
    body = lambda k: seq(g.MbarrierArrive(BAR, number(0)), wait(k))  # noqa: E731
    check(loop("k", TRIPS, body), expected="for[A W]", arrivals=64)


A_SHAPE = (6, 64, 64)


@ptxtile.jit(target="sm_90a")
def through_shared_memory(A, B):
    """One thread loads and stores: nothing but the mbarrier would hold it back."""
    A: T.Tensor(A_SHAPE, T.float32)
    B: T.Tensor(A_SHAPE, T.float32)
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((64, 64), T.float32)
        for k in range(6):
            T.copy(A[k, 0, 0], tile)
            T.copy(tile, B[k, 0, 0])


@ptxtile.jit(target="sm_90a")
def read_by_one_thread(A, B):
    A: T.Tensor(A_SHAPE, T.float32)
    B: T.Tensor(A_SHAPE, T.float32)
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((64, 64), T.float32)
        for k in range(6):
            T.copy(A[k, 0, 0], tile)
            if T.get_thread_binding() == 0:
                B[k, 0, 0] = tile[0, 0]


@ptxtile.jit(target="sm_90a")
def loading_role(A, B):
    """The first thread of a role stores a tile and arrives for all."""
    A: T.Tensor(A_SHAPE, T.float32)
    B: T.Tensor(A_SHAPE, T.float32)
    with T.Kernel(1, threads=256):
        tile = T.alloc_shared((64, 64), T.float32)
        full, empty = T.alloc_barrier(128), T.alloc_barrier(1)
        with T.ws(0):
            for k in range(6):
                T.barrier_wait(empty, (k & 1) ^ 1)
                for i, j in T.Parallel(64, 64):
                    tile[i, j] = A[k, i, j]
                T.barrier_arrive(full)
        with T.ws(1):
            for k in range(6):
                T.barrier_wait(full, k & 1)
                T.copy(tile, B[k, 0, 0])
                if T.get_thread_binding() == 128:
                    T.barrier_arrive(empty)


@pytest.mark.parametrize("kernel", [through_shared_memory, read_by_one_thread, loading_role])
def test_the_checker_finds_nothing(kernel) -> None:
    a, b = torch.randn(A_SHAPE), torch.zeros(A_SHAPE)
    assert not kernel.check(a, b).findings
    expected = torch.zeros(A_SHAPE)
    part = (slice(None), 0, 0) if kernel is read_by_one_thread else slice(None)
    expected[part] = a[part]
    kernel(a, b)
    assert torch.equal(b, expected)


@ptxtile.jit(target="sm_90a")
def product_with_one_arrival(A, B, C):
    """A warpgroup that multiplies has waited as a whole, so that one of its threads speaks for it."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    C: T.Tensor((M, N), T.float32)
    with T.Kernel(1, threads=256):
        left, right = T.alloc_shared((128, 64), T.bfloat16), T.alloc_shared((64, 64), T.bfloat16)
        full, empty = T.alloc_barrier(128), T.alloc_barrier(1)
        with T.ws(1):
            for k in range(K // 64):
                T.barrier_wait(empty, (k & 1) ^ 1)
                T.copy(A[0, k * 64], left)
                T.copy(B[0, k * 64], right)
                T.barrier_arrive(full)
        with T.ws(0):
            total = T.alloc_fragment((128, 64), T.float32)
            T.clear(total)
            for k in range(K // 64):
                T.barrier_wait(full, k & 1)
                T.gemm(left, right, total, transpose_B=True)
                if T.get_thread_binding() == 0:
                    T.barrier_arrive(empty)
            T.copy(total, C)


def test_one_thread_of_a_warpgroup_speaks_for_its_wgmma() -> None:
    kernel = product_with_one_arrival.compile(M=128, N=64, K=256)
    roles = {node.name: node for node in walk(kernel.program.kernels[0].body) if isinstance(node, Role)}
    (rounds,) = (node for node in walk(roles["group_0"].body) if isinstance(node, For) and _multiplies(node))
    assert not any(isinstance(node, g.BarSync) for node in walk(rounds))
    a, b, c = torch.randn(128, 256).bfloat16(), torch.randn(64, 256).bfloat16(), torch.zeros(128, 64)
    assert not product_with_one_arrival.check(a, b, c).findings


def _multiplies(node: Statement) -> bool:
    return any(isinstance(inner, Wgmma) for inner in walk(node))

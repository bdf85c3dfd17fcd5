"""Barriers of the grid: what goes in front of them, how the kernel is launched, where they may not stand; and the
other functions in which threads meet, where they are used wrongly."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import DeadlockError, PtxtileError, SimulationError
from ptxtile.ir.gpu_ops import BulkWaitGroup, FenceProxyAsync
from ptxtile.ir.manual_ops import GridSync
from ptxtile.ir.rewrite import walk


@ptxtile.jit
def meeting(A, B, through="tma"):
    A: T.Tensor((4, 32, 32), T.float32)
    B: T.Tensor((4, 32, 32), T.float32)
    with T.Kernel(4, threads=128) as block:
        S = T.alloc_shared((32, 32), T.float32)
        T.copy(A[block, 0, 0], S)
        if through == "tma":
            T.copy(S, B[block, 0, 0])
        else:
            for i, j in T.Parallel(32, 32):
                B[block, i, j] = S[i, j]
        T.sync_grid()
        T.copy(B[(block + 1) % 4, 0, 0], S, disable_tma=through == "nothing")
        for i, j in T.Parallel(32, 32):
            A[block, i, j] = S[i, j]


def before_the_barrier(through: str, target: str | None = None) -> list[str]:
    tensors = {"A": torch.zeros(4, 32, 32), "B": torch.zeros(4, 32, 32)}
    kernel = ptxtile.jit(meeting.__wrapped__, target=target) if target else meeting
    program = kernel.compile(**tensors, through=through).variant.lowered().program
    assert [launch.cooperative for launch in program.launch.launches] == [True]
    statements = [n for n in walk(program.kernels[0].body)]
    position = next(k for k, node in enumerate(statements) if isinstance(node, GridSync))
    found = []
    for node in reversed(statements[:position]):
        if isinstance(node, BulkWaitGroup):
            found.append("wait for reads" if node.read else "wait")
        elif isinstance(node, FenceProxyAsync):
            found.append(f"fence {node.space}")
        else:
            break
    return found[::-1]


def test_what_tma_did_is_complete_and_ordered() -> None:
    assert before_the_barrier("tma") == ["wait", "fence global"]
    assert before_the_barrier("elements") == ["fence global", "fence shared"]  # the latter for the tile's next load
    assert before_the_barrier("tma", "sm_80") == []


def test_no_roles_where_the_grid_meets() -> None:
    @ptxtile.jit(target="sm_90a", specialize_warps=True)
    def kernel(A):
        A: T.Tensor((64, 64), T.float32)
        with T.Kernel(1, threads=128):
            S = T.alloc_shared((64, 64), T.float32)
            T.copy(A, S)
            T.sync_grid()
            T.copy(S, A)

    why = kernel.compile(A=torch.zeros(64, 64)).why
    assert any("T.sync_grid" in record.reason for record in why if record.pass_name == "specialize_warps")


# --- mistakes -------------------------------------------------------------------------------------------------------


def message(body, kind: type[Exception] = PtxtileError, blocks: int = 2) -> str:
    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((128, 128), T.float32)
        with T.Kernel(blocks, threads=256):
            body(A)

    with pytest.raises(kind) as caught:
        kernel(torch.arange(128.0 * 128).reshape(128, 128))
    return str(caught.value)


@T.macro
def the_grid_in_a_role(A):
    with T.ws(0):
        T.sync_grid()


@T.macro
def the_grid_in_a_parallel_loop(A):
    for i in T.Parallel(64):
        T.sync_grid()


@T.macro
def the_grid_in_a_branch(A):
    if T.get_thread_binding() > 4:
        T.sync_grid()


@T.macro
def the_grid_in_a_pipelined_loop(A):
    for k in T.Pipelined(4, num_stages=2):
        S = T.alloc_shared((32, 32), T.float32)
        T.copy(A[k * 32, 0], S)
        T.sync_grid()


@T.macro
def the_grid_of_some_blocks(A):
    if T.get_block_binding() == 0:
        T.sync_grid()


@T.macro
def a_count_in_a_branch(A):
    if T.get_thread_binding() > 4:
        A[0, 0] = T.syncthreads_count(1)


@T.macro
def a_count_in_a_parallel_loop(A):
    for i in T.Parallel(64):
        A[i, 0] = T.syncthreads_or(A[i, 1] > 0)


@T.macro
def a_count_of_floats(A):
    A[0, 0] = T.syncthreads_and(A[1, 1])


@T.macro
def no_lanes(A):
    T.sync_warp(0)


@T.macro
def a_mask_of_floats(A):
    A[0, 0] = T.any_sync(1, mask=A[0, 0])


@T.macro
def too_many_lanes(A):
    A[0, 0] = T.match_any_sync(3, 1 << 32)


@T.macro
def a_bool_is_matched(A):
    A[0, 0] = T.match_all_sync(A[0, 0] > 0)


@T.macro
def lanes_that_do_not_come(A):
    if T.get_lane_idx() < 8:
        T.sync_warp(0xFFFF)


@T.macro
def a_lane_that_is_not_named(A):
    T.sync_warp(0xFFFF)


@T.macro
def a_source_outside_of_the_mask(A):
    if T.get_lane_idx() < 8:
        A[0, 0] = T.shfl_sync(T.get_lane_idx(), 9, mask=0xFF)


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (the_grid_in_a_role, PtxtileError, "T.sync_grid inside of T.ws"),
        (the_grid_in_a_parallel_loop, PtxtileError, "T.sync_grid inside of T.Parallel"),
        (the_grid_in_a_branch, PtxtileError, "this T.sync_grid() is reached by only some of the threads"),
        (the_grid_in_a_pipelined_loop, PtxtileError, "got:      num_stages=2"),
        (the_grid_of_some_blocks, DeadlockError, "waits for the grid: 1 of 2 CTAs have not arrived"),
        (a_count_in_a_branch, PtxtileError, "this T.syncthreads_count is reached by only some of the threads"),
        (a_count_in_a_parallel_loop, PtxtileError, "T.syncthreads_or inside of T.Parallel"),
        (a_count_of_floats, PtxtileError, "expected: a bool or an integer"),
        (no_lanes, PtxtileError, "the mask of T.sync_warp"),
        (a_mask_of_floats, PtxtileError, "the mask of T.any_sync"),
        (too_many_lanes, PtxtileError, "the mask of T.match_any_sync"),
        (a_bool_is_matched, PtxtileError, "T.match_all_sync of bool"),
        (lanes_that_do_not_come, SimulationError, "expected: lane 8 with the mask 0x0000ffff of lane 0"),
        (a_lane_that_is_not_named, SimulationError, "by a lane that its mask does not name"),
        (a_source_outside_of_the_mask, SimulationError, "from a lane outside of its mask"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_errors(body, kind: type[Exception], words: str) -> None:
    found = message(body, kind)
    assert words in found and "test_order_grid_barriers.py" in found, found

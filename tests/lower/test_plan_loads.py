"""TMA loads of kernels without roles: issue, wait, parities; run in the simulator against torch."""

from __future__ import annotations

import pytest
import torch

from ptxtile.ir.gpu_ops import MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ptxtile.ir.program import Program
from ptxtile.ir.tile_ops import Copy, TmaCopy
from ptxtile.lower import plan_loads, select_paths, specialize_warps
from ptxtile.lower.options import Options
from tests.lower.kernel_texts import apply, body_text, kernel_program, nodes, simulated, text

DECLARATIONS = "X = tensor(float32, (64, 64))\nY = tensor(float32, (64, 64))"


def planned(body: str, declarations: str = DECLARATIONS) -> Program:
    return apply(plan_loads, kernel_program(text(body), declarations, grid="(4, 1, 1)"))


def test_the_first_load_is_issued_by_the_thread_that_initialises_the_barrier():
    body = """
    S = allocate_shared(float32, (16, 64))
    row: int32 = bx * 16
    copy(X[row, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
    copy(S, Y[row, 0].tile(16, 64), path=CopyPath.VECTOR)
    """
    assert body_text(planned(body)) == text(
        """
        S = allocate_shared(float32, (16, 64))
        row: int32 = bx * 16
        kernel_loaded = allocate_barrier(uint64, (1,), storage_alignment=8)
        if tx == 0:
            mbarrier_init(barrier=kernel_loaded, index=0, arrivals=1)
            fence_mbarrier_init()
            mbarrier_arrive_expect_tx(barrier=kernel_loaded, index=0, bytes=4096)
            tma_copy(X[row, 0].tile(16, 64), S, barrier=kernel_loaded, index=0)
        bar_sync(id=0, threads=128)
        mbarrier_wait(barrier=kernel_loaded, index=0, parity=0, retires=(S,))
        copy(S, Y[row, 0].tile(16, 64), path=CopyPath.VECTOR)
        """
    )


def test_a_later_load_is_issued_where_it_stands():
    body = """
    S = allocate_shared(float32, (16, 64))
    fill(S, float32(0.0))
    copy(X[0, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
    """
    assert body_text(planned(body)) == text(
        """
        kernel_loaded = allocate_barrier(uint64, (1,), storage_alignment=8)
        if tx == 0:
            mbarrier_init(barrier=kernel_loaded, index=0, arrivals=1)
            fence_mbarrier_init()
        bar_sync(id=0, threads=128)
        S = allocate_shared(float32, (16, 64))
        fill(S, float32(0.0))
        if tx == 0:
            mbarrier_arrive_expect_tx(barrier=kernel_loaded, index=0, bytes=4096)
            tma_copy(X[0, 0].tile(16, 64), S, barrier=kernel_loaded, index=0)
        mbarrier_wait(barrier=kernel_loaded, index=0, parity=0, retires=(S,))
        """
    )


def test_a_load_in_a_loop_has_a_parity_that_flips():
    body = """
    S = allocate_shared(float32, (16, 64))
    for k in serial(0, 4):
        copy(X[k * 16, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
    """
    assert text(
        """
        kernel_phase_0 = allocate_local(int32, (), storage_alignment=4)
        kernel_phase_0[()] = 0
        S = allocate_shared(float32, (16, 64))
        for k in serial(0, 4):
            if tx == 0:
                mbarrier_arrive_expect_tx(barrier=kernel_loaded, index=0, bytes=4096)
                tma_copy(X[k * 16, 0].tile(16, 64), S, barrier=kernel_loaded, index=0)
            mbarrier_wait(barrier=kernel_loaded, index=0, parity=kernel_phase_0[()], retires=(S,))
            kernel_phase_0[()] = kernel_phase_0[()] ^ 1
        """
    ) in body_text(planned(body))


def test_every_group_has_an_mbarrier_of_its_own():
    body = """
    S = allocate_shared(float32, (16, 64))
    copy(X[0, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
    if bx == 0:
        copy(X[16, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
    for k in serial(0, 4):
        copy(X[k * 16, 0].tile(16, 64), S, path=CopyPath.TMA_LOAD)
    """
    result = planned(body)
    for kind in (MbarrierInit, MbarrierArriveExpectTx, MbarrierWait):
        assert [node.index.value for node in nodes(result, kind)] == [0, 1, 2]
    assert not nodes(result, Copy) and len(nodes(result, TmaCopy)) == 3


@pytest.mark.parametrize(
    "body", ["pass", "S = allocate_shared(float32, (16, 64))\ncopy(S, X[0, 0].tile(16, 64), path=CopyPath.TMA_STORE)"]
)
def test_without_tma_loads_only_the_stage_changes(body: str):
    given = kernel_program(body, DECLARATIONS)
    result = apply(plan_loads, given)
    assert result.stage == "async" and result.kernels[0] is given.kernels[0]


def test_kernels_with_roles_are_left_alone():
    body = """
    S = allocate_shared(float32, (16, 64))
    copy(X[bx * 16, 0].tile(16, 64), S)
    copy(S, Y[bx * 16, 0].tile(16, 64))
    """
    options = Options(specialize_warps=True)
    split = apply(
        specialize_warps,
        apply(select_paths, kernel_program(text(body), DECLARATIONS), options=options),
        options=options,
    )
    assert apply(plan_loads, split).kernels[0] is split.kernels[0]


# ---- in the simulator


def run(body: str, x: torch.Tensor) -> torch.Tensor:
    """Y after the kernel, which must have loaded something through TMA."""
    y = torch.full((64, 64), float("nan"))
    result = simulated(kernel_program(text(body), DECLARATIONS, grid="(4, 1, 1)"), X=x, Y=y)
    assert nodes(result, MbarrierWait), "no load took the TMA path"
    return y


def test_loads_at_block_level_with_an_allocation_in_between():
    body = """
    S = allocate_shared(float32, (16, 64))
    copy(X[bx * 16, 0].tile(16, 64), S)
    T = allocate_shared(float32, (16, 64))
    copy(X[48 - bx * 16, 0].tile(16, 64), T)
    for i, j in parallel(16, 64):
        Y[bx * 16 + i, j] = S[i, j] + T[i, j]
    """
    x = torch.randn(64, 64)
    assert torch.equal(run(body, x), x + x.reshape(4, 16, 64).flip(0).reshape(64, 64))


@pytest.mark.parametrize("trips", [1, 2, 3, 4])
def test_loads_in_nested_loops_keep_their_parity_over_all_rounds(trips: int):
    """An odd number of inner rounds leaves the parity at 1 for the next outer round."""
    body = f"""
    S = allocate_shared(float32, (16, 64))
    F = allocate_fragment(float32, (16, 64))
    fill(F, float32(0.0))
    for outer in serial(0, 3):
        for k in serial(0, {trips}):
            copy(X[k * 16, 0].tile(16, 64), S)
            for i, j in parallel(16, 64):
                F[i, j] = F[i, j] * float32(2.0) + S[i, j]
    copy(F, Y[bx * 16, 0].tile(16, 64))
    """
    x = torch.randn(64, 64)
    expected = torch.zeros(16, 64)
    for _ in range(3):
        for k in range(trips):
            expected = expected * 2 + x[16 * k : 16 * k + 16]
    torch.testing.assert_close(run(body, x), expected.repeat(4, 1), rtol=1e-5, atol=1e-5)


def test_loads_under_conditions_of_the_block():
    body = """
    S = allocate_shared(float32, (16, 64))
    if bx < 2:
        copy(X[bx * 16, 0].tile(16, 64), S)
    else:
        copy(X[0, 0].tile(16, 64), S)
    copy(S, Y[bx * 16, 0].tile(16, 64))
    """
    x = torch.randn(64, 64)
    assert torch.equal(run(body, x), torch.cat([x[:32], x[:16], x[:16]]))


def test_loads_under_conditions_in_a_loop():
    """The group runs in some rounds only, and its parity flips in those only."""
    body = """
    S = allocate_shared(float32, (16, 64))
    F = allocate_fragment(float32, (16, 64))
    fill(F, float32(0.0))
    for k in serial(0, 8):
        if k % 3 == bx % 3:
            copy(X[k % 4 * 16, 0].tile(16, 64), S)
            for i, j in parallel(16, 64):
                F[i, j] = F[i, j] + S[i, j]
    copy(F, Y[bx * 16, 0].tile(16, 64))
    """
    x = torch.randn(64, 64)
    tiles = x.reshape(4, 16, 64)
    expected = [sum((tiles[k % 4] for k in range(8) if k % 3 == b % 3), torch.zeros(16, 64)) for b in range(4)]
    torch.testing.assert_close(run(body, x), torch.cat(expected), rtol=1e-6, atol=1e-6)


def test_a_loop_that_is_left_early():
    body = """
    S = allocate_shared(float32, (16, 64))
    copy(X[0, 0].tile(16, 64), S)
    for k in serial(0, 4):
        if k > bx:
            break
        copy(X[k * 16, 0].tile(16, 64), S)
    copy(S, Y[bx * 16, 0].tile(16, 64))
    """
    x = torch.randn(64, 64)
    assert torch.equal(run(body, x), x)


def test_a_while_loop():
    body = """
    S = allocate_shared(float32, (16, 64))
    k = allocate_local(int32, ())
    k[()] = 0
    while k[()] <= bx:
        copy(X[k[()] * 16, 0].tile(16, 64), S)
        k[()] = k[()] + 1
    copy(S, Y[bx * 16, 0].tile(16, 64))
    """
    x = torch.randn(64, 64)
    assert torch.equal(run(body, x), x)


def test_tiles_that_hang_over_the_tensor():
    """TMA fills the rest of the box with zeros, and all its bytes count on the mbarrier."""
    body = """
    S = allocate_shared(float32, (32, 64))
    copy(X[bx * 16 - 8, 0].tile(32, 64), S)
    for i, j in parallel(16, 64):
        Y[bx * 16 + i, j] = S[i, j] + S[i + 16, j]
    """
    x = torch.randn(64, 64)
    padded = torch.cat([torch.zeros(8, 64), x, torch.zeros(24, 64)])
    expected = torch.cat([padded[16 * b : 16 * b + 16] + padded[16 * b + 16 : 16 * b + 32] for b in range(4)])
    assert torch.equal(run(body, x), expected)

"""Pipelined loops taken apart: groups in front, one wait and one barrier an iteration, versions by stage.

What the loops compute is tested in tests/gemm/test_async_pipelines.py.
"""

from __future__ import annotations

import pytest

from ptxtile.ir.async_copy_ops import CpAsyncCommitGroup
from ptxtile.ir.program import Program
from ptxtile.ir.statements import Allocate
from ptxtile.lower import plan_async_copies
from tests.lower.kernel_texts import apply, body_text, kernel_program, nodes, reasons, text

DECLARATIONS = """
n = symbol(int32)
A = tensor(float32, (256, 256))
C = tensor(float32, (256, 256))
"""
LOOP = """
S = allocate_shared(float32, (16, 64))
for k in pipelined({start}, {stop}, num_stages={stages}):
    place: int32 = k * 16
    copy(A[place, bx * 64].tile(16, 64), S, path=CopyPath.VECTOR)
    copy(S, C[place, bx * 64].tile(16, 64), path=CopyPath.VECTOR)
"""


def planned(body: str) -> Program:
    return apply(plan_async_copies, kernel_program(text(body), DECLARATIONS, grid="(4, 1, 1)"), "sm_80")


def test_a_known_trip_count() -> None:
    assert body_text(planned(LOOP.format(start=0, stop=8, stages=3))) == text("""
        S = allocate_shared(float32, (3, 16, 64))
        place_1: int32 = 0 * 16
        copy(A[place_1, bx * 64].tile(16, 64), S[0, 0, 0].tile(1, 16, 64), path=CopyPath.CP_ASYNC, coalesced_width=4)
        cp_async_commit_group()
        place_2: int32 = 1 * 16
        copy(A[place_2, bx * 64].tile(16, 64), S[1, 0, 0].tile(1, 16, 64), path=CopyPath.CP_ASYNC, coalesced_width=4)
        cp_async_commit_group()
        for k in serial(0, 8):
            cp_async_wait_group(pending=1, retires=(S,))
            bar_sync(id=0, threads=128)
            if k + 2 < 8:
                place_3: int32 = (k + 2) * 16
                copy(A[place_3, bx * 64].tile(16, 64), S[(k + 2) % 3, 0, 0].tile(1, 16, 64), path=CopyPath.CP_ASYNC, coalesced_width=4)
            cp_async_commit_group()
            k_stage: int32 = k % 3
            place: int32 = k * 16
            copy(S[k_stage, 0, 0].tile(1, 16, 64), C[place, bx * 64].tile(16, 64), path=CopyPath.VECTOR)
        cp_async_wait_group(pending=0, retires=(S,))
    """)  # noqa: E501


def test_bounds_that_are_not_known() -> None:
    assert body_text(planned(LOOP.format(start="bx", stop="n", stages=2))) == text("""
        S = allocate_shared(float32, (2, 16, 64))
        k_trips: int32 = n - bx
        if 0 < k_trips:
            place_1: int32 = (bx + 0) * 16
            copy(A[place_1, bx * 64].tile(16, 64), S[0, 0, 0].tile(1, 16, 64), path=CopyPath.CP_ASYNC, coalesced_width=4)
        cp_async_commit_group()
        for k_step in serial(0, k_trips):
            cp_async_wait_group(pending=0, retires=(S,))
            bar_sync(id=0, threads=128)
            if k_step + 1 < k_trips:
                place_2: int32 = (bx + (k_step + 1)) * 16
                copy(A[place_2, bx * 64].tile(16, 64), S[(k_step + 1) % 2, 0, 0].tile(1, 16, 64), path=CopyPath.CP_ASYNC, coalesced_width=4)
            cp_async_commit_group()
            k_stage: int32 = k_step % 2
            k: int32 = bx + k_step
            place: int32 = k * 16
            copy(S[k_stage, 0, 0].tile(1, 16, 64), C[place, bx * 64].tile(16, 64), path=CopyPath.VECTOR)
        cp_async_wait_group(pending=0, retires=(S,))
    """)  # noqa: E501


@pytest.mark.parametrize("trips", [2, 3, 4])
def test_a_short_loop_is_loaded_in_front(trips: int) -> None:
    """As many versions and groups as iterations, and no loads inside of the loop."""
    program = planned(LOOP.format(start=5, stop=5 + trips, stages=4))
    (tile,) = nodes(program, Allocate)
    assert tile.buffer.static_shape == (trips, 16, 64)
    assert len(nodes(program, CpAsyncCommitGroup)) == trips + 1
    front, _, steady = body_text(program).partition("for k_step")
    assert front.count("CP_ASYNC") == trips
    assert "CP_ASYNC" not in steady
    assert f"cp_async_wait_group(pending={trips - 1}, " in steady


@pytest.mark.parametrize(("stages", "stop"), [(0, 8), (1, 8), (3, 1), (3, 0)])
def test_loops_without_stages_and_of_one_iteration_stay(stages: int, stop: int) -> None:
    written = kernel_program(text(LOOP.format(start=0, stop=stop, stages=stages)), DECLARATIONS, grid="(4, 1, 1)")
    assert apply(plan_async_copies, written, "sm_80") == written


def test_copies_outside_of_pipelined_loops_stay() -> None:
    body = LOOP.format(start=0, stop=8, stages=3).replace("pipelined(0, 8, num_stages=3)", "serial(0, 8)")
    written = kernel_program(text(body), DECLARATIONS, grid="(4, 1, 1)")
    assert apply(plan_async_copies, written, "sm_80") == written


def test_another_round_begins_behind_a_barrier() -> None:
    """In a loop over tiles the last iterations of one tile have to be over before the next tile is loaded."""
    body = LOOP.format(start=0, stop=8, stages=3).strip().splitlines()
    outer = "\n".join([body[0], "for t in serial(0, 4):", *("    " + line for line in body[1:])])
    lines = body_text(planned(outer)).splitlines()
    barriers = [position for position, line in enumerate(lines) if "bar_sync" in line]
    first_load = next(position for position, line in enumerate(lines) if "CP_ASYNC" in line)
    assert len(barriers) == 2
    assert lines[1] == "for t in serial(0, 4):"
    assert 1 < barriers[0] < first_load < barriers[1]


def test_why() -> None:
    program = planned(LOOP.format(start=0, stop=8, stages=3))
    assert reasons(program, "plan_async_copies") == [
        "a loop of 3 stages, and no producer loads the tile; 16 bytes at a time"
    ]

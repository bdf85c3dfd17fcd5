"""What layout inference learns about each parallel loop: threads, vector width, fragment accesses and the loops
around."""

from __future__ import annotations

import pytest

from ptxtile.ir.program import Program
from ptxtile.lower.parallel_loops import LoopCollection, base_alignments, collect_loops
from tests.lower.kernel_texts import kernel_program, text

DECLARATIONS = """
M = symbol(int32)
A = tensor(float32, (128, 128))
B = tensor(float32, (128, 128), alignment=8)
H = tensor(float16, (128, 128))
U = tensor(float32, (128, M))
"""
TILES = """
S = allocate_shared(float32, (128, 128))
F = allocate_fragment(float32, (128, 128))
G = allocate_fragment(float32, (4, 128))
r = allocate_fragment(float32, (128,))
"""


def program(body: str) -> Program:
    return kernel_program(text(TILES) + "\n" + text(body), DECLARATIONS, stage="async", threads=128)


def collected(body: str) -> LoopCollection:
    source = program(body)
    return collect_loops(source, source.kernels[0])


def loop(inside: str, options: str = "", extents: str = "128, 128") -> str:
    return f"for i, j in parallel({extents}{options}):\n    {inside}"


@pytest.mark.parametrize(
    ("body", "width"),
    [
        (loop("A[i, j] = float32(0.0)"), 4),
        (loop("H[i, j] = float16(0.0)"), 8),
        (loop("H[i, j] = cast(A[i, j], float16)"), 4),  # the narrowest
        (loop("B[i, j] = A[i, j]"), 2),
        (loop("A[j, i] = A[i, j]"), 4),  # an access that allows none does not count
        (loop("A[j, i] = float32(0.0)"), 1),
        (loop("U[i, j] = float32(0.0)"), 1),
        (loop("F[i, j] = float32(0.0)"), 1),  # fragments are no memory
        (loop("S[i, j] = F[i, j]"), 4),
        (loop("A[i, j] = float32(0.0)", extents="128, 126"), 2),
        (loop("A[i, j] = float32(0.0)", ", coalesced_width=2"), 2),
        (loop("A[i, j] = float32(0.0)", ", coalesced_width=3"), 2),
        (loop("A[i, j] = float32(0.0)", ", coalesced_width=1"), 1),
        (loop("A[i, j] = float32(0.0)", ", coalesced_width=0"), 1),
        (loop("A[i, j] = float32(0.0)", ", coalesced_width=64"), 4),
        (loop("if j < M:\n        A[i, j] = float32(0.0)"), 1),
        (loop("if j < M * 4:\n        A[i, j] = float32(0.0)"), 4),
        (loop("A[i, j] = B[i, j] if j < 64 else float32(0.0)"), 2),
    ],
)
def test_the_width_that_the_memory_accesses_allow(body: str, width: int):
    (found,) = collected(body).loops
    assert found.width == width


def test_iterations_and_the_group_of_threads():
    (found,) = collected(loop("A[i, j] = float32(0.0)", extents="16, 32")).loops
    assert (found.iterations, found.first_thread, found.threads, found.accesses) == (512, 0, 128, ())


def test_loops_of_roles_belong_to_the_roles_threads():
    body = """
    with specialized():
        with role("consumer", first_thread=0, threads=32):
            for i in parallel(128):
                r[i] = float32(0.0)
        with role("producer", first_thread=32, threads=96):
            for j in parallel(128):
                S[j, 0] = float32(0.0)
    for k in parallel(128):
        S[k, 1] = float32(0.0)
    """
    found = [(entry.first_thread, entry.threads) for entry in collected(body).loops]
    assert found == [(0, 32), (32, 96), (0, 128)]


def test_fragment_accesses_in_order_with_reads_before_the_write():
    (found,) = collected(loop("F[i, j] = F[j, i] + r[i]")).loops
    entries = [(a.buffer.name, a.is_write, a.is_identity(found.loop)) for a in found.accesses]
    assert sorted(entries) == [("F", False, False), ("F", True, True), ("r", False, False)]


def test_loops_with_constant_bounds_around_and_inside_are_axes_where_the_index_uses_them():
    body = """
    for k in serial(0, 4):
        for h in serial(6, 0, -2):
            for n in serial(0, M):
                for i in parallel(128):
                    for q in serial(1, 3):
                        G[k, i] = F[i, q] + F[h, i] + F[n, i] + r[i]
    """
    (found,) = collected(body).loops
    axes = {
        (access.buffer.name, str([a.var.name for a in access.axes])): [(a.start, a.count, a.step) for a in access.axes]
        for access in found.accesses
    }
    assert axes == {
        ("G", "['k']"): [(0, 4, 1)],
        ("F", "['q']"): [(1, 2, 1)],
        ("F", "['h']"): [(6, 3, -2)],
        ("F", "[]"): [],  # M rounds: not known, so that the access cannot be enumerated
        ("r", "[]"): [],
    }


@pytest.mark.parametrize(
    ("leave", "is_axis"),
    [
        ("if k == bx:\n            break", False),
        ("if k == bx:\n            continue", False),
        ("for h in serial(0, 3):\n            if h == bx:\n                break", True),  # leaves the inner loop
        ("pass", True),
    ],
)
def test_a_loop_with_a_way_out_is_no_axis(leave: str, is_axis: bool):
    body = f"    for k in serial(0, 4):\n        {leave}\n        for i in parallel(128):\n"
    body += "            G[k, i] = float32(0.0)"
    (found,) = collected(body.replace("\n    ", "\n").removeprefix("    ")).loops
    assert bool(found.accesses[0].axes) is is_axis


def test_a_loop_that_never_runs_is_no_axis():
    (found,) = collected("for k in serial(0, 0):\n    for i in parallel(128):\n        G[k, i] = float32(0.0)").loops
    assert found.accesses[0].axes == ()


@pytest.mark.parametrize(
    "body",
    [
        "r[3] = float32(1.0)",
        "A[0, 0] = r[3]",
        "if r[0] > float32(0.0):\n    A[0, 0] = float32(0.0)",
        "x: float32 = r[0]",
        "for k in serial(0, cast(r[0], int32)):\n    A[0, 0] = float32(0.0)",
        "while r[0] > float32(0.0):\n    A[0, 0] = float32(0.0)",
        "A[cast(r[0], int32), 0] = float32(0.0)",
    ],
)
def test_fragments_used_outside_of_parallel_loops_are_scalars(body: str):
    assert set(collected(body + "\n" + loop("F[i, j] = float32(0.0)")).scalars) == {"r"}


def test_base_alignments_are_those_of_the_parameters():
    assert base_alignments(program("pass")) == {"A": 16, "B": 8, "H": 16, "U": 16}

"""Groups of TMA loads: which loads wait together, the bytes that they announce, and the pieces of code around them."""

from __future__ import annotations

import pytest

from ptxtile.ir.expressions import Var
from ptxtile.ir.gpu_ops import BarSync, FenceMbarrierInit, FenceProxyAsync, MbarrierInit
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Allocate, If, Seq, seq
from ptxtile.ir.types import int32
from ptxtile.lower.tma_groups import (
    LoadGroup,
    Phase,
    barrier_buffer,
    barrier_prologue,
    issue,
    make_phase,
    replace_groups,
    wait,
)
from tests.lower.kernel_texts import kernel_program, text

DECLARATIONS = "A = tensor(float32, (256, 256))\nH = tensor(float16, (256, 256))\nM = symbol(int32)"
TILES = """
S = allocate_shared(float32, (64, 64))
T = allocate_shared(float32, (64, 64))
U = allocate_shared(float16, (32, 64))
"""


def program(body: str) -> Program:
    body = body.replace("load_S", "copy(A[0, 0].tile(64, 64), S, path=CopyPath.TMA_LOAD)")
    body = body.replace("load_T", "copy(A[0, 64].tile(64, 64), T, path=CopyPath.TMA_LOAD)")
    body = body.replace("load_U", "copy(H[0, 64].tile(32, 64), U, path=CopyPath.TMA_LOAD)")
    body = body.replace("use", "copy(S, A[64, 0].tile(64, 64), path=CopyPath.VECTOR)")
    return kernel_program(TILES + text(body), DECLARATIONS)


def grouped(body: str) -> tuple[list[LoadGroup], str]:
    """The groups, and what is left of the body with «group n» for each of them."""
    markers: list[LoadGroup] = []

    def make(group: LoadGroup) -> list:
        markers.append(group)
        return [BarSync(0, 32 * (group.number + 1))]

    replaced, groups = replace_groups(program(body).kernels[0].body, make)
    assert markers == groups and [group.number for group in groups] == list(range(len(groups)))
    order = []
    for node in walk(replaced):
        if isinstance(node, BarSync):
            order.append(f"group {node.threads // 32 - 1}")
        elif type(node).__name__ == "Copy":
            order.append("use" if node.path.value == "vector" else "load")
    return groups, " ".join(order)


def names(group: LoadGroup) -> list[str]:
    return [buffer.name for buffer in group.buffers]


@pytest.mark.parametrize(
    ("body", "groups", "order"),
    [
        ("load_S", [["S"]], "group 0"),
        ("load_S\nload_T\nload_U\nuse", [["S", "T", "U"]], "group 0 use"),
        ("load_S\nuse\nload_T", [["S"], ["T"]], "group 0 use group 1"),
        ("load_S\nload_S", [["S"], ["S"]], "group 0 group 1"),  # one tile twice: the first must be done
        ("load_S\nload_T\nload_S", [["S", "T"], ["S"]], "group 0 group 1"),
        ("load_S\nV = allocate_shared(float32, (8,))\nload_T", [["S", "T"]], "group 0"),  # allocations move up
        ("load_S\nx: int32 = bx\nload_T", [["S"], ["T"]], "group 0 group 1"),
        ("if bx == 0:\n    load_S\nelse:\n    load_T", [["S"], ["T"]], "group 0 group 1"),
        ("load_S\nif bx == 0:\n    load_T\nload_U", [["S"], ["T"], ["U"]], "group 0 group 1 group 2"),
        ("use", [], "use"),
    ],
)
def test_loads_in_a_row_form_a_group(body: str, groups: list[list[str]], order: str):
    found, left = grouped(body)
    assert [names(group) for group in found] == groups and left == order


@pytest.mark.parametrize(
    ("body", "in_loop"),
    [
        ("load_S", [False]),
        ("if bx == 0:\n    load_S", [False]),
        ("for k in serial(0, M):\n    load_S\n    use", [True]),
        ("for k in serial(0, M):\n    if k == 0:\n        load_S\nload_T", [True, False]),
        ("while M > 3:\n    load_S\n    use", [True]),
    ],
)
def test_groups_in_loops_are_marked(body: str, in_loop: list[bool]):
    assert [group.in_loop for group in grouped(body)[0]] == in_loop


def test_a_view_of_the_same_storage_starts_a_new_group():
    view = 'V = view(float32, (64, 64), "S")\n'
    load_view = "copy(A[0, 128].tile(64, 64), V, path=CopyPath.TMA_LOAD)\n"
    assert [names(group) for group in grouped(view + "load_S\n" + load_view)[0]] == [["S"], ["V"]]
    assert [names(group) for group in grouped(view + load_view + "load_S")[0]] == [["V"], ["S"]]


def test_the_bytes_are_those_of_whole_boxes():
    (group,) = grouped("load_S\nload_U")[0]
    assert group.bytes == 64 * 64 * 4 + 32 * 64 * 2


def test_a_phase_outside_of_loops_is_the_constant_parity():
    phase = make_phase("p", in_loop=False, start=1)
    assert phase == Phase(None, 1)
    assert phase.declaration() == () and phase.flip() == () and phase.value.value == 1  # type: ignore[attr-defined]


def test_a_phase_in_a_loop_is_a_scalar_that_each_wait_flips():
    phase = make_phase("p", in_loop=True, start=1)
    declared, first = phase.declaration()
    assert isinstance(declared, Allocate) and declared.buffer.name == "p"
    (flip,) = phase.flip()
    parity = first.value.value  # type: ignore[attr-defined]
    assert parity == 1
    assert flip.value == phase.value ^ 1 and flip.buffer == declared.buffer  # type: ignore[attr-defined]


def test_the_prologue_initialises_every_barrier_once_in_thread_0():
    full, free = barrier_buffer("full", 2), barrier_buffer("free", 1)
    assert (full.storage.size, full.shape, full.dtype.bits) == (16, (2,), 64)
    first, second, init, barrier = barrier_prologue(
        [(full, (1, 1)), (free, (96,))], Var("tx", int32), 160, [FenceProxyAsync()]
    )
    assert isinstance(first, Allocate) and isinstance(second, Allocate)
    assert isinstance(init, If) and init.condition == Var("tx", int32).eq(0)
    assert isinstance(init.then, Seq)
    *inits, fence, then = init.then.statements
    assert [(i.barrier.name, i.index.value, i.arrivals) for i in inits if isinstance(i, MbarrierInit)] == [  # type: ignore[attr-defined]
        ("full", 0, 1), ("full", 1, 1), ("free", 0, 96),
    ]  # fmt: skip
    assert isinstance(fence, FenceMbarrierInit) and isinstance(then, FenceProxyAsync)
    assert barrier == BarSync(0, 160)


def test_issue_and_wait_name_the_groups_mbarrier():
    groups, _ = grouped("load_S\nuse\nload_T\nload_U")
    barrier = barrier_buffer("full", 2)
    expect, *copies = issue(groups[1], barrier)
    assert (expect.bytes, expect.index.value) == (groups[1].bytes, 1)  # type: ignore[attr-defined]
    assert [(c.destination.buffer.name, c.index.value) for c in copies] == [("T", 1), ("U", 1)]  # type: ignore[attr-defined]
    arrived, flip = wait(groups[1], barrier, make_phase("p", in_loop=True))
    assert [b.name for b in arrived.retires] == ["T", "U"]  # type: ignore[attr-defined]
    assert flip.buffer.name == "p"  # type: ignore[attr-defined]


def test_a_body_without_loads_is_the_same_object():
    body = program("use\nfor k in serial(0, M):\n    use").kernels[0].body
    replaced, groups = replace_groups(body, lambda group: [])
    assert groups == [] and replaced == body
    assert seq(replaced) == body

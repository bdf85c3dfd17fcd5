"""Atomic operations are side effects: who does them, what may stand around them, and which barriers they need."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile import target as targets
from ptxtile.errors import PtxtileError
from ptxtile.ir.atomic_ops import Atomic
from ptxtile.ir.gpu_ops import BarSync
from ptxtile.ir.parser import parse_program
from ptxtile.ir.printer import print_node
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import If
from ptxtile.lower.options import Options
from ptxtile.lower.pipeline import PASSES

HEADER = """\
ptxtile_ir(1)
program("p", stage="tile")
A = tensor(int32, (128,))
C = tensor(float32, (4096,))

@kernel(grid=(4, 1, 1), threads=128, user_threads=128)
def k(bx, by, bz, thread):
    S = allocate_shared(int32, (128,))
    x = allocate_local(int32, ())
    F = allocate_fragment(float32, (4096,))
"""


def lowered(body: str, architecture: str = "sm_90a") -> Program:
    text = HEADER + "\n".join("    " + line for line in body.splitlines())
    program = parse_program(text)
    for entry in PASSES:
        program = entry.run(program, targets.get(architecture), Options())
    return program


def sequence(program: Program) -> list[str]:
    """The names of barriers and atomic operations in program order."""
    found = []
    for node in walk(program.kernels[0].body):
        if isinstance(node, BarSync):
            found.append("barrier")
        elif isinstance(node, Atomic):
            found.append(node.operator)
    return found


def test_one_thread_does_it() -> None:
    program = lowered('atomic(operator="add", buffer=A, indices=(bx,), value=1)')
    (branch,) = [node for node in walk(program.kernels[0].body) if isinstance(node, If)]
    assert print_node(branch.condition) == "thread == 0"
    assert sequence(program) == ["add"]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("relaxed", ["add"]),
        ("acquire", ["add", "barrier"]),
        ("release", ["barrier", "add"]),
        ("acq_rel", ["barrier", "add", "barrier"]),
        ("seq_cst", ["barrier", "add", "barrier"]),
    ],
)
def test_orders_hold_for_the_block(order: str, expected: list[str]) -> None:
    """What other threads did before a release is done when the one thread releases."""
    assert sequence(lowered(f'atomic(operator="add", buffer=A, indices=(0,), value=1, order="{order}")')) == expected


def test_additions_commute() -> None:
    """Threads add to one place in any order; another operator on it has to wait."""
    same = lowered(
        'for i in parallel(128):\n    atomic(operator="add", buffer=S, indices=(i % 3,), value=i)\n'
        'for j in parallel(128):\n    atomic(operator="add", buffer=S, indices=(j % 5,), value=j)'
    )
    assert sequence(same) == ["add", "add"]
    other = lowered(
        'for i in parallel(128):\n    atomic(operator="add", buffer=S, indices=(i % 3,), value=i)\n'
        'for j in parallel(128):\n    atomic(operator="max", buffer=S, indices=(j % 5,), value=j)'
    )
    assert sequence(other) == ["add", "barrier", "max"]


def test_plain_accesses_are_ordered() -> None:
    program = lowered(
        "for i in parallel(128):\n    S[i] = i\n"
        'for j in parallel(128):\n    atomic(operator="add", buffer=S, indices=(j % 5,), value=j)\n'
        "for m in parallel(128):\n    A[m] = S[127 - m]"
    )
    assert sequence(program) == ["barrier", "add", "barrier"]


def test_wide_additions() -> None:
    """Four elements in one instruction; with the value from before they stay apart."""

    def lanes(body: str) -> list[int]:
        return [node.value.dtype.lanes for node in walk(lowered(body).kernels[0].body) if isinstance(node, Atomic)]

    loads = "for i in parallel(4096):\n    F[i] = C[i]\n"
    addition = 'atomic(operator="add", buffer=C, indices=(j,), value=F[j]'
    assert set(lanes(f"{loads}for j in parallel(4096):\n    {addition})")) == {4}
    kept = f"y = allocate_local(float32, ())\n    {addition}, result=y)"
    assert set(lanes(f"{loads}for j in parallel(4096):\n    {kept}\n    F[j] = y[()]")) == {1}
    assert set(lanes(f"{loads}for j in parallel(4096):\n    {addition})\n    {addition})")) == {1, 4}


def test_the_producer_role_does_not_fetch() -> None:
    """A tile that an atomic operation hands out decides what is loaded: the kernel keeps one role."""

    @ptxtile.jit(pass_configs={"specialize_warps": True})
    def kernel(A, B, queue):
        A: T.Tensor((512, 64), T.float32)
        B: T.Tensor((512, 64), T.float32)
        queue: T.Tensor((1,), T.int32)
        with T.Kernel(4, threads=128):
            tile = T.alloc_shared((64, 64), T.float32)
            first = T.atomic_add(queue[0], 1, return_prev=True)
            T.copy(A[first * 64, 0], tile)
            for i, j in T.Parallel(64, 64):
                B[first * 64 + i, j] = tile[i, j] * 2

    a, b = torch.randn(512, 64), torch.zeros(512, 64)
    kernel(a, b, torch.zeros(1, dtype=torch.int32))
    assert torch.equal(b[:256], a[:256] * 2) and not b[256:].any()


def message(body) -> str:
    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((128,), T.float32)
        with T.Kernel(1, threads=128):
            body(A)

    with pytest.raises(PtxtileError) as caught:
        kernel(torch.zeros(128))
    return str(caught.value)


@T.macro
def on_a_variable(A):
    x = T.alloc_var(T.float32, 0)
    T.atomic_add(x, 1)


@T.macro
def on_a_fragment(A):
    f = T.alloc_fragment((128,), T.float32)
    for i in T.Parallel(128):
        T.atomic_add(f[i], 1)


@T.macro
def bits_of_a_float(A):
    T.atomic_or(A[0], 1)


@T.macro
def an_unknown_order(A):
    T.atomic_add(A[0], 1, memory_order="strict")


@T.macro
def a_store_that_acquires(A):
    T.atomic_store(A[0], 1, memory_order="acquire")


@T.macro
def a_tile_with_the_value_from_before(A):
    T.atomic_add(A, 1, return_prev=True)


@T.macro
def a_tile_in_a_branch(A):
    if T.get_thread_binding() < 5:
        T.atomic_add(A, 1.0)


@T.macro
def tma_of_one_element(A):
    T.atomic_add(A[0], 1.0, use_tma=True)


@T.macro
def tma_of_the_maximum_of_floats(A):
    S = T.alloc_shared((128,), T.float32)
    T.atomic_max(A, S, use_tma=True)


@T.macro
def tma_that_returns(A):
    S = T.alloc_shared((128,), T.float32)
    T.atomic_add(A, S, return_prev=True, use_tma=True)


@T.macro
def tma_that_releases(A):
    S = T.alloc_shared((128,), T.float32)
    T.atomic_add(A, S, memory_order="release", use_tma=True)


@T.macro
def tma_into_shared_memory(A):
    S, R = T.alloc_shared((128,), T.float32), T.alloc_shared((128,), T.float32)
    T.atomic_add(R, S, use_tma=True)


@T.macro
def tma_at_an_odd_place(A):
    S = T.alloc_shared((64,), T.float32)
    T.atomic_add(A[3], S, use_tma=True)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (tma_of_one_element, "expected: a tile as the value"),
        (tma_of_the_maximum_of_floats, "expected: global memory of int32, uint32, int64, uint64, float16, bfloat16"),
        (tma_that_returns, "got:      return_prev=True"),
        (tma_that_releases, "memory_order of T.atomic_add with use_tma"),
        (tma_into_shared_memory, "use_tma of T.atomic_add of float32 in shared memory"),
        (tma_at_an_odd_place, "got:      its innermost position is not known to be a multiple of 16 bytes"),
        (on_a_variable, "the variable x"),
        (on_a_fragment, "fragment"),
        (bits_of_a_float, "T.atomic_or of float32"),
        (an_unknown_order, "memory_order of T.atomic_add"),
        (a_store_that_acquires, "memory_order of T.atomic_store"),
        (a_tile_with_the_value_from_before, "return_prev"),
        (a_tile_in_a_branch, "reached by only some of the threads"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_errors(body, words: str) -> None:
    found = message(body)
    assert words in found and "test_elect_effects.py" in found

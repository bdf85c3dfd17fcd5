"""Conditions and bounds from memory that the kernel writes: one thread reads, all threads go its way."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.ir.gpu_ops import BarSync
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.lower import agree_on_conditions
from tests.lower.kernel_texts import apply, body_text, kernel_program, text

TARGETS = ("sm_80", "sm_90a")
DECLARATIONS = "A = tensor(int32, (128,))\nC = tensor(int32, (128,))\nM = symbol(int32)"


def program(body: str) -> Program:
    return kernel_program(text(body), DECLARATIONS, grid="(4, 1, 1)", stage="async")


def test_a_condition_goes_through_shared_memory():
    found = apply(agree_on_conditions, program("if C[bx] > 0:\n    for i in parallel(32):\n        C[i] = 1"))
    assert body_text(found) == text("""
        agreed = allocate_shared(bool, (1,))
        if tx == 0:
            agreed[0] = C[bx] > 0
        if agreed[0]:
            for i in parallel(32):
                C[i] = 1
    """)


@pytest.mark.parametrize(
    "body",
    [
        "if A[bx] > 0:\n    C[tx] = 1",  # A is only read
        "if C[tx] > 0:\n    C[tx] = 1",  # per thread
        "if bx > M:\n    C[tx] = C[tx] + 1",
        "for k in serial(0, C[tx]):\n    C[tx] = k",
        "for i in parallel(128):\n    if C[i] > 0:\n        C[i] = 1",
    ],
)
def test_other_conditions_stay(body: str):
    given = program(body)
    assert apply(agree_on_conditions, given).kernels[0].body is given.kernels[0].body


@pytest.mark.parametrize("target", TARGETS)
def test_a_branch_that_changes_what_it_asked(target: str):
    @ptxtile.jit(target=target)
    def kernel(C):
        C: T.Tensor((4, 64), T.int32)
        with T.Kernel(4, threads=128) as bx:
            tile = T.alloc_fragment((64,), T.int32)
            if C[bx, 0] <= 1:
                C[bx, 0] = 5
                T.copy(C[bx, 0], tile)
                for i in T.Parallel(64):
                    C[bx, i] = tile[i] + i

    c = torch.arange(4 * 64, dtype=torch.int32).reshape(4, 64) // 64
    expected = c.clone()
    expected[:2, 0] = 5
    expected[:2] += torch.arange(64, dtype=torch.int32)
    kernel(c)
    assert torch.equal(c, expected)
    lowered = next(iter(kernel._kernels.values())).program
    assert any(isinstance(node, BarSync) for node in walk(lowered.kernels[0].body))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("form", ["range", "while", "break"])
def test_loops_that_change_their_own_bounds(target: str, form: str):
    """The bounds of a ``for`` are read once, before it; the condition of a ``while`` and of a break each time."""

    @ptxtile.jit(target=target)
    def kernel(C, form):
        C: T.Tensor((2, 32), T.int32)
        with T.Kernel(2, threads=64) as bx:
            if form == "range":
                for k in range(C[bx, 0]):
                    for i in T.Parallel(32):
                        C[bx, i] = C[bx, i] + 1
            elif form == "while":
                while C[bx, 0] < 5:
                    for i in T.Parallel(32):
                        C[bx, i] = C[bx, i] + 1
            else:
                for k in T.serial(8):
                    if C[bx, 0] > 4:
                        break
                    for i in T.Parallel(32):
                        C[bx, i] = C[bx, i] + 1

    c = torch.tensor([[3], [1]], dtype=torch.int32) + torch.arange(32, dtype=torch.int32)
    steps = torch.tensor([3, 1] if form == "range" else [2, 4], dtype=torch.int32)
    expected = c + steps[:, None]
    kernel(c, form)
    assert torch.equal(c, expected)

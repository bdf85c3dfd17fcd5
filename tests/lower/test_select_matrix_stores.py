"""Which loops store matrices, and what they become."""

from __future__ import annotations

import pytest
import torch

from ptxtile import sim, target
from ptxtile.compiler import lower_program
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Store
from ptxtile.ir.tensor_core_ops import StoreMatrix
from tests.lower.kernel_texts import kernel_program

DECLARATIONS = "A = tensor(bfloat16, (128, 64))\nB = tensor(bfloat16, (96, 64))\nD = tensor(float32, (128, 96))"
GEMM = """
A_s = allocate_shared(bfloat16, (128, 64))
B_s = allocate_shared(bfloat16, (96, 64))
acc = allocate_fragment(float32, (128, 96))
{declaration}
copy(A, A_s)
copy(B, B_s)
gemm(A_s, B_s, acc, m=128, n=96, k=64, transpose_b=True, clear=True)
{store}
for y, x in parallel(128, 96):
    D[y, x] = cast(S[{place}], float32)
"""
PLAIN = "S = allocate_shared(bfloat16, (128, 96))"


def lowered(store: str, declaration: str = PLAIN, place: str = "y, x", arch: str = "sm_90a") -> tuple[Program, list]:
    body = GEMM.format(declaration=declaration, store=store, place=place)
    program, _ = lower_program(kernel_program(body, DECLARATIONS, threads=128), target.get(arch))
    return program, [node for node in walk(program.kernels[0].body) if isinstance(node, StoreMatrix)]


def result(program: Program) -> tuple[torch.Tensor, torch.Tensor]:
    """D after a run in the simulator, and the product in float64."""
    a, b = torch.randn(128, 64).bfloat16(), torch.randn(96, 64).bfloat16()
    d = torch.full((128, 96), float("nan"))
    sim.run(program, {"A": a, "B": b, "D": d}, {})
    return d.double(), a.double() @ b.double().T


def close(found: torch.Tensor, exact: torch.Tensor) -> bool:
    """Within the rounding to bfloat16 and of 64 products in float32."""
    return bool(((found - exact).abs() <= 2.0**-8 * exact.abs() + 1e-4).all())


def reason(program: Program) -> str:
    return next(why.reason for why in program.why if why.pass_name == "select_matrix_stores" and why.subject == "S")


COPY = "for i, j in parallel(128, 96):\n    S[{}] = cast({}, bfloat16)"


@pytest.mark.parametrize("arch", ["sm_90a", "sm_90", "sm_120a"])
@pytest.mark.parametrize("value", ["acc[i, j]", "max(acc[i, j], float32(0.0))", "acc[i, j] + cast(i + j, float32)"])
def test_loops_over_an_accumulator(arch, value):
    program, stores = lowered(COPY.format("i, j", value), arch=arch)
    found, exact = result(program)
    place = torch.arange(128)[:, None] + torch.arange(96)
    assert close(found, exact.clamp(min=0) if "max" in value else exact + place if "+" in value else exact)
    assert stores and all(store.count == 4 and not store.transposed for store in stores)


def test_a_transposed_tile():
    program, stores = lowered(COPY.format("j, i", "acc[i, j]"), "S = allocate_shared(bfloat16, (96, 128))", "x, y")
    assert close(*result(program))
    assert stores and all(store.count == 4 and store.transposed for store in stores)


def test_a_slice_of_a_stack():
    store = COPY.format("1, i, j", "acc[i, j]")
    program, stores = lowered(store, "S = allocate_shared(bfloat16, (2, 128, 96))", "1, y, x")
    assert stores and close(*result(program))


@pytest.mark.parametrize(
    ("store", "declaration", "place", "why"),
    [
        (COPY.format("i, j + 3", "acc[i, j]"), "S = allocate_shared(bfloat16, (128, 104))", "y, x + 3", "16 aligned"),
        (COPY.format("i, j", "acc[i, j]"), "S = allocate_shared(bfloat16, (128, 100))", "y, x", "16 aligned"),
        (COPY.format("i, 95 - j", "acc[i, j]"), PLAIN, "y, x", "16 aligned"),
        (COPY.format("i, j", "acc[i, j] + cast(S[i, j], float32)"), PLAIN, "y, x", "the loop reads S"),
        (COPY.format("i, j", "acc[i, j]").replace("bfloat16", "float32"), PLAIN.replace("bfloat16", "float32"),
         "y, x", "not float32"),
    ],
)  # fmt: skip
def test_others_store_pairs_and_say_why(store, declaration, place, why):
    program, stores = lowered(store, declaration, place)
    assert not stores and why in reason(program)


def test_without_stmatrix():
    program, stores = lowered(COPY.format("i, j", "acc[i, j]"), arch="sm_80")
    assert not stores and not [why for why in program.why if why.pass_name == "select_matrix_stores"]
    assert any(isinstance(node, Store) and node.buffer.name == "S" for node in walk(program.kernels[0].body))

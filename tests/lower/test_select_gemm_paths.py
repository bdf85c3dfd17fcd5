"""Which path a gemm takes by how its operands lie, and that its numbers are right on the path taken."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile import layout
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Allocate
from ptxtile.ir.tensor_core_ops import MmaSync, Wgmma
from tests.gemm.kernels import operands, relative_error


@pytest.fixture(autouse=True)
def hopper(monkeypatch):
    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")


def decision(kernel) -> tuple[str, str]:
    """Path and reason of the one gemm."""
    (record,) = (record for record in kernel.why if record.pass_name == "select_gemm_paths")
    kinds = {type(node) for node in walk(kernel.program.kernels[0].body) if isinstance(node, (Wgmma, MmaSync))}
    assert kinds == {{"wgmma": Wgmma, "mma": MmaSync}.get(record.decision)} - {None}
    return record.decision, record.reason


@ptxtile.jit
def part_of_tiles(A, B, m=64, n=64, k=64, row=0, column=0, transpose_A=False, transpose_B=True, outer=1, pick=0):
    """C = op(A)[rows] · op(B) where the operand A is a part of a larger shared tile."""
    P, Q, R, S = T.const("P, Q, R, S")
    A: T.Tensor((P, Q), "bfloat16")
    B: T.Tensor((R, S), "bfloat16")
    C = T.empty((m, n), "float32")
    with T.Kernel(1, threads=128):
        A_shared = T.alloc_shared((outer, P, Q), "bfloat16")
        B_shared = T.alloc_shared((R, S), "bfloat16")
        C_local = T.alloc_fragment((m, n), "float32")
        for stage in range(outer):
            for i, j in T.Parallel(P, Q):
                A_shared[stage, i, j] = A[i, j] * T.cast(T.if_then_else(stage == pick, 1.0, 2.0), "bfloat16")
        T.copy(B, B_shared)
        height, width = (k, m) if transpose_A else (m, k)
        part = A_shared[pick, row : row + height, column : column + width]
        T.gemm(part, B_shared, C_local, transpose_A, transpose_B, clear_accum=True)
        T.copy(C_local, C)
    return C


@pytest.mark.parametrize(
    ("options", "shape", "path", "reason"),
    [
        ({}, (64, 64), "wgmma", "fit"),
        ({"row": 64}, (128, 64), "wgmma", "fit"),
        ({"row": 8}, (72, 64), "wgmma", "fit"),
        ({"row": 4}, (72, 64), "mma", "starts at a row of A_shared"),
        ({"column": 64}, (64, 128), "wgmma", "fit"),
        ({"column": 32}, (64, 128), "mma", "starts at a column of A_shared"),
        ({"column": 32, "k": 32}, (64, 128), "wgmma", "fit"),
        ({"column": 16, "k": 32}, (64, 128), "mma", "starts at a column of A_shared"),
        ({"column": 16, "k": 16}, (64, 64), "wgmma", "fit"),
        ({"column": 8, "k": 16}, (64, 64), "mma", "starts at a column of A_shared"),
        ({"transpose_A": True, "row": 8}, (80, 64), "wgmma", "fit"),
        ({"transpose_A": True, "row": 4}, (80, 64), "mma", "starts at a row of A_shared"),
        ({"transpose_A": True, "column": 64}, (64, 128), "wgmma", "fit"),
        ({"transpose_A": True, "column": 32}, (64, 128), "mma", "starts at a column of A_shared"),
        ({"outer": 3, "pick": 1}, (64, 64), "wgmma", "fit"),
        ({"outer": 3, "pick": 2}, (68, 64), "mma", "not whole repetitions of its swizzle"),
        ({}, (64, 72), "mma", "no multiple of 32 bytes"),
    ],
)  # fmt: skip
def test_parts_of_tiles(options, shape, path, reason):
    """A swizzle repeats after 8 rows and within its span, which the hardware takes from the address."""
    options = {"k": 64, "row": 0, "column": 0, "transpose_A": False} | options
    part_of_tiles._kernels.clear()
    generator = torch.Generator().manual_seed(2)
    a = torch.randn(shape, generator=generator).bfloat16()
    b = torch.randn(64, options["k"], generator=generator).bfloat16()
    found = part_of_tiles(a, b, **options)
    height, width = (options["k"], 64) if options["transpose_A"] else (64, options["k"])
    part = a[options["row"] : options["row"] + height, options["column"] : options["column"] + width]
    assert relative_error(found, part.T if options["transpose_A"] else part, b.T) < 1e-5
    chosen, why = decision(next(iter(part_of_tiles._kernels.values())))
    assert chosen == path and reason in why


@ptxtile.jit
def moving_part(A, B, step=16):
    """C = A · Bᵀ over parts of A and B along K, whose starts are a loop's."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    C = T.empty((M, N), "float32")
    with T.Kernel(1, threads=128):
        A_shared = T.alloc_shared((M, K), "bfloat16")
        B_shared = T.alloc_shared((N, K), "bfloat16")
        C_local = T.alloc_fragment((M, N), "float32")
        T.copy(A, A_shared)
        T.copy(B, B_shared)
        T.clear(C_local)
        for k in T.serial(K // step):
            left = A_shared[:, k * step : k * step + step]
            T.gemm(left, B_shared[:, k * step : k * step + step], C_local, transpose_B=True)
        T.copy(C_local, C)
    return C


@pytest.mark.parametrize("step", [16, 32, 64])
def test_parts_that_move(step):
    moving_part._kernels.clear()
    a, b = operands(64, 48, 128, torch.bfloat16, "cpu", 1)
    assert relative_error(moving_part(a, b.T.contiguous(), step=step), a, b) < 1e-5
    assert decision(next(iter(moving_part._kernels.values())))[0] == "wgmma"


@ptxtile.jit
def viewed_operand(A, B):
    """C = A · Bᵀ where A's tile is filled through a view of another shape."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    C = T.empty((M, N), "float32")
    with T.Kernel(1, threads=128):
        A_shared = T.alloc_shared((M, K), "bfloat16")
        B_shared = T.alloc_shared((N, K), "bfloat16")
        C_local = T.alloc_fragment((M, N), "float32")
        flat = T.reshape(A_shared, (M * K,))
        for i in T.Parallel(M * K):
            flat[i] = A[i // K, i % K]
        T.copy(B, B_shared)
        T.gemm(A_shared, B_shared, C_local, transpose_B=True, clear_accum=True)
        T.copy(C_local, C)
    return C


def test_tiles_with_views_keep_their_rows():
    viewed_operand._kernels.clear()
    a, b = operands(64, 48, 64, torch.bfloat16, "cpu", 1)
    assert relative_error(viewed_operand(a, b.T.contiguous()), a, b) < 1e-5
    path, why = decision(next(iter(viewed_operand._kernels.values())))
    assert path == "mma" and "shares its memory with a view" in why


# -- layouts that users give ----------------------------------------
@ptxtile.jit
def annotated(A, B, given="swizzled", transpose_B=True, stages=1):
    """C = A · op(B), with the layout of both tiles given."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K) if transpose_B else (K, N), "bfloat16")
    C = T.empty((M, N), "float32")
    with T.Kernel(1, threads=128):
        A_shared = T.alloc_shared((M, 64), "bfloat16")
        B_shared = T.alloc_shared((N, 64) if transpose_B else (64, N), "bfloat16")
        C_local = T.alloc_fragment((M, N), "float32")
        T.annotate_layout({A_shared: LAYOUTS[given](A_shared), B_shared: LAYOUTS[given](B_shared)})
        T.clear(C_local)
        for k in T.Pipelined(K // 64, num_stages=stages):
            T.copy(A[0, k * 64], A_shared)
            if transpose_B:
                T.copy(B[0, k * 64], B_shared)
            else:
                T.copy(B[k * 64, 0], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=transpose_B)
        T.copy(C_local, C)
    return C


LAYOUTS = {
    "swizzled": layout.make_swizzled_layout,
    "half": layout.make_half_bank_swizzled_layout,
    "quarter": layout.make_quarter_bank_swizzled_layout,
    "linear": layout.make_linear_layout,
    "padded": lambda tile: T.Layout(tile.shape, lambda i, j: i * 72 + j),
    "rotated": lambda tile: T.Layout(tile.shape, lambda i, j: i * 64 + (j + 8 * i) % 64),
}


@pytest.mark.parametrize("transpose_b", [True, False])
@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.parametrize(
    ("given", "path", "swizzle"),
    [("swizzled", "wgmma", 128), ("half", "wgmma", 64), ("quarter", "wgmma", 32), ("linear", "mma", 0),
     ("padded", "mma", 0), ("rotated", "mma", 0)],
)  # fmt: skip
def test_wgmma_takes_given_layouts_that_descriptors_describe(given, path, swizzle, stages, transpose_b):
    annotated._kernels.clear()
    a, b = operands(64, 64, 256, torch.bfloat16, "cpu", 1)
    found = annotated(a, b.T.contiguous() if transpose_b else b, given=given, stages=stages, transpose_B=transpose_b)
    assert relative_error(found, a, b) < 1e-5
    kernel = next(iter(annotated._kernels.values()))
    chosen, why = decision(kernel)
    assert chosen == path
    if path == "mma":
        assert "none that a descriptor describes" in why
    else:
        spans = {node.buffer.name: node.buffer.layout.span for node in walk(kernel.program.kernels[0].body)
                 if isinstance(node, Allocate) and node.buffer.name in ("A_shared", "B_shared")}  # fmt: skip
        assert spans == {"A_shared": swizzle, "B_shared": swizzle}

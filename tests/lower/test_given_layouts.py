"""Layouts that users give: which instructions still take the tiles, and what is refused with which words."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile import layout
from ptxtile.errors import PtxtileError
from ptxtile.ir.rewrite import walk
from ptxtile.ir.tensor_core_ops import LoadMatrix
from tests.kernels.given_layouts import MULTIPLY, given, through_a_tile


def why(kernel, pass_name: str) -> list[tuple[str, str, str]]:
    return [(w.subject, w.decision, w.reason) for w in kernel.why if w.pass_name == pass_name]


def compiled(target: str, name_a: str, name_b: str):
    half = torch.zeros(128, 128, dtype=torch.float16)
    return MULTIPLY[target].compile(A=half, B=half, C=torch.zeros(128, 128), name_a=name_a, name_b=name_b)


@pytest.mark.parametrize("name", ["swizzled", "full", "half", "quarter", "linear", "mma"])
def test_tma_takes_structured_layouts(name: str) -> None:
    tensor = torch.zeros(64, 128, dtype=torch.float16)
    kernel = through_a_tile.compile(A=tensor, B=tensor, name=name)
    assert [decision for _, decision, _ in why(kernel, "select_paths")] == ["tma_load", "tma_store"]
    maps = kernel.variant.lowered().program.tensor_maps
    span = {"half": 64, "quarter": 32, "linear": 0}.get(name, 128)
    assert {record.swizzle for record in maps} == {span}


@pytest.mark.parametrize("name", ["transposed", "padded", "blocked", "rotated by 8", "backwards"])
def test_other_layouts_are_the_affair_of_the_threads(name: str) -> None:
    tensor = torch.zeros(64, 128, dtype=torch.float16)
    kernel = through_a_tile.compile(A=tensor, B=tensor, name=name)
    assert [(d, r) for _, d, r in why(kernel, "select_paths")] == [
        ("vector", "the layout given to S is none that TMA writes")
    ] * 2


def test_wgmma_takes_swizzles_and_says_what_it_does_not_take() -> None:
    assert [d for _, d, _ in why(compiled("sm_90a", "swizzled", "half"), "select_gemm_paths")] == ["wgmma"]
    ((_, decision, reason),) = why(compiled("sm_90a", "swizzled", "padded"), "select_gemm_paths")
    assert decision == "mma" and "the layout given to right is none that a descriptor describes" in reason
    ((_, decision, reason),) = why(compiled("sm_90a", "linear", "swizzled"), "select_gemm_paths")
    assert decision == "mma" and "the layout given to left" in reason


def matrices(kernel) -> int:
    return sum(isinstance(node, LoadMatrix) for node in walk(kernel.variant.lowered().program.kernels[0].body))


def test_ldmatrix_takes_rows_of_16_bytes() -> None:
    everything = matrices(compiled("sm_80", "swizzled", "swizzled"))
    assert everything == matrices(compiled("sm_80", "padded", "half"))
    assert 0 < matrices(compiled("sm_80", "padded", "rotated")) < everything
    assert matrices(compiled("sm_80", "transposed", "rotated")) == 0


def test_roles_keep_the_layout_in_every_stage() -> None:
    kernel = compiled("sm_90a", "full", "full")
    assert any(decision == "producer and consumers" for _, decision, _ in why(kernel, "specialize_warps"))
    assert {record.swizzle for record in kernel.variant.lowered().program.tensor_maps if record.tensor != "C"} == {128}


def test_the_methods_of_layouts() -> None:
    arranged = T.Layout((4, 8), lambda i, j: (j // 4, i, j % 4))
    assert arranged.get_input_shape() == [4, 8] and arranged.get_output_shape() == [2, 4, 4]
    assert arranged(3, 6) == [1, 3, 2]
    twice = arranged.repeat(0, 2)
    assert twice.get_input_shape() == [8, 8] and twice(5, 6) == [1, 1, 1, 2]
    staged = arranged.expand((3,))
    assert staged.get_input_shape() == [3, 4, 8] and staged(2, 3, 6) == [2, 1, 3, 2]
    assert arranged.is_equal(T.Layout((4, 8), lambda i, j: j // 4 * 16 + i * 4 + j % 4))
    assert not arranged.is_equal(T.Layout((4, 8), lambda i, j: i * 8 + j))
    assert layout.make_gemm_fragment_8x8().get_thread_size() == 32
    thread, register = layout.make_gemm_fragment_8x8_transposed().tables()
    assert (thread[0, 5, 3], register[0, 5, 3]) == (3 * 4 + 2, 1)


# --- mistakes -------------------------------------------------------------------------------------------------------


def message(body, kind: type[Exception] = PtxtileError, threads: int = 64) -> str:
    @ptxtile.jit(target="sm_90a")
    def kernel(A):
        A: T.Tensor((64, 64), T.float32)
        with T.Kernel(1, threads=threads):
            S = T.alloc_shared((32, 64), T.float32)
            F = T.alloc_fragment((32, 64), T.float32)
            body(A, S, F)
            T.copy(A[0, 0], S)
            T.copy(S, F)
            T.copy(F, A[0, 0])

    with pytest.raises(kind) as caught:
        kernel(torch.zeros(64, 64))
    return str(caught.value)


@T.macro
def two_at_one_place(A, S, F):
    T.annotate_layout({S: T.Layout((32, 64), lambda i, j: i * 32 + j)})


@T.macro
def another_shape(A, S, F):
    T.annotate_layout({S: T.Layout((64, 32), lambda i, j: i * 32 + j)})


@T.macro
def below_zero(A, S, F):
    T.annotate_layout({S: lambda i, j: i * 64 + j - 3})


@T.macro
def a_tensor(A, S, F):
    T.annotate_layout({A: lambda i, j: i * 64 + j})


@T.macro
def no_dict(A, S, F):
    T.annotate_layout([S])


@T.macro
def no_layout(A, S, F):
    T.annotate_layout({S: 128})


@T.macro
def a_layout_for_a_fragment(A, S, F):
    T.annotate_layout({F: T.Layout((32, 64), lambda i, j: i * 64 + j)})


@T.macro
def a_fragment_for_a_tile(A, S, F):
    T.annotate_layout({S: T.Fragment((32, 64), forward_fn=lambda i, j: (j, i))})


@T.macro
def another_view(A, S, F):
    T.annotate_layout({S: lambda i, j: i * 72 + j})
    flat = T.view(S, (2048,))
    flat[3] = 1.0


@T.macro
def two_layouts(A, S, F):
    T.annotate_layout({S: lambda i, j: i * 72 + j})
    T.annotate_layout({S: lambda i, j: i * 80 + j})


@T.macro
def a_float_place(A, S, F):
    T.annotate_layout({S: lambda i, j: i * 64.0 + j})


def asks(i, j):
    return i * 64 + j if i < 4 else j * 32 + i


@T.macro
def a_condition_of_python(A, S, F):
    T.annotate_layout({S: asks})


@T.macro
def more_than_the_indices(A, S, F):
    start = T.get_block_binding() + 1
    T.annotate_layout({S: lambda i, j: i * 64 + j + start})


@T.macro
def tma_into_padding(A, S, F):
    bar = T.alloc_barrier(1)
    T.annotate_layout({S: lambda i, j: i * 72 + j})
    T.tma_copy(A[0, 0], S, barrier=bar)


@T.macro
def too_many_threads(A, S, F):
    T.annotate_layout({F: T.Fragment((32, 64), forward_fn=lambda i, j: (i * 4 + j // 16, j % 16))})


@T.macro
def two_in_one_register(A, S, F):
    T.annotate_layout({F: T.Fragment((32, 64), forward_fn=lambda i, j: (j, i // 2))})


@T.macro
def empty_registers(A, S, F):
    T.annotate_layout({F: T.Fragment((32, 64), forward_fn=lambda i, j: (j, i * 2))})


@T.macro
def no_strides(A, S, F):
    T.annotate_layout({F: T.Fragment((32, 64), forward_fn=lambda i, j: ((j + i) % 64, i))})


@T.macro
def no_pair(A, S, F):
    T.annotate_layout({F: T.Fragment((32, 64), forward_fn=lambda i, j: j)})


@T.macro
def no_function(A, S, F):
    T.annotate_layout({F: T.Fragment((32, 64))})


@T.macro
def a_loop_of_another_shape(A, S, F):
    for i, j in T.Parallel(16, 64, loop_layout=T.Fragment((32, 64), forward_fn=lambda i, j: (j, i))):
        F[i, j] = 1.0


@T.macro
def a_copy_with_a_loop_layout(A, S, F):
    T.copy(A[0, 0], F, loop_layout=T.Fragment((32, 64), forward_fn=lambda i, j: (j, i)))


@T.macro
def rows_too_short(A, S, F):
    R = T.alloc_shared((32, 24), T.float16)
    T.annotate_layout({R: layout.make_full_bank_swizzled_layout(R)})


@T.macro
def one_dimension(A, S, F):
    R = T.alloc_shared((64,), T.float16)
    T.annotate_layout({R: layout.make_swizzled_layout(R)})


@T.macro
def half_bytes(A, S, F):
    R = T.alloc_shared((32, 64), T.int4)
    T.annotate_layout({R: lambda i, j: i * 64 + j})


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (two_at_one_place, "got:      (0, 32) and (1, 0), both at 32"),
        (another_shape, "expected: (32, 64)"),
        (below_zero, "got:      -3 for the element (0, 0)"),
        (a_tensor, "expected: a shared buffer or a fragment"),
        (no_dict, "expected: a dict of buffers and layouts"),
        (no_layout, "expected: T.Layout, or a function of the indices"),
        (a_layout_for_a_fragment, "expected: T.Fragment"),
        (a_fragment_for_a_tile, "expected: T.Layout"),
        (another_view, "S has a layout of its own and another view"),
        (two_layouts, "S is given two layouts"),
        (a_float_place, "a result of the function of T.Layout must be an integer"),
        (a_condition_of_python, "asks whether a traced value is true"),
        (more_than_the_indices, "expected: integer arithmetic of the indices and constants"),
        (tma_into_padding, "got:      the layout given to S is none that TMA writes"),
        (too_many_threads, "expected: threads 0 to 63, registers ≥ 0\n  got:      thread 64, register 0 for (16, 0)"),
        (two_in_one_register, "got:      (0, 0) and (1, 0), both in register 0 of thread 0"),
        (empty_registers, "got:      none in register 1 of thread 0"),
        (no_strides, "is no sum of strides"),
        (no_pair, "expected: (thread, register)"),
        (no_function, "expected: forward_fn, or forward_thread_fn"),
        (a_loop_of_another_shape, "the layout of T.Parallel is for another shape"),
        (a_copy_with_a_loop_layout, "T.Parallel(M, N, loop_layout=...)"),
        (rows_too_short, "expected: rows of a multiple of 128 bytes"),
        (one_dimension, "expected: a tile of 2 dimensions or more"),
        (half_bytes, "expected: elements of whole bytes"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_errors(body, words: str) -> None:
    found = message(body)
    assert words in found and "test_given_layouts.py" in found, found


def test_a_gemm_leaves_its_result_in_its_own_layout() -> None:
    @ptxtile.jit(target="sm_90a")
    def kernel(A, C):
        A: T.Tensor((64, 64), T.float16)
        C: T.Tensor((64, 64), T.float32)
        with T.Kernel(1, threads=128):
            S = T.alloc_shared((64, 64), T.float16)
            F = T.alloc_fragment((64, 64), T.float32)
            T.annotate_layout({
                S: given("swizzled", S), F: T.Fragment((64, 64), forward_fn=lambda i, j: (i * 2 + j % 2, j // 2))
            })  # fmt: skip
            T.copy(A, S)
            T.clear(F)
            T.gemm(S, S, F)
            T.copy(F, C)

    with pytest.raises(PtxtileError, match="F has a layout in which no gemm leaves its results"):
        kernel(torch.zeros(64, 64, dtype=torch.float16), torch.zeros(64, 64))

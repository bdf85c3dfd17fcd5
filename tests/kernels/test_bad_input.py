"""Mistakes in kernels: the class of the error, the user's line with a caret, what was expected and what was got."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import LoweringError, PtxtileError, ResourceError, TraceError, TypeMismatchError
from tests.kernels import bad_bodies
from tests.kernels.refusal import PACKAGE, refused

BODIES: list[tuple[Callable[..., None], type[PtxtileError], str, list[str]]] = [
    (bad_bodies.slice_out_of_range, TraceError, "A[64:72, 0:8]", ["out of range", "expected: *0 … 64", "got: *64:72"]),
    (
        bad_bodies.slice_beyond_a_tile,
        TraceError,
        "tile[0:9, 0:8]",
        ["slice 0 of tile is out of range", "expected: *0 … 8", "got: *0:9"],
    ),
    (
        bad_bodies.own_array_by_a_parallel_index,
        TraceError,
        "own[i] = A[i, 0]",
        ["own is an array of each thread's own", "hint: *T.alloc_fragment"],
    ),
    (
        bad_bodies.own_array_read_by_a_parallel_index,
        TraceError,
        "own[k]",
        ["own is an array of each thread's own", "by k"],
    ),
    (bad_bodies.empty_slice, TraceError, "A[4:4, 0:8]", ["empty", "expected: *an extent ≥ 1", "got: *0"]),
    (
        bad_bodies.matrix_of_a_small_image,
        TypeMismatchError,
        "T.im2col(image, tile, 0, 0, 3, 1, 1, 0)",
        ["image of T.im2col", "as many rows and columns as the filter", "got: *1×1"],
    ),
    (
        bad_bodies.matrix_without_a_stride,
        TypeMismatchError,
        "T.im2col(image, tile, 0, 0, 3, 0, 1, 0)",
        ["stride", "at least 1", "got: *3, 0, 1"],
    ),
    (bad_bodies.slice_with_a_step, TraceError, "A[0:8:2, 0:8]", ["step", "expected: *step 1", "got: *2"]),
    (
        bad_bodies.slice_of_unknown_size,
        TraceError,
        "A[0:n, 0:8]",
        ["not known at compile time", "expected: ", "got: ", "hint: "],
    ),
    (
        bad_bodies.index_out_of_range,
        TraceError,
        "A[64, 0] = 1",
        ["index 0 of A is out of range", "expected: *-64 … 63", "got: *64"],
    ),
    (
        bad_bodies.too_many_indices,
        TypeMismatchError,
        "A[0, 0, n] = 1",
        ["number of indices", "expected: *2", "got: *3"],
    ),
    (
        bad_bodies.float_index,
        TypeMismatchError,
        "A[0, 1.5] = 1",
        ["must be an integer", "expected: *an integer", "got: *1.5"],
    ),
    (
        bad_bodies.copy_of_another_shape,
        TypeMismatchError,
        "T.copy(tile, A[0:8, 0:16])",
        ["different shapes", r"expected: .*\(8, 8\)", r"got: .*\(8, 16\)"],
    ),
    (
        bad_bodies.copy_between_tiles_of_another_shape,
        TypeMismatchError,
        "T.copy(tile, part)",
        [r"expected: .*tile of shape \(8, 8\)", r"got: .*part of shape \(8, 4\)"],
    ),
    (
        bad_bodies.region_assigned_another_shape,
        TypeMismatchError,
        "A[0:8, 0:9] = tile",
        [r"expected: .*\(8, 8\)", r"got: .*\(8, 9\)"],
    ),
    (
        bad_bodies.tile_assigned_to_an_element,
        TypeMismatchError,
        "A[0, 0] = tile",
        ["expected: *a scalar", "got: .*tile", "T.copy"],
    ),
    (
        bad_bodies.whole_tile_arithmetic,
        TypeMismatchError,
        "tile + 1",
        ["expected: *scalars", "got: .*tile", "T.Parallel"],
    ),
    (bad_bodies.unknown_operation, TraceError, "T.coppy", ["no T.coppy", "did you mean T.copy"]),
    (bad_bodies.operation_of_later, TraceError, "T.cumsum", ["T.cumsum is not supported yet"]),
    (
        bad_bodies.fragment_element_of_each_thread,
        LoweringError,
        "F[0, 0] = T.get_thread_binding(0)",
        ["outside of T.Parallel", "expected: .*all threads agree", "got: *one that depends on", "alloc_local"],
    ),
    (
        bad_bodies.fragment_element_of_some_threads,
        LoweringError,
        "F[0, 0] = 1.0",
        ["outside of T.Parallel", "got: *a condition that depends on the thread", "alloc_local"],
    ),
    (
        bad_bodies.element_of_a_large_fragment,
        LoweringError,
        "A[0, 0] = large[n, 3]",
        ["outside of T.Parallel", "expected: *at most 4096 bytes", "got: *8192 bytes", "alloc_shared"],
    ),
    (bad_bodies.condition_on_a_whole_buffer, TypeMismatchError, "F", ["condition", "expected: *a scalar", "got: .*F"]),
    (
        bad_bodies.unknown_dtype,
        TypeMismatchError,
        'T.alloc_shared((8, 8), "float12")',
        ["unsupported dtype", "expected: .*float16", "float12"],
    ),
    (
        bad_bodies.complex_dtype,
        TypeMismatchError,
        "T.alloc_fragment((8, 8), torch.complex64)",
        ["unsupported dtype", "got: .*complex64"],
    ),
    (
        bad_bodies.arithmetic_of_a_storage_dtype,
        TypeMismatchError,
        "x + x",
        ["expected: .*float32", "got: *float8_e4m3fn", "cast"],
    ),
    (
        bad_bodies.dependence_across_iterations,
        TraceError,
        "S[i]",
        ["another iteration writes", r"read is at line \d+", r"write is at line \d+"],
    ),
    (
        bad_bodies.overwriting_iterations,
        TraceError,
        "S[0] = i",
        ["different values to one element of S", r"write is at line \d+", r"loop at line \d+"],
    ),
    (
        bad_bodies.parallel_over_an_unknown_extent,
        TraceError,
        "T.Parallel(n)",
        ["known at compile time", "expected: *a Python int", "got: .*int32"],
    ),
    (bad_bodies.copy_inside_parallel, TraceError, "T.copy(A[0, 0], F)", ["inside of T.Parallel", "got: "]),
    (bad_bodies.extern_call, TraceError, "T.call_extern", ["C\\+\\+ or CUDA source", "hint: "]),
    (bad_bodies.imported_source, TraceError, "T.import_source", ["C\\+\\+ or CUDA source"]),
    (bad_bodies.packed_call, TraceError, "T.call_packed", ["C\\+\\+ or CUDA source"]),
    (bad_bodies.division_by_zero, TypeMismatchError, "n // 0", ["by zero"]),
    (bad_bodies.negative_shift, TypeMismatchError, "n << -1", ["negative shift", "got: *-1"]),
    (
        bad_bodies.bits_of_a_float,
        TypeMismatchError,
        "A[0, 0] & 1",
        ["needs integers", "expected: *integer operands", "got: *float32"],
    ),
    (
        bad_bodies.reinterpret_of_another_width,
        TypeMismatchError,
        'T.reinterpret(A[0, 0], "int64")',
        ["expected: .*32 bits", "got: .*64 bits"],
    ),
    (
        bad_bodies.function_of_a_buffer,
        TypeMismatchError,
        "T.exp(A)",
        ["not a scalar", "expected: *a traced scalar", "got: .*buffer A"],
    ),
    (
        bad_bodies.python_asks_for_truth,
        TraceError,
        "any([A[0, 0] > 0, A[0, 1] > 0])",
        ["whether a traced value is true", "hint: "],
    ),
    (bad_bodies.python_needs_an_int, TraceError, "table[n]", ["expected: *a Python int", "got: .*int32"]),
    (
        bad_bodies.rebound_to_a_float,
        TypeMismatchError,
        "total = total + A[i, 0]",
        ["total is a int32 here", "expected: .*int32", "got: *float32"],
    ),
    (bad_bodies.value_of_one_branch, TraceError, "x", ["x may have no value here", "hint: "]),
    (bad_bodies.list_changed_in_a_loop, TraceError, "found.append", ["changes a Python list"]),
    (
        bad_bodies.reshape_of_another_size,
        TypeMismatchError,
        "T.reshape(A, (63, 64))",
        [r"expected: .*\(64, 64\)", r"got: *\(63, 64\)"],
    ),
    (bad_bodies.view_of_a_value, TypeMismatchError, "T.view(A[0, 0], (1,))", ["expected: *a buffer", "got: *float32"]),
    (
        bad_bodies.shape_that_is_no_number,
        TypeMismatchError,
        'T.alloc_shared((8, "8"), T.float32)',
        ["expected: *an integer", "got: *'8'"],
    ),
    (
        bad_bodies.size_of_launch_time,
        TraceError,
        "T.alloc_shared((8, n), T.float32)",
        ["expected: .*compile time", "got: .*launch"],
    ),
    (
        bad_bodies.eviction_policy,
        TraceError,
        'T.copy(A[0, 0], F, eviction_policy="never")',
        ["expected: *evict_normal", "got: *'never'"],
    ),
    (bad_bodies.assertion, TraceError, "n > 0", ["whether a traced value is true"]),
]


@pytest.mark.parametrize("body, error, caret, parts", BODIES, ids=[row[0].__name__ for row in BODIES])
def test_kernel_body(body: Callable[..., None], error: type[PtxtileError], caret: str, parts: list[str]) -> None:
    inline = T.macro(body)

    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), n: T.int32):
        with T.Kernel(1, threads=32):
            F = T.alloc_fragment((8, 8), "float32")
            inline(A, F, n)

    text = refused(error, lambda: ptxtile.compile(main)(torch.zeros(64, 64), 3), *parts, caret=caret)
    assert "inline(A, F, n)" in text  # the chain of macro calls


def eager_error(error: type[PtxtileError], function: Callable[..., Any], *parts: str, caret: str | None = None) -> str:
    return refused(error, lambda: ptxtile.jit(function)(torch.zeros(64, 64)), *parts, caret=caret)


@pytest.mark.parametrize(
    "threads, error, got",
    [
        (1025, ResourceError, "1025"),
        ([32, 33, 1], ResourceError, "1056"),
        (0, TypeMismatchError, "0"),
        (-32, TypeMismatchError, "-32"),
        (32.0, TypeMismatchError, "32.0"),
        ("128", TypeMismatchError, "'128'"),
    ],
)
def test_threads(threads: Any, error: type[PtxtileError], got: str) -> None:
    def kernel(A):
        A: T.Tensor((64, 64), T.float32)
        with T.Kernel(1, threads=threads):  # here
            A[0, 0] = 1

    eager_error(error, kernel, "threads", "expected: ", f"got: *{re.escape(got)}", caret="T.Kernel(1, threads=threads)")


def test_prelude_is_source() -> None:
    def kernel(A):
        A: T.Tensor((64, 64), T.float32)
        with T.Kernel(1, threads=32, prelude="#include <cuda_fp16.h>"):  # here
            A[0, 0] = 1

    eager_error(TraceError, kernel, "C\\+\\+ source", caret='T.Kernel(1, threads=32, prelude="#include <cuda_fp16.h>")')


@pytest.mark.parametrize("target, limit", [("sm_90a", 232448), ("sm_80", 166912), ("sm_89", 101376)])
def test_shared_memory_over_the_limit(target: str, limit: int) -> None:
    """The table has a row for each buffer. All of them live at the same time, so none shares bytes with another."""

    @ptxtile.jit(target=target)
    def kernel(A):
        A: T.Tensor((256, 256), T.float32)
        with T.Kernel(1, threads=128):
            first = T.alloc_shared((256, 256), T.float32)  # here
            second = T.alloc_shared((128, 64), T.float32)
            T.copy(A, first)
            T.copy(A[0, 0], second)
            for i, j in T.Parallel(128, 64):
                first[i, j] += second[i, j]
            T.copy(first, A)

    text = refused(
        ResourceError,
        lambda: kernel(torch.zeros(256, 256)),
        f"more shared memory than {target} has",
        f"expected: *at most {limit} bytes",
        r"got: *\d{6} bytes",
        r"\n +first +262144 ",
        r"\n +second +32768 ",
        "hint: ",
        caret="T.alloc_shared((256, 256), T.float32)",
    )
    assert re.search(r"got: *(\d+)", text)[1] >= "294912"  # type: ignore[index]


def test_no_annotation() -> None:
    def kernel(A):
        with T.Kernel(1, threads=32):
            A[0, 0] = 1

    eager_error(TraceError, kernel, "the tensor argument A has no annotation", "def kernel", "hint: ")


def test_used_before_its_annotation() -> None:
    def kernel(A):
        N = A.shape[0]  # here
        A: T.Tensor((64, 64), T.float32)
        with T.Kernel(N, threads=32):
            A[0, 0] = 1

    eager_error(TraceError, kernel, "the tensor A is used before it is declared", caret="A.shape")


def test_unsupported_dtype_of_an_argument() -> None:
    def kernel(A):
        A: T.Tensor((64, 64), torch.complex64)  # here
        with T.Kernel(1, threads=32):
            A[0, 0] = 1

    eager_error(
        TypeMismatchError, kernel, "unsupported dtype", "got: .*complex64", caret="T.Tensor((64, 64), torch.complex64)"
    )


def test_a_tensor_written_outside_of_a_kernel() -> None:
    def kernel(A):
        A: T.Tensor((64, 64), T.float32)
        A[0, 0] = 1  # here
        with T.Kernel(1, threads=32):
            pass

    eager_error(TraceError, kernel, "outside of T.Kernel", caret="A[0, 0] = 1")


def test_no_kernel() -> None:
    def kernel(A):
        A: T.Tensor((64, 64), T.float32)

    refused(TraceError, lambda: ptxtile.jit(kernel, mode="eager")(torch.zeros(64, 64)), "has no T.Kernel")


def test_source_that_is_not_available() -> None:
    namespace: dict[str, Any] = {"T": T}
    exec(
        "def kernel(A):\n    A: T.Tensor((64, 64), T.float32)\n    with T.Kernel(1):\n        A[0, 0] = 1\n", namespace
    )
    refused(
        TraceError,
        lambda: ptxtile.jit(namespace["kernel"])(torch.zeros(64, 64)),
        "the source of kernel is not available",
    )


def test_a_factory_that_returns_no_prim_func() -> None:
    refused(TraceError, lambda: ptxtile.jit(out_idx=-1)(lambda: 3)(), "returned int", "expected: .*prim_func")


def test_a_users_own_error_shows_the_users_lines() -> None:
    """An exception of Python's own inside of a kernel keeps its class; its traceback holds the user's frames."""

    def kernel(A):
        A: T.Tensor((64, 64), T.float32)
        with T.Kernel(1, threads=32):
            A[0, 0] = {}["missing"]

    with pytest.raises(KeyError, match="missing") as caught:
        ptxtile.jit(kernel)(torch.zeros(64, 64))
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert frames[-1].line is not None and 'A[0, 0] = {}["missing"]' in frames[-1].line
    assert sum(frame.filename.startswith(PACKAGE) for frame in frames) <= 1

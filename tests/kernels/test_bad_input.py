"""Bad input of every kind: the class of the error, the user's line with a caret, what was expected and what was got.

A user's mistake in a kernel is reported at its line; one in a call names the argument. No frame of ptxtile comes before
the report, but for the one of the call itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import (
    ArgumentError,
    LaunchError,
    PtxtileError,
    ResourceError,
    TargetError,
    TraceError,
    TypeMismatchError,
)

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = str(ROOT / "ptxtile")


def refused(error_class: type[PtxtileError], call: Callable[[], Any], *parts: str, caret: str | None = None) -> str:
    """The report of the error that ``call`` raises. Each of ``parts`` is a pattern that it must hold.

    ``caret``: the expression that the caret underlines; its line must carry the comment ``# here``.
    """
    with pytest.raises(error_class) as caught:
        call()
    error = caught.value
    assert type(error) is error_class or error_class in (TraceError, ArgumentError), type(error)
    text = str(error)
    for part in parts:
        assert re.search(part, text), f"{part!r} is not in:\n{text}"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(PACKAGE)]
    assert len(frames) <= 1, "\n".join(map(str, frames))
    if caret is not None:
        lines = text.splitlines()
        where = next(number for number, line in enumerate(lines) if line.endswith("# here"))
        assert __file__ in lines[where - 1], lines[where - 1]
        marks = lines[where + 1]
        assert set(marks.strip()) == {"^"}, marks
        start = marks.index("^")
        assert lines[where][start : start + marks.count("^")] == caret, text
    return text


# ---------------------------------------------------------------- calls


@ptxtile.jit
def add(A, B, block=32):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B: T.Tensor((M, N), T.float32)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=64) as (bx, by):
        for i, j in T.Parallel(block, block):
            C[by * block + i, bx * block + j] = A[by * block + i, bx * block + j] + B[by * block + i, bx * block + j]
    return C


def fixed():
    @T.prim_func
    def main(A: T.Tensor((8, 16), "float16"), n: T.int8, x: T.float16, B: T.Tensor((8, 16), "float16")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(8, 16):
                B[i, j] = A[i, j] * x + n

    return ptxtile.compile(main, out_idx=-1)


def strided():
    @T.prim_func
    def main(A: T.StridedTensor((8, 16), (32, 2), "float32")):
        with T.Kernel(1, threads=32):
            A[0, 0] = 1

    return ptxtile.compile(main)


a, half, other = torch.zeros(8, 16), torch.zeros(8, 16, dtype=torch.float16), torch.zeros(8, 17)

CALLS = {
    "dtype": (lambda: add(a, half), ["argument 'B' .2 of 2.", "wrong dtype", "expected: *torch.float32|expected: *float32",
                                     "got: .*float16"]),
    "dtype of a fixed kernel": (lambda: fixed()(a, 1, 1.0), ["argument 'A'", "wrong dtype", "expected: *float16", "got: .*float32"]),
    "rank": (lambda: add(a[0], a), ["argument 'A'", "number of dimensions", "expected: *2", "got: *1, shape .16,."]),
    "rank, too high": (lambda: add(a, a[None]), ["argument 'B'", "number of dimensions", "got: *3, shape .1, 8, 16."]),
    "shape against another argument": (lambda: add(a, other), ["argument 'B'", "wrong size of dimension 1",
                                                               "expected: *shape .8, 16.", "got: *shape .8, 17."]),
    "fixed shape": (lambda: fixed()(half[:4], 1, 1.0), ["argument 'A'", "dimension 0", "expected: *shape .8, 16.",
                                                        "got: *shape .4, 16."]),
    "device": (lambda: add(a, torch.zeros(8, 16, device="meta")), ["argument 'B'", "device", "expected: .*cpu", "got: .*meta"]),
    "list": (lambda: add(a, [1.0, 2.0]), ["argument 'B'", "not a tensor", "expected: *a torch tensor", "got: *list"]),
    "number for a tensor": (lambda: add(a, 3), ["argument 'B'", "not a tensor", "got: *int 3"]),
    "None": (lambda: add(a, None), ["argument 'B'", "not a tensor", "got: *None"]),
    "string": (lambda: add("a", a), ["argument 'A'", "not a tensor", "got: *str 'a'"]),
    "too few": (lambda: add(a), ["argument 'B' is missing", "expected: *A, B", "got: *1 positional"]),
    "too few for a compiled kernel": (lambda: fixed()(half), ["too few", "'n', 'x' missing", "expected: *3", "got: *1"]),
    "too many": (lambda: add(a, a, 32, 5), ["too many arguments", "expected: *at most 3", "got: *4"]),
    "too many for a compiled kernel": (lambda: fixed()(half, 1, 1.0, half), ["too many", "expected: *3 .A, n, x.", "got: *4"]),
    "unknown keyword": (lambda: add(a, a, blocks=3), ["no argument 'blocks'", "expected: *A, B, block", "got: *blocks"]),
    "given twice": (lambda: add(a, a, A=a), ["argument 'A' is given twice"]),
    "stride": (lambda: strided()(a), ["argument 'A'", "stride of dimension 0, 1", "expected: *strides .32, 2.",
                                      "got: *strides .16, 1.", "contiguous"]),
    "sparse": (lambda: add(a.to_sparse(), a), ["argument 'A'", "sparse", "expected: *a plain strided tensor", "to_dense"]),
    "negative view": (lambda: add(torch._neg_view(a), a), ["argument 'A'", "negative view", "resolve_neg"]),
    "scalar out of range": (lambda: fixed()(half, 128, 1.0), ["argument 'n'", "out of range", "expected: *-128 to 127 .int8.",
                                                              "got: *128"]),
    "fraction for an integer": (lambda: fixed()(half, 0.5, 1.0), ["argument 'n'", "not an integer", "got: *float 0.5"]),
    "overflowing float": (lambda: fixed()(half, 1, 1e6), ["argument 'x'", "out of range", "float16", "got: *1000000"]),
    "tensor for a scalar": (lambda: fixed()(half, half, 1.0), ["argument 'n'", "expected: *an integer", "got: .*shape .8, 16."]),
    "text for a scalar": (lambda: fixed()(half, 1, "x"), ["argument 'x'", "expected: *a number", "got: *str 'x'"]),
    "unknown size": (lambda: add.compile(M=4, K=4), ["no size or argument 'K'", "expected: *M, N, block", "got: *K"]),
    "missing size": (lambda: add.compile(M=4), ["size N .* not known", "N=…"]),
    "another size than compiled for": (lambda: add.compile(M=4, N=16)(a, a), ["size M is fixed", "expected: *4", "got: *8"]),
    "out_idx": (lambda: ptxtile.compile(fixed_prim_func(), out_idx=4), ["out_idx", "expected: *-1 … 0", "got: *4"]),
}  # fmt: skip


def fixed_prim_func():
    @T.prim_func
    def main(A: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            A[0] = 1

    return main


@pytest.mark.parametrize("what", CALLS)
def test_call(what: str) -> None:
    call, parts = CALLS[what]
    refused(ArgumentError, call, *parts)


def test_a_grid_over_the_limit() -> None:
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "int8")):
        with T.Kernel(1, n, threads=32) as (bx, by):
            A[by] = 1

    kernel = ptxtile.compile(main)
    refused(LaunchError, lambda: kernel(torch.zeros(70000, dtype=torch.int8)), "grid dimension y", "expected: *0 to 65535",
            "got: *70000")  # fmt: skip


@pytest.mark.parametrize(
    "target, part",
    [("sm_70", "sm_70"), ("sm_91", "sm_91"), ("hopper", "hopper"), ("sm_90b", "sm_90b"), ("90a", "90a"), ("rocm", "rocm"), (90, "90")],
)  # fmt: skip
def test_target_names(target: Any, part: str) -> None:
    def main(A):
        A: T.Tensor((8,), T.float32)
        with T.Kernel(1, threads=32):
            A[0] = 1

    refused(TargetError, lambda: ptxtile.jit(main, target=target), part, "sm_90a")
    refused(TargetError, lambda: ptxtile.compile(fixed_prim_func(), target=target), part, "sm_90a")


def test_unknown_options() -> None:
    refused(PtxtileError, lambda: ptxtile.jit(add.function.function, specialise=True), "unknown pass config 'specialise'",
            "expected: .*specialize_warps", "did you mean specialize_warps")  # fmt: skip
    refused(PtxtileError, lambda: ptxtile.jit(out_idx=-1, pass_configs={"no.such": 1})(fixed), "unknown pass config 'no.such'")


# ---------------------------------------------------------------- kernels: each body is inlined into a kernel and refused


def slice_out_of_range(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    T.copy(A[60:68, 0:8], tile)  # here


def slice_beyond_a_tile(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    T.copy(tile[0:9, 0:8], A[0, 0])  # here


def empty_slice(A, F, n):
    T.fill(A[4:4, 0:8], 0)  # here


def slice_with_a_step(A, F, n):
    T.fill(A[0:8:2, 0:8], 0)  # here


def slice_of_unknown_size(A, F, n):
    T.fill(A[0:n, 0:8], 0)  # here


def index_out_of_range(A, F, n):
    A[64, 0] = 1  # here


def too_many_indices(A, F, n):
    A[0, 0, n] = 1  # here


def float_index(A, F, n):
    A[0, 1.5] = 1  # here


def copy_of_another_shape(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    T.copy(tile, A[0:8, 0:16])  # here


def copy_between_tiles_of_another_shape(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    part = T.alloc_fragment((8, 4), T.float32)
    T.copy(tile, part)  # here


def region_assigned_another_shape(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    A[0:8, 0:9] = tile  # here


def tile_assigned_to_an_element(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    A[0, 0] = tile  # here


def whole_tile_arithmetic(A, F, n):
    tile = T.alloc_shared((8, 8), T.float32)
    other = tile + 1  # here
    T.copy(other, A[0, 0])


def unknown_operation(A, F, n):
    T.coppy(A[0, 0], F)  # here


def operation_of_later(A, F, n):
    T.gemm(A, A, F)  # here


def condition_on_a_fragment_element(A, F, n):
    if F[0, 0] > 0:  # here
        A[0, 0] = 1


def ternary_on_a_fragment_element(A, F, n):
    A[0, 0] = 1.0 if F[1, 1] else 2.0  # here


def fragment_element_read(A, F, n):
    A[0, 0] = F[0, 0]  # here


def condition_on_a_whole_buffer(A, F, n):
    if F:  # here
        A[0, 0] = 1


def unknown_dtype(A, F, n):
    T.alloc_shared((8, 8), "float12")  # here


def complex_dtype(A, F, n):
    T.alloc_fragment((8, 8), torch.complex64)  # here


def arithmetic_of_a_storage_dtype(A, F, n):
    x = T.cast(A[0, 0], "float8_e4m3fn")
    A[0, 1] = x + x  # here


def dependence_across_iterations(A, F, n):
    S = T.alloc_shared((64,), T.float32)
    for i in T.Parallel(63):
        S[i + 1] = S[i]  # here


def overwriting_iterations(A, F, n):
    S = T.alloc_shared((64,), T.float32)
    for i in T.Parallel(64):
        S[0] = i  # here


def parallel_over_an_unknown_extent(A, F, n):
    for i in T.Parallel(n):  # here
        A[i, 0] = 1


def copy_inside_parallel(A, F, n):
    for i in T.Parallel(8):
        T.copy(A[0, 0], F)  # here


def extern_call(A, F, n):
    T.call_extern("float32", "my_function", A[0, 0])  # here


def imported_source(A, F, n):
    T.import_source("__device__ int f();")  # here


def packed_call(A, F, n):
    T.call_packed("f", n)  # here


def division_by_zero(A, F, n):
    A[0, 0] = n // 0  # here


def negative_shift(A, F, n):
    A[0, 0] = n << -1  # here


def bits_of_a_float(A, F, n):
    A[0, 0] = A[0, 0] & 1  # here


def reinterpret_of_another_width(A, F, n):
    A[0, 0] = T.reinterpret(A[0, 0], "int64")  # here


def function_of_a_buffer(A, F, n):
    A[0, 0] = T.exp(A)  # here


def python_asks_for_truth(A, F, n):
    if any([A[0, 0] > 0, A[0, 1] > 0]):  # here
        A[0, 0] = 1


def python_needs_an_int(A, F, n):
    table = [1, 2, 3]
    A[0, 0] = table[n]  # here


def rebound_to_a_float(A, F, n):
    total = 0
    for i in range(n):
        total = total + A[i, 0]  # here
    A[0, 0] = total


def value_of_one_branch(A, F, n):
    if n > 0:
        x = 1
    A[0, 0] = x  # here


def list_changed_in_a_loop(A, F, n):
    found = []
    for i in range(n):
        found.append(A[i, 0])  # here


def reshape_of_another_size(A, F, n):
    T.reshape(A, (63, 64))  # here


def view_of_a_value(A, F, n):
    T.view(A[0, 0], (1,))  # here


def shape_that_is_no_number(A, F, n):
    T.alloc_shared((8, "8"), T.float32)  # here


def size_of_launch_time(A, F, n):
    T.alloc_shared((8, n), T.float32)  # here


def eviction_policy(A, F, n):
    T.copy(A[0, 0], F, eviction_policy="never")  # here


def assertion(A, F, n):
    assert n > 0  # here


BODIES: list[tuple[Callable[..., None], type[PtxtileError], str, list[str]]] = [
    (slice_out_of_range, TraceError, "A[60:68, 0:8]", ["out of range", "expected: *0 … 64", "got: *60:68"]),
    (slice_beyond_a_tile, TraceError, "tile[0:9, 0:8]", ["slice 0 of tile is out of range", "expected: *0 … 8", "got: *0:9"]),
    (empty_slice, TraceError, "A[4:4, 0:8]", ["empty", "expected: *an extent ≥ 1", "got: *0"]),
    (slice_with_a_step, TraceError, "A[0:8:2, 0:8]", ["step", "expected: *step 1", "got: *2"]),
    (slice_of_unknown_size, TraceError, "A[0:n, 0:8]", ["not known at compile time", "expected: ", "got: ", "hint: "]),
    (index_out_of_range, TraceError, "A[64, 0] = 1", ["index 0 of A is out of range", "expected: *-64 … 63", "got: *64"]),
    (too_many_indices, TypeMismatchError, "A[0, 0, n] = 1", ["number of indices", "expected: *2", "got: *3"]),
    (float_index, TypeMismatchError, "A[0, 1.5] = 1", ["must be an integer", "expected: *an integer", "got: *1.5"]),
    (copy_of_another_shape, TypeMismatchError, "T.copy(tile, A[0:8, 0:16])", ["different shapes", r"expected: .*\(8, 8\)",
                                                                              r"got: .*\(8, 16\)"]),
    (copy_between_tiles_of_another_shape, TypeMismatchError, "T.copy(tile, part)", [r"expected: .*tile of shape \(8, 8\)",
                                                                                   r"got: .*part of shape \(8, 4\)"]),
    (region_assigned_another_shape, TypeMismatchError, "A[0:8, 0:9] = tile", [r"expected: .*\(8, 8\)", r"got: .*\(8, 9\)"]),
    (tile_assigned_to_an_element, TypeMismatchError, "A[0, 0] = tile", ["expected: *a scalar", "got: .*tile", "T.copy"]),
    (whole_tile_arithmetic, TypeMismatchError, "tile + 1", ["expected: *scalars", "got: .*tile", "T.Parallel"]),
    (unknown_operation, TraceError, "T.coppy", ["no T.coppy", "did you mean T.copy"]),
    (operation_of_later, TraceError, "T.gemm", ["T.gemm is not supported yet"]),
    (condition_on_a_fragment_element, TraceError, "F[0, 0] > 0", ["outside of T.Parallel", "got: *no scalar", "hint: "]),
    (ternary_on_a_fragment_element, TraceError, "1.0 if F[1, 1] else 2.0", ["outside of T.Parallel", "got: *no scalar"]),
    (fragment_element_read, TraceError, "A[0, 0] = F[0, 0]", ["outside of T.Parallel", "got: *no scalar"]),
    (condition_on_a_whole_buffer, TypeMismatchError, "F", ["condition", "expected: *a scalar", "got: .*F"]),
    (unknown_dtype, TypeMismatchError, 'T.alloc_shared((8, 8), "float12")', ["unsupported dtype", "expected: .*float16", "float12"]),
    (complex_dtype, TypeMismatchError, "T.alloc_fragment((8, 8), torch.complex64)", ["unsupported dtype", "got: .*complex64"]),
    (arithmetic_of_a_storage_dtype, TypeMismatchError, "x + x", ["expected: .*float32", "got: *float8_e4m3fn", "cast"]),
    (dependence_across_iterations, TraceError, "S[i]", ["another iteration writes", r"read is at line \d+", r"write is at line \d+"]),
    (overwriting_iterations, TraceError, "S[0] = i", ["different values to one element of S", r"write is at line \d+",
                                                 r"loop at line \d+"]),
    (parallel_over_an_unknown_extent, TraceError, "T.Parallel(n)", ["known at compile time", "expected: *a Python int", "got: .*int32"]),
    (copy_inside_parallel, TraceError, "T.copy(A[0, 0], F)", ["inside of T.Parallel", "got: "]),
    (extern_call, TraceError, "T.call_extern", ["C\\+\\+ or CUDA source", "hint: "]),
    (imported_source, TraceError, "T.import_source", ["C\\+\\+ or CUDA source"]),
    (packed_call, TraceError, "T.call_packed", ["C\\+\\+ or CUDA source"]),
    (division_by_zero, TypeMismatchError, "n // 0", ["by zero"]),
    (negative_shift, TypeMismatchError, "n << -1", ["negative shift", "got: *-1"]),
    (bits_of_a_float, TypeMismatchError, "A[0, 0] & 1", ["needs integers", "expected: *integer operands", "got: *float32"]),
    (reinterpret_of_another_width, TypeMismatchError, 'T.reinterpret(A[0, 0], "int64")', ["expected: .*32 bits", "got: .*64 bits"]),
    (function_of_a_buffer, TypeMismatchError, "T.exp(A)", ["not a scalar", "expected: *a traced scalar", "got: .*buffer A"]),
    (python_asks_for_truth, TraceError, "any([A[0, 0] > 0, A[0, 1] > 0])", ["whether a traced value is true", "hint: "]),
    (python_needs_an_int, TraceError, "table[n]", ["expected: *a Python int", "got: .*int32"]),
    (rebound_to_a_float, TypeMismatchError, "total = total + A[i, 0]", ["total is a int32 here", "expected: .*int32", "got: *float32"]),
    (value_of_one_branch, TraceError, "x", ["x may have no value here", "hint: "]),
    (list_changed_in_a_loop, TraceError, "found.append", ["changes a Python list"]),
    (reshape_of_another_size, TypeMismatchError, "T.reshape(A, (63, 64))", [r"expected: .*\(64, 64\)", r"got: *\(63, 64\)"]),
    (view_of_a_value, TypeMismatchError, "T.view(A[0, 0], (1,))", ["expected: *a buffer", "got: *float32"]),
    (shape_that_is_no_number, TypeMismatchError, 'T.alloc_shared((8, "8"), T.float32)', ["expected: *an integer", "got: *'8'"]),
    (size_of_launch_time, TraceError, "T.alloc_shared((8, n), T.float32)", ["expected: .*compile time", "got: .*launch"]),
    (eviction_policy, TraceError, 'T.copy(A[0, 0], F, eviction_policy="never")', ["expected: *evict_normal", "got: *'never'"]),
    (assertion, TraceError, "n > 0", ["whether a traced value is true"]),
]  # fmt: skip


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


@pytest.mark.parametrize("threads, error, got", [
    (1025, ResourceError, "1025"), ([32, 33, 1], ResourceError, "1056"), (0, TypeMismatchError, "0"),
    (-32, TypeMismatchError, "-32"), (32.0, TypeMismatchError, "32.0"), ("128", TypeMismatchError, "'128'"),
])  # fmt: skip
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

    text = refused(ResourceError, lambda: kernel(torch.zeros(256, 256)), f"more shared memory than {target} has",
                   f"expected: *at most {limit} bytes", r"got: *\d{6} bytes", r"\n +first +262144 ", r"\n +second +32768 ",
                   "hint: ", caret="T.alloc_shared((256, 256), T.float32)")  # fmt: skip
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

    eager_error(TypeMismatchError, kernel, "unsupported dtype", "got: .*complex64", caret="T.Tensor((64, 64), torch.complex64)")


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
    exec("def kernel(A):\n    A: T.Tensor((64, 64), T.float32)\n    with T.Kernel(1):\n        A[0, 0] = 1\n", namespace)
    refused(TraceError, lambda: ptxtile.jit(namespace["kernel"])(torch.zeros(64, 64)), "the source of kernel is not available")


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


SCRIPT = '''
import traceback
import torch
import ptxtile
import ptxtile.language as T

@ptxtile.jit
def scale(A, size=8):
    A: T.Tensor((8, 8), T.float32)
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((size, 8), T.float32)
        T.copy(A, tile)  # mistake in the kernel
        T.copy(tile, A)

@ptxtile.jit
def large(A):
    A: T.Tensor((256, 256), T.float32)
    with T.Kernel(1, threads=32):
        tile = T.alloc_shared((256, 256), T.float32)  # mistake in the size
        T.copy(A, tile)
        T.copy(tile, A)

def call(function, *arguments):
    try:
        function(*arguments)
    except ptxtile.errors.PtxtileError:
        traceback.print_exc()
        print("=" * 9, file=__import__("sys").stderr)

call(scale, torch.zeros(8, 8, dtype=torch.float16))
call(large, torch.zeros(256, 256))
scale(torch.zeros(8, 8), 9)
'''


def test_what_a_fresh_process_prints(tmp_path: Path) -> None:
    """The report of an uncaught error is the last thing printed, and before it stands no frame of ptxtile but one."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120,
                          cwd=tmp_path, env=environment())  # fmt: skip
    assert done.returncode == 1
    reports = done.stderr.split("=========")
    assert len(reports) == 3, done.stderr
    for report, parts in zip(reports, [
        [r"function\(\*arguments\)", "ptxtile.errors.ArgumentError: scale: argument 'A'", "expected: float32", "got: .*float16"],
        ["ptxtile.errors.ResourceError: ", "mistake in the size", r"\^\^\^", "tile +262144"],
        [r"scale\(torch.zeros\(8, 8\), 9\)", "ptxtile.errors.TypeMismatchError: the two sides of T.copy", "mistake in the kernel",
         r"\^\^\^", "expected: ", "got: "],
    ]):  # fmt: skip
        for part in parts:
            assert re.search(part, report), f"{part!r} is not in:\n{report}"
        before = report.partition("ptxtile.errors.")[0]
        assert before.count(PACKAGE) <= 1, report
        assert "During handling" not in report and "direct cause" not in report, report


def environment() -> dict[str, str]:
    """As a user has it: no variable of ptxtile is set."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PTXTILE_")}
    return {**ours, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}

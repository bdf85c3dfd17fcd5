"""Names and forms that scripts written for TileLang use, beside those of the kernels themselves."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend.values import Value
from ptxtile.ir.program import ScalarParameter
from ptxtile.ir.rewrite import walk
from ptxtile.ir.tile_ops import Assume
from ptxtile.ir.types import BY_NAME
from tests.frontend.tracing import traced


@pytest.mark.parametrize("name", [name for name in BY_NAME if hasattr(torch, name) and "int4" not in name])
def test_a_dtype_is_its_name_and_equal_to_torchs(name: str) -> None:
    dtype = T.dtype(name)
    assert isinstance(dtype, str) and getattr(torch, dtype) is getattr(torch, name)
    assert dtype == name and name == dtype and not dtype != name
    assert dtype == getattr(torch, name) and getattr(torch, name) == dtype
    assert {dtype: 1}[name] == 1 and f"{dtype}" == name == str(dtype)
    assert T.dtype(getattr(torch, name)) == dtype == T.dtype(dtype) == ptxtile.DataType(name)
    assert dtype.as_torch() is getattr(torch, name)


def test_dtypes_differ() -> None:
    assert T.float16 != T.float32 and T.float16 != "float32" and T.float16 != torch.float32 and T.float16 != 16
    assert T.float16 not in [T.float32, "bfloat16", torch.int8] and T.float16 in ["float16"]


def test_a_dtype_survives_pickling_and_copying() -> None:
    for made in (pickle.loads(pickle.dumps(T.bfloat16)), copy.deepcopy(T.bfloat16)):
        assert type(made) is T.dtype and made == T.bfloat16 and made.bits == 16


def test_an_unknown_dtype() -> None:
    with pytest.raises(TypeMismatchError, match="float17"):
        T.dtype("float17")


def test_storage_of_dtypes_that_torch_lacks() -> None:
    assert T.int4.as_torch() is torch.int8 and T.tfloat32.as_torch() is torch.float32


def test_a_scalar_parameter_keeps_its_dtype() -> None:
    """Its annotation is a dtype, and so a string, that is no source text to be evaluated."""

    @T.prim_func
    def main(A: T.Tensor((4,), T.float32), n: T.int32, x: T.float32):
        with T.Kernel(1, threads=32):
            A[0] = n + x

    found = {p.name: p.var.dtype.name for p in traced(main).parameters if isinstance(p, ScalarParameter)}
    assert found == {"n": "int32", "x": "float32"}


def test_numbers_with_a_dtype() -> None:
    assert T.const(15, T.uint8).dtype == T.uint8 and T.const(1.5, "float16").dtype == T.float16
    assert T.Cast(T.int16, T.const(3, T.int64)).dtype == T.int16
    assert isinstance(T.const(1, T.int32), T.PrimExpr) and T.PrimExpr is Value


def test_dynamic_sizes_are_vars() -> None:
    m, n = T.dynamic("m, n", "int64")
    assert isinstance(m, T.Var) and isinstance(n, T.Var) and m.dtype == T.int64
    assert not isinstance(4, T.Var) and not isinstance(m + 1, T.Var)
    assert isinstance(T.Var("k", T.float32), T.Var)


@pytest.mark.parametrize("value", [0, 1, 2, 12, -1, -(2**31), 2**31 - 1])
def test_the_lowest_one_bit(value: int) -> None:
    @ptxtile.jit
    def lowest(A):
        A: T.Tensor((1,), T.int32)
        B = T.empty((1,), T.int32)
        with T.Kernel(1, threads=32):
            B[0] = T.__ffs(A[0])
        return B

    expected = 0 if value == 0 else (value & -value).bit_length()
    assert lowest(torch.tensor([value], dtype=torch.int32)).item() == expected


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ldg128", "plain accesses"), ("sts32", "plain accesses"), ("float32x2", "T.vectorized"),
        ("tvm_thread_allreduce", "T.shfl_xor"), ("float8_e4m3fnuz", "T.float8_e4m3fn"), ("alloc_buffer", "T.alloc_"),
    ],
)  # fmt: skip
def test_what_to_write_in_place_of_a_name(name: str, hint: str) -> None:
    assert not hasattr(T, name)
    with pytest.raises(TraceError, match=hint.replace(".", r"\.")):
        getattr(T, name)


def test_there_is_no_tvm() -> None:
    with pytest.raises(ImportError, match="import ptxtile.language as tirx"):
        from ptxtile import tvm  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ImportError, match=r"T\.gemm"):
        from ptxtile.cuda.intrinsics import TensorCoreIntrinEmitter  # type: ignore[attr-defined]  # noqa: F401


def test_a_tensor_of_half_bytes_is_refused_where_it_is_declared() -> None:
    @T.prim_func
    def main(A: T.Tensor((64,), T.int4)):
        with T.Kernel(1):
            T.clear(A)

    with pytest.raises(TypeMismatchError, match="A is a tensor of int4") as caught:
        ptxtile.compile(main)
    assert caught.value.location is not None and "uint8" in str(caught.value)


def test_strided_tensors_in_brackets() -> None:
    found = T.StridedTensor[(4, 8), (16, 1), T.float16]
    assert (found.shape, found.strides, found.dtype.name) == ((4, 8), (16, 1), "float16")


@ptxtile.jit
def compared(A, B):
    """float8 is compared, and its extrema are found, exactly; NaN propagates."""
    N = T.const("N")
    A: T.Tensor((N,), T.float8_e5m2)
    B: T.Tensor((N,), T.float8_e5m2)
    most, least = T.empty((N,), T.float8_e5m2), T.empty((N,), T.float8_e5m2)
    less = T.empty((N,), T.bool)
    with T.Kernel(T.ceildiv(N, 64), threads=64) as bx:
        for i in T.Parallel(64):
            at = bx * 64 + i
            if at < N:
                most[at] = T.min(T.max(A[at], B[at]), T.infinity(T.float8_e5m2))
                least[at] = T.min(A[at], B[at])
                less[at] = A[at] < B[at]
    return most, least, less


def test_float8_is_compared() -> None:
    generator = np.random.default_rng(7)
    a, b = (torch.from_numpy(generator.integers(0, 256, 500, dtype=np.uint8)).view(torch.float8_e5m2) for _ in range(2))
    most, least, less = compared(a, b)
    x, y = a.double(), b.double()
    for found, expected in ((most, torch.maximum(x, y)), (least, torch.minimum(x, y))):
        torch.testing.assert_close(found.double(), expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(less, x < y)


@T.macro
def doubled(A: T.SharedBuffer((4, 4), T.float32)):
    M, N = A.shape
    B = T.empty(M, N, dtype=A.dtype)
    with T.Kernel(M, threads=32) as row:
        for j in T.Parallel(N):
            B[row, j] = A[row, j] * 2
    return B


@ptxtile.jit
def kernel_in_a_macro(A):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    return doubled(A)


def test_a_kernel_in_a_macro_is_of_the_eager_form() -> None:
    a = torch.randn(3, 40, generator=torch.Generator().manual_seed(3))
    assert torch.equal(kernel_in_a_macro(a), a * 2)


def test_the_source_of_a_jitted_function() -> None:
    by_tensor = kernel_in_a_macro.get_kernel_source(torch.zeros(3, 40))
    by_size = kernel_in_a_macro.get_kernel_source(M=3, N=40)
    assert ".entry" in by_tensor and by_tensor == by_size


@ptxtile.jit(out_idx=[-1])
def made(n):
    @T.prim_func
    def main(A: T.Tensor((n,), T.float32), B: T.Tensor((n,), T.float32)):
        with T.Kernel(1, threads=32):
            T.copy(A, B)

    return main


def test_the_source_of_a_factory() -> None:
    assert made.get_kernel_source(64) == made(64).get_kernel_source(kernel_only=True)


def test_an_assumption_before_the_kernels_holds_in_each() -> None:
    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((m,), T.float32), n: T.int32):
        T.assume(m % 64 == 0)
        with T.Kernel(1, threads=32):
            A[0] = 1
        T.assume(n > 0)
        with T.Kernel(1, threads=32):
            A[n] = 2

    counts = [sum(isinstance(node, Assume) for node in walk(kernel.body)) for kernel in traced(main).kernels]
    assert counts == [1, 2]


@ptxtile.jit
def by_binding(A, threads=(32, 4)):
    A: T.Tensor((4, 32), T.int32)
    with T.Kernel(1, threads=threads):
        x, y = T.thread_binding(0, 32, thread="threadIdx.x"), T.thread_binding(4, thread="threadIdx.y")
        A[y, x] = y * 100 + x + T.thread_binding(0, 1, "blockIdx.x")


def test_thread_bindings() -> None:
    a = torch.zeros(4, 32, dtype=torch.int32)
    by_binding(a)
    assert torch.equal(a, (torch.arange(4)[:, None] * 100 + torch.arange(32)).int())
    with pytest.raises(TraceError, match=r"0 … 64, as in T\.Kernel"):
        by_binding(a, threads=(64, 4))

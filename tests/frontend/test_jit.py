"""Kernels as users call them, on CPU tensors: both forms, variants, arguments, errors."""

from __future__ import annotations

import subprocess
import sys
import traceback

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.call_keys import call_key, specialize_tensors
from ptxtile.errors import ArgumentError, PtxtileError, TargetError, TraceError
from ptxtile.jit_factory import JITFactory
from ptxtile.jit_function import JITFunction
from ptxtile.kernel import JITKernel


@ptxtile.jit
def scale(A, factor=2, threads=32):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(M, 8), threads=threads) as bx:
        for i, j in T.Parallel(8, N):
            if bx * 8 + i < M:
                B[bx * 8 + i, j] = A[bx * 8 + i, j] * factor
    return B


@ptxtile.jit(out_idx=[-1])
def adder(N, dtype="float32"):
    @T.prim_func
    def add(A: T.Tensor((N,), dtype), alpha: T.float32, C: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
            for i in T.Parallel(32):
                if bx * 32 + i < N:
                    C[bx * 32 + i] = A[bx * 32 + i] + alpha

    return add


@T.prim_func
def double_in_place(A: T.Tensor((16,), "int32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(16):
            A[i] = A[i] * 2


def test_eager():
    a = torch.rand(19, 12)
    assert isinstance(scale, JITFunction)
    torch.testing.assert_close(scale(a), a * 2, rtol=0, atol=0)
    torch.testing.assert_close(scale(a, 3), a * 3, rtol=0, atol=0)
    torch.testing.assert_close(scale(A=a, factor=0.5, threads=64), a * 0.5, rtol=0, atol=0)


def test_factory():
    assert isinstance(adder, JITFactory)
    kernel = adder(50)
    assert isinstance(kernel, JITKernel) and adder(50) is kernel and adder(51) is not kernel
    a = torch.rand(50)
    torch.testing.assert_close(kernel(a, 1.5), a + 1.5)
    torch.testing.assert_close(kernel(A=a, alpha=1.5), a + 1.5)
    half = torch.rand(50).half()
    assert adder(50, dtype=torch.float16)(half, 1.0).dtype == torch.float16


def test_compile_a_prim_func_in_place():
    kernel = ptxtile.compile(double_in_place)
    a = torch.arange(16, dtype=torch.int32)
    assert kernel(a) is None
    assert a.tolist() == [2 * i for i in range(16)]


def test_strided_and_transposed_tensors():
    base = torch.rand(24, 20)
    for view in (base[::2, :12], base.t(), base[3:9, 5:9], base[:1].expand(5, 20), base[:0], base[:, :1]):
        torch.testing.assert_close(scale(view), view * 2, rtol=0, atol=0)


def test_variants_are_shared():
    fresh = ptxtile.jit(scale.function.function)
    a = torch.rand(8, 16)
    fresh(a)
    fresh(torch.rand(8, 16))
    (kernel,) = fresh._kernels.values()
    assert len(kernel._variants) == 1
    fresh(torch.rand(9, 16))
    assert len(kernel._variants) == 2
    fresh(torch.rand(8, 17)[:, :16])
    assert len(kernel._variants) == 3
    fresh(a, 3)
    assert len(fresh._kernels) == 2


def test_dynamic_sizes_share_code():
    m = T.dynamic("m")

    @ptxtile.jit
    def increment(A):
        A: T.Tensor((m,), T.float32)
        B = T.empty((m,), T.float32)
        with T.Kernel(T.ceildiv(m, 32), threads=32) as bx:
            for i in T.Parallel(32):
                if bx * 32 + i < m:
                    B[bx * 32 + i] = A[bx * 32 + i] + 1
        return B

    for size in (16, 32, 160, 33, 7, 0):
        a = torch.rand(size)
        torch.testing.assert_close(increment(a), a + 1)
    (kernel,) = increment._kernels.values()
    assert len(kernel._variants) == 2


def test_overlapping_arguments_get_groups():
    base = torch.zeros(100)
    groups = specialize_tensors({"a": base[:50], "b": base[50:], "c": base[40:60], "d": torch.zeros(4)})
    assert [groups[name].alias_group for name in "abcd"] == [0, 0, 0, None]
    apart = specialize_tensors({"a": base[:50], "b": base[50:]})
    assert [known.alias_group for known in apart.values()] == [None, None]
    assert call_key((base[:50], base[50:]))[0] != call_key((base[:50], base[:50]))[0]


def test_python_arguments_of_equal_value_and_other_type_differ():
    @ptxtile.jit
    def fill(A, value):
        A: T.Tensor((4,), T.float32)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4):
                A[i] = A[i] / value if isinstance(value, float) else A[i] // value

    a = torch.full((4,), 7.0)
    fill(a, 2)
    assert a.tolist() == [3.0] * 4
    fill(a, 2.0)
    assert a.tolist() == [1.5] * 4


def test_looking_inside():
    kernel = scale.compile(M=16, N=32)
    assert ".visible .entry scale_kernel" in kernel.get_kernel_source() == kernel.ptx
    assert "scale" in kernel.get_host_source()
    assert kernel.launch.launches[0].grid == (2, 1, 1)
    assert kernel.program.stage == "gpu" and kernel.tile_program.stage == "tile"
    assert kernel.timings["trace"] > 0
    assert kernel.artifact.target is kernel.target


def test_export(tmp_path):
    kernel = scale.compile(M=16, N=32)
    kernel.export_ptx(tmp_path / "k.ptx")
    kernel.export_llvm(tmp_path / "k.ll")
    assert (tmp_path / "k.ptx").read_text() == kernel.ptx
    assert "define" in (tmp_path / "k.ll").read_text()


def test_options_and_targets():
    decorated = ptxtile.jit(
        scale.function.function, target="sm_80", fast_math=True,
        pass_configs={ptxtile.PassConfigKey.TL_DISABLE_TMA_LOWER: True, "tl.disable_warp_specialized": True},
    )  # fmt: skip
    kernel = decorated.compile(M=8, N=8)
    options = kernel.artifact.options
    assert options.fast_math and options.disable_tma and options.specialize_warps is False
    assert kernel.target.name == "sm_80" and ".target sm_80" in kernel.ptx
    with pytest.raises(TargetError):
        ptxtile.jit(target="sm_1")(scale.function.function)
    with pytest.raises(PtxtileError, match="unknown pass config 'fast_mat'"):
        ptxtile.jit(fast_mat=True)(scale.function.function)


def test_target_from_the_environment(monkeypatch):
    monkeypatch.setenv("PTXTILE_TARGET", "sm_89")
    assert ptxtile.jit(scale.function.function).compile(M=8, N=8).target.name == "sm_89"


@pytest.mark.parametrize(
    "arguments, match",
    [
        ((), "argument 'A' is missing"),
        ((torch.zeros(4),), "(?s)dimensions|rank"),
        ((torch.zeros(4, 4, dtype=torch.float64),), "(?s)float64"),
        (("text",), "(?s)A"),
        ((None,), "(?s)A"),
        ((torch.zeros(4, 4), 1, 2, 3), "too many arguments"),
        ((torch.zeros(4, 4, device="meta"),), "(?s)A"),
    ],
)
def test_bad_arguments(arguments, match):
    with pytest.raises(ArgumentError, match=match):
        scale(*arguments)


def test_unknown_names():
    with pytest.raises(ArgumentError, match="no argument 'factr'"):
        scale(torch.zeros(4, 4), factr=3)
    with pytest.raises(ArgumentError, match="no size or argument 'K'"):
        scale.compile(M=4, N=4, K=3)
    with pytest.raises(ArgumentError, match="size N of scale is not known"):
        scale.compile(M=4)


def test_sizes_that_disagree():
    @ptxtile.jit
    def two(A, B):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B: T.Tensor((N, 2 * N), T.float32)
        with T.Kernel(1, threads=32):
            A[0] = B[0, 0]

    with pytest.raises(ArgumentError, match="B"):
        two(torch.zeros(4), torch.zeros(5, 8))
    with pytest.raises(ArgumentError, match="B"):
        two(torch.zeros(4), torch.zeros(4, 9))


def test_a_compiled_kernel_keeps_its_sizes():
    kernel = scale.compile(M=8, N=8)
    torch.testing.assert_close(kernel(torch.ones(8, 8)), torch.full((8, 8), 2.0))
    with pytest.raises(ArgumentError, match="size M is fixed"):
        kernel(torch.ones(9, 8))


def test_a_tensor_without_an_annotation():
    @ptxtile.jit
    def kernel(A, B):
        A: T.Tensor((4,), T.float32)
        with T.Kernel(1):
            A[0] = 1

    with pytest.raises(TraceError, match="tensor argument B has no annotation"):
        kernel(torch.zeros(4), torch.zeros(4))


def test_out_idx_out_of_range():
    @ptxtile.jit(out_idx=[3])
    def factory():
        return double_in_place

    with pytest.raises(ArgumentError, match="out_idx"):
        factory()


def test_a_factory_that_returns_something_else():
    @ptxtile.jit(out_idx=[0])
    def factory():
        return 3

    with pytest.raises(TraceError, match="returned int"):
        factory()


def test_errors_show_none_of_our_frames():
    @ptxtile.jit
    def broken(A):
        A: T.Tensor((4,), T.float32)
        with T.Kernel(1):
            A[0, 0] = 1

    with pytest.raises(TraceError) as caught:
        broken(torch.zeros(4))
    inner = [frame for frame in traceback.extract_tb(caught.tb) if "frontend/" in frame.filename]
    assert [frame.filename for frame in inner if not frame.filename.endswith("test_jit.py")] == []
    assert "A[0, 0] = 1" in str(caught.value)


def test_a_users_own_error_keeps_the_users_lines():
    @ptxtile.jit
    def broken(A):
        A: T.Tensor((4,), T.float32)
        missing = {}["key"]
        with T.Kernel(1):
            A[0] = missing

    with pytest.raises(KeyError) as caught:
        broken(torch.zeros(4))
    lines = [frame.line for frame in traceback.extract_tb(caught.tb)]
    assert 'missing = {}["key"]' in lines


def test_jit_is_callable_even_as_a_module():
    program = (
        "import ptxtile.jit, ptxtile\n"
        "from ptxtile import jit\n"
        "def f(A): pass\n"
        "assert callable(ptxtile.jit) and callable(jit)\n"
        "assert 'torch' not in __import__('sys').modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_tracing_costs_milliseconds():
    import time

    scale.compile(M=8, N=8)
    started = time.perf_counter()
    kernel = ptxtile.jit(scale.function.function).compile(M=16, N=16)
    assert kernel.timings["trace"] < time.perf_counter() - started
    assert kernel.timings["trace"] < 0.05


def test_the_module_as_decorator_shows_one_frame() -> None:
    """``ptxtile.jit`` is the module where that was imported first; its errors look the same."""
    import importlib

    module = importlib.import_module("ptxtile.jit")
    with pytest.raises(TargetError) as caught:
        module(target="sm_1")  # type: ignore[operator]
    frames = [frame for frame in traceback.extract_tb(caught.value.__traceback__) if frame.filename == module.__file__]
    assert len(frames) == 1

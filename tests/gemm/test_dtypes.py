"""T.gemm over element types, widths and warpgroups: which instructions, right numbers, and what ptxas says."""

from __future__ import annotations

import warnings

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import PerformanceWarning, TargetError, TypeMismatchError
from ptxtile.ir.rewrite import walk
from ptxtile.ir.tensor_core_ops import MmaSync, Wgmma
from tests import ptxas
from tests.gemm.kernels import operands, relative_error
from tests.nvvm.test_tensor_cores import SERIALIZED

TF32_BOUND = 2e-3
"""Both operands lose up to 2⁻¹⁰ of their value, and always towards zero."""


def nodes(kernel, kind: type) -> list:
    return [node for node in walk(kernel.program.kernels[0].body) if isinstance(node, kind)]


def check_ptx(kernel, architecture: str) -> None:
    log = ptxas.assemble(kernel.ptx, architecture)
    assert not any(word in log for word in SERIALIZED), log
    assert "0 bytes spill stores" in log and "warning" not in log, log


def mixed_gemm(
    A, B, dtype_A="bfloat16", dtype_B="bfloat16", accum="float32", transpose_A=False, transpose_B=True, block_M=64,
    block_N=64, block_K=64, threads=128, bias=0.0,
):  # fmt: skip
    """C = relu(op(A) · op(B) + bias), with element types of their own for A and B."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((K, M) if transpose_A else (M, K), dtype_A)
    B: T.Tensor((N, K) if transpose_B else (K, N), dtype_B)
    C = T.empty((M, N), accum)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_K, block_M) if transpose_A else (block_M, block_K), dtype_A)
        B_shared = T.alloc_shared((block_N, block_K) if transpose_B else (block_K, block_N), dtype_B)
        C_local = T.alloc_fragment((block_M, block_N), accum)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
            if transpose_A:
                T.copy(A[k * block_K, by * block_M], A_shared)
            else:
                T.copy(A[by * block_M, k * block_K], A_shared)
            if transpose_B:
                T.copy(B[bx * block_N, k * block_K], B_shared)
            else:
                T.copy(B[k * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_A, transpose_B, clear_accum=k == 0)
        if bias:
            for i, j in T.Parallel(block_M, block_N):
                C_local[i, j] = T.max(C_local[i, j] + bias, 0.0)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def product(architecture: str, monkeypatch, m=96, n=72, k=128, jit=None, **options):
    """The relative error of one product, and the kernel."""
    monkeypatch.setenv("PTXTILE_TARGET", architecture)
    function = ptxtile.jit(mixed_gemm, **(jit or {}))
    a, b = (
        operands(m, n, k, getattr(torch, options.get(name, "bfloat16")), "cpu", 4)[position]
        for position, name in enumerate(("dtype_A", "dtype_B"))
    )
    left = a.T.contiguous() if options.get("transpose_A") else a
    right = b.T.contiguous() if options.get("transpose_B", True) else b
    found = function(left, right, **options)
    return relative_error(found, a, b), next(iter(function._kernels.values()))


FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
BYTES = ("int8", "uint8")
TYPES = [
    ("float16", "float16", "float32", 1e-5), ("float16", "float16", "float16", 5e-3),
    ("bfloat16", "bfloat16", "float32", 1e-5), ("float32", "float32", "float32", TF32_BOUND),
    *((a, b, "float32", 1e-5) for a in FLOAT8 for b in FLOAT8),
    *((a, b, "float16", 5e-3) for a in FLOAT8 for b in FLOAT8),
    *((a, b, "int32", 0.0) for a in BYTES for b in BYTES),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "accum", "bound"), TYPES)
def test_every_type_of_wgmma(a, b, accum, bound, monkeypatch):
    error, kernel = product("sm_90a", monkeypatch, dtype_A=a, dtype_B=b, accum=accum)
    assert error <= bound
    assert nodes(kernel, Wgmma)
    check_ptx(kernel, "sm_90a")


MMA_TYPES = [types for types in TYPES if not (types[0] in FLOAT8 and types[2] == "float16")]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_89", "sm_120a"])
@pytest.mark.parametrize(("a", "b", "accum", "bound"), [*MMA_TYPES, ("float64", "float64", "float64", 1e-14)])
def test_every_type_of_mma(architecture, a, b, accum, bound, monkeypatch):
    error, kernel = product(architecture, monkeypatch, dtype_A=a, dtype_B=b, accum=accum, block_K=32)
    assert error <= bound
    has_none = architecture == "sm_80" and a in FLOAT8
    assert bool(nodes(kernel, MmaSync)) != has_none
    if has_none:  # nor instructions that convert 8-bit floats
        with pytest.raises(TargetError, match="FP8_CONVERT"):
            str(kernel.ptx)
    else:
        check_ptx(kernel, architecture)


@pytest.mark.parametrize("a", ["float8_e4m3fn", "int8", "float32"])
@pytest.mark.parametrize(("transpose_a", "transpose_b"), [(True, True), (False, False)])
def test_transposes_that_wgmma_lacks_go_to_mma(a, transpose_a, transpose_b, monkeypatch):
    accum = "int32" if a == "int8" else "float32"
    error, kernel = product("sm_90a", monkeypatch, dtype_A=a, dtype_B=a, accum=accum, transpose_A=transpose_a,
                            transpose_B=transpose_b)  # fmt: skip
    assert error <= (TF32_BOUND if a == "float32" else 1e-5)
    assert nodes(kernel, MmaSync) and not nodes(kernel, Wgmma)
    assert any("not K-major" in record.reason for record in kernel.why)
    check_ptx(kernel, "sm_90a")


@pytest.mark.parametrize("n", range(8, 257, 8))
def test_every_width(n, monkeypatch):
    error, kernel = product("sm_90a", monkeypatch, m=64, n=n, k=32, block_N=n, block_K=32)
    assert error <= 1e-5
    assert {node.n for node in nodes(kernel, Wgmma)} == {n}
    error, kernel = product("sm_90a", monkeypatch, m=64, n=n, k=32, block_N=n, block_K=32, dtype_A="int8",
                            dtype_B="int8", accum="int32")  # fmt: skip
    assert error == 0
    allowed = {8, 16, 24, *range(32, 257, 16)}
    """PTX ISA 9.7.15.5.2, the shapes of .s32."""
    widest = max(width for width in allowed if n % width == 0)
    assert {node.n for node in nodes(kernel, Wgmma)} == {widest}


@pytest.mark.parametrize(
    ("block_m", "threads"), [(64, 128), (128, 128), (128, 256), (192, 384), (256, 256), (192, 128)]
)
@pytest.mark.parametrize("transpose_b", [True, False])
def test_rows_by_warpgroups(block_m, threads, transpose_b, monkeypatch):
    error, kernel = product("sm_90a", monkeypatch, m=200, block_M=block_m, threads=threads, transpose_B=transpose_b)
    assert error <= 1e-5
    assert len(nodes(kernel, Wgmma)) == 4 * (block_m * 128 // 64 // threads)
    check_ptx(kernel, "sm_90a")


def test_n_major_instructions_start_at_a_span_of_the_swizzle(monkeypatch):
    """320 columns would divide into two of 160, but 160 lies inside of a span of 64."""
    error, kernel = product("sm_90a", monkeypatch, m=64, n=320, k=32, block_N=320, block_K=32, transpose_B=False)
    assert error <= 1e-5
    assert {node.n for node in nodes(kernel, Wgmma)} == {64}


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_float32_keeps_all_bits_when_asked(architecture, monkeypatch):
    error, kernel = product(architecture, monkeypatch, dtype_A="float32", dtype_B="float32", jit={"allow_tf32": False})
    assert error < 1e-6
    assert not nodes(kernel, Wgmma) and not nodes(kernel, MmaSync)


def test_wgmma_can_be_switched_off(monkeypatch):
    for jit in ({"disable_wgmma": True}, {"pass_configs": {ptxtile.PassConfigKey.TL_DISABLE_WGMMA: True}}):
        error, kernel = product("sm_90a", monkeypatch, jit=jit)
        assert error <= 1e-5
        assert nodes(kernel, MmaSync) and not nodes(kernel, Wgmma)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_a_float16_accumulator_goes_on_in_float16(architecture, monkeypatch):
    monkeypatch.setenv("PTXTILE_TARGET", architecture)
    function = ptxtile.jit(mixed_gemm)
    a, b = operands(96, 72, 64, torch.float16, "cpu", 6)
    found = function(a, b.T.contiguous(), dtype_A="float16", dtype_B="float16", accum="float16", bias=0.5)
    wanted = torch.relu(a.double() @ b.double() + 0.5)
    assert float((found.double() - wanted).norm() / wanted.norm()) < 5e-3
    check_ptx(next(iter(function._kernels.values())), architecture)


# -- what is refused, and what is slow ----------------------------------------
@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({"block_K": 20}, "K = 24 (a multiple of 8)"),
        ({"block_M": 40}, "M = 48 (a multiple of 16)"),
        ({"block_N": 60}, "N = 64 (a multiple of 8)"),
        ({"block_M": 16, "block_N": 16, "threads": 256}, "32 or 64 threads"),
    ],
)  # fmt: skip
def test_tiles_that_tensor_cores_cannot_take_are_a_warning_with_sizes(options, sizes, monkeypatch):
    with pytest.warns(PerformanceWarning) as caught:
        error, kernel = product("sm_80", monkeypatch, m=50, n=60, k=40, **options)
    assert error <= 1e-5
    assert not nodes(kernel, MmaSync)
    (warning,) = (w for w in caught if isinstance(w.message, PerformanceWarning))
    assert sizes in str(warning.message) and warning.filename == __file__
    assert "T.gemm(A_shared" in open(__file__).read().splitlines()[warning.lineno - 1]
    # and the sizes do it
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = {"block_K": 24, "block_M": 48, "block_N": 64, "threads": 32}
        changed = {name: fitted[name] for name in options if name in sizes_named(sizes)}
        _, kernel = product("sm_80", monkeypatch, m=50, n=60, k=40, **(options | changed))
    assert nodes(kernel, MmaSync)


def sizes_named(text: str) -> set[str]:
    return {"threads"} if "threads" in text else {f"block_{text[0]}"}


def test_types_without_tensor_cores_are_no_warning(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        error, kernel = product("sm_80", monkeypatch, m=20, n=20, k=24, dtype_B="float16", block_K=24)
    assert error <= 1e-5 and not nodes(kernel, MmaSync)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype_A": "bool", "dtype_B": "bool", "accum": "int32"}, "operand A of T.gemm has a dtype"),
        ({"dtype_A": "bool", "accum": "float32"}, "operand A of T.gemm has a dtype"),
        ({"accum": "int32"}, "accumulate in float32"),
        ({"dtype_A": "int8", "dtype_B": "int8", "accum": "int16"}, "cannot accumulate in this dtype"),
        ({"accum": "bfloat16"}, "cannot accumulate in this dtype"),
    ],
)  # fmt: skip
def test_dtypes_that_cannot_be_multiplied(options, message):
    with pytest.raises(TypeMismatchError, match=message) as raised:
        ptxtile.jit(mixed_gemm).compile(M=64, N=64, K=64, **options).program
    assert "T.gemm(A_shared, B_shared, C_local" in str(raised.value)

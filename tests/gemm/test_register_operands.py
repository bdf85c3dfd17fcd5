"""T.gemm with operands in registers, on every path: against float64 in the simulator, and what ptxas says."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile import sim
from ptxtile.errors import TraceError
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Allocate
from ptxtile.ir.tensor_core_ops import MmaSync, Wgmma, WgmmaWaitGroup
from ptxtile.sim.delayed_effects import ALWAYS, DelayedEffects
from tests import ptxas
from tests.gemm.kernels import operands, relative_error
from tests.nvvm.test_tensor_cores import SERIALIZED

ARCHITECTURES = ("sm_80", "sm_89", "sm_90a", "sm_120a")


def nodes(program, kind: type) -> list:
    return [node for node in walk(program.kernels[0].body) if isinstance(node, kind)]


def shared_tiles(program) -> list[str]:
    return [node.buffer.name for node in nodes(program, Allocate) if node.buffer.scope.value == "shared"]


def check_ptx(kernel, architecture: str) -> None:
    log = ptxas.assemble(kernel.ptx, architecture)
    assert not any(word in log for word in SERIALIZED), log
    assert "0 bytes spill stores" in log and "warning" not in log, log


@ptxtile.jit
def gemm_in_registers(
    A, B, transpose_A=False, transpose_B=True, block_M=64, block_N=64, block_K=64, threads=128, dtype="bfloat16",
    accum="float32", policy=T.GemmWarpPolicy.Square, registers="A",
):  # fmt: skip
    """C = op(A) · op(B) with A, B or both brought into registers first."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((K, M) if transpose_A else (M, K), dtype)
    B: T.Tensor((N, K) if transpose_B else (K, N), dtype)
    C = T.empty((M, N), accum)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shape = (block_K, block_M) if transpose_A else (block_M, block_K)
        B_shape = (block_N, block_K) if transpose_B else (block_K, block_N)
        A_shared, B_shared = T.alloc_shared(A_shape, dtype), T.alloc_shared(B_shape, dtype)
        A_local, B_local = T.alloc_fragment(A_shape, dtype), T.alloc_fragment(B_shape, dtype)
        C_local = T.alloc_fragment((block_M, block_N), accum)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
            if transpose_A:
                T.copy(A[k * block_K, by * block_M], A_shared)
            else:
                T.copy(A[by * block_M, k * block_K], A_shared)
            if transpose_B:
                T.copy(B[bx * block_N, k * block_K], B_shared)
            else:
                T.copy(B[k * block_K, bx * block_N], B_shared)
            if "A" in registers:
                T.copy(A_shared, A_local)
            if "B" in registers:
                T.copy(B_shared, B_local)
            T.gemm(
                A_local if "A" in registers else A_shared, B_local if "B" in registers else B_shared, C_local,
                transpose_A, transpose_B, policy,
            )  # fmt: skip
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def product(architecture: str, monkeypatch, m=128, n=64, k=128, **options):
    """The relative error of one product, and the kernel."""
    monkeypatch.setenv("PTXTILE_TARGET", architecture)
    gemm_in_registers._kernels.clear()
    a, b = operands(m, n, k, getattr(torch, options.get("dtype", "bfloat16")), "cpu", 3)
    left = a.T.contiguous() if options.get("transpose_A") else a
    right = b.T.contiguous() if options.get("transpose_B", True) else b
    error = relative_error(gemm_in_registers(left, right, **options), a, b)
    return error, next(iter(gemm_in_registers._kernels.values()))


WGMMA_CASES = [
    {"dtype": "bfloat16"}, {"dtype": "float16", "accum": "float32"}, {"dtype": "float16", "accum": "float16"},
    {"dtype": "bfloat16", "transpose_A": True}, {"dtype": "bfloat16", "transpose_B": False},
    {"dtype": "float8_e4m3fn"}, {"dtype": "float8_e5m2"}, {"dtype": "int8", "accum": "int32"},
    {"dtype": "uint8", "accum": "int32"}, {"dtype": "float32"},
    {"dtype": "bfloat16", "block_M": 128}, {"dtype": "bfloat16", "block_M": 128, "threads": 256},
    {"dtype": "bfloat16", "block_N": 64, "threads": 256}, {"dtype": "bfloat16", "block_N": 200},
]  # fmt: skip


def bound_of(options: dict) -> float:
    if options.get("accum") == "int32":
        return 0.0
    return 5e-3 if options.get("accum") == "float16" else 1e-3 if options["dtype"] == "float32" else 1e-5


@pytest.mark.parametrize("options", WGMMA_CASES, ids=lambda options: "-".join(map(str, options.values())))
def test_wgmma_takes_a_from_registers(options, monkeypatch):
    error, kernel = product("sm_90a", monkeypatch, **options)
    assert error <= bound_of(options)
    multiplications = nodes(kernel.program, Wgmma)
    assert multiplications and all(node.a is not None and node.shared_a is None for node in multiplications)
    assert all(wait.fragments for wait in nodes(kernel.program, WgmmaWaitGroup))
    assert not [name for name in shared_tiles(kernel.program) if "exchange" in name]
    check_ptx(kernel, "sm_90a")


@pytest.mark.parametrize(
    ("architecture", "registers"),
    [(a, r) for a in ARCHITECTURES for r in ("A", "B", "AB") if (a, r) != ("sm_90a", "A")],  # that is for wgmma
)
@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "bfloat16"}, {"dtype": "float16", "accum": "float16"}, {"dtype": "float32"},
        {"dtype": "int8", "accum": "int32"}, {"dtype": "float64", "accum": "float64"},
        {"dtype": "bfloat16", "transpose_A": True, "transpose_B": False, "threads": 64},
        {"dtype": "bfloat16", "threads": 256, "policy": T.GemmWarpPolicy.FullCol, "block_M": 128},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)  # fmt: skip
def test_mma_takes_operands_from_registers(architecture, registers, options, monkeypatch):
    error, kernel = product(architecture, monkeypatch, registers=registers, block_K=32, **options)
    assert error <= bound_of(options)
    assert nodes(kernel.program, MmaSync)
    check_ptx(kernel, architecture)


# -- from an accumulator to an operand ----------------------------------------
@ptxtile.jit
def two_products(Q, K, V, block=64, threads=128, dtype="bfloat16", policy=T.GemmWarpPolicy.FullRow, through=None):
    """(Q · Kᵀ / 8) · V for one block of rows of Q: the first product is cast and multiplied on, in registers."""
    M, N, D = T.const("M, N, D")
    Q: T.Tensor((M, D), dtype)
    K: T.Tensor((N, D), dtype)
    V: T.Tensor((N, D) if dtype == "bfloat16" else (D, N), dtype)
    O = T.empty((M, D), "float32")
    by_rows = dtype == "bfloat16"
    with T.Kernel(T.ceildiv(M, block), threads=threads) as bx:
        Q_shared = T.alloc_shared((block, D), dtype)
        K_shared = T.alloc_shared((64, D), dtype)
        V_shared = T.alloc_shared((64, D) if by_rows else (D, 64), dtype)
        S = T.alloc_fragment((block, 64), "float32")
        P = T.alloc_fragment((block, 64), dtype)
        acc = T.alloc_fragment((block, D), "float32")
        T.copy(Q[bx * block, 0], Q_shared)
        T.clear(acc)
        for k in T.Pipelined(T.ceildiv(N, 64), num_stages=2):
            T.copy(K[k * 64, 0], K_shared)
            if by_rows:
                T.copy(V[k * 64, 0], V_shared)
            else:
                T.copy(V[0, k * 64], V_shared)
            T.gemm(Q_shared, K_shared, S, transpose_B=True, policy=policy, clear_accum=True)
            for i, j in T.Parallel(block, 64):
                P[i, j] = S[i, j] * 0.125
            T.gemm(P, V_shared, acc, transpose_B=not by_rows, policy=policy)
        T.copy(acc, O[bx * block, 0])
    return O


def two_products_error(architecture: str, monkeypatch, **options):
    monkeypatch.setenv("PTXTILE_TARGET", architecture)
    two_products._kernels.clear()
    dtype = getattr(torch, options.get("dtype", "bfloat16"))
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(rows, 64, generator=generator).to(dtype) for rows in (256, 128, 128))
    found = two_products(q, k, v if dtype is torch.bfloat16 else v.T.contiguous(), **options)
    p = (q.float() @ k.float().T * 0.125).to(dtype)
    wanted = p.double() @ v.double()
    error = float((found.double() - wanted).norm() / wanted.norm())
    return error, next(iter(two_products._kernels.values()))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize(("block", "threads"), [(64, 128), (128, 128), (128, 256)])
def test_a_cast_accumulator_is_an_operand_where_it_lies(architecture, block, threads, monkeypatch):
    """Sixteen-bit types: no shared memory, no shuffles between the products; two casts make one register."""
    error, kernel = two_products_error(architecture, monkeypatch, block=block, threads=threads)
    assert error < 3e-3  # a sum of another order may round an element of P differently
    kind = Wgmma if architecture == "sm_90a" else MmaSync
    assert nodes(kernel.program, kind)
    assert not [name for name in shared_tiles(kernel.program) if "exchange" in name]
    assert "bf16x2.f32" in kernel.ptx
    check_ptx(kernel, architecture)


def test_an_8_bit_operand_is_exchanged(monkeypatch):
    """Its registers hold four neighbours, those of the accumulator pairs: it crosses shared memory once, as bytes."""
    error, kernel = two_products_error("sm_90a", monkeypatch, dtype="float8_e4m3fn")
    assert error < 3e-2
    exchanged = [name for name in shared_tiles(kernel.program) if "exchange" in name]
    assert exchanged == ["P_exchange"]
    assert any(record.decision == "goes through shared memory" for record in kernel.why)
    check_ptx(kernel, "sm_90a")


@ptxtile.jit
def chained(A, B, V, first=T.GemmWarpPolicy.FullRow, second=T.GemmWarpPolicy.FullRow, threads=256, scale=1.0):
    """(A · Bᵀ) · V in float16: the accumulator of the first product itself is the operand of the second."""
    M, N, D = T.const("M, N, D")
    A: T.Tensor((M, D), "float16")
    B: T.Tensor((N, D), "float16")
    V: T.Tensor((N, D), "float16")
    O = T.empty((M, D), "float32")
    with T.Kernel(1, threads=threads):
        A_shared, B_shared = T.alloc_shared((M, D), "float16"), T.alloc_shared((N, D), "float16")
        V_shared = T.alloc_shared((N, D), "float16")
        S = T.alloc_fragment((M, N), "float16")
        acc = T.alloc_fragment((M, D), "float32")
        T.copy(A, A_shared)
        T.copy(B, B_shared)
        T.copy(V, V_shared)
        T.gemm(A_shared, B_shared, S, transpose_B=True, policy=first, clear_accum=True)
        T.gemm(S, V_shared, acc, policy=second, clear_accum=True)
        T.copy(acc, O)
    return O


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("first", list(T.GemmWarpPolicy))
@pytest.mark.parametrize("second", [T.GemmWarpPolicy.FullRow, T.GemmWarpPolicy.FullCol])
def test_an_accumulator_as_operand_is_converted_where_it_lies_differently(architecture, first, second, monkeypatch):
    monkeypatch.setenv("PTXTILE_TARGET", architecture)
    chained._kernels.clear()
    generator = torch.Generator().manual_seed(7)
    a, b, v = (torch.randn(rows, 64, generator=generator).half() / 4 for rows in (128, 64, 64))
    found = chained(a, b, v, first=first, second=second)
    wanted = (a.double() @ b.double().T) @ v.double()
    assert float((found.double() - wanted).norm() / wanted.norm()) < 2e-3
    kernel = next(iter(chained._kernels.values()))
    converted = any(record.decision == "goes through shared memory" for record in kernel.why)
    by_rows = {T.GemmWarpPolicy.FullRow, *([T.GemmWarpPolicy.Square] if architecture == "sm_90a" else [])}
    assert converted == (not {first, second} <= by_rows)
    check_ptx(kernel, architecture)


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_operands_in_registers_without_tensor_cores(architecture, monkeypatch):
    for options in ({"block_K": 12}, {"block_M": 24, "block_N": 20, "block_K": 8}):
        error, kernel = product(architecture, monkeypatch, m=50, n=40, k=36, registers="AB", **options)
        assert error < 1e-5
        assert not nodes(kernel.program, Wgmma) and not nodes(kernel.program, MmaSync)


# -- what is refused ----------------------------------------
def refused(A, what="part of C"):
    N = T.const("N")
    A: T.Tensor((N, N), "float16")
    with T.Kernel(1, threads=128):
        tile = T.alloc_shared((64, 64), "float16")
        left, wide = T.alloc_fragment((128, 64), "float16"), T.alloc_fragment((64, 128), "float32")
        stack = T.alloc_fragment((1, 64, 64), "float32")
        result = T.alloc_fragment((64, 64), "float32")
        if what == "part of A":
            T.gemm(left[0:64, :], tile, result)
        elif what == "part of C":
            T.gemm(tile, tile, wide[:, 64:128])
        elif what == "stack":
            T.gemm(tile, tile, stack)
        elif what == "global A":
            T.gemm(A[0:64, 0:64], tile, result)
        elif what == "shared C":
            T.gemm(tile, tile, tile)
        else:
            T.gemm(tile, tile, result, mbar=tile)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("part of A", "operand A of T.gemm is a part of a fragment"),
        ("part of C", "operand C of T.gemm is a part of a fragment"),
        ("stack", "operand C of T.gemm is a part of a fragment"),
        ("global A", "operand A of T.gemm is in the wrong memory"),
        ("shared C", "operand C of T.gemm is in the wrong memory"),
        ("barrier", "T.gemm with a barrier of its own"),
    ],
)
def test_operands_that_are_refused(what, message):
    with pytest.raises(TraceError, match=message) as raised:
        ptxtile.jit(refused).compile(N=64, what=what)
    assert "T.gemm(" in str(raised.value)


# -- as late as the waits allow ----------------------------------------
@pytest.mark.parametrize("options", [{}, {"block": 128, "threads": 256}, {"dtype": "float8_e4m3fn"}])
def test_registers_stay_until_the_multiplications_have_read_them(options, monkeypatch):
    """The same program with asynchronous effects at their last legal moment gives the same bytes."""
    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")
    two_products._kernels.clear()
    dtype = getattr(torch, options.get("dtype", "bfloat16"))
    generator = torch.Generator().manual_seed(11)
    q, k, v = (torch.randn(rows, 64, generator=generator).to(dtype) for rows in (128, 192, 192))
    v = v if dtype is torch.bfloat16 else v.T.contiguous()
    found = two_products(q, k, v, **options)
    program = next(iter(two_products._kernels.values())).program
    for seed in range(2):
        late = {"Q": q, "K": k, "V": v, "O": torch.full_like(found, torch.nan)}
        sim.run(program, late, {}, effects=lambda seed=seed: DelayedEffects(seed, ALWAYS))
        assert torch.equal(late["O"], found)

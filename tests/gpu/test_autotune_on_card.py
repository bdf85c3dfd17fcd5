"""Compiling side by side and tuning on a card: the whole road, configurations that hang or break their context."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.tune.compile_many import compile_many
from ptxtile.tune.results import Status


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXTILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PTXTILE_VERIFY", "0")


def product(M, N, K, block_M=128, block_N=128, block_K=64, num_stages=2, threads=128):
    @T.prim_func
    def main(A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"), C: T.Tensor((M, N), "float16")):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), "float16")
            B_shared = T.alloc_shared((block_K, block_N), "float16")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[k * block_K, bx * block_N], B_shared)
                T.gemm(A_shared, B_shared, C_local)
            T.copy(C_local, C[by * block_M, bx * block_N])

    return main


@ptxtile.jit
def crawl(A, turns=0, threads=32):
    """A[0] everywhere; with ``turns`` after two seconds and more for each: 2³⁰ additions in a row."""
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=threads):
        value = T.alloc_var(T.float32)
        value = A[0]
        for _ in range(turns):
            for _ in range(2**30):
                value = value * 0.5 + 1.0
        for j in T.Parallel(N):
            B[j] = value
    return B


@ptxtile.jit
def trap(A, broken=False, threads=32):
    """A copy; ``broken``: the kernel traps, after which its process cannot use the card any more."""
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=threads):
        for j in T.Parallel(N):
            B[j] = A[j]
        if broken:
            T.ptx("trap;")
    return B


@pytest.mark.usefixtures("card")
def test_many_kernels_at_once() -> None:
    """What other processes have compiled and assembled loads and runs here."""
    factory = ptxtile.jit(out_idx=[-1])(product)
    sizes = [(256, 256, 128), (256, 512, 256), (512, 256, 192)]
    kernels = compile_many([lambda size=size: factory(*size) for size in sizes], workers=3)
    for kernel, (M, N, K) in zip(kernels, sizes, strict=True):
        assert kernel.variant.is_compiled
        a, b = torch.randn(M, K, device="cuda").half(), torch.randn(K, N, device="cuda").half()
        torch.testing.assert_close(kernel(a, b), a @ b, rtol=1e-2, atol=1e-1)
        (resources,) = kernel.resources.values()
        assert resources.registers > 0


@pytest.mark.usefixtures("card")
def test_the_whole_road() -> None:
    configs = [
        {"block_M": 128, "block_N": 128, "num_stages": 3, "threads": 128},
        {"block_M": 64, "block_N": 64, "num_stages": 2, "threads": 128},
        {"block_M": 128, "block_N": 256, "num_stages": 8, "threads": 256},  # 393216 bytes of shared memory
    ]
    decorate = ptxtile.autotune(
        configs=configs, warmup=2, rep=10, ref_prog=torch.matmul, atol=0.2, workers=3, timeout=60, progress=False
    )  # fmt: skip
    function = decorate(ptxtile.jit(out_idx=[-1])(product))
    kernel = function(1024, 1024, 1024)
    found = function.tune(1024, 1024, 1024)
    assert [row.status for row in found.rows] == [Status.MEASURED, Status.MEASURED, Status.PRUNED], str(found)
    assert all(row.registers and row.latency and row.latency < 5 for row in found.rows[:2])
    assert kernel.config == found.config and kernel.latency == found.latency and kernel.ref_latency < 5
    a, b = torch.randn(2, 1024, 1024, device="cuda").half()
    torch.testing.assert_close(kernel(a, b), a @ b, rtol=1e-2, atol=0.5)
    again = decorate(ptxtile.jit(out_idx=[-1])(product)).tune(1024, 1024, 1024)
    assert again.from_disk and again.config == found.config


@pytest.mark.usefixtures("card")
def test_configurations_that_hang_or_break_do_not_end_the_sweep() -> None:
    a = torch.randn(64, device="cuda")
    crawling = ptxtile.autotune(
        configs={"turns": [8, 0]}, warmup=1, rep=1, ref_prog=lambda a: a[0].expand(64).clone(), workers=2, timeout=10,
        progress=False,
    )(crawl)  # fmt: skip
    found = crawling.tune(a)
    assert [row.status for row in found.rows] == [Status.TIMEOUT, Status.MEASURED], str(found)
    breaking = ptxtile.autotune(
        configs={"broken": [True, False]}, warmup=1, rep=1, ref_prog=torch.clone, workers=2, timeout=60, progress=False
    )(trap)  # fmt: skip
    found = breaking.tune(a)
    assert [row.status for row in found.rows] == [Status.FAILED, Status.MEASURED], str(found)
    torch.testing.assert_close(breaking(a), a)  # this process's context is as good as before


@pytest.mark.usefixtures("card")
def test_tensors_of_the_caller_stay_as_they_are() -> None:
    @ptxtile.jit
    def double(A, threads=128):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        with T.Kernel(T.ceildiv(N, 1024), threads=threads) as bx:
            for i in T.Parallel(1024):
                A[bx * 1024 + i] = A[bx * 1024 + i] * 2

    a = torch.randn(5000, device="cuda")
    before = a.clone()
    function = ptxtile.autotune(
        configs={"threads": [64, 128]}, warmup=1, rep=2, ref_prog=lambda a: a * 2, workers=2, progress=False,
        isolate=False,
    )(double)  # fmt: skip
    found = function.tune(a)
    assert [row.status for row in found.rows] == [Status.MEASURED] * 2, str(found)
    assert torch.equal(a, before)
    function(a)
    assert torch.equal(a, before * 2)

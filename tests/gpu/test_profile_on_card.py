"""The profiler on a card: cold and warm caches, host time, graphs, figures of the driver."""

from __future__ import annotations

import time

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import DriverError
from ptxtile.profile import Profiler, do_bench, measure, named_ranges


@ptxtile.jit
def add(A, B, block=1024, threads=128):
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B: T.Tensor((N,), T.float32)
    C = T.empty((N,), T.float32)
    with T.Kernel(T.ceildiv(N, block), threads=threads) as bx:
        for i in T.Parallel(block):
            C[bx * block + i] = A[bx * block + i] + B[bx * block + i]
    return C


@pytest.mark.usefixtures("card")
def test_a_cold_cache_costs_time() -> None:
    """16 MB lie in the L2 cache of every card that has tensor memory accelerators (50 MB and more)."""
    a = torch.randn(4 * 2**20, device="cuda")
    b = torch.empty_like(a)
    properties = torch.cuda.get_device_properties(0)
    cold, warm = (measure(lambda: b.copy_(a), flush=flush, rep=20, warmup=5).median for flush in (True, False))
    assert 0 < warm and 0 < cold
    if properties.L2_cache_size >= 2.5 * a.numel() * 4:
        assert cold > 1.05 * warm


@pytest.mark.usefixtures("card")
def test_the_hosts_time_is_not_measured() -> None:
    a = torch.zeros(1024, device="cuda")

    def slow_on_the_host() -> None:
        time.sleep(2e-4)
        a.add_(1)

    found = measure(slow_on_the_host, rep=1, warmup=1, calls=60)
    assert found.median < 0.05


@pytest.mark.usefixtures("card")
def test_ways_to_measure_agree() -> None:
    """A copy that takes a hundred microseconds and more, so that what surrounds it counts little."""
    a = torch.randn(64 * 2**20, device="cuda")
    b = torch.empty_like(a)
    ways = ("event", "cudagraph")
    times = {way: do_bench(lambda: b.copy_(a), rep=20, return_mode="median", backend=way) for way in ways}
    assert times["cudagraph"] == pytest.approx(times["event"], rel=0.15)
    moved = 2 * a.numel() * 4 / times["event"] / 1e6
    assert moved < 10_000  # GB/s: no card reaches that
    try:
        kernels = do_bench(lambda: b.copy_(a), rep=20, return_mode="median", backend="cupti")
    except DriverError as error:
        pytest.skip(f"CUPTI gives no records here: {error.message}")
    assert kernels == pytest.approx(times["event"], rel=0.15)


@pytest.mark.usefixtures("card")
def test_a_kernel_in_a_graph_without_flush() -> None:
    a, b = torch.randn(2, 4096, device="cuda")
    torch.testing.assert_close(add(a, b), a + b)
    graph = do_bench(lambda: add(a, b), rep=5, backend="cudagraph", flush=False, return_mode="median")
    event = do_bench(lambda: add(a, b), rep=5, flush=False, return_mode="median")
    assert 0 < graph < 1.2 * event


@pytest.mark.usefixtures("card")
def test_a_kernels_profiler() -> None:
    profiler = add.specialize(N=2**20).get_profiler()
    assert isinstance(profiler, Profiler)
    profiler.assert_allclose(torch.add, atol=0, rtol=0, max_mismatched_ratio=0.0)
    profiler.assert_consistent(3)
    with pytest.raises(AssertionError):
        profiler.assert_allclose(torch.sub)
    low, high = profiler.do_bench(rep=5, quantiles=[0.2, 0.8])
    assert 0 < low <= high < 1.0
    found = profiler.figures(flops=2**20, rep=5)
    assert found.bytes == 3 * 4 * 2**20
    (occupancy,), (resources,) = found.occupancy.values(), found.resources.values()
    assert occupancy.by_driver and occupancy.blocks > 1 and 0 < occupancy.share <= 1
    assert resources.registers > 0
    assert "GB/s" in str(found) and "CTAs" in str(found)


@pytest.mark.usefixtures("card")
def test_calls_inside_of_ranges_are_calls() -> None:
    a, b = torch.randn(2, 4096, device="cuda")
    for _ in range(3):
        add(a, b)
    with named_ranges():
        torch.testing.assert_close(add(a, b), a + b)
    torch.testing.assert_close(add(b, a), a + b)

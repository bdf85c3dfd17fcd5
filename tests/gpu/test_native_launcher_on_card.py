"""Launches in native code on a card: right results, on the right stream, in any thread, in a graph."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import ArgumentError, PtxtileError
from ptxtile.native import launcher
from ptxtile.native.calls import calls_without_python
from ptxtile.runtime import driver


@pytest.fixture(autouse=True)
def in_native_code() -> None:
    if launcher.get() is None:
        pytest.skip("this interpreter or torch takes the way of Python")


def add_kernel() -> Any:
    """A kernel without plans; the function's own tensors are passed, plain accesses."""

    @ptxtile.jit
    def add(A, B, C, factor, block=256):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B: T.Tensor((N,), T.float32)
        C: T.Tensor((N,), T.float32)
        factor: T.float32
        with T.Kernel(T.ceildiv(N, block), threads=128) as bx:
            for i in T.Parallel(block):
                if bx * block + i < N:
                    C[bx * block + i] = A[bx * block + i] + B[bx * block + i] * factor

    return add


def doubled_kernel() -> Any:
    """Through shared memory: by TMA where the rows allow it; the output is allocated."""

    @ptxtile.jit
    def doubled(A, block=64):
        M, N = T.const("M, N")
        A: T.Tensor((M, N), T.float16)
        B = T.empty((M, N), T.float16)
        with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=128) as (bx, by):
            tile = T.alloc_shared((block, block), T.float16)
            T.copy(A[by * block, bx * block], tile)
            for i, j in T.Parallel(block, block):
                tile[i, j] = tile[i, j] * 2
            T.copy(tile, B[by * block, bx * block])
        return B

    return doubled


def vectors(card: torch.device, count: int = 5000) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b = (torch.randint(-1000, 1000, (count,), device=card).float() for _ in range(2))
    return a, b, torch.full_like(a, torch.nan)


def warm(card: torch.device) -> Any:
    """The first kernel, whose calls with ``vectors(card)`` are in native code from now on."""
    add = add_kernel()
    for _ in range(2):
        add(*vectors(card), 1.0)
    assert calls_without_python(add) == 0
    return add


def test_tensors_that_are_passed(card: torch.device) -> None:
    add = warm(card)
    for factor in (2.0, -0.5, 4.0):
        a, b, c = vectors(card)
        assert add(a, b, c, factor) is None
        assert torch.equal(c, a + b * factor)
    assert calls_without_python(add) == 3
    a, b, c = vectors(card)
    add(torch.nn.Parameter(a), b.requires_grad_(), c, 2.0)
    assert torch.equal(c, (a + b * 2).detach()) and calls_without_python(add) == 4
    add(a, a, a, 1.0)  # other plans: tensors that overlap, other Python arguments
    add(*vectors(card), 1.0, block=128)
    assert calls_without_python(add) == 4


@pytest.mark.parametrize("columns", [256, 250])
def test_tensor_maps_and_allocated_outputs(card: torch.device, columns: int) -> None:
    """Other memory at each call: each has its tensor maps. Rows of 250 halves are too narrow for TMA."""
    doubled, kept = doubled_kernel(), []
    for call in range(6):
        a = torch.randint(-100, 100, (130, columns), device=card).half()
        kept.append((a, doubled(a)))
        assert calls_without_python(doubled) == max(0, call - 1)
    assert all(torch.equal(result, a * 2) for a, result in kept)
    assert len({result.data_ptr() for _, result in kept}) == 6
    if columns == 256 and torch.cuda.get_device_capability(card) >= (9, 0):
        (kernel,) = doubled._kernels.values()
        assert [p.kind for p in kernel.launch.launches[0].parameters].count("tensor_map") == 2
    assert type(kept[-1][1]) is torch.Tensor and kept[-1][1].is_contiguous()


def test_strided_rows(card: torch.device) -> None:
    doubled = doubled_kernel()
    for _ in range(4):
        a = torch.randint(-100, 100, (96, 512), device=card).half()[:, 128:384]
        assert torch.equal(doubled(a), a * 2)
    assert calls_without_python(doubled) == 2


def test_clusters_and_whole_grids(card: torch.device) -> None:
    if torch.cuda.get_device_capability(card) < (9, 0):
        pytest.skip("clusters need compute capability 9.0")

    @ptxtile.jit
    def in_clusters(A):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B = T.empty((N,), T.float32)
        with T.Kernel(T.ceildiv(N, 128), threads=128, cluster_dims=2) as bx:
            for i in T.Parallel(128):
                B[bx * 128 + i] = A[bx * 128 + i] + 1.0
        return B

    @ptxtile.jit
    def together(A):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B = T.empty((N,), T.float32)
        with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
            for i in T.Parallel(128):
                B[bx * 128 + i] = A[bx * 128 + i] + 1.0
            T.sync_grid()
            for i in T.Parallel(128):
                B[bx * 128 + i] = B[bx * 128 + i] * 2.0
        return B

    for _ in range(4):
        a = torch.randint(-1000, 1000, (1024,), device=card).float()
        assert torch.equal(in_clusters(a), a + 1)
        assert torch.equal(together(a), (a + 1) * 2)
    assert calls_without_python(in_clusters) == calls_without_python(together) == 2


def test_another_stream(card: torch.device) -> None:
    """The kernel comes after work that is still running on the stream that is current, and so does its output."""
    add, doubled = warm(card), doubled_kernel()
    for _ in range(2):
        doubled(torch.zeros(128, 128, dtype=torch.float16, device=card))
    a, b, c = vectors(card)
    d = torch.zeros(128, 128, dtype=torch.float16, device=card)
    torch.cuda.synchronize(card)
    side = torch.cuda.Stream(card)
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        a.fill_(3.0)
        b.fill_(5.0)
        d.fill_(7.0)
        add(a, b, c, 2.0)
        e = doubled(d)
        side.synchronize()
    assert torch.equal(c, torch.full_like(c, 13.0)) and torch.equal(e, torch.full_like(e, 14.0))
    assert calls_without_python(add) == calls_without_python(doubled) == 1


def test_a_thread_without_a_context(card: torch.device) -> None:
    """It has none before the call; the kernel runs all the same."""
    add, seen = warm(card), []
    sets = [vectors(card) for _ in range(4)]
    torch.cuda.synchronize(card)

    def work(n: int) -> None:
        loaded = driver.initialised()
        before = loaded.current_context()
        add(*sets[n], 2.0)
        seen.append((before, loaded.current_context()))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize(card)
    assert calls_without_python(add) == 4
    own = driver.initialised().primary_contexts[card.index or 0]
    assert len(seen) == 4 and all(before == 0 and after in (0, own) for before, after in seen)
    for a, b, c in sets:
        assert torch.equal(c, a + b * 2)


def test_a_cuda_graph(card: torch.device) -> None:
    add, doubled = warm(card), doubled_kernel()
    a, b, c = vectors(card)
    d = torch.randint(-100, 100, (128, 128), device=card).half()
    side = torch.cuda.Stream(card)
    side.wait_stream(torch.cuda.current_stream(card))
    with torch.cuda.stream(side):
        for _ in range(3):
            add(a, b, c, 2.0)
            doubled(d)
    torch.cuda.current_stream(card).wait_stream(side)
    before = calls_without_python(add), calls_without_python(doubled)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add(a, b, c, 2.0)
        e = doubled(d)
    assert (calls_without_python(add), calls_without_python(doubled)) == (before[0] + 1, before[1] + 1)
    for _ in range(2):
        a.add_(1.0)
        d.add_(1.0)
        c.zero_()
        graph.replay()
        torch.cuda.synchronize(card)
        assert torch.equal(c, a + b * 2) and torch.equal(e, d * 2)


def test_wrong_arguments(card: torch.device) -> None:
    """The errors are those of a kernel that was never called."""
    add, (a, b, c) = warm(card), vectors(card)
    for args in (
        (a, b, c), (a, b, c, "1"), (a, b, c, 1e39), (a, b, None, 1.0), (a, b.double(), c, 1.0), (a, b[:9], c, 1.0),
        (a, b.cpu(), c, 1.0), (a, torch._neg_view(b), c, 1.0), (a[None], b, c, 1.0), (a, b.to("meta"), c, 1.0),
    ):  # fmt: skip
        with pytest.raises(PtxtileError) as expected:
            add_kernel()(*args)
        with pytest.raises(type(expected.value)) as caught:
            add(*args)
        assert str(caught.value) == str(expected.value)
    add(a, b, c, 1.0)
    assert torch.equal(c, a + b)


def test_the_errors_of_a_kernel_object(card: torch.device) -> None:
    @T.prim_func
    def copy(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                B[i] = A[i]

    kernel = ptxtile.compile(copy)
    a, b = torch.randn(64, device=card), torch.zeros(64, device=card)
    for _ in range(4):
        kernel(a, B=b)
        assert torch.equal(a, b)
        a, b = torch.randn(64, device=card), torch.zeros(64, device=card)
    assert calls_without_python(kernel) == 2
    with pytest.raises(ArgumentError, match="wrong size of dimension 0"):
        kernel(a, B=b[:32])


def test_other_threads_run_while_the_queue_is_full(card: torch.device) -> None:
    """A launch waits for a place in the queue, while the card sleeps: without the interpreter's lock."""
    add, (a, b, c) = warm(card), vectors(card)
    counted, stop = [0], threading.Event()

    def count() -> None:
        while not stop.wait(0.001):
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        torch.cuda._sleep(1_000_000_000)  # half a second
        before = counted[0]
        for _ in range(3000):  # more than the queue holds
            add(a, b, c, 2.0)
        after = counted[0]
        torch.cuda.synchronize(card)
    finally:
        stop.set()
        thread.join()
    assert torch.equal(c, a + b * 2) and calls_without_python(add) == 3000
    assert after - before > 50, "the waiting launch has stopped the other thread"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one card")
def test_two_cards() -> None:
    add = add_kernel()
    for index in (0, 1, 0, 1, 0, 1):
        card = torch.device("cuda", index)
        a, b, c = vectors(card)
        torch.cuda.synchronize(card)
        add(a, b, c, 2.0)  # torch's current card is the first
        torch.cuda.synchronize(card)
        assert torch.equal(c, a + b * 2)
    assert calls_without_python(add) == 2

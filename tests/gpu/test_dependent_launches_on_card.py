"""Chains of dependent launches on a card: each kernel reads what the one in front of it wrote, and results are exact.

Some kernels let the next one start at once (T.pdl_trigger) and then take long, so that a kernel that did not wait would
read what is not there yet, or overwrite what is still being read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import ptxtile
import ptxtile.language as T
from examples.gemm import gemm
from examples.gemm_persistent import gemm_persistent
from examples.gemm_split_k import gemm_split_k_atomic
from ptxtile.runtime.arguments import bind
from ptxtile.runtime.executable import Executable

ROWS, COLUMNS = 64, 128
LAUNCHES = 300
TURNS = 3000
"""Of a loop that makes a kernel take longer than the launch of the next one."""


@ptxtile.jit
def turned(A, B):
    """Through TMA; each tile goes to the other end of B."""
    A: T.Tensor((ROWS, COLUMNS), T.int32)
    B: T.Tensor((ROWS, COLUMNS), T.int32)
    with T.Kernel(COLUMNS // 32, ROWS // 32, threads=128) as (bx, by):
        S = T.alloc_shared((32, 32), T.int32)
        T.copy(A[by * 32, bx * 32], S)
        for i, j in T.Parallel(32, 32):
            B[ROWS - 1 - by * 32 - i, COLUMNS - 1 - bx * 32 - j] = S[i, j] * 3 + 1


@ptxtile.jit
def shifted(A, B):
    """Plain loads, one element a thread, of the next row; the next kernel may start before this one has done
    anything."""
    A: T.Tensor((ROWS, COLUMNS), T.int32)
    B: T.Tensor((ROWS, COLUMNS), T.int32)
    with T.Kernel(ROWS, threads=COLUMNS) as row:
        T.pdl_trigger()
        for j in T.Parallel(COLUMNS):
            B[row, j] = A[(row + 1) % ROWS, j] + j


@ptxtile.jit
def slow(A, B, turns=TURNS):
    """The next kernel may start at once, and this one writes after a long time."""
    A: T.Tensor((ROWS, COLUMNS), T.int32)
    B: T.Tensor((ROWS, COLUMNS), T.int32)
    with T.Kernel(ROWS, threads=COLUMNS) as row:
        T.pdl_trigger()
        thread = T.get_thread_binding()
        x = T.alloc_local((1,), T.int32)
        x[0] = A[row, thread]
        for _ in T.serial(turns):
            x[0] = x[0] * 3 + 1
        B[row, thread] = x[0]


@ptxtile.jit
def added(A, B):
    """Atomic additions onto what torch has written in front."""
    A: T.Tensor((ROWS, COLUMNS), T.int32)
    B: T.Tensor((ROWS, COLUMNS), T.int32)
    with T.Kernel(ROWS, threads=COLUMNS) as row:
        for j in T.Parallel(COLUMNS):
            T.atomic_add(B[ROWS - 1 - row, j], A[row, j])


@ptxtile.jit
def waiting_late(W, A, B):
    """W, which no kernel of the chain writes, is loaded before the wait."""
    W: T.Tensor((ROWS, COLUMNS), T.int32)
    A: T.Tensor((ROWS, COLUMNS), T.int32)
    B: T.Tensor((ROWS, COLUMNS), T.int32)
    with T.Kernel(COLUMNS // 32, ROWS // 32, threads=128) as (bx, by):
        first = T.alloc_shared((32, 32), T.int32)
        second = T.alloc_shared((32, 32), T.int32)
        T.copy(W[by * 32, bx * 32], first)
        T.pdl_sync()
        T.copy(A[by * 32, (3 - bx) * 32], second)
        for i, j in T.Parallel(32, 32):
            B[by * 32 + i, bx * 32 + j] = first[i, j] + second[i, j]


Step = tuple[Callable[[torch.Tensor, torch.Tensor], Any], Callable[[np.ndarray], np.ndarray]]


def steps(weights: torch.Tensor) -> list[Step]:
    """(what is launched from a to b, what it does to an array); int32 wraps round on both sides."""
    w = weights.cpu().numpy()
    power = pow(3, TURNS, 1 << 33)  # x becomes 3ⁿ x + (3ⁿ − 1) / 2
    factor, addend = (np.int64(value % (1 << 32)).astype(np.int32) for value in (power, (power - 1) // 2))

    def cleared_and_added(a: torch.Tensor, b: torch.Tensor) -> None:
        b.fill_(7)
        added(a, b)

    return [
        (turned, lambda x: x[::-1, ::-1] * np.int32(3) + np.int32(1)),
        (slow, lambda x: x * factor + addend),
        (shifted, lambda x: np.roll(x, -1, 0) + np.arange(COLUMNS, dtype=np.int32)),
        (turned, lambda x: x[::-1, ::-1] * np.int32(3) + np.int32(1)),
        (shifted, lambda x: np.roll(x, -1, 0) + np.arange(COLUMNS, dtype=np.int32)),
        (lambda a, b: torch.mul(a, 5, out=b), lambda x: x * np.int32(5)),
        (shifted, lambda x: np.roll(x, -1, 0) + np.arange(COLUMNS, dtype=np.int32)),
        (cleared_and_added, lambda x: x[::-1] + np.int32(7)),
        (slow, lambda x: x * factor + addend),
        (lambda a, b: waiting_late(weights, a, b), lambda x: np.concatenate(
            [x[:, 96:], x[:, 64:96], x[:, 32:64], x[:, :32]], 1) + w),
    ]  # fmt: skip


def random_integers(device: torch.device | str) -> torch.Tensor:
    return torch.randint(-(1 << 31), 1 << 31, (ROWS, COLUMNS), dtype=torch.int64).to(torch.int32).to(device)


def run_chain(chosen: list[Step], x: torch.Tensor, buffers: list[torch.Tensor]) -> torch.Tensor:
    """Back to back, between a few buffers, which are so overwritten soon after they were read."""
    source = x
    for number, (launch, _) in enumerate(chosen):
        target = buffers[number % len(buffers)]
        launch(source, target)
        source = target
    return source


def chain_and_expected(device: torch.device | str, launches: int, buffers: int = 2) -> tuple[torch.Tensor, np.ndarray]:
    weights, x = random_integers(device), random_integers(device)
    all_steps = steps(weights)
    chosen = [all_steps[int(k)] for k in torch.randint(len(all_steps), (launches,))]
    run_chain(all_steps, x, [torch.empty_like(x) for _ in range(buffers)])  # compiled and loaded from here on
    result = run_chain(chosen, x, [torch.empty_like(x) for _ in range(buffers)])
    wanted = x.cpu().numpy()
    with np.errstate(over="ignore"):
        for _, effect in chosen:
            wanted = effect(wanted)
    return result, wanted


def test_the_launches_are_dependent(card) -> None:
    x = random_integers(card)
    for kernel, arguments in ((turned, {}), (shifted, {}), (slow, {}), (added, {}), (waiting_late, {"W": x})):
        compiled = kernel.compile(A=x, B=torch.empty_like(x), **arguments)
        early = torch.cuda.get_device_capability(card) >= (9, 0)
        assert [launch.dependent_launch for launch in compiled.launch.launches] == [early]


@pytest.mark.parametrize("buffers", [2, 3, 5])
def test_a_chain(card, buffers: int) -> None:
    result, wanted = chain_and_expected(card, LAUNCHES, buffers)
    np.testing.assert_array_equal(result.cpu().numpy(), wanted)


def test_without_its_wait_a_kernel_reads_too_early(card) -> None:
    """What the other tests rely on: launches do overlap. CUDA may overlap them, and need not, so once is enough."""
    if torch.cuda.get_device_capability(card) < (9, 0):
        pytest.skip("griddepcontrol begins with sm_90")
    x, long = random_integers(card), 30 * TURNS
    middle, result, wanted = (torch.empty_like(x) for _ in range(3))
    slow(x, middle, turns=long)
    torch.cuda.synchronize(card)
    shifted(middle, wanted)
    compiled = shifted.compile(A=x, B=result)
    assert compiled.ptx.count("griddepcontrol.wait;") == 1
    hasty = Executable(compiled.ptx.replace("griddepcontrol.wait;", ""), compiled.launch)
    for _ in range(50):
        middle.zero_()
        slow(x, middle, turns=long)
        hasty(bind(compiled.launch, (middle, result), device_type="cuda"))
        if not torch.equal(result, wanted):
            return
    raise AssertionError("50 times, a kernel without a wait read what a long one in front of it wrote at its end")


def test_a_chain_in_a_captured_graph(card) -> None:
    """The edges between its kernels are programmatic ones; it replays on new content."""
    weights, x = random_integers(card), random_integers(card)
    chosen = [step for _ in range(6) for step in steps(weights)]
    buffers = [torch.empty_like(x) for _ in range(3)]
    side = torch.cuda.Stream(card)
    side.wait_stream(torch.cuda.current_stream(card))
    with torch.cuda.stream(side):
        run_chain(chosen, x, buffers)
    torch.cuda.current_stream(card).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run_chain(chosen, x, buffers)
    for _ in range(3):
        x.copy_(random_integers(card))
        wanted = x.cpu().numpy()
        with np.errstate(over="ignore"):
            for _, effect in chosen:
                wanted = effect(wanted)
        for _ in range(3):  # one behind the other: a replay overwrites what the last one left
            graph.replay()
        np.testing.assert_array_equal(result.cpu().numpy(), wanted)


def test_another_stream_waits_for_a_chain(card) -> None:
    """An event behind dependent launches is an event behind all of them."""
    x = random_integers(card)
    a, b, result = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    for kernel in (slow, shifted, turned):
        kernel(x, a)
    other, done = torch.cuda.Stream(card), torch.cuda.Event()
    with np.errstate(over="ignore"):
        for _ in range(20):
            slow(x, a)
            shifted(a, b)
            done.record()
            with torch.cuda.stream(other):
                other.wait_event(done)
                turned(b, result)
            other.synchronize()
            wanted = x.cpu().numpy()
            for launch, effect in steps(x)[1:4]:
                wanted = effect(wanted)
            np.testing.assert_array_equal(result.cpu().numpy(), wanted)
            x.copy_(result)
            torch.cuda.synchronize(card)


def permutation(size: int, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
    order = torch.randperm(size)
    return torch.eye(size)[order].bfloat16().to(device), order


def test_products_with_permutations(card) -> None:
    """Gemms with roles, persistent ones and ones that add atomically; a product with a permutation is exact."""
    size, launches = 256, 200
    x = torch.randn(size, size).bfloat16()
    current = x.to(card)
    sms = torch.cuda.get_device_properties(card).multi_processor_count
    made = [permutation(size, card) for _ in range(7)]
    wanted = x
    products = (
        lambda a, p: gemm(a, p),
        lambda a, p: gemm_persistent(a, p, sms=sms),
        lambda a, p: torch.mm(a, p.T),
        lambda a, p: gemm_split_k(a, p),
    )
    for number in range(launches):
        p, order = made[number % len(made)]
        current = products[number % len(products)](current, p)
        if number % 5 == 4:
            current = current.flip(0)
        wanted = wanted[:, order]
        wanted = wanted.flip(0) if number % 5 == 4 else wanted
    assert torch.equal(current.cpu(), wanted)


def gemm_split_k(a: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
    """float32 sums of one nonzero term each."""
    c = torch.zeros(a.shape[0], p.shape[0], dtype=torch.float32, device=a.device)
    gemm_split_k_atomic(a, p, c)
    return c.bfloat16()

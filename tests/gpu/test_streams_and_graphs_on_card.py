"""Calls on a card under what a program does around them: streams, captured graphs, several devices, forks, workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ptxtile
import ptxtile.language as T
from examples.gemm import gemm
from ptxtile.errors import ArgumentError

ROOT = Path(__file__).parent.parent.parent
SLEEP = 50_000_000
"""Clock cycles for which a stream is kept busy, some 30 ms: a launch that does not wait for it reads old values."""


def scaling():
    """A kernel that nobody has called before."""

    @ptxtile.jit
    def scale(A, factor, tile=1024):
        N = T.dynamic("N")
        A: T.Tensor((N,), T.float32)
        factor: T.float32
        B = T.empty((N,), T.float32)
        with T.Kernel(T.ceildiv(N, tile), threads=128) as bx:
            for i in T.Parallel(tile):
                if bx * tile + i < N:
                    B[bx * tile + i] = A[bx * tile + i] * factor
        return B

    return scale


def script(text: str, **environment: str) -> str:
    """What a Python program prints; it is a process of its own, because what it does may spoil its CUDA context."""
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_stream_that_is_current(card) -> None:
    """The first call, the second (which makes a plan) and later ones, on two streams in turn."""
    scale, a = scaling(), torch.zeros(1 << 16, device=card)
    scale(a, 1.0)
    streams = [torch.cuda.Stream(card), torch.cuda.current_stream(card)]
    for number in range(6):
        torch.cuda.synchronize(card)
        stream = streams[number % 2]
        with torch.cuda.stream(stream):
            torch.cuda._sleep(SLEEP)
            a.fill_(number + 1.0)
            result = scale(a, 2.0)
            stream.synchronize()
        assert torch.equal(result, torch.full_like(a, 2.0 * (number + 1)))


def test_a_captured_graph(card) -> None:
    """After a warm-up, a call is captured with its allocations and tensor maps, and replays on new content."""
    scale = scaling()
    a, b = torch.randn(256, 256, device=card).bfloat16(), torch.randn(128, 256, device=card).bfloat16()

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        product = gemm(a, b)
        return product, scale(scale(product.float().view(-1), 2.0), 0.25)

    side = torch.cuda.Stream(card)
    side.wait_stream(torch.cuda.current_stream(card))
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream(card).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        product, scaled = work()
    for _ in range(3):
        a.copy_(torch.randn(256, 256, device=card))
        b.copy_(torch.randn(128, 256, device=card))
        graph.replay()
        torch.cuda.synchronize(card)
        wanted = a.double() @ b.double().T
        assert (product.double() - wanted).norm() < 4e-3 * wanted.norm()
        assert torch.equal(scaled, product.float().view(-1) * 0.5)


FIRST_CALL_IN_A_CAPTURE = """
import torch
from examples.elementwise_add import elementwise_add
from ptxtile.errors import DriverError

a, b = torch.randn(300, 300, device="cuda"), torch.randn(300, 300, device="cuda")
graph = torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        c = elementwise_add(a, b)
except DriverError as error:
    assert "call it once before the capture" in str(error), error
    print("refused")
except RuntimeError as error:  # torch's, from the end of a capture that was broken off
    assert isinstance(error.__context__, DriverError), error
    assert "call it once before the capture" in str(error.__context__), error
    print("refused")
else:
    for _ in range(2):
        a.copy_(torch.randn(300, 300))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(c, a + b)
    print("captured")
"""


def test_a_first_call_during_a_capture(card) -> None:
    """Works where the driver can load a module meanwhile, else says what to do."""
    assert script(FIRST_CALL_IN_A_CAPTURE).split() in (["captured"], ["refused"])


# ---------------------------------------------------------------- devices


@pytest.fixture
def devices(card) -> tuple[torch.device, torch.device]:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two cards")
    return torch.device("cuda", 0), torch.device("cuda", 1)


def test_two_devices(devices) -> None:
    """One kernel object on both, whichever is current; the current device stays what it was."""
    scale = scaling()
    tensors = [torch.randn(5000, device=device) for device in devices]
    for current in (0, 1):
        torch.cuda.set_device(current)
        for _ in range(3):
            for a in tensors:
                result = scale(a, 3.0)
                assert result.device == a.device and torch.cuda.current_device() == current
                assert torch.equal(result, a * 3.0)
    torch.cuda.set_device(0)


def test_the_stream_of_the_other_device(devices) -> None:
    scale, a = scaling(), torch.zeros(1 << 16, device=devices[1])
    side = torch.cuda.Stream(devices[1])
    for number in range(4):
        with torch.cuda.stream(side):  # makes device 1 current
            torch.cuda._sleep(SLEEP)
            a.fill_(number + 1.0)
            with torch.cuda.device(0):
                result = scale(a, 2.0)
            side.synchronize()
        assert torch.equal(result, torch.full_like(a, 2.0 * (number + 1)))


def test_tensors_of_two_devices(devices) -> None:
    from examples.elementwise_add import elementwise_add

    a, b = (torch.zeros(64, 64, device=device) for device in devices)
    with pytest.raises(ArgumentError, match="argument 'B' .2 of 2.: on another device"):
        elementwise_add(a, b)


# ---------------------------------------------------------------- processes

FORKS = """
import os
import torch
import ptxtile
from examples.elementwise_add import elementwise_add
from tests.kernels.elementwise import add_factory

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            print(type(error).__name__, str(error).splitlines()[0], flush=True)
            os._exit(3)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def on_card():
    a = torch.randn(100, 100, device="cuda")
    assert torch.equal(elementwise_add(a, a), 2 * a)

elementwise_add.compile(M=100, N=100)
assert child(on_card) == 0, "after a fork without CUDA the child has it for itself"
a = torch.randn(100, 100, device="cuda")
for _ in range(3):
    assert torch.equal(elementwise_add(a, a), 2 * a)
into, b = ptxtile.compile(add_factory(100, 100)), torch.empty_like(a)
into(a, a, b)
assert child(lambda: into(a, a, b)) == 3, "a kernel that makes no tensor: torch has nothing to say first"
assert child(lambda: elementwise_add(a, a)) == 3
assert torch.equal(elementwise_add(a, a), 2 * a)
"""


def test_forks(card) -> None:
    """Before CUDA is used, a child has it for itself; afterwards its calls say so. The target is named, because asking
    for that of the card is a use of CUDA."""
    said = script(FORKS, PTXTILE_TARGET="sm_90a").splitlines()
    assert said[0].startswith("DriverError CUDA was first used before this process was forked")
    assert "forked subprocess" in said[1], "what torch says of its own allocation"


SPAWN = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import torch

from examples.elementwise_add import elementwise_add


def work(function):
    a = torch.randn(100, 100, device="cuda")
    return [torch.equal(function(a, a), 2 * a) for _ in range(3)]


if __name__ == "__main__":
    a = torch.randn(100, 100, device="cuda")
    elementwise_add(a, a)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        print(pool.submit(work, elementwise_add).result())
"""


def test_spawned_workers(card, tmp_path) -> None:
    path = tmp_path / "spawning.py"
    path.write_text(SPAWN)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.stdout.split("\n")[0] == "[True, True, True]", done.stderr

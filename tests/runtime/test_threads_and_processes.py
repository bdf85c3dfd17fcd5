"""Threads, forks, spawned workers, ranks with one cache, devices, captured graphs: with CPU tensors or a fake card."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import ptxtile
import ptxtile.language as T
from examples.elementwise_add import elementwise_add, elementwise_add_factory
from ptxtile import call_keys, variant
from ptxtile import kernel as kernel_module
from ptxtile.errors import DriverError
from ptxtile.runtime import arguments, context, driver
from tests.runtime import test_executable
from tests.runtime.fake_bindings import PRIMARY, FakeBindings
from tests.runtime.test_kernel_calls import scaled

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def fake(monkeypatch) -> FakeBindings:
    made = FakeBindings(sizes=(8, 8, 4))
    monkeypatch.setattr(driver, "_import_bindings", lambda: made)
    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver, "_initialised_in", None)
    monkeypatch.setattr(context, "stream_reader", lambda: lambda device: 5)
    return made


@pytest.fixture
def on_fake_card(fake, monkeypatch) -> FakeBindings:
    """CPU tensors stand for those of the card, as in test_kernel_calls."""
    bind, read = arguments.bind, call_keys.call_key
    monkeypatch.setattr(arguments, "bind", lambda record, args, kwargs=None, *, device_type: bind(
        record, args, kwargs, device_type="cpu"))  # fmt: skip
    monkeypatch.setattr(call_keys, "call_key", lambda args: (read(args)[0], "cuda", 0))
    return fake


def at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """What ``work(0) … work(count - 1)`` give in as many threads, which start together."""
    barrier, results, errors = threading.Barrier(count), [None] * count, []

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = work(number)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    return results


# ---------------------------------------------------------------- threads


def test_threads_that_call_a_kernel_for_the_first_time_share_one_compile(monkeypatch) -> None:
    counts = {"trace": 0, "lower": 0}
    for name, module in (("trace", kernel_module), ("lower", variant)):
        original = getattr(module, name)

        def counted(*args: Any, name=name, original=original) -> Any:
            counts[name] += 1
            return original(*args)

        monkeypatch.setattr(module, name, counted)
    scale, a = scaled(), torch.randn(100)
    for result in at_once(8, lambda number: scale(a, 2.0)):
        assert torch.equal(result, 2 * a)
    assert counts == {"trace": 1, "lower": 1} and len(scale._kernels) == 1
    kernels = at_once(8, lambda number: elementwise_add_factory(70, 71))
    assert len({id(kernel) for kernel in kernels}) == 1


def test_threads_compile_different_kernels_at_the_same_time() -> None:
    a = torch.randn(64)

    def work(number: int) -> torch.Tensor:
        return scaled()(a, float(number), tile=16 + number)

    for number, result in enumerate(at_once(6, work)):
        assert torch.equal(result, number * a)


def test_threads_load_a_module_once(on_fake_card) -> None:
    scale, a = scaled(), torch.zeros(64)
    at_once(6, lambda number: [scale(a, 1.0) for _ in range(20)])
    assert len([call for call in on_fake_card.calls if call[0] == "load"]) == 1
    assert len(on_fake_card.launched) == 120


# ---------------------------------------------------------------- processes

FORK_AFTER_IMPORT = """
import os, sys
import torch
import ptxtile
import ptxtile.language as T
from examples.elementwise_add import elementwise_add
from ptxtile.runtime import driver

a = torch.randn(40, 50)
elementwise_add.compile(M=40, N=50).ptx
assert driver._initialised_in is None and driver._library is None, "compiling touched the driver"
sys.stdout.flush()
child = os.fork()
if child == 0:
    torch.set_num_threads(1)
    good = torch.equal(elementwise_add(a, a), 2 * a) and driver._initialised_in is None
    os._exit(0 if good else 1)
assert os.waitpid(child, 0)[1] == 0
"""


def script(text: str, *args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text, *args], cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def test_a_fork_after_importing_and_compiling() -> None:
    done = script(FORK_AFTER_IMPORT)
    assert done.returncode == 0, done.stderr


def in_a_fork(work: Callable[[], str]) -> str:
    """What ``work`` gives in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = work()
        except BaseException as error:  # whatever it is, the test's process must not go on twice
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    os.waitpid(child, 0)
    return text


def test_a_fork_after_use_says_so(on_fake_card) -> None:
    """Also where the parent had plans for the call."""
    scale, a = scaled(), torch.zeros(64)
    for _ in range(4):
        scale(a, 1.0)
    text = in_a_fork(lambda: str(scale(a, 1.0)))
    assert text.startswith("DriverError: CUDA was first used before this process was forked") and "spawn" in text
    scale(a, 1.0)
    assert len(on_fake_card.launched) == 5


def test_spawned_workers_get_kernels_by_name() -> None:
    assert pickle.loads(pickle.dumps(elementwise_add)) is elementwise_add
    assert pickle.loads(pickle.dumps(elementwise_add_factory)) is elementwise_add_factory
    a, b = torch.randn(20, 30), torch.randn(20, 30)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        result = pool.submit(elementwise_add, a, b).result(timeout=120)
    assert torch.equal(result, a + b)


RANK = """
import json, os, sys, time
import torch
from examples.gemm import gemm
from ptxtile import compiled_programs, variant

compiles = []
emit = variant.emit_ptx
variant.emit_ptx = lambda lowered: (compiles.append(1), emit(lowered))[1]
rank, count, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
open(f"{folder}/ready-{rank}", "w").close()
while sum(name.startswith("ready-") for name in os.listdir(folder)) < count:
    time.sleep(0.001)
started = time.perf_counter()
executable = gemm.specialize(M=256, N=256, K=128).variant.executable()
seconds = time.perf_counter() - started
print(json.dumps({"compiles": len(compiles), "seconds": seconds, "ptx": hash(executable.ptx)}))
"""


def test_ranks_that_share_a_cache(tmp_path) -> None:
    """Ranks that start together may each compile a kernel, which costs none of them time; they end with one entry and
    the same program. Ranks that start later compile nothing."""

    def run(count: int) -> list[dict[str, Any]]:
        folder = tmp_path / f"start-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "PTXTILE_CACHE_DIR": str(tmp_path / "cache"), "PTXTILE_VERIFY": "0",
            "PTXTILE_TARGET": "sm_90a", "PYTHONHASHSEED": "1",
        }  # fmt: skip
        ranks = [
            subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(count), str(folder)], cwd=ROOT,
                             env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for rank in range(count)
        ]  # fmt: skip
        ended = [rank.communicate(timeout=120) for rank in ranks]
        assert all(rank.returncode == 0 for rank in ranks), ended
        return [json.loads(out) for out, _ in ended]

    cold, warm = run(2), run(1)
    assert 1 <= sum(rank["compiles"] for rank in cold) <= 2
    assert [rank["compiles"] for rank in warm] == [0]
    assert len({rank["ptx"] for rank in cold + warm}) == 1
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert [path.name for path in files if path.name.endswith(".json")] == ["program.json"]
    assert not [path for path in files if path.name.startswith(".new-")]


# ---------------------------------------------------------------- devices and graphs


def test_a_module_for_each_device(fake) -> None:
    """Each is loaded and launched in its own card's context, whichever is current; afterwards that is current again."""
    fake.parameter_sizes = (8, 128, 4, 2, 8)
    executable = test_executable.Executable(test_executable.PTX, test_executable.RECORD)
    fake.stack.append(PRIMARY)
    for device in (1, 0, 1):
        executable.launch(replace(test_executable.binding(), device=torch.device("cuda", device)))
        assert fake.launched[-1]["context"] == PRIMARY + device and fake.stack == [PRIMARY]
    loads = [call[3] for call in fake.calls if call[0] == "load"]
    assert loads == [PRIMARY + 1, PRIMARY] and executable.devices == (1, 0)


def test_a_repeated_call_does_nothing_that_a_capture_forbids(on_fake_card) -> None:
    """After the first, a call reads the context, launches, and asks the driver for nothing else."""
    on_fake_card.stack.append(PRIMARY)  # torch has made its context current
    scale, a = scaled(), torch.zeros(64)
    scale(a, 1.0)
    before = len(on_fake_card.calls)
    for factor in (1.0, 2.0, 3.0):
        scale(a, factor)
    assert len(on_fake_card.launched) == 4 and on_fake_card.calls[before:] == []


def test_a_first_call_during_a_capture(on_fake_card) -> None:
    """Loading is allowed while it lasts, and nothing else is."""
    scaled()(torch.zeros(64), 1.0)
    assert on_fake_card.modes_of_loads == ["RELAXED"] and on_fake_card.capture_mode.name.endswith("GLOBAL")


def test_a_driver_that_cannot_load_during_a_capture(on_fake_card) -> None:
    from cuda.bindings.driver import CUresult

    scale = scaled()
    on_fake_card.results["cuModuleLoadDataEx"] = CUresult.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    with pytest.raises(DriverError, match=r"while a CUDA graph is captured(.|\n)*call it once before the capture"):
        scale(torch.zeros(64), 1.0)
    assert on_fake_card.capture_mode.name.endswith("GLOBAL") and not on_fake_card.launched
    del on_fake_card.results["cuModuleLoadDataEx"]
    scale(torch.zeros(64), 1.0)
    assert len(on_fake_card.launched) == 1


def test_a_kernel_that_is_not_at_the_top_of_its_module_has_no_name() -> None:
    @ptxtile.jit
    def local(A):
        A: T.Tensor((4,), T.float32)
        with T.Kernel(1, threads=32):
            A[0] = 1.0

    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(local)

"""Worker processes: what comes back, who is replaced, what they load."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import Future, wait
from pathlib import Path

import pytest

from ptxtile.errors import WorkerError, WorkerTimeout
from ptxtile.tune.compile_many import compiling_pool
from ptxtile.tune.pool import WorkerPool
from tests.autotune import kernels

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def pool():
    with WorkerPool(2, ("tests.autotune.kernels",)) as made:
        yield made


def test_values_come_back_from_other_processes(pool: WorkerPool) -> None:
    import os

    found = list(pool.map(kernels.identity_of_process, range(20)))
    assert [value for value, _ in found] == list(range(20))
    assert os.getpid() not in {process for _, process in found}


def test_errors_come_back(pool: WorkerPool) -> None:
    with pytest.raises(ValueError, match="too much"):
        pool.submit(kernels.fail, "too much").result()
    with pytest.raises(RuntimeError, match="cannot be sent"):
        pool.submit(kernels.unsendable).result()
    with pytest.raises(Exception, match="(?i)pickle|local"):
        pool.submit(lambda: None)


def test_a_process_that_dies_is_replaced(pool: WorkerPool) -> None:
    with pytest.raises(WorkerError, match="die died"):
        pool.submit(kernels.die).result()
    assert pool.submit(kernels.identity_of_process, 1).result()[0] == 1
    with pytest.raises(WorkerError, match="of no use"):
        pool.submit(kernels.ask_for_replacement).result()
    assert len(set(pool.map(kernels.identity_of_process, range(4)))) == 4


def test_a_process_that_hangs_is_killed_and_replaced(pool: WorkerPool) -> None:
    started = time.perf_counter()
    hanging = pool.submit_with_timeout(0.3, kernels.sleep, 1000.0)
    with pytest.raises(WorkerTimeout, match="sleep did not end within 0.3 s"):
        hanging.result()
    assert time.perf_counter() - started < 30
    wait([pool.submit(kernels.identity_of_process, n) for n in range(4)])
    assert pool.submit(kernels.identity_of_process, 5).result()[0] == 5


def test_compiling_processes_are_light_and_forked_without_threads() -> None:
    with compiling_pool(2) as pool:
        modules = pool.submit(kernels.loaded_modules).result()
        assert pool.submit(kernels.threads_of_process).result() == 1
    assert "llvmlite.binding" in modules and "ptxtile.lower.pipeline" in modules
    # the test's own module is what brings the language, which needs neither
    assert not {"torch", "numba"} & set(modules)


def test_an_interrupted_block_does_not_wait_for_its_calls() -> None:
    started = time.perf_counter()
    calls: list[Future[float]] = []

    def block() -> None:
        with WorkerPool(1, ("tests.autotune.kernels",)) as pool:
            pool.submit(kernels.identity_of_process, 1).result()
            calls.extend(pool.submit(kernels.sleep, 1000.0) for _ in range(2))
            time.sleep(0.1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        block()
    assert time.perf_counter() - started < 30
    assert isinstance(calls[0].exception(), WorkerError) and calls[1].cancelled()


def test_a_pool_that_is_shut_down_takes_no_more() -> None:
    pool = WorkerPool(1, ())
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        pool.submit(kernels.identity_of_process, 1)


def test_a_script_without_a_main_guard_may_compile(tmp_path: Path) -> None:
    """multiprocessing's workers would run the script again."""
    script = tmp_path / "script.py"
    script.write_text(
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import ptxtile\nimport ptxtile.language as T\n"
        "print('once')\n"
        "@T.prim_func\n"
        "def copy(A: T.Tensor((32,), 'float32'), B: T.Tensor((32,), 'float32')):\n"
        "    with T.Kernel(1, threads=32):\n"
        "        for i in T.Parallel(32):\n"
        "            B[i] = A[i]\n"
        "kernels = ptxtile.par_compile([copy, copy], target='sm_80', num_workers=2)\n"
        "print([k.variant.is_compiled for k in kernels])\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:2] == ["once", "[True, True]"]

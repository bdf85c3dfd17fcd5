"""Kernels compiled by other processes are the same as those compiled here."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

import ptxtile
from ptxtile import compiled_programs
from ptxtile.errors import PtxtileError, ResourceError
from ptxtile.tune.compile_many import compile_many, take
from ptxtile.tune.compile_task import compile_task, task_of
from tests.autotune import kernels
from tests.runtime.fake_bindings import FakeBindings


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PTXTILE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PTXTILE_VERIFY", "0")
    return tmp_path


def makers(count: int = 3):
    fresh = ptxtile.jit(target="sm_90a")(kernels.add.function.function)
    return [lambda n=n: fresh.specialize(M=4, N=64 * (n + 1)) for n in range(count)]


def test_the_ptx_is_the_same_and_is_kept() -> None:
    steps: list[tuple[int, int]] = []
    found = compile_many(makers(), workers=2, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(1, 3), (2, 3), (3, 3)]
    for kernel, make in zip(found, makers(), strict=True):
        assert not isinstance(kernel, PtxtileError)
        assert kernel.variant.is_compiled
        assert kernel.variant.executable().ptx == make().variant.compiled().ptx
        key = compiled_programs.key_of(
            kernel.variant.tile_program, kernel.variant.target, kernel.variant.settings.options
        )
        kept = compiled_programs.find(key)
        assert kept is not None and kept.launch == kernel.variant.executable().record


def test_what_is_on_disk_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    compile_many(makers(), workers=2)
    with ThreadPoolExecutor(1) as executor:
        monkeypatch.setattr(executor, "submit", lambda *_: pytest.fail("compiled again"))
        assert all(kernel.variant.is_compiled for kernel in compile_many(makers(), executor=executor))


def test_any_executor_will_do() -> None:
    with ThreadPoolExecutor(2) as executor:
        (kernel,) = compile_many(makers(1), executor=executor)
    assert kernel.variant.executable().ptx


def test_processes_of_another_kind() -> None:
    """A pool of the standard library's, which like a cluster's knows neither this module's kernels nor its state."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as executor:
        (kernel,) = compile_many(makers(1), executor=executor)
    assert kernel.variant.executable().ptx == makers(1)[0]().variant.compiled().ptx


def test_par_compile_of_both_forms() -> None:
    eager = ptxtile.jit(target="sm_90a")(kernels.add.function.function)
    first, second = eager.par_compile([{"M": 4, "N": 64}, {"M": 4, "N": 32, "block": 64}], num_workers=1)
    assert first.variant.is_compiled and second.variant.is_compiled and second.python_arguments["block"] == 64
    factory = ptxtile.jit(out_idx=[-1], target="sm_90a")(kernels.product_factory)
    found = factory.par_compile([(64, 64, 64), {"M": 64, "N": 64, "K": 64, "threads": 2048}], 1, ignore_error=True)
    assert found[0].variant.is_compiled and isinstance(found[1], PtxtileError)


def test_an_error_comes_with_the_users_line_or_in_its_place() -> None:
    factory = ptxtile.jit(out_idx=[-1], target="sm_90a")(kernels.product_factory)
    given = [
        lambda: factory(64, 64, 64),
        lambda: factory(64, 64, 4096, block_K=2048, block_M=64, block_N=64),
        lambda: factory(64, 64, 64, threads=2048),
    ]
    with pytest.raises(ResourceError, match="(?s)shared memory.*kernels.py"):
        compile_many(given[:2], workers=1)
    right, too_large, too_many = compile_many(given, workers=1, ignore_error=True)
    assert right.variant.is_compiled
    assert isinstance(too_large, ResourceError) and too_large.location is not None
    assert isinstance(too_many, PtxtileError) and "threads" in str(too_many)


def test_another_version_refuses() -> None:
    from dataclasses import replace

    from ptxtile.errors import WorkerError

    variant = makers(1)[0]().variant
    task = task_of(variant.tile_program, variant.target, variant.settings.options)
    with pytest.raises(WorkerError, match="another version"):
        compile_task(replace(task, version="0.0.0"))


def test_the_driver_assembles_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a stand-in for the bindings."""
    from ptxtile.errors import CompileError
    from ptxtile.runtime import driver

    bindings = FakeBindings(info="said this")
    monkeypatch.setattr(driver, "_import_bindings", lambda: bindings)
    monkeypatch.setattr(driver, "_library", None)
    monkeypatch.setattr(driver, "_initialised_in", None)
    unloaded: list[str] = []
    monkeypatch.setattr(FakeBindings, "cuModuleUnload", lambda _, handle: (0, unloaded.append(handle)), raising=False)
    variant = makers(1)[0]().variant
    task = task_of(variant.tile_program, variant.target, variant.settings.options, card=0)
    outcome = compile_task(task)
    assert (outcome.assembler, outcome.log) == ("sm_90-13.0", "said this") and unloaded == ["module"]
    assert outcome.seconds is not None and {"context", "driver"} < set(outcome.seconds)
    take(variant, outcome)
    key = compiled_programs.key_of(variant.tile_program, variant.target, variant.settings.options)
    assert compiled_programs.AssemblerLogs(key).find("sm_90-13.0") == "said this"
    bindings.errors = "no such instruction"
    bindings.results["cuModuleLoadDataEx"] = bindings.CUresult.CUDA_ERROR_INVALID_PTX
    refused = compile_task(task)
    assert isinstance(refused.error, CompileError) and "no such instruction" in str(refused.error)


def test_a_card_that_cannot_be_used_here_is_no_fault_of_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from ptxtile.errors import DriverError
    from ptxtile.runtime import driver

    def refuse():
        raise DriverError("the card is another process's alone")

    monkeypatch.setattr(driver, "initialised", refuse)
    variant = makers(1)[0]().variant
    outcome = compile_task(task_of(variant.tile_program, variant.target, variant.settings.options, card=0))
    assert outcome.error is None and outcome.ptx and not outcome.log

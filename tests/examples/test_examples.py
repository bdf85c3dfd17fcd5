"""Every example: its check in the simulator at small sizes for several targets, and its kernels through ptxas at the
sizes that a card runs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from ptxtile.variant import Variant
from tests.examples.cases import CHECKS, FOLDER, KERNELS, NAMES, Check, Kernel, module
from tests.ptxas import IGNORED_SETMAXNREG, assemble

SERIALISED_WGMMA = tuple(f"C{number}" for number in range(7510, 7516))
"""ptxas' message codes when it makes asynchronous multiplications wait for each other."""


def test_every_example_is_checked_and_assembled() -> None:
    assert {check.example for check in CHECKS} == {kernel.example for kernel in KERNELS} == set(NAMES)


@pytest.mark.parametrize("check", [pytest.param(check, id=check.name) for check in CHECKS])
def test_check(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """``check`` compares with float64 and raises AssertionError."""
    monkeypatch.setenv("PTXTILE_TARGET", check.target)
    module(check.example).check(*check.sizes, device="cpu", **check.options)


@pytest.mark.parametrize("name", NAMES)
def test_runs_by_itself(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without arguments, as on a machine without a card: one line."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", [name])
    module(name).main()
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1 and "on cpu: " in printed.out and not printed.err


@pytest.mark.parametrize("name", NAMES)
def test_the_check_finds_a_wrong_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose last column is off by more than the largest value in it fails its check."""
    run = Variant.run

    def wrong(variant: Variant, binding, device_type: str):
        results = run(variant, binding, device_type)
        column = binding.tensors["C"][..., -1]
        column += 1 + column.abs().amax().to(column.dtype)  # a column that relu made zero is wrong too
        return results

    monkeypatch.setattr(Variant, "run", wrong)
    check = next(check for check in CHECKS if check.example == name)
    with pytest.raises(AssertionError):
        module(name).check(*check.sizes, device="cpu", **check.options)


@pytest.mark.parametrize(
    "kernel, target",
    [pytest.param(kernel, target, id=f"{kernel.name}-{target}") for kernel in KERNELS for target in kernel.targets],
)
def test_assembles(kernel: Kernel, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ptxas takes it, honours its register counts, keeps its wgmma asynchronous, and spills nothing."""
    monkeypatch.setenv("PTXTILE_TARGET", target)
    function = getattr(module(kernel.example), kernel.function)
    compiled = function.compile(**kernel.arguments)
    log = assemble(compiled.ptx, target)
    assert "warning" not in log.lower(), log
    assert not any(message in log for message in (*IGNORED_SETMAXNREG, *SERIALISED_WGMMA)), log
    assert "0 bytes spill stores, 0 bytes spill loads" in log, log


def test_as_a_script(tmp_path) -> None:
    """In a process of its own, with sizes as arguments."""
    paths = [str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    command = [sys.executable, str(FOLDER / "elementwise_add.py"), "33", "70"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("33x70 float32 on ") and "equal torch" in done.stdout and not done.stderr

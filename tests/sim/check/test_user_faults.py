"""Faults that users make in the language, found at their lines; pipelines of every length, clean on every target."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch

from ptxtile.errors import LoweringError
from ptxtile.sim.check import Finding
from tests.sim.check import faulty_kernels

SEEDS = range(4)


@pytest.fixture(autouse=True)
def _on_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")


def marked(kernel: Any, mark: str) -> set[int]:
    """Numbers of the lines of a kernel's source that end with ``# mark``."""
    lines, first = inspect.getsourcelines(kernel.__wrapped__)
    return {first + number for number, line in enumerate(lines) if line.rstrip().endswith(f"# {mark}")}


def lines(finding: Finding) -> set[int]:
    places = [place for place in finding.locations if place is not None]
    assert all(place.file == faulty_kernels.__file__ for place in places)
    return {place.line for place in places}


FAULTS = {
    "handed_over": ("race", r"role group_[01].*S\[\d+, \d+\].*role group_[01]", lambda: (torch.randn(64, 128),)),
    "next_turn": ("race", r"S\[\d+, \d+\]", lambda: (torch.randn(4, 64, 128),)),
    "some_warps": (
        "deadlock",
        r"bar.sync 1 for 128 threads: 96 arrived.*32 missing",
        lambda: (torch.tensor([1, 0, 2, 3], dtype=torch.int32),),
    ),
    "ring": (
        "deadlock",
        r"empty\[0\] with parity 0.*128 of 129 arrivals came.*1 missing",
        lambda: (torch.randn(512, 64),),
    ),
    "beyond": (
        "illegal",
        r"outside S",
        lambda: (torch.randn(64, 64), torch.tensor([3, 0, 63, 7], dtype=torch.int32)),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    """Without the fault the kernel is clean; with it the report shows the lines of both sides."""
    rule, says, make = FAULTS[name]
    kernel, arguments = getattr(faulty_kernels, name), make()
    report = kernel.check(*arguments, seeds=SEEDS)
    assert report.clean, report
    report = kernel.check(*arguments, wrong=True, seeds=SEEDS)
    found = [f for f in report.findings if f.rule == rule and re.search(says, f.message, re.DOTALL)]
    assert found, report
    wanted = marked(kernel, "later") | marked(kernel, "earlier")
    assert wanted and any(lines(f) == wanted for f in found), (wanted, report)


@pytest.mark.parametrize("name", ["unordered", "divided"])
def test_what_is_refused_before_it_runs(name: str) -> None:
    """The compiler sees these by itself, at the same lines."""
    kernel = getattr(faulty_kernels, name)
    arguments = (torch.randn(64, 128),) if name == "unordered" else (torch.ones(128, dtype=torch.int32),)
    with pytest.raises(LoweringError) as caught:
        kernel.check(*arguments)
    assert caught.value.location is not None
    assert caught.value.location.line in marked(kernel, "refused")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("known", [False, True], ids=["dynamic", "static"])
def test_pipelines_of_every_length(target: str, known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn, one, one fewer than stages, as many, and one more: clean, and right."""
    monkeypatch.setenv("PTXTILE_TARGET", target)
    stages = 2 + known
    for trips in sorted({0, 1, stages - 1, stages, stages + 1}):
        a, b = torch.randn(64, 160).bfloat16(), torch.randn(64, 160).bfloat16()
        options = {"stages": stages, "trips": trips if known else None}
        report = faulty_kernels.pipelined.check(a, b, trips, **options)
        assert report.clean, f"{trips} of {stages} on {target}:\n{report}"
        wanted = a[:, : 32 * trips].double() @ b[:, : 32 * trips].double().T
        result = faulty_kernels.pipelined(a, b, trips, **options)
        torch.testing.assert_close(result.double(), wanted, rtol=1e-3, atol=1e-3)

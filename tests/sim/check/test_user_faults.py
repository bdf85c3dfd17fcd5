"""Faults that users make in the language, found at their lines; pipelines of every length, clean on every target."""

from __future__ import annotations

import inspect
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from ptxtile.errors import LoweringError
from ptxtile.ir.gpu_ops import BulkWaitGroup, FenceProxyAsync, MbarrierWait
from ptxtile.ir.rewrite import Rewriter
from ptxtile.ir.tensor_core_ops import WgmmaFence, WgmmaWaitGroup
from ptxtile.sim.check import Finding, Report
from ptxtile.sim.check.run import check
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


def floats(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def halves(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).bfloat16()


def integers(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


FAULTS = {
    "handed_over": ("race", r"role group_[01].*S\[\d+, \d+\].*role group_[01]", lambda: (floats(64, 128),)),
    "next_turn": ("race", r"S\[\d+, \d+\]", lambda: (floats(4, 64, 128),)),
    "written_twice": ("race", r"warp \d, role group_[01].*writes S\[32, \d+\].*written", lambda: (floats(64, 128),)),
    "same_element": ("race", r"warp \d.* of CTA .* writes B\[0, \d+\].*another CTA", lambda: (floats(4, 128),)),
    "multiplied_too_long": (
        "race",
        r"TMA load onto full\[\d\] writes left\[\d, \d+, \d+\] \(stage \d\).*read by a wgmma of warpgroup 0",
        lambda: (halves(64, 512), halves(512, 64)),
    ),
    "counted_too_low": ("race", r"S\[\d+, \d+\]", lambda: (floats(64, 128),)),
    "half_a_tile": ("uninitialised", r"warp \d.* reads S\[\d+, \d+\], which nobody", lambda: (floats(64, 128),)),
    "uncleared": ("uninitialised", r"warps 0 to 3 .*total\[0\]", lambda: (halves(64, 64), halves(64, 64))),
    "unwritten_fragment": ("uninitialised", r"warp \d.*stores to B.*F\[\d+\]", lambda: (floats(64, 128),)),
    "some_warps": (
        "deadlock",
        r"bar.sync 1 for 128 threads: 96 arrived.*32 missing",
        lambda: (integers(1, 0, 2, 3),),
    ),
    "ring": (
        "deadlock",
        r"role group_1.*empty\[0\] with parity 0: in phase 0.*128 of 129 arrivals came.*1 missing",
        lambda: (floats(512, 64),),
    ),
    "wrong_bytes": ("deadlock", r"full\[0\].*1 of 1 arrivals came.*16 bytes are still exp", lambda: (floats(64, 128),)),
    "same_parity": (
        "stale wait",
        r"warp \d, role group_1.*full\[0\] with parity 0.*seen that phase",
        lambda: (floats(4, 64, 128),),
    ),
    "beyond": (
        "illegal",
        r"warp.*outside S",
        lambda: (floats(64, 64), integers(3, 0, 63, 7)),
    ),
    "beyond_map": ("illegal", r"warp.*A_map lies outside S", lambda: (floats(256, 64), integers(24))),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    """Without the fault the kernel is clean; with it the report shows the lines of both sides."""
    rule, says, make = FAULTS[name]
    kernel, arguments = getattr(faulty_kernels, name), make()
    report = kernel.check(*arguments, seeds=SEEDS)
    assert report.clean, report
    expect(kernel, kernel.check(*arguments, wrong=True, seeds=SEEDS), rule, says, {"later", "earlier"})


def expect(kernel: Any, report: Report, rule: str, says: str, marks: set[str]) -> None:
    found = [f for f in report.findings if f.rule == rule and re.search(says, f.message, re.DOTALL)]
    assert found, report
    wanted = set().union(*(marked(kernel, mark) for mark in marks))
    assert wanted and any(lines(f) == wanted for f in found), (wanted, report)


def test_a_row_that_does_not_exist() -> None:
    """The fault is in the argument: the kernel assumes that there is such a row."""
    kernel, a = faulty_kernels.beyond_tensor, floats(64, 64)
    assert kernel.check(a, 63).clean
    expect(kernel, kernel.check(a, 66), "illegal", r"warp \d.*A is read out of bounds.*A\[66, \d+\]", {"later"})


ADDED = {
    "handed_to_tma": (
        {"B": (4, 64, 128)},
        (FenceProxyAsync, "missing fence", r"TMA store.*reads S\[0, 0\].*written by.*group_0", {"written", "stored"}),
        (BulkWaitGroup, "race", r"writes S\[\d+, \d+\].*read by a TMA store of", {"written", "stored"}),
        (BulkWaitGroup, "unfinished", r"TMA store of thread 128 .*may still read", {"stored"}),
    ),
    "product": (
        {"C": (64, 64)},
        (WgmmaWaitGroup, "in flight", r"warps 0 to 3 .*total.*accumulator of a wgmma", {"multiplied", "taken"}),
        (WgmmaFence, "missing fence", r"registers of total.*wgmma.fence", {"multiplied"}),
        (MbarrierWait, "race", r"wgmma of warpgroup 0.*reads left\[\d+, \d+\].*a TMA load", {"left", "multiplied"}),
    ),
}
"""Kernel → its results; kinds of operations that the compiler added; what is reported without them, at which lines."""


@pytest.mark.parametrize("name, case", [(name, n) for name, (_, *cases) in ADDED.items() for n in range(len(cases))])
def test_what_the_compiler_adds_is_needed(name: str, case: int) -> None:
    """A user cannot leave these out; a compiler that did so would be reported at the user's lines."""
    kernel, (results, *cases) = getattr(faulty_kernels, name), ADDED[name]
    kind, rule, says, marks = cases[case]
    program = kernel.specialize().program
    tensors = {p.name: halves(64, 64) if name == "product" else floats(4, 64, 128) for p in program.parameters}
    tensors |= {result: torch.zeros(shape) for result, shape in results.items()}
    assert check(program, tensors, {}, seeds=SEEDS).clean
    body = program.kernels[0].body
    without = _without(kind).visit(body)
    assert without is not body
    mutant = replace(program, kernels=(replace(program.kernels[0], body=without),))
    expect(kernel, check(mutant, tensors, {}, seeds=SEEDS), rule, says, marks)


def _without(kind: type) -> Rewriter:
    """Takes out all operations of a kind."""
    return type("Without", (Rewriter,), {f"rewrite_{kind.__name__}": lambda self, node: None})()


@pytest.mark.parametrize("name", ["unordered", "divided", "odd_box"])
def test_what_is_refused_before_it_runs(name: str) -> None:
    """The compiler sees these by itself, at the same lines."""
    kernel = getattr(faulty_kernels, name)
    arguments = {
        "unordered": (floats(64, 128),), "divided": (torch.ones(128, dtype=torch.int32),), "odd_box": (floats(64, 8), 4)
    }[name]  # fmt: skip
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

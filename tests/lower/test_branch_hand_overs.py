"""Barriers of the user's that order threads which go different ways: what they order needs nothing more, and what they
do not order is refused."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptxtile.errors import LoweringError
from ptxtile.ir.access_context import kernel_context
from ptxtile.ir.program import Program
from ptxtile.lower.rehearsal_clocks import Unclear
from ptxtile.lower.rehearse_barriers import rehearse
from ptxtile.sim.check.findings import Report
from ptxtile.sim.check.run import check
from tests.conformance.cases import with_launch
from tests.kernels.branches import one_word, phases, ring_of_words, rounds, three_ways, two_buffers
from tests.lower.hazard_programs import barriers_of, placed, synchronized
from tests.lower.random_branches import BranchGenerator

TRIPS = (0, 1, 4)


def checked(p: Program, trips: int | None, seeds: int = 3) -> list[Report]:
    counts = TRIPS if trips is None else (trips,)
    return [check(with_launch(p), {}, {"n": n}, seeds=range(seeds)) for n in counts]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9), mutations=st.integers(0, 2))
def test_what_a_rehearsal_ends_with_happens_in_every_schedule(seed: int, mutations: int) -> None:
    """If it comes to the end of all ways, so does the kernel: no phase is completed by others than it takes."""
    generator = BranchGenerator(seed, mutations, mbarriers=False)
    p = placed(generator.program())
    try:
        rehearse(p.kernels[0], kernel_context(p, p.kernels[0]))
    except Unclear:
        return
    found = {finding.rule for report in checked(p, generator.trips) for finding in report.findings}
    assert found <= {"race", "uninitialised", "unfinished"}


def races(reports: list[Report]) -> list[str]:
    return [str(finding) for report in reports for finding in report.findings if finding.rule == "race"]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9))
def test_what_is_ordered_by_hand_needs_nothing_more(seed: int) -> None:
    generator = BranchGenerator(seed)
    before = generator.program()
    after = synchronized(before)
    assert len(barriers_of(after)) == len(barriers_of(placed(before)))
    found = {finding for report in checked(after, generator.trips) for finding in report.findings}
    assert {str(finding) for finding in found if finding.rule != "uninitialised"} == set()  # one thread may write alone


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9), mutations=st.integers(1, 2))
def test_what_is_not_ordered_is_refused(seed: int, mutations: int) -> None:
    """A program that is taken has no race in any schedule tried, however wrong its barriers are."""
    generator = BranchGenerator(seed, mutations)
    p = generator.program()
    try:
        p = synchronized(p)
    except LoweringError:
        return
    assert races(checked(p, generator.trips)) == []


WRONG = [
    (one_word, "arrival"), (one_word, "wait"), (rounds, "full"), (rounds, "free"), (three_ways, "free"),
    (two_buffers, "parity"), (ring_of_words, "full"), (ring_of_words, "free"), (phases, "turn"),
]  # fmt: skip


def tensor_for(kernel: Any) -> torch.Tensor:
    shape = {one_word: (1,), phases: (5, 32), ring_of_words: (7, 32), two_buffers: (6, 64)}.get(kernel, (6, 32))
    return torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape)


@pytest.mark.parametrize("kernel", [one_word, rounds, three_ways, two_buffers, ring_of_words, phases])
def test_kernels_have_no_other_barriers_than_their_own(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the one behind the initialisation of mbarriers."""
    ptx = kernel.compile(A=tensor_for(kernel)).get_kernel_source()
    assert len(re.findall(r"bar\S* \s*0", ptx)) == (kernel in (ring_of_words, phases))
    monkeypatch.setenv("PTXTILE_SIM", "check")
    kernel(tensor_for(kernel))


@pytest.mark.parametrize(("kernel", "rounds"), [(ring_of_words, 5000), (phases, 5000)])
def test_loops_with_many_rounds(kernel: Any, rounds: int) -> None:
    """They are not gone through to the end: what they do repeats."""
    a, missing = torch.zeros(rounds, 32, dtype=torch.int32), {ring_of_words: "free", phases: "turn"}[kernel]
    kernel.compile(A=a, N=rounds)
    with pytest.raises(LoweringError, match="barrier is needed where not all threads arrive"):
        kernel.compile(A=a, N=rounds, without=missing)


@pytest.mark.parametrize(("kernel", "without"), WRONG, ids=[f"{k.__name__}-{w}" for k, w in WRONG])
def test_kernels_without_some_of_it_are_refused(kernel: Any, without: str) -> None:
    with pytest.raises(LoweringError, match="barrier is needed where not all threads arrive"):
        kernel(tensor_for(kernel), without=without)

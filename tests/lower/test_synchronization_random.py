"""Random sequences of shared-memory loops against the referee: no race after the pass, and no barrier too many."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from ptxtile.ir.gpu_ops import BarSync, BulkWaitGroup, FenceProxyAsync
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import Rewriter, walk
from ptxtile.lower import hazards, synchronization_position
from tests.lower.hazard_programs import barriers_of, body, placed, replace, synchronized
from tests.lower.race_referee import faults, races
from tests.lower.random_hazards import Generator

TRIPS = (0, 1, 2, 3)
THREADS = (8, 5, 33)


class _Without(Rewriter):
    """Drops the statement of a kind that has the given number, in program order."""

    def __init__(self, kind: type, number: int) -> None:
        self.kind, self.left = kind, number

    def rewrite_BarSync(self, node: BarSync) -> BarSync | None:
        return self._unless_it_is_the_one(node)

    def rewrite_FenceProxyAsync(self, node: FenceProxyAsync) -> FenceProxyAsync | None:
        return self._unless_it_is_the_one(node)

    def _unless_it_is_the_one(self, node: Any) -> Any:
        self.left -= isinstance(node, self.kind)
        return None if self.left == -1 and isinstance(node, self.kind) else node


def _without(p: Program, number: int, kind: type = BarSync) -> Program:
    return replace(p, kernels=(replace(p.kernels[0], body=_Without(kind, number).visit(body(p))),))


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9), threads=st.sampled_from(THREADS))
def test_no_race_is_left(seed: int, threads: int) -> None:
    p = synchronized(Generator(seed, threads).program())
    for n in TRIPS:
        assert races(p, n=n) == []


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9), threads=st.sampled_from(THREADS))
@example(seed=2002, threads=8)  # a fence of the writers after the barrier is none for the others
@example(seed=1688, threads=8)  # a wait before the condition that another store is committed in
def test_no_race_is_left_around_tma(seed: int, threads: int) -> None:
    """TMA loads and stores among the loops: also no proxy fence is missing, and no wait, and no thread comes late to
    the wait for a load."""
    p = synchronized(Generator(seed, threads, tma=True).program())
    for n in (0, 1, 3):
        assert faults(p, n=n) == []


@pytest.mark.parametrize("tma", [False, True])
def test_no_race_is_left_between_groups_of_threads(tma: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of 4 of 8 threads in place of warpgroups: those that only have to know of their own have barriers of their
    own, and these are enough."""
    monkeypatch.setattr(hazards, "WARPGROUP", 4)
    monkeypatch.setattr(synchronization_position, "WARPGROUP", 4)
    grouped = 0
    for seed in range(150):
        p = synchronized(Generator(seed, 8, tma=tma).program())
        grouped += any(barrier.threads == 4 for barrier in barriers_of(p))
        for n in TRIPS:
            assert races(p, n=n) == [], seed
    assert grouped > 10


def _superfluous(p: Program) -> int:
    """How many of the barriers can be taken away alone without making a race at any trip count."""
    numbers = range(len(barriers_of(p)))
    return sum(not any(faults(_without(p, number), n=n) for n in TRIPS) for number in numbers)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9))
def test_no_barrier_is_superfluous(seed: int) -> None:
    """Without conditions there is one path, so a barrier that is not needed would show."""
    assert _superfluous(synchronized(Generator(seed, 8, conditions=False).program())) == 0


def test_superfluous_barriers_are_rare_with_conditions() -> None:
    """Conditions on one symbol exclude each other, which the pass does not look into: it costs less than 2 % of the
    barriers."""
    programs = [synchronized(Generator(seed, 8).program()) for seed in range(60)]
    total = sum(len(barriers_of(p)) for p in programs)
    assert sum(_superfluous(p) for p in programs) <= 0.02 * total
    assert total > 60


def test_superfluous_barriers_are_rare_around_tma() -> None:
    """A wait that has to stand before a loop takes a barrier along, also where one inside would do, such as that before
    the next phase of a load's mbarrier; and an mbarrier orders more than the pass knows."""
    programs = [synchronized(Generator(seed, 8, conditions=False, tma=True).program()) for seed in range(60)]
    total = sum(len(barriers_of(p)) for p in programs)
    assert sum(_superfluous(p) for p in programs) <= 0.07 * total
    assert total > 60


def test_superfluous_fences_are_rare() -> None:
    """What the engines read and wrote themselves is not fenced from what they do next. A fence may turn out to be
    superfluous where one that is decided on later stands in front of it on the way to the TMA operation."""
    total = superfluous = 0
    for seed in range(100):
        p = synchronized(Generator(seed, 8, conditions=False, tma=True).program())
        for number in range(sum(isinstance(node, FenceProxyAsync) for node in walk(body(p)))):
            superfluous += not any(races(_without(p, number, FenceProxyAsync), n=n) for n in (1, 3))
            total += 1
    assert total > 40
    assert superfluous <= 0.04 * total


class _Changed(Rewriter):
    """Changes fields of the wait for TMA stores of the given number."""

    def __init__(self, number: int, change: dict[str, Any]) -> None:
        self.left, self.change = number, change

    def rewrite_BulkWaitGroup(self, node: BulkWaitGroup) -> BulkWaitGroup:
        self.left -= 1
        return replace(node, **self.change) if self.left == -1 else node


def test_no_wait_for_stores_could_be_weaker() -> None:
    """A wait leaves as many groups pending as it may; it does not wait for writes where reads suffice."""
    total = 0
    for seed in range(80):
        p = synchronized(Generator(seed, 8, conditions=False, tma=True, waits=False).program())
        waits = [node for node in walk(body(p)) if isinstance(node, BulkWaitGroup)]
        for number, wait in enumerate(waits):
            changes = [{"pending": wait.pending + 1}] + ([] if wait.read else [{"read": True}])
            for change in changes:
                weaker = replace(p, kernels=(replace(p.kernels[0], body=_Changed(number, change).visit(body(p))),))
                assert any(races(weaker, n=n) for n in TRIPS)
                total += 1
    assert total > 100


@pytest.mark.parametrize("threads", THREADS)
def test_the_referee_finds_races_without_the_pass(threads: int) -> None:
    for tma in (False, True):
        programs = [placed(Generator(seed, threads, tma=tma).program()) for seed in range(20)]
        assert sum(any(races(p, n=n) for n in TRIPS) for p in programs) >= 10

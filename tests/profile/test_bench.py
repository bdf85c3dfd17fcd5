"""Measuring, on a stand-in for the card: what is timed, how often, and what must not be seen."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from ptxtile.errors import ArgumentError, DriverError
from ptxtile.profile import bench, kernel_times
from ptxtile.profile.bench import Measurement, do_bench, measure
from ptxtile.profile.clocks import HostClock
from tests.profile.stand_in_clock import QUEUE, StandInClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandInClock:
    made = StandInClock()
    monkeypatch.setattr(bench.time, "perf_counter", lambda: made.host)
    return made


def test_a_cold_cache_unless_told_otherwise(clock: StandInClock) -> None:
    cold = measure(lambda: clock.launch(1e-3), clock=clock)
    assert cold.times == pytest.approx([1.0] * len(cold.times))
    warm = measure(lambda: clock.launch(1e-3), clock=clock, flush=False)
    assert warm.times == pytest.approx([0.5] * len(warm.times))


@pytest.mark.parametrize("host", [2e-6, 20e-6, 300e-6, 2e-3])
def test_host_time_is_not_seen(clock: StandInClock, host: float) -> None:
    """The host takes up to a hundred times as long to enqueue a call as the card to do it."""
    found = measure(lambda: clock.launch(20e-6, host), clock=clock, rep=5)
    assert found.times == pytest.approx([0.02] * len(found.times))


def test_a_measurement_without_the_hold_would_see_it(clock: StandInClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "hold", lambda seconds: None)
    assert measure(lambda: clock.launch(20e-6, 300e-6), clock=clock, rep=5).median > 0.2


def test_the_queue_is_never_full(clock: StandInClock) -> None:
    measure(lambda: clock.launch(1e-6, count=10), clock=clock, rep=1, warmup=1)
    assert bench.BATCH < clock.most_waiting <= QUEUE


def test_budgets_are_times(clock: StandInClock) -> None:
    found = measure(lambda: clock.launch(2e-3), clock=clock, warmup=10, rep=50)
    assert len(found.times) == 25
    first, estimate, warm_up = 1, bench.ESTIMATE_CALLS, 5
    assert clock.launches == first + estimate + warm_up + 25


def test_numbers_of_calls_can_be_given(clock: StandInClock) -> None:
    found = measure(lambda: clock.launch(2e-3), clock=clock, warmup_calls=3, calls=7)
    assert len(found.times) == 7 and clock.launches == 1 + bench.ESTIMATE_CALLS + 3 + 7


def test_what_prepares_a_call_is_not_timed(clock: StandInClock) -> None:
    events: list[str] = []

    def prepare() -> None:
        events.append("prepare")
        clock.launch(5e-3)

    def call() -> None:
        events.append("call")
        clock.launch(1e-3)

    found = measure(call, clock=clock, prepare=prepare, rep=10)
    assert found.times == pytest.approx([1.0] * len(found.times))
    assert events[1:] == ["prepare", "call"] * (len(events) // 2)  # but for the first, which compiles


def test_giving_up_on_an_estimate(clock: StandInClock) -> None:
    found = measure(lambda: clock.launch(2e-3), clock=clock, give_up_beyond=1.5)
    assert found.times == pytest.approx((2.0,)) and clock.launches == 1 + bench.ESTIMATE_CALLS
    assert len(measure(lambda: clock.launch(2e-3), clock=clock, give_up_beyond=2.5).times) > 1


def test_a_graph_of_one_call_behind_each_flush(clock: StandInClock) -> None:
    found = measure(lambda: clock.launch(1e-4, 1e-3), clock=clock, graph=True, rep=5)
    assert found.times == pytest.approx([0.1] * len(found.times))


def test_a_graph_of_many_calls_without_flush(clock: StandInClock) -> None:
    found = measure(lambda: clock.launch(1e-5), clock=clock, graph=True, flush=False, rep=20)
    assert found.times == pytest.approx([0.005] * len(found.times))
    assert clock.flushes == 0 and 2 <= len(found.times) < 20


def test_statistics_are_numpys(random_generator: np.random.Generator) -> None:
    times = tuple(random_generator.exponential(size=37).tolist())
    found = Measurement(times)
    assert found.mean == pytest.approx(np.mean(times)) and found.median == pytest.approx(np.median(times))
    assert (found.min, found.max) == (min(times), max(times))
    for q in (0.0, 0.05, 0.5, 0.77, 1.0):
        assert found.quantile(q) == pytest.approx(np.quantile(times, q))
    with pytest.raises(ArgumentError, match="quantile"):
        found.quantile(1.5)


def test_do_bench_gives_what_is_asked_for(clock: StandInClock) -> None:
    durations = itertools.cycle([1e-3, 2e-3, 6e-3])
    function = lambda: clock.launch(next(durations))  # noqa: E731
    found = {mode: do_bench(function, _n_repeat=30, return_mode=mode, clock=clock) for mode in bench.RETURN_MODES}
    assert sorted(found.pop("all")) == pytest.approx([1.0] * 10 + [2.0] * 10 + [6.0] * 10)
    assert found == pytest.approx({"mean": 3.0, "median": 2.0, "min": 1.0, "max": 6.0})
    assert do_bench(function, _n_repeat=30, quantiles=[0.1, 0.5, 0.9], clock=clock) == pytest.approx([1.0, 2.0, 6.0])


def test_wrong_arguments_are_named(clock: StandInClock) -> None:
    with pytest.raises(ArgumentError, match="backend"):
        do_bench(lambda: None, backend="evnt")
    with pytest.raises(ArgumentError, match="return_mode"):
        do_bench(lambda: clock.launch(1e-3), return_mode="average", clock=clock)


@pytest.mark.skipif(torch.cuda.is_available(), reason="about machines without a card")
def test_without_a_card_the_log_says_wall_time(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "ptxtile"):
        assert do_bench(lambda: None, rep=0.01, warmup=0.01) >= 0.0
    assert "wall time" in caplog.text


def test_wall_time_is_of_the_call() -> None:
    import time

    found = measure(lambda: time.sleep(0.004), clock=HostClock(), rep=20, warmup=1)
    assert 4.0 <= found.min < 40.0


def test_the_work_of_a_call_without_the_flush() -> None:
    """Three calls of two kernels, a flush before each, in the order in which a profiler may hand them over."""
    works = [(start, name, 10.0 if name == "a" else 100.0 if name == "memset" else 1.0)
             for turn in range(3)
             for start, name in ((10 * turn, "memset"), (10 * turn + 1, "a"), (10 * turn + 2, "b"))]  # fmt: skip
    assert kernel_times.sums(works[::-1], 3, True) == pytest.approx([0.011] * 3)
    assert kernel_times.sums(works, 3, False) == pytest.approx([0.111] * 3)


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_lost_records_are_no_times(lost: int) -> None:
    works = [(float(n), "ab"[n % 2], 1.0) for n in range(6)]
    del works[lost]
    with pytest.raises(DriverError, match="told apart"):
        kernel_times.sums(works, 3, False)


def test_importing_the_profiler_is_light() -> None:
    program = "import sys, ptxtile.profile; print([m for m in ('torch', 'cuda', 'rich') if m in sys.modules])"
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=root, check=True)
    assert found.stdout.strip() == "[]"

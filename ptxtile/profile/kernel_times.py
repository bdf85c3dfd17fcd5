"""The time that a call's kernels take on the card, without the gaps between them: through torch.profiler, which asks
CUPTI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ptxtile.errors import DriverError
from ptxtile.profile.bench import Measurement, measure
from ptxtile.profile.clocks import Clock

MOST_CALLS = 200
"""Calls under the profiler, whose records take memory."""


def measure_kernels(
    function: Callable[[], object],
    clock: Clock,
    warmup: float,
    rep: float,
    warmup_calls: int = 0,
    calls: int = 0,
    flush: bool = True,
) -> Measurement:
    """As :func:`ptxtile.profile.bench.measure`; each time is the sum over a call's kernels and copies."""
    from torch.profiler import ProfilerActivity, profile

    estimate = measure(function, warmup=warmup, warmup_calls=warmup_calls, calls=3, flush=flush, clock=clock).median
    count = calls or max(1, min(MOST_CALLS, int(rep / max(estimate, 1e-3))))
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(count):
            if flush:
                clock.flush()
            function()
        clock.wait()
    works = [
        (event.time_range.start, event.name, event.time_range.elapsed_us())
        for event in profiler.events() or ()
        if event.device_type.name == "CUDA"
    ]
    return Measurement(tuple(sums(works, count, flush)), "CUPTI")


def sums(works: Sequence[tuple[float, str, float]], count: int, flushed: bool) -> list[float]:
    """Milliseconds of each of ``count`` equal calls, from the (start, name, microseconds) of all work on the card.

    ``flushed``: the first piece of work of each call empties the cache and does not count. DriverError when the work
    cannot be shared out, since CUPTI may lose records.
    """
    ordered: list[tuple[float, str, Any]] = sorted(works)
    each = len(ordered) // count
    calls = [ordered[place * each : (place + 1) * each] for place in range(count)]
    names = [[name for _, name, _ in call] for call in calls]
    if not each or len(ordered) % count or any(found != names[0] for found in names) or (flushed and each < 2):
        raise DriverError(
            "the card's work could not be told apart by calls", expected=f"the same work in each of {count} calls",
            got=f"{len(ordered)} pieces of work", hint="backend='event' needs no records of the profiler",
        )  # fmt: skip
    return [sum(duration for _, _, duration in call[flushed:]) / 1e3 for call in calls]

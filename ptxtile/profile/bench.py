"""``do_bench``: how long a call takes on the card, in milliseconds.

A measurement is one call between two events. Before it the L2 cache is emptied, so that it does not find its inputs
there by the grace of the call before. Calls are enqueued in batches while the card is held busy: then no event waits
for the host, and host time does not count. How many warm-up and measured calls there are follows from time budgets and
a first estimate.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from ptxtile import config
from ptxtile.errors import ArgumentError
from ptxtile.profile.clocks import MOST_HOLD, QUEUE_DEPTH, Clock, CudaClock, HostClock
from ptxtile.records import record

ESTIMATE_CALLS = 5
"""Calls of the first estimate."""
BATCH = QUEUE_DEPTH // 16
"""Calls enqueued at once. A call may be several launches; with its two events and the flush of the cache, and up to a
dozen launches, the queue still holds them all."""
GRAPH_MILLISECONDS = 2.0
"""Of work in one captured graph, about: enough for its start not to count."""
MOST_IN_GRAPH = 1000
BACKENDS = ("event", "cudagraph", "cupti", "wall")
RETURN_MODES = ("mean", "median", "min", "max", "all")


@record
class Measurement:
    """``times``: milliseconds of each measured call, in order; at least one."""

    times: tuple[float, ...]
    clock: str = ""

    @property
    def mean(self) -> float:
        return statistics.fmean(self.times)

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    @property
    def min(self) -> float:
        return min(self.times)

    @property
    def max(self) -> float:
        return max(self.times)

    def quantile(self, q: float) -> float:
        """The value below which a share ``q`` (0 … 1) of the times lies, linear between neighbours."""
        if not 0 <= q <= 1:
            raise ArgumentError("a quantile", expected="a number from 0 to 1", got=repr(q))
        ordered = sorted(self.times)
        place = q * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (ordered[above] - ordered[below]) * (place - below)

    def figure(self, return_mode: str) -> float | list[float]:
        if return_mode not in RETURN_MODES:
            raise ArgumentError("return_mode", expected=" or ".join(RETURN_MODES), got=repr(return_mode))
        return list(self.times) if return_mode == "all" else getattr(self, return_mode)


def measure(
    function: Callable[[], object],
    *,
    warmup: float = 25.0,
    rep: float = 100.0,
    calls: int = 0,
    warmup_calls: int = 0,
    flush: bool = True,
    prepare: Callable[[], object] | None = None,
    clock: Clock | None = None,
    graph: bool = False,
    give_up_beyond: float | None = None,
) -> Measurement:
    """Times ``function``, which takes no arguments.

    warmup, rep: milliseconds to spend on calls that do not count, and on those that do; ``warmup_calls`` and ``calls``
    say their numbers instead. flush: empty the L2 cache before each call. prepare: called before each call, untimed,
    to restore what the call changes. clock: what times it; None: CUDA events where torch sees a card, else the host's
    clock. graph: capture calls in a CUDA graph, which leaves out all host time; without ``flush`` and ``prepare`` the
    graph holds many calls, and each time is a mean over one replay. give_up_beyond: if the first estimate is above so
    many milliseconds, that estimate is the result.
    """
    clock = clock or default_clock()
    inner = 1
    run: Callable[[], object] = function
    run()  # compiles
    if graph:
        run = clock.captured(function, 1)
    clock.wait()
    estimate, host = _estimate(clock, run, flush, prepare)
    if give_up_beyond is not None and estimate > give_up_beyond:
        return Measurement((estimate,), clock.name)
    if graph and not flush and prepare is None:
        inner = max(1, min(MOST_IN_GRAPH, round(GRAPH_MILLISECONDS / max(estimate, 1e-4))))
        run = clock.captured(function, inner)
    each = max(estimate * inner, 1e-3)
    for _ in range(warmup_calls or max(1, int(warmup / each))):
        _before(clock, flush, prepare)
        run()
    times: list[float] = []
    wanted = calls or max(1, int(rep / each))
    while len(times) < wanted:
        batch = min(BATCH, wanted - len(times))
        if clock.asynchronous and host > 0:
            batch = max(1, min(batch, int(MOST_HOLD / host)))
        times += _batch(clock, run, batch, flush, prepare, host)
    return Measurement(tuple([value / inner for value in times]), clock.name)


def _estimate(
    clock: Clock, run: Callable[[], object], flush: bool, prepare: Callable[[], object] | None
) -> tuple[float, float]:
    """Milliseconds of a call, and seconds that the host takes to enqueue it with what is around it."""
    begun = time.perf_counter()
    marks = []
    for _ in range(ESTIMATE_CALLS if clock.asynchronous else 1):
        _before(clock, flush, prepare)
        start = clock.mark()
        run()
        marks.append((start, clock.mark()))
    host = (time.perf_counter() - begun) / len(marks)
    clock.wait()
    return statistics.median(clock.milliseconds(start, stop) for start, stop in marks), host


def _batch(
    clock: Clock, run: Callable[[], object], count: int, flush: bool, prepare: Callable[[], object] | None, host: float
) -> list[float]:
    clock.wait()
    clock.hold(1.5 * host * count)
    marks = []
    for _ in range(count):
        _before(clock, flush, prepare)
        start = clock.mark()
        run()
        marks.append((start, clock.mark()))
    clock.wait()
    return [clock.milliseconds(start, stop) for start, stop in marks]


def _before(clock: Clock, flush: bool, prepare: Callable[[], object] | None) -> None:
    if prepare is not None:
        prepare()
    if flush:
        clock.flush()


def default_clock(device: Any = None, flush_bytes: int | None = None) -> Clock:
    """CUDA events where torch sees a card; else wall time, which the log says."""
    import torch

    if torch.cuda.is_available():
        return CudaClock(device, flush_bytes)
    config.logger().warning("there is no card: measured by wall time on the host, of the simulator")
    return HostClock()


def do_bench(
    fn: Callable[[], object],
    warmup: float = 25,
    rep: float = 100,
    _n_warmup: int = 0,
    _n_repeat: int = 0,
    quantiles: Sequence[float] | None = None,
    fast_flush: bool = True,
    backend: str = "event",
    return_mode: str = "mean",
    device: Any = None,
    cache_size: int | None = None,
    early_stop_baseline: float | None = None,
    *,
    flush: bool = True,
    clock: Clock | None = None,
) -> Any:
    """Milliseconds of ``fn()`` as a float, or one float for each of ``quantiles`` (0 … 1).

    warmup, rep: milliseconds of calls that do not count, and that do (numbers of calls: ``_n_warmup``, ``_n_repeat``).
    return_mode: ``mean``, ``median``, ``min``, ``max`` or ``all`` (a list). backend: ``event``: CUDA events around each
    call; ``cudagraph``: the call captured in a CUDA graph, and many of them with ``flush=False``; ``cupti``: the time
    of the call's kernels alone, through torch.profiler; ``wall``: the host's clock, for what is done when it returns,
    or waits for ``device``. cache_size: megabytes written before each call to empty the L2 cache, twice its size unless
    given; ``flush=False``: none. early_stop_baseline: above so many milliseconds the first estimate is the result.
    Without a card wall time is measured, and the log says so. Names and order are TileLang's; ``fast_flush`` changes
    nothing here.
    """
    if backend not in BACKENDS:
        raise ArgumentError("backend of do_bench", expected=" or ".join(BACKENDS), got=repr(backend))
    if clock is None and backend == "wall":
        clock = HostClock(None if device is None or str(device) == "cpu" else device)
    if clock is None:
        clock = default_clock(device, None if cache_size is None else cache_size * 2**20)
    if backend == "cupti" and clock.asynchronous:
        from ptxtile.profile.kernel_times import measure_kernels

        found = measure_kernels(fn, clock, warmup, rep, _n_warmup, _n_repeat, flush)
    else:
        found = measure(
            fn, warmup=warmup, rep=rep, calls=_n_repeat, warmup_calls=_n_warmup, flush=flush and backend != "wall",
            clock=clock, graph=backend == "cudagraph", give_up_beyond=early_stop_baseline,
        )  # fmt: skip
    if quantiles is not None:
        return [found.quantile(q) for q in quantiles]
    return found.figure(return_mode)

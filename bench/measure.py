"""Measuring side by side: contenders in one process, order alternated, medians with a 95 % interval, results as JSON.

The card is power-limited and shared machines drift, so only ratios taken in one run mean anything. A measurement is one
launch between two events, or several launches one after another for very short kernels; before it the L2 cache is
overwritten, or not, the same for all contenders. The queue is kept busy, so that host time does not count, unless it
shall (``one_at_a_time``).
"""

from __future__ import annotations

import datetime
import json
import math
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results"
FLUSH_BYTES = 256 * 2**20
"""Several times the 60 MB of L2 of an H200."""
CLOCK = 2e9
"""Cycles a second of a multiprocessor, at most, for the kernel that keeps the queue busy."""
MOST_SLEEP = 0.05
"""Seconds."""


def milliseconds(
    contenders: Mapping[str, Callable[[], object]],
    turns: int = 40,
    warm_up: int = 5,
    flush: bool = True,
    *,
    seconds: float = math.inf,
    launches: Mapping[str, int] | None = None,
    one_at_a_time: bool = False,
) -> dict[str, list[float]]:
    """GPU milliseconds of a launch of each contender, one value a turn. Turns go by pairs: a random order, the same for
    the same number of contenders, and its reverse, so that none gains from its place or its neighbours: a kernel that
    follows one of less power finds a higher clock.

    ``seconds``: no turn begins after so long (there are at least two). ``launches``: how many of a contender's launches
    one measurement spans (1 unless named); only without ``flush``. ``one_at_a_time``: each measurement begins when the
    card has nothing to do, so that the host time of the call counts as well.
    """
    scratch = torch.empty(FLUSH_BYTES if flush else 1, dtype=torch.int8, device="cuda")
    for run in contenders.values():
        for _ in range(warm_up):
            run()
    torch.cuda.synchronize()
    counts = {name: (launches or {}).get(name, 1) for name in contenders}
    assert not flush or set(counts.values()) == {1}, "later launches would find their inputs in the L2 cache"
    times: dict[str, list[float]] = {name: [] for name in contenders}
    started, host = time.perf_counter(), 0.0
    order, shuffled = list(contenders), random.Random(0)
    for turn in range(turns):
        if turn >= 2 and time.perf_counter() - started > seconds:
            break
        if turn % 2 == 0:
            shuffled.shuffle(order)
        else:
            order.reverse()
        events = []
        if not one_at_a_time:
            torch.cuda._sleep(int(min(MOST_SLEEP, 1.5 * host) * CLOCK))
        begun = time.perf_counter()
        for name in order:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            if flush:
                scratch.zero_()
            start.record()
            for _ in range(counts[name]):
                contenders[name]()
            stop.record()
            events.append((name, start, stop))
            if one_at_a_time:
                torch.cuda.synchronize()
        host = time.perf_counter() - begun
        torch.cuda.synchronize()
        if turn == 0 and turns > 1:
            continue  # the host was not timed yet, so that it may have kept the card waiting
        for name, start, stop in events:
            times[name].append(start.elapsed_time(stop) / counts[name])
    return times


def host_milliseconds(
    contenders: Mapping[str, Callable[[], object]], turns: int = 3, seconds: float = math.inf
) -> dict[str, list[float]]:
    """Host milliseconds of a run of each contender, one value a turn; every second turn runs in reverse order."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    started = time.perf_counter()
    for turn in range(turns):
        if turn and time.perf_counter() - started > seconds:
            break
        for name in list(contenders) if turn % 2 == 0 else list(contenders)[::-1]:
            begun = time.perf_counter()
            contenders[name]()
            times[name].append(1e3 * (time.perf_counter() - begun))
    return times


def interval(values: Sequence[float], resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    samples = np.random.default_rng(seed).choice(np.asarray(values), (resamples, len(values)))
    low, high = np.quantile(np.median(samples, axis=1), (0.025, 0.975))
    return float(low), float(high)


def ratio(peer: Sequence[float], ours: Sequence[float]) -> dict[str, Any]:
    """peer time ÷ our time, turn by turn (they ran next to each other): above 1 we are faster."""
    ratios = [p / o for p, o in zip(peer, ours, strict=True)]
    low, high = interval(ratios)
    return {"median": round(statistics.median(ratios), 4), "low": round(low, 4), "high": round(high, 4)}


def environment() -> dict[str, Any]:
    """What a result depends on."""
    import llvmlite
    import llvmlite.binding

    import ptxtile

    found: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "ptxtile": ptxtile.__version__,
        "torch": torch.__version__,
        "llvmlite": llvmlite.__version__,
        "llvm": ".".join(map(str, llvmlite.binding.llvm_version_info)),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": commit(),
    }
    if torch.cuda.is_available():
        from cuda.bindings import driver

        properties = torch.cuda.get_device_properties(0)
        found |= {
            "card": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "driver": driver.cuDriverGetVersion()[1],
        }
    return found


def commit() -> str | None:
    """The revision of the working tree, with a mark when it was changed; None without git."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
        done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def save(name: str, rows: Sequence[Mapping[str, Any]], notes: str = "", folder: Path | None = None) -> Path:
    """Writes ``NAME.json`` in ``folder``, or in bench/results."""
    folder = folder or RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(), "notes": notes, "rows": list(rows)}, indent=1) + "\n")
    return path

"""Measuring side by side: contenders in one process, order alternated, medians with a 95 % interval, results as JSON.

The card is power-limited and shared machines drift, so only ratios taken in one run mean anything. Each measurement is
one launch between two events after the L2 cache has been overwritten; the flush also keeps the queue busy, so that host
time does not count.
"""

from __future__ import annotations

import datetime
import json
import platform
import random
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results"
FLUSH_BYTES = 256 * 2**20
"""Several times the 60 MB of L2 of an H200."""


def milliseconds(
    contenders: Mapping[str, Callable[[], object]], turns: int = 40, warm_up: int = 5, flush: bool = True
) -> dict[str, list[float]]:
    """GPU milliseconds of each contender, one value a turn; every second turn runs in reverse order."""
    scratch = torch.empty(FLUSH_BYTES if flush else 1, dtype=torch.int8, device="cuda")
    for run in contenders.values():
        for _ in range(warm_up):
            run()
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(turns):
        order = list(contenders) if turn % 2 == 0 else list(contenders)[::-1]
        events = []
        for name in order:
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            scratch.zero_()
            start.record()
            contenders[name]()
            stop.record()
            events.append((name, start, stop))
        torch.cuda.synchronize()
        for name, start, stop in events:
            times[name].append(start.elapsed_time(stop))
    return times


def interval(values: Sequence[float], resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(resamples))
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


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


def save(name: str, rows: Sequence[Mapping[str, Any]], notes: str = "") -> Path:
    """Writes ``bench/results/NAME.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"environment": environment(), "notes": notes, "rows": list(rows)}, indent=1) + "\n")
    return path

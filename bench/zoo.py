"""How long 126 distinct kernels of today's models (zoo_kernels.py) take to compile, cold, in worker processes.

Run it on a card's machine:  python bench/zoo.py [--workers 8] [--runs 3]
Without a card (no driver JIT, nothing is written):  python bench/zoo.py --no-card

Each run is a fresh process with CUDA_CACHE_DISABLE=1 and no kernel cache. Its clock starts when torch is imported and,
with a card, has its context; so it spans the import of the compiler, the start of the workers, tracing, lowering, LLVM,
the driver's JIT to machine code, and the way back of everything. Goal: 6 s with 8 workers on 8 cores, driver included.
One more run lets the driver keep the code in an empty folder, and loads all of it in the process that asked for it.
``processor`` is what the compiles took of the processors by step, summed over the kernels, and ``estimate`` the wall
time that follows for as many cores as workers: the start, then the work spread evenly. Writes bench/results/zoo.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
GOAL = 6.0
"""Seconds of wall time, with the driver's JIT."""
ARCHITECTURE = "sm_90a"
"""What is compiled for without a card."""


def child(workers: int, on_card: bool, limit: int, loads: bool) -> dict[str, Any]:
    """One run. ``limit``: at most so many kernels. ``loads``: this process loads all of them in the end."""
    if on_card:
        import torch

        torch.zeros(1, device="cuda")
    started = time.perf_counter()
    import zoo_kernels

    from ptxtile import compiled_programs
    from ptxtile.tune.compile_many import card_for, compiling_pool, take
    from ptxtile.tune.compile_task import CompileOutcome, compile_task, task_of

    with compiling_pool(workers, driver=on_card) as pool:
        ready = pool.submit(os.getpid)
        waiting, traced = [], 0.0
        makers = dict(list(zoo_kernels.zoo().items())[:limit])
        variants = {}
        for name, make in makers.items():
            begun = time.perf_counter()
            variant = variants[name] = make().variant
            card = card_for(variant.target.name) if on_card else None
            task = task_of(variant.tile_program, variant.target, variant.settings.options, card)
            traced += time.perf_counter() - begun
            waiting.append(pool.submit(compile_task, task))
        sent = time.perf_counter() - started
        ready.result()
        first = time.perf_counter() - started
        outcomes: dict[str, CompileOutcome] = {}
        for name, future in zip(makers, waiting, strict=True):
            outcome = outcomes[name] = future.result()
            if outcome.error is not None:
                raise SystemExit(f"{name}: {outcome.error}")
            take(variants[name], outcome)
        wall = time.perf_counter() - started
    if on_card and loads:
        for variant in variants.values():
            variant.executable().load(0)
    loaded = time.perf_counter() - started
    keys = {
        compiled_programs.key_of(v.tile_program, v.target, v.settings.options) for v in variants.values()
    }  # fmt: skip
    steps: dict[str, float] = {}
    for outcome in outcomes.values():
        for step, seconds in (outcome.seconds or {}).items():
            steps[step] = steps.get(step, 0.0) + seconds
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "wall": wall, "kernels": len(outcomes), "distinct": len(keys), "workers": workers,
        "target": next(iter(variants.values())).target.name, "first worker": first, "tracing": traced, "all sent": sent,
        "steps": steps, "slowest": sorted(((sum((o.seconds or {}).values()), n) for n, o in outcomes.items()))[-5:],
        "processor": used.ru_utime + used.ru_stime,
        "machine code": sum("driver" in (o.seconds or {}) for o in outcomes.values()),
        "cores": len(os.sched_getaffinity(0)), "wall, and loaded": loaded,
    }  # fmt: skip


def run_child(workers: int, on_card: bool, limit: int, bytecode: str, driver_cache: str = "") -> dict[str, Any]:
    """``driver_cache``: an empty folder in which the driver keeps code, from where the child loads it in the end; none:
    the driver keeps nothing."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode}
    for variable in ("CUDA_CACHE_DISABLE", "CUDA_CACHE_PATH"):
        environment.pop(variable, None)
    environment |= {"CUDA_CACHE_PATH": driver_cache} if driver_cache else {"CUDA_CACHE_DISABLE": "1"}
    environment |= {"PTXTILE_VERIFY": "0", "PTXTILE_CACHE_MEGABYTES": "0"}
    for variable in ("PYTHONDONTWRITEBYTECODE", "PTXTILE_DUMP"):
        environment.pop(variable, None)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    if not on_card:
        environment |= {"PTXTILE_TARGET": ARCHITECTURE, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__, "--child", "--workers", str(workers), "--limit", str(limit)]
    command += [*([] if on_card else ["--no-card"]), *(["--loads"] if driver_cache else [])]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return json.loads(done.stdout.splitlines()[-1])


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the runs; seconds."""

    def median(name: str) -> float:
        return round(statistics.median(run[name] for run in runs), 3)

    row = {name: runs[0][name] for name in ("kernels", "distinct", "workers", "cores", "target", "machine code")}
    row |= {name: median(name) for name in ("wall", "first worker", "tracing", "all sent", "processor")}
    row["wall, each run"] = [round(run["wall"], 3) for run in runs]
    row["steps"] = {
        step: round(statistics.median(run["steps"].get(step, 0.0) for run in runs), 3) for step in runs[0]["steps"]
    }
    row["estimate"] = round(row["first worker"] + row["processor"] / row["workers"], 3)
    row["slowest"] = {name: round(seconds, 3) for seconds, name in runs[-1]["slowest"]}
    return row


def verdict(row: Mapping[str, Any], on_card: bool) -> str:
    text = f"{row['kernels']} kernels ({row['distinct']} distinct), {row['workers']} workers on {row['cores']} cores"
    text += f": {row['wall']:.2f} s"
    if not on_card:
        return f"{text}, without the driver; about {row['estimate']:.1f} s on {row['workers']} cores"
    return f"{text} (goal {GOAL:g} s): {'met' if row['wall'] <= GOAL else 'missed'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--limit", type=int, default=1000, help="at most so many kernels")
    parser.add_argument("--no-card", action="store_true", help="without the driver's JIT; nothing is written")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--loads", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    on_card = not arguments.no_card
    if arguments.child:
        print(json.dumps(child(arguments.workers, on_card, arguments.limit, arguments.loads)))
        return
    with tempfile.TemporaryDirectory() as bytecode:
        run_child(1, on_card, 14, bytecode)  # leaves the bytecode, as an installation does
        runs = [run_child(arguments.workers, on_card, arguments.limit, bytecode) for _ in range(arguments.runs)]
        row = summary(runs)
        if on_card:
            with tempfile.TemporaryDirectory() as kept:
                last = run_child(arguments.workers, on_card, arguments.limit, bytecode, kept)
            row["with an empty cache of the driver"] = {
                name: round(last[name], 3) for name in ("wall", "wall, and loaded")
            }  # fmt: skip
    print(json.dumps(row, indent=1))
    print(verdict(row, on_card))
    if not on_card:
        print("nothing is written without a card")
        return
    from measure import save

    notes = f"seconds, medians of {arguments.runs} fresh processes, CUDA_CACHE_DISABLE=1, no kernel cache"
    print("written to", save("zoo", [row], notes))


if __name__ == "__main__":
    main()

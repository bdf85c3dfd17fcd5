"""A fresh process that calls a GEMM compiled by an earlier one: from the import of ptxtile to its first launch done.

Run it on a card's machine:  python bench/warm_start.py [--processes 9]
Without a card (no module is loaded, nothing is launched or written):  python bench/warm_start.py --no-card

The clock starts when torch is imported, the CUDA context made and the operands are there. One unrecorded process fills
ptxtile's cache and the driver's, both in folders of this run, and leaves the bytecode, as an installation does.
Reported are medians over the processes, in milliseconds. Writes bench/results/warm_start.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compile_time import ARCHITECTURE, KERNELS, ROOT, median, timed

GOAL_ALL, GOAL_LOAD = 150.0, 5.0
"""Milliseconds from the import to the first launch done, and of loading the kernel in it."""
SIZE = 4096
NAMES = [name for name in KERNELS if name.startswith("gemm")]


def child(name: str, on_card: bool) -> dict[str, Any]:
    """One process's work: seconds by step."""
    import torch

    module, function, arguments = KERNELS[name]
    python = {key: value for key, value in arguments.items() if key not in ("M", "N", "K")}
    operands = []
    if on_card:
        operands = [torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        torch.cuda.synchronize()
    sys.path.insert(0, str(ROOT / "examples"))
    started = time.perf_counter()
    _, imports = timed(lambda: [importlib.import_module(name) for name in ("ptxtile", "ptxtile.language")])
    kernel, example = timed(lambda: getattr(importlib.import_module(module), function))
    result: dict[str, Any] = {"kernel": name, "imports": imports, "the kernel's file": example, "load": 0.0}
    if on_card:
        from ptxtile.runtime import module as modules

        load = modules.load

        def timed_load(*args: Any, **options: Any) -> Any:
            loaded, result["load"] = timed(lambda: load(*args, **options))
            return loaded

        modules.load = timed_load

        def first_call() -> Any:
            found = kernel(*operands, **python)
            torch.cuda.synchronize()
            return found

        product, result["first call"] = timed(first_call)
        result["all"] = time.perf_counter() - started
        wanted = operands[0].float() @ operands[1].float().T
        result["right"] = bool((product.float() - wanted).norm() < 4e-3 * wanted.norm())
    else:
        _, result["first call"] = timed(lambda: kernel.specialize(**arguments).variant.executable())
        result["all"] = time.perf_counter() - started
        result["right"] = True
    result["compiled here"] = "llvmlite" in sys.modules
    return result


def run_child(name: str, on_card: bool, folder: Path) -> dict[str, Any]:
    environment = {
        **os.environ, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PTXTILE_CACHE_DIR": str(folder / "ptxtile"),
        "CUDA_CACHE_PATH": str(folder / "driver"), "CUDA_CACHE_DISABLE": "0", "PTXTILE_VERIFY": "0",
    }  # fmt: skip
    for variable in ("PYTHONDONTWRITEBYTECODE", "PTXTILE_DUMP", "PTXTILE_CACHE_MEGABYTES", "PTXTILE_SIM"):
        environment.pop(variable, None)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    if not on_card:
        environment |= {"PTXTILE_TARGET": ARCHITECTURE, "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__, "--child", name, *([] if on_card else ["--no-card"])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def summary(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row of one kernel; milliseconds."""
    assert all(run["right"] for run in runs), f"{name} is wrong"
    assert not any(run["compiled here"] for run in runs), f"{name} was compiled again"
    row: dict[str, Any] = {"kernel": name, "processes": len(runs)}
    row |= {step: median([run[step] for run in runs]) for step in runs[0] if isinstance(runs[0][step], float)}
    return row | {"all, range": [round(1e3 * limit(run["all"] for run in runs), 1) for limit in (min, max)]}


def verdict(row: Mapping[str, Any]) -> str:
    met = row["all"] <= GOAL_ALL and row["load"] <= GOAL_LOAD
    text = f"{row['kernel']}: import to first launch done {row['all']:.0f} ms (goal {GOAL_ALL:.0f})"
    return f"{text}, of it loading the kernel {row['load']:.1f} ms (goal {GOAL_LOAD:.0f}): {'met' if met else 'missed'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--processes", type=int, default=9, help="for each kernel")
    parser.add_argument("--no-card", action="store_true", help="nothing is loaded, launched or written")
    parser.add_argument("--child", metavar="KERNEL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    on_card = not arguments.no_card
    if arguments.child:
        print(json.dumps(child(arguments.child, on_card)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            run_child(name, on_card, Path(folder))
        runs = [[run_child(name, on_card, Path(folder)) for name in NAMES] for _ in range(arguments.processes)]
    for name, found in zip(NAMES, zip(*runs, strict=True), strict=True):
        rows.append(summary(name, found))
        print(rows[-1])
        print(verdict(rows[-1]) if on_card else "nothing is written without a card")
    if on_card:
        from measure import save

        notes = "milliseconds, medians of fresh processes; torch's import, the context and the operands come before"
        print("written to", save("warm_start", rows, notes))


if __name__ == "__main__":
    main()

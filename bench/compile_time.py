"""How long a cold compile takes, step by step, in fresh processes: an elementwise kernel and GEMMs.

Run it on a card's machine:  python bench/compile_time.py [--processes 9] [--kernels gemm …]
Without a card (no driver JIT, nothing is written):  python bench/compile_time.py --no-card

Each process compiles one kernel, its first. Before the clock starts it has imported torch and, with a card, made the
CUDA context; CUDA_CACHE_DISABLE=1, so that the driver really compiles. Imports have times of their own: of the
compiler, of llvmlite and of the CUDA bindings. An unrecorded process comes first and leaves the bytecode, as an
installation does. Kernels take turns. Reported are medians over the processes; ``trace`` holds the rewriting of the
source, too. Writes bench/results/compile_time.json.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
COMPILER = (
    "kernel", "frontend.frame_tracer", "lower.pipeline", "nvvm.emission", "runtime.arguments", "runtime.call_plan",
)  # fmt: skip
KERNELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "elementwise add, 1024²": ("elementwise_add", "elementwise_add", {"M": 1024, "N": 1024}),
    "gemm, 4096³": ("gemm", "gemm", {"M": 4096, "N": 4096, "K": 4096, "block_N": 256, "num_stages": 4}),
    "gemm, persistent, 4096³": (
        "gemm_persistent", "gemm_persistent",
        {"M": 4096, "N": 4096, "K": 4096, "block_N": 256, "num_stages": 4, "sms": 132},
    ),
}  # fmt: skip
"""By name: the example's module, the function, sizes and Python arguments. All in bfloat16 but the first."""
GROUPS = ("trace", "passes", "LLVM")
GOAL_OURS, GOAL_ALL = 120.0, 350.0
"""Milliseconds of a cold GEMM: trace + passes + LLVM, and with the driver's JIT."""
ARCHITECTURE = "sm_90a"
"""What is compiled for without a card."""


def timed(action: Callable[[], Any]) -> tuple[Any, float]:
    started = time.perf_counter()
    result = action()
    return result, time.perf_counter() - started


def child(name: str, on_card: bool) -> dict[str, Any]:
    """One process's work: seconds by step."""
    import torch

    if on_card:
        torch.zeros(1, device="cuda")
    result: dict[str, Any] = {"kernel": name, "imports": {}}
    for what, modules in (
        ("ptxtile", ["ptxtile"]),
        ("the compiler", [f"ptxtile.{module}" for module in COMPILER]),
        ("llvmlite", ["llvmlite.binding"]),
        *([("the CUDA bindings", ["cuda.bindings.driver"])] if on_card else []),
    ):
        _, result["imports"][what] = timed(lambda modules=modules: [importlib.import_module(m) for m in modules])
    sys.path.insert(0, str(ROOT / "examples"))
    module, function, arguments = KERNELS[name]
    example = importlib.import_module(module)
    from ptxtile.compiler import grouped

    started = time.perf_counter()
    kernel = getattr(example, function).compile(**arguments)
    result["compile"] = time.perf_counter() - started
    if on_card:
        executable = kernel.variant.executable()
        _, result["driver JIT"] = timed(lambda: executable.load(torch.cuda.current_device()))
        (figures,) = executable.resources(torch.cuda.current_device()).values()
        result["registers"], result["spilled"] = figures.registers, figures.spill_stores
    result["wall"] = time.perf_counter() - started
    result["target"] = kernel.target.name
    groups = grouped(kernel.timings)
    result |= {group: sum(groups[group].values()) for group in GROUPS}
    result["steps"] = {group: groups[group] for group in GROUPS}
    return result


def run_child(name: str, on_card: bool, bytecode: str) -> dict[str, Any]:
    environment = {**os.environ, "CUDA_CACHE_DISABLE": "1", "PYTHONPYCACHEPREFIX": bytecode}
    environment |= {"PTXTILE_VERIFY": "0", "PTXTILE_CACHE_MEGABYTES": "0"}
    for variable in ("PYTHONDONTWRITEBYTECODE", "PTXTILE_DUMP"):
        environment.pop(variable, None)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    if not on_card:
        environment["PTXTILE_TARGET"] = ARCHITECTURE
        environment["CUDA_VISIBLE_DEVICES"] = ""
    command = [sys.executable, __file__, "--child", name, *([] if on_card else ["--no-card"])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def median(values: Sequence[float]) -> float:
    """In milliseconds."""
    return round(1e3 * statistics.median(values), 1)


def summary(name: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The row of one kernel; milliseconds."""
    row: dict[str, Any] = {"kernel": name, "target": runs[0]["target"], "processes": len(runs)}
    row |= {group: median([run[group] for run in runs]) for group in GROUPS}
    ours = [sum(run[group] for group in GROUPS) for run in runs]
    row["trace + passes + LLVM"] = median(ours)
    row["trace + passes + LLVM, range"] = [round(1e3 * min(ours), 1), round(1e3 * max(ours), 1)]
    if "driver JIT" in runs[0]:
        row["driver JIT"] = median([run["driver JIT"] for run in runs])
        row["with driver JIT"] = median([sum(run[group] for group in (*GROUPS, "driver JIT")) for run in runs])
        row |= {figure: runs[0][figure] for figure in ("registers", "spilled")}
    row["wall"] = median([run["wall"] for run in runs])
    row["imports"] = {what: median([run["imports"][what] for run in runs]) for what in runs[0]["imports"]}
    row["steps"] = {
        group: {step: round(1e3 * statistics.median(run["steps"][group][step] for run in runs), 2) for step in steps}
        for group, steps in runs[0]["steps"].items()
    }
    return row


def verdicts(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each GEMM: its time against the goals."""
    lines = []
    for row in rows:
        if not row["kernel"].startswith("gemm"):
            continue
        text = f"{row['kernel']}: trace + passes + LLVM {row['trace + passes + LLVM']:.0f} ms (goal {GOAL_OURS:.0f})"
        met = row["trace + passes + LLVM"] <= GOAL_OURS
        if "with driver JIT" in row:
            text += f", with driver JIT {row['with driver JIT']:.0f} ms (goal {GOAL_ALL:.0f})"
            met &= row["with driver JIT"] <= GOAL_ALL
        lines.append(f"{text}: {'met' if met else 'missed'}")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=9, help="for each kernel")
    parser.add_argument("--kernels", nargs="+", default=[], metavar="TEXT", help="those with one of these in the name")
    parser.add_argument("--no-card", action="store_true", help="without the driver's JIT; nothing is written")
    parser.add_argument("--child", metavar="KERNEL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(arguments.child, not arguments.no_card)))
        return
    names = [name for name in KERNELS if any(text in name for text in arguments.kernels or [""])]
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as bytecode:
        for name in names:
            run_child(name, not arguments.no_card, bytecode)
        for _ in range(arguments.processes):
            for name in names:
                runs[name].append(run_child(name, not arguments.no_card, bytecode))
    rows = [summary(name, found) for name, found in runs.items()]
    for row in rows:
        print({key: value for key, value in row.items() if key != "steps"})
    print("\n".join(verdicts(rows)))
    if arguments.no_card:
        print("nothing is written without a card")
        return
    from measure import save

    notes = f"milliseconds, medians of {arguments.processes} fresh processes, CUDA_CACHE_DISABLE=1"
    print("written to", save("compile_time", rows, notes))


if __name__ == "__main__":
    main()

"""How long a cold compile takes on a card's machine, step by step, in fresh processes.

Run it:  python bench/compile_time.py [--processes 7] [--kernels add gemm] [--results FOLDER]

Each process has torch imported and the CUDA context made before the clock starts, and CUDA_CACHE_DISABLE=1, so that the
driver really compiles. It then imports what a compile needs (*import*), compiles and loads a first and a second kernel:
of the float32 add its factory and its eager form, of the bfloat16 GEMM (8192x8192x8192) the persistent and the plain
one. Reported are medians over the processes of trace, passes, LLVM and driver JIT for each kernel. Writes
compile_time.json in bench/results or the folder.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHILD = "--child"
KERNELS = ("add", "gemm")
ROOT = Path(__file__).resolve().parents[1]


def builders(kernels: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Calls that trace and compile the first and the second kernel."""
    sys.path.insert(0, str(ROOT / "examples"))
    if kernels == "add":
        import elementwise_add as example

        return lambda: example.elementwise_add_factory(1024, 1024), lambda: example.elementwise_add.compile(
            M=1024, N=1024
        )
    import gemm
    import gemm_persistent

    sizes = {"M": 8192, "N": 8192, "K": 8192}
    return lambda: gemm_persistent.gemm_persistent.compile(**sizes, sms=132), lambda: gemm.gemm.compile(**sizes)


def timed(action):
    started = time.perf_counter()
    result = action()
    return result, time.perf_counter() - started


def import_everything() -> None:
    import importlib

    for name in (
        "kernel",
        "lower.pipeline",
        "nvvm.emission",
        "runtime.executable",
        "runtime.arguments",
        "runtime.driver",
    ):
        importlib.import_module(f"ptxtile.{name}")
    importlib.import_module("llvmlite.binding")
    importlib.import_module("cuda.bindings.driver")


def child(kernels: str) -> None:
    import torch

    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
    _, bare = timed(lambda: __import__("ptxtile"))
    _, needed = timed(import_everything)
    result = {"import ptxtile": bare, "import what a compile needs": needed, "kernels": []}
    for build in builders(kernels):
        kernel, traced = timed(build)
        _, total = timed(lambda kernel=kernel: kernel.ptx)
        executable = kernel.variant.executable()
        jit = timed(lambda executable=executable: executable.load(0))[1] if torch.cuda.is_available() else 0.0
        steps = kernel.timings
        llvm = sum(seconds for name, seconds in steps.items() if name.startswith("llvm ") and name != "llvm import")
        trace = steps["trace"]
        passes = sum(seconds for name, seconds in steps.items() if not name.startswith("llvm ") and name != "trace")
        result["kernels"].append(
            {"trace": trace, "passes": passes, "LLVM": llvm, "driver JIT": jit, "wall": traced + total + jit}
        )
    print(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=7)
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    parser.add_argument("--results", type=Path, help="folder to write to")
    arguments = parser.parse_args()
    rows = [row for kernels in arguments.kernels for row in measured(kernels, arguments.processes)]
    for row in rows:
        print(row)
    sys.path.insert(0, str(ROOT))
    from measure import save

    notes = f"medians of {arguments.processes} fresh processes, CUDA_CACHE_DISABLE=1"
    print("written to", save("compile_time", rows, notes, arguments.results))


def measured(kernels: str, count: int) -> list[dict[str, Any]]:
    path = os.pathsep.join(part for part in (str(ROOT), os.environ.get("PYTHONPATH")) if part)
    environment = os.environ | {"CUDA_CACHE_DISABLE": "1", "PYTHONPATH": path}
    runs = []
    for _ in range(count):
        done = subprocess.run(
            [sys.executable, __file__, CHILD, kernels], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        runs.append(json.loads(done.stdout.splitlines()[-1]))

    def median(values) -> float:
        return round(1e3 * statistics.median(values), 1)

    rows: list[dict[str, Any]] = [
        {"kernels": kernels, "step": key, "milliseconds": median(run[key] for run in runs)} for key in list(runs[0])[:2]
    ]
    for number, which in enumerate(("first kernel", "second kernel")):
        steps = {key: median(run["kernels"][number][key] for run in runs) for key in runs[0]["kernels"][0]}
        ours = median(sum(run["kernels"][number][key] for key in ("trace", "passes", "LLVM")) for run in runs)
        rows.append({"kernels": kernels, "step": which, "milliseconds": ours, "of": "trace + passes + LLVM", **steps})
    return rows


if __name__ == "__main__":
    child(sys.argv[-1]) if CHILD in sys.argv else main()

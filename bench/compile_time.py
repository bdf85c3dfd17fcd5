"""How long a cold compile takes on a card's machine, step by step, in fresh processes.

Run it:  python bench/compile_time.py [--processes 7]

Each process has torch imported and the CUDA context made before the clock starts, and CUDA_CACHE_DISABLE=1, so that the
driver really compiles. It then imports what a compile needs (*import*), compiles and loads a first and a second kernel.
Reported are medians over the processes of trace, passes, LLVM and driver JIT for each kernel. Writes
bench/results/compile_time.json.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

CHILD = "--child"


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


def child() -> None:
    import torch

    torch.zeros(1, device="cuda")
    _, bare = timed(lambda: __import__("ptxtile"))
    _, needed = timed(import_everything)
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
    import elementwise_add as example

    # The factory form and the eager form: two different kernels.
    result = {"import ptxtile": bare, "import what a compile needs": needed, "kernels": []}
    for build in (
        lambda: example.elementwise_add_factory(1024, 1024),
        lambda: example.elementwise_add.compile(M=1024, N=1024),
    ):
        kernel, traced = timed(build)
        _, total = timed(lambda kernel=kernel: kernel.ptx)
        executable = kernel.variant.executable()
        _, jit = timed(lambda executable=executable: executable.load(0))
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
    count = parser.parse_args().processes
    environment = os.environ | {"CUDA_CACHE_DISABLE": "1"}
    runs = []
    for _ in range(count):
        done = subprocess.run(
            [sys.executable, __file__, CHILD], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(done.stderr)
        runs.append(json.loads(done.stdout.splitlines()[-1]))

    def median(values) -> float:
        return round(1e3 * statistics.median(values), 1)

    rows = [{"step": key, "milliseconds": median(run[key] for run in runs)} for key in list(runs[0])[:2]]
    for number, which in enumerate(("first kernel", "second kernel")):
        steps = {key: median(run["kernels"][number][key] for run in runs) for key in runs[0]["kernels"][0]}
        ours = median(sum(run["kernels"][number][key] for key in ("trace", "passes", "LLVM")) for run in runs)
        rows.append({"step": which, "milliseconds": ours, "of": "trace + passes + LLVM", **steps})
    for row in rows:
        print(row)
    from measure import save

    print("written to", save("compile_time", rows, f"medians of {count} fresh processes, CUDA_CACHE_DISABLE=1"))


if __name__ == "__main__":
    child() if CHILD in sys.argv else main()

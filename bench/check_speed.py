"""How long the checker takes: every example at the sizes of its tests, and a product without tensor cores.

Run it:  python bench/check_speed.py [gemm …] [--schedules 2] [--repeats 3]      (needs no card)

Seconds of CPU of one thread; the kernel is compiled and numba's code loaded before the clock starts. Beside them: the
plain simulator's time for the same call, once. The least of some repeats counts, since other work on the machine slows
both. What numba costs is a row of its own, in a process of its own: its first compile on a machine, and the import
from then on, when its code lies on disk (cache=True). Writes bench/results/check_speed.json when all cases run.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import ptxtile  # noqa: E402
import ptxtile.language as T  # noqa: E402
from ptxtile import sim  # noqa: E402
from tests.examples.cases import CHECKS, Check, module  # noqa: E402

Call = tuple[Any, Mapping[str, torch.Tensor], Mapping[str, Any]]
GOAL = 2.0
"""Seconds of CPU that the check of one of an example's calls may take; all but one have one or two."""
GOAL_WITHOUT_TENSOR_CORES = 10.0
"""Times the plain simulator's time that one schedule of a product without tensor cores may take."""
PRODUCTS = ((128, 128, 64), (256, 256, 64))
"""M, N, K of products of int32 matrices, which no tensor core multiplies."""


@ptxtile.jit
def product(A, B, block=128, block_K=16):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.int32)
    B: T.Tensor((K, N), T.int32)
    C = T.empty((M, N), T.int32)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=128) as (bx, by):
        left, right = T.alloc_shared((block, block_K), T.int32), T.alloc_shared((block_K, block), T.int32)
        total = T.alloc_fragment((block, block), T.int32)
        T.clear(total)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=1):
            T.copy(A[by * block, k * block_K], left)
            T.copy(B[k * block_K, bx * block], right)
            T.gemm(left, right, total)
        T.copy(total, C[by * block, bx * block])
    return C


def calls_of(run: Callable[[], object], target: str) -> list[Call]:
    """The simulated calls that ``run`` makes, with their arguments as they were."""
    found: list[Call] = []
    real = sim.run

    def take(program: Any, tensors: Mapping[str, Any], scalars: Mapping[str, Any], **options: Any) -> None:
        found.append((program, {name: tensor.clone() for name, tensor in tensors.items()}, scalars))
        real(program, tensors, scalars, **options)

    sim.run = take
    os.environ["PTXTILE_TARGET"] = target
    torch.manual_seed(0)
    try:
        run()
    finally:
        sim.run = real
    return found


def seconds(action: Callable[[], object], repeats: int) -> float:
    """The least CPU time of some runs."""
    times = []
    for _ in range(repeats):
        started = time.process_time()
        action()
        times.append(time.process_time() - started)
    return min(times)


def measured(calls: Sequence[Call], schedules: int, repeats: int) -> dict[str, Any]:
    from ptxtile.sim.check.run import check
    from ptxtile.sim.launch import run

    findings = 0

    def checked() -> None:
        nonlocal findings
        findings = sum(len(check(*call, seeds=range(schedules)).findings) for call in calls)

    slow = seconds(checked, repeats)
    plain = seconds(lambda: [run(*call) for call in calls], repeats)
    return {
        "calls": len(calls), "schedules": schedules, "check": round(slow, 3), "plain simulator": round(plain, 4),
        "plain simulators a schedule": round(slow / schedules / plain, 1), "findings": findings,
    }  # fmt: skip


def example_row(case: Check, schedules: int, repeats: int) -> dict[str, Any]:
    calls = calls_of(lambda: module(case.example).check(*case.sizes, device="cpu", **case.options), case.target)
    named = {"example": case.example, "target": case.target, "sizes": list(case.sizes), "options": case.options}
    return named | measured(calls, schedules, repeats) | {"goal": GOAL}


def product_row(m: int, n: int, k: int, schedules: int, repeats: int) -> dict[str, Any]:
    a, b = (torch.randint(-9, 9, size, dtype=torch.int32) for size in ((m, k), (k, n)))
    calls = calls_of(lambda: product(a, b), "sm_80")
    named = {"example": "product without tensor cores", "target": "sm_80", "sizes": [m, n, k], "options": {}}
    return named | measured(calls, schedules, repeats)


def numba_rows() -> Iterator[dict[str, Any]]:
    """Seconds of CPU to import the checker in a fresh process: numba compiles, then numba loads what it compiled."""
    code = "import time, torch, ptxtile.sim.launch as s; t = time.process_time(); import ptxtile.sim.check.run; "
    code += "print(time.process_time() - t)"
    with tempfile.TemporaryDirectory() as folder:
        for what in ("compile", "load from disk"):
            environment = {**os.environ, "NUMBA_CACHE_DIR": folder, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
            )
            yield {"numba": what, "check": round(float(done.stdout), 3)}


def show(row: Mapping[str, Any]) -> None:
    if "numba" in row:
        print(f"numba, {row['numba']}: {row['check']:.2f} s", flush=True)
        return
    options = "".join(f" {name}={value}" for name, value in row["options"].items())
    name = f"{row['example']} {row['sizes']}{options} for {row['target']}"
    print(
        f"{name:86s} {row['check']:6.2f} s for {row['calls']} × {row['schedules']}, "
        f"plain {row['plain simulator']:6.3f} s, "
        f"{row['plain simulators a schedule']:5.1f} ×" + (f"  {row['findings']} FINDINGS" if row["findings"] else ""),
        flush=True,
    )


def missed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What took longer than the goals say, or was reported."""
    said = []
    for row in rows:
        if "numba" in row:
            continue
        name = f"{row['example']} {row['sizes']} for {row['target']}"
        if row["findings"]:
            said.append(f"{name}: {row['findings']} findings")
        if "goal" in row and row["check"] / row["calls"] > row["goal"]:
            said.append(f"{name}: {row['check']} s for {row['calls']} calls, over {row['goal']} s for each")
        if "goal" not in row and row["plain simulators a schedule"] > GOAL_WITHOUT_TENSOR_CORES:
            said.append(f"{name}: {row['plain simulators a schedule']} times the plain simulator")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("examples", nargs="*", help="parts of the names of cases; all without any")
    parser.add_argument("--schedules", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--results", type=Path, help="the folder of the JSON file, for a part of the cases too")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for row in _rows(arguments.examples, arguments.schedules, arguments.repeats):
        show(row)
        rows.append(row)
    for text in missed(rows):
        print("MISSED:", text)
    if not arguments.examples or arguments.results:
        from measure import save

        notes = f"seconds of CPU of one thread, the least of {arguments.repeats}; numba's import apart"
        print(save("check_speed", rows, notes, arguments.results))
    return 1 if missed(rows) else 0


def _rows(parts: Sequence[str], schedules: int, repeats: int) -> Iterator[dict[str, Any]]:
    def wanted(name: str) -> bool:
        return not parts or any(part in name for part in parts)

    if wanted("numba"):
        yield from numba_rows()
    for case in CHECKS:
        if wanted(case.name):
            yield example_row(case, schedules, repeats)
    for sizes in PRODUCTS:
        if wanted("product"):
            yield product_row(*sizes, schedules, repeats)


if __name__ == "__main__":
    sys.exit(main())

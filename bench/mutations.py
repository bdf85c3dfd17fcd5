"""How many faults of synchronization the checker finds: mutants of the lowered examples, and how many it reports.

Run it:  python bench/mutations.py [gemm …] [--targets sm_90a …] [--seeds 6] [--jobs 2]

A mutant lacks one barrier, fence, wait, arrival or commit of a program, or has it weaker, or a wrong count, parity or
number of bytes (ptxtile/sim/check/mutations.py). It is *killed* when the checker reports anything. One that is not
reported is *equivalent* when the checker's own happens-before order shows that the piece was not needed
(ptxtile/sim/check/equivalence.py), or set aside by hand, with the reason in SET_ASIDE. The kill rate is of the others.
The unmutated programs run first and must have no findings. Writes bench/results/mutations.json when all cases run.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutation_cases import CASES, TARGETS, Case, runs_of

SET_ASIDE: dict[tuple[str, str], str] = {}
"""(example, words of the mutant) → why it is no fault although nothing shows it."""

PIECE = 8
"""Mutants that a worker process takes at once."""


def judge_some(case: Case, program: int, numbers: Sequence[int], seeds: int) -> list[dict[str, Any]]:
    """The verdicts on the mutants ``numbers`` of a case's program."""
    from ptxtile.sim.check.equivalence import judge
    from ptxtile.sim.check.mutations import mutants

    run = runs_of(case)[program]
    wanted, rows = set(numbers), []
    for number, mutant in enumerate(mutants(run.program)):
        if number in wanted:
            started = time.process_time()
            verdict = judge(mutant, run.program, run.tensors, run.scalars, range(seeds))
            row = {"mutant": mutant.what, "fate": verdict.fate.value, "seconds": time.process_time() - started}
            if mutant.location is not None:
                row["line"] = mutant.location.line
            if verdict.finding is not None:
                row["rule"] = verdict.finding.rule
            reason = SET_ASIDE.get((case.example, mutant.what))
            if verdict.fate.value == "survived" and reason is not None:
                row["fate"] = "set aside"
            row["reason"] = reason or verdict.reason
            rows.append(row)
    return rows


def findings_of(case: Case, seeds: int) -> tuple[list[str], float]:
    """What the checker finds in the unmutated programs, and the seconds of a schedule."""
    from ptxtile.sim.check.run import check

    started, found = time.process_time(), []
    for run in runs_of(case):
        report = check(run.program, run.tensors, run.scalars, seeds=range(seeds))
        found += [str(finding) for finding in report.findings]
    return found, (time.process_time() - started) / seeds


def pieces(case: Case) -> list[tuple[int, tuple[int, ...]]]:
    """(program, numbers of mutants) of a case, cut into pieces."""
    from ptxtile.sim.check.mutations import mutants

    cut = []
    for number, run in enumerate(runs_of(case)):
        count = sum(1 for _ in mutants(run.program))
        cut += [(number, tuple(range(first, min(first + PIECE, count)))) for first in range(0, count, PIECE)]
    return cut


def measure(case: Case, seeds: int, clean_seeds: int, spread: Callable[..., Iterable[Any]]) -> dict[str, Any]:
    """The record of a case. ``spread``: ``map``, or that of a pool of processes."""
    started = time.perf_counter()
    found, seconds = findings_of(case, clean_seeds)
    parts = pieces(case)
    programs, numbers = [part[0] for part in parts], [part[1] for part in parts]
    count = len(parts)
    rows = [row for some in spread(judge_some, [case] * count, programs, numbers, [seeds] * count) for row in some]
    fates = Counter(row["fate"] for row in rows)
    return {
        "case": case.name, "example": case.example, "target": case.target, "mutants": len(rows),
        "killed": fates["killed"], "equivalent": fates["equivalent"], "set aside": fates["set aside"],
        "survived": fates["survived"], "rules": dict(Counter(row["rule"] for row in rows if "rule" in row)),
        "false reports": found, "schedules without mutation": clean_seeds, "seconds of a schedule": round(seconds, 2),
        "seconds": round(time.perf_counter() - started, 1),
        "not killed": [{k: v for k, v in row.items() if k != "seconds"} for row in rows if row["fate"] != "killed"],
    }  # fmt: skip


def rate(row: dict[str, Any]) -> float:
    judged = row["killed"] + row["survived"]
    return row["killed"] / judged if judged else 1.0


def show(row: dict[str, Any]) -> None:
    line = f"{row['case']:34s} {row['mutants']:4d} mutants {row['killed']:4d} killed {row['equivalent']:3d} equivalent "
    line += f"{row['set aside']:2d} set aside {row['survived']:2d} survived  {rate(row):6.1%}"
    print(f"{line}  {row['seconds of a schedule']:5.2f} s a schedule, {row['seconds']:.0f} s", flush=True)
    for text in row["false reports"]:
        print("  REPORTED WITHOUT MUTATION:", text, flush=True)
    for mutant in row["not killed"]:
        if mutant["fate"] == "survived":
            print(f"  SURVIVED: {mutant['mutant']} (line {mutant.get('line')}): {mutant['reason']}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("examples", nargs="*", help="parts of the names of cases; all without any")
    parser.add_argument("--targets", nargs="*", default=TARGETS, choices=TARGETS)
    parser.add_argument("--seeds", type=int, default=6, help="schedules in which a mutant may hide")
    parser.add_argument("--clean-seeds", type=int, default=20, help="schedules of each unmutated program")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    arguments = parser.parse_args()
    chosen = [
        case
        for case in CASES
        if case.target in arguments.targets
        and (not arguments.examples or any(part in case.name for part in arguments.examples))
    ]
    rows = []
    with ProcessPoolExecutor(arguments.jobs, mp_context=get_context("spawn")) as pool:
        for case in chosen:
            spread = map if arguments.jobs == 1 else pool.map
            rows.append(measure(case, arguments.seeds, arguments.clean_seeds, spread))
            show(rows[-1])
    total = {key: sum(row[key] for row in rows) for key in ("mutants", "killed", "equivalent", "set aside", "survived")}
    print(f"all: {total}, kill rate {rate(total):.2%}, set aside {total['set aside'] / max(1, total['mutants']):.1%}")
    if len(chosen) == len(CASES):
        from measure import save

        print(save("mutations", rows, f"{arguments.seeds} schedules for each mutant"))
    return 1 if total["survived"] or any(row["false reports"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

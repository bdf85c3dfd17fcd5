"""How many faults of synchronization the checker finds: mutants of the lowered examples, and how many it reports.

Run it:  python bench/mutations.py [gemm …] [--targets sm_90a …] [--seeds 6] [--jobs 2] [--resume]

A mutant lacks one barrier, fence, wait, arrival or commit of a program, or has it weaker, or a wrong count, parity or
number of bytes (ptxtile/sim/check/mutations.py). It is *killed* when the checker reports anything. One that is not
reported is *equivalent* when the checker's own happens-before order shows that the piece was not needed
(ptxtile/sim/check/equivalence.py), or set aside by hand, with the reason in SET_ASIDE. The kill rate is of the others.
The unmutated programs run under more schedules and must have no findings.

Each case is a row of bench/results/mutations.json, written when the case is done; rows of cases that were not chosen
stay. ``--resume`` keeps the rows whose programs and schedules are those of this run, so that what was cut goes on.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from measure import RESULTS, commit, environment
from mutation_cases import CASES, TARGETS, Case, runs_of

FILE = RESULTS / "mutations.json"

SET_ASIDE: dict[tuple[str, str], str] = {}
"""(case, words of the mutant) → why it is no fault although nothing shows it."""

PIECE, CLEAN_PIECE = 4, 5
"""Mutants, or schedules of an unmutated program, that a worker process takes at once."""

MOST_SECONDS = 600
"""For one mutant; one that takes longer counts as one that survived."""

FATES = ("killed", "equivalent", "set aside", "survived")


@dataclass(frozen=True)
class Piece:
    """``numbers``: of mutants of the case's program number ``program``, or seeds of all of its programs unmutated."""

    case: Case
    mutated: bool
    numbers: tuple[int, ...]
    program: int = 0


def carry_out(piece: Piece, seeds: int) -> list[dict[str, Any]]:
    """The verdicts on mutants, or one record of the findings in unmutated programs."""
    import torch

    torch.set_num_threads(1)
    return _judge(piece, seeds) if piece.mutated else [_findings(piece)]


def _findings(piece: Piece) -> dict[str, Any]:
    from ptxtile.sim.check.run import check

    started, found = time.process_time(), []
    for run in runs_of(piece.case):
        for seed in piece.numbers:
            report = check(run.program, run.tensors, run.scalars, seeds=range(seed, seed + 1), strict=True)
            found += [f"{run.program.name}, seed {seed}: {finding}" for finding in report.findings]
    return {"found": found, "schedules": len(piece.numbers), "seconds": time.process_time() - started}


def _judge(piece: Piece, seeds: int) -> list[dict[str, Any]]:
    from ptxtile.sim.check.equivalence import Fate, Verdict, judge
    from ptxtile.sim.check.mutations import mutants

    run = runs_of(piece.case)[piece.program]
    wanted, rows = set(piece.numbers), []
    for number, mutant in enumerate(mutants(run.program)):
        if number not in wanted:
            continue
        started = time.process_time()
        try:
            with _limit(MOST_SECONDS):
                verdict = judge(mutant, run.program, run.tensors, run.scalars, range(seeds))
        except TimeoutError:
            verdict = Verdict(Fate.SURVIVED, f"the checker did not end within {MOST_SECONDS} s")
        row: dict[str, Any] = {"mutant": mutant.what, "fate": verdict.fate.value}
        row["seconds"] = round(time.process_time() - started, 2)
        if mutant.location is not None:
            row["line"] = mutant.location.line
        if verdict.finding is not None:
            row |= {"rule": verdict.finding.rule, "seed": verdict.finding.seed}
        else:
            reason = SET_ASIDE.get((piece.case.name, mutant.what))
            if verdict.fate is Fate.SURVIVED and reason is not None:
                row["fate"] = "set aside"
            row["reason"] = reason or verdict.reason
        rows.append(row)
    return rows


class _limit:
    """Raises TimeoutError inside when it takes longer than ``seconds`` by the clock on the wall."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, self.seconds)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _raise(self, *_: object) -> None:
        raise TimeoutError


# The parent process ---------------------------------------------------------------------------------------------------


def pieces(case: Case, clean_seeds: int) -> Iterator[Piece]:
    """What there is to do for a case: its programs without a change first."""
    from ptxtile.sim.check.mutations import mutants

    for numbers in _cut(clean_seeds, CLEAN_PIECE):
        yield Piece(case, False, numbers)
    for program, run in enumerate(runs_of(case)):
        for numbers in _cut(sum(1 for _ in mutants(run.program)), PIECE):
            yield Piece(case, True, numbers, program)


def _cut(count: int, size: int) -> Iterator[tuple[int, ...]]:
    for first in range(0, count, size):
        yield tuple(range(first, min(first + size, count)))


def fingerprint(case: Case) -> str:
    """Of the lowered programs."""
    from ptxtile.ir.printer import print_program

    text = "\n".join(print_program(run.program) for run in runs_of(case))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def results(todo: Sequence[Piece], seeds: int, jobs: int) -> Iterator[tuple[Piece, list[dict[str, Any]]]]:
    """Each piece with what came of it, as soon as it is done."""
    if jobs == 1:
        for piece in todo:
            yield piece, carry_out(piece, seeds)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(carry_out, piece, seeds): piece for piece in todo}
        for future in as_completed(futures):
            yield futures[future], future.result()


def record(case: Case, rows: Iterable[dict[str, Any]], clean: Iterable[dict[str, Any]], seeds: int) -> dict[str, Any]:
    """The row of a case."""
    rows, clean = sorted(rows, key=lambda row: row["mutant"]), list(clean)
    fates = Counter(row["fate"] for row in rows)
    schedules, seconds = sum(part["schedules"] for part in clean), sum(part["seconds"] for part in clean)
    return {
        "case": case.name, "example": case.example, "target": case.target, "mutants": len(rows),
        **{fate: fates[fate] for fate in FATES}, "kill rate": rate(fates),
        "strict": True, "schedules of a mutant": seeds, "schedules without mutation": schedules,
        "false reports": [text for part in clean for text in part["found"]],
        "rules": dict(Counter(row["rule"] for row in rows if "rule" in row).most_common()),
        "seeds that killed": dict(sorted(Counter(row["seed"] for row in rows if "seed" in row).items())),
        "seconds of a schedule": round(seconds / max(1, schedules), 2),
        "seconds": round(seconds + sum(row["seconds"] for row in rows), 1),
        "programs": fingerprint(case), "commit": commit(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "not killed": [row for row in rows if row["fate"] != "killed"],
    }  # fmt: skip


def rate(counts: Any) -> float:
    """Killed mutants of those that are not equivalent (1 when there are none)."""
    judged = counts["killed"] + counts["survived"]
    return round(counts["killed"] / judged, 4) if judged else 1.0


def show(row: dict[str, Any]) -> None:
    line = f"{row['case']:34s} {row['mutants']:4d} mutants {row['killed']:4d} killed {row['equivalent']:3d} equivalent "
    line += f"{row['set aside']:2d} set aside {row['survived']:2d} survived  {row['kill rate']:7.2%}"
    line += f"  {len(row['false reports'])} false reports in {row['schedules without mutation']} schedules"
    print(f"{line} of {row['seconds of a schedule']:.2f} s; {row['seconds']:.0f} s in all", flush=True)
    for text in row["false reports"]:
        print("  REPORTED WITHOUT MUTATION:", text, flush=True)
    for mutant in row["not killed"]:
        if mutant["fate"] == "survived":
            print(f"  SURVIVED: {mutant['mutant']} (line {mutant.get('line')}): {mutant['reason']}", flush=True)


def totals(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {key: sum(row[key] for row in rows) for key in ("mutants", *FATES)}
    aside = total["set aside"] / max(1, total["mutants"])
    return total | {
        "cases": f"{len(rows)} of {len(CASES)}", "kill rate": rate(total), "set aside, share": round(aside, 4),
        "false reports": sum(len(row["false reports"]) for row in rows),
        "schedules without mutation": sum(row["schedules without mutation"] for row in rows),
        "seconds of CPU": round(sum(row["seconds"] for row in rows)),
        "rules": dict(sum((Counter(row["rules"]) for row in rows), Counter())),
    }  # fmt: skip


def keep(*new: dict[str, Any]) -> dict[str, Any]:
    """Puts rows into the file, in the order of the cases, and gives the sums of all."""
    rows = rows_of_file() | {row["case"]: row for row in new}
    ordered = [rows[case.name] for case in CASES if case.name in rows]
    total = totals(ordered)
    content = {"environment": environment(), "total": total, "rows": ordered}
    RESULTS.mkdir(parents=True, exist_ok=True)
    part = FILE.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    part.replace(FILE)  # whole, or not at all
    return total


def rows_of_file() -> dict[str, dict[str, Any]]:
    rows = json.loads(FILE.read_text())["rows"] if FILE.exists() else []
    return {row["case"]: row for row in rows}


def _still_holds(case: Case, row: dict[str, Any] | None, seeds: int, clean_seeds: int) -> bool:
    if (
        row is None
        or not row.get("strict")
        or (row["schedules of a mutant"], row["schedules without mutation"]) != (seeds, clean_seeds)
    ):
        return False
    count = sum(len(piece.numbers) for piece in pieces(case, 0))
    return (row["programs"], row["mutants"]) == (fingerprint(case), count)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("cases", nargs="*", help="parts of the names of cases; all without any")
    parser.add_argument("--targets", nargs="*", default=TARGETS, choices=TARGETS)
    parser.add_argument("--seeds", type=int, default=6, help="schedules in which a mutant may hide")
    parser.add_argument("--clean-seeds", type=int, default=20, help="schedules of each unmutated program")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--resume", action="store_true", help="keep the rows that still hold")
    options = parser.parse_args()
    chosen = [
        case
        for case in CASES
        if case.target in options.targets and (not options.cases or any(part in case.name for part in options.cases))
    ]
    if options.resume:
        rows, held = rows_of_file(), (options.seeds, options.clean_seeds)
        chosen = [case for case in chosen if not _still_holds(case, rows.get(case.name), *held)]
    todo = [piece for case in chosen for piece in pieces(case, options.clean_seeds)]
    left = Counter(piece.case for piece in todo)
    done: dict[tuple[Case, bool], list[dict[str, Any]]] = defaultdict(list)
    for piece, some in results(todo, options.seeds, options.jobs):
        case = piece.case
        done[case, piece.mutated] += some
        left[case] -= 1
        if not left[case]:
            row = record(case, done.pop((case, True), []), done.pop((case, False), []), options.seeds)
            show(row)
            keep(row)
    total = keep()
    print(json.dumps(total, indent=1))
    return 1 if total["survived"] or total["false reports"] else 0


if __name__ == "__main__":
    sys.exit(main())

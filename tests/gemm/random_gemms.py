"""Runs any number of random gemms in the simulator: ``python -m tests.gemm.random_gemms --count 200 --seed 3``;
``--one "Problem(...)"`` runs one, ``--reduce`` looks for a simpler one that fails alike; ``--card`` runs them on a
card, with the PTX of the problem's target."""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time
import traceback
from dataclasses import fields, replace
from typing import Any

from tests.gemm import problem
from tests.gemm.check_problem import Outcome, check, check_on_card
from tests.gemm.problem import Problem


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gemm.random_gemms", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="problems to run")
    parser.add_argument("--seed", type=int, help="of the whole run (default: fresh, printed)")
    parser.add_argument("--one", metavar="PROBLEM", help="run this problem alone")
    parser.add_argument("--reduce", action="store_true", help="look for a simpler problem that fails alike")
    parser.add_argument("--ptx", type=float, default=0.1, help="fraction that ptxas assembles")
    parser.add_argument("--checked", type=float, default=0.2, help="fraction that the checker looks at for races")
    parser.add_argument("--stop", type=int, default=10, help="stop after so many failures")
    parser.add_argument("--card", action="store_true", help="run on the card, not in the simulator")
    parser.add_argument("--targets", nargs="+", default=problem.DRAWN_TARGETS, help="architectures to draw from")
    arguments = parser.parse_args()
    if arguments.one is not None:
        return _one(eval(arguments.one, {"Problem": Problem}), arguments)
    if arguments.card and list(arguments.targets) == list(problem.DRAWN_TARGETS):
        arguments.targets = ["sm_90a", "sm_90a", "sm_80", "sm_90"]
    seed = random.SystemRandom().randrange(2**31) if arguments.seed is None else arguments.seed
    print(f"seed of the run: {seed}")
    return _many(random.Random(seed), arguments)


def run(p: Problem, arguments: argparse.Namespace, ptx: bool) -> Outcome:
    if arguments.card:
        return check_on_card(p, p.target)
    return check(p, ptx=ptx, checked=arguments.one is not None or p.seed % 100 < 100 * arguments.checked)


def failure(p: Problem, arguments: argparse.Namespace) -> Exception | None:
    try:
        run(p, arguments, arguments.ptx > 0)
    except Exception as error:
        return error
    return None


def kind_of(error: Exception) -> str:
    """What two failures have in common that are alike."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0][:40]}"


def reduce(p: Problem, error: Exception, arguments: argparse.Namespace) -> tuple[Problem, Exception]:
    """A simpler problem with a failure of the same kind: each field in turn as simple as it can be."""
    simpler: dict[str, list[Any]] = {f.name: [f.default] for f in fields(Problem) if f.name not in ("m", "n", "k")}
    simpler |= {"m": [p.block_m], "n": [p.block_n], "k": [p.block_k, 2 * p.block_k, 3 * p.block_k]}
    simpler |= {"stages": [1, 2], "persistent": [0, 1], "target": [p.target, "sm_90a", "sm_80"]}
    for name, values in simpler.items():
        for value in values:
            if value == getattr(p, name):
                break
            candidate = replace(p, **{name: value})
            found = failure(candidate, arguments)
            if found is not None and kind_of(found) == kind_of(error):
                p, error = candidate, found
                break
    return p, error


def _one(p: Problem, arguments: argparse.Namespace) -> int:
    try:
        print(run(p, arguments, arguments.ptx > 0))
        return 0
    except Exception as error:
        if arguments.reduce:
            p, error = reduce(p, error, arguments)
            print(f"{p}\n{type(error).__name__}: {error}")
        else:
            traceback.print_exc()
        return 1


def _many(rng: random.Random, arguments: argparse.Namespace) -> int:
    started = time.perf_counter()
    outcomes: collections.Counter[str] = collections.Counter()
    failures: dict[str, list[Problem]] = {}
    for _ in range(arguments.count):
        p = problem.draw(lambda values: rng.choice(values), arguments.targets)
        ptx = rng.random() < arguments.ptx
        try:
            outcome = run(p, arguments, ptx)
        except Exception as error:
            outcome = Outcome("FAILED")
            kind = kind_of(error)
            if kind not in failures:
                print(f"{p}\n  {type(error).__name__}: {error}", flush=True)
                if arguments.reduce:
                    small, reason = reduce(p, error, arguments)
                    print(f"  simplest: {small}\n  {type(reason).__name__}: {reason}", flush=True)
            failures.setdefault(kind, []).append(p)
        outcomes[" ".join((outcome.status, *sorted(outcome.paths)))] += 1
        if outcomes["FAILED"] >= arguments.stop:
            break
    print(f"{sum(outcomes.values())} problems in {time.perf_counter() - started:.0f} s: {dict(outcomes)}")
    for kind, problems in failures.items():
        print(f"{len(problems)} x {kind}\n  " + "\n  ".join(map(str, problems[:5])))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

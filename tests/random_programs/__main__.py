"""Runs any number of random programs: ``python -m tests.random_programs --count 1000 --seed 7``; ``--one SEED`` runs
one."""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time
import traceback

from tests.random_programs.generator import generate
from tests.random_programs.reduce import reduce
from tests.random_programs.runner import Outcome, check, describe, run_seed
from tests.random_programs.source import render


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.random_programs", description=__doc__)
    parser.add_argument("--count", type=int, default=200, help="programs to run")
    parser.add_argument("--seed", type=int, help="of the whole run (default: fresh, printed)")
    parser.add_argument("--one", type=int, metavar="SEED", help="run the program of this seed alone and show it")
    parser.add_argument("--reduce", action="store_true", help="with --one: look for a smaller program that fails alike")
    parser.add_argument("--ptx", type=float, default=0.1, help="fraction that ptxas assembles")
    parser.add_argument("--stop", type=int, default=10, help="stop after so many failures")
    arguments = parser.parse_args()
    if arguments.one is not None:
        return _one(arguments.one, arguments.reduce, arguments.ptx > 0)
    seed = random.SystemRandom().randrange(2**31) if arguments.seed is None else arguments.seed
    print(f"seed of the run: {seed}")
    return _many(random.Random(seed), arguments.count, arguments.ptx, arguments.stop)


def _one(seed: int, smaller: bool, ptx: bool) -> int:
    program = generate(seed)
    print(render(program))
    try:
        print(check(program, ptx=ptx))
        return 0
    except Exception as error:
        if not smaller:
            traceback.print_exc()
        elif smaller:
            program, error = reduce(program, error, ptx)
        print(describe(seed, program, error))
        return 1


def _many(rng: random.Random, count: int, ptx: float, stop: int) -> int:
    started = time.perf_counter()
    outcomes: collections.Counter[str] = collections.Counter()
    failures: list[str] = []
    slow: list[tuple[float, int]] = []
    for _ in range(count):
        seed = rng.randrange(2**31)
        try:
            outcome = run_seed(seed, ptx=rng.random() < ptx)
        except Exception as error:
            outcome = Outcome("FAILED")
            failures.append(f"{seed}: {type(error).__name__}: {str(error)[:160].partition(chr(10))[0]}")
            print(describe(seed, generate(seed), error), flush=True)
        outcomes[outcome.status] += 1
        if outcome.seconds > 1:
            slow.append((outcome.seconds, seed))
        if outcomes["FAILED"] >= stop:
            break
    print(f"{sum(outcomes.values())} programs in {time.perf_counter() - started:.0f} s: {dict(outcomes)}")
    for seconds, seed in sorted(slow, reverse=True)[:10]:
        print(f"slow compile: {seconds:.1f} s, seed {seed}")
    for line in failures:
        print(line)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

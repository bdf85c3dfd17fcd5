"""The checker against the referee of tests/lower: two happens-before analyses that share nothing but the IR.

Random programs of one CTA get their synchronization from the compiler, lose some of it at random, and both say whether
there is a fault. Run it:  python -m tests.sim.check.cross_validation [PROGRAMS] [FIRST_SEED]
"""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import torch

from ptxtile.ir.buffers import Scope
from ptxtile.ir.gpu_ops import BarSync, BulkWaitGroup, FenceProxyAsync
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import Rewriter, buffers_of, walk
from ptxtile.ir.statements import Allocate, seq
from ptxtile.lower import complete_launch
from ptxtile.lower.options import Options
from ptxtile.sim.check import Finding
from ptxtile.sim.check.run import check
from tests.lower.hazard_programs import TARGET, body, synchronized
from tests.lower.race_referee import referee
from tests.lower.random_hazards import Generator

THREADS = (8, 6, 34)
"""Tiles of two elements a thread are whole multiples of 16 bytes, as boxes have to be."""
TRIPS = (0, 1, 3)
FAULTS = ("race", "missing fence", "unfinished", "deadlock", "illegal")
"""What both look for. Programs of the generator read memory that nobody wrote, which the referee does not mind."""


class _Thinned(Rewriter):
    """Drops barriers, fences and waits for stores with a probability; a wait that stays may leave one group more."""

    def __init__(self, generator: random.Random, probability: float) -> None:
        self.random, self.probability = generator, probability

    def _dropped(self) -> bool:
        return self.random.random() < self.probability

    def rewrite_BarSync(self, node: BarSync) -> BarSync | None:
        return None if self._dropped() else node

    def rewrite_FenceProxyAsync(self, node: FenceProxyAsync) -> FenceProxyAsync | None:
        return None if self._dropped() else node

    def rewrite_BulkWaitGroup(self, node: BulkWaitGroup) -> BulkWaitGroup | None:
        if self._dropped():
            return None
        return replace(node, pending=node.pending + 1) if self._dropped() else node


def thinned_program(seed: int) -> Program:
    """A random program at the gpu stage with some of its synchronization missing."""
    generator = random.Random(seed)
    drawn = Generator(seed, generator.choice(THREADS), generator.random() < 0.5, tma=generator.random() < 0.6)
    program = synchronized(drawn.program())
    thinned = _Thinned(generator, generator.choice([0.0, 0.15, 0.4]))
    kernel = program.kernels[0]
    return replace(program, kernels=(replace(kernel, body=thinned.visit(body(program))),))


def lowered(program: Program) -> Program:
    """With a launch record and with the allocations that the generator leaves out."""
    buffers = {b.storage.name: b for node in walk(body(program)) for b in buffers_of(node)}
    allocated = [Allocate(buffer) for buffer in buffers.values() if buffer.scope is not Scope.GLOBAL]
    kernel = replace(program.kernels[0], body=seq(*allocated, body(program)))
    return complete_launch.run(replace(program, kernels=(kernel,)), TARGET, Options())


def findings_of(program: Program, trips: int) -> list[Finding]:
    """Of the checker, one schedule with effects at once and one with late ones."""
    tensors = {p.name: torch.zeros(tuple(p.buffer.static_shape), dtype=torch.int32) for p in program.parameters}  # type: ignore[union-attr]
    report = check(lowered(program), tensors, {"n": trips}, strict=True)
    return [finding for finding in report.findings if finding.rule in FAULTS]


def disagreement(seed: int) -> str:
    """What the two say of a random program where they do not agree; empty where they do."""
    program = thinned_program(seed)
    trips = random.Random(seed).choice(TRIPS)
    judged, found = referee(program, n=trips), findings_of(program, trips)
    expected = judged.races + judged.missed
    if bool(expected) == bool(found):
        return ""
    return f"seed {seed}, n = {trips}\nreferee: {expected[:3]}\nchecker:\n" + "\n".join(map(str, found[:3]))


def main(arguments: list[str]) -> int:
    count, first = (int(arguments[i]) if len(arguments) > i else default for i, default in enumerate((1000, 0)))
    disagreements = racy = 0
    for seed in range(first, first + count):
        said = disagreement(seed)
        racy += bool(referee(thinned_program(seed), n=random.Random(seed).choice(TRIPS)).races)
        if said:
            disagreements += 1
            print(said, flush=True)
    print(f"{disagreements} disagreements over {count} programs, {racy} of them with faults")
    return bool(disagreements)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

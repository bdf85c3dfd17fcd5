"""Random sequences of shared-memory loops: random index maps, loop nests, conditions and thread counts."""

from __future__ import annotations

import random

from ptxtile.ir import gpu_ops as g
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, binary
from ptxtile.ir.program import Program
from ptxtile.ir.statements import If, Statement, seq
from tests.lower.hazard_programs import (
    THREAD,
    TRIPS,
    barriers,
    elected,
    loop,
    number,
    plus,
    program,
    read,
    registers,
    scalar,
    shared,
    tensor,
    unrolled,
    write,
)

VALUES = 2
"""Elements of a tile that each thread handles."""


class Generator:
    """One random program. Every store writes each element from one thread in one iteration of its own loop.

    ``conditions``: also conditions and loops that depend on a symbol or on the thread. ``tma``: also TMA loads and
    stores, with ``waits`` for some of these.
    """

    def __init__(self, seed: int, threads: int, conditions: bool = True, tma: bool = False, waits: bool = True) -> None:
        self.random = random.Random(seed)
        self.threads, self.size, self.conditions = threads, threads * VALUES, conditions
        self.buffers = [shared(name, self.size) for name in "ABC"]
        self.registers = registers("R", VALUES)
        self.count = 0
        self.tma, self.waits = tma, waits
        self.start: list[Statement] = []  # barriers and phases of the TMA loads

    def program(self) -> Program:
        statements = [self.statement(2) for _ in range(self.random.randint(2, 4))]
        tensors = tuple(tensor("T" + buffer.name) for buffer in self.buffers)
        maps = tuple(("m" + buffer.name, "T" + buffer.name, self.size) for buffer in self.buffers)
        return program(*self.start, *statements, threads=self.threads, tensors=tensors, maps=maps)

    def name(self) -> str:
        self.count += 1
        return f"i{self.count}"

    def statement(self, depth: int) -> Statement:
        kind = self.random.random()
        if depth > 0 and kind < 0.3:
            choices: list[int | Expr] = [1, 2, 3]
            trips = self.random.choice([*choices, TRIPS] if self.conditions else choices)
            inside = seq(*(self.statement(depth - 1) for _ in range(self.random.randint(1, 3))))
            return loop(self.name(), trips, inside)
        if depth > 0 and self.conditions and kind < 0.4:
            return If(TRIPS.gt(self.random.randint(0, 2)), self.statement(depth - 1))
        if self.conditions and kind < 0.5:
            return If(THREAD.lt(self.random.randint(1, self.threads - 1)), self.tile())
        if self.tma and kind < 0.7:
            return self.tma_load() if self.random.random() < 0.4 else self.tma_store()
        return self.tile()

    def tma_load(self) -> Statement:
        """A load by one thread, the wait of all, and the flip of the phase that they wait for."""
        buffer, name = self.random.choice(self.buffers), self.name()
        bars, phase = barriers("bar_" + name), scalar("phase_" + name)
        self.start += [elected(0, g.MbarrierInit(bars, number(0), 1)), write(phase, 0, 0)]
        load = g.TmaLoad("m" + buffer.name, (number(0),), buffer, number(0), bars, number(0))
        issuer = self.random.randrange(self.threads)
        issue = elected(issuer, g.MbarrierArriveExpectTx(bars, number(0), 4 * self.size), load)
        wait = g.MbarrierWait(bars, number(0), read(phase, 0), (buffer,))
        return seq(issue, wait, write(phase, 0, binary("xor", read(phase, 0), 1)))

    def tma_store(self) -> Statement:
        buffer = self.random.choice(self.buffers)
        store = g.TmaStore("m" + buffer.name, (number(0),), buffer, number(0))
        pending, reads = self.random.choice([0, 0, 1, 2]), self.random.random() < 0.7
        waits = [g.BulkWaitGroup(pending, reads)] if self.waits and self.random.random() < 0.4 else []
        return elected(self.random.randrange(self.threads), store, g.BulkCommitGroup(), *waits)

    def tile(self) -> Statement:
        target = self.random.choice([*self.buffers, None])
        source = self.random.choice([*self.buffers, None])
        to, origin = self.bijection(), self.any_map()
        if target is source:
            origin = to
        return unrolled(self.name(), VALUES, lambda v: self.move(target, to, source, origin, v))

    def move(self, target: Buffer | None, to, source: Buffer | None, origin, v: Expr) -> Statement:
        value = plus(THREAD, v) if source is None else read(source, origin(v))
        return write(self.registers, v, value) if target is None else write(target, to(v), value)

    def bijection(self):
        size, shift = self.size, self.random.choice([1, 2, self.threads, 7])
        rows = lambda v: plus(binary("mul", THREAD, VALUES), v)  # noqa: E731
        columns = lambda v: plus(binary("mul", v, self.threads), THREAD)  # noqa: E731
        return self.random.choice(
            [
                rows, rows, rows, columns,
                lambda v: binary("sub", number(size - 1), rows(v)),
                lambda v: binary("floormod", plus(rows(v), shift), number(size)),
            ]
        )  # fmt: skip

    def any_map(self):
        first = self.bijection()
        return self.random.choice(
            [first, first, lambda v: binary("floordiv", first(v), number(2)), lambda v: number(3)]
        )

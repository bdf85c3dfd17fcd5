"""Random kernels of two or three roles that pass their turn on in a circle, each with accesses of its own."""

from __future__ import annotations

import random

from ptxtile.ir import gpu_ops as g
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, binary
from ptxtile.ir.manual_ops import BarArrive
from ptxtile.ir.program import Program
from ptxtile.ir.statements import If, Role, Specialized, Statement, seq
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
    shared,
    tensor,
    unrolled,
    write,
)

THREADS, VALUES = 32, 2
"""Threads of a role, and elements of a tile that each handles."""

SIZE = THREADS * VALUES


class RoleGenerator:
    """One random program. Role 0 works, gives, and takes back from the last role; the others take, work and give.

    A turn is given by an mbarrier, on which all threads of the role arrive or one of them, or by a named barrier.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.tiles = [shared(name, SIZE) for name in "AB"]
        self.tensors = [tensor("T" + tile.name, SIZE) for tile in self.tiles]
        self.start: list[Statement] = []
        self.count = 0

    def program(self) -> Program:
        roles = self.random.choice([2, 2, 3])
        turns = [self.turn(number, (number + 1) % roles, roles) for number in range(roles)]
        bodies = []
        for role in range(roles):
            give, take = turns[role][0], turns[role - 1][1]
            works = [self.work(role) for _ in range(self.random.choice([1, 1, 2]))]

            def body(k: Expr, give=give, take=take, works=works, role=role) -> Statement:
                work = [make(k) for make in works]
                return seq(*work, give, take(k)) if role == 0 else seq(take(k), *work, give)

            bodies.append(Role(f"role{role}", role * THREADS, THREADS, loop(f"k{role}", TRIPS, body)))
        maps = tuple(("m" + tile.name, "T" + tile.name, SIZE) for tile in self.tiles)
        threads = roles * THREADS
        start = (*self.start, g.FenceMbarrierInit(), g.BarSync(0, threads)) if self.start else ()
        return program(*start, Specialized(tuple(bodies)), threads=threads, tensors=tuple(self.tensors), maps=maps)

    def turn(self, giver: int, taker: int, roles: int):
        """(what the giver does, what the taker does in round k)."""
        kind = self.random.choice(["all", "all", "one", "named"])
        if kind == "named":
            meeting = 8 + giver
            return BarArrive(meeting, 2 * THREADS), lambda k: g.BarSync(meeting, 2 * THREADS)
        bar = barriers(f"turn{giver}")
        arrive: Statement = g.MbarrierArrive(bar, number(0))
        if kind == "one":
            arrive = elected(self.thread_of(giver), arrive)
        self.initialise(bar, 1 if kind == "one" else THREADS)
        return arrive, lambda k: g.MbarrierWait(bar, number(0), binary("and", k, 1))

    def initialise(self, bar: Buffer, arrivals: int) -> None:
        self.start.append(elected(0, g.MbarrierInit(bar, number(0), arrivals)))

    def thread_of(self, role: int) -> int:
        return role * THREADS + self.random.randrange(THREADS)

    def work(self, role: int):
        """A function from the round to what ``role`` does in it with a tile, a tensor, or both."""
        position = self.random.randrange(len(self.tiles))
        tile, memory = self.tiles[position], self.tensors[position]
        lane = binary("sub", THREAD, number(role * THREADS))
        place = self.random.choice(
            [
                lambda v: plus(binary("mul", lane, VALUES), v),
                lambda v: plus(binary("mul", v, THREADS), lane),
                lambda v: binary("sub", number(SIZE - 1), plus(binary("mul", lane, VALUES), v)),
            ]
        )
        self.count += 1
        name, lanes = f"i{self.count}", registers(f"R{self.count}", VALUES)
        kind = self.random.choice(["write", "read", "store", "store", "load", "write memory", "read memory"])
        target = memory if kind.endswith("memory") else tile
        if kind.startswith("write"):
            return lambda k: unrolled(name, VALUES, lambda v: write(target, place(v), plus(lane, v)))
        if kind.startswith("read"):
            return lambda k: unrolled(name, VALUES, lambda v: write(lanes, v, read(target, place(v))))
        issuer = self.thread_of(role)
        if kind == "store":
            waits = self.random.choice([(), (), (g.BulkWaitGroup(0, True),)])
            store = g.TmaStore("m" + tile.name, (number(0),), tile, number(0))
            return lambda k: elected(issuer, store, g.BulkCommitGroup(), *waits)
        bar = barriers(f"loaded{self.count}")
        self.initialise(bar, 1)
        load = g.TmaLoad("m" + tile.name, (number(0),), tile, number(0), bar, number(0))
        issue = If(THREAD.eq(issuer), seq(g.MbarrierArriveExpectTx(bar, number(0), 4 * SIZE), load))
        return lambda k: seq(issue, g.MbarrierWait(bar, number(0), binary("and", k, 1), (tile,)))

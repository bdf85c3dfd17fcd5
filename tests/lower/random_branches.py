"""Random kernels whose warps go different ways, hand a tile to one another by hand-written barriers, and meet among
themselves; then with some of that taken away, moved or changed."""

from __future__ import annotations

import random
from collections.abc import Callable

from ptxtile.ir import gpu_ops as g
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, Var, binary
from ptxtile.ir.manual_ops import BarArrive, BarAt
from ptxtile.ir.program import Program
from ptxtile.ir.statements import Allocate, If, Seq, Statement, seq
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
    write,
)

WARP = 32

Operation = Callable[[Expr], Statement]
"""What a warp does, in round k."""


def _mod(k: Expr, count: int) -> Expr:
    return binary("floormod", k, count)


class BranchGenerator:
    """One random program. Each warp gives a tile to the next one, which may pass another one on. ``mutations``: so many
    operations are dropped, moved, doubled or changed afterwards. ``mbarriers``: besides named barriers."""

    def __init__(self, seed: int, mutations: int = 0, mbarriers: bool = True) -> None:
        self.random = random.Random(seed)
        self.warps = self.random.choice([2, 2, 2, 3])
        self.trips = self.random.choice([1, 2, 3, 5, None])
        """Rounds; None: only known at launch."""
        self.mutations, self.mbarriers = mutations, mbarriers
        self.start: list[Statement] = []
        self.buffers: list[Buffer] = []
        self.ways: list[list[Operation]] = [[] for _ in range(self.warps)]
        self.before: list[list[Operation]] = [[] for _ in range(self.warps)]
        """What a warp does before its rounds."""
        self.ids: list[int] = []
        self.count = 0

    def program(self) -> Program:
        for giver in range(self.warps - 1):
            self.hand_over(giver)
        for way in self.ways:
            if self.random.random() < 0.3:
                self.exchange(way)
        for _ in range(self.mutations):
            self.mutate()
        branches = [self.way(number, way) for number, way in enumerate(self.ways)]
        whole = branches.pop()
        while branches:
            whole = If(THREAD.lt(WARP * len(branches)), branches.pop(), whole)
        threads = WARP * self.warps
        start = (*self.start, g.FenceMbarrierInit(), g.BarSync(0, threads)) if self.start else ()
        allocations = (Allocate(buffer) for buffer in self.buffers)
        return program(*allocations, *start, whole, threads=threads)

    def way(self, warp: int, operations: list[Operation]) -> Statement:
        before = [make(number(0)) for make in self.before[warp]]
        if self.trips == 1:
            return seq(*before, *(make(number(0)) for make in operations)) or Seq(())
        stop: Expr | int = TRIPS if self.trips is None else self.trips
        return seq(*before, loop(f"k{warp}", stop, lambda k: seq(*(make(k) for make in operations))))

    def allocated(self, buffer: Buffer) -> Buffer:
        self.buffers.append(buffer)
        return buffer

    # -- what is right ---------------------------------------------------------------------------------------------

    def hand_over(self, giver: int) -> None:
        """The giver writes a tile, the next warp reads it, and gives it back for the next round."""
        taker, self.count = giver + 1, self.count + 1
        by_mbarrier = self.mbarriers and self.random.random() < 0.5
        stages = self.random.choice([1, 1, 2, 3] if by_mbarrier else [1] if self.trips is None or giver else [1, 2])
        tile = self.allocated(shared(f"T{self.count}", WARP * stages))
        put, take = self.work(tile, giver, stages, True), self.work(tile, taker, stages, False)
        if by_mbarrier:
            first, last = self.by_mbarriers(giver, taker, stages)
        else:
            first, last = self.by_named_barriers(taker, stages)
        self.ways[giver] += [*first[0], put, *last[0]]
        self.ways[taker] += [*first[1], take, *last[1]]

    def by_named_barriers(self, taker: int, stages: int) -> tuple[tuple[list[Operation], list[Operation]], ...]:
        """A pair of barriers for each stage. Before the rounds the taker says of every stage that it is free, if there
        are several; it does not in the last rounds."""
        first = len(self.ids)
        self.ids += self.random.sample([i for i in range(1, 8) if i not in self.ids], 2 * stages)
        give = self.random.choice([BarArrive, g.BarSync])

        def meeting(kind: type, place: int) -> Operation:
            """At the barrier of the round's stage."""

            def make(k: Expr) -> Statement:
                meetings = [kind(self.ids[first + 2 * stage + place], 2 * WARP) for stage in range(stages)]
                return meetings[0] if stages == 1 else If(_mod(k, stages).eq(0), *meetings)

            return make

        full, free = 0, 1
        if stages == 1:
            return ([], [meeting(g.BarSync, full)]), (
                [meeting(give, full), meeting(g.BarSync, free)],
                [meeting(BarArrive, free)],
            )
        assert self.trips is not None
        last = self.trips - stages
        self.before[taker] += [
            (lambda k, stage=stage: BarArrive(self.ids[first + 2 * stage + free], 2 * WARP))
            for stage in range(min(stages, self.trips))
        ]
        free_again = meeting(BarArrive, free)
        return ([meeting(g.BarSync, free)], [meeting(g.BarSync, full)]), (
            [meeting(give, full)],
            [lambda k: If(k.lt(last), free_again(k))],
        )

    def by_mbarriers(self, giver: int, taker: int, stages: int) -> tuple[tuple[list[Operation], list[Operation]], ...]:
        full, free = (self.allocated(barriers(f"{name}{self.count}", stages)) for name in ("full", "free"))
        arrivals: list[list[Operation]] = []
        for bar, warp in ((full, giver), (free, taker)):
            one = self.random.random() < 0.4
            for stage in range(stages):
                self.start.append(elected(0, g.MbarrierInit(bar, number(stage), 1 if one else WARP)))
            arrivals.append(self.arrival(bar, warp, stages, one))

        def parity(k: Expr, first: int) -> Expr:
            return binary("and", plus(binary("floordiv", k, stages), first), 1)

        wait_free = lambda k: g.MbarrierWait(free, _mod(k, stages), parity(k, 1))  # noqa: E731
        wait_full = lambda k: g.MbarrierWait(full, _mod(k, stages), parity(k, 0))  # noqa: E731
        if stages == 1 and self.random.random() < 0.4:
            wait_free, turn_free = self.counted(free, giver, 1)
            wait_full, turn_full = self.counted(full, taker, 0)
            return ([wait_free], [wait_full]), ([*arrivals[0], turn_free], [*arrivals[1], turn_full])
        return ([wait_free], [wait_full]), (arrivals[0], arrivals[1])

    def counted(self, bar: Buffer, warp: int, first: int) -> tuple[Operation, Operation]:
        """The wait for a phase whose parity a variable holds, and the change of that."""
        phase = self.allocated(scalar(f"phase{self.count}_{warp}"))
        self.before[warp].append(lambda k: write(phase, 0, first))
        return (
            lambda k: g.MbarrierWait(bar, number(0), read(phase, 0)),
            lambda k: write(phase, 0, binary("xor", read(phase, 0), 1)),
        )

    def arrival(self, bar, warp: int, stages: int, one: bool) -> list[Operation]:
        """Of all threads, or of one after the warp has met."""
        if not one:
            return [lambda k: g.MbarrierArrive(bar, _mod(k, stages))]
        thread = warp * WARP + self.random.randrange(WARP)
        meet = self.meeting(warp)
        return [meet, lambda k: elected(thread, g.MbarrierArrive(bar, _mod(k, stages)))]

    def meeting(self, warp: int) -> Operation:
        """All threads of a warp meet at a barrier of its own, whose id may be worked out from the thread."""
        if self.random.random() < 0.3:
            return lambda k: BarAt(plus(binary("floordiv", THREAD, WARP), 8), WARP)
        return lambda k: g.BarSync(8 + warp, WARP)

    def work(self, tile, warp: int, stages: int, writes: bool) -> Operation:
        """Each thread touches one element, in this order or that, or one thread touches the first."""
        self.count += 1
        lane = binary("sub", THREAD, number(warp * WARP))
        backwards = self.random.random() < 0.5
        lane = binary("sub", number(WARP - 1), lane) if backwards else lane
        place = lambda k: plus(binary("mul", _mod(k, stages), WARP), lane)  # noqa: E731
        kept = self.allocated(registers(f"R{self.count}", 1))
        single = self.random.random() < 0.2
        thread = warp * WARP + self.random.randrange(WARP)

        def make(k: Expr) -> Statement:
            access = write(tile, place(k), lane) if writes else write(kept, 0, read(tile, place(k)))
            return elected(thread, access) if single else access

        return make

    def exchange(self, way: list[Operation]) -> None:
        """Threads of one warp hand something to each other."""
        warp, self.count = self.ways.index(way), self.count + 1
        tile = self.allocated(shared(f"X{self.count}", WARP))
        meet = self.meeting(warp)
        operations = [self.work(tile, warp, 1, True), meet, self.work(tile, warp, 1, False), meet]
        position = self.random.randrange(len(way) + 1)
        way[position:position] = operations

    # -- what may be wrong -----------------------------------------------------------------------------------------

    def mutate(self) -> None:
        one_for_two = self.random.random() < (0.15 if self.mbarriers else 0.5)
        if one_for_two and len(self.ids) > 1:
            self.ids[self.random.randrange(len(self.ids))] = self.random.choice(self.ids)
            return
        way = self.random.choice([*self.ways, *self.before])
        if not way:
            return
        position = self.random.randrange(len(way))
        kind = self.random.choice(["drop", "drop", "move", "move", "double", "later", "sometimes"])
        operation = way[position]
        if kind != "double":
            del way[position]
        if kind in ("move", "double"):
            way.insert(self.random.randrange(len(way) + 1), operation)
        elif kind == "later":
            way.insert(position, lambda k: operation(plus(k, 1)))
        elif kind == "sometimes":
            when = self.random.choice(["gt", "eq", "lt"])
            limit = self.random.randrange(3)
            way.insert(position, lambda k: _if(k, when, limit, operation(k)))


def _if(k: Expr, when: str, limit: int, operation: Statement) -> Statement:
    condition = {"gt": k.gt(limit), "eq": k.eq(limit), "lt": k.lt(limit)}[when] if isinstance(k, Var) else None
    return operation if condition is None else If(condition, operation)

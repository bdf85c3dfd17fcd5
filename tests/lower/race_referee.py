"""An independent referee: runs a gpu-stage kernel thread by thread and reports races from vector clocks.

Threads are generators that yield events in program order; barriers join clocks; a TMA operation is an agent of its own
that starts with its issuer's clock and is joined by whoever waits for it; a store is two, one that reads shared memory
and one that writes global memory after it. A load completes its mbarrier at once. Two accesses of one byte, one a
write, by different agents must be ordered by the clocks, except those of one statement in one iteration (all threads
store the same value). A generic access before a conflicting TMA access needs a proxy fence on the way by which it
comes before: of its own thread, or of one that knows of it (PTX ISA, «membar/fence»: proxy fences take effect within a
thread and compose with other synchronization). When the kernel ends, every store must have been waited for, at least
its reads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ptxtile.ir import gpu_ops as g
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Binary, Cast, Compare, Const, Expr, Load, LogicalAnd, LogicalOr, Select, Unary, Var
from ptxtile.ir.manual_ops import BarArrive
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import children
from ptxtile.ir.statements import Allocate, Break, Continue, For, If, Let, Seq, Specialized, Statement, Store, While

BINARY = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "floordiv": lambda a, b: a // b,
    "floormod": lambda a, b: a % b, "truncdiv": lambda a, b: int(a / b), "min": min, "max": max,
    "xor": lambda a, b: a ^ b,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "shl": lambda a, b: a << b, "shr": lambda a, b: a >> b,
}  # fmt: skip
COMPARE = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


class Left(Exception):
    """Break or Continue."""


@dataclass
class Agent:
    clock: dict[int, int]
    time: int = 0


@dataclass
class Shadow:
    writer: tuple | None = None
    readers: list[tuple] = field(default_factory=list)


@dataclass
class Mbarrier:
    """Arrivals and bytes that the current phase still waits for, and what its completed phases know."""

    arrivals: int
    pending: int
    bytes: int = 0
    phase: int = 0
    clock: dict[int, int] = field(default_factory=dict)
    gathered: dict[int, int] = field(default_factory=dict)
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By thread: how many phases its latest wait has seen complete, and the time of that wait."""
    missed: set[int] = field(default_factory=set)
    """Threads whose wait may come so late that the next phase is over as well: then it blocks."""

    def arrive(self, clock: dict[int, int]) -> None:
        self.pending -= 1
        self.transfer(0, clock)

    def transfer(self, size: int, clock: dict[int, int]) -> None:
        self.bytes += size
        for agent, time in clock.items():
            self.gathered[agent] = max(self.gathered.get(agent, 0), time)
        if self.pending == 0 and self.bytes == 0:
            for thread, (phase, waited) in self.seen.items():
                if phase == self.phase and self.gathered.get(thread, 0) < waited:
                    self.missed.add(thread)
            self.phase, self.pending, self.clock = self.phase + 1, self.arrivals, dict(self.gathered)


class Referee:
    """``values``: symbols and block indices. ``races``: what was found, as text; ``missed``: mbarriers that may go
    through a phase more than a thread that waits for them expects."""

    def __init__(self, program: Program, values: dict[str, int]) -> None:
        self.program, self.kernel, self.values = program, program.kernels[0], values
        self.boxes = {m.name: (m.tensor, m.box[0] * 4) for m in program.tensor_maps}
        self.agents = [Agent({t: 0}) for t in range(self.kernel.threads)]
        self.shadow: dict[tuple, Shadow] = defaultdict(Shadow)
        self.mbarriers: dict[tuple[str, int], Mbarrier] = {}
        self.stores: dict[int, list[list[tuple[int, int]]]] = defaultdict(lambda: [[]])
        """By issuing thread: groups of (reading agent, writing agent), the last one not committed yet."""
        self.memory: dict[tuple, int | None] = {}  # values by (memory, thread of private memory, byte); None: undefined
        self.trace: dict[tuple, int | None] = {}  # (thread, statement and iteration) → value stored
        self.fences: dict[str, list[tuple[int, int, dict[int, int]]]] = defaultdict(list)
        """By space: each fence's thread, its time, and what the thread knew."""
        self.carried: dict[tuple[str, int], dict[int, int]] = {}
        """What the fences that an agent of the async proxy knows of have carried over, by space and agent."""
        self.arrivals: dict[int, list[dict[int, int]]] = defaultdict(list)
        """By named barrier: what those knew who arrived and went on."""
        self.races: list[str] = []
        self.missed: list[str] = []

    def run(self) -> list[str]:
        running = {t: self.events(self.kernel.body, t, dict(self.values), ()) for t in range(self.kernel.threads)}
        waiting: dict[tuple, list[int]] = defaultdict(list)
        ready = list(running)
        while ready:
            thread = ready.pop(0)
            for event in running[thread]:
                waiting[event].append(thread)
                break
            for event, threads in list(waiting.items()):
                if threads and self.may_go_on(event, threads):
                    ready.extend(waiting.pop(event))
        for thread, groups in self.stores.items():
            for reader, _ in (agents for group in groups for agents in group):
                if self.agents[thread].clock.get(reader, 0) < self.agents[reader].time:
                    self.races.append(f"thread {thread} ends before shared memory has been read by its store {reader}")
        for (name, index), barrier in self.mbarriers.items():
            if barrier.missed:
                self.missed.append(f"{name}[{index}]: threads {sorted(barrier.missed)} may wait for a phase too late")
        stuck = [key for key, threads in waiting.items() if threads]
        if stuck:
            self.races.append(f"threads wait forever at {stuck}")
        return self.races

    def may_go_on(self, event: tuple, threads: list[int]) -> bool:
        """Whether the threads that wait for ``event`` go on; if so, their clocks have learned what it tells them."""
        if event[0] == "barrier":
            gone_on = self.arrivals[event[1]]
            if len(threads) + len(gone_on) < (self.kernel.threads if event[1] == 0 else event[2]):
                return False
            self.join(threads)
            for clock in self.arrivals.pop(event[1]):
                for thread in threads:
                    self.learn(thread, clock)
            return True
        _, name, index, parity = event
        barrier = self.mbarriers[name, index]
        if barrier.phase % 2 == parity:
            return False
        for thread in threads:
            barrier.seen[thread] = barrier.phase, self.agents[thread].time
            self.learn(thread, barrier.clock)
        return True

    def new_agent(self, clock: dict[int, int]) -> int:
        number = len(self.agents)
        self.agents.append(Agent({**clock, number: 1}, 1))
        return number

    def learn(self, agent: int, clock: dict[int, int]) -> None:
        mine = self.agents[agent].clock
        for other, time in clock.items():
            mine[other] = max(mine.get(other, 0), time)

    def join(self, threads: list[int]) -> None:
        merged: dict[int, int] = {}
        for thread in threads:
            for agent, time in self.agents[thread].clock.items():
                merged[agent] = max(merged.get(agent, 0), time)
        for thread in threads:
            self.agents[thread].clock = dict(merged)

    # -- one thread ------------------------------------------------------------------------------------------------

    def events(self, node: Statement, thread: int, env: dict, where: tuple) -> Iterator[tuple]:
        match node:
            case Seq(statements):
                env = dict(env)
                for position, statement in enumerate(statements):
                    yield from self.events(statement, thread, env, (*where, position))
            case Let(var, value):
                env[var.name] = self.value(value, thread, env, where)
            case For(var, start, stop, step, _, body):
                low, high = (self.value(bound, thread, env, where) for bound in (start, stop))
                for i in range(low, high, step):
                    try:
                        yield from self.events(body, thread, {**env, var.name: i}, (*where, i))
                    except Left as left:
                        if left.args[0] == "break":
                            break
            case While(condition, body):
                turn = 0
                while self.value(condition, thread, env, (*where, turn)):
                    try:
                        yield from self.events(body, thread, env, (*where, turn))
                    except Left as left:
                        if left.args[0] == "break":
                            break
                    turn += 1
            case If(condition, then, otherwise):
                holds = self.value(condition, thread, env, where)
                if holds:
                    yield from self.events(then, thread, env, (*where, 0))
                elif otherwise is not None:
                    yield from self.events(otherwise, thread, env, (*where, 1))
            case Specialized(roles):
                for position, role in enumerate(roles):
                    if role.first_thread <= thread < role.first_thread + role.threads:
                        yield from self.events(role.body, thread, env, (*where, position))
            case Break():
                raise Left("break")
            case Continue():
                raise Left("continue")
            case Store(buffer, (index,), value):
                place, stored = self.value(index, thread, env, where), self.value(value, thread, env, where)
                width = value.dtype.bits * value.dtype.lanes // 8
                self.touch(buffer, place * buffer.dtype.itemsize, width, thread, where, True)
                self.trace[thread, where] = stored
                self.memory[self.address(buffer, place, thread)] = stored
            case g.BarSync(identifier, threads):
                yield "barrier", identifier, threads
            case g.MbarrierWait(barrier, index, parity, _):
                place = self.value(index, thread, env, where)
                self.touch_bytes(barrier.name, place, 1, thread, where, False)
                yield "wait", barrier.name, place, self.value(parity, thread, env, where)
            case Allocate():
                pass
            case _:
                self.operation(node, thread, env, where)

    def operation(self, node: Statement, thread: int, env: dict, where: tuple) -> None:
        agent = self.agents[thread]
        if isinstance(node, (g.MbarrierInit, g.MbarrierArrive, g.MbarrierArriveExpectTx)):
            place = self.value(node.index, thread, env, where)
            self.touch_bytes(node.barrier.name, place, 1, thread, where, isinstance(node, g.MbarrierInit))
        match node:
            case g.FenceProxyAsync(space):
                agent.time += 1
                agent.clock[thread] = agent.time
                self.fences[space].append((thread, agent.time, dict(agent.clock)))
            case g.TmaLoad(name, _, buffer, offset, _, _) | g.TmaStore(name, _, buffer, offset):
                loads = isinstance(node, g.TmaLoad)
                tensor, size = self.boxes[name]
                corner = 4 * self.value(node.coordinates[0], thread, env, where)
                base = self.value(offset, thread, env, where) * buffer.dtype.itemsize
                reader = self.new_agent(agent.clock)
                writer = reader if loads else self.new_agent(self.agents[reader].clock)
                self.touch_bytes(tensor, corner, size, writer, where, not loads, proxy=True)
                self.touch(buffer, base, size, reader, where, loads, proxy=True)
                if isinstance(node, g.TmaLoad):
                    index = self.value(node.index, thread, env, where)
                    self.mbarriers[node.barrier.name, index].transfer(-size, self.agents[reader].clock)
                else:
                    self.stores[thread][-1].append((reader, writer))
            case g.MbarrierInit(barrier, index, arrivals):
                self.mbarriers[barrier.name, self.value(index, thread, env, where)] = Mbarrier(arrivals, arrivals)
            case g.MbarrierArriveExpectTx(barrier, index, size):
                place = self.value(index, thread, env, where)
                self.mbarriers[barrier.name, place].transfer(size, {})
                self.mbarriers[barrier.name, place].arrive(agent.clock)
            case g.MbarrierArrive(barrier, index):
                self.mbarriers[barrier.name, self.value(index, thread, env, where)].arrive(agent.clock)
            case BarArrive(identifier, _):
                self.arrivals[identifier].append(dict(agent.clock))
            case g.BulkCommitGroup():
                self.stores[thread].append([])
            case g.BulkWaitGroup(pending, only_reads, _):
                committed = self.stores[thread][:-1]
                for group in committed[: max(len(committed) - pending, 0)]:
                    for reader, writer in group:
                        self.learn(thread, self.agents[reader if only_reads else writer].clock)

    def touch(
        self, buffer, start: int, width: int, agent: int, where: tuple, writes: bool, proxy: bool = False
    ) -> None:
        if buffer.scope not in (Scope.SHARED, Scope.GLOBAL):
            return
        if buffer.scope is Scope.SHARED:
            self.touch_bytes("shared", start + (buffer.storage.offset or 0), width, agent, where, writes, proxy)
        else:
            self.touch_bytes(buffer.storage.name, start, width, agent, where, writes, proxy)

    def touch_bytes(
        self, memory: str, start: int, width: int, agent: int, where: tuple, writes: bool, proxy: bool = False
    ) -> None:
        me = self.agents[agent]
        if not proxy:
            me.time += 1
            me.clock[agent] = me.time
        event = (agent, me.time, where, proxy)
        for byte in range(start, start + width):
            shadow = self.shadow[memory, byte]
            earlier = [shadow.writer] if shadow.writer else []
            if writes:
                earlier = earlier + shadow.readers
            for other in earlier:
                self.check(other, event, memory, byte, other is shadow.writer, writes)
            if writes:
                shadow.writer, shadow.readers = event, []
            else:
                shadow.readers.append(event)

    def check(self, a: tuple, b: tuple, memory: str, byte: int, a_writes: bool, b_writes: bool) -> None:
        if a[0] != b[0] and a[2] != b[2] and self.agents[b[0]].clock.get(a[0], 0) < a[1]:
            self.races.append(f"{memory} byte {byte}: {a} and {b} are not ordered")
        if not a[3] and b[3]:  # a write before any access of the other proxy, a read before a write of it
            if not self.is_fenced("shared" if memory == "shared" else "global", a[0], a[1], b[0]):
                self.races.append(f"{memory} byte {byte}: no proxy fence between {a} and {b}")

    def is_fenced(self, space: str, earlier: int, time: int, later: int) -> bool:
        """Whether a thread has fenced that knew of what ``earlier`` did at ``time``, before ``later`` began."""
        carried = self.carried.get((space, later))
        if carried is None:
            carried = self.carried[space, later] = {}
            known = self.agents[later].clock
            for thread, fenced, clock in self.fences[space]:
                if known.get(thread, 0) >= fenced:
                    for agent, seen in clock.items():
                        carried[agent] = max(carried.get(agent, 0), seen)
        return carried.get(earlier, 0) >= time

    def address(self, buffer: Buffer, place: int, thread: int) -> tuple:
        """Where an element's value is kept: accesses of one memory are taken to have one width."""
        byte = place * buffer.dtype.itemsize
        if buffer.scope is Scope.SHARED:
            return "shared", byte + (buffer.storage.offset or 0)
        return buffer.storage.name, byte, -1 if buffer.scope is Scope.GLOBAL else thread

    def value(self, expression: Expr, thread: int, env: dict, where: tuple) -> Any:
        match expression:
            case Const(value, _):
                return value
            case Var(name, _):
                return thread if name == self.kernel.thread.name else env[name]
            case Binary(operator, left, right, _):
                sides = self.value(left, thread, env, where), self.value(right, thread, env, where)
                return None if None in sides else BINARY[operator](*sides)
            case Compare(operator, left, right, _):
                return COMPARE[operator](self.value(left, thread, env, where), self.value(right, thread, env, where))
            case LogicalAnd(left, right, _):
                return self.value(left, thread, env, where) and self.value(right, thread, env, where)
            case LogicalOr(left, right, _):
                return self.value(left, thread, env, where) or self.value(right, thread, env, where)
            case Select(condition, if_true, if_false, _):
                chosen = if_true if self.value(condition, thread, env, where) else if_false
                return self.value(chosen, thread, env, where)
            case Unary("not", operand, _):
                return not self.value(operand, thread, env, where)
            case Cast(operand, _):
                return self.value(operand, thread, env, where)
            case Load(buffer, (index,), dtype):
                place = self.value(index, thread, env, where)
                size = dtype.bits * dtype.lanes // 8
                self.touch(buffer, place * buffer.dtype.itemsize, size, thread, where, False)
                undefined = 0 if buffer.scope is Scope.LOCAL else None
                return self.memory.get(self.address(buffer, place, thread), undefined)
        raise AssertionError(f"no rule for {type(expression).__name__} {list(children(expression))}")


def races(program: Program, **values: int) -> list[str]:
    """Races of the program's kernel in one CTA; ``n``: the value of the symbol that loops may run to."""
    return referee(program, **values).races


def faults(program: Program, **values: int) -> list[str]:
    """Races, and mbarriers that may be a phase further than a thread expects."""
    found = referee(program, **values)
    return found.races + found.missed


def referee(program: Program, **values: int) -> Referee:
    """The referee after its run: also what every store stored."""
    result = Referee(program, {"bx": 0, "by": 0, "bz": 0, "n": 2, **values})
    result.run()
    return result

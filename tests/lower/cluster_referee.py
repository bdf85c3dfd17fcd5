"""The referee for a cluster: the threads of all its CTAs, in random order, with multicast, remote arrivals and wgmma.

Threads are numbered through the cluster. Shared memory and barriers are each CTA's own, looked at in units of 16 bytes;
global memory is not looked at. A wgmma is an agent that reads its operands once all threads of the warpgroup are there,
and that the threads learn of in ``wgmma.wait_group``. It is an error to arrive on a barrier of a CTA that has ended, or
to multicast into its memory.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from math import prod

from ptxtile.ir import gpu_ops as g
from ptxtile.ir.buffers import Scope
from ptxtile.ir.cluster_ops import ClusterArrive, ClusterWait, MbarrierArriveRemote
from ptxtile.ir.expressions import Call, Expr, SharedAddress, Var, as_expr
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import children
from ptxtile.ir.statements import Specialized, Statement
from ptxtile.ir.tensor_core_ops import Wgmma, WgmmaCommitGroup, WgmmaFence, WgmmaWaitGroup
from ptxtile.ir.types import parse_dtype
from ptxtile.ir.warp_ops import SyncWarp
from tests.lower.race_referee import Agent, Mbarrier, Referee

WARP, WARPGROUP, UNIT = 32, 128, 16
PATIENCE = 50
"""Draws of a thread before a slow one is taken."""
IGNORED = (g.SetMaxRegisters, g.PrefetchTensorMap, g.FenceMbarrierInit, WgmmaFence)


class ClusterReferee(Referee):
    """One cluster, that of block 0. ``seed``: of the order in which threads run."""

    def __init__(self, program: Program, seed: int, **values: int) -> None:
        super().__init__(program, values)
        self.boxes = {m.name: (m.tensor, prod(m.box) * parse_dtype(m.dtype).bits // 8) for m in program.tensor_maps}
        self.threads, self.ctas = self.kernel.threads, prod(self.kernel.cluster)
        self.agents = [Agent({t: 0}) for t in range(self.threads * self.ctas)]
        self.random = random.Random(seed)
        self.running = [self.threads] * self.ctas
        self.slow = (self.random.randrange(self.ctas), self.random.random() < 0.5)
        """(CTA, whether its consumers) of threads that lag behind the others."""
        self.arrived: dict[int, int] = defaultdict(int)
        """By thread: how often it arrived at the cluster's barrier."""
        self.known_at_arrival: dict[int, dict[int, int]] = {}
        self.rounds: dict[int, dict[int, int]] = {}
        """By round of the cluster's barrier: what all threads knew when they arrived."""
        self.multiplying: dict[int, list[list[int]]] = defaultdict(lambda: [[]])
        """By thread: groups of wgmma agents, the last one not committed yet."""

    def place(self, cta: int) -> dict[str, int]:
        """The block indices of a CTA of the cluster."""
        indices = {}
        for var, size in zip(self.kernel.block_vars, self.kernel.cluster, strict=True):
            indices[var.name], cta = cta % size, cta // size
        return indices

    def run(self) -> list[str]:
        everyone = range(self.threads * self.ctas)
        running = {
            t: self.events(self.kernel.body, t, {**self.values, **self.place(t // self.threads)}, ()) for t in everyone
        }
        waiting: dict[tuple, list[int]] = defaultdict(list)
        ready = list(everyone)
        while ready:
            position = self.next_of(ready)
            ready[position], ready[-1] = ready[-1], ready[position]
            thread = ready.pop()
            event = next(running[thread], None)
            if event is None:
                self.running[thread // self.threads] -= 1
            else:
                waiting[event].append(thread)
            for event, threads in list(waiting.items()):
                if threads and self.may_go_on(event, threads):
                    ready.extend(waiting.pop(event))
        stuck = sorted({(key[0], *map(str, key[1:])) for key, threads in waiting.items() if threads})
        if stuck:
            self.races.append(f"threads wait forever at {stuck[:4]}")
        return self.races

    def next_of(self, ready: list[int]) -> int:
        """Which of the threads that can run does: any, but rarely one of the slow ones."""
        for _ in range(PATIENCE):
            position = self.random.randrange(len(ready))
            cta, own = divmod(ready[position], self.threads)
            if (cta, own < self.kernel.user_threads) != self.slow:
                break
        return position

    # -- events ----------------------------------------------------------------------------------------------------

    def events(self, node: Statement, thread: int, env: dict, where: tuple) -> Iterator[tuple]:
        cta, own = thread // self.threads, thread % self.threads
        match node:
            case g.BarSync(identifier, threads):
                yield "barrier", cta, identifier, threads
            case SyncWarp():
                yield "warp", cta, own // WARP, where
            case g.MbarrierWait(barrier, index, parity, _):
                place = self.value(index, thread, env, where)
                self.touch_bytes(f"{cta} {barrier.name}", place * UNIT, 1, thread, where, False)
                yield "wait", f"{cta} {barrier.name}", place, self.value(parity, thread, env, where)
            case ClusterArrive():
                self.arrived[thread] += 1
                self.tick(thread)
                self.known_at_arrival[thread] = dict(self.agents[thread].clock)
            case ClusterWait():
                yield "cluster", self.arrived[thread]
            case Wgmma():
                yield "wgmma", cta, own // WARPGROUP, where, tuple(self.operands(node, thread, env, where))
            case Specialized(roles):
                for position, role in enumerate(roles):
                    if role.first_thread <= own < role.first_thread + role.threads:
                        yield from self.events(role.body, thread, env, (*where, position))
            case _:
                yield from super().events(node, thread, env, where)

    def may_go_on(self, event: tuple, threads: list[int]) -> bool:
        match event:
            case ("barrier", _, identifier, count):
                return self.met(threads, self.threads if identifier == 0 else count)
            case ("warp", *_):
                return self.met(threads, WARP)
            case ("cluster", times):
                if any(self.arrived[t] < times for t in range(self.threads * self.ctas)):
                    return False
                if times not in self.rounds:
                    self.rounds[times] = {}
                    for clock in self.known_at_arrival.values():
                        for agent, time in clock.items():
                            self.rounds[times][agent] = max(self.rounds[times].get(agent, 0), time)
                for thread in threads:
                    self.learn(thread, self.rounds[times])
                return True
            case ("wgmma", cta, _, where, operands):
                if len(threads) < WARPGROUP:
                    return False
                clocks = [self.agents[thread].clock for thread in threads]
                common = {a: min(c.get(a, 0) for c in clocks) for a in clocks[0]}
                agent = self.new_agent({a: time for a, time in common.items() if time})
                for start, size in operands:
                    self.touch_bytes(f"shared {cta}", start, size, agent, where, False, proxy=True)
                for thread in threads:
                    self.multiplying[thread][-1].append(agent)
                return True
        return super().may_go_on(event, threads)

    def met(self, threads: list[int], count: int) -> bool:
        if len(threads) < count:
            return False
        self.join(threads)
        return True

    def tick(self, thread: int) -> None:
        agent = self.agents[thread]
        agent.time += 1
        agent.clock[thread] = agent.time

    def operands(self, node: Wgmma, thread: int, env: dict, where: tuple) -> Iterator[tuple[int, int]]:
        """(first byte, bytes) of each operand: whole rows of its swizzle's span, K-major, from the descriptor on."""
        for descriptor, rows in ((node.descriptor_a, 64), (node.descriptor_b, node.n)):
            if descriptor is not None:
                value = self.value(descriptor, thread, env, where)
                span = {1: 128, 2: 64, 3: 32}[value >> 62]
                start = (value & 0x3FFF) << 4
                yield start - start % (8 * span), rows * span

    def operation(self, node: Statement, thread: int, env: dict, where: tuple) -> None:
        cta, agent = thread // self.threads, self.agents[thread]
        match node:
            case g.TmaLoad():
                self.load(node, thread, env, where)
            case MbarrierArriveRemote(barrier, index, target):
                place, other = (self.value(e, thread, env, where) for e in (index, target))
                self.reach(other, f"thread {thread} arrives")
                self.touch_bytes(f"{other} {barrier.name}", place * UNIT, 1, thread, where, False)
                self.barrier(other, barrier.name, place).arrive(agent.clock)
            case g.MbarrierArrive(barrier, index) | g.MbarrierArriveExpectTx(barrier, index):
                place = self.value(index, thread, env, where)
                self.touch_bytes(f"{cta} {barrier.name}", place * UNIT, 1, thread, where, False)
                known = self.barrier(cta, barrier.name, place)
                if isinstance(node, g.MbarrierArriveExpectTx):
                    known.transfer(node.bytes, {})
                known.arrive(agent.clock)
            case g.MbarrierInit(barrier, index, arrivals):
                place = self.value(index, thread, env, where)
                self.touch_bytes(f"{cta} {barrier.name}", place * UNIT, 1, thread, where, True)
                self.mbarriers[f"{cta} {barrier.name}", place] = Mbarrier(arrivals, arrivals)
            case WgmmaCommitGroup():
                self.multiplying[thread].append([])
            case WgmmaWaitGroup(pending):
                committed = self.multiplying[thread][:-1]
                for group in committed[: max(len(committed) - pending, 0)]:
                    for number in group:
                        self.learn(thread, self.agents[number].clock)
            case _ if not isinstance(node, IGNORED):
                super().operation(node, thread, env, where)

    def load(self, node: g.TmaLoad, thread: int, env: dict, where: tuple) -> None:
        cta, (_, size) = thread // self.threads, self.boxes[node.tensor_map]
        start = self.value(node.offset, thread, env, where) * node.shared.dtype.itemsize
        start += node.shared.storage.offset or 0
        index = self.value(node.index, thread, env, where)
        mask = 1 << cta if node.multicast is None else self.value(as_expr(node.multicast), thread, env, where)
        for other in (rank for rank in range(self.ctas) if mask >> rank & 1):
            self.reach(other, f"thread {thread} loads")
            agent = self.new_agent(self.agents[thread].clock)
            self.touch_bytes(f"{other} {node.barrier.name}", index * UNIT, 1, agent, where, False)
            self.touch_bytes(f"shared {other}", start, size, agent, where, True, proxy=True)
            self.barrier(other, node.barrier.name, index).transfer(-size, self.agents[agent].clock)

    def barrier(self, cta: int, name: str, place: int) -> Mbarrier:
        key = (f"{cta} {name}", place)
        if key not in self.mbarriers:
            self.races.append(f"{name} {place} of CTA {cta} is used before it is initialised")
            return Mbarrier(1, 1)
        return self.mbarriers[key]

    def reach(self, cta: int, who: str) -> None:
        if self.running[cta] == 0:
            self.races.append(f"{who} in CTA {cta}, which has ended")

    # -- memory ----------------------------------------------------------------------------------------------------

    def touch(self, buffer, start, width, agent, where, writes, proxy=False) -> None:
        if buffer.scope is Scope.SHARED:
            memory = f"shared {agent // self.threads}"
            self.touch_bytes(memory, start + (buffer.storage.offset or 0), width, agent, where, writes, proxy)

    def touch_bytes(self, memory, start, width, agent, where, writes, proxy=False) -> None:
        if memory[0].isdigit() or memory.startswith("shared "):
            first, end = start // UNIT, -(-(start + width) // UNIT)
            super().touch_bytes(memory, first, end - first, agent, where, writes, proxy)

    def check(self, a: tuple, b: tuple, memory: str, byte: int, a_writes: bool, b_writes: bool) -> None:
        if len(self.races) < 20:  # one mistake is found in very many units
            super().check(a, b, memory.split()[0], byte, a_writes, b_writes)

    def address(self, buffer, place: int, thread: int) -> tuple:
        if buffer.scope is Scope.SHARED:
            return f"shared {thread // self.threads}", place * buffer.dtype.itemsize + (buffer.storage.offset or 0)
        return super().address(buffer, place, thread)

    def value(self, expression: Expr, thread: int, env: dict, where: tuple):
        match expression:
            case Var(name, _) if name == self.kernel.thread.name:
                return thread % self.threads
            case Call():
                for argument in children(expression):
                    self.value(argument, thread, env, where)
                return None
            case SharedAddress(buffer, offset):
                place = self.value(offset, thread, env, where) * buffer.dtype.itemsize
                return place + (buffer.storage.offset or 0)
        return super().value(expression, thread, env, where)


def cluster_races(program: Program, seed: int = 0, **values: int) -> list[str]:
    """Races in one cluster of the program's kernel."""
    return ClusterReferee(program, seed, **values).run()

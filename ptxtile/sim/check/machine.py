"""The machine under the checker: warps (or warpgroups, where instructions need whole ones) of each CTA that run one
after another in an order drawn from a seed, every access judged, every synchronization recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ptxtile.errors import DeadlockError, SimulationError
from ptxtile.ir.atomic_ops import ATOMIC_OPS
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.manual_ops import InlinePtx
from ptxtile.ir.statements import Specialized, Statement
from ptxtile.ir.tile_ops import Print
from ptxtile.ir.types import DType
from ptxtile.sim.check import accesses
from ptxtile.sim.check.clocks import WARP, Clocks
from ptxtile.sim.check.definedness import Undefined, Variables
from ptxtile.sim.check.effects import CheckedEffects
from ptxtile.sim.check.findings import Finding
from ptxtile.sim.check.global_shadows import GlobalShadows
from ptxtile.sim.check.grids import GridMeetings
from ptxtile.sim.check.hooks import HOOKS, Hook, rule_of
from ptxtile.sim.check.kernel_facts import KernelFacts
from ptxtile.sim.check.mbarriers import CheckedMbarrier
from ptxtile.sim.check.naming import thread_in_words, warps_in_words
from ptxtile.sim.check.watch import Watch
from ptxtile.sim.control_flow import AnyOf, Coroutine, Executor, Turn, Wait
from ptxtile.sim.dtypes import Value
from ptxtile.sim.machine import CtaGroup, KernelContext, Threads
from ptxtile.sim.masks import Mask
from ptxtile.sim.private import PRIVATE_SCOPES
from ptxtile.sim.rules.mbarriers import Mbarrier

PAUSE = 0.2
"""How likely a warp lets others go first after an operation that orders something."""

MOST_KNOWN = 1 << 14
"""Values of expressions that a unit keeps."""

MOST_TURNS = 10_000
"""Turns without anything but spinning, after which a program is taken to spin for ever."""

_Item = TypeVar("_Item")


@dataclass(slots=True)
class Withheld:
    """``statement`` (by identity) runs as ever, but orders accesses only as ``instead`` would, None: not at all.
    ``executed``: how often it ran; ``awaited``, of an arrival: whether anybody has waited for a phase that it arrived
    in."""

    statement: Statement
    instead: Statement | None
    executed: int = 0
    awaited: bool = False


@dataclass(slots=True)
class Schedule:
    """One run: ``seed`` draws the order of warps and blocks; ``strict`` and ``withheld`` as for ``check``."""

    seed: int = 0
    strict: bool = False
    withheld: Withheld | None = None


def _nothing() -> None:
    return None


class CannotCheck(SimulationError):
    """The program has what can only run on a card."""

    def __init__(self, error: SimulationError) -> None:
        super().__init__(error.message, location=error.location, expected=error.expected, got=error.got)


class CheckedGroup(CtaGroup):
    """One CTA or cluster (or all CTAs of a grid that talk to each other) under the checker."""

    effects: CheckedEffects

    def __init__(
        self, context: KernelContext, facts: KernelFacts, first: int, ctas: int, schedule: Schedule,
        shadows: GlobalShadows, report: Callable[[Finding], None],
    ) -> None:  # fmt: skip
        super().__init__(context, first, ctas)
        self.random = random.Random(schedule.seed * 1_000_003 + first)
        self.schedule = schedule
        self.facts = facts
        self.clocks = Clocks(ctas, context.kernel.threads, facts.mbarriers, facts.engines)
        self.effects = CheckedEffects(self.effects, facts)
        self.watch = self.effects.watch = Watch(self, self.clocks, shadows, report)
        self.grid_meetings = GridMeetings(self.clocks)
        self._numbered: list[CheckedMbarrier] = []
        self.waiting: list[tuple[CheckedThreads, Wait]] = []
        """Who waits for what, when nobody can go on."""
        self.culprit = ""
        """Who did what ended the run."""
        self.on_turn: Callable[[], None] = _nothing
        """Called now and then."""

    # mbarriers ----------------------------------------------------------------------------------------------------

    def make_mbarrier(self, name: str) -> CheckedMbarrier:
        made = CheckedMbarrier(name, self.ctas, len(self._numbered), self.clocks)
        self._numbered.append(made)
        return made

    def checked_mbarriers(self) -> Sequence[CheckedMbarrier]:
        return self._numbered

    def mbarrier_agent(self, mbarrier: Mbarrier, cta: int) -> int:
        assert isinstance(mbarrier, CheckedMbarrier)
        return self.clocks.mbarrier_agent(mbarrier.number, cta)

    def mbarrier_name(self, number: int) -> str:
        return self._numbered[number].name if number < len(self._numbered) else f"mbarrier {number}"

    def mbarrier_offset(self, mbarrier: Mbarrier) -> int:
        return next(address for address, known in self.mbarriers.items() if known is mbarrier)

    # Places -------------------------------------------------------------------------------------------------------

    def cluster_of(self, cta: int) -> int:
        """A number for the cluster of a CTA."""
        return int(self.cluster_members()[cta][0])

    def role_of(self, thread: int) -> str:
        """The role of a thread of the CTA, or nothing."""
        for role in self.facts.roles:
            if role.first_thread <= thread < role.first_thread + role.threads:
                return role.name
        return ""

    # Running ------------------------------------------------------------------------------------------------------

    def run(self) -> Coroutine:
        threads = self.context.kernel.threads
        firsts = range(0, threads, self.facts.unit)
        units = [
            self._unit(None if self.ctas == 1 else cta, first, min(self.facts.unit, threads - first))
            for cta in range(self.ctas)
            for first in firsts
        ]
        return self._in_any_order(units)

    def _unit(self, cta: int | None, first: int, lanes: int) -> tuple[CheckedThreads, Coroutine]:
        kernel = self.context.kernel
        threads = CheckedThreads(self, cta, first, lanes)
        threads.variables.update(self.context.variables)
        index = self.block_index(cta or 0)
        threads.variables.update((var.name, place) for var, place in zip(kernel.block_vars, index, strict=True))
        threads.variables[kernel.thread.name] = np.arange(first, first + lanes, dtype=np.int32)[None, :]
        return threads, threads.execute(kernel.body, threads.everyone)

    def _in_any_order(self, units: list[tuple[CheckedThreads, Coroutine]]) -> Generator[Wait, None, list[Any]]:
        """Runs units in turns whose order is drawn, each until it waits or pauses."""
        children = dict(enumerate(units))
        waits: dict[int, Wait] = {}
        turns = 0
        while children:
            self.on_turn()
            ready = [n for n in children if n not in waits or waits[n].ready()]
            if not ready:
                self.waiting = [(children[n][0], wait) for n, wait in waits.items()]
                yield AnyOf(list(waits.values()))
                continue
            chosen = self.random.choice(ready)
            threads, coroutine = children[chosen]
            before = threads.steps
            try:
                waits[chosen] = next(coroutine)
            except SimulationError:
                self.culprit = self.culprit or warps_in_words(self.watch, threads.numbers(threads.everyone))
                raise
            except StopIteration:
                self.watch.outstanding.leave(threads.cta or 0, threads.numbers(threads.everyone))
                del children[chosen]
                waits.pop(chosen, None)
                turns = 0
                continue
            turns = turns + 1 if type(waits[chosen]) is Turn and threads.steps == before else 0
            if turns > MOST_TURNS * len(children):
                self.waiting = [(children[n][0], wait) for n, wait in waits.items()]
                raise DeadlockError("deadlock: nobody can go on, some threads spin")
        return []


class CheckedThreads(Threads):
    """One unit of warps, of the CTA ``cta`` of its group (None: of its only one). ``everyone``: the mask of all of its
    threads. ``steps``: operations and stores that it has carried out, other than atomic ones."""

    group: CheckedGroup

    def __init__(self, group: CheckedGroup, cta: int | None, first: int, lanes: int) -> None:
        super().__init__(group, group.context.kernel.name, first, lanes, group.context.mixed)
        self.cta = cta
        self.clocks = group.clocks
        self.key = (cta or 0) * self.clocks.stride + first
        self.everyone: Mask = None
        if cta is not None:
            self.everyone = np.zeros((group.ctas, 1), dtype=bool)
            self.everyone[cta] = True
        self.all_lanes = np.zeros((group.ctas, lanes), dtype=bool)
        self.all_lanes[cta or 0] = True
        self.variables = Variables(self)
        self._undefined: Undefined | None = None
        self._pure = group.facts.tables.pure
        self._known, self.places = group.facts.tables.part(self.key, first)
        self.steps = 0
        self._numbers = self.key + np.arange(lanes)
        self._warps = self._by_warp(self._numbers)

    # Threads ------------------------------------------------------------------------------------------------------

    def numbers(self, mask: Mask) -> np.ndarray:
        """The active threads, as numbers in the group, in the order of :meth:`active_lanes`."""
        if mask is self.everyone:
            return self._numbers
        ctas, lanes = self.active_lanes(mask)
        return ctas * self.clocks.stride + lanes + self.first_thread

    def warps(self, mask: Mask) -> list[tuple[int, np.ndarray]]:
        """(CTA, numbers of the active threads) of each warp that has some."""
        return self._warps if mask is self.everyone else self._by_warp(self.numbers(mask))

    def _by_warp(self, numbers: np.ndarray) -> list[tuple[int, np.ndarray]]:
        warps = numbers // WARP
        cuts = np.flatnonzero(warps[1:] != warps[:-1]) + 1
        return [(int(part[0]) // self.clocks.stride, part) for part in np.split(numbers, cuts)]

    def lanes_of(self, mask: Mask) -> np.ndarray:
        """[CTA, lane]: the active threads."""
        return self.all_lanes if mask is self.everyone else np.broadcast_to(np.asarray(mask), self.all_lanes.shape)

    def shuffled(self, numbers: np.ndarray) -> np.ndarray:
        return np.array(self.group.random.sample(numbers.tolist(), len(numbers)))

    def in_some_order(self, items: list[_Item]) -> list[_Item]:
        return self.group.random.sample(items, len(items))

    # Values that depend on registers that were not written -----------------------------------------------------------

    def note_undefined(self, undefined: Undefined) -> None:
        self._undefined = undefined.joined(self._undefined)

    def take_undefined(self) -> Undefined | None:
        """What the value that was evaluated since the last call depends on."""
        undefined, self._undefined = self._undefined, None
        return undefined

    def report_undefined(self, what: str, mask: Mask) -> None:
        """``what`` a thread does with the value that was evaluated, if that depends on an unwritten register."""
        undefined = self.take_undefined()
        if undefined is None or self.statement is None:
            return
        lanes = undefined.lanes & self.lanes_of(mask)
        if lanes.any():
            cta, lane = (int(place) for place in np.argwhere(lanes)[0])
            who = thread_in_words(self.group.watch, cta * self.clocks.stride + self.first_thread + lane)
            message = f"{who} {what} a value made from {undefined.register}, a register that it has not written"
            finding = Finding("uninitialised", message, (self.statement.location,), "give it a value first")
            self.group.watch.report(finding)

    def decide(self, expression: Expr, mask: Mask) -> Value:
        value = super().decide(expression, mask)
        self.report_undefined("branches on", mask)
        return value

    def fork(self) -> Executor:
        variables = self.variables
        assert isinstance(variables, Variables)
        forked = super().fork()
        assert isinstance(forked, CheckedThreads)
        forked.variables = Variables(forked, variables)
        return forked

    # Execution ----------------------------------------------------------------------------------------------------

    def evaluate(self, node: Expr, mask: Mask = None) -> Value:
        pure = self._pure.get(id(node))
        if pure is None:
            return super().evaluate(node, mask)
        key: tuple[Any, ...] = (id(node),)
        for name in pure.sources:
            value = self.variables[name]
            if type(value) is not int:  # threads that are in different iterations, or blocks that run together
                return super().evaluate(node, mask)
            key += (value,)
        value = self._known.get(key)
        if value is None:
            lanes = slice(self.first_thread, self.first_thread + self.lanes)
            value = self.group.facts.tables.value_of_some(key, pure, lanes)
            if len(self._known) > MOST_KNOWN:
                self._known.clear()
            self._known[key] = value
        return value

    def execute_operation(self, statement: Statement, mask: Mask) -> Coroutine:
        make: Callable[..., Hook] | None = HOOKS.get(type(statement))
        if not isinstance(statement, ATOMIC_OPS):
            self.steps += 1
        if make is None and not isinstance(statement, (GpuOp, Print)):
            return (yield from super().execute_operation(statement, mask))
        hook = iter(()) if make is None else self._hook(make, statement, mask)
        next(hook, None)  # before the rule
        wait = self._carry_out(statement, mask)
        next(hook, None)  # after it
        if wait is not None:
            yield wait
            wait.finish()
        next(hook, None)  # and after what it waits for
        self.report_undefined("gives to an operation", mask)  # what it has not passed on to its results
        if make is not None and mask is self.everyone and self.group.random.random() < PAUSE:
            yield Turn()  # (not in a branch, whose lanes have to come back together)
        return mask

    def _carry_out(self, statement: Statement, mask: Mask) -> Wait | None:
        try:
            return rule_of(statement, self.group.facts)(self, statement, mask)
        except SimulationError as error:
            if isinstance(statement, InlinePtx):
                raise CannotCheck(error) from error
            raise

    def _hook(self, make: Callable[..., Hook], statement: Statement, mask: Mask) -> Iterator[None]:
        withheld = self.group.schedule.withheld
        if withheld is None or withheld.statement is not statement:
            return make(self, statement, mask)
        withheld.executed += 1
        return iter(()) if withheld.instead is None else make(self, withheld.instead, mask)

    def run_roles(self, statement: Specialized, mask: Mask) -> Coroutine:
        """A unit belongs to one role."""
        first, end = self.first_thread, self.first_thread + self.lanes
        for role in statement.roles:
            if role.first_thread <= first and end <= role.first_thread + role.threads:
                outer, self.name = self.name, role.name
                result = yield from self.execute(role.body, mask)
                self.name = outer
                return result
        return mask

    # Memory -------------------------------------------------------------------------------------------------------

    def load(self, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> Value:
        if buffer.scope in PRIVATE_SCOPES:
            self.group.watch.registers.read(self, buffer, index, dtype, mask)
            return super().load(buffer, index, dtype, mask)
        return accesses.load(self, buffer, index, dtype, mask)

    def store(self, buffer: Buffer, index: Value, value: Value, dtype: DType, mask: Mask) -> None:
        if buffer.scope in PRIVATE_SCOPES:
            super().store(buffer, index, value, dtype, mask)
            self.group.watch.registers.written(self, buffer, index, dtype, mask)
            return
        self.steps += 1
        self.report_undefined(f"stores to {buffer.name}", mask)
        accesses.store(self, buffer, index, value, dtype, mask)

"""Structured control flow on masks, as a Python generator that yields what it waits for.

:meth:`Executor.execute` runs a statement on the lanes of a mask and returns the lanes that go on after it: those that
met a Break or Continue are missing until their loop takes them up again. Loads happen on active lanes only.

The two sides of a divergent If run one after the other; but when one of them blocks, the other goes on, even past
the If to the end of the enclosing Seq, as the warps of a CTA may; lanes of one warp meet again after the If. So a
deadlock is never reported of warps that were merely kept together, except that they begin a loop's next iteration
together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from copy import copy
from typing import Any

import numpy as np

from ptxtile.errors import Location, SimulationError
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.program import Function
from ptxtile.ir.rewrite import buffers_of, walk
from ptxtile.ir.statements import Allocate, Break, Continue, For, If, Let, Seq, Statement, Store, While
from ptxtile.ir.types import DType
from ptxtile.sim.dtypes import Value, held_dtype
from ptxtile.sim.evaluator import Evaluator
from ptxtile.sim.masks import NO_LANES, Mask, split, uniform_integer, union
from ptxtile.sim.private import PRIVATE_SCOPES, PrivateMemory


class Wait:
    """Something that a coroutine waits for."""

    location: Location | None = None

    def ready(self) -> bool:
        raise NotImplementedError

    def describe(self) -> list[str]:
        """What is missing, one line for each blocked role, for the deadlock report."""
        raise NotImplementedError

    def finish(self) -> None:
        """What those who waited do when it is ready."""


class Turn(Wait):
    """Waits for nothing: lets other coroutines run, so that a loop spinning on memory sees their stores."""

    def ready(self) -> bool:
        return True

    def describe(self) -> list[str]:
        return []


class AnyOf(Wait):
    """Ready when one of several is."""

    def __init__(self, waits: list[Wait]) -> None:
        self.waits = waits

    def ready(self) -> bool:
        return any(wait.ready() for wait in self.waits)

    def describe(self) -> list[str]:
        return [line for wait in self.waits for line in wait.describe()]


Coroutine = Generator[Wait, None, Any]


def interleave(coroutines: Iterable[Coroutine]) -> Generator[Wait, None, list[Any]]:
    """Runs the coroutines in turn, each until its next wait; returns their results in order.

    The order of turns is the one place that a schedule is chosen at.
    """
    children = dict(enumerate(coroutines))
    results: list[Any] = [None] * len(children)
    waits: dict[int, Wait] = {}
    while children:
        for position, coroutine in tuple(children.items()):
            if position in waits and not waits[position].ready():
                continue
            try:
                waits[position] = next(coroutine)
            except StopIteration as stop:
                results[position] = stop.value
                del children[position]
                waits.pop(position, None)
        if waits:
            yield AnyOf(list(waits.values()))
    return results


class _Loop:
    """The lanes that left the current iteration of a loop early."""

    def __init__(self) -> None:
        self.continued: Mask = NO_LANES
        self.broken = False


class Executor(Evaluator):
    """Runs statements for one group of lanes. Memory other than registers and locals is a subclass's matter."""

    def __init__(self, functions: Iterable[Function] = (), mixed: frozenset[str] = frozenset()) -> None:
        super().__init__(functions, memory=self)
        self.private = PrivateMemory(mixed)
        self.statement: Statement | None = None
        """What is being run, for a checker."""
        self._blocking: dict[int, tuple[Statement, bool]] = {}
        self._calls = 0

    # Memory -----------------------------------------------------------------------------------------------------

    def load(self, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> Value:
        if buffer.scope not in PRIVATE_SCOPES:
            raise SimulationError(f"{buffer.name} is no local variable and cannot be read here")
        return self.private.load(buffer, index, dtype, mask)

    def store(self, buffer: Buffer, index: Value, value: Value, dtype: DType, mask: Mask) -> None:
        if buffer.scope not in PRIVATE_SCOPES:
            raise SimulationError(f"{buffer.name} is no local variable and cannot be written here")
        self.private.store(buffer, index, value, dtype, mask)

    def shared_start(self, buffer: Buffer) -> int:
        raise SimulationError(f"{buffer.name} has no shared address here")

    # Statements -------------------------------------------------------------------------------------------------

    def execute(self, statement: Statement, mask: Mask = None, loop: _Loop | None = None) -> Coroutine:
        """A generator that returns the mask of lanes that go on."""
        self.statement = statement
        try:
            plain = _PLAIN.get(type(statement))
            if plain is not None:
                return plain(self, statement, mask, loop)
            structured = _STRUCTURED.get(type(statement))
            if structured is None:
                return (yield from self.execute_operation(statement, mask))
            return (yield from structured(self, statement, mask, loop))
        except SimulationError as error:
            if error.location is None:
                error.location = statement.location
            raise

    def execute_operation(self, statement: Statement, mask: Mask) -> Coroutine:
        """A statement that this class has no rule for: a GPU op, Print, Specialized."""
        raise SimulationError(f"{type(statement).__name__} cannot run here")
        yield

    def decide(self, expression: Expr, mask: Mask) -> Value:
        """What control flow depends on: a condition or the bound of a loop."""
        return self.evaluate(expression, mask)

    def divided_warps(self, holds: Mask, fails: Mask) -> np.ndarray:
        """The lanes of warps that have lanes in both masks. Here, where there are no warps: every lane."""
        return np.ones((), dtype=bool)

    def fork(self) -> Executor:
        """An executor for some of the lanes that goes its own way: it sees the same private storages, but binds
        variables and allocates for itself."""
        forked = copy(self)
        forked.variables = dict(self.variables)
        forked.private = self.private.fork()
        forked.memory = forked
        return forked

    def call_function(self, function: Function, arguments: list[Value], lanes: int, mask: Mask) -> Value:
        for parameter, argument in zip(function.parameters, arguments, strict=True):
            self.variables[parameter.name] = argument
        if lanes > 1 and mask is not None:
            mask = mask[..., None]
        self._calls += 1
        for wait in self.execute(function.body, mask):
            if not isinstance(wait, Turn):
                raise SimulationError(f"function {function.name} waits")
        self._calls -= 1
        return self.evaluate(function.result, mask)

    def may_wait(self, statement: Statement) -> bool:
        """Whether ``statement`` can give up its turn: it has a GPU op (most cannot block) or a While in it."""
        if self._calls:  # a device function has no memory in common with anybody
            return False
        known = self._blocking.get(id(statement))
        if known is None:
            known = statement, any(isinstance(inner, (GpuOp, While)) for inner in walk(statement))
            self._blocking[id(statement)] = known
        return known[1]


def _seq(executor: Executor, node: Seq, mask: Mask, loop: _Loop | None) -> Coroutine:
    for position, statement in enumerate(node.statements):
        executor.statement = statement
        try:
            plain = _PLAIN.get(type(statement))
            if plain is not None:
                mask = plain(executor, statement, mask, loop)
            elif isinstance(statement, If):
                mask, went_on = yield from _branch(executor, statement, mask, loop, node.statements[position + 1 :])
                if went_on:
                    return mask
            else:
                mask = yield from executor.execute(statement, mask, loop)
        except SimulationError as error:
            if error.location is None:
                error.location = statement.location
            raise
        if mask is NO_LANES:
            return NO_LANES
    return mask


def _let(executor: Executor, node: Let, mask: Mask, _: _Loop | None) -> Mask:
    executor.variables[node.var.name] = executor.evaluate(node.value, mask)
    return mask


def _allocate(executor: Executor, node: Allocate, mask: Mask, _: _Loop | None) -> Mask:
    if node.buffer.scope in PRIVATE_SCOPES:
        executor.private.allocate(node.buffer)
    return mask


def _store(executor: Executor, node: Store, mask: Mask, _: _Loop | None) -> Mask:
    if len(node.indices) != 1:
        raise SimulationError(f"{node.buffer.name} is written with {len(node.indices)} indices, not one element offset")
    index = executor.evaluate(node.indices[0], mask)
    executor.store(node.buffer, index, executor.evaluate(node.value, mask), node.value.dtype, mask)
    return mask


def _if(executor: Executor, node: If, mask: Mask, loop: _Loop | None) -> Coroutine:
    mask, _ = yield from _branch(executor, node, mask, loop, ())
    return mask


def _branch(
    executor: Executor, node: If, mask: Mask, loop: _Loop | None, rest: tuple[Statement, ...]
) -> Generator[Wait, None, tuple[Mask, bool]]:
    """An If that ``rest`` follows; returns the lanes that go on, and whether they have run ``rest`` already."""
    holds, fails = split(mask, executor.decide(node.condition, mask))
    otherwise = node.otherwise if node.otherwise is not None else _NOTHING
    if holds is NO_LANES:
        return (yield from executor.execute(otherwise, fails, loop)), False
    if fails is NO_LANES:
        return (yield from executor.execute(node.then, holds, loop)), False
    if not executor.may_wait(node):
        then_mask = yield from executor.execute(node.then, holds, loop)
        else_mask = yield from executor.execute(otherwise, fails, loop)
        return (mask if then_mask is holds and else_mask is fails else union(then_mask, else_mask)), False
    sides = [_Side(executor.fork(), node.then, holds, loop), _Side(executor.fork(), otherwise, fails, loop)]
    moved = True
    while moved:
        moved = sides[0].advance() | sides[1].advance()
    if all(side.finished for side in sides):
        whole = all(side.result is side.mask for side in sides)
        return (mask if whole else union(sides[0].result, sides[1].result)), False
    together = executor.divided_warps(holds, fails)
    coroutines = [side.go_on(Seq(rest), loop, together) for side in sides]
    coroutines.append(_go_on_together(executor.fork(), sides, Seq(rest), loop, together))
    results = yield from interleave(coroutines)
    return union(union(results[0], results[1]), results[2]), True


class _Side:
    """One side of a divergent If that may wait."""

    def __init__(self, executor: Executor, body: Statement, mask: Mask, loop: _Loop | None) -> None:
        self.executor = executor
        self.mask = mask
        self.coroutine = executor.execute(body, mask, loop)
        self.wait: Wait | None = None
        self.finished = False
        self.result: Mask = NO_LANES

    def advance(self) -> bool:
        """Runs until this side ends, blocks, or gives up its turn; False when it could not run at all."""
        moved = False
        while not self.finished and not isinstance(self.wait, Turn) and (self.wait is None or self.wait.ready()):
            moved = True
            try:
                self.wait = next(self.coroutine)
            except StopIteration as stop:
                self.finished, self.result = True, stop.value
        return moved

    def go_on(self, rest: Statement, loop: _Loop | None, together: np.ndarray) -> Coroutine:
        """The remainder of this side, then ``rest`` for those of its lanes that are not in ``together``."""
        if not self.finished:
            assert self.wait is not None
            yield self.wait
            self.result = yield from self.coroutine
            self.finished = True
        alone = split(self.result, ~together)[0]
        return NO_LANES if alone is NO_LANES else (yield from self.executor.execute(rest, alone, loop))


class _BothSides(Wait):
    """Waits until both sides of an If have ended; they tell themselves what they wait for."""

    def __init__(self, sides: list[_Side]) -> None:
        self.sides = sides

    def ready(self) -> bool:
        return all(side.finished for side in self.sides)

    def describe(self) -> list[str]:
        return []


def _go_on_together(
    executor: Executor, sides: list[_Side], rest: Statement, loop: _Loop | None, together: np.ndarray
) -> Coroutine:
    """``rest`` for the lanes of warps that the If divided: they meet again after it."""
    if not together.any():
        return NO_LANES
    yield _BothSides(sides)
    lanes = split(union(sides[0].result, sides[1].result), together)[0]
    return NO_LANES if lanes is NO_LANES else (yield from executor.execute(rest, lanes, loop))


def _break(_: Executor, node: Break, mask: Mask, loop: _Loop | None) -> Mask:
    if loop is None:
        raise SimulationError("Break outside a loop")
    loop.broken = True
    return NO_LANES


def _continue(_: Executor, node: Continue, mask: Mask, loop: _Loop | None) -> Mask:
    if loop is None:
        raise SimulationError("Continue outside a loop")
    loop.continued = union(loop.continued, mask)
    return NO_LANES


def _iteration(executor: Executor, body: Statement, mask: Mask) -> Coroutine:
    """One iteration; returns the lanes that did not break out of the loop."""
    loop = _Loop()
    remaining = yield from executor.execute(body, mask, loop)
    return union(remaining, loop.continued) if loop.broken else mask


def _for(executor: Executor, node: For, mask: Mask, _: _Loop | None) -> Coroutine:
    start, stop = executor.decide(node.start, mask), executor.decide(node.stop, mask)
    first, last = uniform_integer(start, mask), uniform_integer(stop, mask)
    remaining = mask
    if first is not None and last is not None:
        for position in range(first, last, node.step):
            executor.variables[node.var.name] = position
            remaining = yield from _iteration(executor, node.body, remaining)
            if remaining is NO_LANES:
                break
        return mask
    for position, iteration in _divergent_positions(start, stop, node):
        remaining = split(remaining, iteration)[0]
        if remaining is NO_LANES:
            break
        executor.variables[node.var.name] = position
        remaining = yield from _iteration(executor, node.body, remaining)
        if remaining is NO_LANES:
            break
    return mask


def _divergent_positions(start: Value, stop: Value, node: For) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(loop variable, lanes that have such an iteration), for ever; counts in int64, where no bound overflows."""
    first, last = np.asarray(start).astype(np.int64), np.asarray(stop).astype(np.int64)
    iterations = -((first - last) // node.step) if node.step > 0 else -((last - first) // -node.step)
    iteration = 0
    while True:
        yield (first + iteration * node.step).astype(held_dtype(node.var.dtype)), iterations > iteration
        iteration += 1


def _while(executor: Executor, node: While, mask: Mask, _: _Loop | None) -> Coroutine:
    remaining = mask
    while True:
        remaining = split(remaining, executor.decide(node.condition, remaining))[0]
        if remaining is NO_LANES:
            return mask
        remaining = yield from _iteration(executor, node.body, remaining)
        if remaining is NO_LANES:
            return mask
        yield _TURN


_TURN = Turn()
_NOTHING = Seq(())

_PLAIN: dict[type, Callable[[Executor, Any, Mask, _Loop | None], Mask]] = {
    Let: _let,
    Allocate: _allocate,
    Store: _store,
    Break: _break,
    Continue: _continue,
}

_STRUCTURED: dict[type, Callable[..., Coroutine]] = {Seq: _seq, If: _if, For: _for, While: _while}


def mixed_storages(*bodies: Statement) -> frozenset[str]:
    """Names of private storages that buffers of different element dtypes view."""
    seen: dict[str, str] = {}
    mixed = set()
    for node in (node for body in bodies for node in walk(body)):
        for buffer in buffers_of(node):
            if buffer.scope in PRIVATE_SCOPES:
                name = seen.setdefault(buffer.storage.name, buffer.dtype.element_name)
                if name != buffer.dtype.element_name:
                    mixed.add(buffer.storage.name)
    return frozenset(mixed)

"""A rehearsal of what the threads of a kernel do at its barriers: which moments come before which, in every schedule.

Where threads go different ways (the branches of a condition on the thread), only barriers of the user's order what they
do. Here each group of threads that takes the same ways is walked through the kernel by itself, with all loops counted
out and everything else skipped, and the groups meet at named barriers and mbarriers as the hardware lets them. A
:class:`Moment` is one statement of one group; its clock says up to which moment of each group everything is known to be
done by then (:mod:`ptxtile.lower.rehearsal_clocks`).

The order holds in every schedule because a phase of a barrier is only taken to be complete if nobody else could have
been part of it: who arrives in a phase has to know that the one before is complete, and nobody arrives twice at a named
barrier in one phase (PTX ISA, «bar, barrier»). A wait on an mbarrier names a phase by parity; what passes it knows at
least the first phase of that parity after those that it knew before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Hashable, Mapping, Sequence
from dataclasses import replace
from math import lcm
from typing import Any

from ptxtile.ir import gpu_ops
from ptxtile.ir.access_context import Context, inlined
from ptxtile.ir.buffers import Scope
from ptxtile.ir.effects import private_results
from ptxtile.ir.enumeration import NotEnumerable, evaluate
from ptxtile.ir.expressions import Expr
from ptxtile.ir.manual_ops import BarArrive, BarAt, BarReduce, InlinePtx, MbarrierExpectTx
from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import contains, free_variables, has_load, statements_in, walk
from ptxtile.ir.statements import Break, Continue, For, If, Let, Seq, Specialized, Statement, Store, While
from ptxtile.ir.tensor_core_ops import WARP
from ptxtile.ir.warp_ops import SyncWarp
from ptxtile.lower.hazards import Path
from ptxtile.lower.rehearsal_clocks import Barrier, Group, Moment, Moments, Unclear, joined
from ptxtile.lower.rehearsal_values import FillIn, is_toggle, repetition
from ptxtile.records import record

MAXIMUM_MOMENTS = 8_000
"""A kernel whose groups come by more statements than this is not rehearsed to the end."""

LONG_LOOP = 16
"""Loops with more iterations count as loops of any number of iterations where there are too many moments."""

MAXIMUM_GROUPS = 32

MAXIMUM_RUNS = 64
"""Rehearsals of one kernel with different trip counts of loops whose number of iterations is only known at launch."""

NAMED = (gpu_ops.BarSync, BarArrive, BarReduce, BarAt)
_MBARRIERS = (gpu_ops.MbarrierArrive, gpu_ops.MbarrierArriveExpectTx, gpu_ops.MbarrierWait)
_OF_MBARRIERS = (*_MBARRIERS, gpu_ops.MbarrierInit, MbarrierExpectTx, gpu_ops.TmaLoad)
"""Bytes that a phase waits for besides arrivals only make it end later."""
_MEETINGS = (*NAMED, *_MBARRIERS)
_PRIVATE = (Scope.LOCAL, Scope.REGISTER)


class _TooLong(Unclear):
    """There are too many iterations to go through all of them."""


class _Split(Exception):
    """A group has to be two: ``threads`` (a bit for each) go a way of their own."""

    def __init__(self, threads: int) -> None:
        self.threads = threads


@record
class Rehearsals:
    """What happens in a kernel: once for each number of iterations that loops of unknown bounds may have, as far as
    these differ. ``period``: after so many iterations of such a loop all repeats."""

    runs: list[Moments]
    period: int


def rehearse(kernel: Kernel, context: Context) -> Rehearsals:
    """Raises Unclear."""
    try:
        return _in_all_lengths(kernel, context, MAXIMUM_MOMENTS)
    except _TooLong:
        return _in_all_lengths(kernel, context, LONG_LOOP)


def _in_all_lengths(kernel: Kernel, context: Context, longest: int) -> Rehearsals:
    """``longest``: the number of iterations of a loop with more counts as unknown."""
    runs = [_in_groups(kernel, context, defaultdict(lambda: 2), longest)]
    unknown = list(runs[0].asked)
    tried = 0
    while unknown:
        period, settled = _period_of(runs), max(run.settled for run in runs)
        lengths = settled + 2 * period + 3
        if lengths == tried:
            break
        if lengths ** len(unknown) > MAXIMUM_RUNS:
            raise Unclear
        tried, runs = lengths, []
        for number in range(lengths ** len(unknown)):
            trips = {key: number // lengths**position % lengths for position, key in enumerate(unknown)}
            runs.append(_in_groups(kernel, context, trips, longest))
    return Rehearsals([run.moments for run in runs], _period_of(runs))


def _period_of(runs: list[_Rehearsal]) -> int:
    """Variables that go back and forth are what they were after twice the number of iterations at most."""
    return lcm(*(run.period for run in runs)) * (2 if any(run.toggles for run in runs) else 1)


def _in_groups(kernel: Kernel, context: Context, trips: Mapping[Hashable, int], longest: int) -> _Rehearsal:
    groups = [(1 << kernel.threads) - 1]
    while len(groups) <= MAXIMUM_GROUPS:
        try:
            rehearsal = _Rehearsal(kernel, context, groups, trips, longest)
            rehearsal.run()
        except _Split as split:
            parts = [part for group in groups for part in (group & split.threads, group & ~split.threads)]
            groups = [part for part in parts if part]
        except (NotEnumerable, KeyError):
            raise Unclear from None
        else:
            return rehearsal
    raise Unclear


_Steps = Generator[None, None, str]
"""Yields while the group is blocked; ends with ``break`` or ``continue`` where the loop around is left so."""


class _Rehearsal:
    """One run. ``trips``: what to take for loops with bounds that are not constants. ``asked``: those that it met;
    ``settled`` and ``period``: from which iteration on what they do repeats, and after how many."""

    def __init__(
        self, kernel: Kernel, context: Context, groups: list[int], trips: Mapping[Hashable, int], longest: int
    ) -> None:
        import numpy as np

        self.kernel, self.context, self.trips, self.longest = kernel, context, trips, longest
        self.moments: Moments = defaultdict(list)
        self.asked: dict[Hashable, None] = {}
        self.settled, self.period, self.count = 0, 2, 0
        self.toggles = False
        self._barriers: dict[Hashable, Barrier] = {}
        self._steering: dict[int, bool] = {}
        self._groups = []
        for number, threads in enumerate(groups):
            numbers = np.array([t for t in range(kernel.threads) if threads >> t & 1])
            self._groups.append(Group(number, threads, {context.thread: numbers}))
        self._prepare()

    def _prepare(self) -> None:
        for node in statements_in(self.kernel.body):
            if isinstance(node, InlinePtx) and "bar" in node.template:
                raise Unclear
            if isinstance(node, gpu_ops.GpuOp) and hasattr(node, "barrier") and not isinstance(node, _OF_MBARRIERS):
                raise Unclear  # arrivals by other CTAs, or when something else is done
            if isinstance(node, gpu_ops.MbarrierInit):
                key = (node.barrier.storage.name, int(evaluate(node.index, {})))
                if key in self._barriers:
                    raise Unclear
                self._barriers[key] = Barrier(node.arrivals)

    def run(self) -> None:
        """Raises Unclear where the groups wait for each other for ever."""
        running = [self._statement(group, self.kernel.body, (), self.context) for group in self._groups]
        while running:
            before, left = self.count, []
            for steps in running:
                try:
                    next(steps)
                except StopIteration:
                    self.count += 1
                else:
                    left.append(steps)
            if self.count == before:
                raise Unclear
            running = left

    # -- statements ------------------------------------------------------------------------------------------------

    def _statement(self, group: Group, node: Statement, path: Path, context: Context) -> _Steps:
        if isinstance(node, Seq):
            for position, child in enumerate(node.statements):
                end = yield from self._statement(group, child, (*path, position), context)
                if end:
                    return end
                if isinstance(child, Let):
                    context = context.with_let(replace(child, value=self._known(group, child.value)))
            return ""
        self._note(group, path)
        if not self._steers(node):
            self._skip(group, node, context)
            return ""
        match node:
            case Break() | Continue():
                return "break" if isinstance(node, Break) else "continue"
            case For() | While():
                return (yield from self._loop(group, node, path, context))
            case If(condition, then, otherwise):
                if self._decide(group, condition, context):
                    return (yield from self._statement(group, then, (*path, "then"), context))
                if otherwise is not None:
                    where = "otherwise"
                    return (yield from self._statement(group, otherwise, (*path, where), context))
            case Specialized(roles):
                for position, role in enumerate(roles):
                    theirs = ((1 << role.threads) - 1) << role.first_thread
                    if group.threads & theirs and group.threads & ~theirs:
                        raise _Split(theirs)
                    if group.threads & theirs:
                        inner = context.for_threads(role.first_thread, role.threads)
                        yield from self._statement(group, role.body, (*path, position), inner)
            case gpu_ops.GpuOp():
                yield from self._meet(group, node, context)
        return ""

    def _steers(self, node: Statement) -> bool:
        if id(node) not in self._steering:
            self._steering[id(node)] = steers(node)
        return self._steering[id(node)]

    def _note(self, group: Group, path: Path) -> None:
        self.count += 1
        if self.count > MAXIMUM_MOMENTS:
            raise _TooLong
        repeating = {name: group.values[name] for name in group.unbounded if name in group.values}
        moment = Moment(
            group.number, group.threads, group.time, group.clock, dict(group.constant), repeating, group.by_warps
        )
        self.moments[path].append(moment)
        group.time += 1

    def _loop(self, group: Group, node: For | While, path: Path, context: Context) -> _Steps:
        if isinstance(node, While):
            while self._decide(group, node.condition, context):
                end = yield from self._statement(group, node.body, (*path, "body"), context)
                if end == "break":
                    break
                self._note(group, path)
            return ""
        name = node.var.name
        for value in self._range(group, node, context):
            if value is not None:
                group.values[name] = value
            if value is not None and name not in group.unbounded:
                group.constant[name] = value
            end = yield from self._statement(group, node.body, (*path, "body"), context)
            if end == "break":
                break
        group.constant.pop(name, None)
        group.values.pop(name, None)
        group.unbounded.discard(name)
        return ""

    def _range(self, group: Group, node: For, context: Context) -> Sequence[int | None]:
        """The values of a loop's variable; None: not known. Where the bounds are not known the number of iterations is
        the rehearsal's, the same for all loops with equal bounds that are uniform."""
        start, stop = (self._inlined(group, bound, context) for bound in (node.start, node.stop))
        names = free_variables(start) | free_variables(stop)
        if names & group.unbounded:
            raise Unclear
        if names <= group.values.keys():
            known = range(self._number(group, start, context), self._number(group, stop, context), node.step)
            if len(known) <= self.longest:
                return known
        elif not names <= context.uniform:
            raise Unclear
        trips_of = (start, stop, node.step)
        self.asked[trips_of] = None
        group.unbounded.add(node.var.name)
        self._forget(group, node, but_toggles=True)
        if free_variables(start):
            return [None] * self.trips[trips_of]
        first = int(evaluate(start, {}))
        if first < 0 or node.step < 0:
            raise Unclear  # when what depends on the variable begins to repeat
        return range(first, first + self.trips[trips_of] * node.step, node.step)

    # -- values ----------------------------------------------------------------------------------------------------

    def _skip(self, group: Group, node: Statement, context: Context) -> None:
        """A statement without barriers: what is known of registers changes, and what is known in a warp."""
        if isinstance(node, SyncWarp) and node.mask is None:
            group.by_warps = group.time
        if not (isinstance(node, Store) and node.buffer.scope in _PRIVATE):
            self._forget(group, node)
            return
        name = node.buffer.storage.name
        try:
            (place,) = [self._number(group, index, context) for index in node.indices] or [0]
            value = self._number(group, node.value, context)
        except (NotEnumerable, Unclear, ValueError, _Split):
            self._forget(group, node)
            return
        if group.unbounded and not is_toggle(node):  # not the same again after some iterations
            self._forget(group, node)
        else:
            group.registers[name, place] = value

    def _forget(self, group: Group, node: Statement, but_toggles: bool = False) -> None:
        """What ``node`` writes to is not known any more. ``but_toggles``: unless it only goes back and forth."""
        stores = [n.buffer for n in walk(node, Store) if not (but_toggles and is_toggle(n))]
        self.toggles |= but_toggles and any(map(is_toggle, walk(node, Store)))
        results = (b for n in statements_in(node) if isinstance(n, gpu_ops.GpuOp) for b in private_results(n))
        names = {buffer.storage.name for buffer in (*stores, *results)}
        group.registers = {key: value for key, value in group.registers.items() if key[0] not in names}

    def _known(self, group: Group, expression: Expr) -> Expr:
        """``expression`` with what is known of private storages filled in."""
        if not has_load(expression):
            return expression
        return FillIn(group.registers).visit(expression)

    def _inlined(self, group: Group, expression: Expr, context: Context) -> Expr:
        result = inlined(self._known(group, expression), context)
        if result is None:
            raise Unclear
        return result

    def _values(self, group: Group, expression: Expr, context: Context) -> Any:
        value = self._inlined(group, expression, context)
        if free_variables(value) & group.unbounded:
            settled, period = repetition(value)
            self.settled, self.period = max(self.settled, settled), lcm(self.period, period)
        return evaluate(value, group.values)

    def _number(self, group: Group, expression: Expr, context: Context) -> int:
        """The one value for all threads of the group, which is split where there are several."""
        import numpy as np

        found = np.asarray(self._values(group, expression, context))
        if found.ndim and not (found == found.flat[0]).all():
            numbers = group.values[self.context.thread]
            raise _Split(sum(1 << int(thread) for thread in numbers[found == found.flat[0]]))
        return int(found.flat[0])

    def _decide(self, group: Group, condition: Expr, context: Context) -> bool:
        return bool(self._number(group, condition, context))

    # -- barriers --------------------------------------------------------------------------------------------------

    def _meet(self, group: Group, node: gpu_ops.GpuOp, context: Context) -> Generator[None, None, None]:
        self._forget(group, node)
        if isinstance(node, NAMED):
            name = self._number(group, node.index, context) if isinstance(node, BarAt) else node.id
            key: Hashable = (name,) if name else (0, context.first_thread, context.threads)
            barrier = self._barriers.setdefault(key, Barrier(is_named=True))
            phase = len(barrier.phases)
            again = any(other is group for other, _ in barrier.arrivals)
            if again or (barrier.arrivals and barrier.count != node.threads):
                raise Unclear
            barrier.count = node.threads
            self._arrive(group, barrier, key)
            if isinstance(node, BarArrive) or (isinstance(node, BarAt) and not node.waits):
                return
        else:
            assert isinstance(node, _MBARRIERS)
            key = (node.barrier.storage.name, self._number(group, node.index, context))
            barrier = self._barriers[key]
            if not isinstance(node, gpu_ops.MbarrierWait):
                self._arrive(group, barrier, key)
                return
            phase = group.clock.get(key, 0)
            if self._number(group, node.parity, context) & 1 != phase & 1:
                return  # of a phase that is known to be complete
        while len(barrier.phases) <= phase:
            yield
        group.learn(barrier.phases[phase])

    def _arrive(self, group: Group, barrier: Barrier, key: Hashable) -> None:
        if group.clock.get(key, 0) < len(barrier.phases):
            raise Unclear  # it might as well have arrived in the phase before
        barrier.arrivals.append((group, joined(group.clock, {group.number: group.time})))
        arrived = sum(self._weight(other.threads, barrier) for other, _ in barrier.arrivals)
        if arrived > barrier.count:
            raise Unclear
        if arrived == barrier.count:
            complete = {key: len(barrier.phases) + 1}
            barrier.phases.append(joined(complete, *(clock for _, clock in barrier.arrivals)))
            barrier.arrivals = []

    def _weight(self, threads: int, barrier: Barrier) -> int:
        """Arrivals of so many threads; the last warp of a CTA counts as a whole one at named barriers."""
        last = threads >> (self.kernel.threads - 1) & 1
        return threads.bit_count() + (-self.kernel.threads % WARP if barrier.is_named and last else 0)


def is_named_barrier(node: Statement) -> bool:
    """Whether threads meet at a barrier with an id, other than that of the whole CTA."""
    return isinstance(node, BarAt) or (isinstance(node, (gpu_ops.BarSync, BarArrive, BarReduce)) and node.id != 0)


def steers(node: Statement) -> bool:
    """Whether a statement has barriers inside, or leaves a loop around it."""
    return contains(node, *_MEETINGS) or (not isinstance(node, (For, While)) and contains(node, Break, Continue))

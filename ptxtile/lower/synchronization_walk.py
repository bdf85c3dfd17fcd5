"""The forward walk that finds where a kernel needs barriers, fences and waits.

The walk carries the set of pending accesses through the structured program: loops until nothing new comes over their
back-edges, both branches of a condition. Where an access needs something of a pending one, a decision is made for some
place up to there (:class:`~ptxtile.lower.synchronization_position.Position`). From that place on the walk is repeated;
so is a loop until nothing is decided inside of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ptxtile.errors import LoweringError
from ptxtile.ir import gpu_ops
from ptxtile.ir.access import Access
from ptxtile.ir.access_context import Context
from ptxtile.ir.async_copy_ops import CpAsync, CpAsyncWaitGroup
from ptxtile.ir.cluster_ops import ClusterArrive, ClusterWait
from ptxtile.ir.conflicts import Overlap, compare, repeats_conflict
from ptxtile.ir.effects import is_atomic
from ptxtile.ir.expressions import Expr
from ptxtile.ir.manual_ops import BarReduce, GridSync
from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import contains, statements_in
from ptxtile.ir.statement_accesses import accesses, expression_accesses, operation_accesses
from ptxtile.ir.statements import Break, Continue, For, If, Let, Seq, Specialized, Statement, While
from ptxtile.ir.tensor_core_ops import LoadMatrix, MmaSync, StoreMatrix, WgmmaWaitGroup
from ptxtile.ir.warp_ops import SyncWarp
from ptxtile.lower import hazards
from ptxtile.lower.hazards import Decision, Need, Path, Pending, State, joined
from ptxtile.lower.synchronization_arrivals import Arrivals
from ptxtile.lower.synchronization_facts import Facts, check_across_roles, trip_count
from ptxtile.lower.synchronization_hand_overs import ARRIVALS
from ptxtile.lower.synchronization_position import END, EXIT, BarrierNeeded, Enclosing, Restart, Walk

MAXIMUM_ROUNDS = 1000
"""Walks of one kernel before giving up; each adds at least one decision, so this is only reached by a mistake of
ours."""


def _is_plain(node: gpu_ops.GpuOp) -> bool:
    """Whether an op does nothing but read and write memory, or registers; it waits for nothing and orders nothing."""
    return is_atomic(node) or isinstance(node, (CpAsync, LoadMatrix, StoreMatrix, MmaSync))


_SCOPES = (For, While, If, Specialized)
_ORDERING = (
    gpu_ops.BarSync, gpu_ops.FenceProxyAsync, gpu_ops.FenceMbarrierInit, gpu_ops.BulkCommitGroup, gpu_ops.BulkWaitGroup,
    BarReduce, GridSync, SyncWarp, ClusterArrive, ClusterWait, Break, Continue, Specialized,
)  # fmt: skip
"""What changes how far accesses of any memory are ordered, or which way the walk goes."""


@dataclass(slots=True)
class _Loop:
    """States at the Break and Continue statements of a loop, and the number of scopes inside of it."""

    breaks: list[State] = field(default_factory=list)
    continues: list[State] = field(default_factory=list)


def find_decisions(kernel: Kernel, facts: Facts, start: dict[Path, Decision]) -> Walk:
    """A walk whose decisions, ``start`` among them, order every hazard of ``kernel``."""
    result = Walk(start)
    for _ in range(MAXIMUM_ROUNDS):
        try:
            _Walker(kernel, facts, result).run()
        except Restart:
            continue
        return result
    raise LoweringError(f"synchronization of {kernel.name} was not found", location=kernel.location)


def needs_a_barrier(kernel: Kernel, facts: Facts, decisions: dict[Path, Decision]) -> bool:
    """Whether ``decisions`` lack a barrier; stops at the first hazard that asks for one."""
    walker = _Walker(kernel, facts, Walk(decisions), may_add_barriers=False)
    while True:
        try:
            walker.run()
        except Restart:
            walker = _Walker(kernel, facts, walker.result, may_add_barriers=False)
        except BarrierNeeded:
            return True
        else:
            return False


class _Walker(Arrivals):
    def __init__(self, kernel: Kernel, facts: Facts, result: Walk, may_add_barriers: bool = True) -> None:
        super().__init__(kernel, facts, result, may_add_barriers)
        self.loops: list[_Loop] = []
        self.arrived: tuple[Path, frozenset[Pending]] = (), frozenset()
        """Where all threads of the cluster arrived at its barrier, and what had been done by then."""

    def run(self) -> None:
        state = self.statement(self.kernel.body, (), {}, self.facts.context)
        self._end((EXIT,), state)

    # -- statements ------------------------------------------------------------------------------------------------

    def statement(self, node: Statement, path: Path, state: State | None, context: Context) -> State | None:
        """The state after ``node``; None where control never gets past it."""
        if state is None:
            return None
        if not isinstance(node, Seq):
            state = self.arrive(path, state)
        match node:
            case Seq(statements):
                for position, child in enumerate(statements):
                    inner = (*path, position)
                    walk = self._scope if isinstance(child, _SCOPES) else self.statement
                    state = walk(child, inner, state, context)
                    if isinstance(child, Let):
                        if inner not in self.facts.contexts:
                            self.facts.contexts[inner] = context.with_let(child)
                        context = self.facts.contexts[inner]
                return state
            case For() | While():
                return self._loop(node, path, state, context)
            case If():
                return self._condition(node, path, state, context)
            case Specialized():
                return self._roles(node, path, state, context)
            case Break():
                self.loops[-1].breaks.append(state)
                return None
            case Continue():
                self.loops[-1].continues.append(state)
                return None
            case gpu_ops.GpuOp():
                return self._operation(node, path, state, context)
        return self.access_all(self._events(node, path, context), path, state)

    def _scope(self, node: Statement, path: Path, state: State | None, context: Context) -> State | None:
        """:meth:`statement`, again if something was decided for its place while it was walked."""
        here = (len(self.scopes), len(self.loops), self.region, self.audience, self.role, self.arrived)
        while True:
            try:
                return self.statement(node, path, state, context)
            except Restart as restart:
                if restart.place != path:
                    raise
                scopes, loops, self.region, self.audience, self.role, self.arrived = here
                del self.scopes[scopes:], self.loops[loops:]

    def _events(self, node: Statement, path: Path, context: Context) -> list[Access]:
        key = (path, context.outer)
        if key not in self.facts.events:
            self.facts.events[key] = accesses(node, context)
        return self.facts.events[key]

    def _reads(self, expressions: Iterable[Expr], node: Statement, path: Path, context: Context) -> list[Access]:
        key = (path, "reads")
        if key not in self.facts.events:
            found = [a for e in expressions for a in expression_accesses(e, context, node)]
            self.facts.events[key] = found
        return self.facts.events[key]

    # -- loops -----------------------------------------------------------------------------------------------------

    def _loop(self, node: For | While, path: Path, state: State, context: Context) -> State | None:
        if self._is_unit(node, path, context):
            return self.access_all(self._events(node, path, context), path, state)
        bounds = (node.start, node.stop) if isinstance(node, For) else (node.condition,)
        reads = self._reads(bounds, node, path, context)
        state = self.access_all(reads, path, state)
        if path not in self.facts.uniform:
            self.facts.uniform[path] = self.facts.uniformity.loop_is_uniform(node, context)
        uniform = self.facts.uniform[path]
        name = node.var.name if isinstance(node, For) else "while " + "/".join(map(str, path))
        if path not in self.facts.loops:
            inner = context.with_loop(node, symbolic=True) if isinstance(node, For) and uniform else context
            self.facts.loops[path] = inner, trip_count(node, context)
        inner, trips = self.facts.loops[path]
        self.scopes.append(Enclosing(path, uniform))
        depth = len(self.scopes)
        self._exits(node, path, {}, inner, name, trips, reads)  # the hazards of the loop by itself come first
        concerned = {pending: None for pending in state if not self._passes_by(pending, node, path)}
        after = self._exits(node, path, concerned, inner, name, trips, reads)
        if len(concerned) < len(state):
            untouched = {pending: None for pending in state if pending not in concerned}
            if all(self._passes_by(pending, node, path) for pending in untouched):
                after = None if after is None else joined(untouched, after)
            else:  # a barrier was decided on inside
                after = self._exits(node, path, state, inner, name, trips, reads)
        self.scopes.pop()
        if trips is None or trips == 0 or isinstance(node, While):
            after = joined(state, after)
        return None if after is None else hazards.leaving(after, depth, name)

    def _passes_by(self, pending: Pending, node: For | While, path: Path) -> bool:
        """Whether nothing inside of a loop has to do with an access that was made before it."""
        if path not in self.facts.inert:
            self.facts.inert[path] = not contains(node, *_ORDERING)
        access = pending.access
        stays = (pending.in_flight and not pending.is_store) or bool(access.phase)
        if not self.facts.inert[path] or self.result.counts.get(path) or stays:
            return False
        return not self.facts.reach.is_released(access) and not self.facts.reach.meets_inside(access, path)

    def _exits(
        self,
        node: For | While,
        path: Path,
        state: State,
        context: Context,
        name: str,
        trips: int | None,
        reads: list[Access],
    ) -> State | None:
        """:meth:`_iterate` until nothing more is decided inside the loop. Walked once for each state at the entry:
        nested loops would double the work at each depth."""
        entry = frozenset(state)
        while True:
            key = (path, self.result.counts.get(path, 0), entry)
            if key in self.result.exits:
                return self.result.exits[key]
            exits = self._iterate(node, path, state, context, name, trips, reads)
            if self.result.counts.get(path, 0) == key[1]:
                self.result.exits[key] = exits
                return exits

    def _iterate(
        self,
        node: For | While,
        path: Path,
        state: State,
        context: Context,
        name: str,
        trips: int | None,
        reads: list[Access],
    ) -> State | None:
        """The state at the exits of the loop, with ``state`` at its entry."""
        depth = len(self.scopes)
        entry = dict(state)
        while True:
            self.loops.append(_Loop())
            end = self.statement(node.body, (*path, "body"), entry, context)
            frame = self.loops.pop()
            end = joined(end, *frame.continues)
            exits = joined(end, *frame.breaks)
            if end is None or trips == 1:
                return exits
            if (*path, END) in self.result.decisions or isinstance(node, While):
                end = self.arrive((*path, END), end)
                end = self.access_all(reads if isinstance(node, While) else [], (*path, END), end)
                exits = joined(end, *frame.breaks)
            over = hazards.next_iteration(end, name, depth)
            if all(pending in entry for pending in over):
                return exits
            entry.update(over)

    def _is_unit(self, node: For | While, path: Path, context: Context) -> bool:
        """Whether the loop can be taken as one access of each thread: nothing inside it needs a barrier inside it."""
        if path not in self.facts.units:
            simple = not any(
                isinstance(n, Specialized) or (isinstance(n, gpu_ops.GpuOp) and not _is_plain(n))
                for n in statements_in(node)
            )
            free = isinstance(node, For) and node.option("independent") is True
            self.facts.units[path] = simple and (free or not self._conflicts_inside(self._events(node, path, context)))
        return self.facts.units[path]

    def _conflicts_inside(self, events: list[Access]) -> bool:
        for position, a in enumerate(events):
            if repeats_conflict(a):
                return True
            for b in events[position + 1 :]:
                if compare(a, b) is not Overlap.NONE:
                    return True
        return False

    # -- conditions and roles --------------------------------------------------------------------------------------

    def _condition(self, node: If, path: Path, state: State, context: Context) -> State | None:
        state = self.access_all(self._reads((node.condition,), node, path, context), path, state)
        if path not in self.facts.uniform:
            self.facts.uniform[path] = self.facts.uniformity.holds_for(node.condition, context)
        if self.facts.uniform[path]:
            then = self.statement(node.then, (*path, "then"), state, self._inside(node, path, context, True))
            otherwise: State | None = state
            if node.otherwise is not None:
                inner = self._inside(node, path, context, False)
                otherwise = self.statement(node.otherwise, (*path, "otherwise"), state, inner)
            return joined(then, otherwise)
        self.scopes.append(Enclosing(path, False))
        depth = len(self.scopes)
        then = self.statement(node.then, (*path, "then"), state, self._inside(node, path, context, True))
        after = joined(state, then) if then is None else then
        if node.otherwise is not None:  # runs at the same time, in other threads
            inner = self._inside(node, path, context, False)
            otherwise = self.statement(node.otherwise, (*path, "otherwise"), after, inner)
            after = otherwise if otherwise is not None else after
        self.scopes.pop()
        assert after is not None
        return hazards.leaving(after, depth)

    def _inside(self, node: If, path: Path, context: Context, holds: bool) -> Context:
        """The context of a branch of ``node``."""
        key = (*path, "then" if holds else "otherwise")
        if key not in self.facts.contexts:
            within = context.with_uniform_condition if self.facts.uniform[path] else context.with_condition
            self.facts.contexts[key] = within(node.condition, holds=holds)
        return self.facts.contexts[key]

    def _roles(self, node: Specialized, path: Path, state: State, context: Context) -> State | None:
        self.scopes.append(Enclosing(path, True))
        depth, outer_region, ends = len(self.scopes), self.region, []
        made: dict[str, dict[Access, None]] = {}
        for position, role in enumerate(node.roles):
            self.region = ((1 << role.threads) - 1) << role.first_thread
            self.audience = self.region if self.facts.reach.is_last(path) else self.everyone
            self.role = made[role.name] = self.result.made.setdefault((*path, position), {})
            inner = context.for_threads(role.first_thread, role.threads)
            end = self.statement(role.body, (*path, position), state, inner)
            ends.append(self._end((*path, position, EXIT), end))
        self.scopes.pop()
        self.region, self.audience, self.role = outer_region, self.everyone, None
        count = sum(map(len, made.values()))
        if self.facts.checked.get(path) != count:
            check_across_roles(node.roles, made)
            self.facts.checked[path] = count
        after = joined(*ends)
        return None if after is None else hazards.leaving(after, depth)

    def _end(self, path: Path, state: State | None) -> State | None:
        """``state`` at the end of the kernel or of a role: no TMA store of its threads may still read shared memory."""
        if state is None:
            return None
        state = self.arrive(path, state)
        for pending in list(state):
            access = pending.access
            reads = pending.in_flight and pending.is_store and not access.is_write and pending.groups > 0
            if reads and access.threads & ~self.region == 0:
                wanted = Need(Overlap.CERTAIN, wait="read", groups=pending.groups - 1)
                self.decide(path, wanted, pending, None)
        return self.arrive(path, state)

    # -- GPU ops ---------------------------------------------------------------------------------------------------

    def _operation(self, node: gpu_ops.GpuOp, path: Path, state: State, context: Context) -> State:
        key = (path, context.outer)
        if key not in self.facts.events:
            self.facts.events[key] = [self.facts.shared_access(a) for a in operation_accesses(node, context)]
        mask, known = context.active_threads()
        if isinstance(node, ARRIVALS):
            handed = self.facts.hand_overs.at(node, None if self.role is None else context.first_thread)
            state = self.release(node, handed, path, state, context, mask) if handed else state
            state = self.next_phase(node, path, state, context, mask if known else 0)
        state = self.access_all(self.facts.events[key], path, state)
        sure, depth = mask if known else 0, len(self.scopes)
        match node:
            case gpu_ops.BarSync() | BarReduce() | GridSync():
                whole = isinstance(node, GridSync) or node.id == 0 or node.threads >= self.region.bit_count()
                if whole and mask == self.region and known:
                    state = self.barrier(state, path, self.region)
            case SyncWarp():
                state = hazards.after_warp_sync(state, sure)
            case ClusterArrive() if sure == self.everyone:
                self.arrived = path, frozenset(state)
            case ClusterWait() if sure == self.everyone:
                arrival, arrived = self.arrived
                before = {pending: None for pending in state if pending in arrived}
                after = {pending: None for pending in state if pending not in arrived}
                state = self.barrier(before, arrival, self.everyone) | after
            case gpu_ops.FenceProxyAsync(space):
                state = hazards.after_fence(state, space, sure)
            case gpu_ops.FenceMbarrierInit():
                state = hazards.after_fence(state, "mbarrier_init", sure)
            case gpu_ops.MbarrierWait(_, _, _, retires):
                state = hazards.after_barrier_wait(state, {b.storage.name for b in retires}, sure, depth)
            case gpu_ops.BulkCommitGroup():
                state = hazards.after_commit(state, sure)
            case gpu_ops.BulkWaitGroup(groups, read, _):
                state = hazards.after_bulk_wait(state, sure, depth, read=read, pending_groups=groups, by_user=True)
            case WgmmaWaitGroup(groups, _, retires) | CpAsyncWaitGroup(groups, retires):
                engine = "wgmma" if isinstance(node, WgmmaWaitGroup) else "cp_async"
                names = {buffer.storage.name for buffer in retires}
                if engine == "wgmma" and groups == 0:
                    state = hazards.after_wgmma(state, sure)
                state = hazards.after_group_wait(state, engine, sure, depth, pending_groups=groups, names=names)
        return state

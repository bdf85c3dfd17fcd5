"""The present position of the walk through a kernel: what an access there needs, and where that is decided.

A :class:`~ptxtile.lower.hazards.Decision` is made for the latest place that all threads of the region reach: directly
before the statement; before the outermost loop around it that the pending access was made before; before the condition
that only some threads pass. A barrier is one of each warpgroup by itself where no other threads have to know.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ptxtile.errors import Location, LoweringError
from ptxtile.ir.access import Access
from ptxtile.ir.buffers import Scope
from ptxtile.ir.conflicts import Overlap, compare
from ptxtile.ir.program import Kernel
from ptxtile.ir.tensor_core_ops import WARPGROUP
from ptxtile.lower import hazards
from ptxtile.lower.hazards import Decision, Need, Path, Pending, State, need
from ptxtile.lower.synchronization_facts import Facts
from ptxtile.lower.synchronization_reach import Evidence
from ptxtile.records import record

END, EXIT = "end", "exit"
"""The last part of the path of the place behind the last statement of a loop, and of a role or the kernel."""


class Restart(Exception):
    """A decision was made for an earlier place: the walk is repeated, from there on where the place is that of a
    statement around the present one."""

    def __init__(self, place: Path | None = None) -> None:
        self.place = place


class BarrierNeeded(Exception):
    """A barrier is missing, in a walk that only looks whether one is."""


@record
class Enclosing:
    """A loop, a condition that only some threads pass, or a role: what a barrier may have to stand in front of."""

    path: Path
    is_uniform: bool


@dataclass(slots=True)
class Walk:
    """Decisions by path, and notes on hazards that are possible but cannot be ordered, with their lines."""

    decisions: dict[Path, Decision]
    notes: dict[str, Location | None] = field(default_factory=dict)
    barriers: list[Evidence] = field(default_factory=list)
    """Why each barrier was decided on, in that order."""
    counts: dict[Path, int] = field(default_factory=dict)
    """How many decisions were made for places inside of a statement."""
    exits: dict[tuple[Path, int, frozenset[Pending]], State | None] = field(default_factory=dict)
    """The state behind a loop, by the decisions inside it and the state in front of it."""
    made: dict[Path, dict[Access, None]] = field(default_factory=dict)
    """The accesses of each role."""


class Position:
    """``region``: the threads that run the present statement. ``may_add_barriers`` False: BarrierNeeded instead."""

    def __init__(self, kernel: Kernel, facts: Facts, result: Walk, may_add_barriers: bool) -> None:
        self.kernel, self.facts, self.result = kernel, facts, result
        self.may_add_barriers = may_add_barriers
        self.everyone = (1 << kernel.threads) - 1
        self.region = self.everyone
        self.audience = self.everyone
        """The threads that an access may still have to be known to."""
        self.scopes: list[Enclosing] = []
        self.role: dict[Access, None] | None = None
        """The accesses of the present role, outside of roles None."""

    def arrive(self, path: Path, state: State) -> State:
        """``state`` after what was decided for the place ``path``."""
        decision = self.result.decisions.get(path)
        if decision is None:
            return state
        depth = len(self.scopes)
        for kind, groups in decision.waits.items():
            state = hazards.after_bulk_wait(state, self.region, depth, read=kind == "read", pending_groups=groups)
        for space in decision.fences:
            state = hazards.after_fence(
                state, space, self.region, before_barrier=decision.barrier, within=decision.within
            )
        if decision.barrier and decision.within:
            return hazards.after_barriers_of_groups(state, path, self.region, decision.within)
        return self.barrier(state, path, self.region) if decision.barrier else state

    def barrier(self, state: State, path: Path, mask: int) -> State:
        return hazards.after_barrier(state, path, mask, self.audience, self.facts.meets_other_proxy)

    def access_all(self, events: list[Access], path: Path, state: State) -> State:
        """``state`` after the accesses of one statement, with decisions made for what they need."""
        if not events:
            return state
        self.facts.reach.locate(events, path, self.facts.units.get(path, False))
        self.facts.branches.locate(events, path)
        for later in events:
            if not self.facts.reach.asks(later):
                continue
            memory, writes = later.memory, later.is_write
            for pending in reversed(list(state)):  # the latest first: it is the one that a user looks for
                earlier = pending.access
                if earlier.memory != memory or not (writes or earlier.is_write) or pending not in state:
                    continue
                wanted = need(pending, later, self.facts.overlaps)
                if wanted is not None:
                    state = self.require(wanted, pending, later, path, state)
        self._check_statement(events, path)
        depth = len(self.scopes)
        state = dict(state)
        for access in events:
            if access.threads:
                if self.facts.reach.matters(access):
                    state[Pending(access, depth)] = None
                if self.role is not None:
                    self.role[access] = None
        return state

    def _check_statement(self, events: list[Access], path: Path) -> None:
        """A statement that reads and writes one place by different threads cannot be mended from outside."""
        if self.facts.units.get(path) or len(events) < 2:
            return
        for position, a in enumerate(events):
            for b in events[position + 1 :]:
                if a.asynchronous or b.asynchronous or a.storage.scope is Scope.BARRIER or (a.atomic and b.atomic):
                    continue
                overlap = compare(a, b)
                if overlap is Overlap.CERTAIN and not self._take_turns(a, b):
                    self._impossible(overlap, a, b, "one statement reads and writes one place in different threads")

    def require(self, wanted: Need, pending: Pending, later: Access, path: Path, state: State) -> State:
        """Decides what ``later`` needs of ``pending``; ``state`` after that, when it is decided for the present
        place."""
        if wanted.unordered:
            engine = {"tma": "a TMA load", "cp_async": "cp.async"}.get(pending.access.engine, pending.access.engine)
            missing = "nothing commits a TMA store" if pending.is_store else f"nothing waits for {engine}"
            self._impossible(wanted.overlap, pending.access, later, missing)
            return state
        if self._is_ordered_by_user(wanted, pending, later):
            return state
        if wanted.fence and not wanted.barrier and not wanted.wait:
            added = [self.decide(place, wanted, pending, later) for place in pending.barriers]
            if any(added):
                raise Restart
        if not self.is_placeable(pending) and not (wanted.wait and not wanted.barrier and not wanted.fence):
            self._impossible(wanted.overlap, pending.access, later, "a barrier is needed where not all threads arrive")
            return state
        if wanted.within and not self._is_warpgroups():
            wanted = replace(wanted, within=0)
        here = pending.depth == len(self.scopes)
        place = path if here else self.scopes[pending.depth].path
        added = self.decide(place, wanted, pending, later)
        while not added and not here and wanted.groups:  # fewer groups were committed up to there
            wanted = replace(wanted, groups=wanted.groups - 1)
            added = self.decide(place, wanted, pending, later)
        if not added and not here:  # read by the very condition or bound that sends the threads different ways
            self._impossible(wanted.overlap, pending.access, later, "a barrier is needed where not all threads arrive")
            return state
        if not added:
            raise LoweringError(  # never seen; without it the walk would not end
                f"no barrier orders the {pending.access.describe()} before the {later.describe()}",
                location=later.location or pending.access.location,
            )
        if not here:
            raise Restart(place)
        return self.arrive(path, state)

    def _is_ordered_by_user(self, wanted: Need, pending: Pending, later: Access) -> bool:
        """Whether all that is missing is an order that the user's own barriers make already."""
        if not wanted.barrier or wanted.fence or wanted.wait:
            return False
        branches, trusted = self.facts.branches, _is_trusted(wanted.overlap, pending.access, later)
        sought = branches.has_named_barriers or not (trusted or self.is_placeable(pending))
        return sought and branches.order(pending.access, later)

    def _take_turns(self, a: Access, b: Access) -> bool:
        """Whether the user's barriers let the threads run a statement that makes both accesses one after the other."""
        return self.facts.branches.has_named_barriers and self.facts.branches.order(a, b)

    def is_placeable(self, pending: Pending) -> bool:
        """Whether all threads of the region come by between the pending access and the present place."""
        uniform = next((i for i, scope in enumerate(self.scopes) if not scope.is_uniform), len(self.scopes))
        return pending.depth <= uniform

    def _is_warpgroups(self) -> bool:
        """Whether the present threads are several whole warpgroups."""
        first = (self.region & -self.region).bit_length() - 1
        count = self.region.bit_count()
        return first % WARPGROUP == 0 and count % WARPGROUP == 0 and count > WARPGROUP

    def decide(self, place: Path, wanted: Need, pending: Pending, later: Access | None) -> bool:
        decision = self.result.decisions.setdefault(place, Decision())
        if decision.lacks_barrier(wanted):
            if not self.may_add_barriers:
                raise BarrierNeeded
            self.result.barriers.append(self.facts.reach.evidence(place, pending, later))
        added = decision.add(wanted, pending.access, later)
        if added:
            for length in range(len(place) + 1):
                self.result.counts[place[:length]] = self.result.counts.get(place[:length], 0) + 1
        return added

    def _impossible(self, overlap: Overlap, earlier: Access, later: Access, why: str) -> None:
        """LoweringError, unless the hazard is only possible and in global memory or between TMA operations: a note
        then."""
        text = f"{why}: the {earlier.describe()} and the {later.describe()}"
        if _is_trusted(overlap, earlier, later):
            self.result.notes[text] = later.location or earlier.location
            return
        where = [str(access.location) for access in (earlier, later) if access.location is not None]
        raise LoweringError(
            why,
            location=later.location or earlier.location,
            expected=f"the {earlier.describe()} to be ordered before the {later.describe()}",
            got="threads that are not ordered" + (f" at {' and '.join(where)}" if where else ""),
            hint="move one of the two accesses out of the condition or loop that only some threads take part in, or "
            "let the two sides meet in between: T.named_barrier_arrive and T.sync_threads(id, count), or an mbarrier",
        )


def _is_trusted(overlap: Overlap, earlier: Access, later: Access) -> bool:
    """Whether a hazard is only possible and in global memory or between TMA operations, or of single threads that talk
    to each other: nothing is done about it where no barrier can stand."""
    by_tma_or_global = earlier.asynchronous or later.asynchronous or earlier.storage.scope is Scope.GLOBAL
    return (overlap is Overlap.POSSIBLE and by_tma_or_global) or bool(earlier.atomic and later.atomic)

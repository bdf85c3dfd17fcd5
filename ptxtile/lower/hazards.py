"""The accesses that a thread may still have to be ordered after, and what orders them.

A :class:`Pending` access was made earlier; ``ordered`` is the set of threads (bit t: thread t) that know it to be
done. What a later access needs of it (:func:`need`) follows the rules of the PTX memory model as DESIGN puts them:

* generic → generic by another thread: a barrier of both (reads do not conflict with reads).
* generic → TMA by another thread: a barrier; by the same thread: program order.
* generic write → TMA access of the same bytes: also ``fence.proxy.async`` by the writing threads, before the barrier
  (PTX ISA, «Memory Consistency Model», proxies). A generic *read* before a TMA write needs no fence.
* TMA load → anything: the wait on its mbarrier, by the thread that goes on or by one that then takes part in a barrier.
* wgmma's read of its operands → a write: ``wgmma.wait_group`` by the warpgroup, then as for a generic read.
* cp.async → anything: ``cp.async.wait_group`` by each issuing thread, then as for a generic write.
* TMA store → a write of its source: ``cp.async.bulk.wait_group.read`` by the issuing thread, then as above.
* TMA store → an access of its destination: the full ``wait_group``, and for a generic access
  ``fence.proxy.async.global``.
* mbarrier.init → any use: ``fence.mbarrier_init``, and a barrier for other threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ptxtile.errors import Location
from ptxtile.ir.access import Access
from ptxtile.ir.buffers import Scope
from ptxtile.ir.conflicts import SAME_ITERATION, Overlap, Relation, compare

Path = tuple[int | str, ...]
"""Where a statement stands: child positions from the kernel's body down."""

FENCE_SPACES = {Scope.SHARED: "shared", Scope.GLOBAL: "global", Scope.BARRIER: "mbarrier_init"}


@dataclass(frozen=True, slots=True)
class Pending:
    """An access that was made. ``done``: a wait has seen an asynchronous access complete. ``fenced``: a proxy fence
    (or, for an initialisation, the init fence) followed it. ``barriers``: the barriers that ordered it last.
    ``depth``: how many of the scopes around the present position it is inside of."""

    access: Access
    depth: int
    relation: Relation = SAME_ITERATION
    ordered: int = 0
    done: bool = False
    fenced: bool = False
    barriers: frozenset[Path] = frozenset()

    @property
    def in_flight(self) -> bool:
        return self.access.asynchronous and not self.done

    @property
    def is_store(self) -> bool:
        """Part of a TMA store: it reads shared memory and writes global memory."""
        access = self.access
        by_tma = access.asynchronous and access.engine == "tma"
        return by_tma and access.is_write == (access.storage.scope is Scope.GLOBAL)

    @property
    def owes_fence(self) -> bool:
        """Whether a later access by the other proxy needs a fence after this one."""
        if self.fenced or not self.access.is_write:
            return False
        return not self.access.in_async_proxy or self.access.storage.scope is Scope.GLOBAL


State = dict[Pending, None]
"""An ordered set of pending accesses."""


@dataclass(frozen=True, slots=True)
class Need:
    """What has to stand between a pending access and a later one. ``wait``: the full wait on this CTA's TMA stores.
    ``fence``: a space, or ''. ``unordered``: nothing that could be inserted helps."""

    overlap: Overlap
    barrier: bool = False
    fence: str = ""
    wait: bool = False
    unordered: bool = False


class Comparisons:
    """:func:`~ptxtile.ir.conflicts.compare` with its answers kept: the walk asks the same questions again and again."""

    def __init__(self) -> None:
        self._known: dict[tuple, Overlap] = {}

    def __call__(self, a: Access, b: Access, relation: Relation, threads_matter: bool) -> Overlap:
        key = (a, b, relation, threads_matter)
        if key not in self._known:
            self._known[key] = compare(a, b, relation, threads_matter=threads_matter)
        return self._known[key]


def need(pending: Pending, later: Access, overlaps: Comparisons) -> Need | None:
    """What ``later`` needs of ``pending``; None: nothing."""
    earlier = pending.access
    if earlier.memory != later.memory or not (earlier.is_write or later.is_write) or earlier.commutes_with(later):
        return None
    anywhere = overlaps(earlier, later, pending.relation, False)
    if anywhere is Overlap.NONE:
        return None
    if pending.in_flight and not pending.is_store:
        return Need(anywhere, unordered=True)
    known = later.threads & ~pending.ordered == 0
    if pending.in_flight:
        by_others = overlaps(earlier, later, pending.relation, True)
        return Need(anywhere, barrier=by_others is not Overlap.NONE, fence=_fence(pending, later), wait=True)
    by_others = anywhere if earlier.asynchronous else Overlap.NONE
    if not known and not earlier.asynchronous:
        by_others = overlaps(earlier, later, pending.relation, True)
    barrier = not known and by_others is not Overlap.NONE
    fence = _fence(pending, later)
    return Need(anywhere, barrier, fence) if barrier or fence else None


def _fence(pending: Pending, later: Access) -> str:
    """The fence that an access of the other proxy needs; for a barrier object, any use after its initialisation."""
    if not pending.owes_fence:
        return ""
    scope = pending.access.storage.scope
    if scope is not Scope.BARRIER and pending.access.in_async_proxy == later.in_async_proxy:
        return ""
    return FENCE_SPACES[scope]


@dataclass(slots=True)
class Decision:
    """What is inserted before one statement: the wait on TMA stores, then fences, then a barrier."""

    barrier: bool = False
    wait: bool = False
    fences: set[str] = field(default_factory=set)
    reasons: list[tuple[str, str, Location | None]] = field(default_factory=list)

    def add(self, wanted: Need, earlier: Access, later: Access) -> bool:
        """Takes up what ``wanted`` asks for; False when all of it was decided already."""
        what = []
        if wanted.wait and not self.wait:
            self.wait = True
            what.append("wait for TMA stores")
        if wanted.fence and wanted.fence not in self.fences:
            self.fences.add(wanted.fence)
            what.append(f"fence ({wanted.fence})")
        if wanted.barrier and not self.barrier:
            self.barrier = True
            what.append("barrier")
        if what:
            reason = f"orders the {earlier.describe()} before the {later.describe()}"
            self.reasons.append((" and ".join(what), reason, later.location or earlier.location))
        return bool(what)


def after_barrier(state: State, path: Path, mask: int, everyone: int, meets_tma: Callable[[Access], bool]) -> State:
    """``state`` after a barrier of the threads ``mask`` that stands at ``path``; ``everyone``: the threads of the CTA.

    ``meets_tma``: whether the other proxy may touch an access's bytes, so that a fence that it owes still matters.
    """
    result: State = {}
    for pending in state:
        if pending.access.asynchronous:
            joins = pending.done and (pending.ordered == 0 or bool(pending.ordered & mask))
        else:
            joins = pending.access.threads & ~mask == 0 or bool(pending.ordered & mask)
        if joins:
            writers_arrive = pending.access.asynchronous or pending.access.threads & ~mask == 0
            barriers = frozenset((path,)) if writers_arrive else pending.barriers
            pending = replace(pending, ordered=pending.ordered | mask, barriers=barriers)
            if pending.ordered & everyone == everyone and not (pending.owes_fence and meets_tma(pending.access)):
                continue
        result[pending] = None
    return result


def after_fence(state: State, space: str, mask: int, *, before_barrier: bool = False) -> State:
    """``state`` after the threads ``mask`` executed the fence of ``space`` (see :data:`FENCE_SPACES`).

    The writers' fence has to come before the barrier that tells the others of the write. ``before_barrier``: one
    follows.
    """
    result: State = {}
    for pending in state:
        access = pending.access
        if pending.owes_fence and FENCE_SPACES[access.storage.scope] == space:
            by_writers = access.threads & ~mask == 0 and (before_barrier or not pending.barriers)
            if by_writers if not access.asynchronous else pending.done and bool(pending.ordered & mask):
                pending = replace(pending, fenced=True)
        result[pending] = None
    return result


def after_bulk_wait(state: State, mask: int, depth: int, *, read: bool, pending_groups: int, names: set[str]) -> State:
    """``state`` after the threads ``mask`` waited for their TMA stores, all of them or those from the storages
    ``names``."""
    result: State = {}
    for pending in state:
        access = pending.access
        if pending.in_flight and pending.is_store and access.threads & ~mask == 0:
            covered = pending_groups == 0 or access.retired_by in names
            if covered and (not read or access.storage.scope is Scope.SHARED):
                is_one = access.threads & (access.threads - 1) == 0  # each thread waits for its own stores only
                pending = replace(pending, done=True, depth=depth, ordered=access.threads if is_one else 0)
        result[pending] = None
    return result


def after_barrier_wait(state: State, names: set[str], mask: int, depth: int) -> State:
    """``state`` after the threads ``mask`` waited on an mbarrier that retires the TMA accesses of the storages
    ``names``."""
    result: State = {}
    for pending in state:
        access = pending.access
        if access.asynchronous and access.engine != "wgmma" and access.retired_by in names:
            pending = replace(pending, done=True, depth=depth, ordered=pending.ordered | mask)
        result[pending] = None
    return result


def after_group_wait(
    state: State, engine: str, mask: int, depth: int, *, pending_groups: int, names: set[str]
) -> State:
    """``state`` after the threads ``mask`` waited for their groups of ``engine`` (wgmma or cp.async): for all of them,
    or for those that access the storages ``names``. From then on these are ordinary accesses of the threads."""
    result: State = {}
    for pending in state:
        access = pending.access
        if pending.in_flight and access.engine == engine and access.threads & ~mask == 0:
            if pending_groups == 0 or access.retired_by in names:
                pending = replace(pending, access=access.completed(), depth=depth)
        result[pending] = None
    return result


def next_iteration(state: State, variable: str, depth: int) -> State:
    """``state`` over the back-edge of the loop whose inside has ``depth``."""
    return {replace(p, relation=p.relation.next_iteration(variable)) if p.depth >= depth else p: None for p in state}


def leaving(state: State, depth: int, variable: str | None = None) -> State:
    """``state`` outside the scope whose inside has ``depth``; ``variable``: of a loop that is left."""
    result: State = {}
    for pending in state:
        if pending.depth >= depth:
            relation = pending.relation if variable is None else pending.relation.leaving(variable)
            pending = replace(pending, depth=depth - 1, relation=relation)
        result[pending] = None
    return result


def joined(*states: State | None) -> State | None:
    """Everything pending on any of the paths; None: no path gets here."""
    reachable = [state for state in states if state is not None]
    if not reachable:
        return None
    result: State = {}
    for state in reachable:
        result.update(state)
    return result

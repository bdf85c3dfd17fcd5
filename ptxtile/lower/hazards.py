"""The accesses that a thread may still have to be ordered after, and what orders them.

A :class:`Pending` access was made earlier; ``ordered`` is the set of threads (bit t: thread t) that know it to be
done. What a later access needs of it (:func:`need`) follows the rules of the PTX memory model as DESIGN puts them:

* generic → generic by another thread: a barrier of both (reads do not conflict with reads). Where only threads of the
  same warpgroup meet, each warpgroup has a barrier of its own, and they do not wait for one another.
* generic → TMA by another thread: a barrier; by the same thread: program order.
* generic write → TMA access of the same bytes: also ``fence.proxy.async`` by the writing threads, before the barrier
  (PTX ISA, «Memory Consistency Model», proxies). A generic *read* before a TMA write needs it as well: an H200 lets a
  load that an mbarrier or barrier orders after an ldmatrix overwrite what that has not read yet.
* TMA load → anything: the wait on its mbarrier, by the thread that goes on or by one that then takes part in a barrier.
* wgmma's read of its operands → a write: ``wgmma.wait_group`` by the warpgroup, then as for a generic read.
* cp.async → anything: ``cp.async.wait_group`` by each issuing thread, then as for a generic write.
* TMA store → a write of its source: ``cp.async.bulk.wait_group.read`` by the issuing thread, then as for a generic
  read. The same before the CTA ends, when its shared memory goes, and before an arrival that lets another role write.
* TMA store → an access of its destination: the full ``wait_group``, and for a generic access
  ``fence.proxy.async.global``. That includes another TMA store of the same thread: bulk operations keep no order among
  themselves (PTX ISA, «Memory Consistency Model», asynchronous operations).
* mbarrier.init → any use: ``fence.mbarrier_init``, and a barrier for other threads.
* wait for a phase of an mbarrier → an arrival that may complete the next one: a barrier, unless all who wait arrive
  themselves. A wait names its phase by parity alone, so that one that comes two phases late blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from ptxtile.errors import Location
from ptxtile.ir.access import Access
from ptxtile.ir.buffers import Scope
from ptxtile.ir.conflicts import SAME_ITERATION, Overlap, Relation, compare
from ptxtile.ir.rewrite import free_variables
from ptxtile.ir.tensor_core_ops import WARP, WARPGROUP
from ptxtile.records import record

Path = tuple[int | str, ...]
"""Where a statement stands: child positions from the kernel's body down."""

FOR_ALL = -1
"""Of a fence: it counts for all threads."""

MOST_GROUPS = 4
"""Groups of TMA stores are counted up to here; a wait leaves at most one less of them pending."""

FENCE_SPACES = {Scope.SHARED: "shared", Scope.GLOBAL: "global", Scope.BARRIER: "mbarrier_init"}


class Pending(NamedTuple):
    """An access that was made. ``done``: a wait has seen an asynchronous access complete. ``fenced``: a proxy fence
    (or, for an initialisation, the init fence) followed it, for all or only for the groups of so many threads.
    ``barriers``: the barriers that ordered it last.
    ``depth``: how many of the scopes around the present position it is inside of. ``groups``: of a TMA store under way,
    the bulk groups that its threads have committed since, its own included, counted to :data:`MOST_GROUPS`.
    ``met``: the size of the groups of threads (32, 128) that have met since, each by itself, so that every thread knows
    its group's part of the access and speaks for it. ``left``: a wait of the user's left this TMA store under way."""

    access: Access
    depth: int
    relation: Relation = SAME_ITERATION
    ordered: int = 0
    done: bool = False
    fenced: int = 0
    barriers: frozenset[Path] = frozenset()
    groups: int = 0
    met: int = 0
    left: bool = False

    @property
    def in_flight(self) -> bool:
        return self.access.asynchronous and not self.done

    @property
    def is_store(self) -> bool:
        """Part of a TMA store: it reads shared memory and writes global memory."""
        access = self.access
        by_tma = access.asynchronous and access.engine == "tma"
        return by_tma and access.is_write == (access.storage.scope is Scope.GLOBAL)

    def at(self, depth: int, relation: Relation) -> Pending:
        """The same access, seen from elsewhere."""
        return Pending(self.access, depth, relation, *self[3:])

    @property
    def owes_fence(self) -> bool:
        """Whether a later access by the other proxy needs a fence after this one."""
        access = self.access
        if self.fenced == FOR_ALL:
            return False
        if access.in_async_proxy:
            return access.is_write and access.storage.scope is Scope.GLOBAL
        return access.is_write or access.storage.scope is not Scope.BARRIER


State = dict[Pending, None]
"""An ordered set of pending accesses."""


@record
class Need:
    """What has to stand between a pending access and a later one. ``wait``: on TMA stores, ``read`` (of their source)
    or ``full``, that leaves ``groups`` pending. ``fence``: a space, or ''. ``within``: not 0 if a barrier of each group
    of so many threads by itself is enough. ``unordered``: nothing that could be inserted helps."""

    overlap: Overlap
    barrier: bool = False
    fence: str = ""
    wait: str = ""
    groups: int = 0
    within: int = 0
    unordered: bool = False


class Comparisons:
    """:func:`~ptxtile.ir.conflicts.compare` with its answers kept: the walk asks the same questions again and again."""

    def __init__(self) -> None:
        self._known: dict[tuple, Overlap] = {}
        self._fixed: dict[Access, bool] = {}

    def _is_fixed(self, access: Access) -> bool:
        """Whether the access is the same in every iteration of the loops around its statement."""
        if access not in self._fixed:
            context = access.context
            own = context.loops[context.outer :]
            places = [access.index, *context.conditions, *(corner for corner, _ in access.box)]
            places += [bound for axis in own for bound in (axis.start, axis.stop)]
            names = {name for place in places if place is not None for name in free_variables(place)}
            known = names <= context.uniform | {axis.name for axis in own} | {context.thread}
            self._fixed[access] = known and not context.repeated
        return self._fixed[access]

    def __call__(self, a: Access, b: Access, relation: Relation, group: int) -> Overlap:
        """``group``: 0 if also one thread conflicts with itself, else as in ``compare``."""
        if relation is not SAME_ITERATION and self._is_fixed(a) and self._is_fixed(b):
            relation = SAME_ITERATION
        key = (a, b, relation, group)
        if key not in self._known:
            self._known[key] = compare(a, b, relation, threads_matter=group > 0, group=group)
        return self._known[key]


def need(pending: Pending, later: Access, overlaps: Comparisons) -> Need | None:
    """What ``later`` needs of ``pending``; None: nothing."""
    earlier = pending.access
    if earlier.memory != later.memory or not (earlier.is_write or later.is_write) or earlier.commutes_with(later):
        return None
    fence, in_flight = _fence(pending, later), pending.in_flight
    if fence and pending.fenced and overlaps(earlier, later, pending.relation, pending.fenced) is Overlap.NONE:
        fence = ""
    known = not in_flight and later.threads & ~pending.ordered == 0
    if known and not fence:
        return None
    met = max(pending.met, 1)
    if not (in_flight or fence or earlier.asynchronous):  # an ordinary access that only other threads care about
        if overlaps(earlier, later, pending.relation, met) is Overlap.NONE:
            return None
    anywhere = overlaps(earlier, later, pending.relation, 0)
    if anywhere is Overlap.NONE:
        return None
    if in_flight and (not pending.is_store or not pending.groups):
        return Need(anywhere, unordered=True)
    barrier, within = not known, 0
    if in_flight or not (known or (earlier.asynchronous and not pending.is_store)):
        barrier = overlaps(earlier, later, pending.relation, met) is not Overlap.NONE
        if barrier and overlaps(earlier, later, pending.relation, WARPGROUP) is Overlap.NONE:
            within = WARPGROUP
    if in_flight:
        wait = "full" if earlier.is_write else "read"
        return Need(anywhere, barrier, fence, wait, pending.groups - 1, within)
    return Need(anywhere, barrier, fence, within=within) if barrier or fence else None


def _fence(pending: Pending, later: Access) -> str:
    """The fence that an access of the other proxy needs; for a barrier object, any use after its initialisation."""
    scope = pending.access.storage.scope
    if scope is not Scope.BARRIER and pending.access.in_async_proxy == later.in_async_proxy:
        return ""
    return FENCE_SPACES[scope] if pending.owes_fence else ""


@dataclass(slots=True)
class Decision:
    """What is inserted before one statement: waits on TMA stores, then fences, then a barrier. ``waits``: the groups
    that each kind of wait leaves pending; a ``full`` one that leaves no more is a ``read`` one too. ``within``: not 0
    if each group of so many threads has a barrier of its own."""

    barrier: bool = False
    within: int = 0
    waits: dict[str, int] = field(default_factory=dict)
    fences: set[str] = field(default_factory=set)
    reasons: list[tuple[str, str, Location | None]] = field(default_factory=list)

    def add(self, wanted: Need, earlier: Access, later: Access | None) -> bool:
        """Takes up what ``wanted`` asks for; False when all of it was decided already. ``later`` None: the end."""
        what = []
        if wanted.wait and not self._waits(wanted.wait, wanted.groups):
            self.waits[wanted.wait] = wanted.groups
            if wanted.wait == "full" and self.waits.get("read", -1) >= wanted.groups:
                del self.waits["read"]
            what.append("wait for TMA stores" if wanted.wait == "full" else "wait for the reads of TMA stores")
        if wanted.fence and wanted.fence not in self.fences:
            self.fences.add(wanted.fence)
            what.append(f"fence ({wanted.fence})")
        if self.lacks_barrier(wanted):
            self.barrier, self.within = True, wanted.within
            what.append("barrier of each warpgroup" if wanted.within else "barrier")
        if what:
            end = "end of the kernel" if later is None else later.describe()
            where = (None if later is None else later.location) or earlier.location
            self.reasons.append((" and ".join(what), f"orders the {earlier.describe()} before the {end}", where))
        return bool(what)

    def lacks_barrier(self, wanted: Need) -> bool:
        """Whether ``wanted`` asks for a barrier, or for one of more threads, than is decided."""
        return wanted.barrier and not (self.barrier and (not self.within or wanted.within))

    def _waits(self, kind: str, groups: int) -> bool:
        kinds = ("read", "full") if kind == "read" else ("full",)
        return any(self.waits.get(known, MOST_GROUPS) <= groups for known in kinds)


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
            pending = pending._replace(ordered=pending.ordered | mask, barriers=barriers)
            if pending.ordered & everyone == everyone and not (pending.owes_fence and meets_tma(pending.access)):
                continue
        result[pending] = None
    return result


def after_barriers_of_groups(state: State, path: Path, mask: int, group: int) -> State:
    """``state`` after each group of ``group`` threads of ``mask``, which are whole groups, met at a barrier of its
    own."""
    result: State = {}
    for pending in state:
        access = pending.access
        told = 0 if pending.in_flight else groups_of(pending.ordered & mask, group)
        met, barriers = pending.met, pending.barriers
        by_threads = not access.asynchronous or (pending.done and pending.is_store)  # each knows its own part
        if by_threads and access.threads & ~mask == 0:
            own = groups_of(access.threads, group)
            told |= own if own.bit_count() == group else 0
            barriers = barriers if pending.ordered & mask == mask else frozenset((path,))
            met = max(met, group)
        ordered = pending.ordered | told
        if ordered != pending.ordered or met != pending.met or barriers != pending.barriers:
            pending = pending._replace(ordered=ordered, met=met, barriers=barriers)
        result[pending] = None
    return result


@lru_cache(maxsize=1024)
def groups_of(mask: int, size: int) -> int:
    """The threads of every group of ``size`` (a warp or warpgroup) that has a thread in ``mask``."""
    whole, result = (1 << size) - 1, 0
    for first in range(0, mask.bit_length(), size):
        if mask >> first & whole:
            result |= whole << first
    return result


def after_fence(state: State, space: str, mask: int, *, before_barrier: bool = False, within: int = 0) -> State:
    """``state`` after the threads ``mask`` executed the fence of ``space`` (see :data:`FENCE_SPACES`).

    The writers' fence has to come before the barrier that tells the others of the write. ``before_barrier``: one
    follows; ``within``: of each group of so many threads.
    """
    result: State = {}
    for pending in state:
        access = pending.access
        if pending.owes_fence and FENCE_SPACES[access.storage.scope] == space:
            first = not pending.barriers  # nobody has been told of the write
            all_fence = access.threads & ~mask == 0
            if access.asynchronous:  # by one who knows that it is done; where each issuer knows of its own, by all
                fences = pending.done and (bool(pending.ordered & mask) or (pending.ordered == 0 and all_fence))
            else:
                fences = all_fence and (before_barrier or first)
            if fences:
                pending = pending._replace(fenced=within if within and not first else FOR_ALL)
        result[pending] = None
    return result


def after_commit(state: State, mask: int) -> State:
    """``state`` after the threads ``mask`` committed a group of TMA stores."""
    result: State = {}
    for pending in state:
        if pending.in_flight and pending.is_store and pending.access.threads & ~mask == 0:
            pending = pending._replace(groups=min(pending.groups + 1, MOST_GROUPS))
        result[pending] = None
    return result


def after_bulk_wait(
    state: State, mask: int, depth: int, *, read: bool, pending_groups: int, by_user: bool = False
) -> State:
    """``state`` after the threads ``mask`` waited until ``pending_groups`` of their groups of TMA stores were left.

    The reads of shared memory are ordinary ones of the issuing threads from then on. ``by_user``: the program's own
    wait.
    """
    result: State = {}
    for pending in state:
        access = pending.access
        if pending.in_flight and pending.is_store and pending.groups and access.threads & ~mask == 0:
            if pending.groups <= pending_groups:
                pending = pending._replace(left=True) if by_user else pending
            elif read and access.is_write:
                pass
            elif not access.is_write:
                pending = pending._replace(access=access.completed(), depth=depth, groups=0, left=False)
            else:
                is_one = access.threads & (access.threads - 1) == 0  # each thread waits for its own stores only
                ordered = access.threads if is_one else 0
                pending = pending._replace(done=True, depth=depth, groups=0, ordered=ordered, left=False)
        result[pending] = None
    return result


def after_warp_sync(state: State, mask: int) -> State:
    """``state`` after the threads ``mask``, whole warps, met by warps: each of them knows what its warp has done."""
    result: State = {}
    for pending in state:
        if not pending.in_flight and pending.access.threads & ~mask == 0:
            pending = pending._replace(met=max(pending.met, WARP))
        result[pending] = None
    return result


def after_wgmma(state: State, mask: int) -> State:
    """``state`` after the threads ``mask`` waited for all their wgmma: the warps of a warpgroup issue it together, so
    that each has come past the waits on mbarriers before it."""
    result: State = {}
    for pending in state:
        if pending.access.phase and pending.access.threads & ~mask == 0:
            pending = pending._replace(met=max(pending.met, WARPGROUP))
        result[pending] = None
    return result


def after_barrier_wait(state: State, names: set[str], mask: int, depth: int) -> State:
    """``state`` after the threads ``mask`` waited on an mbarrier that retires the loads to the storages ``names``. TMA
    stores complete on no mbarrier."""
    result: State = {}
    for pending in state:
        access = pending.access
        by_mbarrier = access.asynchronous and access.engine != "wgmma" and not pending.is_store
        if by_mbarrier and access.retired_by in names:
            pending = pending._replace(done=True, depth=depth, ordered=pending.ordered | mask)
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
                pending = pending._replace(access=access.completed(), depth=depth)
        result[pending] = None
    return result


def next_iteration(state: State, variable: str, depth: int) -> State:
    """``state`` over the back-edge of the loop whose inside has ``depth``."""
    return {p.at(p.depth, p.relation.next_iteration(variable)) if p.depth >= depth else p: None for p in state}


def leaving(state: State, depth: int, variable: str | None = None) -> State:
    """``state`` outside the scope whose inside has ``depth``; ``variable``: of a loop that is left."""
    result: State = {}
    for pending in state:
        if pending.depth >= depth:
            relation = pending.relation if variable is None else pending.relation.leaving(variable)
            pending = pending.at(depth - 1, relation)
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

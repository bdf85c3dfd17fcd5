"""Which accesses can still matter to something that runs later: the others need not be carried through the walk.

An access matters if some statement that may run after it (later in the program, or in a loop around both) touches the
same memory and one of the two writes. That is decided by storages and positions alone, so that the walk only compares
addresses where there may be something to order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from ptxtile.ir.access import Access
from ptxtile.ir.access_context import Context
from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import Expr, Load
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import children, walk
from ptxtile.ir.statement_accesses import expression_accesses, operation_accesses
from ptxtile.ir.statements import For, If, Seq, Specialized, Statement, Store, While
from ptxtile.lower.hazards import Path, Pending
from ptxtile.lower.synchronization_hand_overs import HandOvers
from ptxtile.records import record

COMPILED_ROLES = {"consumer", "producer"}
"""The names of the roles that specialize_warps makes."""

_MEMORY = (Scope.GLOBAL, Scope.SHARED, Scope.BARRIER)


@record
class _Place:
    """Positions of a statement and of the last one inside it, the loops around it, and its role: the position of the
    Specialized and the role's first thread."""

    first: int
    last: int
    loops: frozenset[int]
    role: tuple[int, int] | None


@record
class _Touch:
    """``low`` to ``high``: the bytes of the storage where it is placed in shared memory."""

    place: _Place
    is_write: bool
    in_async_proxy: bool
    low: float
    high: float


@record
class Evidence:
    """A barrier before the statement at ``place`` (position ``position``) and the pair of accesses that asked for it:
    between the positions ``earlier`` and ``later``, over a back-edge if it is ``carried``."""

    place: Path
    position: float
    earlier: float
    later: float
    carried: bool

    def may_order(self, other: Evidence) -> bool:
        """Whether this barrier may stand between the two accesses of ``other``."""
        if other.carried:
            return self.position > other.earlier or self.position < other.later
        return other.earlier < self.position < other.later


class Reach:
    """Where a kernel touches which memory. ``hand_overs``: what its roles hand to each other."""

    def __init__(self, kernel: Kernel, context: Context) -> None:
        self._context, self.hand_overs = context, HandOvers()
        self._touches: dict[str, list[_Touch]] = defaultdict(list)
        self._places: dict[Path, _Place] = {}
        self._positions: dict[Access, float] = {}
        self._asks: dict[Access, bool] = {}
        self._matters: dict[Access, bool] = {}
        self._own: dict[tuple[str, bool, int], bool] = {}
        self._inside: dict[tuple[Path, str, bool], bool] = {}
        self._roles: set[tuple[int, int]] = set()
        self._count = 0
        self._visit(kernel.body, (), frozenset(), None)

    def locate(self, accesses: list[Access], path: Path, whole: bool) -> None:
        """Notes that the statement at ``path`` makes ``accesses``; ``whole``: they stand for all that is inside it."""
        for access in accesses:
            if access not in self._positions:
                place = self._places[path]
                self._positions[access] = place.last if whole else place.first
                earlier, later = self._meets(access, place)
                self._asks[access], self._matters[access] = earlier, later or self._is_kept(access, place)

    def asks(self, access: Access) -> bool:
        """Whether an access that has been located may have to be ordered after an earlier one."""
        return self._asks[access]

    def matters(self, access: Access) -> bool:
        """Whether an access that has been located may have to be ordered before a later one."""
        return self._matters[access]

    def _is_kept(self, access: Access, place: _Place) -> bool:
        """What a TMA store reads is waited for at the end; what other roles get is ordered before an arrival, and so is
        a wait for the phase before."""
        if access.phase:
            return self.hand_overs.keeps_wait(access.storage.name, None if place.role is None else place.role[1])
        reads_for_store = access.asynchronous and not access.is_write and access.storage.scope is Scope.SHARED
        return reads_for_store or self.is_released(access)

    def evidence(self, place: Path, pending: Pending, later: Access | None) -> Evidence:
        """Why there is a barrier before the statement at ``place`` (or at the end of what ``place`` is the end of)."""
        earlier = self._positions.get(pending.access, float("-inf"))
        after = float("inf") if later is None else self._positions.get(later, float("inf"))
        carried = not pending.relation.is_same_iteration
        return Evidence(place, self._places[place].first - 0.5, earlier, after, carried)

    def meets_other_proxy(self, access: Access) -> bool:
        """Whether the kernel touches the memory of ``access`` through the other proxy."""
        low, high = _range(access)
        return any(
            touch.in_async_proxy != access.in_async_proxy and touch.low < high and low < touch.high
            for touch in self._touches[access.memory]
        )

    def meets_own_role(self, access: Access) -> bool:
        """Whether something outside of roles that run beside the access's own one may conflict with it."""
        first = access.context.first_thread
        key = access.storage.name, access.is_write, first
        if key not in self._own:
            several = len({role[0] for role in self._roles}) > 1
            roles = (touch.place.role for touch in self._conflicting(access))
            self._own[key] = several or any(role is None or role[1] == first for role in roles)
        return self._own[key]

    def meets_inside(self, access: Access, path: Path) -> bool:
        """Whether something inside of the statement at ``path`` may conflict with ``access``."""
        key = path, access.storage.name, access.is_write
        if key not in self._inside:
            place = self._places[path]
            touches = (touch.place for touch in self._conflicting(access))
            self._inside[key] = any(place.first <= touch.first <= place.last for touch in touches)
        return self._inside[key]

    def is_released(self, access: Access) -> bool:
        """Whether arrivals at a barrier hand what is accessed over to other roles."""
        return self.hand_overs.concern(access)

    def is_last(self, path: Path) -> bool:
        """Whether no memory is touched after the statement at ``path``."""
        place = self._places[path]
        if place.loops:
            return False
        return not any(touch.place.first > place.last for touches in self._touches.values() for touch in touches)

    def _meets(self, access: Access, place: _Place) -> tuple[bool, bool]:
        """Whether something touches the memory of ``access`` that may run before it, and that may run after it."""
        now, before, after = self._positions[access], False, False
        for touch in self._conflicting(access):
            other = touch.place
            if place.role and other.role and place.role[0] == other.role[0] and place.role != other.role:
                continue  # at the same time, in other threads
            again = bool(place.loops & other.loops)
            before, after = before or again or other.first < now, after or again or other.last > now
        return before, after

    def _conflicting(self, access: Access) -> Iterator[_Touch]:
        """What touches the memory of ``access``, one of the two writing."""
        low, high = _range(access)
        for touch in self._touches[access.memory]:
            if (access.is_write or touch.is_write) and touch.low < high and low < touch.high:
                yield touch

    def _visit(self, node: Statement, path: Path, loops: frozenset[int], role: tuple[int, int] | None) -> None:
        self._count += 1
        first = self._count
        inside = loops | {first} if isinstance(node, (For, While)) else loops
        match node:
            case Seq(statements):
                for position, child in enumerate(statements):
                    self._visit(child, (*path, position), loops, role)
            case For() | While():
                self._visit(node.body, (*path, "body"), inside, role)
            case If():
                self._visit(node.then, (*path, "then"), loops, role)
                if node.otherwise is not None:
                    self._visit(node.otherwise, (*path, "otherwise"), loops, role)
            case GpuOp():
                self.hand_overs.note(node, None if role is None else role[1])
            case Specialized():
                self.hand_overs.by_compiler |= {inner.name for inner in node.roles} == COMPILED_ROLES
                for position, inner in enumerate(node.roles):
                    self._roles.add((first, inner.first_thread))
                    self._visit(inner.body, (*path, position), loops, (first, inner.first_thread))
        place = self._places[path] = _Place(first, self._count, loops, role)
        if isinstance(node, (For, While)):
            self._count += 1
            self._places[(*path, "end")] = _Place(self._count, self._count, inside, role)
        own = _Place(first, first, inside, role) if isinstance(node, (For, While, If)) else place
        self._touch(node, own)

    def _touch(self, node: Statement, place: _Place) -> None:
        if isinstance(node, GpuOp):
            found = list(operation_accesses(node, self._context))
        else:
            expressions = [child for child in children(node) if isinstance(child, Expr)]
            found = [
                access
                for expression in expressions
                if any(inner.buffer.scope in _MEMORY for inner in walk(expression, Load))
                for access in expression_accesses(expression, self._context, node)
            ]
            if isinstance(node, Store) and node.buffer.scope in _MEMORY:
                found.append(Access(node.buffer.storage, True, None, 8, 8, self._context))
        for access in found:
            low, high = _range(access)
            self._touches[access.memory].append(_Touch(place, access.is_write, access.in_async_proxy, low, high))
            self.hand_overs.touch(access, None if place.role is None else place.role[1])


def _range(access: Access) -> tuple[float, float]:
    """The bytes of a storage in its memory; all of it where the place of several in one memory is not known."""
    size: Any = access.storage.size
    if access.memory != "shared" or size is None:
        return float("-inf"), float("inf")
    return access.base, access.base + size

"""From when to when the contents of each shared storage matter.

Statements are numbered in program order. A storage lives from its first access to its last, and through the whole of a
loop unless every iteration writes what it reads. What some threads run while others do not counts as one moment: no
barrier can stand in it, so nothing in it can be over before something else in it begins. A TMA store reads until the
program's own wait for it; without one it may *linger*, to the end and through the loops around it, or be over at once,
and whoever gets the memory next waits for it. Roles run at the same time: inside a ``Specialized`` each role has a
clock of its own, and a storage of several roles lives in all of it, except a *hand-over*: one role only loads it by
TMA, once (or, in the compiler's own roles, as often as it is waited for), and another waits for that and uses it; such
a storage lives in the clock of its user.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ptxtile.ir import gpu_ops
from ptxtile.ir.access import Access
from ptxtile.ir.access_context import Context, kernel_context
from ptxtile.ir.async_copy_ops import CpAsyncWaitGroup
from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import Expr, Load, Var
from ptxtile.ir.footprint import NOBODY, footprint
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import buffers_of, contains, walk
from ptxtile.ir.statement_accesses import accesses, expression_accesses
from ptxtile.ir.statements import Allocate, Break, Continue, For, If, Let, Role, Seq, Specialized, Statement, While
from ptxtile.ir.tensor_core_ops import WgmmaWaitGroup
from ptxtile.lower.uniformity import Uniformity
from ptxtile.records import record

if TYPE_CHECKING:
    import numpy as np

BEFORE, AFTER = float("-inf"), float("inf")


@record
class Lifetime:
    """Positions from ``start`` to ``end``, both included, on the kernel's clock; ``role`` and its own interval where
    all of the storage's accesses inside a Specialized belong to one role (``specialized``: that statement's
    position)."""

    start: float
    end: float
    specialized: float | None = None
    role: str | None = None
    role_start: float = BEFORE
    role_end: float = AFTER

    def overlaps(self, other: Lifetime) -> bool:
        """Whether both contents matter at some time."""
        low, high = max(self.start, other.start), min(self.end, other.end)
        if low > high:
            return False
        if low == high == self.specialized == other.specialized and self.role is not None and self.role == other.role:
            return self._in_role(low)[0] <= other._in_role(low)[1] and other._in_role(low)[0] <= self._in_role(low)[1]
        return True

    def _in_role(self, position: float) -> tuple[float, float]:
        """The interval on the role's clock; open-ended where the storage also lives before or after."""
        start = BEFORE if self.start < position else self.role_start
        return start, AFTER if self.end > position else self.role_end


@dataclass(slots=True)
class _Use:
    """One access, or one wait that retires (``access`` None), of a storage from a position of a clock to ``last``."""

    position: int
    last: int
    access: Access | None
    role: str | None
    specialized: int | None
    loops: tuple[int, ...]


@dataclass(slots=True)
class _Loop:
    """``depth``: For loops around the body, this one included."""

    start: int
    depth: int
    end: int = 0
    allocated: set[str] = field(default_factory=set)
    in_flight_at_end: set[str] = field(default_factory=set)
    storing_at_end: set[str] = field(default_factory=set)


class _Divergence:
    """Which conditions and loops threads may pass differently; :class:`Uniformity` is only asked where that is not
    plain."""

    def __init__(self, kernel: Kernel, context: Context) -> None:
        self._kernel, self._context = kernel, context
        self._uniformity: Uniformity | None = None

    def begins_at(self, node: Statement, context: Context) -> bool:
        if isinstance(node, For):
            leaves = contains(node.body, Break, Continue)
            plain = not leaves and all(self._is_plain(bound, context) for bound in (node.start, node.stop))
            return not plain and not self._known(node, context)
        if not isinstance(node, (If, While)):
            return False
        names = {inside.name for inside in walk(node.condition, Var)}
        if context.thread in names:
            return True
        if self._is_plain(node.condition, context):
            return False
        return not self._known(node, context)

    def _is_plain(self, expression: Expr, context: Context) -> bool:
        """Whether it holds nothing but block indices, symbols and constants."""
        nodes = list(walk(expression))
        names = {node.name for node in nodes if isinstance(node, Var)}
        return not any(isinstance(node, Load) for node in nodes) and names <= context.uniform

    def _known(self, node: If | For | While, context: Context) -> bool:
        """Whether all threads go the same way."""
        if self._uniformity is None:
            self._uniformity = Uniformity(self._kernel, self._context)
        if isinstance(node, If):
            return self._uniformity.holds_for(node.condition, context)
        return self._uniformity.loop_is_uniform(node, context)


class Lifetimes:
    """When the contents of a kernel's SHARED storages matter."""

    def __init__(self, program: Program, kernel: Kernel) -> None:
        self._stores_linger = True
        self._waits_for_stores = contains(kernel.body, gpu_ops.BulkWaitGroup)
        self._clock = 0
        self._divergence = _Divergence(kernel, kernel_context(program, kernel))
        self._divergent = False
        self._uses: dict[str, list[_Use]] = defaultdict(list)
        self._loops: dict[int, _Loop] = {}
        self._role: str | None = None
        self._specialized: int | None = None
        self._span: dict[int, int] = {}
        self._as_many_waits = False
        self._storing: set[str] = set()  # storages that TMA stores may still be reading
        self._loading: set[str] = set()  # storages that TMA loads or cp.async may still be writing
        self._multiplying: set[str] = set()  # storages that wgmma may still be reading
        loads = (node for node in walk(kernel.body, gpu_ops.TmaLoad))
        self._from_peers = {load.shared.storage.name for load in loads if load.multicast is not None}
        """Storages that other CTAs of the cluster write, as soon as they get that far."""
        self._walk(kernel.body, kernel_context(program, kernel), ())

    @property
    def depend_on_stores(self) -> bool:
        """Whether a TMA store is left at the end of a loop or of the kernel that the program does not wait for by
        itself."""
        return bool(self._left_storing) and not self._waits_for_stores

    @property
    def _left_storing(self) -> set[str]:
        """What TMA stores may still be reading at the end of a loop or of the kernel."""
        return self._storing.union(*(loop.storing_at_end for loop in self._loops.values()))

    def of(self, *, stores_linger: bool, apart: bool = False) -> dict[str, Lifetime]:
        """The lifetimes by name. ``apart``: what a TMA store reads has its memory for itself, so that nobody waits
        before it is written either."""
        self._stores_linger = stores_linger or self._waits_for_stores
        found = {name: self._lifetime(name) for name in self._uses}
        early = {name: replace(found[name], start=BEFORE, role_start=BEFORE) for name in self._from_peers & set(found)}
        alone = {name: Lifetime(BEFORE, AFTER) for name in self._left_storing} if apart else {}
        return found | early | alone

    @property
    def _never_retired(self) -> set[str]:
        return self._multiplying | (self._storing if self._stores_linger else set())

    # -- collecting uses -------------------------------------------------------------------------------------------

    def _walk(self, node: Statement, context: Context, loops: tuple[int, ...]) -> None:
        if self._divergent or not self._divergence.begins_at(node, context):
            self._walk_inside(node, context, loops)
            return
        before = {name: len(uses) for name, uses in self._uses.items()}
        self._divergent, start = True, self._clock + 1
        self._walk_inside(node, context, loops)
        self._divergent = False
        for name, uses in self._uses.items():
            for use in uses[before.get(name, 0) :]:
                use.position, use.last = start, self._clock

    def _walk_inside(self, node: Statement, context: Context, loops: tuple[int, ...]) -> None:
        self._clock += 1
        match node:
            case Seq(statements):
                for statement in statements:
                    self._walk(statement, context, loops)
                    if isinstance(statement, Let):
                        context = context.with_let(statement)
            case For() | While():
                self._walk_loop(node, context, loops)
            case If(condition, then, otherwise):
                self._use_accesses(expression_accesses(condition, context, node), loops)
                self._walk(then, context.with_condition(condition), loops)
                if otherwise is not None:
                    self._walk(otherwise, context.with_condition(condition, holds=False), loops)
            case Specialized(roles):
                self._walk_roles(roles, context, loops)
            case Allocate(buffer):
                for number in loops:
                    self._loops[number].allocated.add(buffer.storage.name)
            case _:
                self._use_accesses(accesses(node, context), loops)
                self._use_waits(node, loops)

    def _walk_loop(self, node: For | While, context: Context, loops: tuple[int, ...]) -> None:
        number = self._clock
        bounds = (node.start, node.stop) if isinstance(node, For) else (node.condition,)
        loops = (*loops, number)
        for bound in bounds:
            self._use_accesses(expression_accesses(bound, context, node), loops)
        inner = context.with_loop(node, symbolic=True) if isinstance(node, For) else context
        self._loops[number] = _Loop(number, len(inner.loops))
        leaves = contains(node.body, Break, Continue)
        if isinstance(node, While) or leaves:
            inner = replace(inner, repeated=True)  # what stands in it may happen less often than the bounds say
        self._walk(node.body, inner, loops)
        self._clock += 1
        self._loops[number].end = self._clock
        self._loops[number].storing_at_end = set(self._storing)
        self._loops[number].in_flight_at_end = self._loading | self._multiplying

    def _walk_roles(self, roles: tuple[Role, ...], context: Context, loops: tuple[int, ...]) -> None:
        outer_storing, self._specialized = set(self._storing), self._clock
        first = self._clock
        # The compiler's own roles (they have registers): the consumer waits for each load that the producer issues.
        self._as_many_waits = {role.name for role in roles if role.registers is not None} == {"consumer", "producer"}
        for role in roles:
            self._role, self._storing = role.name, set(outer_storing)
            self._walk(role.body, context.for_threads(role.first_thread, role.threads), loops)
            outer_storing |= self._storing
        self._role, self._specialized, self._storing = None, None, outer_storing
        self._span[first] = self._clock

    def _use_accesses(self, found: list[Access], loops: tuple[int, ...]) -> None:
        for access in found:
            if access.storage.scope is Scope.SHARED:
                self._use(access.storage.name, access, loops)
                if access.asynchronous and access.engine != "wgmma":
                    (self._loading if access.is_write else self._storing).add(access.storage.name)
                elif access.asynchronous:
                    self._multiplying.add(access.storage.name)

    def _use_waits(self, node: Statement, loops: tuple[int, ...]) -> None:
        if isinstance(node, (WgmmaWaitGroup, CpAsyncWaitGroup)):
            self._use_group_wait(node, loops)
        elif isinstance(node, (gpu_ops.MbarrierWait, gpu_ops.BulkWaitGroup)):
            names = {buffer.storage.name for buffer in buffers_of(node) if buffer.scope is Scope.SHARED}
            if isinstance(node, gpu_ops.BulkWaitGroup):
                names = names | self._storing if node.pending == 0 else names
                self._storing -= names
            else:
                self._loading -= names
            for name in sorted(names):
                self._use(name, None, loops)

    def _use_group_wait(self, node: WgmmaWaitGroup | CpAsyncWaitGroup, loops: tuple[int, ...]) -> None:
        names = {buffer.storage.name for buffer in node.retires}
        if isinstance(node, WgmmaWaitGroup):
            names = names | self._multiplying if node.pending == 0 else names
            self._multiplying -= names
        else:
            self._loading -= names
        for name in sorted(names):
            self._use(name, None, loops)

    def _use(self, name: str, access: Access | None, loops: tuple[int, ...]) -> None:
        self._uses[name].append(_Use(self._clock, self._clock, access, self._role, self._specialized, loops))

    # -- intervals -------------------------------------------------------------------------------------------------

    def _lifetime(self, name: str) -> Lifetime:
        uses = self._uses[name]
        start, end = self._interval(name, uses)
        if name in self._never_retired:
            end = AFTER
        inside = [use for use in uses if use.specialized is not None]
        if not inside:
            return Lifetime(start, end)
        position = inside[0].specialized
        assert position is not None
        start, end = (self._outside(moment) for moment in (start, end))
        if any(use.specialized != position for use in inside):
            return Lifetime(start, end)
        roles = {use.role for use in inside}
        if len(roles) == 1:
            own = self._interval(name, inside)
            return Lifetime(
                start, end, position, inside[0].role, own[0], AFTER if name in self._never_retired else own[1]
            )
        user = _user_of_loads(inside, self._as_many_waits)
        if user is None:
            return Lifetime(start, end, position)
        own = self._interval(name, [use for use in inside if use.role == user])
        last = AFTER if name in self._never_retired else own[1]
        return Lifetime(start, end, position, user, BEFORE, last)

    def _outside(self, moment: float) -> float:
        """A position inside a Specialized as that statement's position."""
        for first, last in self._span.items():
            if first <= moment <= last:
                return first
        return moment

    def _interval(self, name: str, uses: list[_Use]) -> tuple[float, float]:
        start, end = min(use.position for use in uses), max(use.last for use in uses)
        for number in {number for use in uses for number in use.loops}:
            loop = self._loops[number]
            if self._carried(name, number):
                start, end = min(start, loop.start), max(end, loop.end)
        return start, end

    def _carried(self, name: str, number: int) -> bool:
        """Whether the contents may matter from one iteration of a loop to the next, or after an early exit."""
        loop, uses = self._loops[number], self._uses[name]
        if name in loop.in_flight_at_end or (self._stores_linger and name in loop.storing_at_end):
            return True
        if any(number not in use.loops for use in uses):
            return True
        if name in loop.allocated:
            return False
        return not _written_before_read([use.access for use in uses if use.access is not None], loop)


def _written_before_read(found: list[Access], loop: _Loop) -> bool:
    """Whether each read of one iteration sees only bytes written earlier in it, by writes that surely happen."""
    import numpy as np

    size = found[0].storage.size if found else None
    if size is None:
        return False
    written = np.zeros(size, bool)
    for access in found:
        touched = footprint(access, frozenset(axis.name for axis in access.context.loops[loop.depth :]))
        exact = touched.exact and not touched.residual
        if access.is_write:
            if exact and touched.complete:
                _mark(written, touched.start, touched.granule, touched.owners)
            continue
        needed = np.zeros(size, bool)
        if exact:
            _mark(needed, touched.start, touched.granule, touched.owners)
        else:
            needed[:] = True
        if bool((needed & ~written).any()):
            return False
    return True


def _mark(table: np.ndarray, start: int, granule: int, owners: np.ndarray | None) -> None:
    """Sets the bytes that somebody owns, as far as they are inside the table."""
    import numpy as np

    assert owners is not None
    owned = np.flatnonzero(owners != NOBODY)
    places = (start + owned[:, None] * granule + np.arange(granule)[None, :]).ravel()
    table[places[(places >= 0) & (places < len(table))]] = True


def _user_of_loads(uses: list[_Use], as_many_waits: bool) -> str | None:
    """The role that waits for and uses what one other role loads by TMA, exactly once or (``as_many_waits``) as often
    as it is waited for; None for any other traffic. After the user's last wait nothing is under way any more."""
    roles = {use.role for use in uses}
    if len(roles) != 2:
        return None
    for loader in roles:
        (user,) = roles - {loader}
        theirs = [use for use in uses if use.role == loader]
        own = [use for use in uses if use.role == user]
        loads = [use.access for use in theirs if use.access is not None or not as_many_waits]
        loads_only = all(access is not None and access.asynchronous and access.is_write for access in loads)
        once = not any(use.loops for use in theirs) and not own[0].loops
        if loads and loads_only and (once or as_many_waits) and own[0].access is None:
            return user
    return None

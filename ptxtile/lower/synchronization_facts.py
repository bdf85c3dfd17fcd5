"""What the synchronization walk asks about a kernel, and what stays the same however often it is walked."""

from __future__ import annotations

from itertools import combinations, product

from ptxtile.errors import LoweringError
from ptxtile.ir import gpu_ops
from ptxtile.ir.access import Access
from ptxtile.ir.access_context import Context, inlined, kernel_context
from ptxtile.ir.buffers import Scope
from ptxtile.ir.conflicts import Overlap, Relation, compare
from ptxtile.ir.enumeration import NotEnumerable, evaluate
from ptxtile.ir.manual_ops import BarArrive, BarAt, BarReduce
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import contains, walk
from ptxtile.ir.statements import For, Role, While
from ptxtile.lower.hazards import Comparisons, Path
from ptxtile.lower.synchronization_branches import Branches
from ptxtile.lower.synchronization_hand_overs import NAMED_BARRIERS
from ptxtile.lower.synchronization_reach import Reach
from ptxtile.lower.uniformity import Uniformity


class Facts:
    """What stays the same however often a kernel is walked: its accesses, which of them meet, what is uniform."""

    def __init__(self, program: Program, kernel: Kernel) -> None:
        self.context = kernel_context(program, kernel)
        self.uniformity = Uniformity(kernel, self.context)
        self.overlaps = Comparisons()
        self.events: dict[tuple, list[Access]] = {}
        self.units: dict[Path, bool] = {}
        self.uniform: dict[Path, bool] = {}
        self.inert: dict[Path, bool] = {}  # whether a loop orders nothing that was done before it
        self.checked: dict[Path, int] = {}  # so many accesses of roles were compared with each other
        self.contexts: dict[Path, Context] = {}  # inside a branch of a condition, or behind a Let
        self.loops: dict[Path, tuple[Context, int | None]] = {}  # inside a loop, and its trip count
        self.reach = Reach(kernel, self.context)
        self.hand_overs = self.reach.hand_overs
        self.branches = Branches(kernel, self.context)
        self._alike: dict[tuple, Access] = {}

    @property
    def has_barriers_inside_loops(self) -> bool:
        """Whether a loop was walked through statement by statement."""
        return not all(self.units.values())

    def meets_other_proxy(self, access: Access) -> bool:
        """Whether the other proxy may touch an access's memory somewhere in the kernel."""
        return access.storage.scope is Scope.BARRIER or self.reach.meets_other_proxy(access)

    def shared_access(self, access: Access) -> Access:
        """``access``, or one that was seen before and differs from it in nothing that matters: wgmma reads its operands
        many times in a row."""
        if (access.index is not None and access.engine != "wgmma") or access.box:
            return access
        context = access.context  # equal loops and conditions are one object as long as only Lets come between
        where = (context.first_thread, context.threads, context.outer, id(context.loops), id(context.conditions))
        kind = (access.storage.name, access.is_write, access.asynchronous, access.engine, access.atomic, access.index)
        return self._alike.setdefault((*kind, access.retired_by, access.element_bits, *where), access)


def trip_count(node: For | While, context: Context) -> int | None:
    """How often the body runs, when that is a constant."""
    if isinstance(node, While):
        return None
    start, stop = (inlined(bound, context) for bound in (node.start, node.stop))
    if start is None or stop is None:
        return None
    try:
        return len(range(int(evaluate(start, {})), int(evaluate(stop, {})), node.step))
    except NotEnumerable:
        return None


def check_across_roles(roles: tuple[Role, ...], made: dict[str, dict[Access, None]]) -> None:
    """Roles run at the same time: what two of them touch has to be handed over by an mbarrier that retires it."""
    at_any_time = Relation(parallel=True)
    for first, second in combinations(roles, 2):
        if _named_barriers(first) & _named_barriers(second):
            continue  # the user orders them by hand
        waits = (n for role in (first, second) for n in walk(role.body, gpu_ops.MbarrierWait))
        handed_over = {buffer.storage.name for wait in waits for buffer in wait.retires}
        for a, b in product(made[first.name], made[second.name]):
            same = a.storage.name == b.storage.name and a.storage.scope is Scope.SHARED
            if same and a.storage.name not in handed_over and compare(a, b, at_any_time) is not Overlap.NONE:
                where = [str(access.location) for access in (a, b) if access.location is not None]
                raise LoweringError(
                    f"roles {first.name} and {second.name} both touch {a.storage.name} and nothing orders them",
                    location=b.location or a.location,
                    expected=f"a barrier wait that hands {a.storage.name} over",
                    got=f"the {a.describe()} and the {b.describe()}" + (f" at {' and '.join(where)}" if where else ""),
                )


def _named_barriers(role: Role) -> set[int]:
    """Ids of the named barriers that a role arrives at."""
    if contains(role.body, BarAt):
        return set(range(1, NAMED_BARRIERS))
    return {n.id for n in walk(role.body, gpu_ops.BarSync, BarArrive, BarReduce) if n.id}

"""What barriers of the user's order between threads that go different ways, or that only some threads meet at.

The walk of :mod:`ptxtile.lower.insert_synchronization` can place barriers only where all threads of the region arrive.
An order of the user's own, by named barriers and mbarriers in the branches of conditions on the thread, is found by a
rehearsal (:mod:`ptxtile.lower.rehearse_barriers`): two accesses need nothing more if in all their iterations one is
done before the other begins, or they touch different places.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from math import lcm

from ptxtile.ir.access import Access
from ptxtile.ir.access_context import Context
from ptxtile.ir.conflicts import Overlap, Relation, compare
from ptxtile.ir.enumeration import depends_on
from ptxtile.ir.expressions import Binary, Const, Expr, LogicalAnd, LogicalOr, Var
from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import children, contains, substitute, walk
from ptxtile.ir.statements import For, If, Seq, Specialized, Statement, While
from ptxtile.ir.tensor_core_ops import WARP
from ptxtile.ir.types import bool_
from ptxtile.lower.hazards import Path
from ptxtile.lower.rehearsal_clocks import Moment, Unclear
from ptxtile.lower.rehearsal_values import repetition
from ptxtile.lower.rehearse_barriers import NAMED, Rehearsals, is_named_barrier, rehearse, steers

_AT_ANY_TIME = Relation(parallel=True)


class Branches:
    """Asked about pairs of accesses of ``kernel``; ``context``: that of its body. Rehearses when it is first asked."""

    def __init__(self, kernel: Kernel, context: Context) -> None:
        self._kernel, self._context = kernel, context
        self._paths: dict[Access, Path] = {}
        self._rehearsed: Rehearsals | None = None
        self._found: dict[Access, list[list[Moment]]] = {}
        self._answers: dict[tuple[Access, Access], bool] = {}
        self._variables: dict[Access, dict[str, tuple[Var, int]]] = {}
        self._fixed: dict[tuple, Access] = {}
        self._meets: dict[tuple, bool] = {}
        meetings = walk(kernel.body, *NAMED)
        self.has_named_barriers = any(map(is_named_barrier, meetings)) and not contains(kernel.body, Specialized)
        """Whether threads meet at the user's named barriers, outside of roles."""

    def locate(self, accesses: list[Access], path: Path) -> None:
        """Notes that the statement at ``path`` makes ``accesses``."""
        for access in accesses:
            self._paths.setdefault(access, path)

    def order(self, earlier: Access, later: Access) -> bool:
        """Whether ``earlier`` and ``later`` are ordered, one way or the other: another barrier, for the order in which
        they stand in the kernel, would only make the threads wait for each other for ever. What an asynchronous access
        does is only known to come after what was done before its issue."""
        if earlier.asynchronous or earlier.was_async or earlier.phase or later.phase:
            return False
        if earlier not in self._paths or later not in self._paths:
            return False
        key = earlier, later
        if key not in self._answers:
            self._answers[key] = self._find(earlier, later)
        return self._answers[key]

    def _find(self, earlier: Access, later: Access) -> bool:
        if self._rehearsed is None:
            try:
                self._rehearsed = rehearse(self._kernel, self._context)
            except Unclear:
                self._rehearsed = Rehearsals([], 1)
        runs = zip(self._moments(earlier), self._moments(later), strict=True)
        pairs = ((a, b) for firsts, seconds in runs for a, b in _unordered(firsts, seconds, later.asynchronous))
        return bool(self._rehearsed.runs) and not any(self._meet(earlier, a, later, b) for a, b in pairs)

    def _moments(self, access: Access) -> list[list[Moment]]:
        """By rehearsal, when the access happens."""
        assert self._rehearsed is not None
        if access not in self._found:
            path = _noted(self._kernel.body, self._paths[access])
            self._found[access] = [
                [moment for moment in moments.get(path, ()) if moment.threads & access.threads]
                for moments in self._rehearsed.runs
            ]
        return self._found[access]

    def _meet(self, earlier: Access, first: Moment, later: Access, second: Moment) -> bool:
        """Whether the two accesses, made at these moments, may conflict."""
        a, b = self._made_at(earlier, first), self._made_at(later, second)
        group = WARP if first.is_apart_by_warps(second) else 1
        if (a, b, group) not in self._meets:
            self._meets[a, b, group] = compare(a, b, _AT_ANY_TIME, group=group) is not Overlap.NONE
        return self._meets[a, b, group]

    def _made_at(self, access: Access, moment: Moment) -> Access:
        """``access`` by the threads of ``moment``, in the iterations that it belongs to."""
        assert self._rehearsed is not None
        variables = self._variables_of(access)
        values: dict[str, int] = {}
        for name, (_, period) in variables.items():
            if name in moment.values:
                value = moment.values[name]
                values[name] = value % period if period and value >= 0 else value
            elif name in moment.repeating and period and self._rehearsed.period % period == 0:
                values[name] = moment.repeating[name] % period
        key = access, moment.threads, tuple(values.items())
        if key not in self._fixed:
            constants: dict[str, Expr] = {
                name: Const(value, variables[name][0].dtype) for name, value in values.items()
            }
            self._fixed[key] = self._with(access, constants, moment)
        return self._fixed[key]

    def _variables_of(self, access: Access) -> dict[str, tuple[Var, int]]:
        """What the place of an access depends on: variables, and after how many values of each it is the same again;
        0: never, as far as known."""
        if access not in self._variables:
            context = access.context
            places = [access.index, *context.conditions, *(corner for corner, _ in access.box)]
            places += [bound for axis in context.loops for bound in (axis.start, axis.stop)]
            known = [place for place in places if place is not None]
            variables = {n.name: n for place in known for n in walk(place, Var)}
            periods = {name: [_period(p, name) for p in known if depends_on(p, (name,))] for name in variables}
            self._variables[access] = {
                name: (variable, lcm(*periods[name]) if all(periods[name]) else 0)
                for name, variable in sorted(variables.items())
            }
        return self._variables[access]

    def _with(self, access: Access, constants: dict[str, Expr], moment: Moment) -> Access:
        context = access.context
        axes = [(axis, number < context.outer) for number, axis in enumerate(context.loops)]
        axes = [(axis, is_outer) for axis, is_outer in axes if axis.name not in constants]
        loops = tuple(
            replace(axis, start=substitute(axis.start, constants), stop=substitute(axis.stop, constants))
            for axis, _ in axes
        )
        conditions = tuple(substitute(condition, constants) for condition in context.conditions)
        inside = replace(
            context,
            loops=loops,
            outer=sum(is_outer for _, is_outer in axes),
            conditions=(*conditions, self._is_one_of(moment.threads)),
            assumed=(),
        )
        return replace(
            access,
            index=None if access.index is None else substitute(access.index, constants),
            box=tuple((substitute(corner, constants), extent) for corner, extent in access.box),
            context=inside,
        )

    def _is_one_of(self, threads: int) -> Expr:
        """The condition that the present thread is one of ``threads`` (a bit for each)."""
        thread, result = self._kernel.thread, None
        first, left = 0, threads
        while left:
            skipped = (left & -left).bit_length() - 1
            first, left = first + skipped, left >> skipped
            count = (~left & -~left).bit_length() - 1
            part = LogicalAnd(thread.ge(first), thread.lt(first + count), bool_)
            result = part if result is None else LogicalOr(result, part, bool_)
            first, left = first + count, left >> count
        assert result is not None
        return result


def _unordered(firsts: list[Moment], seconds: list[Moment], one_way: bool) -> Iterator[tuple[Moment, Moment]]:
    """The pairs of which neither comes before the other; ``one_way``: of which the first does not come before the
    second. What one group knows only grows: those that come before a moment, and after it, are found by bisection."""
    of_groups: dict[int, list[Moment]] = defaultdict(list)
    for moment in seconds:
        of_groups[moment.group].append(moment)
    for first in firsts:
        for group, others in of_groups.items():
            start = 0 if one_way else bisect_left(others, first.clock.get(group, 0), key=lambda other: other.time)
            stop = bisect_right(others, first.time, key=lambda other: other.clock.get(first.group, 0))
            for second in others[start:stop]:
                yield first, second


def _period(place: Expr, name: str) -> int:
    """After how many values of a variable an expression is the same again; 0: not known."""
    try:
        return repetition(place)[1] if _is_bounded(place, name) else 0
    except Unclear:
        return 0


def _is_bounded(place: Expr, name: str) -> bool:
    """Whether a variable of any size has its say in an expression by a remainder only."""
    match place:
        case Var():
            return place.name != name
        case Binary("floormod" | "truncmod" | "and", _, Const(), dtype) if not dtype.is_bool:
            return True
    return all(_is_bounded(child, name) for child in children(place))


def _noted(node: Statement, path: Path) -> Path:
    """The path by which a rehearsal notes the statement at ``path``: of itself, or of what is skipped as a whole around
    it."""
    for length, part in enumerate(path):
        if not isinstance(node, Seq) and not steers(node):
            return path[:length]
        match node:
            case Seq(statements) if isinstance(part, int):
                node = statements[part]
            case For() | While() if part == "body":
                node = node.body
            case If() if part in ("then", "otherwise"):
                inner = node.then if part == "then" else node.otherwise
                assert inner is not None
                node = inner
            case Specialized(roles) if isinstance(part, int):
                node = roles[part].body
            case _:  # behind the last statement of a loop
                return path[:length]
    return path

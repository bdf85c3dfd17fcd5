"""Whether two accesses can meet: some byte touched by two different threads, at least one of them writing.

Accesses of one thread are ordered by the program and never conflict. An asynchronous access counts as its issuing
thread's here: what the issue of a TMA operation has to be ordered after is the same as for a store by that thread.

The earlier access may belong to an earlier iteration of loops around both (``lags``), or to a loop that was left and
perhaps entered again (``exited``); :func:`compare` takes the variables of those loops to differ accordingly.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise, product
from math import gcd
from typing import TYPE_CHECKING, Any

from ptxtile.ir.access import Access, Axis
from ptxtile.ir.enumeration import NotEnumerable, depends_on, evaluate, separate
from ptxtile.ir.expressions import Expr, Load, Var
from ptxtile.ir.footprint import MAXIMUM_POINTS, NOBODY, SEVERAL, Footprint, footprint, mentions
from ptxtile.ir.rewrite import free_variables, substitute, walk

if TYPE_CHECKING:
    import numpy as np

MAXIMUM_SHIFTS = 1024
"""So many distances between the iterations of two accesses are tried before they are taken as unknown."""


class Overlap(IntEnum):
    """NONE: proven apart. POSSIBLE: not proven. CERTAIN: enumerated exactly, they meet."""

    NONE = 0
    POSSIBLE = 1
    CERTAIN = 2


@dataclass(frozen=True, slots=True)
class Relation:
    """How the iterations of an earlier access ``a`` relate to those of a later ``b`` in loops around both.

    lags: loop variable → 1 (``b`` is in the next iteration) or 2 (in any later one). exited: loops that ``a`` was in
    and that were left since. ``parallel``: ``b`` runs at the same time as ``a``; no loop variable is shared.
    """

    lags: tuple[tuple[str, int], ...] = ()
    exited: frozenset[str] = frozenset()
    parallel: bool = False

    @property
    def is_same_iteration(self) -> bool:
        return not self.lags and not self.exited and not self.parallel

    def next_iteration(self, name: str) -> Relation:
        lags = dict(self.lags)
        lags[name] = min(2, lags.get(name, 0) + 1)
        return Relation(tuple(sorted(lags.items())), self.exited, self.parallel)

    def leaving(self, name: str) -> Relation:
        lags = tuple((n, lag) for n, lag in self.lags if n != name)
        return Relation(lags, self.exited | {name}, self.parallel)


SAME_ITERATION = Relation()


def conflicts(a: Access, b: Access) -> bool:
    """Whether ``a``, then ``b`` in the same iteration of the loops around them, needs an order between two threads."""
    return compare(a, b) is not Overlap.NONE


def compare(a: Access, b: Access, relation: Relation = SAME_ITERATION, *, threads_matter: bool = True) -> Overlap:
    """Whether ``a`` and then ``b`` conflict. ``threads_matter`` False: also when one thread touches both."""
    if a.memory != b.memory or not (a.is_write or b.is_write) or a.commutes_with(b):
        return Overlap.NONE
    if not (a.threads and b.threads) or (threads_matter and _is_one_thread(a, b)):
        return Overlap.NONE
    if a.storage.name != b.storage.name and a.memory.startswith("global"):
        same_place = threads_matter and _same_pattern(a, b, relation)
        return Overlap.NONE if same_place else Overlap.POSSIBLE  # how far apart the tensors are is not known
    if a.storage.name != b.storage.name and _lie_apart(a, b):
        return Overlap.NONE
    if a.box and b.box:
        return Overlap.POSSIBLE if _boxes_meet(a, b, relation) else Overlap.NONE
    first, second = _pair_of_footprints(a, b, relation)
    if not (first.exact and second.exact):
        return _compare_inexact(a, first, b, second, relation, threads_matter)
    try:
        shifts = _shifts(a, first, b, second, relation)
    except NotEnumerable:
        return Overlap.POSSIBLE
    for shift in shifts:
        if _tables_meet(first, a.base, second, b.base + shift, threads_matter):
            return Overlap.CERTAIN if first.complete and second.complete else Overlap.POSSIBLE
    return Overlap.NONE


def _lie_apart(a: Access, b: Access) -> bool:
    """Whether two placed storages of shared memory share no byte: every access stays inside of its storage."""
    sizes = a.storage.size, b.storage.size
    if a.memory != "shared" or sizes[0] is None or sizes[1] is None:
        return False
    return a.base + sizes[0] <= b.base or b.base + sizes[1] <= a.base


def repeats_conflict(access: Access) -> bool:
    """Whether a write inside a loop of its own statement meets itself, by another thread, in another iteration."""
    if not access.is_write or access.atomic or _is_one_thread(access, access):
        return False
    own_loops = access.context.repeated or len(access.context.loops) > access.context.outer
    return own_loops and footprint(access).repeats


def _is_one_thread(a: Access, b: Access) -> bool:
    return a.threads == b.threads and a.threads & (a.threads - 1) == 0


def _pair_of_footprints(a: Access, b: Access, relation: Relation) -> tuple[Footprint, Footprint]:
    """Footprints in which every loop variable that is left symbolic means the same loop for both."""
    outer_a, outer_b = _outer(a), _outer(b)
    common = frozenset() if relation.parallel else (outer_a.keys() & outer_b.keys()) - relation.exited
    return _widened(a, frozenset(outer_a) - common), _widened(b, frozenset(outer_b) - common)


def _widened(access: Access, names: frozenset[str]) -> Footprint:
    return footprint(access, frozenset(name for name in names if mentions(access, frozenset((name,)))))


def _outer(access: Access) -> dict[str, Axis]:
    """The loops around the access's statement by variable."""
    return {axis.name: axis for axis in access.context.loops[: access.context.outer]}


def _compare_inexact(
    a: Access, first: Footprint, b: Access, second: Footprint, relation: Relation, threads_matter: bool
) -> Overlap:
    if threads_matter and a.storage.name == b.storage.name and _same_pattern(a, b, relation):
        return Overlap.NONE
    low_a, high_a = _byte_range(a, first)
    low_b, high_b = _byte_range(b, second)
    return Overlap.POSSIBLE if low_a < high_b and low_b < high_a else Overlap.NONE


def _byte_range(access: Access, found: Footprint) -> tuple[float, float]:
    if found.owners is not None and not found.residual:
        start = access.base + found.start
        return start, start + len(found.owners) * found.granule
    size = access.storage.size
    return (access.base, access.base + size) if size is not None else (float("-inf"), float("inf"))


def _same_pattern(a: Access, b: Access, relation: Relation) -> bool:
    """Whether both accesses use one map from (thread, iteration) to addresses.

    Then a thread meets only itself, or the map sends two threads to one address, and the writing statement alone is a
    race that no barrier could mend.
    """
    if a.element_bits != b.element_bits or a.width_bits != b.width_bits or a.index is None or b.index is None:
        return False
    if relation.parallel or relation.exited:
        return False
    changed = {name for name, _ in relation.lags}
    first, second = _canonical(a), _canonical(b)
    if first != second or any(isinstance(node, Load) for node in walk(first)):
        return False
    known = {axis.name for axis in a.context.loops} | a.context.uniform | {a.context.thread}
    names = {n for n in free_variables(first) if not n.startswith("%")}
    return not names & changed and (relation.is_same_iteration or names <= known)


def _canonical(access: Access) -> Expr:
    """The index with the variables of the statement's own loops renamed by position."""
    assert access.index is not None
    own = access.context.loops[access.context.outer :]
    renamed: dict[str, Expr] = {}
    for position, axis in enumerate(own):
        dtype = next((n.dtype for n in walk(access.index) if isinstance(n, Var) and n.name == axis.name), None)
        if dtype is not None:
            renamed[axis.name] = Var(f"%{position}", dtype)
    return substitute(access.index, renamed)


def _shifts(a: Access, first: Footprint, b: Access, second: Footprint, relation: Relation) -> Iterable[int]:
    """All possible distances in bytes of ``b``'s residual from ``a``'s."""
    lags = dict(relation.lags)
    lagged = frozenset(lags)
    same = {pair for pair in first.residual & second.residual if not depends_on(pair[0], lagged)}
    left, right = first.residual - same, second.residual - same
    if not left and not right:
        return (0,)
    names = {n for term, _ in (*left, *right) for n in free_variables(term)}
    axes = _outer(a)
    if not names <= axes.keys():
        raise NotEnumerable
    try:
        return _enumerated_shifts(left, right, [axes[name] for name in sorted(names)], lags)
    except NotEnumerable:
        return _linear_shifts(first, second, left, right, [axes[name] for name in names], lags)


def _enumerated_shifts(left: Any, right: Any, axes: list[Axis], lags: dict[str, int]) -> Iterable[int]:
    """The distances for all pairs of iterations that the lags allow, for loops with constant bounds."""
    import numpy as np

    pairs: list[list[tuple[int, int]]] = []
    size = 1
    for axis in axes:
        values = range(_constant(axis.start), _constant(axis.stop), axis.step)
        if len(values) > MAXIMUM_SHIFTS:
            raise NotEnumerable
        match lags.get(axis.name, 0):
            case 0:
                pairs.append([(v, v) for v in values])
            case 1:
                pairs.append(list(pairwise(values)))
            case _:
                pairs.append([(v, w) for i, v in enumerate(values) for w in values[i + 1 :]])
        size *= len(pairs[-1])
        if size > MAXIMUM_POINTS // 16:
            raise NotEnumerable
    chosen = np.array(list(product(*pairs)), np.int64).reshape(-1, len(axes), 2)
    earlier = {axis.name: chosen[:, i, 0] for i, axis in enumerate(axes)}
    later = {axis.name: chosen[:, i, 1] for i, axis in enumerate(axes)}
    distance = np.zeros(len(chosen), np.int64)
    for term, factor in right:
        distance = distance + factor * evaluate(term, later)
    for term, factor in left:
        distance = distance - factor * evaluate(term, earlier)
    found = np.unique(distance)
    if len(found) > MAXIMUM_SHIFTS:
        raise NotEnumerable
    return found.tolist()


def _linear_shifts(
    first: Footprint, second: Footprint, left: Any, right: Any, axes: list[Axis], lags: dict[str, int]
) -> Iterable[int]:
    """The distances that matter when both residuals are ``factor * variable`` of one lagged loop of unknown bounds."""
    if left != right or len(left) != 1 or len(axes) != 1:
        raise NotEnumerable
    ((term, factor),) = left
    stride = factor * axes[0].step
    if not isinstance(term, Var) or term.name not in lags or stride == 0:
        raise NotEnumerable
    if lags[term.name] == 1:
        return (stride,)
    assert first.owners is not None and second.owners is not None
    ends = [f.start + len(f.owners) * f.granule for f in (first, second) if f.owners is not None]
    extent = max(ends) - min(first.start, second.start)
    if extent // abs(stride) + 1 > MAXIMUM_SHIFTS:
        raise NotEnumerable
    return [stride * distance for distance in range(1, extent // abs(stride) + 2)]


def _boxes_meet(a: Access, b: Access, relation: Relation) -> bool:
    """Whether two TMA boxes of one tensor may share an element: they do unless some dimension keeps them apart."""
    import numpy as np

    if len(a.box) != len(b.box) or relation.parallel:
        return True
    common = (_outer(a).keys() & _outer(b).keys()) - relation.exited
    for (corner_a, extent_a), (corner_b, extent_b) in zip(a.box, b.box, strict=True):
        sides = []
        try:
            for access, corner, extent in ((a, corner_a, extent_a), (b, corner_b, extent_b)):
                constants, residual = separate(corner, (), access.context.uniform | common)
                start = sum(factor * _constant(term) for factor, term in constants)
                sides.append(Footprint(start, 1, np.full(extent, SEVERAL, np.int16), residual))
            shifts = _shifts(a, sides[0], b, sides[1], relation)
        except NotEnumerable:
            continue
        if not any(_tables_meet(sides[0], 0, sides[1], shift, False) for shift in shifts):
            return False
    return True


def _constant(expression: Expr) -> int:
    value = evaluate(expression, {})
    return int(value)


def _tables_meet(a: Footprint, base_a: int, b: Footprint, base_b: int, threads_matter: bool) -> bool:
    import numpy as np

    assert a.owners is not None and b.owners is not None
    start_a, start_b = base_a + a.start, base_b + b.start
    end_a, end_b = start_a + len(a.owners) * a.granule, start_b + len(b.owners) * b.granule
    low, high = max(start_a, start_b), min(end_a, end_b)
    if low >= high:
        return False
    if len(a.owners) == 1 or len(b.owners) == 1:  # one owner of one stretch, such as a TMA box
        one, start, other = (a, start_b, b) if len(a.owners) == 1 else (b, start_a, a)
        assert one.owners is not None and other.owners is not None
        part = other.owners[(low - start) // other.granule : -((start - high) // other.granule)]
        owner = one.owners[0]
        meets = part != NOBODY
        if threads_matter and owner != SEVERAL:
            meets = meets & (part != owner)
        return bool(owner != NOBODY and meets.any())
    granule = gcd(gcd(a.granule, b.granule), start_a - start_b)
    left = _slice(a, start_a, low, high, granule)
    right = _slice(b, start_b, low, high, granule)
    meets = (left != NOBODY) & (right != NOBODY)
    if threads_matter:
        meets &= (left != right) | (left == SEVERAL)
    return bool(np.any(meets))


def _slice(found: Footprint, start: int, low: int, high: int, granule: int) -> np.ndarray:
    """The owners of bytes ``low … high`` in steps of ``granule``; the bounds are multiples of it away from
    ``start``."""
    import numpy as np

    assert found.owners is not None
    first, last = (low - start) // found.granule, -((start - high) // found.granule)
    part = found.owners[first:last]
    if found.granule != granule:
        part = np.repeat(part, found.granule // granule)
    skip = (low - start - first * found.granule) // granule
    return part[skip : skip + (high - low) // granule]

"""Whether two accesses can meet: some byte touched by two different threads, at least one of them writing.

Accesses of one thread are ordered by the program and never conflict. An asynchronous access counts as its issuing
thread's here: what the issue of a TMA operation has to be ordered after is the same as for a store by that thread.

The earlier access may belong to an earlier iteration of loops around both (``lags``), or to a loop that was left and
perhaps entered again (``exited``); :func:`compare` takes the variables of those loops to differ accordingly.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from math import gcd
from typing import TYPE_CHECKING, NamedTuple

from ptxtile.ir.access import Access
from ptxtile.ir.box_positions import are_apart_in_other_iterations
from ptxtile.ir.enumeration import NotEnumerable, Residual, depends_on, evaluate, separate
from ptxtile.ir.expressions import Const, Expr, Load, Var
from ptxtile.ir.footprint import NOBODY, SEVERAL, Footprint, footprint, mentions
from ptxtile.ir.iteration_shifts import loops_around, shifts
from ptxtile.ir.rewrite import contains, free_variables, substitute, walk

if TYPE_CHECKING:
    import numpy as np


class Overlap(IntEnum):
    """NONE: proven apart. POSSIBLE: not proven. CERTAIN: enumerated exactly, they meet."""

    NONE = 0
    POSSIBLE = 1
    CERTAIN = 2


class Relation(NamedTuple):
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
        return _next_iteration(self, name)

    def leaving(self, name: str) -> Relation:
        return _leaving(self, name)


@cache
def _next_iteration(relation: Relation, name: str) -> Relation:
    lags = dict(relation.lags)
    lags[name] = min(2, lags.get(name, 0) + 1)
    return Relation(tuple(sorted(lags.items())), relation.exited, relation.parallel)


@cache
def _leaving(relation: Relation, name: str) -> Relation:
    lags = tuple((n, lag) for n, lag in relation.lags if n != name)
    return Relation(lags, relation.exited | {name}, relation.parallel)


SAME_ITERATION = Relation()


def conflicts(a: Access, b: Access) -> bool:
    """Whether ``a``, then ``b`` in the same iteration of the loops around them, needs an order between two threads."""
    return compare(a, b) is not Overlap.NONE


def compare(
    a: Access, b: Access, relation: Relation = SAME_ITERATION, *, threads_matter: bool = True, group: int = 1
) -> Overlap:
    """Whether ``a`` and then ``b`` conflict. ``threads_matter`` False: also when one thread touches both. ``group``:
    not when two threads of one group of so many consecutive ones do, such as a warp or a warpgroup."""
    group = group if threads_matter else 0
    if a.memory != b.memory or not (a.is_write or b.is_write) or a.commutes_with(b):
        return Overlap.NONE
    if not (a.threads and b.threads) or (group and _is_one_group(a, b, group)):
        return Overlap.NONE
    if a.storage.name != b.storage.name and a.memory.startswith("global"):
        same_place = group and _same_pattern(a, b, relation)
        return Overlap.NONE if same_place else Overlap.POSSIBLE  # how far apart the tensors are is not known
    if a.storage.name != b.storage.name and _lie_apart(a, b):
        return Overlap.NONE
    if a.box and b.box:
        return Overlap.POSSIBLE if _boxes_meet(a, b, relation, group) else Overlap.NONE
    if _fixed_and_apart(a, b) or (relation.is_same_iteration and _parts_of_one_place(a, b)):
        return Overlap.NONE
    first, second = _pair_of_footprints(a, b, relation)
    if not (first.exact and second.exact):
        return _compare_inexact(a, first, b, second, relation, group)
    try:
        distances = shifts(a, first, b, second, dict(relation.lags))
    except NotEnumerable:
        return Overlap.POSSIBLE
    exact = first.complete and second.complete and "wgmma" not in (a.engine, b.engine)  # it may read less
    for shift in distances:
        if _tables_meet(first, a.base, second, b.base + shift, group):
            return Overlap.CERTAIN if exact else Overlap.POSSIBLE
    return Overlap.NONE


def _lie_apart(a: Access, b: Access) -> bool:
    """Whether two placed storages of shared memory share no byte: every access stays inside of its storage."""
    sizes = a.storage.size, b.storage.size
    if a.memory != "shared" or sizes[0] is None or sizes[1] is None:
        return False
    return a.base + sizes[0] <= b.base or b.base + sizes[1] <= a.base


def _fixed_and_apart(a: Access, b: Access) -> bool:
    """Whether both are at constant places that share no byte, which needs no enumeration."""
    if not (isinstance(a.index, Const) and isinstance(b.index, Const)) or a.storage.name != b.storage.name:
        return False
    first, second = a.index.value * a.element_bits, b.index.value * b.element_bits
    return first + a.width_bits <= second or second + b.width_bits <= first


def _parts_of_one_place(a: Access, b: Access) -> bool:
    """Whether one thread touches, in one iteration, two parts beside each other of a place that need not be known: the
    boxes of a tile in the stage of a ring."""
    one_thread = a.threads == b.threads and a.threads & (a.threads - 1) == 0
    if not one_thread or a.index is None or b.index is None or a.storage.name != b.storage.name:
        return False
    names = free_variables(a.index) | free_variables(b.index)
    steady = a.context.uniform | {a.context.thread, *(axis.name for axis in a.context.loops[: a.context.outer])}
    comes_again = any(c.repeated or len(c.loops) > c.outer for c in (a.context, b.context))
    if (comes_again and not names <= steady) or a.element_bits != b.element_bits:
        return False
    try:
        (first, place), (second, other) = _offset_and_place(a.index, names), _offset_and_place(b.index, names)
    except NotEnumerable:
        return False
    distance = (second - first) * a.element_bits
    return place == other and (distance >= a.width_bits or -distance >= b.width_bits)


def _offset_and_place(index: Expr, names: set[str]) -> tuple[int, Residual]:
    """``index`` as a constant and what depends on variables. Raises NotEnumerable."""
    terms, place = separate(index, (), names)
    return sum(factor * int(evaluate(term, {})) for factor, term in terms), place


def repeats_conflict(access: Access) -> bool:
    """Whether a write inside a loop of its own statement meets itself, by another thread, in another iteration."""
    if not access.is_write or access.atomic or _is_one_group(access, access, 1):
        return False
    own_loops = access.context.repeated or len(access.context.loops) > access.context.outer
    return own_loops and footprint(access).repeats


def _is_one_group(a: Access, b: Access, group: int) -> bool:
    """Whether all threads of both accesses belong to one group of ``group`` consecutive threads."""
    threads = a.threads | b.threads
    lowest = (threads & -threads).bit_length() - 1
    return (threads.bit_length() - 1) // group == lowest // group


def _pair_of_footprints(a: Access, b: Access, relation: Relation) -> tuple[Footprint, Footprint]:
    """Footprints in which every loop variable that is left symbolic means the same loop for both."""
    outer_a, outer_b = loops_around(a), loops_around(b)
    common = frozenset() if relation.parallel else (outer_a.keys() & outer_b.keys()) - relation.exited
    return _widened(a, frozenset(outer_a) - common), _widened(b, frozenset(outer_b) - common)


def _widened(access: Access, names: frozenset[str]) -> Footprint:
    return footprint(access, frozenset(name for name in names if mentions(access, frozenset((name,)))))


def _compare_inexact(
    a: Access, first: Footprint, b: Access, second: Footprint, relation: Relation, group: int
) -> Overlap:
    if group and a.storage.name == b.storage.name and _same_pattern(a, b, relation):
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
    if first != second or contains(first, Load):
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
        dtype = next((n.dtype for n in walk(access.index, Var) if n.name == axis.name), None)
        if dtype is not None:
            renamed[axis.name] = Var(f"%{position}", dtype)
    return substitute(access.index, renamed)


def _boxes_meet(a: Access, b: Access, relation: Relation, group: int) -> bool:
    """Whether two TMA boxes of one tensor may share an element: they do unless some dimension keeps them apart."""
    if len(a.box) != len(b.box) or a.space != b.space or relation.parallel:
        return True
    loops = frozenset(loops_around(a).keys() & loops_around(b).keys()) - relation.exited
    by_thread = _dimensions_by_thread(a) | _dimensions_by_thread(b)
    for dimension in range(len(a.box)):
        if dimension not in by_thread and _are_apart(a, 0, b, 0, dimension, loops, relation):
            return False
    lagged = frozenset(name for name, _ in relation.lags) - relation.exited
    if are_apart_in_other_iterations(a, b, lagged, relation.exited):
        return False
    return not by_thread or any(
        not any(_are_apart(a, one, b, other, dimension, loops, relation) for dimension in by_thread)
        for one in _threads(a)
        for other in _threads(b)
        if not (group and one // group == other // group)
    )


def _threads(access: Access) -> list[int]:
    found, left = [], access.threads
    while left:
        found.append((left & -left).bit_length() - 1)
        left &= left - 1
    return found


def _dimensions_by_thread(access: Access) -> frozenset[int]:
    """The dimensions of a TMA box whose position depends on the thread."""
    key = frozenset(("dimensions of the box by thread",))
    if key not in access.footprints:
        corners = enumerate(corner for corner, _ in access.box)
        dimensions = (dimension for dimension, corner in corners if depends_on(corner, (access.context.thread,)))
        access.footprints[key] = frozenset(dimensions)
    return access.footprints[key]  # type: ignore[return-value]


def _are_apart(
    a: Access, one: int, b: Access, other: int, dimension: int, loops: frozenset[str], relation: Relation
) -> bool:
    """Whether the boxes of thread ``one`` and thread ``other`` share no element along a dimension."""
    try:
        first, second = _side(a, one, dimension, loops), _side(b, other, dimension, loops)
    except NotEnumerable:
        return False
    if _are_apart_in_steps(first, second):
        return True
    try:
        distances = shifts(a, first, b, second, dict(relation.lags))
    except NotEnumerable:
        return False
    return not any(_tables_meet(first, 0, second, shift, 0) for shift in distances)


def _are_apart_in_steps(first: Footprint, second: Footprint) -> bool:
    """Whether two ranges are apart wherever they lie, because both move by multiples of one step only: the rows of one
    warpgroup in tiles of 128 rows, and those of the next one."""
    assert first.owners is not None and second.owners is not None
    step = gcd(*(factor for _, factor in (*first.residual, *second.residual)))
    distance = (second.start - first.start) % step if step else 0
    return bool(step) and len(first.owners) <= distance <= step - len(second.owners)


def _side(access: Access, thread: int, dimension: int, loops: frozenset[str]) -> Footprint:
    """The elements of a thread's TMA box along one dimension. Raises NotEnumerable. ``loops``: variables that stay
    symbolic."""
    import numpy as np

    key = loops | {f"side {dimension} of the box of thread {thread}"}
    found = access.footprints.get(key)
    if not isinstance(found, Footprint):
        corner, extent = access.box[dimension]
        name = access.context.thread
        terms, residual = separate(corner, (name,), access.context.uniform | loops)
        start = sum(factor * int(evaluate(term, {name: thread})) for factor, term in terms)
        found = access.footprints[key] = Footprint(start, 1, np.full(extent, SEVERAL, np.int16), residual)
    return found


def _tables_meet(a: Footprint, base_a: int, b: Footprint, base_b: int, group: int) -> bool:
    """``group``: 0 if threads do not matter, else the size of groups whose threads do not conflict."""
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
        if group and owner != SEVERAL:
            meets = meets & ((part // group != owner // group) | (part == SEVERAL))
        return bool(owner != NOBODY and meets.any())
    granule = gcd(gcd(a.granule, b.granule), start_a - start_b)
    left = _slice(a, start_a, low, high, granule)
    right = _slice(b, start_b, low, high, granule)
    meets = (left != NOBODY) & (right != NOBODY)
    if group:
        meets &= (left // group != right // group) | (left == SEVERAL) | (right == SEVERAL)
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

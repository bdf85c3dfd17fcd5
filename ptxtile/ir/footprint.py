"""The bytes that an access touches, enumerated over threads and loop counters.

:func:`footprint` makes a table of owners, one entry for each granule of bytes. What cannot be evaluated (addresses
read from memory, unknown strides) is *inexact*: it may touch the whole storage. Loops inside the access's statement
are enumerated. Variables of loops around it, block indices, symbols and scalar parameters stay symbolic, as the
footprint's residual, so that two accesses relative to the same tile are compared exactly.
"""

from __future__ import annotations

from math import gcd, prod
from typing import TYPE_CHECKING, Any

from ptxtile.ir.access import Access
from ptxtile.ir.access_context import Axis
from ptxtile.ir.enumeration import NotEnumerable, Residual, depends_on, evaluate, separate
from ptxtile.ir.expressions import Expr, Var
from ptxtile.ir.rewrite import walk
from ptxtile.records import record

if TYPE_CHECKING:
    import numpy as np

MAXIMUM_POINTS = 4_000_000
"""Above so many (thread, iteration) points or table entries an access is taken as inexact: enumeration would cost too
much."""

NOBODY, SEVERAL = -1, -2
"""Entries of an owner table that are no thread number."""


NO_RESIDUAL: Residual = frozenset()


@record
class Footprint:
    """The bytes of an access relative to the start of its storage, plus the value of ``residual`` (in bytes).

    owners: one entry for each ``granule`` bytes from ``start`` on: a thread number, NOBODY or SEVERAL; None: inexact,
    any thread anywhere in the storage. complete: every condition around the access was evaluated, so what the table
    says is touched is touched. repeats: a granule is touched by several threads and in several iterations of the
    enumerated loops.
    """

    start: int = 0
    granule: int = 1
    owners: np.ndarray | None = None
    residual: Residual = NO_RESIDUAL
    complete: bool = False
    repeats: bool = True

    @property
    def exact(self) -> bool:
        return self.owners is not None


def footprint(access: Access, also: frozenset[str] = frozenset()) -> Footprint:
    """The bytes of ``access``, with the loops inside its statement enumerated and those of ``also``, loops around
    it."""
    found = access.footprints.get(also)
    if not isinstance(found, Footprint):
        try:
            found = _enumerate(access, also)
        except NotEnumerable:
            found = Footprint()
        access.footprints[also] = found
    return found


def _enumerate(access: Access, also: frozenset[str]) -> Footprint:
    import numpy as np

    context = access.context
    if access.index is None or (access.width_bits % 8 and access.width_bits > 8):
        raise NotEnumerable
    space = _Space(access, also)
    terms, residual = separate(access.index, space.values.keys(), context.uniform | space.symbolic)
    if residual and access.element_bits % 8:
        raise NotEnumerable
    index: Any = np.zeros((1,) * space.rank, np.int64)
    for factor, term in terms:
        index = index + factor * evaluate(term, space.values)
    inside, complete = space.inside(context.conditions)
    lowest = index * access.element_bits // 8
    width = max(1, access.width_bits // 8)
    start, granule, owners, repeats = _owner_table(lowest, width, space, inside)
    in_bytes = frozenset((term, factor * access.element_bits // 8) for term, factor in residual)
    return Footprint(start, granule, owners, in_bytes, complete and space.complete, repeats)


class _Space:
    """The index space of an access: threads along axis 0, one more axis for each enumerated loop that matters to it."""

    def __init__(self, access: Access, also: frozenset[str]) -> None:
        import numpy as np

        context = access.context
        wanted = [a for i, a in enumerate(context.loops) if i >= context.outer or a.name in also]
        self.symbolic = frozenset(a.name for a in context.loops) - {a.name for a in wanted}
        self.repeated, self.complete, self.bound_masks = context.repeated, not context.repeated, []
        expressions = [access.index, *context.conditions]
        expressions += [bound for axis in wanted for bound in (axis.start, axis.stop)]
        used = {n.name for e in expressions if e is not None for n in walk(e, Var)}
        self.rank = 1 + len(wanted)
        shape = (-1,) + (1,) * len(wanted)
        thread = np.arange(context.first_thread, context.first_thread + context.threads).reshape(shape)
        self.values: dict[str, Any] = {context.thread: thread}
        points = context.threads
        for position, axis in enumerate(wanted, start=1):
            points *= self._add(axis, position, axis.name in used)
            if points > MAXIMUM_POINTS:
                raise NotEnumerable

    def _add(self, axis: Axis, position: int, used: bool) -> int:
        import numpy as np

        try:
            start, stop = evaluate(axis.start, self.values), evaluate(axis.stop, self.values)
        except NotEnumerable:
            self.repeated, self.complete = True, False
            return 1
        trips = -((start - stop) // axis.step) if axis.step > 0 else -((stop - start) // -axis.step)
        longest = int(np.max(trips))
        if longest <= 0 or longest > MAXIMUM_POINTS:
            raise NotEnumerable
        if not used and bool(np.min(trips) == longest):
            self.repeated |= longest > 1
            return 1
        shape = [1] * self.rank
        shape[position] = longest
        counter = np.arange(longest).reshape(shape)
        self.values[axis.name] = start + counter * axis.step
        if bool(np.min(trips) < longest):
            self.bound_masks.append(counter < trips)
        return longest

    def inside(self, conditions: tuple[Expr, ...]) -> tuple[Any, bool]:
        """Mask of the points at which the access happens (None: all), and whether every condition was evaluated."""
        import numpy as np

        mask, complete = None, True
        for part in self.bound_masks:
            mask = part if mask is None else mask & part
        for condition in conditions:
            try:
                part = np.asarray(evaluate(condition, self.values)).astype(bool)
            except NotEnumerable:
                complete = False
                continue
            mask = part if mask is None else mask & part
        return mask, complete


def _owner_table(lowest: Any, width: int, space: _Space, inside: Any) -> tuple[int, int, Any, bool]:
    """(start, granule, owners, repeats) from the first byte of every point's access and its width in bytes."""
    import numpy as np

    thread = next(iter(space.values.values()))
    shape = np.broadcast_shapes(*(np.shape(v) for v in space.values.values()), np.shape(lowest))
    lowest, thread = np.broadcast_to(lowest, shape).ravel(), np.broadcast_to(thread, shape).ravel()
    iteration = np.broadcast_to(np.arange(prod(shape[1:])).reshape((1, *shape[1:])), shape).ravel()
    if inside is not None:
        chosen = np.broadcast_to(inside, shape).ravel()
        lowest, thread, iteration = lowest[chosen], thread[chosen], iteration[chosen]
    if lowest.size == 0:
        return 0, 1, np.full(0, NOBODY, np.int16), False
    start = int(lowest.min())
    granule = gcd(width, int(np.gcd.reduce(lowest - start)))
    granule = gcd(granule, start) if start else granule
    cells, each = (int(lowest.max()) - start + width) // granule, width // granule
    if cells > MAXIMUM_POINTS or lowest.size * each > MAXIMUM_POINTS:
        raise NotEnumerable
    first = (lowest - start) // granule
    if each > 1 and lowest.size > 1:
        first = (first[:, None] + np.arange(each)[None, :]).ravel()
        thread, iteration = np.repeat(thread, each), np.repeat(iteration, each)
    elif each > 1:
        return start, granule, np.full(each, thread[0], np.int16), False
    owners = np.full(cells, NOBODY, np.int16)
    owners[first] = thread
    shared = owners[first] != thread
    if not shared.any():
        return start, granule, owners, False
    last = np.full(cells, -1, np.int64)
    last[first] = iteration
    several = first[shared]
    owners[several] = SEVERAL
    differs = (last[first] != iteration) & (owners[first] == SEVERAL)
    return start, granule, owners, bool(differs.any()) or space.repeated


def mentions(access: Access, names: frozenset[str]) -> bool:
    """Whether the address or the conditions of ``access`` depend on one of the variables ``names``."""
    expressions = [e for e in (access.index, *access.context.conditions) if e is not None]
    return any(depends_on(e, names) for e in expressions)

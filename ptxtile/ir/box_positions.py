"""Whether TMA boxes lie apart in any two iterations of the loops around them: by trying all iterations.

The tiles of a persistent kernel are rows and columns of one increasing number; that no two of a block's are one tile
shows only when both dimensions are looked at together. The corner of a box is a *base*, which depends on the iteration,
and an offset within the tile. Where bases are multiples of a step and all offsets with their extents stay within one
step, two boxes share an element only if their bases are equal, so that it is enough that no base comes again.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd, prod
from typing import TYPE_CHECKING, Any

from ptxtile.ir.access import Access
from ptxtile.ir.enumeration import NotEnumerable, Residual, evaluate, separate
from ptxtile.ir.expressions import Expr
from ptxtile.ir.iteration_shifts import loops_around
from ptxtile.ir.rewrite import free_variables
from ptxtile.records import record

if TYPE_CHECKING:
    import numpy as np

MAXIMUM_BASES = 1 << 15
"""So many positions of a tile, over all blocks, are tried: about 1 ms. Boxes at more are taken to meet."""


@record
class _Side:
    """Along one dimension: the base, as a residual, and the first and last offset, with the extent, of any thread."""

    base: Residual
    low: int
    high: int


def are_apart_in_other_iterations(a: Access, b: Access, lagged: frozenset[str], exited: frozenset[str]) -> bool:
    """Whether no box of ``a`` shares an element with one of ``b`` in one block, if all loop variables in ``lagged``
    differ. Variables in ``exited`` are not related; those of other loops around both are the same."""
    axes = loops_around(a)
    if not lagged or not lagged <= axes.keys() or axes != loops_around(b):
        return False
    try:
        sides = zip(_sides(a), _sides(b), strict=True)
        bases = tuple(one.base for one, other in sides if _is_told_by_base(one, other))
        if not bases:
            return False
        names = {name for base in bases for term, _ in base for name in free_variables(term)} | lagged
        ranges = tuple((name, _values(a, name)) for name in sorted(names))
        if not 0 < prod(len(numbers) for _, numbers in ranges) <= MAXIMUM_BASES:
            return False
        conditions = a.context.assumed if a.context.assumed == b.context.assumed else ()
        return _never_come_again(bases, ranges, conditions, lagged, exited)
    except NotEnumerable:
        return False


def _sides(access: Access) -> list[_Side]:
    """The box of ``access`` along each dimension. Raises NotEnumerable."""
    import numpy as np

    key = frozenset(("sides of the box",))
    if key not in access.footprints:
        context = access.context
        first, mask = context.first_thread, access.threads >> context.first_thread
        threads = np.array([first + t for t in range(mask.bit_length()) if mask >> t & 1])
        sides = []
        for corner, extent in access.box:
            uniform = context.uniform | loops_around(access).keys()
            terms, base = separate(corner, (context.thread,), uniform)
            offset = np.zeros(1, np.int64)
            for factor, term in terms:
                offset = offset + factor * evaluate(term, {context.thread: threads})
            sides.append(_Side(base, int(offset.min()), int(offset.max()) + extent))
        access.footprints[key] = sides
    return access.footprints[key]  # type: ignore[return-value]


def _step(base: Residual) -> int:
    """What the base is a multiple of; 0: it is constant."""
    return gcd(*(factor for _, factor in base))


def _is_told_by_base(one: _Side, other: _Side) -> bool:
    """Whether two boxes share elements along the dimension only where their bases are equal."""
    within = max(one.high, other.high) - min(one.low, other.low)
    return bool(one.base) and one.base == other.base and within <= _step(one.base)


@lru_cache(maxsize=256)
def _never_come_again(
    bases: tuple[Residual, ...],
    ranges: tuple[tuple[str, range], ...],
    conditions: tuple[Expr, ...],
    lagged: frozenset[str],
    exited: frozenset[str],
) -> bool:
    """Whether, in one block, the bases of two iterations that differ in ``lagged`` are never the same. ``ranges``: the
    values of each variable."""
    import numpy as np

    shape = tuple(len(numbers) for _, numbers in ranges)
    values: dict[str, Any] = {}
    for position, (name, numbers) in enumerate(ranges):
        along = [1] * len(ranges)
        along[position] = -1
        values[name] = np.arange(numbers.start, numbers.stop, numbers.step).reshape(along)
    happens = np.broadcast_to(_happens(conditions, values), shape)
    places = [sum(factor * evaluate(term, values) for term, factor in base) for base in bases]
    places += [value for name, value in values.items() if name not in lagged | exited]
    place = _numbered([np.broadcast_to(part, shape)[happens] for part in places])
    if not exited & values.keys():  # each iteration is there once
        return _count(place) == len(place)
    turn = _numbered([place, *(np.broadcast_to(values[name], shape)[happens] for name in lagged)])
    return _count(place) == _count(turn)


def _count(numbers: np.ndarray) -> int:
    """How many different numbers there are."""
    import numpy as np

    ordered = np.sort(numbers)
    return int(np.count_nonzero(ordered[1:] != ordered[:-1])) + min(len(ordered), 1)


def _numbered(parts: list[np.ndarray]) -> np.ndarray:
    """One number for each combination of values. Raises NotEnumerable."""
    import numpy as np

    spans = [int(part.max()) - int(part.min()) + 1 if len(part) else 1 for part in parts]
    if prod(spans) >= 1 << 62:
        raise NotEnumerable
    result = np.zeros(len(parts[0]), np.int64)
    for part, span in zip(parts, spans, strict=True):
        result = result * span + (part - part.min() if len(part) else part)
    return result


def _values(access: Access, name: str) -> range:
    """All values of a loop's variable or of a block's. Raises NotEnumerable."""
    axis = loops_around(access).get(name)
    if axis is not None:
        return range(int(evaluate(axis.start, {})), int(evaluate(axis.stop, {})), axis.step)
    if name in access.context.blocks:
        return range(access.context.blocks[name])
    raise NotEnumerable


def _happens(conditions: tuple[Expr, ...], values: dict[str, Any]) -> Any:
    """The iterations that the known conditions leave."""
    import numpy as np

    result: Any = np.ones((), bool)
    for condition in conditions:
        try:
            result = result & np.asarray(evaluate(condition, values)).astype(bool)
        except NotEnumerable:
            continue
    return result

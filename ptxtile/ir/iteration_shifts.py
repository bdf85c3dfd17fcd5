"""How far apart two accesses lie, over all pairs of iterations that they may belong to.

The residual of a footprint is its offset by what is not enumerated in it: variables of the loops around the statement.
Two accesses of one iteration share them; an access of an earlier iteration has other values of the lagged ones. The
possible distances are found by trying the values of the loop variables: all of them where the bounds are constants, the
few that the conditions around leave, or, where the residuals repeat (the stages of a ring, ``i mod 3``), one period.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations, product
from math import lcm
from typing import Any

from ptxtile.ir.access import Access
from ptxtile.ir.access_context import Axis
from ptxtile.ir.enumeration import NotEnumerable, depends_on, depends_only_on, evaluate
from ptxtile.ir.expressions import Binary, Cast, Compare, Const, Expr, Var
from ptxtile.ir.footprint import MAXIMUM_POINTS, Footprint
from ptxtile.ir.rewrite import free_variables
from ptxtile.records import record

MAXIMUM_SHIFTS = 1024
"""So many distances between the iterations of two accesses are tried before they are taken as unknown."""

FEW_ITERATIONS = 32
"""Of a loop with more the pairs of iterations are not all tried where the distances repeat."""

_Terms = frozenset  # of (expression, factor) pairs, as in a Residual


def loops_around(access: Access) -> dict[str, Axis]:
    """The loops around the access's statement by variable."""
    return {axis.name: axis for axis in access.context.loops[: access.context.outer]}


def shifts(a: Access, first: Footprint, b: Access, second: Footprint, lags: Mapping[str, int]) -> Iterable[int]:
    """All possible distances in bytes of ``b``'s residual from ``a``'s. ``lags``: loop variable → 1 (``b`` is in the
    next iteration) or 2 (in any later one). Raises NotEnumerable."""
    lagged = frozenset(lags)
    same = {pair for pair in first.residual & second.residual if not depends_on(pair[0], lagged)}
    left, right = first.residual - same, second.residual - same
    if not left and not right:
        return (0,)
    axes = loops_around(a)
    if not all(depends_only_on(term, axes) for term, _ in (*left, *right)):
        raise NotEnumerable
    names = {n for term, _ in (*left, *right) for n in free_variables(term)}
    try:
        return _enumerated_shifts(a, left, b, right, [axes[name] for name in sorted(names)], lags)
    except NotEnumerable:
        return _linear_shifts(first, second, left, right, [axes[name] for name in names], lags)


# --- by trying iterations --------------------------------------------------------------------------------------------


def _enumerated_shifts(
    a: Access, left: _Terms, b: Access, right: _Terms, axes: list[Axis], lags: Mapping[str, int]
) -> Iterable[int]:
    import numpy as np

    terms = [term for term, _ in (*left, *right)]
    pairs: list[_Pairs] = []
    size = 1
    for axis in axes:
        pairs.append(_pairs(axis, lags.get(axis.name, 0), a.context.assumed, b.context.assumed, terms))
        size *= len(pairs[-1].values)
        if size > MAXIMUM_POINTS // 16:
            raise NotEnumerable
    chosen = np.array(list(product(*(entry.values for entry in pairs))), np.int64).reshape(-1, len(axes), 2)
    earlier = {axis.name: chosen[:, i, 0] for i, axis in enumerate(axes)}
    later = {axis.name: chosen[:, i, 1] for i, axis in enumerate(axes)}
    real = {axis.name for axis, entry in zip(axes, pairs, strict=True) if entry.are_real}
    happens = _holds(a.context.assumed, earlier, real) & _holds(b.context.assumed, later, real)
    distance = np.zeros(len(chosen), np.int64)
    for term, factor in right:
        distance = distance + factor * evaluate(term, later)
    for term, factor in left:
        distance = distance - factor * evaluate(term, earlier)
    found = np.unique(distance[np.broadcast_to(happens, distance.shape)])
    if len(found) > MAXIMUM_SHIFTS:
        raise NotEnumerable
    return found.tolist()


def _holds(conditions: tuple[Expr, ...], values: Mapping[str, Any], real: set[str]) -> Any:
    """Where those conditions hold that say something about variables with ``real`` values only."""
    import numpy as np

    result = np.ones((), bool)
    for condition in conditions:
        names = free_variables(condition)
        if names and names <= real:
            try:
                result = result & np.asarray(evaluate(condition, values)).astype(bool)
            except NotEnumerable:
                continue
    return result


@record
class _Pairs:
    """Values of a loop's variable for the earlier and the later access. ``are_real``: they are all that there are;
    else one for each value of terms that repeat."""

    values: list[tuple[int, int]]
    are_real: bool


def _pairs(axis: Axis, lag: int, for_a: tuple[Expr, ...], for_b: tuple[Expr, ...], terms: list[Expr]) -> _Pairs:
    step = axis.step
    values_a, values_b = _values(axis, for_a), _values(axis, for_b)
    if lag == 2:
        return _any_later(axis, values_a, values_b, terms)
    if values_a is not None:
        return _Pairs([(v, v + lag * step) for v in values_a if values_b is None or v + lag * step in values_b], True)
    if values_b is not None:
        return _Pairs([(v - lag * step, v) for v in values_b[lag:]], True)
    return _Pairs([(v, v + lag * step) for v in _window(axis, terms)], False)


def _any_later(axis: Axis, values_a: range | None, values_b: range | None, terms: list[Expr]) -> _Pairs:
    """The pairs of any two iterations, in order. Of many iterations one period is enough, if there is one."""
    few = values_b is not None and len(values_b) <= FEW_ITERATIONS
    try:
        window = None if few else _window(axis, terms)
    except NotEnumerable:
        window = None
    if window is not None:
        return _Pairs(list(product(window, window)), False)
    if values_b is None:
        raise NotEnumerable
    if values_a is None or values_a.stop == values_b.stop:
        return _Pairs(list(combinations(values_b, 2)), True)
    return _Pairs([(v, w) for v in values_a for w in values_b if (w - v) * axis.step > 0], True)


def _values(axis: Axis, conditions: tuple[Expr, ...]) -> range | None:
    """The values that the variable can have under ``conditions``; None: too many, or not known."""
    try:
        start = int(evaluate(axis.start, {}))
    except NotEnumerable:
        return None
    try:
        values = range(start, int(evaluate(axis.stop, {})), axis.step)
    except NotEnumerable:
        values = None
    if axis.step > 0:
        for condition in conditions:
            last = _largest(condition, axis.name)
            if last is not None and (values is None or last + 1 < values.stop):
                values = range(start, max(start, last + 1), axis.step)
    return values if values is not None and len(values) <= MAXIMUM_SHIFTS else None


def _largest(condition: Expr, name: str) -> int | None:
    """The largest value that ``condition`` leaves to the variable; None where it is not of a form that says so."""
    match condition:
        case Compare("lt", Var(found, _), Const(int(bound)), _) if found == name:
            return bound - 1
        case Compare("le" | "eq", Var(found, _), Const(int(bound)), _) if found == name:
            return bound
    return None


def _window(axis: Axis, terms: list[Expr]) -> range:
    """So many values of the variable that ``terms`` have repeated after them."""
    start = int(evaluate(axis.start, {}))
    if start < 0 or axis.step < 0:
        raise NotEnumerable
    period = lcm(*(_period(term, axis.name) for term in terms))
    if period > MAXIMUM_SHIFTS:
        raise NotEnumerable
    return range(start, start + period * axis.step, axis.step)


def _period(term: Expr, name: str) -> int:
    """After how many steps of the variable ``term`` surely has the same value again, from 0 upwards."""
    if not depends_on(term, (name,)):
        return 1
    match term:
        case Binary("floormod" | "truncmod", left, Const(int(divisor))) if divisor > 0 and _grows_evenly(left, name):
            return divisor
        case Binary("and", left, Const(int(mask))) if mask >= 0 == mask & (mask + 1) and _grows_evenly(left, name):
            return mask + 1
        case Binary("add" | "sub" | "mul", left, right):
            return lcm(_period(left, name), _period(right, name))
        case Cast(operand, dtype) if dtype.is_integer and dtype.bits >= 32:
            return _period(operand, name)
    raise NotEnumerable


def _grows_evenly(expression: Expr, name: str) -> bool:
    """Whether ``expression`` is c·variable + d with constants c and d that are not negative."""
    match expression:
        case Var(found, _):
            return found == name
        case Const(int(value)):
            return value >= 0
        case Binary("add", left, right):
            return _grows_evenly(left, name) and _grows_evenly(right, name)
        case Binary("mul", left, Const(int(factor))):
            return factor >= 0 and _grows_evenly(left, name)
        case Cast(operand, dtype):
            return dtype.is_integer and dtype.bits >= 32 and _grows_evenly(operand, name)
    return False


# --- in closed form --------------------------------------------------------------------------------------------------


def _linear_shifts(
    first: Footprint, second: Footprint, left: _Terms, right: _Terms, axes: list[Axis], lags: Mapping[str, int]
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

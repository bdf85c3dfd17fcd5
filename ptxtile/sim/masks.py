"""Sets of lanes that execute a statement together.

A mask is ``None`` (every lane of the group), :data:`NO_LANES` (compared by identity), or a bool array that broadcasts
to [CTA, lane] with at least one lane set.
"""

from __future__ import annotations

import numpy as np

from ptxtile.sim.dtypes import Value

Mask = np.ndarray | None

NO_LANES = np.zeros((), dtype=bool)
"""The empty mask."""


def split(mask: Mask, condition: Value) -> tuple[Mask, Mask]:
    """The lanes of ``mask`` where ``condition`` holds, and those where it does not; ``mask`` itself when all agree."""
    if isinstance(condition, int):
        return (mask, NO_LANES) if condition else (NO_LANES, mask)
    holds = condition if mask is None else condition & mask
    if not holds.any():
        return NO_LANES, mask
    fails = ~condition if mask is None else mask & ~condition
    if not fails.any():
        return mask, NO_LANES
    return holds, fails


def union(left: Mask, right: Mask) -> Mask:
    if left is NO_LANES or right is None:
        return right
    if right is NO_LANES or left is None:
        return left
    return left | right


def active(mask: Mask, values: np.ndarray) -> np.ndarray:
    """The entries of ``values`` (broadcasting with the mask) at the lanes of ``mask``, flat; all when it is None."""
    if mask is None:
        return values
    if values.size == 1:
        return values.reshape(1)
    shape = np.broadcast_shapes(mask.shape, values.shape)
    return np.broadcast_to(values, shape)[np.broadcast_to(mask, shape)]


def uniform_integer(value: Value, mask: Mask = None) -> int | None:
    """The one integer that ``value`` is on every active lane, or None."""
    if isinstance(value, int):
        return value
    values = active(mask, np.asarray(value))
    first = values.flat[0]
    return int(first) if values.size == 1 or bool((values == first).all()) else None

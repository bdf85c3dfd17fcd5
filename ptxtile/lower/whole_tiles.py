"""Whether statements write every element of a tile, whatever the threads do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import TYPE_CHECKING, Any

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.enumeration import NotEnumerable, evaluate
from ptxtile.ir.rewrite import contains
from ptxtile.ir.statements import Break, Continue, For, Let, ParallelFor, Seq, Statement, Store
from ptxtile.ir.tile_ops import Copy, Fill, Region

if TYPE_CHECKING:
    import numpy as np

MAXIMUM_POINTS = 1 << 20
"""A loop nest of more iterations is not looked at."""


def is_wholly_written(statements: Iterable[Statement], tile: Buffer) -> bool:
    """Whether ``statements`` (tile stage) surely write all of ``tile``: copies, fills, and stores in loops of constant
    bounds whose indices depend on nothing but the loops. What stands in a condition does not count."""
    import numpy as np

    written = np.zeros(tile.static_shape, bool)
    for statement in statements:
        _mark(statement, tile, written, {}, 0)
        if written.all():
            return True
    return False


def _mark(node: Statement, tile: Buffer, written: np.ndarray, values: Mapping[str, Any], axes: int) -> None:
    """Notes the elements that ``node`` writes. ``values``: of the variables around it, arrays along ``axes`` axes."""
    match node:
        case Seq(statements):
            for statement in statements:
                if isinstance(statement, Let):
                    values = _with_let(statement, values)
                else:
                    _mark(statement, tile, written, values, axes)
        case Copy(destination=region, operator="") | Fill(destination=region):
            _mark_region(region, tile, written, values)
        case Store(buffer, indices, value) if buffer.name == tile.name and value.dtype.lanes == buffer.dtype.lanes == 1:
            _mark_elements(indices, written, values)
        case For() if _leaves_no_iteration_out(node):
            try:
                iterations = range(int(evaluate(node.start, {})), int(evaluate(node.stop, {})), node.step)
            except NotEnumerable:
                return
            _mark_loop((node.var.name,), (iterations,), node.body, tile, written, values, axes)
        case ParallelFor() if _leaves_no_iteration_out(node):
            names = tuple(var.name for var in node.vars)
            _mark_loop(names, tuple(map(range, node.extents)), node.body, tile, written, values, axes)


def _leaves_no_iteration_out(loop: For | ParallelFor) -> bool:
    return not contains(loop.body, Break, Continue)


def _mark_loop(
    names: tuple[str, ...], ranges: tuple[range, ...], body: Statement, tile: Buffer, written: np.ndarray,
    values: Mapping[str, Any], axes: int,
) -> None:  # fmt: skip
    """Each loop is one more axis behind the others; in front of it, values broadcast."""
    import numpy as np

    inner = dict(values)
    for name, iterations in zip(names, ranges, strict=True):
        inner = {known: np.asarray(value)[..., None] for known, value in inner.items()}
        inner[name] = np.array(iterations, np.int64).reshape((1,) * axes + (-1,))
        axes += 1
    if 0 < prod(np.broadcast_shapes(*(np.shape(value) for value in inner.values()))) <= MAXIMUM_POINTS:
        _mark(body, tile, written, inner, axes)


def _with_let(statement: Let, values: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return {**values, statement.var.name: evaluate(statement.value, values)}
    except NotEnumerable:
        return values


def _mark_region(region: Region, tile: Buffer, written: np.ndarray, values: Mapping[str, Any]) -> None:
    if region.buffer.name != tile.name:
        return
    try:
        starts = [int(evaluate(start, {})) for start in region.starts]
    except NotEnumerable:
        return
    if all(start >= 0 for start in starts):
        box = tuple(slice(start, start + extent) for start, extent in zip(starts, region.extents, strict=True))
        written[box] = True


def _mark_elements(indices: tuple[Any, ...], written: np.ndarray, values: Mapping[str, Any]) -> None:
    import numpy as np

    try:
        places = np.broadcast_arrays(*(np.asarray(evaluate(index, values)) for index in indices))
    except NotEnumerable:
        return
    inside = np.ones(places[0].shape, bool)
    for place, extent in zip(places, written.shape, strict=True):
        inside &= (place >= 0) & (place < extent)
    written[tuple(place[inside] for place in places)] = True

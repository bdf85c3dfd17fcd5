"""Shared-memory layouts that users give: as formulas, and as the structured layouts that some formulas are.

A formula whose table of offsets is a sum over the dimensions, swizzled or not, becomes a :class:`SharedLayout`, which
TMA, wgmma and ldmatrix can match. Any other one stays a :class:`MappedLayout`. The owners of a fragment's elements
become a :class:`Fragment` in the same way.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.enumeration import evaluate
from ptxtile.ir.expressions import Expr, Var, constant
from ptxtile.ir.layouts import TMA_SWIZZLES, Fragment, Layout, SharedLayout
from ptxtile.ir.rewrite import substitute
from ptxtile.ir.types import int32
from ptxtile.records import record

if TYPE_CHECKING:
    import numpy as np

MAXIMUM_RANK = 8
COORDINATES = tuple(Var(f"i{position}", int32) for position in range(MAXIMUM_RANK))
"""The variables of a :class:`MappedLayout`'s formula, one for each dimension. They are bound in it alone."""
VECTOR_BYTES = 16


@record
class MappedLayout:
    """Coordinate → element offset in shared memory by a formula over :data:`COORDINATES`.

    ``size``: elements of memory, one more than the largest offset. ``contiguous``: so many elements of the last
    dimension, a power of two, follow each other in memory from each multiple of so many on, and start at a multiple of
    so many.
    """

    shape: tuple[int, ...]
    size: int
    contiguous: int
    itemsize: int
    offset: Expr

    def __call__(self, coordinates: tuple) -> Any:
        names = [variable.name for variable in COORDINATES[: len(self.shape)]]
        if any(isinstance(coordinate, Expr) for coordinate in coordinates):
            given = (c if isinstance(c, Expr) else constant(int(c)) for c in coordinates)
            return substitute(self.offset, dict(zip(names, given, strict=True)))
        return evaluate(self.offset, dict(zip(names, coordinates, strict=True)))

    def table(self) -> np.ndarray:
        """The offset of every element, in the tile's shape."""
        return offsets_of(self.offset, self.shape)


def offsets_of(formula: Expr, shape: tuple[int, ...]) -> np.ndarray:
    """The values of a formula over :data:`COORDINATES`, an int64 array of ``shape``. Raises
    :class:`~ptxtile.ir.enumeration.NotEnumerable` where it depends on anything else."""
    import numpy as np

    grid = np.meshgrid(*(np.arange(n, dtype=np.int64) for n in shape), indexing="ij", sparse=True)
    values = {variable.name: axis for variable, axis in zip(COORDINATES, grid, strict=False)}
    return np.broadcast_to(np.asarray(evaluate(formula, values), dtype=np.int64), shape)


def mapped_layout(formula: Expr, table: np.ndarray, itemsize: int) -> MappedLayout:
    """The layout of a formula whose table of offsets is ``table``."""
    size = int(table.max()) + 1
    return MappedLayout(tuple(table.shape), size, _contiguous(table, itemsize), itemsize, formula)


def _contiguous(table: np.ndarray, itemsize: int) -> int:
    import numpy as np

    found = 1
    while found * 2 * itemsize <= VECTOR_BYTES and table.shape[-1] % (found * 2) == 0:
        runs = table.reshape(*table.shape[:-1], -1, found * 2)
        steps = runs - runs[..., :1]
        if (runs[..., 0] % (found * 2)).any() or (steps != np.arange(found * 2)).any():
            break
        found *= 2
    return found


def structured_layout(table: np.ndarray, itemsize: int) -> SharedLayout | None:
    """The structured layout with these offsets: strides, nested where a dimension is cut into several, and one of TMA's
    swizzles of the sum. None if there is none."""
    for swizzle in TMA_SWIZZLES.values():
        linear = swizzle(table * itemsize)
        if (linear % itemsize).any():
            continue
        layout = _strided(linear // itemsize)
        if layout is not None:
            return SharedLayout(layout, swizzle, itemsize)
    return None


def _strided(table: np.ndarray) -> Layout | None:
    import numpy as np

    origin = (0,) * table.ndim
    if table[origin] != 0:
        return None
    shapes, strides, total = [], [], np.zeros_like(table)
    for axis, extent in enumerate(table.shape):
        along = table[tuple(slice(None) if position == axis else 0 for position in range(table.ndim))]
        modes = _modes(along)
        if modes is None:
            return None
        shapes.append(modes[0])
        strides.append(modes[1])
        total = total + along.reshape([extent if position == axis else 1 for position in range(table.ndim)])
    return Layout(tuple(shapes), tuple(strides)) if np.array_equal(total, table) else None


def structured_fragment(elements: np.ndarray, shape: tuple[int, ...]) -> Fragment | None:
    """The fragment of a tile in which thread t holds element ``elements[t, v]`` (counted row by row) in its register v;
    None if the numbers of the elements are no sum of strides over threads and registers."""
    import numpy as np

    threads, values = _modes(elements[:, 0] - elements[0, 0]), _modes(elements[0])
    if threads is None or values is None or elements[0, 0] != 0:
        return None
    if not np.array_equal(elements, elements[:, :1] + elements[:1]):
        return None
    parts = [Layout(*(part if isinstance(part, tuple) else (part,) for part in modes)) for modes in (threads, values)]
    return Fragment(shape, shape, *parts)


def _modes(offsets: np.ndarray) -> tuple[Any, Any] | None:
    """(shape, stride) of one dimension from the offset of each of its coordinates: an int each, or nested."""
    sizes: list[int] = []
    strides: list[int] = []
    while len(offsets) > 1:
        found = _fastest(offsets)
        if found is None:
            return None
        size, stride = found
        sizes.insert(0, size)
        strides.insert(0, stride)
        offsets = offsets[::size]
    if len(sizes) > 1:
        return tuple(sizes), tuple(strides)
    return (sizes[0], strides[0]) if sizes else (1, 0)


def _fastest(offsets: np.ndarray) -> tuple[int, int] | None:
    """The size and stride of the fastest mode: the longest run that all the dimension repeats."""
    import numpy as np

    stride = int(offsets[1] - offsets[0])
    for size in range(len(offsets), 1, -1):
        if len(offsets) % size == 0 and stride >= 0:
            steps = offsets.reshape(-1, size) - offsets[::size, None]
            if np.array_equal(steps, np.broadcast_to(np.arange(size) * stride, steps.shape)):
                return size, stride
    return None


def with_stages(buffer: Buffer, stages: int) -> Buffer:
    """``buffer``, the whole of its storage, in ``stages`` versions along a new first dimension, one after another."""
    shape, layout, size = (stages, *buffer.static_shape), buffer.layout, buffer.elements
    unit = 1
    if isinstance(layout, SharedLayout):
        size, unit = layout.layout.cosize, layout.alignment // layout.itemsize
    elif isinstance(layout, MappedLayout):
        size, unit = layout.size, layout.contiguous
    step = -(-size // unit) * unit
    if isinstance(layout, SharedLayout):
        inner = layout.layout
        layout = replace(layout, layout=Layout((stages, *inner.shape), (step, *inner.stride)))
    elif isinstance(layout, MappedLayout):
        moved: dict[str, Expr] = {COORDINATES[k].name: COORDINATES[k + 1] for k in range(len(layout.shape))}
        formula = COORDINATES[0] * step + substitute(layout.offset, moved)
        layout = replace(layout, shape=shape, size=step * (stages - 1) + size, offset=formula)
    strides = (prod(buffer.static_shape), *buffer.strides)
    storage = replace(buffer.storage, size=step * stages * buffer.dtype.bits * buffer.dtype.lanes // 8)
    return replace(buffer, shape=shape, strides=strides, storage=storage, layout=layout)

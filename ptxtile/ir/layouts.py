"""The layout algebra: hierarchical (shape, stride) layouts, XOR swizzles, shared-memory layouts and fragments.

A :class:`Layout` is CuTe's: a function from a coordinate to an offset given by a nested shape and a stride of the same
nesting (NVIDIA CUTLASS documentation, «CuTe Layout Algebra»); here the *last* mode is the fastest in a flat coordinate,
as in C and torch. Calling a layout works on ints, NumPy arrays and IR expressions alike: it uses only ``+ * // %``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

from ptxtile.records import record

if TYPE_CHECKING:
    import numpy as np

Nested = "int | tuple[Nested, ...]"


def size(shape: Any) -> int:
    """Number of coordinates of a nested shape."""
    return shape if isinstance(shape, int) else prod(size(part) for part in shape)


def _flatten(nested: Any) -> tuple[int, ...]:
    return (nested,) if isinstance(nested, int) else tuple(x for part in nested for x in _flatten(part))


@record
class Layout:
    """Offset = Σ coordinate_i · stride_i over the modes. ``shape`` and ``stride`` are tuples of equal nesting.

    ``layout(c)`` takes a flat coordinate (an int-like), or a tuple with one coordinate for each top-level mode; a
    coordinate of a nested mode is again flat or a tuple.
    """

    shape: tuple
    stride: tuple

    def __post_init__(self) -> None:
        if len(_flatten(self.shape)) != len(_flatten(self.stride)):
            raise ValueError(f"shape {self.shape} and stride {self.stride} are nested differently")

    @property
    def size(self) -> int:
        return size(self.shape)

    @property
    def cosize(self) -> int:
        """One more than the largest offset (strides are not negative)."""
        return 1 + sum((n - 1) * d for n, d in self.modes if n > 0)

    @property
    def modes(self) -> tuple[tuple[int, int], ...]:
        """The flat (size, stride) modes, slowest first."""
        return tuple(zip(_flatten(self.shape), _flatten(self.stride), strict=True))

    def __call__(self, coordinate: Any) -> Any:
        return _offset(self.shape, self.stride, coordinate)

    def coalesced(self) -> Layout:
        """The same function of a flat coordinate with as few modes as possible."""
        modes: list[tuple[int, int]] = []
        for n, d in self.modes:
            if n == 1:
                continue
            if modes and modes[-1][1] == n * d:
                modes[-1] = (modes[-1][0] * n, d)
            else:
                modes.append((n, d))
        if not modes:
            modes = [(1, 0)]
        return Layout(tuple(n for n, _ in modes), tuple(d for _, d in modes))


def _offset(shape: Any, stride: Any, coordinate: Any) -> Any:
    if isinstance(shape, int):
        return coordinate * stride
    if isinstance(coordinate, tuple):
        parts = [_offset(s, d, c) for s, d, c in zip(shape, stride, coordinate, strict=True)]
        return sum(parts[1:], start=parts[0])
    total: Any = None
    inner = size(shape)
    for position, (s, d) in enumerate(zip(shape, stride, strict=True)):
        inner //= size(s)
        part = coordinate if inner == 1 else coordinate // inner
        if position > 0:
            part = part % size(s)
        term = _offset(s, d, part)
        total = term if total is None else total + term
    return total


def _terms(shape: Any, stride: Any, coordinate: Any) -> Iterator[tuple[Any, int]]:
    """The (coordinate, stride) products that :func:`_offset` adds up."""
    if isinstance(shape, int):
        yield coordinate, stride
        return
    if isinstance(coordinate, tuple):
        for s, d, c in zip(shape, stride, coordinate, strict=True):
            yield from _terms(s, d, c)
        return
    inner = size(shape)
    for position, (s, d) in enumerate(zip(shape, stride, strict=True)):
        inner //= size(s)
        part = coordinate if inner == 1 else coordinate // inner
        yield from _terms(s, d, part % size(s) if position > 0 else part)


def composition(outer: Layout, inner: Layout) -> Layout:
    """``outer ∘ inner``: a layout with ``inner``'s coordinates whose offset is ``outer(inner(coordinate))``.

    As in CuTe's algebra each mode of ``inner`` is divided by ``outer``'s modes and becomes a mode, nested where it is
    cut into several. ValueError where the composition is no layout: a size or stride that does not divide, a sum over
    the modes of ``inner`` that carries from one mode of ``outer`` into the next, or an ``inner`` that leaves
    ``outer``'s domain.
    """
    if inner.cosize > outer.size:
        raise ValueError(f"offsets up to {inner.cosize - 1} leave a layout of {outer.size} coordinates")
    modes = list(reversed(outer.coalesced().modes))  # fastest first
    digits = [0] * len(modes)  # the largest coordinate in each mode of outer that inner's modes add up to
    shape, stride = _compose(modes, digits, inner.shape, inner.stride)
    for (n, _), largest in zip(modes, digits, strict=True):
        if largest >= n:
            raise ValueError(f"{outer} ∘ {inner} carries from one mode into the next")
    return Layout(shape, stride)


def _compose(modes: list[tuple[int, int]], digits: list[int], shape: Any, stride: Any) -> tuple[Any, Any]:
    if not isinstance(shape, int):
        parts = [_compose(modes, digits, s, d) for s, d in zip(shape, stride, strict=True)]
        return tuple(s for s, _ in parts), tuple(d for _, d in parts)
    result: list[tuple[int, int]] = []
    remaining, step = shape, stride
    for position, (n, d) in enumerate(modes):
        if remaining == 1 or step == 0:
            break
        if position < len(modes) - 1 and step % n == 0:
            step //= n
            continue
        count = min(remaining, -(-n // step)) if position < len(modes) - 1 else remaining
        if remaining % count or (count < remaining and n % step):
            raise ValueError(f"a mode of size {shape} and stride {stride} does not divide the modes {modes}")
        result.append((count, d * step))
        digits[position] += (count - 1) * step
        remaining, step = remaining // count, 1
    if remaining > 1:
        result.append((remaining, 0))
    if not result:
        return shape, 0
    if len(result) == 1:
        return result[0]
    result.reverse()
    return tuple(n for n, _ in result), tuple(d for _, d in result)


def inverse(layout: Layout) -> Layout:
    """The right inverse of CuTe's algebra: ``layout(inverse(layout)(k)) == k`` for every k of its domain.

    The domain is the longest run of offsets from 0 on that the modes of ``layout`` reach one after the other; it is all
    of ``layout``'s size when that is a bijection onto it, and then it is the left inverse too.
    """
    weights, running = [], 1
    for n, d in reversed(layout.modes):
        weights.append((d, n, running))
        running *= n
    found: list[tuple[int, int]] = []
    reach = 1
    for d, n, weight in sorted(weights):
        if n != 1 and d == reach:
            found.append((n, weight))
            reach *= n
    found.reverse()
    return Layout(tuple(n for n, _ in found), tuple(w for _, w in found)) if found else Layout((1,), (0,))


def row_major(shape: tuple[int, ...]) -> Layout:
    strides, running = [], 1
    for n in reversed(shape):
        strides.append(running)
        running *= n
    return Layout(tuple(shape), tuple(reversed(strides)))


@record
class Swizzle:
    """XORs address bits ``[base, base+bits)`` with bits ``[base+shift, base+shift+bits)``; an involution.

    On byte addresses the TMA modes are 128B = (3, 4, 3), 64B = (2, 4, 3), 32B = (1, 4, 3) (PTX ISA, «Swizzling modes»).
    """

    bits: int
    base: int
    shift: int

    def __call__(self, offset: Any) -> Any:
        if self.bits == 0:
            return offset
        mask = ((1 << self.bits) - 1) << self.base
        return offset ^ ((offset >> self.shift) & mask)


TMA_SWIZZLES = {0: Swizzle(0, 4, 3), 32: Swizzle(1, 4, 3), 64: Swizzle(2, 4, 3), 128: Swizzle(3, 4, 3)}
"""By the tensor map's swizzle span in bytes."""


@record
class SharedLayout:
    """Coordinate → element offset in shared memory: ``layout``, then ``swizzle`` on the byte offset.

    ``layout`` has one top-level mode for each dimension of the buffer. ``alignment``: bytes that the storage must be
    aligned to for the swizzle (its pattern repeats with absolute addresses).
    """

    layout: Layout
    swizzle: Swizzle
    itemsize: int

    @property
    def alignment(self) -> int:
        return 1 << (self.swizzle.base + self.swizzle.shift + self.swizzle.bits) if self.swizzle.bits else 128

    @property
    def span(self) -> int:
        """The tensor map's swizzle mode in bytes."""
        return next(span for span, swizzle in TMA_SWIZZLES.items() if swizzle == self.swizzle)

    def __call__(self, coordinates: tuple) -> Any:
        if self.swizzle.bits == 0:
            return self.layout(coordinates)
        whole, inside = self._parts(coordinates)
        swizzled = self.swizzle(inside * self.itemsize) // self.itemsize
        return swizzled if whole is None else whole + swizzled

    def _parts(self, coordinates: tuple) -> tuple[Any, Any]:
        """The offset as whole repetitions of the swizzle's pattern (None: there are none) and the rest, which alone is
        swizzled: a stage or a box that is added to an address moves it and permutes nothing."""
        unit = self.alignment // self.itemsize
        terms = [(part * stride, stride) for part, stride in _terms(self.layout.shape, self.layout.stride, coordinates)]
        whole = [term for term, stride in terms if stride and stride % unit == 0]
        inside = [term for term, stride in terms if not stride or stride % unit]
        return sum(whole[1:], start=whole[0]) if whole else None, sum(inside[1:], start=inside[0]) if inside else 0


@record
class Fragment:
    """How a tile lies in the registers of a group of threads: (thread, value) → coordinate.

    ``thread`` and ``value`` map a thread index and a value (register) index to offsets in the row-major *padded* tile;
    their sum is the coordinate. A coordinate outside ``shape`` is padding. Thread modes of stride 0 replicate. Every
    element of the tile must be owned (:meth:`check`), by one thread or, through replication, by several.
    """

    shape: tuple[int, ...]
    padded: tuple[int, ...]
    thread: Layout
    value: Layout

    @property
    def threads(self) -> int:
        return self.thread.size

    @property
    def values(self) -> int:
        return self.value.size

    def linear(self, thread: Any, value: Any) -> Any:
        """Row-major offset in the padded tile."""
        return self.thread(thread) + self.value(value)

    def coordinates(self, thread: Any, value: Any) -> tuple:
        """One coordinate for each dimension of the tile; may lie outside ``shape``."""
        linear, result = self.linear(thread, value), []
        inner = prod(self.padded)
        for position, n in enumerate(self.padded):
            inner //= n
            part = linear if inner == 1 else linear // inner
            result.append(part if position == 0 else part % n)
        return tuple(result)

    def table(self) -> np.ndarray:
        """[threads, values] array of row-major offsets in ``shape``; −1 for padding. Shared by all who ask, so not to
        be written to."""
        return _fragment_table(self)

    def check(self) -> None:
        """ValueError unless every element of the tile is owned by at least one (thread, value), and no thread holds one
        element twice."""
        import numpy as np

        table = self.table()
        owned = np.zeros(prod(self.shape), dtype=bool)
        owned[table[table >= 0]] = True
        if not owned.all():
            raise ValueError(f"{int((~owned).sum())} of {owned.size} elements belong to no thread")
        ordered = np.sort(table, axis=1)
        if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any():
            raise ValueError("a thread holds one element twice")

    @property
    def is_exclusive(self) -> bool:
        """Whether each element has exactly one owner (no replication)."""
        return _is_exclusive(self)


@lru_cache(maxsize=64)
def _is_exclusive(fragment: Fragment) -> bool:
    import numpy as np

    table = fragment.table()
    return bool((np.bincount(table[table >= 0], minlength=prod(fragment.shape)) == 1).all())


@lru_cache(maxsize=64)
def _fragment_table(fragment: Fragment) -> np.ndarray:
    """A table of a large tile takes a tenth of a millisecond, and inference asks for the same few again and again."""
    import numpy as np

    thread = np.arange(fragment.threads)[:, None]
    value = np.arange(fragment.values)[None, :]
    result = fragment.linear(thread, value)
    if fragment.padded[1:] == fragment.shape[1:]:  # only rows are padded
        result = np.where(result < prod(fragment.shape), result, -1)
    else:
        inside = np.ones(result.shape, dtype=bool)
        coordinates = fragment.coordinates(thread, value)
        result = np.zeros(result.shape, dtype=np.int64)
        for n, coordinate in zip(fragment.shape, coordinates, strict=True):
            inside &= coordinate < n
            result = result * n + coordinate
        result = np.where(inside, result, -1)
    result.setflags(write=False)
    return result


def linear_fragment(shape: tuple[int, ...], threads: int, vector: int) -> Fragment:
    """Consecutive threads hold consecutive vectors of ``vector`` elements of the row-major tile, repeated until it is
    full.

    ``vector`` must divide the last dimension or be 1. The first dimension is padded until the tile is covered.
    """
    step, modes = threads * vector, [(vector, 1)]
    inner = 1
    for n in reversed(shape[1:]):
        inner *= n
        if inner % step == 0 and inner > step:
            modes.append((inner // step, step))
            step = inner
        elif step % inner:
            break  # rounds straddle this dimension: one mode for all that is left
    modes.append((-(-prod(shape) // step), step))
    modes.reverse()
    row = prod(shape[1:])
    padded = (-(-(modes[0][0] * step) // row), *shape[1:])
    value = Layout(tuple(n for n, _ in modes), tuple(d for _, d in modes))
    return Fragment(shape, padded, Layout((threads,), (vector,)), value)


def replicated_fragment(shape: tuple[int, ...], threads: int) -> Fragment:
    """Every thread holds the whole tile."""
    return Fragment(shape, shape, Layout((threads,), (0,)), row_major((prod(shape),)))

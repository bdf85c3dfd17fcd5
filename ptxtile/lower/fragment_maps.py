"""Where the accesses of a parallel loop fall in a fragment, enumerated exactly.

A loop with a layout runs iteration ``layout(t, n)`` as the n-th of thread t. An access of a fragment inside it is
*local* when the element that it touches lies in the registers of the very thread that runs the iteration, in a register
whose number does not depend on the thread. Everything here is decided on tables of all (thread, value) pairs, so no
pattern is special.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.enumeration import NotEnumerable, evaluate
from ptxtile.ir.expressions import Expr, Load, Var
from ptxtile.ir.layouts import Fragment, Layout, replicated_fragment
from ptxtile.ir.rewrite import free_variables, has_load, walk
from ptxtile.ir.statements import For, Let, ParallelFor, Seq, Store
from ptxtile.records import record

if TYPE_CHECKING:
    import numpy as np

OUTSIDE = -1
"""In a table of elements: a padding iteration, or an index outside of the fragment (guarded elsewhere)."""


@record
class Axis:
    """A loop with constant bounds around or inside the parallel loop, whose variable the access uses."""

    var: Var
    start: int
    count: int
    step: int


@record
class FragmentAccess:
    """An access of ``buffer`` in a parallel loop; ``axes`` are the other loops that its indices depend on, outermost
    first."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    is_write: bool
    axes: tuple[Axis, ...] = ()

    def is_enumerable(self, loop: ParallelFor) -> bool:
        """Whether the indices depend on the loops alone."""
        known = {var.name for var in (*loop.vars, *(axis.var for axis in self.axes))}
        return not any(has_load(index) or free_variables(index) - known for index in self.indices)

    def is_identity(self, loop: ParallelFor) -> bool:
        """The fragment has the loop's shape and is indexed by the loop's variables in order."""
        return self.buffer.shape == loop.extents and self.indices == loop.vars


@record
class ElementTable:
    """``elements[t, k, n]``: row-major element in the padded tile that thread t touches in iteration n at point k of
    the axes; OUTSIDE where there is none. ``padded``: the shape that the numbers count in."""

    elements: np.ndarray
    padded: tuple[int, ...]
    shape: tuple[int, ...]

    def in_tile(self) -> np.ndarray:
        """The same with row-major numbers in ``shape`` itself; padding becomes OUTSIDE."""
        import numpy as np

        if self.padded == self.shape:
            return self.elements
        number, inside = np.zeros_like(self.elements), self.elements >= 0
        rest = self.elements
        coordinates = []
        for size in reversed(self.padded):
            coordinates.append(rest % size)
            rest = rest // size
        for size, coordinate in zip(self.shape, reversed(coordinates), strict=True):
            inside &= coordinate < size
            number = number * size + coordinate
        return np.where(inside, number, OUTSIDE)


def loop_points(loop: ParallelFor, layout: Fragment) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The loop variables as [threads, 1, values] arrays, and where they are inside the loop's domain."""
    import numpy as np

    thread = np.arange(layout.threads, dtype=np.int64)[:, None, None]
    value = np.arange(layout.values, dtype=np.int64)[None, None, :]
    coordinates = layout.coordinates(thread, value)
    inside = np.ones((layout.threads, 1, layout.values), dtype=bool)
    points = {}
    for var, extent, coordinate in zip(loop.vars, loop.extents, coordinates, strict=True):
        coordinate = np.broadcast_to(coordinate, inside.shape)
        points[var.name] = coordinate
        inside &= coordinate < extent
    return points, inside


def element_table(access: FragmentAccess, loop: ParallelFor, layout: Fragment) -> ElementTable:
    """Raises :class:`~ptxtile.ir.enumeration.NotEnumerable` when the indices depend on anything but the loops."""
    import numpy as np

    points, inside = loop_points(loop, layout)
    values: dict[str, np.ndarray] = dict(points)
    repeat = prod(axis.count for axis in access.axes)
    position = np.arange(repeat, dtype=np.int64)[None, :, None]
    inner = repeat
    for axis in access.axes:
        inner //= axis.count
        values[axis.var.name] = axis.start + axis.step * ((position // inner) % axis.count)
    shape = (layout.threads, repeat, layout.values)
    indices = [np.broadcast_to(np.asarray(evaluate(index, values)), shape) for index in access.indices]
    sizes = access.buffer.static_shape
    valid = np.broadcast_to(inside, shape).copy()
    for index in indices:
        valid &= index >= 0
    # Padding iterations are kept where they continue the pattern (they make layouts regular); they own no element.
    padded = tuple(max(size, int(index.max(initial=0)) + 1) for size, index in zip(sizes, indices, strict=True))
    if any(p > s for p, s in zip(padded[1:], sizes[1:], strict=True)):
        padded = sizes
        for size, index in zip(sizes, indices, strict=True):
            valid &= index < size
    else:
        valid |= np.broadcast_to(~inside, shape) & np.all([index >= 0 for index in indices], axis=0)
    number = np.zeros(shape, dtype=np.int64)
    for size, index in zip(padded, indices, strict=True):
        number = number * size + index
    return ElementTable(np.where(valid, number, OUTSIDE), padded, sizes)


def layout_of_sequence(values: np.ndarray) -> Layout | None:
    """The layout whose offsets are ``values`` (starting at 0), with few modes; None if there is none.

    The innermost mode is the longest run of constant stride whose length divides the rest.
    """
    if len(values) == 0 or values[0] != 0:
        return None
    modes: list[tuple[int, int]] = []
    while len(values) > 1:
        stride = int(values[1])
        count = next(
            n for n in range(len(values), 0, -1) if len(values) % n == 0 and (values[:n] == stride * _arange(n)).all()
        )
        if count == 1:
            return None
        outer = values[::count]
        if not (values.reshape(-1, count) == outer[:, None] + stride * _arange(count)[None, :]).all():
            return None
        modes.append((count, stride))
        values = outer
    modes.reverse()
    return Layout(tuple(n for n, _ in modes) or (1,), tuple(d for _, d in modes) or (0,))


def _arange(n: int) -> np.ndarray:
    import numpy as np

    return np.arange(n)


def fragment_of_table(table: np.ndarray, shape: tuple[int, ...], padded: tuple[int, ...]) -> Fragment | None:
    """The fragment with ``table[t, v]`` as its offsets in ``padded``; None if it is not thread part + value part, or
    does not cover ``shape``. OUTSIDE entries make it irregular unless they follow the pattern."""
    if (table < 0).any():
        return None
    thread = layout_of_sequence(table[:, 0])
    value = layout_of_sequence(table[0, :])
    if thread is None or value is None:
        return None
    if not (table == table[:, :1] + table[:1, :]).all():
        return None
    fragment = Fragment(shape, padded, thread, value)
    try:
        fragment.check()
    except ValueError:
        return None
    return fragment


def project(access: FragmentAccess, loop: ParallelFor, layout: Fragment) -> Fragment | None:
    """The fragment layout that makes ``access`` local: each thread holds just what its iterations touch, in that
    order."""
    import numpy as np

    try:
        found = element_table(access, loop, layout)
    except NotEnumerable:
        return None
    flat = found.elements.reshape(found.elements.shape[0], -1)
    if (flat < 0).any():
        return None
    seen: dict[int, int] = {}
    for position, element in enumerate(flat[0].tolist()):
        seen.setdefault(element, position)
    kept = np.array(list(seen.values()))
    return fragment_of_table(flat[:, kept], found.shape, found.padded)


def pull_back(access: FragmentAccess, loop: ParallelFor, fragment: Fragment) -> Fragment | None:
    """The loop layout that makes ``access`` local in ``fragment``: a thread runs the iterations of the elements it
    holds."""
    import numpy as np

    if access.is_identity(loop):
        return fragment
    domain = prod(loop.extents)
    every = Fragment(loop.extents, loop.extents, Layout((1,), (0,)), Layout((domain,), (1,)))
    try:
        elements = element_table(access, loop, every).in_tile()[0, 0]
    except NotEnumerable:
        return None
    if (elements < 0).any() or np.bincount(elements).max() > 1:
        return None
    iteration = np.full(prod(fragment.shape), OUTSIDE, dtype=np.int64)
    iteration[elements] = np.arange(domain)
    owned = fragment.table()
    table = np.where(owned >= 0, iteration[np.maximum(owned, 0)], OUTSIDE)
    inside = (table >= 0).any(axis=0)
    return fragment_of_table(table[:, inside], loop.extents, loop.extents) if inside.any() else None


@record
class RegisterMap:
    """The register of an access: ``base`` + Σ layout(counter) over the axes and the value modes of the loop's layout.

    Nearly always each layout is one mode, a stride; ``packed[i, j // 2]`` has two, of which the inner one stands
    still. ``by_element``: the registers are numbered like the elements, and the access's indices say which one."""

    base: int
    axes: tuple[Layout, ...]
    values: tuple[Layout, ...]
    by_element: bool = False


def is_in_every_thread(fragment: Fragment) -> bool:
    """Whether every thread holds the whole tile, its registers numbered like the elements."""
    return fragment == replicated_fragment(fragment.shape, fragment.threads)


def as_held_by(fragment: Fragment, threads: int) -> Fragment:
    """A tile that every thread holds is held as a whole by any group of threads."""
    if fragment.threads != threads and is_in_every_thread(fragment):
        return replicated_fragment(fragment.shape, threads)
    return fragment


def is_same_in_all_iterations(access: FragmentAccess, loop: ParallelFor) -> bool:
    """Whether no index of the access depends on the iteration of ``loop``."""
    varying = {var.name for var in loop.vars}
    stored = {node.buffer.storage.name for node in walk(loop.body) if isinstance(node, Store)}

    def varies(expression: Expr) -> bool:
        loads = (node for node in walk(expression) if isinstance(node, Load))
        return bool(free_variables(expression) & varying) or any(n.buffer.storage.name in stored for n in loads)

    for node in walk(loop.body):  # what a name stands for comes before its uses
        if isinstance(node, (Let, For)):
            values = (node.value,) if isinstance(node, Let) else (node.start, node.stop)
            varying.update({node.var.name} if any(map(varies, values)) else ())
    return not any(map(varies, access.indices))


def register_map(access: FragmentAccess, loop: ParallelFor, layout: Fragment, fragment: Fragment) -> RegisterMap | None:
    """How ``access`` finds its register, if it is local; None if it is not.

    A write is local only if *every* owner of a written element performs it, or replicas would grow stale. A read at
    indices that only the run decides is local where every thread holds the whole tile, if all iterations read the same
    element: registers are indexed by constants, and an array in local memory would be slow for one index a thread.
    """
    fragment = as_held_by(fragment, layout.threads)
    if layout.threads != fragment.threads:
        return None
    if not access.is_enumerable(loop):
        chosen = not access.is_write and is_in_every_thread(fragment) and is_same_in_all_iterations(access, loop)
        return RegisterMap(0, (), (), by_element=True) if chosen else None
    modes = [n for n, _ in layout.value.modes]
    if layout == fragment and access.is_identity(loop):
        strides = [prod(modes[position + 1 :]) for position in range(len(modes))]
        return RegisterMap(0, (), tuple(Layout((n,), (stride,)) for n, stride in zip(modes, strides, strict=True)))
    domain = ParallelFor(loop.vars, loop.extents, Seq(()))
    return _enumerated_map(replace(access, buffer=access.buffer.with_layout(None)), domain, layout, fragment)


@lru_cache(maxsize=64)
def _enumerated_map(
    access: FragmentAccess, loop: ParallelFor, layout: Fragment, fragment: Fragment
) -> RegisterMap | None:
    """:func:`register_map` where tables of all elements have to be compared. Inference weighs layouts and then settles
    on one, and the loop that gets it is lowered: each asks the same."""
    import numpy as np

    try:
        elements = element_table(access, loop, layout).in_tile()
    except NotEnumerable:
        return None
    threads, repeat, values = elements.shape
    elements = elements.reshape(threads, repeat * values)
    modes = [n for n, _ in layout.value.modes]
    owned = fragment.table()
    register = _registers(elements, owned)
    if register is None:
        return None
    if access.is_write and not _all_owners_write(elements, owned):
        return None
    counted = _by_counter(register.reshape(*(axis.count for axis in access.axes), *modes))
    if counted is None:
        return None
    split = len(access.axes)
    used = np.maximum(register, 0)
    return RegisterMap(int(used[0]), counted[:split], counted[split:])


def _registers(elements: np.ndarray, owned: np.ndarray) -> np.ndarray | None:
    """For each iteration the register that holds its element, the same in all threads; None if there is none."""
    import numpy as np

    used = elements >= 0
    runs = used.any(axis=0)
    witness = used.argmax(axis=0)  # the first thread that runs the iteration
    register = np.full(elements.shape[1], OUTSIDE, dtype=np.int64)
    for thread in sorted(set(witness[runs].tolist())):  # nearly always thread 0 alone
        columns = np.flatnonzero(runs & (witness == thread))
        wanted, held = elements[thread, columns], owned[thread]
        order = np.argsort(held, kind="stable")
        place = np.minimum(np.searchsorted(held[order], wanted), len(order) - 1)
        register[columns] = order[place]  # the first register with that element, if any
    agree = ((owned[:, np.maximum(register, 0)] == elements) | ~used).all(axis=0)
    for column in np.flatnonzero(runs & ~agree):  # no register, or another one that holds the same element
        register[column] = _register(elements[:, column], owned)
        if register[column] == OUTSIDE:
            return None
    return register


def _register(elements: np.ndarray, owned: np.ndarray) -> int:
    """The first register that holds ``elements[t]`` in every thread t that has one; OUTSIDE if there is none."""
    import numpy as np

    used = elements >= 0
    witness = int(np.argmax(used))
    for candidate in np.flatnonzero(owned[witness] == elements[witness]):
        if (owned[used, candidate] == elements[used]).all():
            return int(candidate)
    return OUTSIDE


def _all_owners_write(elements: np.ndarray, owned: np.ndarray) -> bool:
    import numpy as np

    count = int(max(elements.max(), owned.max())) + 1

    def holders(table: np.ndarray) -> np.ndarray:
        """For each element the number of threads whose row names it."""
        named = np.zeros((table.shape[0], count + 1), dtype=bool)
        np.put_along_axis(named, np.where(table < 0, count, table), True, axis=1)
        return named[:, :count].sum(axis=0)

    writers, owners = holders(elements), holders(owned)
    return bool((writers[writers > 0] == owners[writers > 0]).all())


def _by_counter(register: np.ndarray) -> tuple[Layout, ...] | None:
    """Layouts such that register[i, j, …] = register[0, 0, …] + Σ layout(index), ignoring OUTSIDE entries; None if
    there are none."""
    import numpy as np

    base = register.reshape(-1)[0]
    if base < 0:
        return tuple(Layout((n,), (0,)) for n in register.shape) if (register < 0).all() else None
    layouts = []
    predicted = np.full(register.shape, base)
    for dimension, size in enumerate(register.shape):
        line = np.moveaxis(register, dimension, 0).reshape(size, -1)[:, 0]
        layout = _layout_of_line(line - base, line >= 0)
        if layout is None:
            return None
        layouts.append(layout)
        offsets = layout(_arange(size))
        predicted = predicted + offsets.reshape([-1 if d == dimension else 1 for d in range(register.ndim)])
    return tuple(layouts) if ((register < 0) | (register == predicted)).all() else None


def _layout_of_line(distances: np.ndarray, known: np.ndarray) -> Layout | None:
    """The layout with these offsets where they are known: one stride if that does."""
    size = len(distances)
    stride = int(distances[1]) if size > 1 and known[1] else 0
    if ((distances == stride * _arange(size)) | ~known).all():
        return Layout((size,), (stride,))
    return layout_of_sequence(distances) if known.all() else None

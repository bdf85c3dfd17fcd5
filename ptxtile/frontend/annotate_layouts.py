"""``T.annotate_layout``: the layouts that users give to the tiles of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from ptxtile.errors import Location, TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.buffers import TracedBuffer
from ptxtile.frontend.current import kernel_tracer
from ptxtile.frontend.layouts import Fragment, Layout, place
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.tracer import OpenKernel, Tracer
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.layouts import Fragment as FragmentLayout
from ptxtile.ir.mapped_layouts import mapped_layout, structured_layout
from ptxtile.ir.mapped_layouts import structured_fragment as _structured_fragment
from ptxtile.ir.rewrite import Rewriter, walk
from ptxtile.ir.statements import Seq, View

if TYPE_CHECKING:
    import numpy as np


def annotate_layout(layout_map: Mapping[TracedBuffer, Any]) -> None:
    """These tiles lie as the layouts say, in the whole kernel: shared ones as ``T.Layout`` (or its function), fragments
    as ``T.Fragment``.

    Swizzles of 32, 64 and 128 bytes over columns of boxes (``ptxtile.layout.make_swizzled_layout`` and its kin) are
    read and written by TMA, wgmma and ldmatrix; other layouts by the threads.
    """
    what = "T.annotate_layout"
    tracer = kernel_tracer(what)
    assert tracer.kernel is not None
    if not isinstance(layout_map, Mapping):
        raise TypeMismatchError(
            what, location=user_location(), expected="a dict of buffers and layouts",
            got=operations.describe(layout_map), hint="T.annotate_layout({A_shared: make_swizzled_layout(A_shared)})",
        )  # fmt: skip
    for buffer, layout in layout_map.items():
        if not isinstance(buffer, TracedBuffer) or buffer.ir.scope not in (Scope.SHARED, Scope.FRAGMENT):
            raise TypeMismatchError(
                f"a key of {what}", location=user_location(), expected="a shared buffer or a fragment",
                got=operations.describe(buffer),
            )  # fmt: skip
        laid_out = _shared(buffer, layout) if buffer.ir.scope is Scope.SHARED else _fragment(tracer, buffer, layout)
        known = tracer.kernel.layouts.get(buffer.name)
        if known is not None and known[0] != laid_out:
            raise TraceError(
                f"{buffer.name} is given two layouts", location=user_location(), expected=str(known[1]),
                got="another layout here",
            )  # fmt: skip
        tracer.kernel.layouts[buffer.name] = laid_out, user_location()


def _shared(buffer: TracedBuffer, layout: Any) -> Buffer:
    ir = buffer.ir
    if callable(layout) and not isinstance(layout, (Layout, Fragment)):
        layout = Layout(ir.static_shape, layout)
    if not isinstance(layout, Layout):
        raise TypeMismatchError(
            f"the layout of the shared buffer {ir.name}", location=user_location(),
            expected="T.Layout, or a function of the indices", got=operations.describe(layout),
        )  # fmt: skip
    if layout.shape != ir.shape:
        raise TypeMismatchError(
            f"the layout of {ir.name} is for another shape", location=user_location(), expected=str(ir.shape),
            got=str(layout.shape), hint="layout.expand((stages,)) gives each stage the same layout",
        )  # fmt: skip
    if ir.dtype.bits % 8:
        raise TypeMismatchError(
            f"a layout of {ir.dtype}", location=user_location(), expected="elements of whole bytes", got=ir.name
        )
    offsets = layout.offsets()
    _check_places(ir.name, offsets)
    itemsize = ir.dtype.itemsize
    found = structured_layout(offsets, itemsize) or mapped_layout(layout.formula(), offsets, itemsize)
    storage = replace(ir.storage, size=max(ir.storage.size or 0, (int(offsets.max()) + 1) * itemsize))
    return replace(ir, layout=found, storage=storage)


def _check_places(name: str, offsets: np.ndarray) -> None:
    """Refuses a layout with two elements at one place, and names them."""
    import numpy as np

    flat = offsets.reshape(-1)
    order = np.argsort(flat, kind="stable")
    same = np.flatnonzero(flat[order][1:] == flat[order][:-1])
    if len(same):
        first, second = (place(offsets, int(order[position])) for position in (same[0], same[0] + 1))
        raise TypeMismatchError(
            f"the layout of {name} puts two elements at one place", location=user_location(),
            expected="a place of its own for each element",
            got=f"{first} and {second}, both at {int(flat[order[same[0]]])}",
        )  # fmt: skip


def _fragment(tracer: Tracer, buffer: TracedBuffer, layout: Any) -> Buffer:
    assert tracer.kernel is not None
    if not isinstance(layout, Fragment):
        raise TypeMismatchError(
            f"the layout of the fragment {buffer.name}", location=user_location(), expected="T.Fragment",
            got=operations.describe(layout),
        )  # fmt: skip
    return buffer.ir.with_layout(
        fragment_layout(tracer, layout, buffer.ir.static_shape, f"the layout of {buffer.name}")
    )


def fragment_layout(tracer: Tracer, layout: Fragment, shape: tuple[int, ...], what: str) -> FragmentLayout:
    """``layout`` as the compiler's, for a tile or a parallel loop of ``shape``; every register of every thread of the
    block (or role) has to hold an element."""
    import numpy as np

    assert tracer.kernel is not None
    threads = tracer.kernel.group[1] if tracer.kernel.group else tracer.kernel.threads
    if layout.shape != shape:
        raise TypeMismatchError(
            f"{what} is for another shape", location=user_location(), expected=str(shape), got=str(layout.shape)
        )
    thread, register = layout.tables()
    outside = (thread < 0) | (thread >= threads) | (register < 0)
    if outside.any():
        copy, *where = place(thread, int(np.argmax(outside)))
        raise TypeMismatchError(
            f"{what} leaves the block", location=user_location(), expected=f"threads 0 to {threads - 1}, registers ≥ 0",
            got=f"thread {int(thread[copy, *where])}, register {int(register[copy, *where])} for {tuple(where)}",
        )  # fmt: skip
    held = np.full((threads, int(register.max()) + 1), -1)
    numbers = np.broadcast_to(np.arange(prod(shape)).reshape(shape), thread.shape)
    for copy in range(layout.replicate):
        owners = thread[copy].reshape(-1), register[copy].reshape(-1)
        _check_owners(what, held, owners, numbers[copy])
        held[owners] = numbers[copy].reshape(-1)
    if (held < 0).any():
        idle = np.argwhere(held < 0)[0]
        raise TypeMismatchError(
            f"{what} leaves registers empty", location=user_location(),
            expected=f"an element in each of {held.shape[1]} registers of {threads} threads",
            got=f"none in register {int(idle[1])} of thread {int(idle[0])}",
            hint="replicate= lets several threads hold each element",
        )  # fmt: skip
    found = _structured_fragment(held, shape)
    if found is None:
        raise TypeMismatchError(
            f"{what} is no sum of strides", location=user_location(),
            expected="elements whose numbers are sums of multiples of the digits of thread and register",
            got=repr(layout),
        )  # fmt: skip
    return found


def _check_owners(what: str, held: np.ndarray, owners: tuple[np.ndarray, np.ndarray], numbers: np.ndarray) -> None:
    """Refuses two elements in one register of one thread, and names them."""
    import numpy as np

    flat = owners[0] * held.shape[1] + owners[1]
    order = np.argsort(flat, kind="stable")
    pairs = [(order[k], order[k + 1]) for k in np.flatnonzero(flat[order][1:] == flat[order][:-1])[:1]]
    before = held[owners]
    taken = np.flatnonzero((before >= 0) & (before != numbers.reshape(-1)))[:1]
    pairs += [(before[k], k) for k in taken]
    if pairs:
        first, second = (place(numbers, int(element)) for element in pairs[0])
        where = int(pairs[0][1])
        raise TypeMismatchError(
            f"{what} puts two elements into one register", location=user_location(),
            expected="a register of its own for each element",
            got=f"{first} and {second}, both in register {int(owners[1][where])} of thread {int(owners[0][where])}",
        )  # fmt: skip


class _LaidOut(Rewriter):
    def __init__(self, layouts: Mapping[str, tuple[Buffer, Location | None]]) -> None:
        self.layouts = layouts

    def buffer(self, buffer: Buffer) -> Buffer:
        return self.layouts[buffer.name][0] if buffer.name in self.layouts else buffer


def laid_out(kernel: OpenKernel, body: Seq) -> Seq:
    """``body`` with the layouts of its tiles, when the kernel is complete."""
    if not kernel.layouts:
        return body
    storages = {buffer.storage.name: name for name, (buffer, _) in kernel.layouts.items()}
    for node in walk(body):
        if isinstance(node, View) and node.buffer.storage.name in storages:
            name = storages[node.buffer.storage.name]
            raise TraceError(
                f"{name} has a layout of its own and another view", location=node.location,
                expected="a tile with one view, whose elements may lie anywhere",
                got=f"{node.buffer.name}, a view of its memory", hint=f"leave {name} out of T.annotate_layout",
            )  # fmt: skip
    changed = _LaidOut(kernel.layouts).visit(body)
    return changed if isinstance(changed, Seq) else Seq((changed,))

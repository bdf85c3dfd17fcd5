"""The verifier's rules for buffers, storages and layouts (invariants 21 to 26 of :mod:`ptxtile.ir.verifier`)."""

from __future__ import annotations

from functools import cache

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.enumeration import NotEnumerable
from ptxtile.ir.layouts import Fragment, Layout, SharedLayout, size
from ptxtile.ir.mapped_layouts import MappedLayout, mapped_layout
from ptxtile.ir.verify_context import Context
from ptxtile.ir.verify_expressions import ExpressionVerifier


def verify_buffer(context: Context, expressions: ExpressionVerifier, buffer: Buffer) -> None:
    """A declaration: shape, strides, storage and layout."""
    if len(buffer.strides) != buffer.rank:
        context.fail(21, f"{buffer.name} has another number of strides than dimensions", str(buffer.rank),
                     len(buffer.strides))  # fmt: skip
    storage = buffer.storage
    if storage.alignment <= 0 or storage.alignment & (storage.alignment - 1):
        context.fail(24, f"the alignment of {storage.name} is no power of two", got=storage.alignment)
    if buffer.scope is Scope.GLOBAL:
        _verify_global(context, expressions, buffer)
        return
    sizes = [n for n in buffer.shape if isinstance(n, int)]
    if len(sizes) != buffer.rank or any(n <= 0 for n in sizes):
        context.fail(21, f"{buffer.name} has a size that is no positive integer", got=buffer.shape)
    if storage.size is None or storage.size < 0:
        context.fail(22, f"the storage {storage.name} has no size")
    if buffer.scope is Scope.BARRIER and buffer.dtype.bits * buffer.dtype.lanes != 64:
        context.fail(25, f"the mbarriers {buffer.name} are not 8 bytes each", "64 bits", buffer.dtype)
    one_index = context.stage is not None and context.stage.one_index
    if not one_index:
        _verify_layout(context, buffer)
        _verify_inside(context, buffer, storage.size)
    _verify_placement(context, buffer)


def _verify_global(context: Context, expressions: ExpressionVerifier, buffer: Buffer) -> None:
    if buffer.storage.name not in context.program.global_buffers():
        context.fail(26, f"{buffer.name} lies in global memory that belongs to no tensor", got=buffer.storage.name)
    if buffer.layout is not None:
        context.fail(23, f"the global buffer {buffer.name} has a layout")
    for value in (*buffer.shape, *buffer.strides, buffer.offset):
        expressions.check_size(value, buffer.name, 26)


def _verify_inside(context: Context, buffer: Buffer, storage_size: int) -> None:
    """The last element lies within the storage; a fragment's storage is counted over all threads and not checked."""
    strides = [stride for stride in buffer.strides if isinstance(stride, int)]
    if buffer.scope is Scope.FRAGMENT or not isinstance(buffer.offset, int) or len(strides) != buffer.rank:
        return
    if isinstance(buffer.layout, SharedLayout):
        last = buffer.layout.layout.cosize - 1
    elif isinstance(buffer.layout, MappedLayout):
        last = buffer.layout.size - 1
    else:
        last = sum((n - 1) * d for n, d in zip(buffer.static_shape, strides, strict=True))
    bits = (buffer.offset + last + 1) * buffer.dtype.bits * buffer.dtype.lanes
    if bits > 8 * storage_size:
        context.fail(22, f"{buffer.name} does not fit into its storage", f"at most {storage_size} bytes", bits // 8)


def _verify_layout(context: Context, buffer: Buffer) -> None:
    layout = buffer.layout
    if layout is None:
        return
    if isinstance(layout, SharedLayout):
        if buffer.scope is not Scope.SHARED or 8 * layout.itemsize != buffer.dtype.bits * buffer.dtype.lanes:
            context.fail(23, f"the layout of {buffer.name} is for another buffer")
        modes = tuple(size(mode) for mode in layout.layout.shape)
        if len(modes) != buffer.rank or any(m < n for m, n in zip(modes, buffer.static_shape, strict=True)):
            context.fail(23, f"the layout of {buffer.name} does not cover it", str(buffer.shape), modes)
        if not _is_injective(layout.layout):
            context.fail(23, f"the layout of {buffer.name} puts two elements at one address")
    elif isinstance(layout, MappedLayout):
        if buffer.scope is not Scope.SHARED or 8 * layout.itemsize != buffer.dtype.bits * buffer.dtype.lanes:
            context.fail(23, f"the layout of {buffer.name} is for another buffer")
        if layout.shape != buffer.shape:
            context.fail(23, f"the layout of {buffer.name} does not cover it", str(buffer.shape), layout.shape)
        problem = _mapping_problem(layout)
        if problem is not None:
            context.fail(23, f"the layout of {buffer.name} {problem}")
    elif isinstance(layout, Fragment):
        if buffer.scope is not Scope.FRAGMENT or layout.shape != buffer.shape:
            context.fail(23, f"the layout of {buffer.name} is for another buffer", str(buffer.shape), layout.shape)
        problem = _fragment_problem(layout)
        if problem is not None:
            context.fail(23, f"the layout of {buffer.name} does not fit: {problem}")


@cache
def _is_injective(layout: Layout) -> bool:
    import numpy as np

    offsets = layout(np.arange(layout.size))
    return len(np.unique(offsets)) == layout.size


@cache
def _mapping_problem(layout: MappedLayout) -> str | None:
    import numpy as np

    try:
        table = layout.table()
    except NotEnumerable:
        return "depends on more than the coordinates"
    if table.min() < 0 or table.max() + 1 != layout.size:
        return f"has offsets {table.min()} to {table.max()} in {layout.size} elements"
    if len(np.unique(table)) != table.size:
        return "puts two elements at one address"
    if mapped_layout(layout.offset, table, layout.itemsize).contiguous % layout.contiguous:
        return f"does not keep {layout.contiguous} elements together"
    return None


@cache
def _fragment_problem(fragment: Fragment) -> str | None:
    try:
        fragment.check()
    except ValueError as error:
        return str(error)
    return None


def _verify_placement(context: Context, buffer: Buffer) -> None:
    storage, kernel = buffer.storage, context.kernel
    if storage.offset is None:
        return
    alignment = storage.alignment
    if isinstance(buffer.layout, SharedLayout) and buffer.layout.swizzle.bits:
        alignment = max(alignment, buffer.layout.alignment)
    if storage.offset < 0 or storage.offset % alignment:
        expected = f"a multiple of {alignment}"
        context.fail(24, f"{storage.name} is placed at an unaligned offset", expected, storage.offset)
    end = storage.offset + (storage.size or 0)
    if kernel is not None and kernel.shared_bytes is not None and end > kernel.shared_bytes:
        expected = f"at most {kernel.shared_bytes}"
        context.fail(24, f"{storage.name} ends beyond the kernel's shared memory", expected, end)

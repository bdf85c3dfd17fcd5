"""Shared tiles kept as columns of boxes: what TMA writes, what wgmma reads, and what swizzles apply to."""

from __future__ import annotations

from itertools import product
from math import gcd, prod

from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import as_expr, constant_value
from ptxtile.ir.layouts import TMA_SWIZZLES, Layout, SharedLayout, Swizzle, row_major
from ptxtile.ir.tile_ops import Region

MAXIMUM_BOX = 256
"""Elements of a side of a box of TMA (CUDA driver API, cuTensorMapEncodeTiled)."""


def columns_of_boxes(buffer: Buffer, columns: int, span: int = 0, spans_outer: bool = False) -> SharedLayout:
    """The last dimension in boxes of ``columns`` elements; inside a box the last but one dimension steps by
    ``columns``.

    Dimensions further out keep whole matrices apart; with ``spans_outer`` they lie inside of the boxes, as TMA writes
    them when a box reaches over several matrices. ``span``: the swizzle in bytes.
    """
    *outer, last = buffer.static_shape
    boxes = last // columns
    rows = outer[-1] if outer else 1
    strides: list[int] = [columns] if outer else []
    running = rows * (columns if spans_outer else last)
    for size in reversed(outer[:-1]):
        strides.insert(0, running)
        running *= size
    shape = (*outer, (boxes, columns))
    box_stride = running if spans_outer else rows * columns
    return SharedLayout(Layout(shape, (*strides, (box_stride, 1))), TMA_SWIZZLES[span], buffer.dtype.itemsize)


def written_columns(buffer: Buffer) -> int | None:
    """How many columns the boxes have in which TMA writes a tile with the layout that it was given; None if that is no
    arrangement of boxes."""
    layout = buffer.layout
    if not isinstance(layout, SharedLayout):
        return None
    last = buffer.static_shape[-1]
    widest = next((n for n in range(min(last, MAXIMUM_BOX), 0, -1) if last % n == 0), 1)
    columns = layout.span // buffer.dtype.itemsize if layout.span else widest
    if not columns or last % columns:
        return None
    return columns if _dimensions(columns_of_boxes(buffer, columns, layout.span)) == _dimensions(layout) else None


def boxes_start_patterns(layout: SharedLayout, region: Region) -> bool:
    """Whether each box of a TMA copy of ``region`` has the layout's full columns and starts at a multiple of the bytes
    after which its swizzle repeats: the card derives the pattern from the address (PTX ISA, «Swizzling modes»)."""
    *outer, (_, columns) = layout.layout.shape
    *strides, (box_stride, _) = layout.layout.stride
    unit = layout.alignment // layout.itemsize
    if region.extents[-1] % columns or constant_value(region.starts[-1]) is None:
        return False
    first = constant_value(region.starts[-1]) or 0
    if first % columns:
        return False
    steps = [(first // columns, box_stride), (1 if region.extents[-1] > columns else 0, box_stride)]
    for start, extent, stride in zip(region.starts, region.extents, strides, strict=False):
        position = constant_value(start)
        steps.append((gcd(*Analyzer().congruence(as_expr(start))) if position is None else position, stride))
        steps.append((MAXIMUM_BOX if extent > MAXIMUM_BOX else 0, stride))
    return all(count * stride % unit == 0 for count, stride in steps) and len(strides) == len(outer)


def operand_span(buffer: Buffer) -> int | None:
    """The widest swizzle span in bytes that divides a row of a matrix operand; None if none does."""
    row = buffer.static_shape[-1] * buffer.dtype.itemsize
    return next((span for span in (128, 64, 32) if row % span == 0), None)


def operand_layout(buffer: Buffer) -> SharedLayout:
    """The arrangement that wgmma's descriptors describe."""
    span = operand_span(buffer)
    assert span is not None
    return columns_of_boxes(buffer, span // buffer.dtype.itemsize, span)


def descriptor_span(buffer: Buffer) -> int | None:
    """The swizzle span with which a descriptor describes the operand: of the arrangement that it has, else of the one
    that it will get; None if none does."""
    if buffer.layout is None:
        return operand_span(buffer)
    if not isinstance(buffer.layout, SharedLayout) or buffer.layout.span == 0:
        return None
    span = buffer.layout.span
    if buffer.static_shape[-1] * buffer.dtype.itemsize % span:
        return None
    described = columns_of_boxes(buffer, span // buffer.dtype.itemsize, span)
    return span if _dimensions(described) == _dimensions(buffer.layout) else None


def _dimensions(layout: SharedLayout) -> list[Layout]:
    """What each dimension adds to the offset, in its simplest form."""
    parts = zip(layout.layout.shape, layout.layout.stride, strict=True)
    return [Layout((shape,), (stride,)).coalesced() for shape, stride in parts]


def row_swizzles(buffer: Buffer) -> list[SharedLayout]:
    """Row-major arrangements whose rows, of a power of two of bytes, exchange pieces of 16 or 32 bytes: for tiles that
    neither TMA nor wgmma touches, and that are read otherwise than eight rows of 16 bytes at a time."""
    size, last = buffer.dtype.itemsize, buffer.static_shape[-1]
    row = last * size
    if row & (row - 1):
        return []
    matrix = prod(buffer.static_shape[-2:]) * size
    found = []
    for base, bits, apart in product((4, 5), (2, 3, 1), (0, 1, 2)):
        shift = row.bit_length() - 1 + apart - base
        pattern = 1 << (base + bits + shift)
        if shift >= bits and matrix % (pattern if buffer.rank > 2 else 1 << (base + bits)) == 0:
            found.append(SharedLayout(row_major(buffer.static_shape), Swizzle(bits, base, shift), size))
    return found

"""Shared tiles kept as columns of boxes: what TMA writes, what wgmma reads, and what swizzles apply to."""

from __future__ import annotations

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.layouts import TMA_SWIZZLES, Layout, SharedLayout


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


def operand_span(buffer: Buffer) -> int | None:
    """The widest swizzle span in bytes that divides a row of a matrix operand; None if none does."""
    row = buffer.static_shape[-1] * buffer.dtype.itemsize
    return next((span for span in (128, 64, 32) if row % span == 0), None)


def operand_layout(buffer: Buffer) -> SharedLayout:
    """The arrangement that wgmma's descriptors describe."""
    span = operand_span(buffer)
    assert span is not None
    return columns_of_boxes(buffer, span // buffer.dtype.itemsize, span)

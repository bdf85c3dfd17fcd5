"""Layouts of shared tiles and fragments that users ask for by name, after TileLang's ``tilelang.layout``.

A swizzled tile is kept as columns of boxes of 32, 64 or 128 bytes, in each of which the 16-byte units of a row are
exchanged by its number (PTX ISA, «Swizzling modes»): the arrangement that TMA writes and that wgmma and ldmatrix read.
"""

from __future__ import annotations

from typing import Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.buffers import BufferRegion, TracedBuffer
from ptxtile.frontend.dtypes import as_dtype
from ptxtile.frontend.layouts import Fragment, Layout
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.values import Value

UNIT_BYTES, PATTERN_ROWS = 16, 8
SPANS = (128, 64, 32)


def _tile(buffer: Any, what: str) -> TracedBuffer:
    if isinstance(buffer, BufferRegion):
        return buffer.buffer
    if isinstance(buffer, Value) and buffer.element is not None:
        return buffer.element[0]
    if not isinstance(buffer, TracedBuffer):
        raise TypeMismatchError(
            f"the argument of {what}", location=user_location(), expected="a buffer of the kernel",
            got=operations.describe(buffer),
        )  # fmt: skip
    return buffer


def get_swizzle_layout(row_idx: Any, col_idx: Any, row_size: int, dtype: Any, swizzle_bytes: int | None = None) -> Any:
    """Where an element of a row of ``row_size`` lies: (box, row, column in the box). ``swizzle_bytes``: 32, 64 or 128,
    the widest one up to the row unless given."""
    bits = as_dtype(dtype).bits
    row = bits * row_size // 8
    span = min(128, row) if swizzle_bytes is None else int(swizzle_bytes)
    if span not in SPANS or row % span:
        raise TraceError(
            "T.get_swizzle_layout", location=user_location(), expected="rows of whole spans of 32, 64 or 128 bytes",
            got=f"rows of {row} bytes, spans of {span}",
        )  # fmt: skip
    in_unit, units = UNIT_BYTES * 8 // bits, span // UNIT_BYTES
    unit = col_idx // in_unit
    exchanged = unit % units ^ row_idx % PATTERN_ROWS // (PATTERN_ROWS // units)
    return unit // units, row_idx, exchanged * in_unit + col_idx % in_unit


def _swizzled(buffer: Any, span: int | None, what: str) -> Layout:
    """``span`` None: the widest that divides a row; a row that none divides stays as it is."""
    tile = _tile(buffer, what)
    shape, dtype = tile.ir.static_shape, tile.ir.dtype
    if len(shape) < 2:
        raise TypeMismatchError(
            f"{what} of {tile.name}", location=user_location(), expected="a tile of 2 dimensions or more",
            got=tile.description,
        )  # fmt: skip
    row = shape[-1] * dtype.bits // 8
    chosen = next((s for s in SPANS if row % s == 0), None) if span is None else span
    if chosen is None:
        return make_linear_layout(tile)
    if row % chosen:
        raise TypeMismatchError(
            f"{what} of {tile.name}", location=user_location(), expected=f"rows of a multiple of {chosen} bytes",
            got=f"rows of {row} bytes ({tile.description})",
        )  # fmt: skip

    def function(*indices: Any) -> tuple[Any, ...]:
        *outer, i, j = indices
        return (*outer, *get_swizzle_layout(i, j, shape[-1], dtype, chosen))

    return Layout(shape, function)


def make_swizzled_layout(buffer: Any, k_major: bool = True, allow_pad: bool = True) -> Layout:
    """The widest swizzle that divides the tile's rows; rows that no swizzle divides stay as they are."""
    return _swizzled(buffer, None, "make_swizzled_layout")


def make_wgmma_swizzled_layout(buffer: Any, continuity: int | None = None, k_major: bool = True) -> Layout:
    """The arrangement of an operand of wgmma: that of :func:`make_swizzled_layout`. ``continuity``: elements of a row
    that belong together, which the span must divide."""
    if continuity is None:
        return _swizzled(buffer, None, "make_wgmma_swizzled_layout")
    run = continuity * _tile(buffer, "make_wgmma_swizzled_layout").ir.dtype.bits // 8
    span = next((s for s in SPANS if run % s == 0), None)
    return make_linear_layout(buffer) if span is None else _swizzled(buffer, span, "make_wgmma_swizzled_layout")


def make_full_bank_swizzled_layout(buffer: Any) -> Layout:
    """Boxes of 128 bytes."""
    return _swizzled(buffer, 128, "make_full_bank_swizzled_layout")


def make_half_bank_swizzled_layout(buffer: Any) -> Layout:
    """Boxes of 64 bytes."""
    return _swizzled(buffer, 64, "make_half_bank_swizzled_layout")


def make_quarter_bank_swizzled_layout(buffer: Any) -> Layout:
    """Boxes of 32 bytes."""
    return _swizzled(buffer, 32, "make_quarter_bank_swizzled_layout")


def make_linear_layout(buffer: Any) -> Layout:
    """Row by row, as the tile would lie if nothing speaks against it."""
    shape = _tile(buffer, "make_linear_layout").ir.static_shape

    def function(*indices: Any) -> Any:
        offset = indices[0]
        for index, size in zip(indices[1:], shape[1:], strict=True):
            offset = offset * size + index
        return offset

    return Layout(shape, function)


def make_mma_swizzle_layout(shared_buf: Any, is_smooth: bool = False) -> Layout:
    """The widest swizzle for tiles whose rows are multiples of 64 bytes, else (or with ``is_smooth``) row by row."""
    tile = _tile(shared_buf, "T.make_mma_swizzle_layout")
    if is_smooth or tile.ir.static_shape[-1] * tile.ir.dtype.bits % 512:
        return make_linear_layout(tile)
    return _swizzled(tile, None, "T.make_mma_swizzle_layout")


def make_gemm_fragment_8x8() -> Fragment:
    """A matrix of ldmatrix: thread 4·row + column // 2 holds two neighbours (PTX ISA, «ldmatrix»)."""
    return Fragment((8, 8), forward_fn=lambda i, j: (i * 4 + j // 2, j % 2))


def make_gemm_fragment_8x8_transposed() -> Fragment:
    """The same matrix with rows and columns exchanged."""
    return Fragment((8, 8), forward_fn=lambda i, j: (j * 4 + i // 2, i % 2))


def make_fully_replicated_layout_fragment(buffer: Any, threads: int) -> Fragment:
    """Every thread holds the whole tile."""
    shape = _tile(buffer, "make_fully_replicated_layout_fragment").ir.static_shape

    def function(*arguments: Any) -> tuple[Any, Any]:
        *indices, copy = arguments
        register: Any = 0
        for index, size in zip(indices, shape, strict=True):
            register = register * size + index
        return copy, register

    if threads == 1:
        return Fragment(shape, forward_fn=lambda *indices: function(*indices, 0))
    return Fragment(shape, forward_fn=function, replicate=threads)

"""``T.im2col``: the tile of a matrix whose product with the filters is a convolution of images (N, H, W, C)."""

from __future__ import annotations

from typing import Any, NoReturn

from ptxtile.errors import TypeMismatchError
from ptxtile.frontend.buffers import TracedBuffer
from ptxtile.frontend.current import kernel_tracer
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.mathematics import if_then_else
from ptxtile.frontend.operations import describe
from ptxtile.frontend.tile_operations import outside_parallel
from ptxtile.frontend.values import Value
from ptxtile.ir.expressions import Var
from ptxtile.ir.statements import ParallelFor, seq
from ptxtile.ir.types import int32


def im2col(
    img: Any,
    col: Any,
    nhw_step: Any,
    c_step: Any,
    kernel: int,
    stride: int,
    dilation: int,
    pad: int,
    eviction_policy: str | None = None,
    annotations: Any = None,
) -> None:
    """Tile (``nhw_step``, ``c_step``) of the matrix with a row for each output pixel (n, y, x) and a column for each
    element (ky, kx, c) of a filter, ``kernel``×``kernel``×C.

    img: tensor (N, H, W, C). col: tile of two dimensions on the chip. Pixels outside of the image, in the ``pad`` rows
    and columns around it, are 0, as are rows and columns outside of the matrix. ``eviction_policy`` and ``annotations``
    are accepted for TileLang's sake. TypeMismatchError for buffers of other ranks.
    """
    tracer = kernel_tracer("T.im2col")
    outside_parallel(tracer, "T.im2col")
    _require_rank(img, 4, "the image of T.im2col")
    _require_rank(col, 2, "the tile of T.im2col")
    _, height, width, channels = img.shape
    if min(kernel, stride, dilation) < 1:
        _refuse("kernel, stride and dilation of T.im2col", "at least 1 each", f"{kernel}, {stride}, {dilation}")
    rows, columns = col.ir.static_shape
    span = dilation * (kernel - 1) + 1
    out_height, out_width = (height + 2 * pad - span) // stride + 1, (width + 2 * pad - span) // stride + 1
    if any(isinstance(size, int) and size < 1 for size in (out_height, out_width)):
        got = f"{height}×{width} with a pad of {pad} for a filter of {span}×{span}"
        _refuse("the image of T.im2col", "at least as many rows and columns as the filter, with the pad", got)
    i, j = Var(tracer.unique("pixel"), int32), Var(tracer.unique("element"), int32)

    def copy_element() -> None:
        pixel, element = nhw_step * rows + Value(i), c_step * columns + Value(j)
        tap = element // channels
        y = pixel // out_width % out_height * stride + tap // kernel * dilation - pad
        x = pixel % out_width * stride + tap % kernel * dilation - pad
        found = img[pixel // (out_width * out_height), y, x, element % channels]
        inside = (tap < kernel * kernel) & (y >= 0) & (y < height) & (x >= 0) & (x < width)
        col[Value(i), Value(j)] = if_then_else(inside, found, 0)

    tracer.parallel_depth += 1
    _, statements = tracer.capture(copy_element)
    tracer.parallel_depth -= 1
    tracer.emit(ParallelFor((i, j), (rows, columns), seq(*statements), location=user_location()))


def _require_rank(buffer: Any, rank: int, what: str) -> None:
    if not isinstance(buffer, TracedBuffer) or buffer.ir.rank != rank:
        _refuse(what, f"a buffer of {rank} dimensions", describe(buffer))


def _refuse(what: str, expected: str, got: str) -> NoReturn:
    raise TypeMismatchError(what, location=user_location(), expected=expected, got=got)

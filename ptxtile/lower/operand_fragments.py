"""Which elements of a shared tile each thread of a warp needs for mma.sync, and how ldmatrix brings them.

ldmatrix moves matrices of 8 rows of 16 bytes: exactly one 32-bit register of a fragment in each thread, when the tile
is stored along K (any type of up to 32 bits), or, transposed, when it is stored along M or N and its elements have 16
bits (PTX ISA, «ldmatrix» and the figures of the mma.sync fragments). All else is loaded element by element.

Positions are computed with ``+ * // %`` alone, so that they work on expressions and on NumPy arrays of lanes: the same
formulas give the addresses that are emitted and those whose bank conflicts decide the tile's arrangement.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr, Var, as_expr, cast, constant_value
from ptxtile.ir.layouts import Fragment, SharedLayout
from ptxtile.ir.tile_ops import Gemm, Region
from ptxtile.ir.types import int32
from ptxtile.lower.gemm_geometry import COLUMNS, MMA_ROWS, WARP, Grid, dtype_names, mma_depth
from ptxtile.lower.vector_access import MemoryAccess, VectorWidths
from ptxtile.records import record

ROW_BYTES = 16
MATRIX_ROWS = 8
MOST_MATRICES = 4
REGISTER_BITS = 32


@record
class Operand:
    """A or B of a gemm as one warp reads it: ``tiles`` instruction tiles of ``extent`` rows of A (columns of B),
    ``step`` apart, ``depth`` elements of K at a time. ``along_k``: the stored tile's rows run along K."""

    region: Region
    is_a: bool
    along_k: bool
    tiles: int
    step: int
    depth: int

    @property
    def buffer(self) -> Buffer:
        return self.region.buffer

    @property
    def extent(self) -> int:
        return MMA_ROWS if self.is_a else COLUMNS

    @property
    def packed(self) -> int:
        """Elements in a 32-bit register, consecutive along K; 1 for 64-bit elements."""
        return max(REGISTER_BITS // self.buffer.dtype.bits, 1)

    @property
    def registers(self) -> int:
        """Of one instruction tile in each thread (pairs of them for 64-bit elements)."""
        return self.extent * self.depth // WARP // self.packed

    @property
    def elements(self) -> int:
        return self.registers * self.packed

    @property
    def row_elements(self) -> int:
        """Elements in a row of a matrix of ldmatrix."""
        return ROW_BYTES * 8 // self.buffer.dtype.bits

    def matrix(self, tile: Any, register: Any) -> tuple[Any, Any]:
        """Where the matrix that fills ``register`` of ``tile`` starts: along M or N, and along K."""
        if not self.is_a:
            return tile * self.step, register * self.row_elements
        return tile * self.step + register % 2 * MATRIX_ROWS, register // 2 * self.row_elements

    def element(self, tile: Any, register: Any, place: Any, lane: Any) -> tuple[Any, Any]:
        """The element at ``place`` of the thread's ``register``: along M or N, and along K."""
        along, k = tile * self.step + lane // 4, lane % 4 * self.packed + place
        if not self.is_a:
            return along, k + register * (4 * self.packed)
        return along + register % 2 * MATRIX_ROWS, k + register // 2 * (4 * self.packed)

    def stored(self, along: Any, k: Any) -> tuple[Any, Any]:
        """Row and column of the stored tile."""
        return (along, k) if self.along_k else (k, along)


def operands(gemm: Gemm, grid: Grid) -> tuple[Operand, Operand]:
    """Both operands of a gemm on mma.sync whose tile ``grid`` divides among the warps."""
    depth = mma_depth(gemm, dtype_names(gemm))
    assert depth is not None, "select_gemm_paths chose a path that fits"
    rows, columns = gemm.m // (MMA_ROWS * grid.rows), gemm.n // (COLUMNS * grid.columns)
    a = Operand(gemm.a, True, not gemm.transpose_a, rows, MMA_ROWS * grid.rows, depth)
    return a, Operand(gemm.b, False, gemm.transpose_b, columns, COLUMNS, depth)


# --- which operands ldmatrix can load --------------------------------------------------------------------------------


def refusal(operand: Operand, analyzer: Analyzer) -> str:
    """Why ldmatrix cannot load the operand from where it lies; empty if it can."""
    buffer, bits = operand.buffer, operand.buffer.dtype.bits
    if bits > REGISTER_BITS:
        return f"ldmatrix moves no elements of {bits} bits"
    if not operand.along_k and bits != 16:
        return f"{buffer.name} is stored along {'M' if operand.is_a else 'N'}, and ldmatrix transposes 16-bit elements"
    row, column = (Var(name, int32) for name in ("row", "column"))
    *outer, first_row, first_column = (cast(as_expr(start), int32) for start in operand.region.starts)
    access = MemoryAccess(buffer, (*outer, first_row + row, first_column + column))
    with analyzer.scope():
        analyzer.bind(row, 0, operand.region.extents[-2] - 1)
        analyzer.bind(column, 0, operand.region.extents[-1] - 1)
        width = VectorWidths(analyzer, {}).width(access, column, operand.region.extents[-1])
    if width < operand.row_elements:
        return f"the rows of {buffer.name} are not known to lie in aligned pieces of {ROW_BYTES} bytes"
    return ""


def matrix_groups(operand: Operand) -> Iterator[tuple[int, int]]:
    """(first matrix, number of matrices) of the instructions that load the operand for one k step: fours, then what is
    left. Matrices are counted tile by tile, register by register."""
    total, first = operand.tiles * operand.registers, 0
    while first < total:
        count = next(n for n in (MOST_MATRICES, 2, 1) if n <= total - first)
        yield first, count
        first += count


def row_offset(operand: Operand, matrix: tuple[Expr, Expr], row: Expr, analyzer: Analyzer) -> Expr:
    """Element offset into the buffer's storage of ``row`` (0 to 7) of the matrix that starts at ``matrix`` (along M or
    N, along K), after the region's own start.

    Eight rows of a swizzled tile are the whole of the swizzle's pattern, so that a matrix that starts at a multiple of
    eight rows is added outside of the XOR, which then is the same for all tiles of a warp.
    """
    buffer = operand.buffer
    *outer, first_row, first_column = (cast(as_expr(start), int32) for start in operand.region.starts)
    start, column = operand.stored(*matrix)
    start, column = first_row + start, first_column + column
    layout = buffer.layout
    if layout is None:
        offset = as_expr(buffer.offset)
        for index, stride in zip((*outer, start + row, column), buffer.strides, strict=True):
            offset = offset + index * as_expr(stride)
        return offset
    assert not isinstance(layout, Fragment)
    if isinstance(layout, SharedLayout) and layout.swizzle.bits:
        stride = layout.layout.stride[-2]
        whole = isinstance(stride, int) and MATRIX_ROWS * stride * layout.itemsize % layout.alignment == 0
        if whole and analyzer.divisible(start, MATRIX_ROWS):
            return start * stride + as_expr(layout((*outer, row, column))) + as_expr(buffer.offset)
    return as_expr(layout((*outer, start + row, column))) + as_expr(buffer.offset)


# --- what the first warp reads ---------------------------------------------------------------------------------------


def first_warp_accesses(
    gemm: Gemm, grid: Grid, analyzer: Analyzer
) -> Iterator[tuple[Buffer, tuple[Any, ...], int, int]]:
    """(buffer, indices of the 32 lanes, elements each, times) of the shared accesses of the first warp, for its first
    tile and k step: rows of 16 bytes for ldmatrix, 8 of which are one phase; else single elements."""
    import numpy as np

    lane = np.arange(WARP, dtype=np.int64)
    for operand in operands(gemm, grid):
        if operand.buffer.scope is not Scope.SHARED:
            continue
        steps = gemm.k // operand.depth
        if not refusal(operand, analyzer):
            for first, count in matrix_groups(operand):
                matrix = first + lane // MATRIX_ROWS % count
                along, k = operand.matrix(matrix // operand.registers, matrix % operand.registers)
                row = lane % MATRIX_ROWS
                where = operand.stored(along, k + row) if not operand.along_k else operand.stored(along + row, k)
                yield operand.buffer, _indices(operand, *where), operand.row_elements, steps
            continue
        for register in range(operand.registers):
            for place in range(operand.packed):
                where = operand.stored(*operand.element(0, register, place, lane))
                yield operand.buffer, _indices(operand, *where), 1, steps * operand.tiles


def _indices(operand: Operand, row: Any, column: Any) -> tuple[Any, ...]:
    *outer, first_row, first_column = (constant_value(start) or 0 for start in operand.region.starts)
    return (*outer, first_row + row, first_column + column)

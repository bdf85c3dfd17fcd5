"""How the warps of a CTA share a gemm's tile, and where its accumulator lies in their registers.

The ownership of accumulator elements is the hardware's: PTX ISA, figures of the mma.sync and wgmma accumulator
fragments.
"""

from __future__ import annotations

from dataclasses import dataclass

from ptxtile.ir.layouts import Fragment, Layout
from ptxtile.ir.tensor_core_ops import MMA_SHAPES, WGMMA_SHAPES
from ptxtile.ir.tile_ops import Gemm, GemmPath

WARP, WARPGROUP = 32, 128
WGMMA_ROWS, MMA_ROWS, COLUMNS = 64, 16, 8


@dataclass(frozen=True, slots=True)
class Grid:
    """Groups of threads (warps or warpgroups) over the tile: ``rows`` × ``columns`` of them, rows slowest."""

    rows: int
    columns: int


def unit_rows(path: GemmPath) -> int:
    """Rows of one instruction's tile."""
    return WGMMA_ROWS if path is GemmPath.WGMMA else MMA_ROWS


def grid_of(gemm: Gemm, threads: int, path: GemmPath) -> Grid | None:
    """The division of the tile that the policy prefers among those that fit; None if none does.

    square: the tile of a group as square as possible, which reads the fewest operand bytes.
    """
    group = WARPGROUP if path is GemmPath.WGMMA else WARP
    if threads % group:
        return None
    count = threads // group
    fitting = [
        Grid(rows, count // rows)
        for rows in range(1, count + 1)
        if count % rows == 0 and gemm.m % (unit_rows(path) * rows) == 0 and gemm.n % (COLUMNS * (count // rows)) == 0
    ]
    if gemm.policy == "full_row":
        return max(fitting, key=lambda grid: grid.rows, default=None)
    if gemm.policy == "full_col":
        return max(fitting, key=lambda grid: grid.columns, default=None)
    return min(fitting, key=lambda grid: gemm.m // grid.rows + gemm.n // grid.columns, default=None)


def instruction_columns(gemm: Gemm, grid: Grid, dtypes: tuple[str, str, str]) -> int | None:
    """The n of the wgmma instructions that cover a warpgroup's columns: the widest that divides them."""
    _, possible = WGMMA_SHAPES[dtypes]
    columns = gemm.n // grid.columns
    return max((n for n in possible if columns % n == 0), default=None)


def mma_depth(gemm: Gemm, dtypes: tuple[str, str, str]) -> int | None:
    """The k of the m16n8 instruction: the largest that divides K."""
    return max((k for m, n, k in MMA_SHAPES[dtypes] if (m, n) == (16, 8) and gemm.k % k == 0), default=None)


def accumulator_fragment(gemm: Gemm, threads: int, path: GemmPath) -> Fragment:
    """M×N over all threads: row 16·warp + lane // 4 (+ 8) and column pair 2·(lane % 4) of each 8 columns.

    Values count (row tile, 8 columns, row half, column of the pair), the last one fastest, as the instructions do.
    """
    grid = grid_of(gemm, threads, path)
    assert grid is not None
    n, unit = gemm.n, unit_rows(path)
    columns = n // grid.columns
    if path is GemmPath.WGMMA:
        thread = Layout((grid.rows, grid.columns, 4, 8, 4), (unit * n, columns, 16 * n, n, 2))
    else:
        thread = Layout((grid.rows, grid.columns, 8, 4), (unit * n, columns, n, 2))
    tiles = gemm.m // (unit * grid.rows)
    value = Layout((tiles, columns // COLUMNS, 2, 2), (unit * grid.rows * n, COLUMNS, 8 * n, 1))
    return Fragment((gemm.m, gemm.n), (gemm.m, gemm.n), thread, value)


def dtype_names(gemm: Gemm) -> tuple[str, str, str]:
    return gemm.a.buffer.dtype.name, gemm.b.buffer.dtype.name, gemm.accumulator.buffer.dtype.name



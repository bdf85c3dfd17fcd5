"""How the warps of a CTA share a gemm's tile, and where its accumulator and its operands lie in their registers.

The ownership of elements is the hardware's: PTX ISA 9.7.14.5 and 9.7.15.5.1.1, the figures of the mma.sync and wgmma
fragments. With g = lane // 4 and q = lane % 4: an accumulator has the pairs 2·q, 2·q + 1 of each 8 columns, an operand
the p neighbours along K from p·q on of each 4·p, where p elements fill a 32-bit register (1 of 64 bits); both in the
rows g and g + 8 of each 16 rows, B in the column g of each 8.
"""

from __future__ import annotations

from ptxtile.ir.buffers import Scope
from ptxtile.ir.layouts import Fragment, Layout
from ptxtile.ir.tensor_core_ops import MMA_SHAPES, WGMMA_SHAPES
from ptxtile.ir.tile_ops import Gemm, GemmPath, Region
from ptxtile.lower.shared_columns import descriptor_span
from ptxtile.records import record

WARP, WARPGROUP = 32, 128
BESIDE_ACCUMULATOR = 32
"""Registers that the launch must give a thread beside the accumulator of one wgmma, whatever setmaxnreg asks for later:
ptxas 13.0 wants 26 (C7602), and 4 more for A in registers; launches count in eights."""
WGMMA_ROWS, MMA_ROWS, COLUMNS = 64, 16, 8


@record
class Grid:
    """Groups of threads (warps or warpgroups) over the tile: ``rows`` × ``columns`` of them, rows slowest."""

    rows: int
    columns: int


def unit_rows(path: GemmPath) -> int:
    """Rows of one instruction's tile."""
    return WGMMA_ROWS if path is GemmPath.WGMMA else MMA_ROWS


def in_registers(operand: Region) -> bool:
    return operand.buffer.scope is not Scope.SHARED


def dtype_names(gemm: Gemm) -> tuple[str, str, str]:
    """The instruction's element types of A, B and the accumulator: float32 is multiplied as tfloat32."""
    names = gemm.a.buffer.dtype.name, gemm.b.buffer.dtype.name
    a, b = ("tfloat32" if name == "float32" else name for name in names)
    return a, b, gemm.accumulator.buffer.dtype.name


# -- the grid ----------------------------------------
def grid_of(gemm: Gemm, threads: int, path: GemmPath) -> Grid | None:
    """The division of the tile that the policy prefers among those that fit; None if none does.

    square: the one whose instructions read the fewest operand rows from shared memory; wider instructions on a tie.
    With an operand in registers, the one with the fewest copies of it in other groups.
    """
    group = WARPGROUP if path is GemmPath.WGMMA else WARP
    if threads % group:
        return None
    count = threads // group
    fitting = [
        grid
        for grid in (Grid(rows, count // rows) for rows in range(1, count + 1) if count % rows == 0)
        if gemm.m % (unit_rows(path) * grid.rows) == 0 and gemm.n % (COLUMNS * grid.columns) == 0
        if path is not GemmPath.WGMMA or instruction_columns(gemm, grid, dtype_names(gemm)) is not None
    ]
    if gemm.policy == "full_row":
        return max(fitting, key=lambda grid: grid.rows, default=None)
    if gemm.policy == "full_col":
        return max(fitting, key=lambda grid: grid.columns, default=None)
    return min(fitting, key=lambda grid: _cost(gemm, grid, path), default=None)


def _cost(gemm: Gemm, grid: Grid, path: GemmPath) -> tuple[int, int, int]:
    copies = (grid.columns if in_registers(gemm.a) else 0) + (grid.rows if in_registers(gemm.b) else 0)
    return copies, _operand_rows(gemm, grid, path), grid.columns


def _operand_rows(gemm: Gemm, grid: Grid, path: GemmPath) -> int:
    """Rows of A and of Bᵀ that one group reads in a k step.

    A wgmma reads its 64 rows of A and its n rows of B by itself; a warp keeps the fragments of mma.sync for all of its
    instructions.
    """
    rows, columns = gemm.m // grid.rows, gemm.n // grid.columns
    if path is not GemmPath.WGMMA:
        return rows + columns
    width = instruction_columns(gemm, grid, dtype_names(gemm))
    assert width is not None, "grids without instructions that cover them do not fit"
    return (rows // WGMMA_ROWS) * (columns // width) * (WGMMA_ROWS + width)


def instruction_columns(
    gemm: Gemm, grid: Grid, dtypes: tuple[str, str, str], registers: int | None = None
) -> int | None:
    """The n of the wgmma instructions that cover a warpgroup's columns: the widest that divides them, and that starts
    at a span of the swizzle where B is N-major. ``registers``: what the launch gives each thread, which must hold one
    instruction (:data:`BESIDE_ACCUMULATOR`)."""
    _, possible = WGMMA_SHAPES[dtypes]
    columns, unit = gemm.n // grid.columns, 1
    span = None if gemm.transpose_b or in_registers(gemm.b) else descriptor_span(gemm.b.buffer)
    if span is not None:
        unit = span * 8 // gemm.b.buffer.dtype.bits
    fitting = [n for n in possible if columns % n == 0 and (n == columns or n % unit == 0)]
    bits = gemm.accumulator.buffer.dtype.bits
    held = [n for n in fitting if registers is None or accumulator_registers(n, bits) + BESIDE_ACCUMULATOR <= registers]
    return max(held, default=min(fitting, default=None))


def accumulator_registers(n: int, bits: int) -> int:
    """32-bit registers of a thread for the 64×n accumulator of one wgmma, of elements of ``bits`` bits."""
    return WGMMA_ROWS * n * bits // (32 * WARPGROUP)


def mma_depth(gemm: Gemm, dtypes: tuple[str, str, str]) -> int | None:
    """The k of the m16n8 instruction: the largest that divides K."""
    return max((k for m, n, k in MMA_SHAPES[dtypes] if (m, n) == (16, 8) and gemm.k % k == 0), default=None)


# -- fragments ----------------------------------------
def accumulator_fragment(gemm: Gemm, threads: int, path: GemmPath) -> Fragment:
    """M×N over all threads.

    Values count (row tile, 8 columns, row half, column of the pair), the last one fastest, as the instructions do.
    """
    grid = _fitting_grid(gemm, threads, path)
    columns = gemm.n // grid.columns
    return _row_fragment(gemm, grid, path, (gemm.n, 1), columns, columns, 2)


def operand_fragment(gemm: Gemm, threads: int, path: GemmPath) -> Fragment:
    """A in registers: M×K (K×M with ``transpose_a``) over all threads, with a copy in each group along N.

    Values count (row tile, k step, register, element of the register), so that the operand of row tile i and k step s
    is one run of m·k/(threads of a group) elements, for the instruction's m and k.
    """
    grid = _fitting_grid(gemm, threads, path)
    strides = (1, gemm.m) if gemm.transpose_a else (gemm.k, 1)
    return _row_fragment(gemm, grid, path, strides, gemm.k, 0, _packed(gemm.a))


def operand_b_fragment(gemm: Gemm, threads: int) -> Fragment:
    """B in registers, for mma.sync: K×N (N×K with ``transpose_b``) over all threads, with a copy in each group along M.

    Values count (column tile, k step, register, element of the register).
    """
    grid, packed = _fitting_grid(gemm, threads, GemmPath.MMA), _packed(gemm.b)
    shape, (k, n) = ((gemm.n, gemm.k), (1, gemm.k)) if gemm.transpose_b else ((gemm.k, gemm.n), (gemm.n, 1))
    columns = gemm.n // grid.columns
    thread = Layout((grid.rows, grid.columns, 8, 4), (0, columns * n, n, packed * k))
    value = Layout((columns // COLUMNS, gemm.k // (4 * packed), packed), (COLUMNS * n, 4 * packed * k, k))
    return Fragment(shape, shape, thread.coalesced(), value.coalesced())


def _row_fragment(
    gemm: Gemm, grid: Grid, path: GemmPath, strides: tuple[int, int], columns: int, group_step: int, packed: int
) -> Fragment:
    """A tile with the gemm's rows.

    ``strides``: of a row and of a column in the tile. ``columns``: how many a group holds, ``packed`` of them next to
    each other in a register; ``group_step``: columns from one group to the next, 0 where all hold the same.
    """
    (row, column), unit = strides, unit_rows(path)
    all_columns = columns * grid.columns if group_step else columns
    shape = (all_columns, gemm.m) if row == 1 else (gemm.m, all_columns)
    warps = 4 if path is GemmPath.WGMMA else 1
    thread = Layout(
        (grid.rows, grid.columns, warps, 8, 4),
        (unit * row, group_step * column, MMA_ROWS * row, row, packed * column),
    )
    value = Layout(
        (gemm.m // (unit * grid.rows), columns // (4 * packed), 2, packed),
        (unit * grid.rows * row, 4 * packed * column, 8 * row, column),
    )
    return Fragment(shape, shape, thread.coalesced(), value.coalesced())


def _packed(operand: Region) -> int:
    """Elements in a 32-bit register; a 64-bit one is a register of its own."""
    return max(1, 32 // operand.buffer.dtype.bits)


def _fitting_grid(gemm: Gemm, threads: int, path: GemmPath) -> Grid:
    grid = grid_of(gemm, threads, path)
    assert grid is not None, "select_gemm_paths chose a path that fits"
    return grid

"""Gemms on the mma.sync path become fragment loads and warp-wide multiplications.

Input: thread stage, before loops are vectorised. Output: thread stage without Gemm of path MMA. Each warp keeps the
operand fragments of one k step in registers; a thread's elements come from shared memory by the manual's ownership (see
:class:`~ptxtile.ir.tensor_core_ops.MmaSync`), with the runs that one 32-bit register holds as vectorised loops.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Expr, Var, constant, load
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import map_children
from ptxtile.ir.statements import Allocate, For, LoopKind, Role, Statement, Store, seq
from ptxtile.ir.tensor_core_ops import MmaSync
from ptxtile.ir.tile_ops import Gemm, GemmPath, Region
from ptxtile.ir.types import int32
from ptxtile.lower.expand_copies import matrix_indices
from ptxtile.lower.gemm_geometry import COLUMNS, MMA_ROWS, WARP, Grid, dtype_names, grid_of, mma_depth
from ptxtile.lower.options import Options
from ptxtile.target import Target


def run(program: Program, target: Target, options: Options) -> Program:
    names = NameSupply(program)
    kernels = []
    for kernel in program.kernels:
        body = _Lowering(kernel, names).visit(kernel.body)
        kernels.append(kernel if body is kernel.body else replace(kernel, body=body))
    return replace(program, kernels=tuple(kernels))


class _Lowering:
    def __init__(self, kernel: Kernel, names: NameSupply) -> None:
        self.thread, self.names = kernel.thread, names
        self.group = (0, kernel.threads)

    def visit(self, node: Any) -> Any:
        if not isinstance(node, Statement):
            return node
        if isinstance(node, Role):
            outer, self.group = self.group, (node.first_thread, node.threads)
            node = map_children(node, self.visit)
            self.group = outer
            return node
        if isinstance(node, Gemm) and node.path is GemmPath.MMA:
            first, threads = self.group
            grid = grid_of(node, threads, GemmPath.MMA)
            assert grid is not None, "select_gemm_paths chose a path that fits"
            thread = self.thread - first if first else self.thread
            return _WarpGemm(node, grid, thread, self.names).lowered()
        return map_children(node, self.visit)


class _WarpGemm:
    def __init__(self, gemm: Gemm, grid: Grid, thread: Expr, names: NameSupply) -> None:
        self.gemm, self.grid, self.names = gemm, grid, names
        depth = mma_depth(gemm, dtype_names(gemm))
        assert depth is not None
        self.depth = depth
        self.row_tiles = gemm.m // (MMA_ROWS * grid.rows)
        self.column_tiles = gemm.n // grid.columns // COLUMNS
        warp, lane = thread // WARP, thread % WARP
        self.g, self.q = lane // 4, lane % 4
        self.first_row = warp // grid.columns * MMA_ROWS
        self.first_column = warp % grid.columns * (gemm.n // grid.columns)
        self.a_elements, self.b_elements = MMA_ROWS * depth // WARP, COLUMNS * depth // WARP

    def lowered(self) -> Statement:
        gemm = self.gemm
        a = self._registers(gemm.a.buffer, self.row_tiles * self.a_elements)
        b = self._registers(gemm.b.buffer, self.column_tiles * self.b_elements)
        step, i, j = (Var(self.names.fresh(base), int32) for base in ("k", "i", "j"))
        k0 = step * self.depth
        body = seq(
            self._fragment(a, gemm.a, self.row_tiles, self.a_elements, self._a_position, k0),
            self._fragment(b, gemm.b, self.column_tiles, self.b_elements, self._b_position, k0),
            self._loop(i, self.row_tiles, self._loop(j, self.column_tiles, self._multiply(a, b, i, j))),
        )
        return seq(Allocate(a), Allocate(b), self._clear(), self._loop(step, gemm.k // self.depth, body))

    def _registers(self, operand: Buffer, count: int) -> Buffer:
        return allocate(self.names.fresh(f"{operand.name}_fragment"), Scope.REGISTER, operand.dtype, (count,))

    def _loop(self, var: Var, count: int, body: Statement, kind: LoopKind = LoopKind.UNROLLED) -> Statement:
        return For(var, constant(0), constant(count), 1, kind, body, location=self.gemm.location)

    def _clear(self) -> Statement | None:
        if not self.gemm.clear:
            return None
        registers = self.gemm.accumulator.buffer
        v = Var(self.names.fresh("v"), int32)
        store = Store(registers, (v,), constant(0, registers.dtype), location=self.gemm.location)
        return self._loop(v, registers.elements, store)

    def _multiply(self, a: Buffer, b: Buffer, i: Var, j: Var) -> Statement:
        gemm = self.gemm
        return MmaSync(
            accumulator=gemm.accumulator.buffer,
            accumulator_offset=(i * self.column_tiles + j) * 4,
            a=a,
            a_offset=i * self.a_elements,
            b=b,
            b_offset=j * self.b_elements,
            m=MMA_ROWS,
            n=COLUMNS,
            k=self.depth,
            dtype_a=a.dtype,
            dtype_b=b.dtype,
            location=gemm.location,
        )

    def _fragment(
        self, registers: Buffer, region: Region, tiles: int, elements: int, position: Any, k0: Expr
    ) -> Statement:
        """Loads a thread's elements of ``tiles`` fragments, 32-bit register by register."""
        packed = max(32 // region.buffer.dtype.bits, 1)
        tile, r, v = (Var(self.names.fresh(base), int32) for base in ("t", "r", "v"))
        value = load(region.buffer, position(tile, r, v, packed, k0))
        store = Store(registers, (tile * elements + r * packed + v,), value, location=self.gemm.location)
        inner = self._loop(v, packed, store, LoopKind.VECTORIZED if packed > 1 else LoopKind.UNROLLED)
        return self._loop(tile, tiles, self._loop(r, elements // packed, inner))

    def _a_position(self, tile: Var, r: Var, v: Var, packed: int, k0: Expr) -> tuple[Expr, ...]:
        row = self.first_row + tile * (MMA_ROWS * self.grid.rows) + self.g + r % 2 * 8
        column = k0 + r // 2 * (4 * packed) + self.q * packed + v
        return matrix_indices(self.gemm.a, *((column, row) if self.gemm.transpose_a else (row, column)))

    def _b_position(self, tile: Var, r: Var, v: Var, packed: int, k0: Expr) -> tuple[Expr, ...]:
        row = k0 + r * (4 * packed) + self.q * packed + v
        column = self.first_column + tile * COLUMNS + self.g
        return matrix_indices(self.gemm.b, *((column, row) if self.gemm.transpose_b else (row, column)))

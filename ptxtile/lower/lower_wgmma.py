"""Gemms on the wgmma path become asynchronous warpgroup multiplications on shared-memory descriptors.

Input: thread stage, shared layouts chosen. Output: thread stage without tile-level Gemm. A gemm is one group: fence,
the instructions of all row tiles and k steps, commit, wait. The descriptors follow from the operands' layouts: columns
of boxes as wide as the swizzle, K-major or (16-bit types) M- or N-major.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, SharedAddress, Var, as_expr, cast, constant
from ptxtile.ir.layouts import SharedLayout
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.statements import Let, Role, Statement, seq
from ptxtile.ir.tensor_core_ops import (
    WGMMA_SHAPES,
    Wgmma,
    WgmmaCommitGroup,
    WgmmaFence,
    WgmmaWaitGroup,
    advanced_descriptor,
    matrix_descriptor,
)
from ptxtile.ir.tile_ops import Gemm, GemmPath, Region
from ptxtile.ir.types import bool_, int32, uint64
from ptxtile.lower.gemm_geometry import WARPGROUP, WGMMA_ROWS, dtype_names, grid_of, instruction_columns
from ptxtile.lower.options import Options
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.simplify import simplify_expression
from ptxtile.target import Target


def run(program: Program, target: Target, options: Options) -> Program:
    names = NameSupply(program)
    kernels = []
    for kernel in program.kernels:
        body = _Lowering(program, kernel, names).visit(kernel.body)
        kernels.append(kernel if body is kernel.body else replace(kernel, body=body))
    return replace(program, kernels=tuple(kernels))


class _Lowering(ScopedRewriter):
    def __init__(self, program: Program, kernel: Kernel, names: NameSupply) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.kernel, self.names = kernel, names
        self.group = (0, kernel.threads)

    def visit(self, node: Any) -> Any:
        if isinstance(node, Role):
            outer, self.group = self.group, (node.first_thread, node.threads)
            node = super().visit(node)
            self.group = outer
            return node
        if isinstance(node, Gemm) and node.path is GemmPath.WGMMA:
            return self._gemm(node)
        return super().visit(node)

    def _gemm(self, gemm: Gemm) -> Statement:
        first, threads = self.group
        grid = grid_of(gemm, threads, GemmPath.WGMMA)
        dtypes = dtype_names(gemm)
        width = instruction_columns(gemm, grid, dtypes) if grid else None
        assert grid is not None and width is not None, "select_gemm_paths chose a path that fits"
        thread: Expr = self.kernel.thread - first if first else self.kernel.thread
        warpgroup = thread // WARPGROUP
        row = warpgroup // grid.columns * WGMMA_ROWS
        column = warpgroup % grid.columns * (gemm.n // grid.columns)
        lets: list[Statement] = []
        steps: list[Statement] = []
        for tile in range(gemm.m // (WGMMA_ROWS * grid.rows)):
            a = self._descriptor(gemm.a, row + tile * WGMMA_ROWS * grid.rows, gemm.transpose_a, lets)
            for part in range(gemm.n // grid.columns // width):
                b = self._descriptor(gemm.b, column + part * width, not gemm.transpose_b, lets)
                offset = (tile * (gemm.n // grid.columns) + part * width) // 2
                steps += self._steps(gemm, a, b, width, offset, WGMMA_SHAPES[dtypes][0])
        accumulator = gemm.accumulator.buffer
        wait = WgmmaWaitGroup(gemm.pending, (accumulator,), (gemm.a.buffer, gemm.b.buffer), location=gemm.location)
        commit = WgmmaCommitGroup(location=gemm.location)
        return seq(*lets, WgmmaFence(location=gemm.location), *steps, commit, wait)

    def _steps(
        self, gemm: Gemm, a: Var, b: Var, width: int, offset: int, depth: int
    ) -> list[Statement]:
        """The instructions along K for one 64×width tile."""
        result: list[Statement] = []
        for k in range(0, gemm.k, depth):
            result.append(
                Wgmma(
                    accumulator=gemm.accumulator.buffer,
                    accumulator_offset=constant(offset),
                    n=width,
                    k=depth,
                    dtype_a=gemm.a.buffer.dtype,
                    dtype_b=gemm.b.buffer.dtype,
                    shared_b=gemm.b.buffer,
                    descriptor_b=advanced_descriptor(b, _step_bytes(gemm.b, k, not gemm.transpose_b)),
                    shared_a=gemm.a.buffer,
                    descriptor_a=advanced_descriptor(a, _step_bytes(gemm.a, k, gemm.transpose_a)),
                    transpose_a=gemm.transpose_a,
                    transpose_b=not gemm.transpose_b,
                    accumulate=constant(not (gemm.clear and k == 0), bool_),
                    location=gemm.location,
                )
            )
        return result

    def _descriptor(self, region: Region, first: Expr, mn_major: bool, lets: list[Statement]) -> Var:
        """Binds the descriptor of the operand's tile that starts at row (or column) ``first`` of M or N and at k =
        0."""
        buffer, layout = region.buffer, _layout(region.buffer)
        *outer, row, column = (cast(as_expr(start), int32) for start in region.starts)
        where = (*outer, row, column + first) if mn_major else (*outer, row + first, column)
        offset = simplify_expression(as_expr(layout.layout(where)), self.analyzer)
        span = layout.span
        leading = _span_stride(buffer, layout) if mn_major else 16
        value = matrix_descriptor(SharedAddress(buffer, offset), leading, 8 * span, span)
        var = Var(self.names.fresh(f"{buffer.name}_descriptor"), uint64)
        lets.append(Let(var, value))
        return var


def _layout(buffer: Buffer) -> SharedLayout:
    assert isinstance(buffer.layout, SharedLayout), "choose_shared_layouts arranges the operands of wgmma"
    return buffer.layout


def _span_stride(buffer: Buffer, layout: SharedLayout) -> int:
    """Bytes from one span of the swizzle to the next along the last dimension."""
    return layout.layout.stride[-1][0] * buffer.dtype.itemsize


def _step_bytes(region: Region, k: int, mn_major: bool) -> int:
    """Bytes from k = 0 to ``k`` in the operand's layout, without the swizzle (the hardware applies it)."""
    layout = _layout(region.buffer)
    rank = region.buffer.rank
    where = [0] * rank
    where[-2 if mn_major else -1] = k
    return int(layout.layout(tuple(where))) * region.buffer.dtype.itemsize

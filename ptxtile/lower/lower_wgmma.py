"""Gemms on the wgmma path become asynchronous warpgroup multiplications on shared-memory descriptors.

Input: thread stage, shared layouts chosen. Output: thread stage without tile-level Gemm. A gemm is one group: fence,
the instructions of all row tiles and k steps, commit, and a wait, unless ``pending`` says that it stands elsewhere;
several are one group where ``commits`` says so. The descriptors follow from the operands' layouts: columns of boxes as
wide as the swizzle, K-major or (16-bit types) M- or N-major. A may lie in registers, which then go into the wait too,
so that they live until the multiplications have read them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr, SharedAddress, Var, as_expr, cast, constant, logical_not
from ptxtile.ir.layouts import SharedLayout
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.statements import Let, Role, Seq, Statement, seq
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
from ptxtile.ir.types import bool_, int32, parse_dtype, uint64
from ptxtile.lower.gemm_geometry import (
    WARPGROUP,
    WGMMA_ROWS,
    dtype_names,
    grid_of,
    in_registers,
    instruction_columns,
)
from ptxtile.lower.gemm_runs import NAMES
from ptxtile.lower.options import Options
from ptxtile.lower.plan_registers import launch_registers
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


class _Lowering(ScopedRewriter, kinds=(Gemm,)):
    def __init__(self, program: Program, kernel: Kernel, names: NameSupply) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.kernel, self.names = kernel, names
        self.group = (0, kernel.threads)
        self.continued: set[int] = set()
        self.going_on: set[int] = set()

    def visit(self, node: Any) -> Any:
        if isinstance(node, Role):
            outer, self.group = self.group, (node.first_thread, node.threads)
            node = super().visit(node)
            self.group = outer
            return node
        if isinstance(node, Gemm) and node.path is GemmPath.WGMMA:
            return self._gemm(node)
        if isinstance(node, Seq):
            self._find_groups(node.statements)
        return super().visit(node)

    def _find_groups(self, statements: tuple[Statement, ...]) -> None:
        """Notes, by identity, the gemms that come second or later in their group, and those with which it goes on."""
        before: Gemm | None = None
        for statement in statements:
            if isinstance(statement, Gemm) and statement.path is GemmPath.WGMMA:
                if before is not None and not before.commits and before.pending is None:
                    self.continued.add(id(statement))
                    self.going_on.add(id(before))
                before = statement
            elif not isinstance(statement, NAMES):
                before = None

    def _gemm(self, gemm: Gemm) -> Statement:
        first, threads = self.group
        grid = grid_of(gemm, threads, GemmPath.WGMMA)
        dtypes = dtype_names(gemm)
        registers = launch_registers(self.kernel.threads, max(self.kernel.min_blocks, 1))
        width = instruction_columns(gemm, grid, dtypes, registers) if grid else None
        assert grid is not None and width is not None, "select_gemm_paths chose a path that fits"
        thread: Expr = self.kernel.thread - first if first else self.kernel.thread
        warpgroup = thread // WARPGROUP
        row = warpgroup // grid.columns * WGMMA_ROWS
        column = warpgroup % grid.columns * (gemm.n // grid.columns)
        lets: list[Statement] = []
        steps: list[Statement] = []
        depth, _ = WGMMA_SHAPES[dtypes]
        for tile in range(gemm.m // (WGMMA_ROWS * grid.rows)):
            if in_registers(gemm.a):
                a: Var | int = tile * WGMMA_ROWS * gemm.k // WARPGROUP
            else:
                a = self._descriptor(gemm.a, row + tile * WGMMA_ROWS * grid.rows, gemm.transpose_a, lets)
            for part in range(gemm.n // grid.columns // width):
                b = self._descriptor(gemm.b, column + part * width, not gemm.transpose_b, lets)
                offset = (tile * (gemm.n // grid.columns) + part * width) // 2
                steps += [self._step(gemm, a, b, width, offset, k, depth) for k in range(0, gemm.k, depth)]
        where = gemm.location
        fence = None if id(gemm) in self.continued else WgmmaFence(location=where)
        commit = None if id(gemm) in self.going_on else WgmmaCommitGroup(location=where)
        group = seq(*lets, fence, *steps, commit)
        if gemm.pending is None:
            return group
        read = [operand.buffer for operand in (gemm.a, gemm.b)]
        shared = tuple(buffer for buffer in read if buffer.scope is Scope.SHARED)
        fragments = tuple(buffer for buffer in read if buffer.scope is not Scope.SHARED)
        wait = WgmmaWaitGroup(gemm.pending, (gemm.accumulator.buffer,), shared, fragments, location=where)
        return seq(group, wait)

    def _step(self, gemm: Gemm, a: Var | int, b: Var, width: int, offset: int, k: int, depth: int) -> Wgmma:
        """The instruction from column ``k`` on for one 64×width tile. ``a``: a descriptor, or the first element in
        registers."""
        dtype_a, dtype_b, _ = (parse_dtype(name) for name in dtype_names(gemm))
        operand_a: dict[str, Any]
        if isinstance(a, int):
            operand_a = {"a": gemm.a.buffer, "a_offset": constant(a + WGMMA_ROWS * k // WARPGROUP)}
        else:
            descriptor = advanced_descriptor(a, _step_bytes(gemm.a, k, gemm.transpose_a))
            operand_a = {"shared_a": gemm.a.buffer, "descriptor_a": descriptor, "transpose_a": gemm.transpose_a}
        return Wgmma(
            accumulator=gemm.accumulator.buffer,
            accumulator_offset=constant(offset),
            n=width,
            k=depth,
            dtype_a=dtype_a,
            dtype_b=dtype_b,
            shared_b=gemm.b.buffer,
            descriptor_b=advanced_descriptor(b, _step_bytes(gemm.b, k, not gemm.transpose_b)),
            transpose_b=not gemm.transpose_b,
            accumulate=_accumulates(gemm) if k == 0 else constant(True, bool_),
            location=gemm.location,
            **operand_a,
        )

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


def _accumulates(gemm: Gemm) -> Expr:
    """Whether the first instruction adds to the accumulator that it finds."""
    return logical_not(gemm.clear_if) if gemm.clear_if is not None else constant(not gemm.clear, bool_)


def _layout(buffer: Buffer) -> SharedLayout:
    assert isinstance(buffer.layout, SharedLayout), "choose_shared_layouts arranges the operands of wgmma"
    return buffer.layout


def _span_stride(buffer: Buffer, layout: SharedLayout) -> int:
    """Bytes from one span of the swizzle to the next along the last dimension; of a single one, the span."""
    columns = layout.span // buffer.dtype.itemsize
    if buffer.static_shape[-1] == columns:
        return layout.span
    return int(layout.layout((*[0] * (buffer.rank - 1), columns))) * buffer.dtype.itemsize


def _step_bytes(region: Region, k: int, mn_major: bool) -> int:
    """Bytes from k = 0 to ``k`` in the operand's layout, without the swizzle (the hardware applies it)."""
    layout = _layout(region.buffer)
    rank = region.buffer.rank
    where = [0] * rank
    where[-2 if mn_major else -1] = k
    return int(layout.layout(tuple(where))) * region.buffer.dtype.itemsize

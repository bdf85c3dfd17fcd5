"""Copies on the vector path, fills and gemms without tensor cores become parallel loops over their elements.

A copy from or to a thread's own array, and a fill of one, become loops that every thread runs for itself.

Input: async stage. Output: async stage whose only tile operations are ParallelFor, TmaCopy, Copy with path TMA_STORE
and Gemm on tensor cores. The loop's layout, vector width and guards are the business of later passes, the same as for a
user's T.Parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import Expr, Var, as_expr, cast, constant, constant_value, load
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import Rewriter
from ptxtile.ir.statements import For, If, LoopKind, ParallelFor, Statement, Store, seq
from ptxtile.ir.tile_ops import Copy, CopyPath, Fill, Gemm, GemmPath, Region
from ptxtile.ir.types import int32
from ptxtile.lower.options import Options
from ptxtile.target import Target

MOST_LANES = 64
"""Elements of a row that a thread copies with vector accesses; longer rows stay loops, as their code would be long."""


def run(program: Program, target: Target, options: Options) -> Program:
    expander = _Expander(NameSupply(program))
    kernels = tuple(replace(kernel, body=expander.visit(kernel.body)) for kernel in program.kernels)
    return replace(program, kernels=kernels)


class _Expander(Rewriter):
    def __init__(self, names: NameSupply) -> None:
        self.names = names

    def rewrite_Copy(self, copy: Copy) -> Statement:
        if copy.path is not CopyPath.VECTOR:
            return copy
        loop_vars, extents = self._domain(copy.destination)
        source = load(copy.source.buffer, region_indices(copy.source, loop_vars))
        destination = copy.destination.buffer
        value = cast(source, destination.dtype)
        body = Store(destination, region_indices(copy.destination, loop_vars), value, location=copy.location)
        if Scope.LOCAL in (copy.source.buffer.scope, destination.scope):
            return _in_every_thread(loop_vars, extents, body)
        width = () if copy.coalesced_width is None else (("coalesced_width", copy.coalesced_width),)
        return ParallelFor(loop_vars, extents, body, width, location=copy.location)

    def rewrite_Fill(self, fill: Fill) -> Statement:
        loop_vars, extents = self._domain(fill.destination)
        indices = region_indices(fill.destination, loop_vars)
        body = Store(fill.destination.buffer, indices, fill.value, location=fill.location)
        if fill.destination.buffer.scope is Scope.LOCAL:
            return _in_every_thread(loop_vars, extents, body)
        return ParallelFor(loop_vars, extents, body, location=fill.location)

    def rewrite_Gemm(self, gemm: Gemm) -> Statement:
        """The path without tensor cores: every element of the tile sums its products in order of k."""
        if gemm.path is not GemmPath.FMA:
            return gemm
        i, j, k = (Var(self.names.fresh(base), int32) for base in ("i", "j", "k"))
        c, dtype = gemm.accumulator, gemm.accumulator.buffer.dtype
        a = load(gemm.a.buffer, matrix_indices(gemm.a, *((k, i) if gemm.transpose_a else (i, k))))
        b = load(gemm.b.buffer, matrix_indices(gemm.b, *((j, k) if gemm.transpose_b else (k, j))))
        here = matrix_indices(c, i, j)
        product = cast(a, dtype) * cast(b, dtype)
        add = Store(c.buffer, here, load(c.buffer, here) + product, location=gemm.location)
        zero = Store(c.buffer, here, constant(0, dtype), location=gemm.location)
        first = If(gemm.clear_if, zero, location=gemm.location) if gemm.clear_if is not None else None
        first = zero if gemm.clear else first
        sums = For(k, constant(0), constant(gemm.k), 1, LoopKind.SERIAL, add, location=gemm.location)
        return ParallelFor((i, j), (gemm.m, gemm.n), seq(first, sums), location=gemm.location)

    def _domain(self, region: Region) -> tuple[tuple[Var, ...], tuple[int, ...]]:
        extents = region.dense_extents or (1,)
        return tuple(Var(self.names.fresh(f"c{k}"), int32) for k in range(len(extents))), extents


def _in_every_thread(loop_vars: Sequence[Var], extents: Sequence[int], body: Store) -> Statement:
    """Nested loops of each thread, the innermost one vectorized where its elements fit in registers."""
    result: Statement = body
    for position, (var, extent) in reversed(list(enumerate(zip(loop_vars, extents, strict=True)))):
        innermost = position == len(loop_vars) - 1 and extent <= MOST_LANES
        kind = LoopKind.VECTORIZED if innermost else LoopKind.SERIAL
        result = For(var, constant(0), constant(extent), 1, kind, result, location=body.location)
    return result


def region_indices(region: Region, point: Sequence[Expr]) -> tuple[Expr, ...]:
    """The element of ``region`` at a point of its dense extents: start + coordinate, or the start alone."""
    remaining = list(point)
    indices: list[Expr] = []
    for start, extent in zip(region.starts, region.extents, strict=True):
        start = as_expr(start)
        if extent == 1 and (len(remaining) == 0 or len(region.dense_extents) > 0):
            indices.append(start)
        else:
            here = remaining.pop(0)
            indices.append(here if constant_value(start) == 0 else start + cast(here, start.dtype))
    return tuple(indices)


def matrix_indices(region: Region, row: Expr, column: Expr) -> tuple[Expr, ...]:
    """The element of a matrix operand; dimensions in front of its last two select it from a stack."""
    *outer, first_row, first_column = (as_expr(start) for start in region.starts)

    def moved(start: Expr, by: Expr) -> Expr:
        return by if constant_value(start) == 0 else start + by

    return (*outer, moved(first_row, row), moved(first_column, column))

"""Copies on the vector path and fills become parallel loops over their elements.

Input: async stage. Output: async stage whose only tile operations are ParallelFor, TmaCopy and Copy with path TMA_STORE.
The loop's layout, vector width and guards are the business of later passes, the same as for a user's T.Parallel.
"""

from __future__ import annotations

from dataclasses import replace

from ptxtile.ir.expressions import Expr, Var, as_expr, cast, constant_value, load
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import Rewriter
from ptxtile.ir.statements import ParallelFor, Statement, Store
from ptxtile.ir.tile_ops import Copy, CopyPath, Fill, Region
from ptxtile.ir.types import int32
from ptxtile.lower.options import Options
from ptxtile.target import Target


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
        width = () if copy.coalesced_width is None else (("coalesced_width", copy.coalesced_width),)
        return ParallelFor(loop_vars, extents, body, width, location=copy.location)

    def rewrite_Fill(self, fill: Fill) -> Statement:
        loop_vars, extents = self._domain(fill.destination)
        indices = region_indices(fill.destination, loop_vars)
        body = Store(fill.destination.buffer, indices, fill.value, location=fill.location)
        return ParallelFor(loop_vars, extents, body, location=fill.location)

    def _domain(self, region: Region) -> tuple[tuple[Var, ...], tuple[int, ...]]:
        extents = region.dense_extents or (1,)
        return tuple(Var(self.names.fresh(f"c{k}"), int32) for k in range(len(extents))), extents


def region_indices(region: Region, loop_vars: tuple[Var, ...]) -> tuple[Expr, ...]:
    """The element of ``region`` at a point of the loop over its dense extents: start + variable, or the start alone."""
    remaining = list(loop_vars)
    indices: list[Expr] = []
    for start, extent in zip(region.starts, region.extents, strict=True):
        start = as_expr(start)
        if extent == 1 and (len(remaining) == 0 or len(region.dense_extents) > 0):
            indices.append(start)
        else:
            var = remaining.pop(0)
            indices.append(var if constant_value(start) == 0 else start + cast(var, start.dtype))
    return tuple(indices)

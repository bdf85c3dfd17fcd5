"""Indices become one element offset from the start of the storage.

Input: thread stage. Output: gpu stage: strides, view offsets, shared layouts and swizzles are arithmetic now, in 64
bits where a tensor may have an offset of 2³¹ or more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.atomic_ops import Atomic
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr, Load, as_expr, cast, constant
from ptxtile.ir.gpu_ops import TmaLoad, TmaStore
from ptxtile.ir.layouts import SharedLayout
from ptxtile.ir.mapped_layouts import MappedLayout
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import contains, copy_with, map_children
from ptxtile.ir.statements import For, LoopKind, Seq, Statement, Store, View
from ptxtile.ir.tensor_core_ops import StoreMatrix
from ptxtile.ir.tile_ops import Assume, MatrixStore
from ptxtile.ir.types import int32, int64
from ptxtile.lower.legalize import index_dtype, widen
from ptxtile.lower.options import Options
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.simplify import simplify_expression
from ptxtile.target import Target


def run(program: Program, target: Target, options: Options) -> Program:
    kernels = tuple(replace(k, body=_Flattening(program, k).visit(k.body)) for k in program.kernels)
    return replace(program, kernels=kernels, stage="gpu")


class _Flattening(ScopedRewriter, kinds=(View, Load)):
    def __init__(self, program: Program, kernel: Kernel) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)

    def visit(self, node: Any) -> Any:
        if isinstance(node, View):
            return None
        return super().visit(node)

    def expression(self, node: Expr) -> Expr:
        if not contains(node, Load):
            return node
        node = map_children(node, self.expression)
        if isinstance(node, Load):
            return Load(node.buffer, (self._offset(node.buffer, node.indices),), node.dtype)
        return node

    def rewrite_Store(self, node: Store) -> Statement:
        return copy_with(node, {"indices": (self._offset(node.buffer, node.indices),)})

    def rewrite_Assume(self, node: Assume) -> Statement:
        """What was assumed has been used."""
        return Seq(())

    def rewrite_Atomic(self, node: Atomic) -> Statement:
        return copy_with(node, {"indices": (self._offset(node.buffer, node.indices),)})

    rewrite_AtomicLoad = rewrite_AtomicStore = rewrite_Atomic

    def rewrite_For(self, node: For) -> Statement:
        """A pipelined loop that no pass has taken apart runs one iteration after the other."""
        return copy_with(node, {"kind": LoopKind.SERIAL, "options": ()}) if node.kind is LoopKind.PIPELINED else node

    def rewrite_MatrixStore(self, node: MatrixStore) -> Statement:
        offset = self._offset(node.destination, node.indices)
        return StoreMatrix(
            node.source, node.source_offset, node.destination, offset, node.count, node.transposed,
            location=node.location,
        )  # fmt: skip

    def rewrite_TmaLoad(self, node: TmaLoad) -> Statement:
        return self._simplified(node)

    def rewrite_TmaStore(self, node: TmaStore) -> Statement:
        return self._simplified(node)

    def _simplified(self, node: TmaLoad | TmaStore) -> Statement:
        coordinates = tuple(simplify_expression(c, self.analyzer) for c in node.coordinates)
        return copy_with(node, {"coordinates": coordinates, "offset": simplify_expression(node.offset, self.analyzer)})

    def _offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Expr:
        return simplify_expression(element_offset(buffer, indices, self.analyzer), self.analyzer)


def element_offset(buffer: Buffer, indices: tuple[Expr, ...], analyzer: Analyzer) -> Expr:
    """Elements from the start of the storage."""
    if buffer.scope in (Scope.REGISTER, Scope.BARRIER):
        (index,) = indices
        return index
    if not indices:
        return constant(0)
    if isinstance(buffer.layout, (SharedLayout, MappedLayout)):
        offset = as_expr(buffer.layout(tuple(cast(index, int32) for index in indices)))
        return offset if buffer.offset == 0 else offset + as_expr(buffer.offset)
    dtype = index_dtype(buffer, analyzer) if buffer.scope is Scope.GLOBAL else int32
    if any(index.dtype != int32 for index in indices):
        dtype = int64

    def sized(value: int | Expr) -> Expr:
        return widen(as_expr(value), analyzer) if dtype == int64 else cast(as_expr(value), dtype)

    offset = sized(buffer.offset)
    for index, stride in zip(indices, buffer.strides, strict=True):
        offset = offset + sized(index) * sized(stride)
    return offset

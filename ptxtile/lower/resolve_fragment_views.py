"""Views of fragments become accesses of the fragment itself.

Input: async stage, copies expanded. Output: no View of FRAGMENT storage is left. Registers have no addresses, so a
reshaped fragment is index arithmetic: the row-major number of the element, split along the fragment's own shape.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.errors import LoweringError
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr, Load, as_expr, constant
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import map_children, walk
from ptxtile.ir.statements import Allocate, Statement, Store, View
from ptxtile.lower.options import Options
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.simplify import simplify_expression
from ptxtile.target import Target


def run(program: Program, target: Target, options: Options) -> Program:
    kernels = []
    for kernel in program.kernels:
        bases = {
            node.buffer.storage.name: node.buffer
            for node in walk(kernel.body, Allocate)
            if node.buffer.scope is Scope.FRAGMENT
        }
        has_views = any(n.buffer.scope is Scope.FRAGMENT for n in walk(kernel.body, View))
        if has_views:
            kernel = replace(kernel, body=_Resolver(analyzer_for(program, kernel), bases).visit(kernel.body))
        kernels.append(kernel)
    return replace(program, kernels=tuple(kernels))


class _Resolver(ScopedRewriter):
    def __init__(self, analyzer: Any, bases: dict[str, Buffer]) -> None:
        super().__init__(analyzer)
        self.bases = bases

    def rewrite_View(self, node: View) -> Statement | None:
        if node.buffer.scope is not Scope.FRAGMENT:
            return node
        base = self.bases[node.buffer.storage.name]
        if node.buffer.dtype != base.dtype:
            raise LoweringError(
                f"{node.buffer.name} reinterprets the fragment {base.name} with another dtype",
                location=node.location,
                expected=f"a view of {base.dtype}",
                got=f"{node.buffer.dtype}",
                hint="reinterpret the elements with T.reinterpret, or keep the tile in shared memory",
            )
        return None

    def expression(self, node: Expr) -> Expr:
        node = map_children(node, self.expression)
        if isinstance(node, Load) and self._is_view(node.buffer):
            base, indices = self._resolve(node.buffer, node.indices)
            return Load(base, indices, node.dtype)
        return node

    def rewrite_Store(self, node: Store) -> Statement:
        if not self._is_view(node.buffer):
            return node
        base, indices = self._resolve(node.buffer, node.indices)
        return Store(base, indices, node.value, location=node.location)

    def _is_view(self, buffer: Buffer) -> bool:
        return buffer.scope is Scope.FRAGMENT and self.bases[buffer.storage.name].name != buffer.name

    def _resolve(self, view: Buffer, indices: tuple[Expr, ...]) -> tuple[Buffer, tuple[Expr, ...]]:
        base = self.bases[view.storage.name]
        number: Expr = as_expr(view.offset)
        for index, stride in zip(indices, view.strides, strict=True):
            number = number + index * as_expr(stride)
        coordinates: list[Expr] = []
        inner = 1
        for position, size in reversed(list(enumerate(base.static_shape))):
            part = number if inner == 1 else number // constant(inner)
            coordinates.insert(0, simplify_expression(part if position == 0 else part % size, self.analyzer))
            inner *= size
        return base, tuple(coordinates)

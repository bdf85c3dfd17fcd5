"""Chooses which parallel loops store their results to shared memory as matrices, through stmatrix, and says why.

Input: async stage with layouts. Output: the same; a chosen loop has the option ``matrices``, ``rows`` or ``columns``
(the tile is stored transposed), and its layout in the form of :class:`~ptxtile.lower.matrix_stores.MatrixForm`.
``lower_loops`` carries it out.

Such a loop runs in the layout of a tensor core's accumulator (or of a fragment computed from one), stores one element
of 16 bits in each iteration, and moves along a row of the tile with its columns or its rows. All threads of a warp take
part in an stmatrix, so it must not stand where only some threads go.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import Load
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import copy_with, has_load, walk
from ptxtile.ir.statements import For, If, ParallelFor, Role, Statement, Store, While
from ptxtile.lower.matrix_stores import MatrixForm, matrix_form
from ptxtile.lower.options import Options
from ptxtile.lower.parallel_loops import base_alignments
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.stage_fragments import layout_of
from ptxtile.lower.thread_dependence import ThreadDependence
from ptxtile.lower.vector_access import MemoryAccess, VectorWidths
from ptxtile.target import Feature, Target

WARP = 32
ELEMENT_BITS = 16
ROW_ELEMENTS = 8
"""In the 16 bytes of a matrix's row."""


def run(program: Program, target: Target, options: Options) -> Program:
    if not target.has(Feature.STMATRIX):
        return program
    kernels, why = [], []
    for kernel in program.kernels:
        chooser = _Chooser(program, kernel)
        body = chooser.visit(kernel.body)
        kernels.append(kernel if body is kernel.body else replace(kernel, body=body))
        why.extend(chooser.why)
    unchanged = all(a is b for a, b in zip(kernels, program.kernels, strict=True))
    return program if unchanged and not why else replace(program, kernels=tuple(kernels)).with_why(*why)


class _Chooser(ScopedRewriter, kinds=(ParallelFor,)):
    def __init__(self, program: Program, kernel: Kernel) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.kernel = kernel
        self.widths = VectorWidths(self.analyzer, base_alignments(program))
        self.dependence: ThreadDependence | None = None
        self.around: list[Statement] = []
        self.first_thread = 0
        self.why: list[Why] = []

    def visit(self, node: Any) -> Any:
        if isinstance(node, (For, While, If)):
            self.around.append(node)
            node = super().visit(node)
            self.around.pop()
            return node
        if isinstance(node, Role):
            outer, self.first_thread = self.first_thread, node.first_thread
            node = super().visit(node)
            self.first_thread = outer
            return node
        return self._choose(node) if isinstance(node, ParallelFor) else super().visit(node)

    def _choose(self, loop: ParallelFor) -> ParallelFor:
        store = loop.body
        if not isinstance(store, Store) or store.buffer.scope is not Scope.SHARED:
            return loop
        form = matrix_form(layout_of(loop))
        if form is None:
            return loop
        arrangement, refusal = "", f"stmatrix stores elements of 16 bits, not {store.buffer.dtype}"
        if store.buffer.dtype.bits == ELEMENT_BITS:
            arrangement, refusal = self._arrangement(loop, store, form)
        decision = f"stmatrix, {arrangement}" if arrangement else "vector stores"
        reason = refusal or f"the loop has the layout of an accumulator; {form.count} matrices at once"
        self.why.append(Why("select_matrix_stores", store.buffer.name, decision, reason, loop.location))
        if not arrangement:
            return loop
        kept = tuple(option for option in loop.options if option[0] != "layout")
        return copy_with(loop, {"options": (*kept, ("layout", form.fragment), ("matrices", arrangement))})

    def _arrangement(self, loop: ParallelFor, store: Store, form: MatrixForm) -> tuple[str, str]:
        """``rows`` or ``columns``; or empty, and the reason."""
        name = store.buffer.name
        if any(n.buffer.storage == store.buffer.storage for n in walk(store.value, Load)):
            return "", f"the loop reads {name}, and an stmatrix writes other threads' elements"
        if any(has_load(index) for index in store.indices):
            return "", "its position is read from memory"
        if self.first_thread % WARP or not self._whole_warps():
            return "", "only some threads of a warp may come here"
        access = MemoryAccess(store.buffer, store.indices, (), True)
        with self.analyzer.scope():
            for var, extent in zip(loop.vars, loop.extents, strict=True):
                self.analyzer.bind(var, 0, extent - 1)
            for arrangement, position in (("rows", len(loop.vars) - 1), ("columns", form.row)):
                if self.widths.width(access, loop.vars[position], loop.extents[position]) == ROW_ELEMENTS:
                    return arrangement, ""
        return "", f"8 elements of a row of {name} are not 16 aligned bytes"

    def _whole_warps(self) -> bool:
        """Whether the threads of a warp come here together."""
        self.dependence = self.dependence or ThreadDependence(self.kernel)
        for node in self.around:
            if isinstance(node, If):
                if not self.dependence.is_uniform(node.condition):
                    return False
            elif isinstance(node, (For, While)):
                if not self.dependence.bounds_are_uniform(node) or self.dependence.divergent_exit(node) is not None:
                    return False
        return True

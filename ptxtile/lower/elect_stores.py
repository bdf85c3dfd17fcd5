"""Scalar stores to memory outside of parallel loops are done by one thread.

Input: async stage. Output: the same. ``C[by, bx] = x`` at block level means one store, not one for each thread: with
``C[0] = C[0] + 1`` they would race. A store whose address, value or condition depends on the thread is the user's own
per-thread code and stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.expressions import Expr
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import children, contains, copy_with, map_children
from ptxtile.ir.statements import For, If, ParallelFor, Role, Statement, Store, While
from ptxtile.lower.options import Options
from ptxtile.lower.thread_dependence import ThreadDependence
from ptxtile.lower.vector_access import MEMORY
from ptxtile.target import Target


def run(program: Program, target: Target, options: Options) -> Program:
    kernels = tuple(map(_elected, program.kernels))
    return replace(program, kernels=kernels)


def _elected(kernel: Kernel) -> Kernel:
    if not _stores_to_memory(kernel.body):
        return kernel
    return replace(kernel, body=_Election(kernel).visit(kernel.body, divergent=False))


def _stores_to_memory(node: Any) -> bool:
    """Whether ``node`` stores to memory outside of parallel loops."""
    if isinstance(node, Store):
        return node.buffer.scope in MEMORY
    inside = contains(node, Store) and not isinstance(node, ParallelFor)
    return inside and any(map(_stores_to_memory, children(node)))


class _Election:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.uniformity = ThreadDependence(kernel)
        self.first_thread = 0

    def visit(self, node: Any, divergent: bool) -> Any:
        if isinstance(node, (ParallelFor, Expr)) or not isinstance(node, Statement):
            return node
        if isinstance(node, Store):
            return self._store(node, divergent)
        if isinstance(node, Role):
            outer, self.first_thread = self.first_thread, node.first_thread
            node = copy_with(node, {"body": self.visit(node.body, divergent)})
            self.first_thread = outer
            return node
        if isinstance(node, (For, While)):
            divergent |= (
                not self.uniformity.bounds_are_uniform(node) or self.uniformity.divergent_exit(node) is not None
            )
        elif isinstance(node, If):
            divergent |= not self.uniformity.is_uniform(node.condition)
        return map_children(node, lambda child: self.visit(child, divergent))

    def _store(self, node: Store, divergent: bool) -> Statement:
        if node.buffer.scope not in MEMORY or divergent:
            return node
        if not all(self.uniformity.is_uniform(part) for part in (*node.indices, node.value)):
            return node
        return If(self.kernel.thread.eq(self.first_thread), node, location=node.location)

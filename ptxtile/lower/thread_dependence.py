"""Which scalars of a tile program have the same value in every thread of a CTA.

A value is *thread-dependent* when it is computed from the thread index, from a thread-private buffer that was given
such a value (or written under a condition that is thread-dependent), or read from memory at a thread-dependent address.
Everything else (block indices, symbols, constants, loops over them, memory read at a uniform address, the result of an
atomic operation that the block does once) is uniform: all threads agree. This is the tile-level question; where a
barrier may stand in the lowered program is :mod:`ptxtile.lower.uniformity`.
"""

from __future__ import annotations

from typing import Any

from ptxtile.ir.buffers import Scope
from ptxtile.ir.effects import is_atomic, private_results
from ptxtile.ir.expressions import Expr, Load, Var
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.manual_ops import BarReduce
from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import children, walk
from ptxtile.ir.statements import Break, Continue, For, If, Let, ParallelFor, Statement, Store, While

_PRIVATE = (Scope.LOCAL, Scope.REGISTER, Scope.FRAGMENT)


class ThreadDependence:
    """The thread-dependent variables and private storages of a kernel, found by iterating to a fixpoint."""

    def __init__(self, kernel: Kernel) -> None:
        self.varying: set[str] = {kernel.thread.name}
        self._changed = True
        while self._changed:
            self._changed = False
            self._visit(kernel.body, divergent=False)

    def is_uniform(self, expression: Expr) -> bool:
        """Whether all threads that evaluate ``expression`` at the same point of the program get the same value."""
        for node in walk(expression):
            if isinstance(node, Var) and node.name in self.varying:
                return False
            if isinstance(node, Load) and node.buffer.scope in _PRIVATE and node.buffer.storage.name in self.varying:
                return False
        return True

    def bounds_are_uniform(self, loop: For | While) -> bool:
        """Whether all threads agree on the bounds or the condition of ``loop``."""
        bounds = (loop.start, loop.stop) if isinstance(loop, For) else (loop.condition,)
        return all(self.is_uniform(bound) for bound in bounds)

    def divergent_exit(self, loop: For | While) -> Statement | None:
        """A Break or Continue of ``loop`` that only some threads reach, after which they are not together any more."""
        return self._divergent_exit(loop.body, divergent=False)

    def _divergent_exit(self, node: Any, divergent: bool) -> Statement | None:
        if isinstance(node, (Break, Continue)):
            return node if divergent else None
        if isinstance(node, (For, While, ParallelFor)):
            return None  # those inside leave the inner loop
        divergent |= isinstance(node, If) and not self.is_uniform(node.condition)
        inside = (self._divergent_exit(child, divergent) for child in children(node) if not isinstance(child, Expr))
        return next((found for found in inside if found is not None), None)

    def _mark(self, name: str) -> None:
        if name not in self.varying:
            self.varying.add(name)
            self._changed = True

    def _visit(self, node: Any, divergent: bool) -> None:
        if isinstance(node, Let):
            if not self.is_uniform(node.value):
                self._mark(node.var.name)
        elif isinstance(node, Store):
            uniform = self.is_uniform(node.value) and all(self.is_uniform(index) for index in node.indices)
            if node.buffer.scope in _PRIVATE and (divergent or not uniform):
                self._mark(node.buffer.storage.name)
        elif isinstance(node, GpuOp):
            # the results of all but atomic operations, which the block does once, and of counting barriers, which
            # tell all threads the same, are each thread's own
            operands = (child for child in children(node) if isinstance(child, Expr))
            agreed = isinstance(node, BarReduce) or (is_atomic(node) and all(map(self.is_uniform, operands)))
            if divergent or not agreed:
                for buffer in private_results(node):
                    self._mark(buffer.storage.name)
        elif isinstance(node, ParallelFor):
            # Each thread runs other iterations, so the loop variables and all that is written under them vary.
            for var in node.vars:
                self._mark(var.name)
            self._visit(node.body, divergent=True)
            return
        elif isinstance(node, (For, While)):
            if isinstance(node, For) and not self.bounds_are_uniform(node):
                self._mark(node.var.name)
            divergent |= not self.bounds_are_uniform(node) or self.divergent_exit(node) is not None
        elif isinstance(node, If):
            divergent |= not self.is_uniform(node.condition)
        for child in children(node):
            if not isinstance(child, Expr):
                self._visit(child, divergent)

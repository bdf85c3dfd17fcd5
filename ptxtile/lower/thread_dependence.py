"""Which scalars of a tile program have the same value in every thread of a CTA.

A value is *thread-dependent* when it is computed from the thread index, from a thread-private buffer that was given
such a value (or written under a condition that is thread-dependent), or read from memory at a thread-dependent address.
Everything else (block indices, symbols, constants, loops over them, memory read at a uniform address, the result of an
atomic operation that the block does once, elements of tiles) is uniform: all threads agree. This is the tile-level
question; where a barrier may stand in the lowered program is :mod:`ptxtile.lower.uniformity`.
"""

from __future__ import annotations

from typing import Any

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.effects import is_atomic, private_results
from ptxtile.ir.expressions import Expr, Load, Var, as_expr
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.manual_ops import BarReduce
from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import children, contains, walk
from ptxtile.ir.statements import Allocate, Break, Continue, For, If, Let, ParallelFor, Statement, Store, While
from ptxtile.ir.tile_ops import Copy, Fill

_PRIVATE = (Scope.LOCAL, Scope.REGISTER, Scope.FRAGMENT)

AGREED, BY_ITERATION, BY_THREAD = 0, 1, 2
"""What a value may depend on, beside what all threads share: the iteration of a T.Parallel loop around it, and the
thread. A tile's element has one value, whichever thread runs the iteration that stores it."""


class ThreadDependence:
    """The thread-dependent variables and private storages of a kernel, found by iterating to a fixpoint."""

    def __init__(self, kernel: Kernel) -> None:
        self.varying: set[str] = {kernel.thread.name}
        self._of_iterations: set[str] = set()
        self._changed = True
        while self._changed:
            self._changed = False
            self._visit(kernel.body, AGREED, None)

    def is_uniform(self, expression: Expr) -> bool:
        """Whether all threads that evaluate ``expression`` at the same point of the program get the same value."""
        return self._level(expression) == AGREED

    def depends_on_thread(self, buffer: Buffer) -> bool:
        """Whether a thread-private buffer may hold something else in each thread."""
        return buffer.storage.name in self.varying

    def bounds_are_uniform(self, loop: For | While) -> bool:
        """Whether all threads agree on the bounds or the condition of ``loop``."""
        return self._level_of_bounds(loop) == AGREED

    def divergent_exit(self, loop: For | While) -> Statement | None:
        """A Break or Continue of ``loop`` that only some threads reach, after which they are not together any more."""
        return self._divergent_exit(loop.body, BY_ITERATION, divergent=False)

    def _level(self, expression: Expr) -> int:
        found = AGREED
        for node in walk(expression, Var, Load):
            if isinstance(node, Var):
                name = node.name
            elif node.buffer.scope in _PRIVATE:
                name = node.buffer.storage.name
            else:
                continue
            if name in self.varying:
                return BY_THREAD
            if name in self._of_iterations:
                found = BY_ITERATION
        return found

    def _level_of_bounds(self, loop: For | While) -> int:
        bounds = (loop.start, loop.stop) if isinstance(loop, For) else (loop.condition,)
        return max(map(self._level, bounds))

    def _level_of_exits(self, loop: For | While) -> int:
        for level in (BY_THREAD, BY_ITERATION):
            if self._divergent_exit(loop.body, level, divergent=False) is not None:
                return level
        return AGREED

    def _divergent_exit(self, node: Any, level: int, divergent: bool) -> Statement | None:
        """A Break or Continue under a condition that depends on as much as ``level``, or on more."""
        if isinstance(node, (Break, Continue)):
            return node if divergent else None
        if isinstance(node, (For, While, ParallelFor)) or not contains(node, Break, Continue):
            return None  # those inside leave the inner loop
        divergent |= isinstance(node, If) and self._level(node.condition) >= level
        inside = (self._divergent_exit(c, level, divergent) for c in children(node) if not isinstance(c, Expr))
        return next((found for found in inside if found is not None), None)

    def _mark(self, name: str, level: int) -> None:
        names = self.varying if level == BY_THREAD else self._of_iterations
        if level != AGREED and name not in names:
            names.add(name)
            self._changed = True

    def _visit(self, node: Any, divergent: int, own: set[str] | None) -> None:
        """``divergent``: what decides whether ``node`` is reached. ``own``: inside of a T.Parallel the storages that
        its iterations allocate for themselves, else None."""
        if isinstance(node, Let):
            self._mark(node.var.name, self._level(node.value))
        elif isinstance(node, Store):
            level = max(divergent, self._level(node.value), *map(self._level, node.indices), AGREED)
            self._written(node.buffer, level, own)
        elif isinstance(node, Copy):
            self._written(node.destination.buffer, max(divergent, self._level_of_copy(node)), own)
        elif isinstance(node, Fill):
            starts = (self._level(as_expr(start)) for start in node.destination.starts)
            level = max(self._level(node.value), *starts)
            self._written(node.destination.buffer, max(divergent, level), own)
        elif isinstance(node, Allocate) and own is not None:
            own.add(node.buffer.storage.name)
        elif isinstance(node, GpuOp):
            # the results of all but atomic operations, which the block does once, and of counting barriers, which
            # tell all threads the same, are each thread's own
            operands = (child for child in children(node) if isinstance(child, Expr))
            agreed = isinstance(node, BarReduce) or (is_atomic(node) and all(map(self.is_uniform, operands)))
            if divergent or not agreed or own is not None:
                for buffer in private_results(node):
                    self._mark(buffer.storage.name, BY_THREAD)
        elif isinstance(node, ParallelFor):
            for var in node.vars:
                self._mark(var.name, BY_ITERATION)
            own = set()
        elif isinstance(node, (For, While)):
            bounds = self._level_of_bounds(node)
            if isinstance(node, For):
                self._mark(node.var.name, bounds)
            divergent = max(divergent, bounds, self._level_of_exits(node))
        elif isinstance(node, If):
            divergent = max(divergent, self._level(node.condition))
        for child in children(node):
            if not isinstance(child, Expr):
                self._visit(child, divergent, own)

    def _written(self, buffer: Buffer, level: int, own: set[str] | None) -> None:
        """``level``: what the stored value, its place, and whether it is stored depend on. In a T.Parallel, elements of
        tiles differ by iteration as elements do; a thread's own arrays hold what its iterations leave in them."""
        if buffer.scope not in _PRIVATE:
            return
        name = buffer.storage.name
        if own is None:
            self._mark(name, BY_THREAD if level else AGREED)
        elif buffer.scope is Scope.FRAGMENT:
            self._mark(name, level if level == BY_THREAD else AGREED)
        else:
            self._mark(name, level if name in own else BY_THREAD)

    def _level_of_copy(self, copy: Copy) -> int:
        """Of what a copy reads: a thread's own array may hold something else in each thread."""
        source = copy.source.buffer
        starts = (as_expr(start) for region in (copy.source, copy.destination) for start in region.starts)
        own = source.scope in _PRIVATE and self.depends_on_thread(source)
        return BY_THREAD if own else max(map(self._level, starts), default=AGREED)

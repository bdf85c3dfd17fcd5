"""Collects the parallel loops of a kernel with what layout inference needs to know about each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ptxtile.errors import Location
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr, Load, constant_value
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.rewrite import children, free_variables, walk
from ptxtile.ir.statements import Break, Continue, For, ParallelFor, Role, Statement, Store, While
from ptxtile.lower.fragment_maps import Axis, FragmentAccess, is_same_in_all_iterations
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.vector_access import VectorWidths, memory_accesses


@dataclass(slots=True)
class ParallelLoop:
    """``threads``: of the group that runs the loop; ``first_thread``: its first one. ``width``: elements of the
    innermost dimension that a thread should take together."""

    loop: ParallelFor
    threads: int
    first_thread: int
    width: int
    accesses: tuple[FragmentAccess, ...]

    @property
    def iterations(self) -> int:
        return prod(self.loop.extents)


@dataclass(slots=True)
class ElementUse:
    """A fragment of which single elements are used, by ``threads`` threads. ``outside``: outside of parallel loops, so
    that every thread needs them; else a loop reads elements that only the run chooses, the same in all iterations."""

    buffer: Buffer
    threads: int
    outside: bool
    location: Location | None


@dataclass(slots=True)
class LoopCollection:
    """``elements``: fragments of which single elements are used, by name."""

    loops: list[ParallelLoop] = field(default_factory=list)
    elements: dict[str, ElementUse] = field(default_factory=dict)

    @property
    def scalars(self) -> set[str]:
        """Names of the fragments that are read or written outside of parallel loops."""
        return {name for name, use in self.elements.items() if use.outside}


def base_alignments(program: Program) -> Mapping[str, int]:
    """Base alignment in bytes of the program's tensors by name; allocations come from torch, aligned to 512."""
    return {p.name: p.alignment for p in program.parameters if isinstance(p, TensorParameter)}


def collect_loops(program: Program, kernel: Kernel) -> LoopCollection:
    collector = _Collector(program, kernel)
    collector.visit(kernel.body)
    return collector.found


class _Collector(ScopedRewriter, kinds=(ParallelFor, Load, Store)):
    def __init__(self, program: Program, kernel: Kernel) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.widths = VectorWidths(self.analyzer, base_alignments(program))
        self.found = LoopCollection()
        self.group = (0, kernel.threads)
        self.enclosing: list[For] = []
        self.location: Location | None = None

    def visit(self, node: Any) -> Any:
        if isinstance(node, Statement) and node.location is not None:
            self.location = node.location
        if isinstance(node, Role):
            outer, self.group = self.group, (node.first_thread, node.threads)
            super().visit(node)
            self.group = outer
        elif isinstance(node, For):
            self.enclosing.append(node)
            super().visit(node)
            self.enclosing.pop()
        elif isinstance(node, ParallelFor):
            self._collect(node)
        else:
            if isinstance(node, Store) and node.buffer.scope is Scope.FRAGMENT:
                self._used(node.buffer, outside=True)
            super().visit(node)
        return node

    def _used(self, buffer: Buffer, outside: bool) -> None:
        known = self.found.elements.get(buffer.name)
        if known is None or (outside and not known.outside):
            self.found.elements[buffer.name] = ElementUse(buffer, self.group[1], outside, self.location)

    def expression(self, node: Expr) -> Expr:
        for load in walk(node, Load):
            if load.buffer.scope is Scope.FRAGMENT:
                self._used(load.buffer, outside=True)
        return node

    def _collect(self, loop: ParallelFor) -> None:
        with self.analyzer.scope():
            for var, extent in zip(loop.vars, loop.extents, strict=True):
                self.analyzer.bind(var, 0, extent - 1)
            width = self._width(loop)
        accesses = tuple(fragment_accesses(loop, tuple(self.enclosing)))
        for access in accesses:
            if not access.is_write and not access.is_enumerable(loop) and is_same_in_all_iterations(access, loop):
                self._used(access.buffer, outside=False)
        first, threads = self.group
        self.found.loops.append(ParallelLoop(loop, threads, first, width, accesses))

    def _width(self, loop: ParallelFor) -> int:
        """The narrowest of the vector widths that the loop's memory accesses allow (those that allow none aside).

        With the narrowest one every access of a warp is one contiguous run; a wider one would leave gaps between the
        lanes of the accesses that cannot follow.
        """
        widths = [self.widths.width(a, loop.vars[-1], loop.extents[-1]) for a in memory_accesses(loop.body)]
        width = min((w for w in widths if w > 1), default=1)
        limit = loop.option("coalesced_width")
        while isinstance(limit, int) and width > max(limit, 1):
            width //= 2
        return width


def fragment_accesses(loop: ParallelFor, enclosing: tuple[For, ...]) -> list[FragmentAccess]:
    """Every access of a fragment in ``loop``, with the constant-bound loops around and inside that its indices use."""
    found: list[FragmentAccess] = []

    def visit(node: Any, loops: tuple[For, ...]) -> None:
        if isinstance(node, (Load, Store)) and node.buffer.scope is Scope.FRAGMENT:
            axes = _axes(node.indices, loops)
            found.append(FragmentAccess(node.buffer, node.indices, isinstance(node, Store), axes))
        inner = (*loops, node) if isinstance(node, For) else loops
        for child in children(node):
            visit(child, inner)

    visit(loop.body, enclosing)
    return found


def _axes(indices: tuple[Expr, ...], loops: tuple[For, ...]) -> tuple[Axis, ...]:
    names = set().union(*(free_variables(index) for index in indices)) if indices else set()
    axes = []
    for loop in loops:
        start, stop = constant_value(loop.start), constant_value(loop.stop)
        if loop.var.name in names and start is not None and stop is not None and not _leaves_early(loop.body):
            count = len(range(start, stop, loop.step))
            if count > 0:
                axes.append(Axis(loop.var, start, count, loop.step))
    return tuple(axes)


def _leaves_early(node: Any) -> bool:
    """Whether a Break or Continue belongs to the loop with this body, which then cannot be unrolled for a fragment."""
    if isinstance(node, (For, While, Expr)):
        return False
    return isinstance(node, (Break, Continue)) or any(_leaves_early(child) for child in children(node))

"""Walking a kernel with what is known at each point: loop ranges, bound values, conditions that hold."""

from __future__ import annotations

from typing import Any

from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.expressions import Expr, Var, logical_not
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import METHOD_NAMES, Rewriter, copy_with, kinds_in, map_children
from ptxtile.ir.statements import For, If, Let, ParallelFor, Role, Seq, Statement, While, seq
from ptxtile.ir.tile_ops import Assume

GRID_LIMITS = (2**31 - 1, 65_535, 65_535)
"""CUDA programming guide, technical specifications: maximum x, y and z dimension of a grid."""


def analyzer_for(program: Program, kernel: Kernel) -> Analyzer:
    """An analyzer that knows the program's facts and the ranges of the kernel's block and thread indices."""
    analyzer = Analyzer(program.facts)
    for var, size, limit in zip(kernel.block_vars, kernel.grid, GRID_LIMITS, strict=True):
        if isinstance(size, int):
            analyzer.bind(var, 0, max(size - 1, 0))
            continue
        analyzer.bind(var, 0, limit - 1)
        if size.dtype == var.dtype:
            analyzer.assume(var.lt(size))
    analyzer.bind(kernel.thread, 0, kernel.threads - 1)
    return analyzer


class ScopedRewriter(Rewriter, kinds=()):
    """Rewrites statements top-down with ``self.analyzer`` in step; ``rewrite_<ClassName>`` runs after the children.

    Subclasses override :meth:`expression` to rewrite expressions where they stand. ``thread``: the kernel's thread
    index, whose range is that of the role inside a role.
    """

    def __init__(self, analyzer: Analyzer, thread: Var | None = None) -> None:
        self.analyzer = analyzer
        self.thread = thread

    def expression(self, node: Expr) -> Expr:
        return node

    def visit(self, node: Any) -> Any:
        if node is None or not kinds_in(node) & self.wanted:
            return node
        if isinstance(node, Seq):
            return self._seq(node)  # of one statement, which has been rewritten, only that is left
        node = self._children(node)
        method = getattr(self, METHOD_NAMES[type(node)], None)
        return node if method is None else method(node)

    def _children(self, node: Any) -> Any:
        if isinstance(node, For):
            return self._for(node)
        if isinstance(node, ParallelFor):
            with self.analyzer.scope():
                for var, extent in zip(node.vars, node.extents, strict=True):
                    self.analyzer.bind(var, 0, extent - 1)
                return copy_with(node, {"body": self._body(node.body)})
        if isinstance(node, If):
            return self._if(node)
        if isinstance(node, Role):
            with self.analyzer.scope():
                if self.thread is not None:
                    self.analyzer.bind(self.thread, node.first_thread, node.first_thread + node.threads - 1)
                return copy_with(node, {"body": self._body(node.body)})
        if isinstance(node, While):
            with self.analyzer.scope():
                return copy_with(node, {"condition": self.expression(node.condition), "body": self._body(node.body)})
        return self._plain(node)

    def _body(self, node: Statement) -> Statement:
        """A body has to be there: where its only statement is dropped, an empty Seq is left."""
        new = self.visit(node)
        return Seq(()) if new is None else new

    def _seq(self, node: Seq) -> Statement:
        with self.analyzer.scope():
            result, changed = [], False
            for statement in node.statements:
                new = self.visit(statement)
                changed |= new is not statement
                if isinstance(new, Let):
                    self.analyzer.bind_value(new.var, new.value)
                elif isinstance(new, Assume):
                    self.analyzer.assume(new.condition)
                result.append(new)
        return seq(*result) if changed else node

    def _for(self, node: For) -> For:
        start, stop = self.expression(node.start), self.expression(node.stop)
        with self.analyzer.scope():
            self.analyzer.bind_loop(node.var, start, stop, node.step)
            return copy_with(node, {"start": start, "stop": stop, "body": self._body(node.body)})

    def _if(self, node: If) -> If:
        condition = self.expression(node.condition)
        with self.analyzer.scope():
            self.analyzer.assume(condition)
            then = self._body(node.then)
        otherwise = node.otherwise
        if otherwise is not None:
            with self.analyzer.scope():
                self.analyzer.assume(logical_not(condition))
                otherwise = self.visit(otherwise)
        return copy_with(node, {"condition": condition, "then": then, "otherwise": otherwise})

    def _plain(self, node: Any) -> Any:
        return map_children(node, self._child)

    def _child(self, child: Any) -> Any:
        if isinstance(child, Expr):
            return self.expression(child)
        if isinstance(child, Statement):
            return self.visit(child)
        return map_children(child, self._child)  # a region: its starts

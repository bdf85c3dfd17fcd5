"""Which names of a function are needed after, or carried around, each of its control-flow statements.

A backward pass over the AST: for an ``if`` the names live after it, for a loop the names live after it or at the
head of its body. Those that the statement also assigns become typed locals when its condition or bounds are traced.
Approximations are on the safe side: a name that a nested function or lambda reads is live everywhere.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from ptxtile.frontend.syntax import child_nodes, nodes_in


@dataclass
class Liveness:
    """``carried``: by control-flow statement (identity), the names it assigns that are needed outside of one pass.

    ``restored``: by ``if``, the names that its first branch assigns and its second one needs as they were before.
    ``live_out``: by loop, all names needed after it.
    """

    carried: dict[ast.AST, frozenset[str]] = field(default_factory=dict)
    restored: dict[ast.AST, frozenset[str]] = field(default_factory=dict)
    live_out: dict[ast.AST, frozenset[str]] = field(default_factory=dict)

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(name for names in self.carried.values() for name in names)


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def assigned_names(nodes: list[ast.stmt] | ast.AST) -> set[str]:
    """The names that statements bind, without those of nested functions' own scopes."""
    result: set[str] = set()
    stack: list[ast.AST] = list(nodes) if isinstance(nodes, list) else [nodes]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            result.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            result.add(node.name)
            continue
        elif isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            result |= {n.target.id for n in nodes_in(node) if isinstance(n, ast.NamedExpr)}
            continue
        stack.extend(child_nodes(node))
    return result


def read_names(node: ast.AST | None) -> set[str]:
    """The names that an expression (or statement) reads; comprehension variables are included, which is harmless."""
    if node is None:
        return set()
    return {n.id for n in nodes_in(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def analyze(function: ast.FunctionDef) -> Liveness:
    return _Analysis(function).result


class _Analysis:
    """The names of a node are collected once, though loops are looked at several times."""

    def __init__(self, function: ast.FunctionDef) -> None:
        self.result = Liveness()
        self._reads: dict[ast.AST, set[str]] = {}
        self._assigns: dict[ast.AST, set[str]] = {}
        self.always: set[str] = set()
        for node in nodes_in(function):
            if isinstance(node, _SCOPES) and node is not function:
                self.always |= read_names(node)
        self.loops: list[tuple[set[str], set[str]]] = []
        self.block(function.body, set(self.always))

    def read_names(self, node: ast.AST) -> set[str]:
        found = self._reads.get(node)
        if found is None:
            found = self._reads[node] = read_names(node)
        return found

    def assigned_names(self, nodes: list[ast.stmt] | ast.AST) -> set[str]:
        if isinstance(nodes, list):
            return set().union(*map(self.assigned_names, nodes))
        found = self._assigns.get(nodes)
        if found is None:
            found = self._assigns[nodes] = assigned_names(nodes)
        return found

    def block(self, statements: list[ast.stmt], live: set[str]) -> set[str]:
        """Live names before ``statements``, given those after."""
        for statement in reversed(statements):
            live = self.statement(statement, set(live)) | self.always
        return live

    def statement(self, node: ast.stmt, live: set[str]) -> set[str]:
        if isinstance(node, ast.If):
            self.record(node, node.body + node.orelse, live)
            otherwise = self.block(node.orelse, live)
            restored = self.assigned_names(node.body) & otherwise
            self.result.restored[node] = self.result.restored.get(node, frozenset()) | frozenset(restored)
            return self.block(node.body, live) | otherwise | self.read_names(node.test)
        if isinstance(node, (ast.For, ast.While)):
            return self.loop(node, live)
        if isinstance(node, ast.Break):
            return set(self.loops[-1][0]) if self.loops else live
        if isinstance(node, ast.Continue):
            return set(self.loops[-1][1]) if self.loops else live
        if isinstance(node, (ast.Return, ast.Raise)):
            return self.read_names(node)
        if isinstance(node, ast.With):
            live = self.block(node.body, live)
            for item in reversed(node.items):
                if item.optional_vars is not None:
                    live -= self.assigned_names(item.optional_vars)
                    live |= self.read_names(item.optional_vars)
                live |= self.read_names(item.context_expr)
            return live
        if isinstance(node, ast.Try):
            after = self.block(node.finalbody, live)
            handlers = [self.block(handler.body, after) for handler in node.handlers]
            before = self.block(node.body, self.block(node.orelse, after))
            return before.union(after, *handlers)
        if isinstance(node, ast.AugAssign):
            return live | self.read_names(node) | ({node.target.id} if isinstance(node.target, ast.Name) else set())
        if isinstance(node, ast.AnnAssign) and node.value is None:
            return live | self.read_names(node) | ({node.target.id} if isinstance(node.target, ast.Name) else set())
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            return (live - {node.name}) | self.read_names(node)
        return (live - self.assigned_names(node)) | self.read_names(node)

    def loop(self, node: ast.For | ast.While, live: set[str]) -> set[str]:
        after = self.block(node.orelse, live) | live
        targets = self.assigned_names(node.target) if isinstance(node, ast.For) else set()
        test = self.read_names(node.test) if isinstance(node, ast.While) else set()
        head = set(after) | test
        while True:  # until the live names at the head of the body no longer grow
            self.loops.append((after, head))
            body = self.block(node.body, set(head)) - targets
            self.loops.pop()
            grown = head | body
            if grown == head:
                break
            head = grown
        self.record(node, node.body, head)
        self.result.live_out[node] = frozenset(after)
        return head | (self.read_names(node.iter) if isinstance(node, ast.For) else set())

    def record(self, node: ast.AST, body: list[ast.stmt], live: set[str]) -> None:
        before = self.result.carried.get(node, frozenset())
        self.result.carried[node] = before | frozenset(self.assigned_names(body) & live)

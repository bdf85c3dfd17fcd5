"""The expressions of a rewritten function: each visitor's docstring says what its construct becomes."""

from __future__ import annotations

import ast

from ptxtile.frontend.syntax import at, frame_call, thunk

MUTATING_METHODS = frozenset((
    "append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse", "add", "update", "discard", "setdefault",
    "popitem", "appendleft", "popleft", "extendleft", "rotate",
))  # fmt: skip
"""Methods that change a list, dict, set, bytearray or deque."""
_LAZY_FUNCTIONS = frozenset({"if_then_else", "Select"})
_CONTAINER_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp)
_COMPARE = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
    ast.Is: "is_", ast.IsNot: "is_not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip


class ExpressionRewriter(ast.NodeTransformer):
    """``variables``: names that some traced construct of the function may rebind. ``lazy``: how many thunks around."""

    def __init__(self) -> None:
        self.variables: frozenset[str] = frozenset()
        self.lazy = 0

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A name that some traced construct may rebind is read through the frame: a snapshot of its variable."""
        if isinstance(node.ctx, ast.Load) and node.id in self.variables:
            return at(frame_call("read", ast.Constant(node.id), node), node)
        return node

    def _index(self, node: ast.expr) -> ast.expr:
        """A subscript's index as a value: slices become slice objects."""
        if isinstance(node, ast.Slice):
            none = ast.Constant(None)
            parts = [self.visit(p) if p is not None else none for p in (node.lower, node.upper, node.step)]
            return at(frame_call("slice_", *parts), node)
        if isinstance(node, ast.Tuple):
            return at(ast.Tuple([self._index(e) for e in node.elts], ast.Load()), node)
        return self.visit(node)

    def _lazily(self, node: ast.expr) -> ast.expr:
        self.lazy += 1
        result = self.visit(node)
        self.lazy -= 1
        return result

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """``a and b`` → ``and_(a, lambda: b)``."""
        first = self.visit(node.values[0])
        rest = [thunk(self._lazily(value)) for value in node.values[1:]]
        return at(frame_call("and_" if isinstance(node.op, ast.And) else "or_", first, *rest), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """``not a`` → ``not_(a)``."""
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return at(frame_call("not_", operand), node)
        node.operand = operand
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """``a < b < c`` → ``chain(a, (("lt", lambda: b), ("lt", lambda: c)))``; one comparison stays Python's."""
        if len(node.ops) == 1:
            return self.generic_visit(node)  # type: ignore[return-value]
        links: list[ast.expr] = []
        for position, (operator, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            side = self.visit(right) if position == 0 else self._lazily(right)
            links.append(ast.Tuple([ast.Constant(_COMPARE[type(operator)]), thunk(side)], ast.Load()))
        return at(frame_call("chain", self.visit(node.left), ast.Tuple(links, ast.Load())), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """``a if c else b`` → ``select(c, lambda: a, lambda: b)``."""
        test = self.visit(node.test)
        return at(frame_call("select", test, thunk(self._lazily(node.body)), thunk(self._lazily(node.orelse))), node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        node.body = self._lazily(node.body)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """range() takes traced bounds; if_then_else() evaluates lazily; mutating methods of containers are checked."""
        function = node.func
        called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        plain = not node.keywords and not any(isinstance(a, ast.Starred) for a in node.args)
        if isinstance(function, ast.Name) and called == "range" and plain:
            return at(frame_call("range_", self.visit(function), *[self.visit(a) for a in node.args]), node)
        if isinstance(function, ast.Name) and called in ("min", "max") and not node.keywords:
            return at(frame_call("extremum", self.visit(function), *[self.visit(a) for a in node.args]), node)
        if called in _LAZY_FUNCTIONS and plain and len(node.args) == 3:
            condition, *sides = node.args
            lazy = [thunk(self._lazily(side)) for side in sides]
            return at(frame_call("lazy_call", self.visit(function), self.visit(condition), *lazy), node)
        if isinstance(function, ast.Attribute) and called in MUTATING_METHODS:
            owner = self.visit(function.value)
            node.func = at(frame_call("mutating_method", owner, ast.Constant(called)), function)
            node.args = [self.visit(a) for a in node.args]
            node.keywords = [self.visit(k) for k in node.keywords]
            return node
        visited = self.generic_visit(node)
        if isinstance(function, ast.Name) and called in ("list", "dict", "set", "bytearray"):
            return at(frame_call("made", visited), node)  # type: ignore[arg-type]
        return visited  # type: ignore[return-value]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Containers made by displays and comprehensions are noted: changing them where they were made is fine."""
        node = super().generic_visit(node)
        if isinstance(node, _CONTAINER_DISPLAYS) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return at(frame_call("made", node), node)
        return node

"""The AST transformation of one function: each visitor's docstring says what its construct becomes.

In the rewritten source ``__ptxtile__`` is the frame (:class:`~ptxtile.frontend.frame_tracer.Frame`) of the running
invocation, and every new node has the position of the user's node that it came from.
"""

from __future__ import annotations

import ast
from typing import TypeVar

from ptxtile.errors import Location, TraceError
from ptxtile.frontend.liveness import Liveness, analyze, assigned_names

FRAME_FACTORY = "__ptxtile_frame__"
FRAME = "__ptxtile__"
MUTATING_METHODS = frozenset(
    [
        "append",
        "extend",
        "insert",
        "pop",
        "remove",
        "clear",
        "sort",
        "reverse",
        "add",
        "update",
        "discard",
        "setdefault",
        "popitem",
        "appendleft",
        "popleft",
        "extendleft",
        "rotate",
    ]
)
_LAZY_FUNCTIONS = frozenset({"if_then_else", "Select"})
_CONTAINER_DISPLAYS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.SetComp, ast.DictComp)
_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.LShift: "lshift", ast.RShift: "rshift", ast.BitOr: "or_", ast.BitXor: "xor",
    ast.BitAnd: "and_", ast.MatMult: "matmul",
}  # fmt: skip
_COMPARE = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
    ast.Is: "is_", ast.IsNot: "is_not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
Node = TypeVar("Node", bound=ast.AST)


def _at(node: Node, place: ast.AST) -> Node:
    """``node`` and its new children at the position of ``place``."""
    for child in ast.walk(node):
        if "lineno" in child._attributes and not hasattr(child, "lineno"):
            ast.copy_location(child, place)
    return node


def _name(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def _thunk(body: ast.expr) -> ast.Lambda:
    empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(empty, body)


def _method(receiver: str, method: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(_name(receiver), method, ast.Load()), list(arguments), [])


def _frame(method: str, *arguments: ast.expr) -> ast.Call:
    return _method(FRAME, method, *arguments)


def _strings(names: list[str]) -> ast.Tuple:
    return ast.Tuple([ast.Constant(name) for name in names], ast.Load())


def _set(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


class FunctionRewriter(ast.NodeTransformer):
    """Rewrites one function definition, nested functions included (each has its own frame)."""

    def __init__(self, filename: str, function: str) -> None:
        self.filename = filename
        self.function = function
        self.liveness = Liveness()
        self.variables: frozenset[str] = frozenset()
        self.loops: list[str | None] = []
        self.counter = 0
        self.lazy = 0

    def annotated_parameters(self, definition: ast.FunctionDef) -> tuple[str, ...]:
        """Parameters that the body annotates without assigning, in order of annotation."""
        arguments = definition.args
        parameters = {a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs}
        found: dict[str, None] = {}
        for node in _own_nodes(definition):
            if isinstance(node, ast.AnnAssign) and node.value is None and isinstance(node.target, ast.Name):
                if node.target.id in parameters:
                    found[node.target.id] = None
        return tuple(found)

    def rewrite(self, definition: ast.FunctionDef) -> ast.FunctionDef:
        result = self.visit_FunctionDef(definition)
        result.decorator_list = []
        result.returns = None
        for argument in ast.walk(result.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        return result

    def error(self, message: str, node: ast.AST, **details: str) -> TraceError:
        line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", -1) + 1
        end = getattr(node, "end_col_offset", None)
        same_line = getattr(node, "end_lineno", line) == line
        place = Location(self.filename, line, column, (end or 0) + 1 if same_line and end else 0, self.function)
        return TraceError(message, location=place, **details)

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in statements:
            new = self.visit(statement)
            result.extend(new if isinstance(new, list) else [new])
        return result

    def temporary(self) -> str:
        self.counter += 1
        return f"__ptxtile_{self.counter}"

    # ---------------------------------------------------------------- functions and scopes

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """``def f(...): body`` → the same, starting with ``__ptxtile__ = __ptxtile_frame__("f")``."""
        outer = self.liveness, self.variables, self.loops, self.lazy
        if any(isinstance(n, (ast.Yield, ast.YieldFrom, ast.Await)) for n in _own_nodes(node)):
            self.liveness, self.variables = Liveness(), frozenset()  # a generator runs as plain Python
        else:
            self.liveness = analyze(node)
            self.variables = self.liveness.variables
        self.loops, self.lazy = [], 0
        node.args = self.generic_visit(node.args)  # type: ignore[assignment]
        enter = _at(_set(FRAME, ast.Call(_name(FRAME_FACTORY), [ast.Constant(node.name)], [])), node)
        node.body = [enter, *self.body(node.body)]
        self.liveness, self.variables, self.loops, self.lazy = outer
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        raise self.error("async functions cannot be traced", node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return node

    def visit_Global(self, node: ast.Global) -> ast.AST:
        raise self.error("global variables cannot be rebound in a traced function", node)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> ast.AST:
        raise self.error("outer variables cannot be rebound in a traced function", node)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return node

    # ---------------------------------------------------------------- control flow

    def _carried(self, node: ast.AST) -> list[str]:
        return sorted(self.liveness.carried.get(node, ()))

    def _exchange(self, construct: str, method: str, names: list[str], place: ast.AST) -> list[ast.stmt]:
        """``if construct.traced: a = construct.method("a", lambda: a); …``"""
        if not names:
            return []
        body: list[ast.stmt] = [
            _set(name, _method(construct, method, ast.Constant(name), _thunk(_name(name)))) for name in names
        ]
        return [_at(ast.If(ast.Attribute(_name(construct), "traced", ast.Load()), body, []), place)]

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        """``c = if_(test, names); if c.then(): …; if c.otherwise(): …; c.end()``; a Python test takes one branch."""
        names, construct = self._carried(node), self.temporary()
        test = self.visit(node.test)
        header = _at(_set(construct, _frame("if_", test, _strings(names))), node.test)
        then = _at(ast.If(_method(construct, "then"), self.body(node.body), []), node.test)
        result = [header, *self._exchange(construct, "enter", names, node.test), then]
        result += self._exchange(construct, "between", names, node.test)
        if node.orelse:
            result.append(_at(ast.If(_method(construct, "otherwise"), self.body(node.orelse), []), node.test))
        result.append(_at(ast.Expr(_method(construct, "end")), node.test))
        return [*result, *self._exchange(construct, "leave", names, node.test)]

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        """``f = for_(iter, targets, names); for target in f: …; f.end()``; a traced loop runs its body once."""
        names, construct = self._carried(node), self.temporary()
        targets = _target_names(node.target)
        needed_after = sorted(assigned_names(node.target) & self.liveness.live_out.get(node, frozenset()))
        iterable = self._range(self.visit(node.iter))
        flags = ast.Constant(bool(node.orelse))
        header = _at(_set(construct, _frame("for_", iterable, _strings(targets), _strings(names), flags)), node.iter)
        node.iter = _at(_name(construct), node.iter)
        node.target = self.visit(node.target)
        self.loops.append(construct)
        node.body = self.body(node.body)
        self.loops.pop()
        node.orelse = self.body(node.orelse)
        result: list[ast.stmt] = [header, *self._exchange(construct, "enter", names, header), node]
        result.append(_at(ast.Expr(_method(construct, "end")), header))
        result += self._exchange(construct, "leave", names, header)
        return result + self._exchange(construct, "target_after", [n for n in needed_after if n not in names], header)

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        """``w = while_(lambda: test, names); while w.next(): …; w.end()``."""
        names, construct = self._carried(node), self.temporary()
        if any(isinstance(n, ast.NamedExpr) for n in ast.walk(node.test)):
            stop = ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Break()], [])
            node.body = [_at(stop, node.test), *node.body]
            node.test = _at(ast.Constant(True), node.test)
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        test = self._lazily(node.test)
        flags = [ast.Constant(endless), ast.Constant(bool(node.orelse))]
        header = _at(_set(construct, _frame("while_", _thunk(test), _strings(names), *flags)), node.test)
        node.test = _at(_method(construct, "next"), node.test)
        self.loops.append(construct)
        node.body = self.body(node.body)
        self.loops.pop()
        node.orelse = self.body(node.orelse)
        result: list[ast.stmt] = [header, *self._exchange(construct, "enter", names, header), node]
        result.append(_at(ast.Expr(_method(construct, "end")), header))
        return result + self._exchange(construct, "leave", names, header)

    def visit_Break(self, node: ast.Break) -> ast.stmt:
        """``if break_(loop): break``: a traced loop emits a Break, a Python loop breaks."""
        loop = self.loops[-1]
        assert loop is not None
        return _at(ast.If(_frame("break_", _name(loop)), [node], []), node)

    def visit_Continue(self, node: ast.Continue) -> ast.stmt:
        loop = self.loops[-1]
        assert loop is not None
        return _at(ast.If(_frame("continue_", _name(loop)), [node], []), node)

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        """Refused under traced control flow; else the same."""
        check = _at(ast.Expr(_frame("return_")), node)
        return [check, self.generic_visit(node)]  # type: ignore[list-item]

    def visit_Raise(self, node: ast.Raise) -> list[ast.stmt]:
        check = _at(ast.Expr(_frame("raise_")), node)
        return [check, self.generic_visit(node)]  # type: ignore[list-item]

    def visit_With(self, node: ast.With) -> ast.With:
        """``with T.Kernel(…) as (bx, by)``: the same; the names are told to the kernel."""
        for item in node.items:
            names = _target_names(item.optional_vars) if item.optional_vars is not None else []
            item.context_expr = _at(_frame("with_", self.visit(item.context_expr), _strings(names)), item.context_expr)
            if item.optional_vars is not None:
                item.optional_vars = self.visit(item.optional_vars)
        node.body = self.body(node.body)
        return node

    # ---------------------------------------------------------------- assignments

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        """``x = value`` → ``x = assign("x", name("x", lambda…), lambda: x)``; chained targets share one value."""
        if len(node.targets) == 1:
            return self._store(node.targets[0], self._named_value(node.targets[0], node.value), node)
        temporary = self.temporary()
        value = self._named_value(node.targets[0], node.value)
        result: list[ast.stmt] = [_at(_set(temporary, value), node)]
        for target in node.targets:
            result += self._store(target, _at(_name(temporary), node), node)
        return result

    def _named_value(self, target: ast.expr, value: ast.expr) -> ast.expr:
        """The value, told beforehand which name it will have: ``(name("x"), value)[1]``."""
        if isinstance(target, ast.Name):
            pair = ast.Tuple([_frame("name", ast.Constant(target.id)), self.visit(value)], ast.Load())
            return _at(ast.Subscript(pair, ast.Constant(1), ast.Load()), value)
        same_length = isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
        if same_length and len(target.elts) == len(value.elts):  # type: ignore[attr-defined]
            if not any(isinstance(e, ast.Starred) for e in target.elts + value.elts):  # type: ignore[attr-defined]
                pairs = zip(target.elts, value.elts, strict=True)  # type: ignore[attr-defined]
                return _at(ast.Tuple([self._named_value(t, v) for t, v in pairs], ast.Load()), value)
        return self.visit(value)

    def _assign(self, name: str, value: ast.expr) -> ast.expr:
        return _frame("assign", ast.Constant(name), value, _thunk(_name(name)))

    def _store(self, target: ast.expr, value: ast.expr, place: ast.AST) -> list[ast.stmt]:
        """The statements that store a rewritten value in a target."""
        if isinstance(target, ast.Name):
            return [_at(_set(target.id, self._assign(target.id, value)), place)]
        if isinstance(target, ast.Subscript):
            index = self._index(target.slice)
            return [_at(ast.Expr(_frame("set_item", self.visit(target.value), index, value)), place)]
        if isinstance(target, ast.Attribute):
            owner = self.visit(target.value)
            return [_at(ast.Expr(_frame("set_attribute", owner, ast.Constant(target.attr), value)), place)]
        if isinstance(target, (ast.Tuple, ast.List)):
            return self._unpack(target, value, place)
        raise self.error("this assignment cannot be traced", target)

    def _unpack(self, target: ast.Tuple | ast.List, value: ast.expr, place: ast.AST) -> list[ast.stmt]:
        """``a, b[i] = value`` → temporaries unpacked by Python, then one store each."""
        temporaries = [self.temporary() for _ in target.elts]
        elements: list[ast.expr] = []
        for temporary, element in zip(temporaries, target.elts, strict=True):
            stored = ast.Name(temporary, ast.Store())
            elements.append(ast.Starred(stored, ast.Store()) if isinstance(element, ast.Starred) else stored)
        result: list[ast.stmt] = [_at(ast.Assign([ast.Tuple(elements, ast.Store())], value), place)]
        for temporary, element in zip(temporaries, target.elts, strict=True):
            inner = element.value if isinstance(element, ast.Starred) else element
            result += self._store(inner, _at(_name(temporary), place), place)
        return result

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        """``x += v`` → ``x = assign("x", in_place("add", x, v), …)``; owner and index of ``a[i] += v`` are taken once."""
        operator = ast.Constant(_BINARY[type(node.op)])
        value = self.visit(node.value)
        target = node.target
        if isinstance(target, ast.Name):
            old = self.visit_Name(_at(_name(target.id), node.target))
            pair = ast.Tuple(
                [_frame("name", ast.Constant(target.id)), _frame("in_place", operator, old, value)], ast.Load()
            )
            return self._store(target, _at(ast.Subscript(pair, ast.Constant(1), ast.Load()), node), node)
        owner = self.temporary()
        result: list[ast.stmt] = [_at(_set(owner, self.visit(target.value)), node)]
        if isinstance(target, ast.Attribute):
            old = ast.Attribute(_name(owner), target.attr, ast.Load())
            new = _frame("in_place", operator, old, value)
            store = _frame("set_attribute", _name(owner), ast.Constant(target.attr), new)
            return [*result, _at(ast.Expr(store), node)]
        index = self.temporary()
        result.append(_at(_set(index, self._index(target.slice)), node))
        old = _at(ast.Subscript(_name(owner), _name(index), ast.Load()), target)
        new = _frame("in_place", operator, old, value)
        return [*result, _at(ast.Expr(_frame("set_item", _name(owner), _name(index), new)), node)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        """``A: T.Tensor(...)`` declares a parameter; ``x: T.int32 = v`` is an assignment with a cast."""
        annotation = node.annotation
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = _at(ast.parse(annotation.value, mode="eval").body, node.annotation)
            for child in ast.walk(annotation):
                ast.copy_location(child, node.annotation)
        annotation = _thunk(self._lazily(annotation))
        if node.value is None:
            if not isinstance(node.target, ast.Name):
                return []
            name = node.target.id
            declared = _frame("declare", ast.Constant(name), annotation, _thunk(_name(name)))
            # A name that is not bound yet stays so: a bare annotation of a local says nothing.
            result = self.temporary()
            test = ast.Compare(_name(result), [ast.IsNot()], [ast.Constant(None)])
            bind = ast.If(test, [_set(name, _name(result))], [])
            return [_at(_set(result, declared), node.annotation), _at(bind, node.annotation)]
        value = _frame("annotated", self._named_value(node.target, node.value), annotation)
        return self._store(node.target, _at(value, node), node)

    def visit_Delete(self, node: ast.Delete) -> ast.stmt:
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        """``(x := value)``, refused where it would only run for one side of a lazy operator."""
        if self.lazy:
            raise self.error(":= inside of and, or, a ternary or a chained comparison cannot be traced", node)
        node.value = _at(self._assign(node.target.id, self._named_value(node.target, node.value)), node)
        return node

    # ---------------------------------------------------------------- expressions

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A name that some traced construct may rebind is read through the frame: a snapshot of its variable."""
        if isinstance(node.ctx, ast.Load) and node.id in self.variables:
            return _at(_frame("read", ast.Constant(node.id), node), node)
        return node

    def _index(self, node: ast.expr) -> ast.expr:
        """A subscript's index as a value: slices become slice objects."""
        if isinstance(node, ast.Slice):
            none = ast.Constant(None)
            parts = [self.visit(p) if p is not None else none for p in (node.lower, node.upper, node.step)]
            return _at(_frame("slice_", *parts), node)
        if isinstance(node, ast.Tuple):
            return _at(ast.Tuple([self._index(e) for e in node.elts], ast.Load()), node)
        return self.visit(node)

    def _lazily(self, node: ast.expr) -> ast.expr:
        self.lazy += 1
        result = self.visit(node)
        self.lazy -= 1
        return result

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        """``a and b`` → ``and_(a, lambda: b)``."""
        first = self.visit(node.values[0])
        rest = [_thunk(self._lazily(value)) for value in node.values[1:]]
        return _at(_frame("and_" if isinstance(node.op, ast.And) else "or_", first, *rest), node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        """``not a`` → ``not_(a)``."""
        operand = self.visit(node.operand)
        if isinstance(node.op, ast.Not):
            return _at(_frame("not_", operand), node)
        node.operand = operand
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        """``a < b < c`` → ``chain(a, (("lt", lambda: b), ("lt", lambda: c)))``; one comparison stays Python's."""
        if len(node.ops) == 1:
            return self.generic_visit(node)  # type: ignore[return-value]
        links: list[ast.expr] = []
        for position, (operator, right) in enumerate(zip(node.ops, node.comparators, strict=True)):
            side = self.visit(right) if position == 0 else self._lazily(right)
            links.append(ast.Tuple([ast.Constant(_COMPARE[type(operator)]), _thunk(side)], ast.Load()))
        return _at(_frame("chain", self.visit(node.left), ast.Tuple(links, ast.Load())), node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        """``a if c else b`` → ``select(c, lambda: a, lambda: b)``."""
        test = self.visit(node.test)
        return _at(_frame("select", test, _thunk(self._lazily(node.body)), _thunk(self._lazily(node.orelse))), node)

    def visit_Lambda(self, node: ast.Lambda) -> ast.expr:
        node.body = self._lazily(node.body)
        return node

    def _range(self, node: ast.expr) -> ast.expr:
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """range() takes traced bounds; if_then_else() evaluates lazily; mutating methods of containers are checked."""
        function = node.func
        called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        plain = not node.keywords and not any(isinstance(a, ast.Starred) for a in node.args)
        if isinstance(function, ast.Name) and called == "range" and plain:
            return _at(_frame("range_", self.visit(function), *[self.visit(a) for a in node.args]), node)
        if called in _LAZY_FUNCTIONS and plain and len(node.args) == 3:
            condition, *sides = node.args
            lazy = [_thunk(self._lazily(side)) for side in sides]
            return _at(_frame("lazy_call", self.visit(function), self.visit(condition), *lazy), node)
        if isinstance(function, ast.Attribute) and called in MUTATING_METHODS:
            owner = self.visit(function.value)
            node.func = _at(_frame("mutating_method", owner, ast.Constant(called)), function)
            node.args = [self.visit(a) for a in node.args]
            node.keywords = [self.visit(k) for k in node.keywords]
            return node
        visited = self.generic_visit(node)
        if isinstance(function, ast.Name) and called in ("list", "dict", "set", "bytearray"):
            return _at(_frame("made", visited), node)  # type: ignore[arg-type]
        return visited  # type: ignore[return-value]

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Containers made by displays and comprehensions are noted, so that changing them where they were made is fine."""
        node = super().generic_visit(node)
        if isinstance(node, _CONTAINER_DISPLAYS) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            return _at(_frame("made", node), node)
        return node


def _own_nodes(definition: ast.FunctionDef) -> list[ast.AST]:
    """All nodes of the function's own body, without those of nested functions."""
    result: list[ast.AST] = []
    stack: list[ast.AST] = list(definition.body)[::-1]
    while stack:
        node = stack.pop()
        result.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            stack.extend(list(ast.iter_child_nodes(node))[::-1])
    return result


def _target_names(target: ast.expr) -> list[str]:
    """Names of a flat target, in order; a target that is no name gives an empty string."""
    if isinstance(target, ast.Name):
        return [target.id]
    if isinstance(target, (ast.Tuple, ast.List)):
        return [element.id if isinstance(element, ast.Name) else "" for element in target.elts]
    return []

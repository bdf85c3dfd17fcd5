"""The AST transformation of one function: each visitor's docstring says what its construct becomes.

In the rewritten source ``__ptxtile__`` is the frame (:class:`~ptxtile.frontend.frame_tracer.Frame`) of the running
invocation, and every new node has the position of the user's node that it came from.
"""

from __future__ import annotations

import ast

from ptxtile.errors import Location, TraceError
from ptxtile.frontend.liveness import Liveness, analyze, assigned_names
from ptxtile.frontend.rewrite_expressions import ExpressionRewriter
from ptxtile.frontend.syntax import (
    FRAME,
    FRAME_FACTORY,
    at,
    bind,
    child_nodes,
    frame_call,
    load,
    method_call,
    strings,
    thunk,
)  # fmt: skip

_BINARY = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "truediv", ast.FloorDiv: "floordiv", ast.Mod: "mod",
    ast.Pow: "pow", ast.LShift: "lshift", ast.RShift: "rshift", ast.BitOr: "or_", ast.BitXor: "xor",
    ast.BitAnd: "and_", ast.MatMult: "matmul",
}  # fmt: skip


class FunctionRewriter(ExpressionRewriter):
    """Rewrites one function definition, nested functions included (each has its own frame)."""

    def __init__(self, filename: str, function: str) -> None:
        super().__init__()
        self.filename = filename
        self.function = function
        self.liveness = Liveness()
        self.loops: list[tuple[str, list[str]]] = []
        self.counter = 0

    def annotated_parameters(self, definition: ast.FunctionDef) -> tuple[str, ...]:
        """Parameters that the body annotates without assigning, in order of annotation."""
        arguments = definition.args
        parameters = {a.arg for a in arguments.posonlyargs + arguments.args + arguments.kwonlyargs}
        found: dict[str, None] = {}
        for node in _own_nodes(definition):
            if isinstance(node, ast.AnnAssign) and node.value is None and isinstance(node.target, ast.Name):
                found[node.target.id] = None
        return tuple(name for name in found if name in parameters)

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
        enter = at(bind(FRAME, ast.Call(load(FRAME_FACTORY), [ast.Constant(node.name)], [])), node)
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
            bind(name, method_call(construct, method, ast.Constant(name), thunk(load(name)))) for name in names
        ]
        return [at(ast.If(ast.Attribute(load(construct), "traced", ast.Load()), body, []), place)]

    def visit_If(self, node: ast.If) -> list[ast.stmt]:
        """``c = if_(test, names); if c.then(): …; if c.otherwise(): …; c.end()``; a Python test takes one branch."""
        names, construct = self._carried(node), self.temporary()
        test = self.visit(node.test)
        header = at(bind(construct, frame_call("if_", test, strings(names))), node.test)
        then = at(ast.If(method_call(construct, "then"), self.body(node.body), []), node.test)
        kept = sorted(self.liveness.restored.get(node, frozenset()) - set(names)) if node.orelse else []
        result = [header, *self._exchange(construct, "enter", names, node.test)]
        result += [*self._exchange(construct, "keep", kept, node.test), then]
        result += self._exchange(construct, "between", names, node.test)
        result += self._exchange(construct, "restore", kept, node.test)
        if node.orelse:
            result.append(at(ast.If(method_call(construct, "otherwise"), self.body(node.orelse), []), node.test))
        result.append(at(ast.Expr(method_call(construct, "end")), node.test))
        return [*result, *self._exchange(construct, "leave", names, node.test)]

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        """``f = for_(iter, targets, names); for target in f: …; f.end()``; a traced loop runs its body once."""
        names, construct = self._carried(node), self.temporary()
        targets = _target_names(node.target)
        needed_after = sorted(assigned_names(node.target) & self.liveness.live_out.get(node, frozenset()))
        iterable = self.visit(node.iter)
        flags = [ast.Constant(bool(node.orelse)), ast.Constant(_is_tuple_of_one(node.target))]
        header = at(bind(construct, frame_call("for_", iterable, strings(targets), strings(names), *flags)), node.iter)
        node.iter = at(load(construct), node.iter)
        node.target = self.visit(node.target)
        self.loops.append((construct, names))
        node.body = self.body(node.body)
        self.loops.pop()
        node.orelse = self.body(node.orelse)
        result: list[ast.stmt] = [header, *self._exchange(construct, "enter", names, header), node]
        result.append(at(ast.Expr(method_call(construct, "end")), header))
        result += self._exchange(construct, "leave", names, header)
        return result + self._exchange(construct, "target_after", [n for n in needed_after if n not in names], header)

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        """``w = while_(lambda: test, names); while w.next(): …; w.end()``."""
        names, construct = self._carried(node), self.temporary()
        if any(isinstance(n, ast.NamedExpr) for n in ast.walk(node.test)):
            stop = ast.If(ast.UnaryOp(ast.Not(), node.test), [ast.Break()], [])
            node.body = [at(stop, node.test), *node.body]
            node.test = at(ast.Constant(True), node.test)
        endless = isinstance(node.test, ast.Constant) and bool(node.test.value)
        test = self._lazily(node.test)
        flags = [ast.Constant(endless), ast.Constant(bool(node.orelse))]
        header = at(bind(construct, frame_call("while_", thunk(test), strings(names), *flags)), node.test)
        node.test = at(method_call(construct, "next"), node.test)
        self.loops.append((construct, names))
        node.body = self.body(node.body)
        self.loops.pop()
        node.orelse = self.body(node.orelse)
        result: list[ast.stmt] = [header, *self._exchange(construct, "enter", names, header), node]
        result.append(at(ast.Expr(method_call(construct, "end")), header))
        return result + self._exchange(construct, "leave", names, header)

    def visit_Break(self, node: ast.Break) -> list[ast.stmt]:
        """``if break_(loop): break``: a traced loop emits a Break, a Python loop breaks."""
        return self._jump("break_", node)

    def visit_Continue(self, node: ast.Continue) -> list[ast.stmt]:
        """``if continue_(loop): continue``."""
        return self._jump("continue_", node)

    def _jump(self, method: str, node: ast.Break | ast.Continue) -> list[ast.stmt]:
        loop, names = self.loops[-1]
        jump = at(ast.If(frame_call(method, load(loop)), [node], []), node)
        return [*self._exchange(loop, "at_jump", names, node), jump]

    def visit_Return(self, node: ast.Return) -> list[ast.stmt]:
        """Refused under traced control flow; else the same."""
        check = at(ast.Expr(frame_call("return_")), node)
        return [check, self.generic_visit(node)]  # type: ignore[list-item]

    def visit_Raise(self, node: ast.Raise) -> list[ast.stmt]:
        check = at(ast.Expr(frame_call("raise_")), node)
        return [check, self.generic_visit(node)]  # type: ignore[list-item]

    def visit_With(self, node: ast.With) -> ast.With:
        """``with T.Kernel(…) as (bx, by)``: the same; the names are told to the kernel."""
        for item in node.items:
            names = _target_names(item.optional_vars) if item.optional_vars is not None else []
            alone = ast.Constant(_is_tuple_of_one(item.optional_vars))
            item.context_expr = at(
                frame_call("with_", self.visit(item.context_expr), strings(names), alone), item.context_expr
            )
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
        result: list[ast.stmt] = [at(bind(temporary, value), node)]
        for target in node.targets:
            result += self._store(target, at(load(temporary), node), node)
        return result

    def _named_value(self, target: ast.expr, value: ast.expr) -> ast.expr:
        """The value, told beforehand which name it will have: ``(name("x"), value)[1]``."""
        if isinstance(target, ast.Name):
            pair = ast.Tuple([frame_call("name", ast.Constant(target.id)), self.visit(value)], ast.Load())
            return at(ast.Subscript(pair, ast.Constant(1), ast.Load()), value)
        if not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)):
            return self.visit(value)
        starred = any(isinstance(element, ast.Starred) for element in target.elts + value.elts)
        if starred or len(target.elts) != len(value.elts):
            return self.visit(value)
        pairs = zip(target.elts, value.elts, strict=True)
        return at(ast.Tuple([self._named_value(t, v) for t, v in pairs], ast.Load()), value)

    def _assign(self, name: str, value: ast.expr) -> ast.expr:
        return frame_call("assign", ast.Constant(name), value, thunk(load(name)))

    def _store(self, target: ast.expr, value: ast.expr, place: ast.AST) -> list[ast.stmt]:
        """The statements that store a rewritten value in a target."""
        if isinstance(target, ast.Name):
            return [at(bind(target.id, self._assign(target.id, value)), place)]
        if isinstance(target, ast.Subscript):
            index = self._index(target.slice)
            return [at(ast.Expr(frame_call("set_item", self.visit(target.value), index, value)), place)]
        if isinstance(target, ast.Attribute):
            owner = self.visit(target.value)
            return [at(ast.Expr(frame_call("set_attribute", owner, ast.Constant(target.attr), value)), place)]
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
        result: list[ast.stmt] = [at(ast.Assign([ast.Tuple(elements, ast.Store())], value), place)]
        for temporary, element in zip(temporaries, target.elts, strict=True):
            inner = element.value if isinstance(element, ast.Starred) else element
            result += self._store(inner, at(load(temporary), place), place)
        return result

    def visit_AugAssign(self, node: ast.AugAssign) -> list[ast.stmt]:
        """``x += v`` → ``x = assign("x", in_place("add", x, v), …)``; of ``a[i] += v``, a and i are taken once."""
        operator = ast.Constant(_BINARY[type(node.op)])
        value = self.visit(node.value)
        target = node.target
        if isinstance(target, ast.Name):
            old = self.visit_Name(at(load(target.id), node.target))
            pair = ast.Tuple(
                [frame_call("name", ast.Constant(target.id)), frame_call("in_place", operator, old, value)], ast.Load()
            )
            return self._store(target, at(ast.Subscript(pair, ast.Constant(1), ast.Load()), node), node)
        owner = self.temporary()
        result: list[ast.stmt] = [at(bind(owner, self.visit(target.value)), node)]
        if isinstance(target, ast.Attribute):
            old = ast.Attribute(load(owner), target.attr, ast.Load())
            new = frame_call("in_place", operator, old, value)
            store = frame_call("set_attribute", load(owner), ast.Constant(target.attr), new)
            return [*result, at(ast.Expr(store), node)]
        index = self.temporary()
        result.append(at(bind(index, self._index(target.slice)), node))
        old = at(ast.Subscript(load(owner), load(index), ast.Load()), target)
        new = frame_call("in_place", operator, old, value)
        return [*result, at(ast.Expr(frame_call("set_item", load(owner), load(index), new)), node)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        """``A: T.Tensor(...)`` declares a parameter; ``x: T.int32 = v`` is an assignment with a cast."""
        annotation = node.annotation
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            annotation = at(ast.parse(annotation.value, mode="eval").body, node.annotation)
            for child in ast.walk(annotation):
                ast.copy_location(child, node.annotation)
        annotation = thunk(self._lazily(annotation))
        if node.value is None:
            if not isinstance(node.target, ast.Name):
                return []
            name = node.target.id
            declared = frame_call("declare", ast.Constant(name), annotation, thunk(load(name)))
            # A name that is not bound yet stays so: a bare annotation of a local says nothing.
            result = self.temporary()
            test = ast.Compare(load(result), [ast.IsNot()], [ast.Constant(None)])
            keep = ast.If(test, [bind(name, load(result))], [])
            return [at(bind(result, declared), node.annotation), at(keep, node.annotation)]
        value = frame_call("annotated", self._named_value(node.target, node.value), annotation)
        return self._store(node.target, at(value, node), node)

    def visit_Delete(self, node: ast.Delete) -> ast.stmt:
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.expr:
        """``(x := value)``, refused where it would only run for one side of a lazy operator."""
        if self.lazy:
            raise self.error(":= inside of and, or, a ternary or a chained comparison cannot be traced", node)
        node.value = at(self._assign(node.target.id, self._named_value(node.target, node.value)), node)
        return node


def _own_nodes(definition: ast.FunctionDef) -> list[ast.AST]:
    """All nodes of the function's own body, without those of nested functions."""
    result: list[ast.AST] = []
    stack: list[ast.AST] = [*reversed(definition.body)]
    while stack:
        node = stack.pop()
        result.append(node)
        if not isinstance(node, (ast.FunctionDef, ast.Lambda, ast.ClassDef)):
            stack.extend(reversed(child_nodes(node)))
    return result


def _is_tuple_of_one(target: ast.expr | None) -> bool:
    """``(i,)`` or ``[i]``, which takes the only index out of a tuple."""
    return isinstance(target, (ast.Tuple, ast.List)) and len(target.elts) == 1


def _target_names(target: ast.expr) -> list[str]:
    """Names of a flat target, in order; a target that is no name gives an empty string."""
    if isinstance(target, ast.Name):
        return [target.id]
    if isinstance(target, (ast.Tuple, ast.List)):
        return [element.id if isinstance(element, ast.Name) else "" for element in target.elts]
    return []

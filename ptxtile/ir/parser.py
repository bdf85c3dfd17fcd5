"""Programs and statements from the text form that :mod:`ptxtile.ir.printer` writes (its docstring shows the form).

The text has Python's syntax: it is read with :mod:`ast` and converted. What does not fit raises
:class:`~ptxtile.errors.ParseError` with the line and what was expected there. Statements get the text's own lines as
their locations. Whether the program makes sense is for :mod:`ptxtile.ir.verifier` to say.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ptxtile.errors import ParseError
from ptxtile.ir import text
from ptxtile.ir.buffers import Buffer, Scope, Storage, contiguous_strides
from ptxtile.ir.expressions import Expr, Var
from ptxtile.ir.parse_expressions import ExpressionParser, parse_expression
from ptxtile.ir.printer import default_storage
from ptxtile.ir.program import Fact, Function, Kernel, Program, ScalarParameter, TensorParameter
from ptxtile.ir.rewrite import buffers_of, walk
from ptxtile.ir.statements import (
    Allocate,
    Break,
    Continue,
    For,
    If,
    Let,
    LoopKind,
    ParallelFor,
    Role,
    Seq,
    Specialized,
    Statement,
    Store,
    View,
    While,
)  # fmt: skip
from ptxtile.ir.text import FieldKind
from ptxtile.ir.types import DType, int32
from ptxtile.launch_record import LaunchRecord, TensorMapRecord

__all__ = ["names_in", "parse_expression", "parse_program", "parse_statement"]


def parse_program(source: str, file: str = "<ir text>") -> Program:
    """The program of a whole text. ``file`` is what error messages call it."""
    return _ProgramParser(source, file).program()


def parse_statement(source: str, names: Mapping[str, Var | Buffer] | None = None) -> Statement:
    """A statement, or several as a Seq; ``names`` holds the variables and buffers that are declared outside."""
    parser = _StatementParser(source, "<statement>", names)
    return parser.block(parser.parse_syntax().body)


def names_in(*nodes: Any) -> dict[str, Var | Buffer]:
    """Every variable and buffer in ``nodes`` by name: what parsing the text of a part of a program needs to know."""
    names: dict[str, Var | Buffer] = {}
    for root in nodes:
        for node in walk(root):
            if isinstance(node, Var):
                names[node.name] = node
            for buffer in buffers_of(node):
                names[buffer.name] = buffer
    return names


_DECLARATIONS = ("allocate", "view", "alias", "tensor", "allocation")


class _StatementParser(ExpressionParser):
    def block(self, body: list[ast.stmt]) -> Statement:
        statements = self.statements(body)
        return statements[0] if len(statements) == 1 else Seq(statements)

    def statements(self, body: list[ast.stmt]) -> tuple[Statement, ...]:
        return tuple(self.statement(node) for node in body if not isinstance(node, ast.Pass) and not self.alias(node))

    def alias(self, node: ast.stmt) -> bool:
        """Whether ``node`` is ``NAME = alias(…)``, which declares a buffer and is no statement."""
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            function = node.value.func
            if isinstance(function, ast.Name) and function.id.partition("_")[0] == "alias":
                self.declaration(node.targets[0].id, node.value)
                return True
        return False

    def statement(self, node: ast.stmt) -> Statement:
        method = getattr(self, "statement_" + type(node).__name__, None)
        if method is None:
            self.fail(node, "not a statement of the IR", expected="a statement")
        return method(node)

    def statement_Expr(self, node: ast.Expr) -> Statement:
        call = node.value
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in text.op_classes():
            return self.construct(call, text.op_classes()[call.func.id], location=self.location(node))
        self.fail(node, "not an op", expected="op(field=value, …)")

    def statement_AnnAssign(self, node: ast.AnnAssign) -> Statement:
        if not isinstance(node.target, ast.Name) or node.value is None:
            self.fail(node, "not a binding", expected="name: dtype = expression")
        value = self.expression(node.value)
        return Let(self.bind(node.target.id, self.dtype(node.annotation)), value, location=self.location(node))

    def bind(self, name: str, dtype: DType) -> Var:
        self.variables[name] = Var(name, dtype)
        return self.variables[name]

    def statement_Assign(self, node: ast.Assign) -> Statement:
        target, place = node.targets[0], self.location(node)
        if isinstance(target, ast.Subscript) and len(node.targets) == 1:
            buffer, lanes, indices = self.access(target)
            value = self.expression(node.value)
            if value.dtype.lanes != lanes * buffer.dtype.lanes:
                self.fail(node, "a value of another number of lanes", expected=f"{lanes * buffer.dtype.lanes} lanes",
                          got=f"{value.dtype.lanes}")  # fmt: skip
            return Store(buffer, indices, value, location=place)
        if isinstance(target, ast.Name) and isinstance(node.value, ast.Call):
            buffer, word = self.declaration(target.id, node.value)
            if word in ("allocate", "view"):
                return (Allocate if word == "allocate" else View)(buffer, location=place)
        self.fail(node, "not a statement of the IR", expected="A[i] = value, or NAME = allocate_SCOPE(dtype, shape)")

    def declaration(self, name: str, node: ast.Call) -> tuple[Buffer, str]:
        """The buffer and the word of :data:`_DECLARATIONS`."""
        word, _, scope_name = (node.func.id if isinstance(node.func, ast.Name) else "").partition("_")
        options = {keyword.arg or "": keyword.value for keyword in node.keywords}
        shared_storage = word in ("view", "alias") and not scope_name
        scopes = {scope.value for scope in Scope}
        if word in ("tensor", "allocation"):
            scope_name = scope_name or Scope.GLOBAL.value
        if word not in _DECLARATIONS or not (shared_storage or scope_name in scopes):
            self.fail(node, "not a declaration", expected="allocate_SCOPE(…) or view(…)")
        if len(node.args) != (3 if shared_storage else 2):
            self.fail(node, "not a declaration", expected="dtype, shape" + (", storage" if shared_storage else ""))
        dtype = self.dtype(node.args[0])
        shape = self.field_value(node.args[1], FieldKind.SIZE)
        if shared_storage:
            storage = self.storage(node.args[2])
        else:
            storage = Storage(name, Scope(scope_name))
        buffer = Buffer(name, dtype, shape, contiguous_strides(shape), storage)
        if not shared_storage:
            storage = default_storage(buffer)
        for option, value in options.items():
            if option.startswith("storage_") and not shared_storage and option[8:] in Storage.__dataclass_fields__:
                storage = replace(storage, **{option[8:]: self.value(value)})
            elif option in ("strides", "offset"):
                buffer = replace(buffer, **{option: self.field_value(value, FieldKind.SIZE)})
            elif option == "layout":
                buffer = replace(buffer, layout=self.value(value))
            else:
                expected = "strides, offset, layout or storage_…"
                self.fail(value, f"a buffer has no {option}", expected=expected, got=option)
        buffer = replace(buffer, storage=storage)
        self.buffers[name], self.storages[storage.name] = buffer, storage
        return buffer, word

    def storage(self, node: ast.expr) -> Storage:
        name = self.value(node)
        if name not in self.storages:
            self.fail(node, f"unknown storage {name}", expected="the name of a storage declared above")
        return self.storages[name]

    def statement_For(self, node: ast.For) -> Statement:
        call, place = node.iter, self.location(node)
        name = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
        kinds = {kind.value: kind for kind in LoopKind}
        if not isinstance(call, ast.Call) or name not in (*kinds, text.PARALLEL) or node.orelse:
            self.fail(node.iter, "not a loop", expected="one of " + ", ".join((*kinds, text.PARALLEL)))
        targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        keywords = {keyword.arg or "": keyword.value for keyword in call.keywords}
        if name == text.PARALLEL:
            dtypes = self.value(keywords.pop("dtypes")) if "dtypes" in keywords else (int32,) * len(names)
            extents = tuple(self.value(argument) for argument in call.args)
            variables = tuple(self.bind(n, dtype) for n, dtype in zip(names, dtypes, strict=True))
            options = tuple((n, self.value(value)) for n, value in keywords.items())
            return ParallelFor(variables, extents, self.block(node.body), options, location=place)
        if len(call.args) not in (2, 3) or len(names) != 1:
            self.fail(call, "not a loop", expected="for NAME in KIND(start, stop[, step])")
        dtype = self.dtype(keywords.pop("dtype")) if "dtype" in keywords else int32
        start, stop = self.expression(call.args[0]), self.expression(call.args[1])
        step = self.value(call.args[2]) if len(call.args) == 3 else 1
        options = tuple((n, self.value(value)) for n, value in keywords.items())
        variable = self.bind(names[0], dtype)
        return For(variable, start, stop, step, kinds[name], self.block(node.body), options, location=place)

    def statement_While(self, node: ast.While) -> Statement:
        return While(self.expression(node.test), self.block(node.body), location=self.location(node))

    def statement_If(self, node: ast.If) -> Statement:
        condition, then = self.expression(node.test), self.block(node.body)
        otherwise = self.block(node.orelse) if node.orelse else None
        return If(condition, then, otherwise, location=self.location(node))

    def statement_Break(self, node: ast.Break) -> Statement:
        return Break(location=self.location(node))

    def statement_Continue(self, node: ast.Continue) -> Statement:
        return Continue(location=self.location(node))

    def statement_With(self, node: ast.With) -> Statement:
        call, place = node.items[0].context_expr, self.location(node)
        name = call.func.id if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else ""
        if isinstance(call, ast.Call) and name == "sequence":
            return Seq(self.statements(node.body), location=place)
        if isinstance(call, ast.Call) and name == "role":
            parts = {"name": call.args[0] if call.args else None} | {k.arg: k.value for k in call.keywords}
            if set(parts) - {"registers"} != {"name", "first_thread", "threads"}:
                self.fail(call, "not a role", expected="role(NAME, first_thread=…, threads=…[, registers=…])")
            values = {str(key): self.value(value) for key, value in parts.items() if value is not None}
            return Role(**values, body=self.block(node.body), location=place)
        if isinstance(call, ast.Call) and name == "specialized":
            roles = self.statements(node.body)
            if not all(isinstance(role, Role) for role in roles):
                self.fail(node, "only roles can stand here", expected="with role(…):")
            return Specialized(roles, location=place)  # type: ignore[arg-type]
        self.fail(call, "not a block", expected="sequence(), specialized() or role(…)")


@dataclass
class _Parts:
    """What the header lines of a program have said so far."""

    name: str = ""
    stage: str = "tile"
    symbols: list[Var] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)
    parameters: list[TensorParameter | ScalarParameter] = field(default_factory=list)
    allocations: list[Buffer] = field(default_factory=list)
    returns: tuple[str, ...] = ()
    tensor_maps: list[TensorMapRecord] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    launch: LaunchRecord | None = None


class _ProgramParser(_StatementParser):
    def program(self) -> Program:
        body = self.parse_syntax().body
        self.check_version(body)
        parts = _Parts()
        for node in body[1:]:  # sizes of a tensor may name a scalar parameter that comes after it
            word, call = self.assigned_call(node)
            if word in ("symbol", "scalar") and isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.positional(call, word, 1)
                self.bind(node.targets[0].id, self.dtype(call.args[0]))
        for node in body[1:]:
            self.top_level(node, parts)
        return Program(
            name=parts.name, parameters=tuple(parts.parameters), kernels=tuple(parts.kernels),
            allocations=tuple(parts.allocations), returns=parts.returns, symbols=tuple(parts.symbols),
            facts=tuple(parts.facts), functions=tuple(parts.functions), tensor_maps=tuple(parts.tensor_maps),
            launch=parts.launch, stage=parts.stage,
        )  # fmt: skip

    def check_version(self, body: list[ast.stmt]) -> None:
        first = body[0] if body else None
        call = first.value if isinstance(first, ast.Expr) else None
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "ptxtile_ir":
            self.show_source()
            place = self.location(first) if first is not None else None
            raise ParseError("not IR text", location=place, expected=f"ptxtile_ir({text.VERSION}) on the first line")
        version = self.value(call.args[0]) if len(call.args) == 1 else None
        if version != text.VERSION:
            self.fail(call, "IR text of another version", expected=str(text.VERSION), got=str(version))

    def assigned_call(self, node: ast.stmt) -> tuple[str, ast.Call]:
        """Name and call of ``x = name(…)`` or of ``name(…)``; an empty name for anything else."""
        value = node.value if isinstance(node, (ast.Assign, ast.Expr)) else None
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            return value.func.id, value
        return "", ast.Call(func=ast.Name(id=""), args=[], keywords=[])

    def top_level(self, node: ast.stmt, parts: _Parts) -> None:
        if isinstance(node, ast.FunctionDef):
            self.definition(node, parts)
            return
        word, call = self.assigned_call(node)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.declared(node, node.targets[0].id, word, call, parts)
        elif word == "program":
            given = {k.arg: self.value(k.value) for k in call.keywords}
            parts.name, parts.stage = self.value(call.args[0]), given.get("stage", "tile")
        elif word == "fact":
            variable = self.expression(call.args[0])
            assert isinstance(variable, Var)
            parts.facts.append(Fact(variable, **{str(k.arg): self.value(k.value) for k in call.keywords}))
        elif word == "returns":
            parts.returns = tuple(self.value(argument) for argument in call.args)
        elif word == "TensorMapRecord":
            parts.tensor_maps.append(self.construct(call, TensorMapRecord))
        elif word == "LaunchRecord":
            parts.launch = self.construct(call, LaunchRecord)
        else:
            self.fail(node, "not a part of a program", expected="a declaration, @kernel, @function or a record")

    def declared(self, node: ast.Assign, name: str, word: str, call: ast.Call, parts: _Parts) -> None:
        if word == "symbol":
            parts.symbols.append(self.variables[name])
        elif word == "scalar":
            parts.parameters.append(ScalarParameter(self.variables[name]))
        elif word == "tensor":
            own = {k.arg: self.value(k.value) for k in call.keywords if k.arg in ("alignment", "alias_group")}
            call.keywords = [k for k in call.keywords if k.arg not in own]
            buffer, _ = self.declaration(name, call)
            parts.parameters.append(TensorParameter(buffer, location=self.location(node), **own))
        elif word == "allocation":
            parts.allocations.append(self.declaration(name, call)[0])
        else:
            self.fail(node, "not a declaration", expected="symbol, scalar, tensor or allocation")

    def definition(self, node: ast.FunctionDef, parts: _Parts) -> None:
        decorator = node.decorator_list[0] if len(node.decorator_list) == 1 else None
        call = decorator if isinstance(decorator, ast.Call) else None
        word = call.func if call is not None else decorator
        name = word.id if isinstance(word, ast.Name) else ""
        if name == "function":
            options = {str(keyword.arg): self.value(keyword.value) for keyword in (call.keywords if call else ())}
            parts.functions.append(replace(self.function(node), **options))
        elif name == "kernel" and call is not None:
            parts.kernels.append(self.kernel(node, call))
        else:
            expected = "@kernel(…) or @function before it"
            self.fail(node, "neither a kernel nor a function", expected=expected, got=node.name)

    def bound_arguments(self, node: ast.FunctionDef) -> list[Var]:
        return [self.bind(a.arg, int32 if a.annotation is None else self.dtype(a.annotation)) for a in node.args.args]

    def function(self, node: ast.FunctionDef) -> Function:
        outside = dict(self.variables), dict(self.buffers), dict(self.storages)
        parameters = tuple(self.bound_arguments(node))
        last = node.body[-1]
        if not isinstance(last, ast.Return) or last.value is None:
            self.fail(last, "a function without a result", expected="return expression")
        body = self.block(node.body[:-1])
        result: Expr = self.expression(last.value)
        self.variables, self.buffers, self.storages = outside
        return Function(node.name, parameters, body, result)

    def kernel(self, node: ast.FunctionDef, decorator: ast.Call) -> Kernel:
        options = {
            str(k.arg): self.field_value(k.value, FieldKind.SIZE if k.arg == "grid" else FieldKind.VALUE)
            for k in decorator.keywords
        }
        unknown = set(options) - {"grid", "threads", "user_threads", "cluster", "min_blocks", "shared_bytes"}
        variables = self.bound_arguments(node)
        if unknown or not {"grid", "threads"} <= set(options) or len(variables) != 4:
            self.fail(node, "not a kernel", expected="@kernel(grid=(x, y, z), threads=…) def name(bx, by, bz, thread)",
                      got=node.name)  # fmt: skip
        body = self.block(node.body)
        blocks = (variables[0], variables[1], variables[2])
        place = self.location(node)
        return Kernel(node.name, block_vars=blocks, thread=variables[3], body=body, location=place, **options)

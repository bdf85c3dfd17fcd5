"""Expressions, field values and records from their text form; statements and programs are in
:mod:`ptxtile.ir.parser`."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Mapping
from dataclasses import MISSING
from enum import Enum
from typing import Any, NoReturn

from ptxtile.errors import Location, ParseError
from ptxtile.ir import text
from ptxtile.ir.buffers import Buffer, Storage
from ptxtile.ir.expressions import (
    Binary,
    Bitcast,
    Broadcast,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    LogicalAnd,
    LogicalOr,
    Select,
    SharedAddress,
    Unary,
    Var,
)  # fmt: skip
from ptxtile.ir.print_expressions import is_dtype_name
from ptxtile.ir.text import FieldKind
from ptxtile.ir.tile_ops import Region
from ptxtile.ir.types import DType, Kind, bool_, int32, parse_dtype
from ptxtile.launch_record import SizeOperation, Symbol

_BINARY_NODES: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.FloorDiv: "floordiv", ast.Mod: "floormod",
    ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor", ast.LShift: "shl", ast.RShift: "shr",
}  # fmt: skip
_COMPARISON_NODES: dict[type, str] = {
    ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge",
}  # fmt: skip
_SIZE_NODES: dict[type, str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.FloorDiv: "floordiv", ast.Mod: "mod",
}  # fmt: skip
_EXPRESSION_CLASSES: dict[str, type] = {
    cls.__name__: cls
    for cls in (Binary, Compare, Unary, LogicalAnd, LogicalOr, Select, Cast, Bitcast, Load, Call, Broadcast, Const,
                SharedAddress)
}  # fmt: skip
_CONVERSIONS = {"cast": Cast, "bitcast": Bitcast, "broadcast": Broadcast}


class ExpressionParser:
    """Turns ``ast`` nodes into IR expressions and plain values.

    ``variables``, ``buffers`` and ``storages`` are what the text has declared so far, by name.
    """

    def __init__(self, source: str, file: str, names: Mapping[str, Var | Buffer] | None = None) -> None:
        self.source = source
        self.file = file
        self.variables: dict[str, Var] = {}
        self.buffers: dict[str, Buffer] = {}
        self.storages: dict[str, Storage] = {}
        for name, value in (names or {}).items():
            if isinstance(value, Var):
                self.variables[name] = value
            else:
                self.buffers[name] = value
                self.storages[value.storage.name] = value.storage

    # ---- errors

    def location(self, node: ast.AST) -> Location:
        line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", -1) + 1
        last = getattr(node, "end_lineno", line) == line
        return Location(self.file, line, column, getattr(node, "end_col_offset", 0) + 1 if last else 0)

    def fail(self, node: ast.AST, message: str, expected: str | None = None, got: str | None = None) -> NoReturn:
        if got is None and expected is not None:
            got = ast.get_source_segment(self.source, node)
        self.show_source()
        raise ParseError(message, location=self.location(node), expected=expected, got=got)

    def show_source(self) -> None:
        """Lets error reports quote the text, which need not be a file."""
        lines = self.source.splitlines(keepends=True)
        linecache.cache[self.file] = (len(self.source), None, lines, self.file)

    def parse_syntax(self) -> ast.Module:
        try:
            return ast.parse(self.source, self.file)
        except SyntaxError as error:
            self.show_source()
            place = Location(self.file, error.lineno or 0, error.offset or 0)
            raise ParseError(f"not valid syntax: {error.msg}", location=place) from None

    # ---- expressions

    def expression(self, node: ast.expr) -> Expr:
        method = getattr(self, "parse_" + type(node).__name__, None)
        if method is None:
            self.fail(node, "not an expression of the IR", expected="an expression")
        return method(node)

    def parse_Constant(self, node: ast.Constant) -> Expr:
        return self.literal(node, node.value)

    def literal(self, node: ast.expr, value: object) -> Expr:
        if type(value) is bool:
            return Const(value, bool_)
        if type(value) is int:
            return self.constant(node, value, int32)
        self.fail(node, "a number without a dtype", expected="an integer, or a typed number such as float32(1.5)")

    def constant(self, node: ast.expr, value: object, dtype: DType) -> Const:
        if dtype.kind is Kind.FLOAT and type(value) in (float, int, str):
            try:
                return Const(float(value), dtype)  # type: ignore[arg-type]
            except ValueError:
                self.fail(node, "not a number", expected=f"a number of {dtype}", got=repr(value))
        if dtype.kind is Kind.BOOL and type(value) is bool:
            return Const(value, dtype)
        if dtype.is_integer and type(value) is int and dtype.minimum <= value <= dtype.maximum:
            return Const(value, dtype)
        self.fail(node, "a constant that its dtype cannot hold", expected=f"a value of {dtype}", got=repr(value))

    def parse_Name(self, node: ast.Name) -> Expr:
        if node.id in self.variables:
            return self.variables[node.id]
        self.fail(node, f"unknown variable {node.id}", expected="a variable bound above", got=node.id)

    def parse_UnaryOp(self, node: ast.UnaryOp) -> Expr:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            return self.literal(node, self.negated(node))
        if isinstance(node.op, ast.UAdd):
            self.fail(node, "no unary plus in the IR", expected="- or ~ or not")
        operand = self.expression(node.operand)
        return Unary("neg" if isinstance(node.op, ast.USub) else "not", operand, operand.dtype)

    def negated(self, node: ast.UnaryOp) -> int | float:
        """The number that ``-literal`` is."""
        value = node.operand.value if isinstance(node.operand, ast.Constant) else None
        if not isinstance(node.op, ast.USub) or type(value) not in (int, float):
            self.fail(node, "not a number", expected="a number")
        return -value  # type: ignore[operator]

    def pair(self, node: ast.expr, left: ast.expr, right: ast.expr) -> tuple[Expr, Expr]:
        a, b = self.expression(left), self.expression(right)
        if a.dtype != b.dtype:
            self.fail(node, "operands of different dtypes", expected="equal dtypes", got=f"{a.dtype} and {b.dtype}")
        return a, b

    def parse_BinOp(self, node: ast.BinOp) -> Expr:
        operator = _BINARY_NODES.get(type(node.op))
        if operator is None:
            self.fail(node, "not an operator of the IR", expected="one of " + " ".join(_signs()))
        left, right = self.pair(node, node.left, node.right)
        return Binary(operator, left, right, left.dtype)

    def parse_Compare(self, node: ast.Compare) -> Expr:
        operator = _COMPARISON_NODES.get(type(node.ops[0]))
        if operator is None or len(node.ops) != 1:
            self.fail(node, "not a comparison of the IR", expected="one of == != < <= > >=, not chained")
        left, right = self.pair(node, node.left, node.comparators[0])
        return Compare(operator, left, right, bool_.with_lanes(left.dtype.lanes))

    def parse_BoolOp(self, node: ast.BoolOp) -> Expr:
        cls = LogicalAnd if isinstance(node.op, ast.And) else LogicalOr
        result = self.expression(node.values[0])
        for value in node.values[1:]:
            result = cls(result, self.expression(value))
        return result

    def parse_IfExp(self, node: ast.IfExp) -> Expr:
        condition = self.expression(node.test)
        if_true, if_false = self.pair(node, node.body, node.orelse)
        return Select(condition, if_true, if_false, if_true.dtype)

    def parse_Subscript(self, node: ast.Subscript) -> Expr:
        buffer, lanes, indices = self.access(node)
        return Load(buffer, indices, buffer.dtype.with_lanes(buffer.dtype.lanes * lanes))

    def access(self, node: ast.Subscript) -> tuple[Buffer, int, tuple[Expr, ...]]:
        """Buffer, vector lanes and indices of ``A[i, j]`` or ``A.x4[i]``."""
        base, lanes = node.value, 1
        if isinstance(base, ast.Attribute):
            if not (base.attr.startswith("x") and base.attr[1:].isdigit()):
                self.fail(base, "not a vector access", expected="NAME.x2, NAME.x4, …")
            base, lanes = base.value, int(base.attr[1:])
        inside = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return self.buffer(base), lanes, tuple(self.expression(index) for index in inside)

    def buffer(self, node: ast.expr) -> Buffer:
        if not isinstance(node, ast.Name):
            self.fail(node, "not a buffer", expected="the name of a buffer")
        if node.id not in self.buffers:
            self.fail(node, f"unknown buffer {node.id}", expected="a buffer declared above", got=node.id)
        return self.buffers[node.id]

    def parse_Call(self, node: ast.Call) -> Expr:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _EXPRESSION_CLASSES:
            return self.construct(node, _EXPRESSION_CLASSES[name])
        if is_dtype_name(name):
            self.positional(node, name, 1)
            return self.constant(node, self.value(node.args[0]), parse_dtype(name))
        if name in _CONVERSIONS:
            self.positional(node, name, 2)
            return _CONVERSIONS[name](self.expression(node.args[0]), self.dtype(node.args[1]))
        if name == text.SHARED_ADDRESS:
            self.positional(node, name, 2)
            return SharedAddress(self.buffer(node.args[0]), self.expression(node.args[1]))
        if name in text.BINARY_FUNCTIONS:
            self.positional(node, name, 2)
            left, right = self.pair(node, *node.args)
            return Binary(name, left, right, left.dtype)
        if name in text.UNARY_FUNCTIONS:
            self.positional(node, name, 1)
            operand = self.expression(node.args[0])
            return Unary(name, operand, operand.dtype)
        return self.function_call(node, name)

    def function_call(self, node: ast.Call, name: str) -> Expr:
        """``exp(x)``, whose dtype is its first argument's, or ``call("name", x, dtype=float32)``."""
        if name == "call":
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            function = self.value(node.args[0]) if node.args else None
            if set(keywords) != {"dtype"} or not isinstance(function, str):
                self.fail(node, "not a call", expected='call("function", arguments…, dtype=DTYPE)')
            arguments = tuple(self.expression(argument) for argument in node.args[1:])
            return Call(function, arguments, self.dtype(keywords["dtype"]))
        if not name or not node.args or node.keywords:
            self.fail(node, "not a call of a function", expected="function(argument, …)")
        arguments = tuple(self.expression(argument) for argument in node.args)
        return Call(name, arguments, arguments[0].dtype)

    def positional(self, node: ast.Call, name: str, count: int) -> None:
        if len(node.args) != count or node.keywords:
            self.fail(node, f"{name} takes {count} argument{'s' if count > 1 else ''}", expected=f"{count}",
                      got=str(len(node.args) + len(node.keywords)))  # fmt: skip

    def dtype(self, node: ast.expr) -> DType:
        if isinstance(node, ast.Name) and is_dtype_name(node.id):
            return parse_dtype(node.id)
        self.fail(node, "not a dtype", expected="a dtype such as float32 or bfloat16x2")

    # ---- values of fields

    def field_value(self, node: ast.expr, kind: FieldKind) -> Any:
        """What :func:`ptxtile.ir.print_expressions.print_value` wrote for a field of ``kind``."""
        if isinstance(node, ast.Tuple):
            return tuple(self.field_value(item, kind) for item in node.elts)
        if isinstance(node, ast.Constant) and node.value is None:
            return None
        if kind is FieldKind.BUFFER:
            return self.buffer(node)
        if kind is FieldKind.REGION:
            return self.region(node)
        if kind is FieldKind.RECORD_SIZE:
            return self.record_size(node)
        if kind is FieldKind.SIZE and self.is_integer_literal(node):
            return self.value(node)
        if kind is FieldKind.VALUE:
            return self.value(node)
        return self.expression(node)

    def is_integer_literal(self, node: ast.expr) -> bool:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            node = node.operand
        return isinstance(node, ast.Constant) and type(node.value) is int

    def value(self, node: ast.expr) -> Any:
        """A plain Python value, a dtype, an Enum member or a record."""
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp):
            return self.negated(node)
        if isinstance(node, ast.Tuple):
            return tuple(self.value(item) for item in node.elts)
        if isinstance(node, ast.List):
            return [self.value(item) for item in node.elts]
        if isinstance(node, ast.Dict) and all(key is not None for key in node.keys):
            pairs = zip(node.keys, node.values, strict=True)
            return {self.value(key): self.value(item) for key, item in pairs if key is not None}
        if isinstance(node, ast.Name) and is_dtype_name(node.id):
            return parse_dtype(node.id)
        if isinstance(node, ast.Attribute):
            return self.enum_member(node)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in text.record_classes():
                return self.construct(node, text.record_classes()[node.func.id])
            if node.func.id == "float" and len(node.args) == 1:
                return float(self.value(node.args[0]))
        self.fail(node, "not a value", expected="a number, string, dtype, tuple or record")

    def enum_member(self, node: ast.Attribute) -> Enum:
        name = node.value.id if isinstance(node.value, ast.Name) else ""
        cls = text.record_classes().get(name)
        if cls is None or not issubclass(cls, Enum) or node.attr not in cls.__members__:
            self.fail(node, "not a value", expected="a member of an enumeration, such as CopyPath.VECTOR")
        return cls[node.attr]

    def record_size(self, node: ast.expr) -> Any:
        """A size of a launch record: an integer, or arithmetic over names of symbols."""
        if isinstance(node, ast.Name):
            return Symbol(node.id)
        if isinstance(node, ast.BinOp) and type(node.op) in _SIZE_NODES:
            operator = _SIZE_NODES[type(node.op)]
            return SizeOperation(operator, self.record_size(node.left), self.record_size(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
            self.positional(node, node.func.id, 2)
            return SizeOperation(node.func.id, *(self.record_size(argument) for argument in node.args))
        if self.is_integer_literal(node):
            return self.value(node)
        self.fail(node, "not a size", expected="an integer or + - * // % min max over symbols")

    def region(self, node: ast.expr) -> Region:
        """``A`` (all of it) or ``A[y, x].tile(64, 64)``."""
        if isinstance(node, ast.Name):
            buffer = self.buffer(node)
            extents = tuple(n for n in buffer.shape if isinstance(n, int))
            if len(extents) != buffer.rank:
                self.fail(node, "a buffer of symbolic sizes needs a tile", expected=f"{node.id}[…].tile(…)")
            return Region(buffer, tuple(Const(0, int32) for _ in extents), extents)
        method = node.func if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Call) and isinstance(method, ast.Attribute) and isinstance(method.value, ast.Subscript):
            if method.attr != "tile":
                self.fail(node, "not a region", expected=".tile(…)", got=method.attr)
            buffer, _, starts = self.access(method.value)
            return Region(buffer, starts, tuple(self.value(extent) for extent in node.args))
        self.fail(node, "not a region", expected="NAME or NAME[starts].tile(extents)")

    def construct(self, node: ast.Call, cls: type, **extra: Any) -> Any:
        """``cls`` from positional and keyword arguments, each read as its field's annotation says."""
        fields = text.text_fields(cls)
        if len(node.args) > len(fields):
            self.fail(node, f"{cls.__name__} has fewer fields", expected=str(len(fields)), got=str(len(node.args)))
        given: list[tuple[str | None, ast.expr]] = [(f.name, a) for f, a in zip(fields, node.args, strict=False)]
        given += [(keyword.arg, keyword.value) for keyword in node.keywords]
        by_name = {field.name: field for field in fields}
        values: dict[str, Any] = {}
        outside = self.variables
        self.variables = outside | {variable.name: variable for variable in text.RECORD_VARIABLES.get(cls, ())}
        for name, argument in given:
            if name not in by_name or name in values:
                self.fail(argument, f"{cls.__name__} has no field {name}, or it is given twice",
                          expected="one of " + ", ".join(by_name), got=str(name))  # fmt: skip
            values[name] = self.field_value(argument, text.field_kind(str(by_name[name].type)))
        self.variables = outside
        for field in fields:
            if field.name not in values and field.default is MISSING and field.default_factory is MISSING:
                self.fail(node, f"{cls.__name__} needs {field.name}", expected=f"{field.name}=…")
        try:
            return cls(**values, **extra)
        except ValueError as error:
            self.fail(node, str(error))


def _signs() -> list[str]:
    return [sign for sign, _ in text.BINARY_SIGNS.values()]


def parse_expression(source: str, names: Mapping[str, Var | Buffer] | None = None) -> Expr:
    """One expression; ``names`` holds the variables and buffers that it may use."""
    parser = ExpressionParser(source.strip(), "<expression>", names)
    module = parser.parse_syntax()
    if len(module.body) != 1 or not isinstance(module.body[0], ast.Expr):
        raise ParseError("not one expression", expected="one expression", got=source)
    return parser.expression(module.body[0].value)

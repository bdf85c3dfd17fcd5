"""Expressions, field values and records as text; statements and programs are in :mod:`ptxtile.ir.printer`."""

from __future__ import annotations

from dataclasses import is_dataclass
from enum import Enum
from math import isfinite
from typing import Any

from ptxtile.ir import text
from ptxtile.ir.buffers import Buffer
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
from ptxtile.ir.text import FieldKind
from ptxtile.ir.tile_ops import Region
from ptxtile.ir.types import DType, bool_, int32, parse_dtype, uint32
from ptxtile.launch_record import SizeOperation, Symbol

LINE_LENGTH = 120


def print_expression(expression: Expr) -> str:
    """``expression`` on one line, with as few parentheses as Python's precedences allow."""
    return _expression(expression, 0)


def _expression(node: Expr, minimum: int) -> str:
    """The text of ``node``, in parentheses when it binds less tightly than ``minimum``."""
    result, precedence = _PRINTERS.get(type(node), _generic)(node)
    return f"({result})" if precedence < minimum else result


def _generic(node: Expr) -> tuple[str, int]:
    return constructor(node), text.ATOM


def _const(node: Const) -> tuple[str, int]:
    number = print_number(node.value)
    if (node.dtype == int32 and type(node.value) is int) or (node.dtype == bool_ and type(node.value) is bool):
        return number, text.UNARY if number.startswith("-") else text.ATOM
    return f"{node.dtype}({number})", text.ATOM


def print_number(value: int | float | bool) -> str:
    """An exact literal: Python's shortest form of a float that reads back as the same one, in quotes when not
    finite."""
    if isinstance(value, float) and not isfinite(value):
        return f'"{value!r}"'
    return repr(value)


def _var(node: Var) -> tuple[str, int]:
    return node.name, text.ATOM


def _binary(node: Binary) -> tuple[str, int]:
    if node.left.dtype != node.dtype or node.right.dtype != node.dtype:
        return _generic(node)
    if node.operator in text.BINARY_SIGNS:
        sign, precedence = text.BINARY_SIGNS[node.operator]
        return f"{_expression(node.left, precedence)} {sign} {_expression(node.right, precedence + 1)}", precedence
    return f"{node.operator}({print_expression(node.left)}, {print_expression(node.right)})", text.ATOM


def _compare(node: Compare) -> tuple[str, int]:
    if node.dtype != bool_.with_lanes(node.left.dtype.lanes):
        return _generic(node)
    left, right = _expression(node.left, text.COMPARISON + 1), _expression(node.right, text.COMPARISON + 1)
    return f"{left} {text.COMPARISON_SIGNS[node.operator]} {right}", text.COMPARISON


def _unary(node: Unary) -> tuple[str, int]:
    if node.operand.dtype != node.dtype:
        return _generic(node)
    if node.operator == "not" and node.dtype == bool_:
        return f"not {_expression(node.operand, text.NOT)}", text.NOT
    if node.operator == "not":
        return f"~{_expression(node.operand, text.UNARY)}", text.UNARY
    if node.operator == "neg" and not isinstance(node.operand, Const):
        return f"-{_expression(node.operand, text.UNARY)}", text.UNARY
    return f"{node.operator}({print_expression(node.operand)})", text.ATOM


def _logical_and(node: LogicalAnd) -> tuple[str, int]:
    if node.dtype != bool_:
        return _generic(node)
    return f"{_expression(node.left, text.AND)} and {_expression(node.right, text.AND + 1)}", text.AND


def _logical_or(node: LogicalOr) -> tuple[str, int]:
    if node.dtype != bool_:
        return _generic(node)
    return f"{_expression(node.left, text.OR)} or {_expression(node.right, text.OR + 1)}", text.OR


def _select(node: Select) -> tuple[str, int]:
    if node.dtype != node.if_true.dtype:
        return _generic(node)
    if_true, if_false = (_expression(side, text.CONDITIONAL + 1) for side in (node.if_true, node.if_false))
    return f"{if_true} if {_expression(node.condition, text.CONDITIONAL + 1)} else {if_false}", text.CONDITIONAL


def _conversion(node: Cast | Bitcast | Broadcast) -> tuple[str, int]:
    return f"{type(node).__name__.lower()}({print_expression(node.operand)}, {node.dtype})", text.ATOM


def _shared_address(node: SharedAddress) -> tuple[str, int]:
    if node.dtype != uint32:
        return _generic(node)
    return f"{text.SHARED_ADDRESS}({node.buffer.name}, {print_expression(node.offset)})", text.ATOM


def _load(node: Load) -> tuple[str, int]:
    lanes, remainder = divmod(node.dtype.lanes, node.buffer.dtype.lanes)
    if remainder or node.dtype.element != node.buffer.dtype.element:
        return _generic(node)
    return print_access(node.buffer, node.indices, lanes), text.ATOM


def print_access(buffer: Buffer, indices: tuple[Expr, ...], lanes: int) -> str:
    """``A[i, j]``; with several lanes ``A.x4[i, j]``; without indices ``A[()]``."""
    inside = ", ".join(print_expression(index) for index in indices) if indices else "()"
    return f"{buffer.name}{f'.x{lanes}' if lanes != 1 else ''}[{inside}]"


def _call(node: Call) -> tuple[str, int]:
    arguments = [print_expression(argument) for argument in node.arguments]
    by_name = node.function not in text.RESERVED_FUNCTIONS and text.BARE_WORD.match(node.function)
    if by_name and node.arguments and node.dtype == node.arguments[0].dtype and not is_dtype_name(node.function):
        return f"{node.function}({', '.join(arguments)})", text.ATOM
    return f"call({', '.join([quoted(node.function), *arguments, f'dtype={node.dtype}'])})", text.ATOM


def is_dtype_name(name: str) -> bool:
    try:
        parse_dtype(name)
    except KeyError:
        return False
    return True


_PRINTERS: dict[type, Any] = {
    Const: _const, Var: _var, Binary: _binary, Compare: _compare, Unary: _unary, LogicalAnd: _logical_and,
    LogicalOr: _logical_or, Select: _select, Cast: _conversion, Bitcast: _conversion, Broadcast: _conversion,
    Load: _load, Call: _call, SharedAddress: _shared_address,
}  # fmt: skip


def quoted(value: str) -> str:
    """A string literal in double quotes where that needs no escapes, as the rest of the text has them."""
    literal = repr(value)
    return f'"{value}"' if literal == f"'{value}'" and '"' not in value else literal


def print_value(value: Any, kind: FieldKind = FieldKind.VALUE) -> str:
    """The value of a field of ``kind``; tuples are written element by element."""
    if isinstance(value, tuple):
        inside = ", ".join(print_value(item, kind) for item in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, list):
        return f"[{', '.join(print_value(item, kind) for item in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{print_value(k, kind)}: {print_value(v, kind)}" for k, v in value.items()) + "}"
    if isinstance(value, Const) and kind is FieldKind.SIZE and value.dtype == int32:
        return f"int32({print_number(value.value)})"  # a bare integer is a Python int there
    if isinstance(value, Expr):
        return print_expression(value)
    if isinstance(value, (Buffer, Symbol)):
        return value.name
    if isinstance(value, Region):
        return print_region(value)
    if isinstance(value, SizeOperation):
        return _size(value, 0)
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, float) and not isfinite(value):
        return f"float({print_number(value)})"
    if isinstance(value, (bool, int, float)):
        return print_number(value)
    if value is None:
        return "None"
    if is_dataclass(value) and type(value).__name__ in text.record_classes():
        return constructor(value)
    raise TypeError(f"the text form has no way to write {value!r}")


def print_region(region: Region) -> str:
    """The buffer's name when the region is all of it, else ``A[y, x].tile(rows, columns)``."""
    whole = all(isinstance(s, Const) and s.dtype == int32 and s.value == 0 for s in region.starts)
    if whole and len(region.starts) == len(region.extents) and region.extents == region.buffer.shape:
        return region.buffer.name
    extents = ", ".join(print_value(extent) for extent in region.extents)
    return f"{print_access(region.buffer, region.starts, 1)}.tile({extents})"


_SIZE_SIGNS = {"add": ("+", 10), "sub": ("-", 10), "mul": ("*", 11), "floordiv": ("//", 11), "mod": ("%", 11)}


def _size(value: Any, minimum: int) -> str:
    """A launch record's size expression; a negative number gets parentheses inside a product."""
    if isinstance(value, Symbol):
        return value.name
    if not isinstance(value, SizeOperation):
        return f"({value})" if value < 0 and minimum else str(value)
    if value.operator not in _SIZE_SIGNS:
        return f"{value.operator}({_size(value.left, 0)}, {_size(value.right, 0)})"
    sign, precedence = _SIZE_SIGNS[value.operator]
    result = f"{_size(value.left, precedence)} {sign} {_size(value.right, precedence + 1)}"
    return f"({result})" if precedence < minimum else result


def keywords(node: Any, names: tuple[str, ...] | None = None) -> list[str]:
    """``name=value`` for each field that is not at its default (or for those of ``names``)."""
    parts = []
    for field in text.text_fields(type(node)):
        value = getattr(node, field.name)
        if not text.is_default(field, value) and (names is None or field.name in names):
            parts.append(f"{field.name}={print_value(value, text.field_kind(str(field.type)))}")
    return parts


def constructor(node: Any) -> str:
    """``ClassName(field=value, …)`` on one line."""
    name = type(node).__name__
    if name in text.POSITIONAL_RECORDS:
        return f"{name}({', '.join(print_value(getattr(node, f.name)) for f in text.text_fields(type(node)))})"
    return f"{name}({', '.join(keywords(node))})"


def wrapped_constructor(node: Any, indent: str = "", prefix: str = "") -> list[str]:
    """The constructor over several lines where one would be too long: a field, or an element of a tuple, a line."""
    line = indent + prefix + constructor(node)
    if len(line) <= LINE_LENGTH:
        return [line]
    lines = [f"{indent}{prefix}{type(node).__name__}("]
    deeper = indent + "    "
    for field in text.text_fields(type(node)):
        value = getattr(node, field.name)
        if text.is_default(field, value):
            continue
        short = f"{deeper}{field.name}={print_value(value, text.field_kind(str(field.type)))},"
        if len(short) <= LINE_LENGTH or not isinstance(value, tuple):
            lines.append(short)
            continue
        lines.append(f"{deeper}{field.name}=(")
        for item in value:
            if is_dataclass(item) and not isinstance(item, (Expr, Symbol, SizeOperation)):
                inner = wrapped_constructor(item, deeper + "    ")
            else:
                inner = [f"{deeper}    {print_value(item, text.field_kind(str(field.type)))}"]
            inner[-1] += ","
            lines.extend(inner)
        lines.append(f"{deeper}),")
    return [*lines, f"{indent})"]

"""The vocabulary of the IR's text form, shared by printer and parser: version, operators, names of ops and records.

The text is valid Python syntax. ``snake_case(...)`` is an op or a declaration, ``CamelCase(...)`` builds a record (a
layout, a tensor map, a launch record) from the fields of its dataclass. How a field is written follows from its
annotation (:func:`field_kind`), so a new op or record needs nothing here but its module in the tables below.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import cache
from types import ModuleType
from typing import Any

from ptxtile import launch_record
from ptxtile.ir import (
    async_copy_ops,
    atomic_ops,
    cluster_ops,
    gpu_ops,
    grid_dependency_ops,
    layouts,
    manual_ops,
    mapped_layouts,
    tensor_core_ops,
    tile_ops,
    warp_ops,
)
from ptxtile.ir.statements import LoopKind, Statement

VERSION = 1
"""Of the text form; the header line ``ptxtile_ir(1)`` carries it. Any change that old text does not survive raises
it."""

OP_MODULES: tuple[ModuleType, ...] = (
    tile_ops, gpu_ops, tensor_core_ops, async_copy_ops, cluster_ops, warp_ops, atomic_ops, manual_ops,
    grid_dependency_ops,
)  # fmt: skip
RECORD_MODULES: tuple[ModuleType, ...] = (layouts, mapped_layouts, launch_record, tile_ops)

RECORD_VARIABLES = {mapped_layouts.MappedLayout: mapped_layouts.COORDINATES}
"""Variables that the expressions of a record may use."""

POSITIONAL_RECORDS = frozenset({"Layout", "Swizzle"})
"""Records whose fields need no names: ``Layout((64, 64), (64, 1))``, ``Swizzle(3, 4, 3)``."""

# Python's operator precedences, higher binds tighter.
CONDITIONAL, OR, AND, NOT, COMPARISON, UNARY, ATOM = 1, 2, 3, 4, 5, 12, 15

BINARY_SIGNS = {
    "add": ("+", 10), "sub": ("-", 10), "mul": ("*", 11), "div": ("/", 11), "floordiv": ("//", 11),
    "floormod": ("%", 11), "and": ("&", 8), "or": ("|", 6), "xor": ("^", 7), "shl": ("<<", 9), "shr": (">>", 9),
}  # fmt: skip
"""Binary operators with a sign of their own; the others are written as functions, ``truncdiv(a, b)``."""

COMPARISON_SIGNS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
BINARY_FUNCTIONS = ("truncdiv", "truncmod", "min", "max", "mulhi")
UNARY_FUNCTIONS = ("neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint")
"""``-x`` is the short form of ``neg(x)``, except on a constant, where it would read as the negative constant."""

CONVERSIONS = {"cast": "Cast", "bitcast": "Bitcast", "broadcast": "Broadcast"}
SHARED_ADDRESS = "shared_address"
"""``shared_address(A, i)``: the address of element i of a shared buffer."""
RESERVED_FUNCTIONS = frozenset({*BINARY_FUNCTIONS, *UNARY_FUNCTIONS, *CONVERSIONS, SHARED_ADDRESS, "call"})
"""A Call to a function of one of these names is written ``call("name", ...)``."""

LOOP_NAMES = {kind: kind.value for kind in LoopKind}
PARALLEL = "parallel"

BARE_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class FieldKind(Enum):
    """How the value of a dataclass field is written; a tuple is a tuple of such values."""

    BUFFER = "the name of a buffer"
    VARIABLE = "the name of a variable"
    REGION = "a buffer, or A[y, x].tile(rows, columns)"
    EXPRESSION = "an expression; a bare integer is an int32 constant"
    SIZE = "an integer, or an expression over symbols"
    RECORD_SIZE = "an integer, or + - * // % min max over symbol names"
    VALUE = "a Python value, a dtype, an Enum member or a record"


@cache
def field_kind(annotation: str) -> FieldKind:
    """The kind of a field from its annotation, such as ``tuple[Expr, ...]``."""
    words = set(re.findall(r"\w+", annotation))
    if "Buffer" in words:
        return FieldKind.BUFFER
    if "Var" in words:
        return FieldKind.VARIABLE
    if "Region" in words:
        return FieldKind.REGION
    if "Expr" in words:
        return FieldKind.SIZE if "int" in words else FieldKind.EXPRESSION
    if "Symbol" in words:
        return FieldKind.RECORD_SIZE
    return FieldKind.VALUE


@cache
def text_fields(cls: type) -> tuple[Field, ...]:
    """The fields that the text form holds: all that take part in equality."""
    return tuple(f for f in fields(cls) if f.compare)


def is_required(field: Field) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def is_default(field: Field, value: object) -> bool:
    """Whether ``value`` is the field's default, of the same type too (0 is not False)."""
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return default is not MISSING and type(default) is type(value) and default == value


def snake_case(name: str) -> str:
    """``MbarrierArriveExpectTx`` → ``mbarrier_arrive_expect_tx``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


@cache
def op_classes() -> dict[str, type[Statement]]:
    """Every op by its name in the text."""
    found: dict[str, type[Statement]] = {}
    for module in OP_MODULES:
        for value in vars(module).values():
            if _defined_in(value, module) and issubclass(value, Statement) and value is not gpu_ops.GpuOp:
                found[snake_case(value.__name__)] = value
    return found


@cache
def record_classes() -> dict[str, type]:
    """Every record and Enum by its name in the text."""
    found: dict[str, type] = {}
    for module in RECORD_MODULES:
        for name, value in vars(module).items():
            if _defined_in(value, module) and not issubclass(value, Statement):
                found[name] = value
    return found


def _defined_in(value: Any, module: ModuleType) -> bool:
    return isinstance(value, type) and value.__module__ == module.__name__

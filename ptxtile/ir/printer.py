"""Programs, statements and expressions as Python-like text, which :mod:`ptxtile.ir.parser` reads back.

The text is what ``ptxtile inspect`` shows and what golden files hold::

    ptxtile_ir(1)
    program("add", stage="tile")
    M = symbol(int32)
    A = tensor(float32, (M, 1024))
    C = allocation(float32, (M, 1024))
    returns("C")

    @kernel(grid=((M + 63) // 64, 16, 1), threads=128)
    def add(by, bx, bz, thread):
        A_shared = allocate_shared(float32, (64, 64))
        copy(A[by * 64, bx * 64].tile(64, 64), A_shared)
        for i, j in parallel(64, 64):
            ...

A buffer is declared once with everything about it (what is left out has its default: row-major strides, a storage of
its own with the buffer's name and size) and is then called by its name; ``alias(…)`` declares one that no statement
does, as views at the gpu stage. Numbers: a bare integer is an int32 constant, others carry their dtype,
``float32(1.5)``; floats are Python's shortest exact form, or ``float32("nan")``, ``float32("-inf")``. A vector access
is ``A.x4[i]``. The statements of a block are one Seq, or one statement; ``pass`` is the empty Seq, and a Seq that
stands where a statement could is ``with sequence():``. An expression whose dtype does not follow from its operands is
written with all of its fields, ``Binary(operator="add", …)``. Locations are comments, and decisions (``why``) are left
out.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ptxtile.errors import Location
from ptxtile.ir import text
from ptxtile.ir.buffers import Buffer, Scope, Storage, contiguous_strides
from ptxtile.ir.expressions import Expr, Var
from ptxtile.ir.print_expressions import (
    keywords,
    print_access,
    print_expression,
    print_region,
    print_value,
    quoted,
    wrapped_constructor,
)  # fmt: skip
from ptxtile.ir.program import Function, Kernel, Program, ScalarParameter, TensorParameter
from ptxtile.ir.rewrite import buffers_of, walk
from ptxtile.ir.statements import (
    Allocate,
    Break,
    Continue,
    For,
    If,
    Let,
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
from ptxtile.ir.tile_ops import Region
from ptxtile.ir.types import int32

INDENT = "    "


def print_program(program: Program, *, locations: bool = False) -> str:
    """The whole program as text. ``locations`` adds the user's file and line to each statement as a comment."""
    printer = _Printer(locations)
    printer.program(program)
    return "\n".join(printer.lines) + "\n"


def print_node(node: Any, *, locations: bool = False) -> str:
    """Any node as text: an expression, region, statement, buffer, kernel, function, program, layout or record."""
    if isinstance(node, Program):
        return print_program(node, locations=locations)
    if isinstance(node, Expr):
        return print_expression(node)
    if isinstance(node, Region):
        return print_region(node)
    printer = _Printer(locations)
    if isinstance(node, Statement):
        printer.block(node, "")
    elif isinstance(node, Buffer):
        printer.line("", f"{node.name} = {printer.declaration(node)}")
    elif isinstance(node, Kernel):
        printer.kernel(node)
    elif isinstance(node, Function):
        printer.function(node)
    else:
        return print_value(node)
    return "\n".join(printer.lines)


def default_storage(buffer: Buffer) -> Storage:
    """The storage that a declaration means when it says nothing: of the buffer's name and scope, as large as it is."""
    size = None
    if buffer.scope is not Scope.GLOBAL and all(isinstance(n, int) for n in buffer.shape):
        size = prod(buffer.static_shape) * buffer.dtype.bits * buffer.dtype.lanes // 8
    return Storage(buffer.name, buffer.scope, size)


class _Printer:
    def __init__(self, locations: bool) -> None:
        self.lines: list[str] = []
        self.locations = locations
        self.storages: dict[str, Storage] = {}
        self.globals: set[str] = set()
        self.aliases: dict[str, list[Buffer]] = {}

    def line(self, indent: str, content: str, location: Location | None = None) -> None:
        comment = f"  # {location}" if self.locations and location is not None else ""
        self.lines.append(indent + content + comment)

    # ---- declarations

    def declaration(self, buffer: Buffer, word: str = "allocate") -> str:
        """``allocate_shared(float32, (64, 64), layout=…)``; of a view, ``view(float32, (128,), "storage")``."""
        default = default_storage(buffer)
        storage = buffer.storage
        parts = [buffer.dtype.name, print_value(buffer.shape, FieldKind.SIZE)]
        if word in ("view", "alias") and self.storages.get(storage.name) == storage:
            parts.append(quoted(storage.name))
        else:
            for name in ("name", "size", "alignment", "offset"):
                if getattr(storage, name) != getattr(default, name):
                    parts.append(f"storage_{name}={print_value(getattr(storage, name))}")
            if word in ("allocate", "view", "alias"):
                word = f"{word}_{buffer.scope.value}"
        self.storages[storage.name] = storage
        if buffer.strides != contiguous_strides(buffer.shape):
            parts.append(f"strides={print_value(buffer.strides, FieldKind.SIZE)}")
        if buffer.offset != 0:
            parts.append(f"offset={print_value(buffer.offset, FieldKind.SIZE)}")
        if buffer.layout is not None:
            parts.append(f"layout={print_value(buffer.layout)}")
        return f"{word}({', '.join(parts)})"

    def program(self, program: Program) -> None:
        self.globals = set(program.global_buffers())
        self.line("", f"ptxtile_ir({text.VERSION})")
        self.line("", f"program({quoted(program.name)}, stage={quoted(program.stage)})")
        for symbol in program.symbols:
            self.line("", f"{symbol.name} = symbol({symbol.dtype})")
        for fact in program.facts:
            self.line("", f"fact({', '.join([fact.var.name, *keywords(fact, ('lower', 'upper', 'divisor'))])})")
        for parameter in program.parameters:
            self.parameter(parameter)
        for buffer in program.allocations:
            self.line("", f"{buffer.name} = {self.declaration(buffer, 'allocation')}")
        if program.returns:
            self.line("", f"returns({', '.join(quoted(name) for name in program.returns)})")
        for record in program.tensor_maps:
            self.lines.extend(wrapped_constructor(record))
        for function in program.functions:
            self.line("", "")
            self.function(function)
        for kernel in program.kernels:
            self.line("", "")
            self.kernel(kernel)
        if program.launch is not None:
            self.line("", "")
            self.lines.extend(wrapped_constructor(program.launch))

    def parameter(self, parameter: TensorParameter | ScalarParameter) -> None:
        if isinstance(parameter, ScalarParameter):
            self.line("", f"{parameter.name} = scalar({parameter.var.dtype})")
            return
        declaration = self.declaration(parameter.buffer, "tensor")
        extra = keywords(parameter, ("alignment", "alias_group"))
        content = f"{parameter.name} = {', '.join([declaration[:-1], *extra])})"
        self.line("", content, parameter.location)

    def function(self, function: Function) -> None:
        self.line("", "@function(out_of_line=True)" if function.out_of_line else "@function")
        self.line("", f"def {function.name}({self.variables(function.parameters)}):")
        if function.body != Seq(()):
            self.block(function.body, INDENT)
        self.line(INDENT, f"return {print_expression(function.result)}")

    def kernel(self, kernel: Kernel) -> None:
        names = ("grid", "threads", "user_threads", "cluster", "min_blocks", "shared_bytes")
        self.line("", f"@kernel({', '.join(keywords(kernel, names))})")
        variables = self.variables((*kernel.block_vars, kernel.thread))
        self.line("", f"def {kernel.name}({variables}):", kernel.location)
        self.find_aliases(kernel.body)
        self.block(kernel.body, INDENT)

    def find_aliases(self, body: Statement) -> None:
        """Collects the buffers that ``body`` uses and nothing declares; they are written after their storage's
        allocation, or at the start of the body where it has none."""
        nodes = list(walk(body))
        declared = self.globals | {node.buffer.name for node in nodes if isinstance(node, (Allocate, View))}
        allocated = {node.buffer.storage.name for node in nodes if isinstance(node, Allocate)}
        self.aliases = {}
        for node in nodes:
            for buffer in buffers_of(node):
                if buffer.name not in declared:
                    declared.add(buffer.name)
                    self.aliases.setdefault(buffer.storage.name, []).append(buffer)
        for storage in [name for name in self.aliases if name not in allocated]:
            self.write_aliases(storage, INDENT)

    def write_aliases(self, storage: str, indent: str) -> None:
        for buffer in self.aliases.pop(storage, ()):
            self.line(indent, f"{buffer.name} = {self.declaration(buffer, 'alias')}")

    def variables(self, variables: tuple[Var, ...]) -> str:
        return ", ".join(v.name if v.dtype == int32 else f"{v.name}: {v.dtype}" for v in variables)

    # ---- statements

    def block(self, body: Statement, indent: str) -> None:
        """A body: a Seq of none or of several statements is written without a word, any other body is one statement."""
        if isinstance(body, Seq) and len(body.statements) != 1:
            if not body.statements:
                self.line(indent, "pass")
            for statement in body.statements:
                self.statement(statement, indent)
        else:
            self.statement(body, indent)

    def statement(self, node: Statement, indent: str) -> None:
        method = getattr(self, "print_" + type(node).__name__, None)
        if method is not None:
            method(node, indent)
        else:
            self.line(indent, self.op(node), node.location)

    def op(self, node: Statement) -> str:
        """``name(field=value, …)``; tile ops leave out the names of the fields that must be given."""
        parts = []
        positional = type(node).__module__ == text.tile_ops.__name__
        for field in text.text_fields(type(node)):
            value = getattr(node, field.name)
            written = print_value(value, text.field_kind(str(field.type)))
            if text.is_required(field):
                parts.append(written if positional else f"{field.name}={written}")
            else:
                positional = False
                if not text.is_default(field, value):
                    parts.append(f"{field.name}={written}")
        return f"{text.snake_case(type(node).__name__)}({', '.join(parts)})"

    def header(self, node: Statement, indent: str, content: str, body: Statement) -> None:
        self.line(indent, content, node.location)
        self.block(body, indent + INDENT)

    def print_Seq(self, node: Seq, indent: str) -> None:
        self.line(indent, "with sequence():", node.location)
        for statement in node.statements:
            self.statement(statement, indent + INDENT)
        if not node.statements:
            self.line(indent + INDENT, "pass")

    def print_Let(self, node: Let, indent: str) -> None:
        self.line(indent, f"{node.var.name}: {node.var.dtype} = {print_expression(node.value)}", node.location)

    def print_Allocate(self, node: Allocate, indent: str) -> None:
        self.line(indent, f"{node.buffer.name} = {self.declaration(node.buffer)}", node.location)
        self.write_aliases(node.buffer.storage.name, indent)

    def print_View(self, node: View, indent: str) -> None:
        self.line(indent, f"{node.buffer.name} = {self.declaration(node.buffer, 'view')}", node.location)

    def print_Store(self, node: Store, indent: str) -> None:
        lanes = max(1, node.value.dtype.lanes // node.buffer.dtype.lanes)
        target = print_access(node.buffer, node.indices, lanes)
        self.line(indent, f"{target} = {print_expression(node.value)}", node.location)

    def print_For(self, node: For, indent: str) -> None:
        parts = [print_expression(node.start), print_expression(node.stop)]
        if node.step != 1:
            parts.append(str(node.step))
        if node.var.dtype != int32:
            parts.append(f"dtype={node.var.dtype}")
        parts += self.options(node.options)
        self.header(node, indent, f"for {node.var.name} in {node.kind.value}({', '.join(parts)}):", node.body)

    def print_ParallelFor(self, node: ParallelFor, indent: str) -> None:
        parts = [str(extent) for extent in node.extents]
        if any(var.dtype != int32 for var in node.vars):
            parts.append(f"dtypes={print_value(tuple(var.dtype for var in node.vars))}")
        parts += self.options(node.options)
        names = ", ".join(var.name for var in node.vars)
        self.header(node, indent, f"for {names} in {text.PARALLEL}({', '.join(parts)}):", node.body)

    def options(self, options: tuple[tuple[str, object], ...]) -> list[str]:
        return [f"{name}={print_value(value)}" for name, value in options]

    def print_While(self, node: While, indent: str) -> None:
        self.header(node, indent, f"while {print_expression(node.condition)}:", node.body)

    def print_If(self, node: If, indent: str) -> None:
        self.header(node, indent, f"if {print_expression(node.condition)}:", node.then)
        while isinstance(node.otherwise, If):
            node = node.otherwise
            self.header(node, indent, f"elif {print_expression(node.condition)}:", node.then)
        if node.otherwise is not None:
            self.line(indent, "else:")
            self.block(node.otherwise, indent + INDENT)

    def print_Break(self, node: Break, indent: str) -> None:
        self.line(indent, "break", node.location)

    def print_Continue(self, node: Continue, indent: str) -> None:
        self.line(indent, "continue", node.location)

    def print_Role(self, node: Role, indent: str) -> None:
        parts = [quoted(node.name), *keywords(node, ("first_thread", "threads", "registers"))]
        self.header(node, indent, f"with role({', '.join(parts)}):", node.body)

    def print_Specialized(self, node: Specialized, indent: str) -> None:
        self.line(indent, "with specialized():", node.location)
        for role in node.roles:
            self.statement(role, indent + INDENT)
        if not node.roles:
            self.line(indent + INDENT, "pass")

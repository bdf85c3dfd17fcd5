"""Random programs as source text of the user's language."""

from __future__ import annotations

import math

from tests.random_programs import model as m

_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "floormod": "%", "and": "&", "or": "|",
    "xor": "^", "shl": "<<", "shr": ">>", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=",
}  # fmt: skip


def render(program: m.Program) -> str:
    """A module that defines ``program``: a jitted function, or a factory that takes nothing."""
    options = ", ".join(f"{name}={value!r}" for name, value in program.options)
    lines = ["import ptxtile", "import ptxtile.language as T", ""]
    kernels = [line for kernel in program.kernels for line in _kernel(kernel)]
    outputs = [tensor for tensor in program.tensors if tensor.role == "empty"]
    if program.form == "factory":
        positions = [p for p, tensor in enumerate(program.tensors) if tensor.role == "empty"]
        lines += ["", f"@ptxtile.jit(out_idx={positions or None}, {options}, mode='lazy')", "def program():"]
        lines += _indent(_dynamic_sizes(program))
        parameters = [f"{t.buffer.name}: {_tensor(t)}" for t in program.tensors]
        parameters += [f"{s.name}: T.{s.dtype}" for s in program.scalars]
        lines += ["    @T.prim_func", f"    def main({', '.join(parameters)}):"]
        return "\n".join([*lines, *_indent(kernels, 2), "    return main", ""])
    arguments = [t.buffer.name for t in program.tensors if t.role == "argument"] + [s.name for s in program.scalars]
    lines += ["", f"@ptxtile.jit({options})", f"def program({', '.join(arguments)}):"]
    body = _dynamic_sizes(program)
    body += [f'{s.name} = T.const("{s.name}")' for s in program.sizes if s.kind == "const"]
    body += [f"{t.buffer.name}: {_tensor(t)}" for t in program.tensors if t.role == "argument"]
    body += [f"{s.name}: T.{s.dtype}" for s in program.scalars]
    body += [f"{t.buffer.name} = T.empty({_shape(t.buffer.declared)}, T.{t.buffer.dtype})" for t in outputs]
    body += kernels
    if outputs:
        body.append("return " + ", ".join(t.buffer.name for t in outputs))
    return "\n".join([*lines, *_indent(body), ""])


def _indent(lines: list[str], depth: int = 1) -> list[str]:
    return ["    " * depth + line for line in lines]


def _dynamic_sizes(program: m.Program) -> list[str]:
    return [f'{s.name} = T.dynamic("{s.name}")' for s in program.sizes if s.kind == "dynamic"]


def _shape(sizes: tuple[object, ...]) -> str:
    return "(" + ", ".join(map(str, sizes)) + ("," if len(sizes) == 1 else "") + ")"


def _tensor(tensor: m.Tensor) -> str:
    return f"T.Tensor({_shape(tensor.buffer.declared)}, T.{tensor.buffer.dtype})"


def _kernel(kernel: m.Kernel) -> list[str]:
    grid = ", ".join(expression(size) for size in kernel.grid)
    names = kernel.blocks[0] if len(kernel.blocks) == 1 else "(" + ", ".join(kernel.blocks) + ")"
    head = f"with T.Kernel({grid}, threads={kernel.threads}) as {names}:"
    return [head, *_indent(_block(kernel.body))]


def _block(statements: tuple[m.Statement, ...]) -> list[str]:
    return [line for node in statements for line in statement(node)] or ["pass"]


def statement(node: m.Statement) -> list[str]:
    """The lines of a statement."""
    match node:
        case m.Allocate(buffer):
            return [f"{buffer.name} = T.alloc_{buffer.scope}({_shape(buffer.shape)}, T.{buffer.dtype})"]
        case m.ViewOf(buffer, source):
            if buffer.dtype == source.dtype:
                return [f"{buffer.name} = T.reshape({source.name}, {_shape(buffer.shape)})"]
            return [f"{buffer.name} = T.view({source.name}, {_shape(buffer.shape)}, T.{buffer.dtype})"]
        case m.Copy(source, destination, options):
            more = "".join(f", {name}={value!r}" for name, value in options)
            return [f"T.copy({region(source)}, {region(destination)}{more})"]
        case m.Fill(destination, None):
            return [f"T.clear({region(destination)})"]
        case m.Fill(destination, value) if value is not None:
            return [f"T.fill({region(destination)}, {expression(value)})"]
        case m.Parallel(names, extents, body):
            head = f"for {', '.join(names)} in T.Parallel({', '.join(map(str, extents))}):"
            return [head, *_indent(_block(body))]
        case m.Store(buffer, indices, value):
            return [f"{_element(buffer, indices)} = {expression(value)}"]
        case m.Assign(name, value, variable):
            text = expression(value, typed=True)
            return [f"{name} = T.alloc_var(T.{value.dtype}, {text})" if variable else f"{name} = {text}"]
        case m.Loop():
            return _loop(node)
        case m.While(name, stop, body):
            return [f"while {name} < {expression(stop)}:", *_indent([*_block(body), f"{name} = {name} + 1"])]
        case m.Leave(condition):
            return [f"if {expression(condition)}:", "    break"]
        case m.If(condition, then, otherwise):
            lines = [f"if {expression(condition)}:", *_indent(_block(then))]
            return [*lines, "else:", *_indent(_block(otherwise))] if otherwise else lines
    raise TypeError(node)


def _loop(node: m.Loop) -> list[str]:
    bounds = [expression(node.stop)]
    if node.step != 1 or node.start != m.Number(0, "int32"):
        bounds = [expression(node.start), *bounds]
    if node.step != 1:
        bounds.append(str(node.step))
    call = {
        "range": "range", "serial": "T.serial", "unroll": "T.unroll", "vectorized": "T.vectorized",
        "pipelined": "T.Pipelined",
    }[node.kind]  # fmt: skip
    if node.kind == "pipelined":
        bounds.append("num_stages=2")
    return [f"for {node.name} in {call}({', '.join(bounds)}):", *_indent(_block(node.body))]


def region(node: m.Region) -> str:
    """A region in its form."""
    if node.form == "whole":
        return node.buffer.name
    if node.form == "point":
        return _element(node.buffer, node.starts)
    parts = []
    declared = node.buffer.declared or tuple(map(str, node.buffer.shape))
    for start, extent, size in zip(node.starts, node.extents, declared, strict=True):
        text = expression(start)
        if str(extent) == size and start == m.Number(0, "int32"):
            parts.append(":")
            continue
        if extent == 1 and any(other > 1 for other in node.extents):
            parts.append(text)
            continue
        parts.append(f"{text}:{start.value + extent}" if isinstance(start, m.Number) else f"{text}:{text} + {extent}")
    return f"{node.buffer.name}[{', '.join(parts)}]"


def _element(buffer: m.Buffer, indices: tuple[m.Expression, ...]) -> str:
    return f"{buffer.name}[{', '.join(expression(index) for index in indices)}]"


def _number(node: m.Number, typed: bool) -> str:
    if isinstance(node.value, float) and not math.isfinite(node.value):
        return f"T.cast(float('{node.value}'), T.{node.dtype})"
    if node.dtype in ("int32", "float32", "bool") and not typed:
        return repr(node.value) if node.value >= 0 else f"({node.value!r})"
    return f"T.{node.dtype}({node.value!r})"


def expression(node: m.Expression, typed: bool = False) -> str:
    """The text of an expression; ``typed`` keeps a number from being a plain Python number."""
    match node:
        case m.Number():
            return _number(node, typed)
        case m.Name(name):
            return name
        case m.Read(buffer, indices):
            return _element(buffer, indices)
        case m.Binary(operator, left, right) if operator in ("min", "max", "truncdiv", "truncmod"):
            return f"T.{operator}({expression(left)}, {expression(right)})"
        case m.Binary(operator, left, right):
            return f"({expression(left)} {_SIGNS[operator]} {expression(right)})"
        case m.Unary("neg", operand):
            return f"(-{expression(operand)})"
        case m.Unary("not", operand):
            return f"(~{expression(operand)})"
        case m.Unary(operator, operand):
            return f"T.{operator}({expression(operand)})"
        case m.Cast(operand, dtype):
            return f"T.cast({expression(operand)}, T.{dtype})"
        case m.Choice(condition, if_true, if_false, ternary):
            a, b = expression(if_true), expression(if_false)
            if ternary:
                return f"({a} if {expression(condition)} else {b})"
            return f"T.if_then_else({expression(condition)}, {a}, {b})"
        case m.Logical(operator, left, right):
            return f"({expression(left)} {operator} {expression(right)})"
    raise TypeError(node)

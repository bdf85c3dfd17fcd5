"""Generic traversal and rewriting of IR trees.

Children are found from the dataclass fields, so a new node needs nothing here. A rewrite that changes nothing returns
the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from typing import Any

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, Load, Var
from ptxtile.ir.statements import Seq, Statement
from ptxtile.ir.tile_ops import Region

_BINDERS = {"var", "vars", "parameters"}  # fields that declare variables rather than use them
_NODE_TYPES = ("Expr", "Statement", "Region", "Role", "Var")


@cache
def _fields_of(cls: type, types: tuple[str, ...]) -> tuple[str, ...]:
    """The fields of ``cls`` whose annotation names one of ``types`` (annotations are strings in this package)."""
    return tuple(f.name for f in fields(cls) if f.name not in _BINDERS and any(name in str(f.type) for name in types))


def _child_fields(cls: type) -> tuple[str, ...]:
    return _fields_of(cls, _NODE_TYPES)


def _buffer_fields(cls: type) -> tuple[str, ...]:
    return _fields_of(cls, ("Buffer",))


def _is_node(value: object) -> bool:
    return isinstance(value, (Expr, Statement, Region))


def children(node: Any) -> Iterator[Any]:
    """The expressions, statements and regions directly inside ``node``, in field order; not the variables it binds."""
    for name in _child_fields(type(node)):
        value = getattr(node, name)
        if _is_node(value):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if _is_node(item))


def walk(node: Any) -> Iterator[Any]:
    """``node`` and everything inside it, outside in."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(tuple(children(current))))


def buffers_of(node: Any) -> Iterator[Buffer]:
    """The buffers that ``node`` itself names (not those of its children)."""
    for name in _buffer_fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, Buffer):
            yield value
        elif isinstance(value, tuple):
            yield from (item for item in value if isinstance(item, Buffer))


def copy_with(node: Any, changes: dict[str, Any]) -> Any:
    """``dataclasses.replace``, but the same object when nothing differs; keeps the location."""
    if all(getattr(node, name) is value for name, value in changes.items()):
        return node
    values = {f.name: getattr(node, f.name) for f in fields(node)}
    values.update(changes)
    return type(node)(**values)


def map_children(node: Any, visit: Callable[[Any], Any]) -> Any:
    """``node`` with ``visit`` applied to each child. A statement inside a Seq may become None (dropped) or a Seq
    (spliced)."""
    if isinstance(node, Seq):
        return _map_seq(node, visit)
    changes: dict[str, Any] = {}
    for name in _child_fields(type(node)):
        value = getattr(node, name)
        if _is_node(value):
            changed = visit(value)
            if changed is None and isinstance(value, Statement):
                changed = Seq(()) if name != "otherwise" else None
            changes[name] = changed
        elif isinstance(value, tuple) and any(_is_node(item) for item in value):
            new = tuple(visit(item) if _is_node(item) else item for item in value)
            changes[name] = value if all(a is b for a, b in zip(new, value, strict=True)) else new
    return copy_with(node, changes)


def _map_seq(node: Seq, visit: Callable[[Any], Any]) -> Seq:
    result: list[Statement] = []
    changed = False
    for statement in node.statements:
        new = visit(statement)
        changed |= new is not statement
        if isinstance(new, Seq):
            result.extend(new.statements)
        elif new is not None:
            result.append(new)
    return Seq(tuple(result), location=node.location) if changed else node


class Rewriter:
    """Rewrites bottom-up by class: define ``rewrite_<ClassName>(self, node)``; the node's children are rewritten
    already.

    To see a node before its children, override :meth:`visit`. Buffers are replaced through :meth:`buffer`.
    """

    def visit(self, node: Any) -> Any:
        node = map_children(node, self.visit)
        node = self._with_buffers(node)
        method = getattr(self, "rewrite_" + type(node).__name__, None)
        return node if method is None else method(node)

    def buffer(self, buffer: Buffer) -> Buffer:
        return buffer

    def _with_buffers(self, node: Any) -> Any:
        changes: dict[str, Any] = {}
        for name in _buffer_fields(type(node)):
            value = getattr(node, name)
            if isinstance(value, Buffer):
                changes[name] = self.buffer(value)
            elif isinstance(value, tuple) and any(isinstance(item, Buffer) for item in value):
                new = tuple(self.buffer(item) if isinstance(item, Buffer) else item for item in value)
                changes[name] = value if all(a is b for a, b in zip(new, value, strict=True)) else new
        return copy_with(node, changes) if changes else node


class _Substitution(Rewriter):
    def __init__(self, values: dict[str, Expr]) -> None:
        self.values = values

    def rewrite_Var(self, node: Var) -> Expr:
        return self.values.get(node.name, node)


def substitute(node: Any, values: dict[str, Expr]) -> Any:
    """``node`` with the variables of the given names replaced."""
    return _Substitution(values).visit(node) if values else node


class _BufferReplacement(Rewriter):
    def __init__(self, buffers: dict[str, Buffer]) -> None:
        self.buffers = buffers

    def buffer(self, buffer: Buffer) -> Buffer:
        return self.buffers.get(buffer.name, buffer)


def replace_buffers(node: Any, buffers: dict[str, Buffer]) -> Any:
    """``node`` with the buffers of the given names replaced."""
    return _BufferReplacement(buffers).visit(node) if buffers else node


def free_variables(expression: Expr) -> set[str]:
    return {node.name for node in walk(expression) if isinstance(node, Var)}


def has_load(expression: Expr) -> bool:
    return any(isinstance(node, Load) for node in walk(expression))

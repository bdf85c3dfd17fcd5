"""Walking through syntax trees, and the pieces of them that the rewriting makes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from typing import TypeVar

FRAME_FACTORY = "__ptxtile_frame__"
"""The free name of a rewritten function that opens its frame."""
FRAME = "__ptxtile__"
"""The local name of the frame in a rewritten function."""
Node = TypeVar("Node", bound=ast.AST)


_PLAIN_FIELDS = {"ctx", "op", "ops", "id", "attr", "arg", "name", "kind", "type_comment"}
"""Fields whose values hold no names, statements or expressions."""


@cache
def _fields_with_nodes(cls: type[ast.AST]) -> tuple[str, ...]:
    return tuple([field for field in cls._fields if field not in _PLAIN_FIELDS])


def child_nodes(node: ast.AST) -> list[ast.AST]:
    """What stands directly inside of ``node``; like ``ast.iter_child_nodes``, without contexts and operators."""
    found: list[ast.AST] = []
    for field in _fields_with_nodes(type(node)):
        value = getattr(node, field, None)
        if isinstance(value, ast.AST):
            found.append(value)
        elif isinstance(value, list):
            found.extend([item for item in value if isinstance(item, ast.AST)])
    return found


def nodes_in(node: ast.AST) -> Iterator[ast.AST]:
    """``node`` and all that is inside of it."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(child_nodes(current))


def at(node: Node, place: ast.AST) -> Node:
    """``node`` and its new children at the position of ``place``; what has a position of its own is left alone."""
    stack: list[ast.AST] = [node]
    while stack:
        child = stack.pop()
        if "lineno" in child._attributes:
            if hasattr(child, "lineno"):
                continue
            ast.copy_location(child, place)
        stack.extend(child_nodes(child))
    return node


def load(name: str) -> ast.Name:
    return ast.Name(name, ast.Load())


def thunk(body: ast.expr) -> ast.Lambda:
    empty = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    return ast.Lambda(empty, body)


def method_call(receiver: str, method: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Attribute(load(receiver), method, ast.Load()), list(arguments), [])


def frame_call(method: str, *arguments: ast.expr) -> ast.Call:
    return method_call(FRAME, method, *arguments)


def strings(names: list[str]) -> ast.Tuple:
    return ast.Tuple([ast.Constant(name) for name in names], ast.Load())


def bind(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)

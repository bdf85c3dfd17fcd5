"""Pieces of syntax trees that the rewriting makes."""

from __future__ import annotations

import ast
from typing import TypeVar

FRAME_FACTORY = "__ptxtile_frame__"
"""The free name of a rewritten function that opens its frame."""
FRAME = "__ptxtile__"
"""The local name of the frame in a rewritten function."""
Node = TypeVar("Node", bound=ast.AST)


def at(node: Node, place: ast.AST) -> Node:
    """``node`` and its new children at the position of ``place``; what has a position of its own is left alone."""
    stack: list[ast.AST] = [node]
    while stack:
        child = stack.pop()
        if "lineno" in child._attributes:
            if hasattr(child, "lineno"):
                continue
            ast.copy_location(child, place)
        stack.extend(ast.iter_child_nodes(child))
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

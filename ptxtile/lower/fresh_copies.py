"""Copies of statements under names of their own, for passes that write a statement more than once."""

from __future__ import annotations

from typing import Any

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, Var
from ptxtile.ir.names import NameSupply
from ptxtile.ir.rewrite import copy_with, map_children, replace_buffers, substitute, walk
from ptxtile.ir.statements import Allocate, For, Let, ParallelFor, Statement, View


def fresh_copy(statement: Statement, values: dict[str, Expr], names: NameSupply) -> Statement:
    """``statement`` with ``values`` for its free variables, and a fresh name for everything that it binds."""
    values, buffers, storages = dict(values), dict[str, Buffer](), dict[str, Any]()
    bound: dict[str, Var] = {}
    for node in walk(statement):
        binders = node.vars if isinstance(node, ParallelFor) else (node.var,) if isinstance(node, (Let, For)) else ()
        for var in binders:
            bound[var.name] = values[var.name] = Var(names.fresh(var.name), var.dtype)
        if isinstance(node, (Allocate, View)):
            old = node.buffer
            if isinstance(node, Allocate):
                storages[old.storage.name] = copy_with(old.storage, {"name": names.fresh(old.storage.name)})
            storage = storages.get(old.storage.name, old.storage)
            name = storage.name if isinstance(node, Allocate) else names.fresh(old.name)
            buffers[old.name] = copy_with(old, {"name": name, "storage": storage})
    return _rebound(replace_buffers(substitute(statement, values), buffers), bound)


def _rebound(node: Any, bound: dict[str, Var]) -> Any:
    """The binding occurrences, which substitution leaves alone."""
    if isinstance(node, Expr):
        return node
    node = map_children(node, lambda child: _rebound(child, bound))
    if isinstance(node, (Let, For)):
        return copy_with(node, {"var": bound[node.var.name]})
    if isinstance(node, ParallelFor):
        return copy_with(node, {"vars": tuple(bound[var.name] for var in node.vars)})
    return node

"""The part of a kernel that decides which TMA loads happen, when and where: what the producer role has to run.

The slice keeps the loads, the control flow around them, and the scalars that these need. It is refused when it would
need a value that only the consumers have (read from shared memory, fragments or a tensor that the kernel writes) or
that differs between threads.
"""

from __future__ import annotations

from typing import Any

from ptxtile.ir.buffers import Buffer, Scope, Storage
from ptxtile.ir.effects import atomic_write, private_results
from ptxtile.ir.expressions import Expr, Load, Var
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.rewrite import children, copy_with, map_children, replace_buffers, substitute, walk
from ptxtile.ir.statements import (
    Allocate,
    Break,
    Continue,
    For,
    If,
    Let,
    ParallelFor,
    Seq,
    Statement,
    Store,
    While,
    seq,
)
from ptxtile.ir.tile_ops import Copy, CopyPath, Fill
from ptxtile.lower.thread_dependence import ThreadDependence
from ptxtile.lower.tma_groups import GroupedLoads

SUFFIX = "_producer"


class SliceRefused(Exception):
    """The loads depend on something that the producer cannot compute; the text is the reason."""


def producer_slice(program: Program, kernel: Kernel) -> Statement:
    """The statements that the producer runs, under fresh names. Raises :class:`SliceRefused`."""
    skeleton = _skeleton(kernel.body)
    assert skeleton is not None
    needed: set[str] = set()
    while True:
        found = _needed(skeleton, needed)
        if found == needed:
            break
        needed = found
    skeleton = _drop_unneeded(skeleton, needed)
    assert skeleton is not None
    _check(program, kernel, skeleton)
    return _renamed(skeleton)


def _skeleton(node: Statement) -> Statement | None:
    """``node`` without what cannot matter; None when nothing is left."""
    if isinstance(node, Copy):
        return node if node.path is CopyPath.TMA_LOAD else None
    if isinstance(node, (GroupedLoads, Let, Break, Continue)):
        return node
    if isinstance(node, Allocate):
        return node if node.buffer.scope is Scope.LOCAL else None
    if isinstance(node, Store):
        return node if node.buffer.scope is Scope.LOCAL else None
    if isinstance(node, Seq):
        kept = [part for part in map(_skeleton, node.statements) if part is not None]
        return Seq(tuple(kept), location=node.location) if kept else None
    if isinstance(node, ParallelFor):
        return None
    if isinstance(node, (For, While)):
        body = _skeleton(node.body)
        return None if body is None else copy_with(node, {"body": body})
    if isinstance(node, If):
        then = _skeleton(node.then)
        otherwise = None if node.otherwise is None else _skeleton(node.otherwise)
        if then is None and otherwise is None:
            return None
        return copy_with(node, {"then": then or Seq(()), "otherwise": otherwise})
    return None


def _names(expression: Any) -> set[str]:
    """Variables and private storages that an expression reads."""
    found: set[str] = set()
    for node in walk(expression):
        if isinstance(node, Var):
            found.add(node.name)
        elif isinstance(node, Load) and node.buffer.scope is Scope.LOCAL:
            found.add(node.buffer.storage.name)
    return found


def _matters(node: Any) -> bool:
    """Whether a statement steers or issues loads, and so must stay together with all that it reads."""
    return any(isinstance(inner, (Copy, Break, Continue)) for inner in walk(node))


def _needed(node: Any, needed: set[str]) -> set[str]:
    result = set(needed)
    if isinstance(node, Copy):
        for region in (node.source, node.destination):
            for start in region.starts:
                result |= _names(start)
        return result
    if isinstance(node, Let):
        return result | _names(node.value) if node.var.name in needed else result
    if isinstance(node, Store):
        if node.buffer.storage.name in needed:
            result |= _names(node.value).union(*(_names(index) for index in node.indices))
        return result
    if isinstance(node, (For, While, If)) and (_matters(node) or _writes_any(node, needed)):
        for child in children(node):
            if isinstance(child, Expr):
                result |= _names(child)
    for child in children(node):
        if isinstance(child, Statement):
            result |= _needed(child, needed)
    return result


def _writes_any(node: Any, needed: set[str]) -> bool:
    return any(isinstance(inner, Store) and inner.buffer.storage.name in needed for inner in walk(node))


def _drop_unneeded(node: Statement, needed: set[str]) -> Statement | None:
    if isinstance(node, Let):
        return node if node.var.name in needed else None
    if isinstance(node, (Store, Allocate)):
        return node if node.buffer.storage.name in needed else None
    if isinstance(node, Seq):
        kept = [part for part in (_drop_unneeded(s, needed) for s in node.statements) if part is not None]
        return seq(*kept) if kept else None
    if isinstance(node, (For, While)):
        body = _drop_unneeded(node.body, needed)
        return None if body is None else copy_with(node, {"body": body})
    if isinstance(node, If):
        then = _drop_unneeded(node.then, needed)
        otherwise = None if node.otherwise is None else _drop_unneeded(node.otherwise, needed)
        if then is None and otherwise is None:
            return None
        return copy_with(node, {"then": then or Seq(()), "otherwise": otherwise})
    return node


def _check(program: Program, kernel: Kernel, skeleton: Statement) -> None:
    written = {
        node.buffer.storage.name if isinstance(node, Store) else node.destination.buffer.storage.name
        for node in walk(kernel.body)
        if isinstance(node, (Store, Copy, Fill))
    }
    written |= {buffer.storage.name for buffer in map(atomic_write, walk(kernel.body)) if buffer is not None}
    groups = {p.name: p.alias_group for p in program.parameters if isinstance(p, TensorParameter)}
    written_groups = {groups[name] for name in written if groups.get(name) is not None}
    uniformity = ThreadDependence(kernel)
    results = {buffer.storage.name for node in walk(kernel.body) for buffer in private_results(node)}
    for node in walk(skeleton):
        if isinstance(node, Load) and node.buffer.storage.name in results:
            raise SliceRefused(f"a load depends on {node.buffer.name}, the result of an operation that runs once")
        if isinstance(node, Load) and node.buffer.scope in (Scope.SHARED, Scope.FRAGMENT):
            raise SliceRefused(f"a load's position depends on {node.buffer.name}, which only the consumers have")
        if isinstance(node, Load) and node.buffer.scope is Scope.GLOBAL:
            name = node.buffer.storage.name
            if name in written or groups.get(name) in written_groups:
                raise SliceRefused(f"a load's position depends on {name}, which the kernel writes")
        if isinstance(node, Copy):
            name = node.source.buffer.storage.name
            if name in written or groups.get(name) in written_groups:
                raise SliceRefused(
                    f"the kernel writes {name}, which it also loads: the order would be lost between roles"
                )
        if isinstance(node, (For, If, While)) and not all(
            uniformity.is_uniform(child) for child in children(node) if isinstance(child, Expr)
        ):
            raise SliceRefused("the control flow around a load depends on the thread")


def _renamed(skeleton: Statement) -> Statement:
    """The slice with its own names for everything that it binds, since the consumers bind the same."""
    variables: dict[str, Expr] = {}
    buffers: dict[str, Buffer] = {}
    for node in walk(skeleton):
        if isinstance(node, (Let, For)):
            variables[node.var.name] = Var(node.var.name + SUFFIX, node.var.dtype)
        elif isinstance(node, Allocate):
            old = node.buffer
            storage = Storage(old.storage.name + SUFFIX, old.scope, old.storage.size, old.storage.alignment)
            buffers[old.name] = copy_with(old, {"name": old.name + SUFFIX, "storage": storage})
    skeleton = replace_buffers(substitute(skeleton, variables), buffers)
    return _rebound(skeleton, variables)


def _rebound(node: Any, variables: dict[str, Expr]) -> Any:
    """Let and For with their binding occurrence renamed too (substitution only reaches uses)."""
    node = node if isinstance(node, Expr) else map_children(node, lambda child: _rebound(child, variables))
    if isinstance(node, (Let, For)) and node.var.name in variables:
        return copy_with(node, {"var": variables[node.var.name]})
    return node

"""The part of a kernel that decides which TMA loads happen, when and where: what the producer role has to run.

The slice keeps the loads, the control flow around them, and the scalars and tables that these need. A table is an array
that each thread has for itself, or a fragment of which single elements are used: where its elements come from global
memory or from scalars, the producer fills one of its own. The slice is refused when it would need a value that only the
consumers have (read from shared memory, from what a parallel loop or a gemm leaves in a fragment, or from a tensor that
the kernel writes) or that differs between threads.
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
    View,
    While,
    seq,
)
from ptxtile.ir.tile_ops import Copy, CopyPath, Fill, Gemm
from ptxtile.lower.thread_dependence import ThreadDependence
from ptxtile.lower.tma_groups import GroupedLoads

SUFFIX = "_producer"

_TABLES = (Scope.LOCAL, Scope.FRAGMENT)


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
        scopes = node.source.buffer.scope, node.destination.buffer.scope
        fills = scopes[0] is not Scope.SHARED and scopes[1] in _TABLES
        return node if fills or _is_load(node) else None
    if isinstance(node, Fill):
        return node if node.destination.buffer.scope in _TABLES else None
    if isinstance(node, (GroupedLoads, Let, Break, Continue)):
        return node
    if isinstance(node, (Allocate, Store)):
        return node if node.buffer.scope in _TABLES else None
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
        elif isinstance(node, Load) and node.buffer.scope in _TABLES:
            found.add(node.buffer.storage.name)
    return found


def _matters(node: Any) -> bool:
    """Whether a statement steers or issues loads, and so must stay together with all that it reads."""
    return any(isinstance(n, (Break, Continue)) or (isinstance(n, Copy) and _is_load(n)) for n in walk(node))


def _is_load(copy: Copy) -> bool:
    return copy.path is CopyPath.TMA_LOAD


def _filled(node: Any) -> str | None:
    """The storage that a statement writes, which is a table's."""
    if isinstance(node, Store):
        return node.buffer.storage.name
    if isinstance(node, Fill) or (isinstance(node, Copy) and not _is_load(node)):
        return node.destination.buffer.storage.name
    return None


def _needed(node: Any, needed: set[str]) -> set[str]:
    result = set(needed)
    if isinstance(node, Copy):
        if _is_load(node) or _filled(node) in needed:
            for region in (node.source, node.destination):
                result = result.union(*(_names(start) for start in region.starts))
            if node.source.buffer.scope in _TABLES:
                result.add(node.source.buffer.storage.name)
        return result
    if isinstance(node, Let):
        return result | _names(node.value) if node.var.name in needed else result
    if isinstance(node, Fill):
        if _filled(node) in needed:
            result |= _names(node.value).union(*(_names(start) for start in node.destination.starts))
        return result
    if isinstance(node, Store):
        if _filled(node) in needed:
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
    return any(_filled(inner) in needed for inner in walk(node))


def _drop_unneeded(node: Statement, needed: set[str]) -> Statement | None:
    if isinstance(node, Let):
        return node if node.var.name in needed else None
    if isinstance(node, Allocate):
        return node if node.buffer.storage.name in needed else None
    filled = _filled(node)
    if filled is not None:
        return node if filled in needed else None
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
        for node in walk(kernel.body, Store, Copy, Fill)
    }
    written |= {buffer.storage.name for buffer in map(atomic_write, walk(kernel.body)) if buffer is not None}
    groups = {p.name: p.alias_group for p in program.parameters if isinstance(p, TensorParameter)}
    written_groups = {groups[name] for name in written if groups.get(name) is not None}
    uniformity = ThreadDependence(kernel)
    tables = {node.buffer.storage.name for node in walk(skeleton) if isinstance(node, Allocate)}
    elsewhere = _written_elsewhere(kernel.body)
    results = {buffer.storage.name for node in walk(kernel.body) for buffer in private_results(node)}
    for node in walk(skeleton):
        if isinstance(node, Load) and node.buffer.storage.name in results:
            raise SliceRefused(f"a load depends on {node.buffer.name}, the result of an operation that runs once")
        read = node.source.buffer if isinstance(node, Copy) else node.buffer if isinstance(node, Load) else None
        if read is not None and read.scope is not Scope.GLOBAL:
            own = read.scope in _TABLES and read.storage.name in tables - elsewhere
            if not own:
                raise SliceRefused(f"a load's position depends on {read.name}, which only the consumers have")
            if uniformity.depends_on_thread(read):
                raise SliceRefused(f"a load's position depends on {read.name}, which differs between threads")
            continue
        if isinstance(node, Load) and node.buffer.scope is Scope.GLOBAL:
            name = node.buffer.storage.name
            if name in written or groups.get(name) in written_groups:
                raise SliceRefused(f"a load's position depends on {name}, which the kernel writes")
        if isinstance(node, Copy):
            name = node.source.buffer.storage.name
            if (name in written or groups.get(name) in written_groups) and not _is_load(node):
                raise SliceRefused(f"a load's position depends on {name}, which the kernel writes")
            if name in written or groups.get(name) in written_groups:
                raise SliceRefused(
                    f"the kernel writes {name}, which it also loads: the order would be lost between roles"
                )
        if isinstance(node, (For, If, While)) and not all(
            uniformity.is_uniform(child) for child in children(node) if isinstance(child, Expr)
        ):
            raise SliceRefused("the control flow around a load depends on the thread")


def _written_elsewhere(node: Any) -> set[str]:
    """Tables with elements that the slice cannot have: from parallel loops, gemms, shared memory, or by other ways than
    plain stores, copies and fills."""
    if isinstance(node, Copy):
        from_shared = node.source.buffer.scope is Scope.SHARED
        return {node.destination.buffer.storage.name} if from_shared else set()
    if isinstance(node, ParallelFor):
        return {n.buffer.storage.name for n in walk(node.body) if isinstance(n, Store)}
    if isinstance(node, Gemm):
        return {node.accumulator.buffer.storage.name}
    if isinstance(node, View):
        return {node.buffer.storage.name}
    return set().union(*(_written_elsewhere(child) for child in children(node) if isinstance(child, Statement)))


def _renamed(skeleton: Statement) -> Statement:
    """The slice with its own names for everything that it binds, since the consumers bind the same."""
    variables: dict[str, Expr] = {}
    buffers: dict[str, Buffer] = {}
    for node in walk(skeleton):
        if isinstance(node, (Let, For)):
            variables[node.var.name] = Var(node.var.name + SUFFIX, node.var.dtype)
        elif isinstance(node, Allocate):
            old = node.buffer
            storage = Storage(old.storage.name + SUFFIX, Scope.LOCAL, old.storage.size, old.storage.alignment)
            buffers[old.name] = copy_with(old, {"name": old.name + SUFFIX, "storage": storage, "layout": None})
    skeleton = replace_buffers(substitute(skeleton, variables), buffers)
    return _rebound(skeleton, variables)


def _rebound(node: Any, variables: dict[str, Expr]) -> Any:
    """Let and For with their binding occurrence renamed too (substitution only reaches uses)."""
    node = node if isinstance(node, Expr) else map_children(node, lambda child: _rebound(child, variables))
    if isinstance(node, (Let, For)) and node.var.name in variables:
        return copy_with(node, {"var": variables[node.var.name]})
    return node

"""What the user's own barrier waits make safe to use.

Input: gpu stage. Output: the same; a wait that names no buffers (``T.barrier_wait`` and its kin; the compiler's own
name theirs) retires the tiles that TMA loads onto its barrier, and those that other roles touch which arrive on it.
What the user synchronizes by hand is kept as it was written; with this the automatic barriers and fences fit in around
it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.cluster_ops import MbarrierArriveRemote
from ptxtile.ir.expressions import Expr
from ptxtile.ir.gpu_ops import MbarrierArrive, MbarrierArriveExpectTx, MbarrierWait, TmaLoad
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import buffers_of, copy_with, map_children, walk
from ptxtile.ir.statements import Allocate, Role
from ptxtile.lower.options import Options
from ptxtile.target import Target


def run(program: Program, target: Target, options: Options) -> Program:
    kernels = tuple(_resolved(kernel) for kernel in program.kernels)
    unchanged = all(a is b for a, b in zip(kernels, program.kernels, strict=True))
    return program if unchanged else replace(program, kernels=kernels)


def _resolved(kernel: Kernel) -> Kernel:
    if not any(not node.retires for node in walk(kernel.body, MbarrierWait)):
        return kernel
    loaded: dict[str, dict[str, Buffer]] = {}
    for node in walk(kernel.body):
        if isinstance(node, TmaLoad):
            loaded.setdefault(node.barrier.storage.name, {})[node.shared.storage.name] = node.shared
    roles = list(walk(kernel.body, Role))
    handed: dict[str, dict[str, dict[str, Buffer]]] = {}  # barrier → role that arrives → what it touches
    for role in roles:
        own = {node.buffer.storage.name for node in walk(role.body, Allocate)}
        touched = {
            b.storage.name: b
            for n in walk(role.body)
            for b in buffers_of(n)
            if b.scope is Scope.SHARED and b.storage.name not in own  # no other role sees what is declared in this one
        }
        for node in walk(role.body):
            if isinstance(node, (MbarrierArrive, MbarrierArriveExpectTx, MbarrierArriveRemote)):
                handed.setdefault(node.barrier.storage.name, {})[role.name] = touched
    body = _visit(kernel.body, "", loaded, handed)
    return kernel if body is kernel.body else replace(kernel, body=body)


def _visit(
    node: Any, role: str, loaded: dict[str, dict[str, Buffer]], handed: dict[str, dict[str, dict[str, Buffer]]]
) -> Any:
    if isinstance(node, Expr):
        return node
    if isinstance(node, MbarrierWait) and not node.retires:
        barrier = node.barrier.storage.name
        found = dict(loaded.get(barrier, {}))
        for other, touched in handed.get(barrier, {}).items():
            if other != role:
                found |= touched
        return copy_with(node, {"retires": tuple(found[name] for name in sorted(found))}) if found else node
    role = node.name if isinstance(node, Role) else role
    return map_children(node, lambda child: _visit(child, role, loaded, handed))

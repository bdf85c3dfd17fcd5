"""T.pdl_sync becomes one wait among the kernel's own statements, which every thread runs.

Input: tile stage, control flow checked. Output: the same, where a kernel has at most one
:class:`~ptxtile.ir.grid_dependency_ops.GridDependencyWait`, in its own statements. The first that a thread may come to
counts, for what it waited for stays complete. Inside of a loop, a branch or a role it moves in front of that: a wait of
one role would not hold back the others, and one that came earlier only waits for more. What lies in front of it may
overlap the kernels that are waited for, which are what the user says are not touched there; so no pass moves an access
to global memory up over it.

Where the target has no griddepcontrol, its ops are left out: launches come one after the other there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.expressions import Expr
from ptxtile.ir.grid_dependency_ops import GRID_DEPENDENCY_OPS, GridDependencyWait, waits_for_prerequisites
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import contains, map_children, walk
from ptxtile.ir.statements import For, If, Seq, Specialized, Statement, While, seq
from ptxtile.lower.options import Options
from ptxtile.target import Feature, Target

PASS_NAME = "hoist_dependency_waits"
_PLACES = {For: "a loop", While: "a loop", If: "a branch", Specialized: "T.ws"}


def run(program: Program, target: Target, options: Options) -> Program:
    kernels: list[Kernel] = []
    why: list[Why] = []
    for kernel in program.kernels:
        if not target.has(Feature.GRID_DEPENDENCY) and contains(kernel.body, *GRID_DEPENDENCY_OPS):
            first = next(node for node in walk(kernel.body) if isinstance(node, GRID_DEPENDENCY_OPS))
            kernel = replace(kernel, body=without(kernel.body, GRID_DEPENDENCY_OPS))
            reason = f"{target.name} has no griddepcontrol: a launch begins when the one in front of it is complete"
            why.append(Why(PASS_NAME, kernel.name, "no T.pdl_sync, no T.pdl_trigger", reason, first.location))
        elif waits_for_prerequisites(kernel.body):
            kernel, moved = _hoisted(kernel)
            why += moved
        kernels.append(kernel)
    unchanged = all(new is old for new, old in zip(kernels, program.kernels, strict=True))
    return program if unchanged else replace(program, kernels=tuple(kernels)).with_why(*why)


def without(node: Any, kinds: type | tuple[type, ...]) -> Any:
    """``node`` without the statements of ``kinds``."""
    if isinstance(node, kinds):
        return Seq(())
    return node if isinstance(node, Expr) else map_children(node, lambda child: without(child, kinds))


def take_wait(body: Statement) -> tuple[tuple[GridDependencyWait, ...], Statement]:
    """The waits of ``body``, the first one first, and ``body`` without them."""
    if not waits_for_prerequisites(body):
        return (), body
    waits = tuple(node for node in walk(body) if isinstance(node, GridDependencyWait))
    return waits, without(body, GridDependencyWait)


def _hoisted(kernel: Kernel) -> tuple[Kernel, list[Why]]:
    statements = kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)
    position = next(k for k, statement in enumerate(statements) if waits_for_prerequisites(statement))
    statement = statements[position]
    waits, _ = take_wait(statement)
    rest = [without(other, GridDependencyWait) for other in statements[position:]]
    kernel = replace(kernel, body=seq(*statements[:position], waits[0], *rest))
    if statement is waits[0]:
        return kernel, []
    place = next((words for kind, words in _PLACES.items() if isinstance(statement, kind)), "a statement")
    reason = f"all threads have to run it, and it stands inside of {place}"
    return kernel, [Why(PASS_NAME, "T.pdl_sync", f"moved in front of {place}", reason, waits[0].location)]

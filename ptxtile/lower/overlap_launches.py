"""Kernels may start before the one in front of them on the stream has ended, and wait for it before they touch memory.

Input: gpu stage, synchronization inserted. Output: the same, where a kernel that accesses global memory, on a target
with griddepcontrol, has a :class:`~ptxtile.ir.grid_dependency_ops.GridDependencyWait` in front of the first of its own
statements that may do so; ``complete_launch`` gives a kernel with a wait the launch attribute «programmatic stream
serialization». The launch of its blocks and its prologue (mbarriers, tensor maps, the first barrier) then overlap the
end of the kernel in front.

Why this is always right. PTX ISA, «griddepcontrol»: the wait lasts until the prerequisite grids have completed and
their accesses to memory are performed and visible. CUDA Programming Guide, «Programmatic Dependent Launch and
Synchronization»: without an explicit trigger the dependent grid starts when all blocks of the one in front have ended;
with one, earlier; a launch without the attribute starts when all in front of it are complete.

- Every thread runs the wait, once, before it accesses global memory: what is in front of it consists of statements
  from a list (:data:`_ON_CHIP`) that touch registers and shared memory of the own CTA or cluster, all in the kernel's
  own sequence of statements, where no thread is missing. So nothing that others can see happens before, and nothing
  that others write is read before. Kernel parameters, tensor maps among them, are the launch's own memory.
- The grid completes only after its wait has, so behind it «this grid has completed» means «all in front of it have»,
  for any number of dependent launches in a row. For the same reason a kernel without a wait is launched without the
  attribute: one behind it would wait for it alone.
- The emitter does not claim that tensors stay as they are while the kernel runs (:mod:`ptxtile.nvvm.kernel`), so no
  load moves up over the wait.

A kernel in which the user wrote T.pdl_sync keeps that wait and gets none of ours. Cooperative launches keep the order
of the stream: CUDA's documentation does not say what both attributes together mean.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Scope
from ptxtile.ir.cluster_ops import ClusterArrive, ClusterWait
from ptxtile.ir.expressions import Load
from ptxtile.ir.gpu_ops import BarSync, FenceMbarrierInit, FenceProxyAsync, MbarrierInit, PrefetchTensorMap
from ptxtile.ir.grid_dependency_ops import GridDependencyWait, LaunchDependents, waits_for_prerequisites
from ptxtile.ir.manual_ops import GridSync
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import contains, walk
from ptxtile.ir.statements import Allocate, For, If, Let, Seq, Statement, Store, seq
from ptxtile.lower.options import Options
from ptxtile.target import Feature, Target

PASS_NAME = "overlap_launches"

_ON_CHIP = (
    Seq, If, For, Let, Allocate, Store, MbarrierInit, FenceMbarrierInit, FenceProxyAsync, PrefetchTensorMap, BarSync,
    ClusterArrive, ClusterWait, LaunchDependents,
)  # fmt: skip
"""Statements that access no global memory, unless a Load or Store of a global buffer stands in them."""


def run(program: Program, target: Target, options: Options) -> Program:
    if not target.has(Feature.GRID_DEPENDENCY):
        return program
    kernels: list[Kernel] = []
    why: list[Why] = []
    for kernel in program.kernels:
        kernel, decision, reason = _overlapped(kernel, options)
        why.append(Why(PASS_NAME, kernel.name, decision, reason, kernel.location))
        kernels.append(kernel)
    return replace(program, kernels=tuple(kernels)).with_why(*why)


def _overlapped(kernel: Kernel, options: Options) -> tuple[Kernel, str, str]:
    """The kernel, what was decided, and why."""
    in_order, early = "starts after the kernel in front", "may start before the kernel in front has ended"
    if contains(kernel.body, GridSync):
        return kernel, in_order, "the launch is cooperative (T.sync_grid)"
    if waits_for_prerequisites(kernel.body):
        return kernel, early, "and waits for it at T.pdl_sync"
    if not options.dependent_launch:
        return kernel, in_order, "switched off by dependent_launch=False"
    statements = kernel.body.statements if isinstance(kernel.body, Seq) else (kernel.body,)
    position = first_access(statements)
    if position == len(statements):
        return kernel, in_order, "it accesses no tensor, so it has nothing to wait for"
    wait = GridDependencyWait(location=statements[position].location)
    body = seq(*statements[:position], wait, *statements[position:])
    what = f"and waits for it behind {position} of its {len(statements)} statements, which access no tensor"
    return replace(kernel, body=body), early, what


def first_access(statements: tuple[Statement, ...]) -> int:
    """The position of the first of a kernel's own statements that may access global memory, roles and loops included;
    as many as there are, if none does."""
    stays = (all(_is_on_chip(node) for node in walk(statement)) for statement in statements)
    return next((position for position, on_chip in enumerate(stays) if not on_chip), len(statements))


def _is_on_chip(node: Any) -> bool:
    if isinstance(node, Statement) and not isinstance(node, _ON_CHIP):
        return False
    return not (isinstance(node, (Load, Store)) and node.buffer.scope is Scope.GLOBAL)

"""Refuses tile operations that only part of a CTA's threads would reach.

A copy, a fill or a parallel loop is carried out by all threads together. Under a condition that differs between threads
it would hang or leave elements out, so that is an error at the user's line. So is an element of a fragment that threads
write with different values.
"""

from __future__ import annotations

from typing import Any

from ptxtile.errors import Location, LoweringError
from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import Expr
from ptxtile.ir.gpu_ops import BarSync
from ptxtile.ir.grid_dependency_ops import GridDependencyWait
from ptxtile.ir.manual_ops import BarReduce, GridSync
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import children, walk
from ptxtile.ir.statements import For, If, LoopKind, ParallelFor, Store, While
from ptxtile.ir.tile_ops import Copy, Fill, Gemm
from ptxtile.lower.options import Options
from ptxtile.lower.thread_dependence import ThreadDependence
from ptxtile.target import Target

_TILE_OPERATIONS = {Copy: "copy", Fill: "fill", ParallelFor: "T.Parallel loop", Gemm: "gemm"}

_REDUCTIONS = {"popc": "T.syncthreads_count", "and": "T.syncthreads_and", "or": "T.syncthreads_or"}


def run(program: Program, target: Target, options: Options) -> Program:
    for kernel in program.kernels:
        _check(kernel.body, ThreadDependence(kernel), None)
    return program


def _check(node: Any, uniformity: ThreadDependence, divergence: Location | str | None) -> None:
    name = _TILE_OPERATIONS.get(type(node))
    if isinstance(node, (BarSync, BarReduce)) and node.id == 0:
        name = "T.sync_threads()" if isinstance(node, BarSync) else _REDUCTIONS[node.mode]
    elif isinstance(node, GridSync):
        name = "T.sync_grid()"
    elif isinstance(node, GridDependencyWait):
        name = "T.pdl_sync()"
    if name and divergence is not None:
        raise LoweringError(
            f"this {name} is reached by only some of the threads",
            location=node.location,
            expected="control flow that is the same in all threads of the CTA around a tile operation",
            got=f"a condition, loop bound or way out of a loop that depends on the thread ({divergence})",
            hint="move it out of the condition: a thread that has not waited may read what is not yet written"
            if isinstance(node, GridDependencyWait)
            else "move it out of the condition; some of the warps meet with T.sync_threads(barrier_id, arrive_count)"
            if isinstance(node, (BarSync, BarReduce, GridSync))
            else "move the condition inside a T.Parallel loop, or make it depend on block indices and sizes only",
        )
    if isinstance(node, For) and node.kind is LoopKind.PIPELINED:
        _check_pipelined(node)
    if isinstance(node, ParallelFor):
        return
    if isinstance(node, Store):
        _check_element(node, uniformity, divergence)
    if isinstance(node, (For, While)):
        divergent = node if not uniformity.bounds_are_uniform(node) else uniformity.divergent_exit(node)
    else:
        divergent = node if isinstance(node, If) and not uniformity.is_uniform(node.condition) else None
    if divergent is not None:
        divergence = divergent.location or "thread-dependent"
    for child in children(node):
        if not isinstance(child, Expr):
            _check(child, uniformity, divergence)


def _check_element(store: Store, uniformity: ThreadDependence, divergence: Location | str | None) -> None:
    """An element of a fragment has one value. Of a fragment with one element, which is a scalar, each thread may have
    its own."""
    if store.buffer.scope is not Scope.FRAGMENT or store.buffer.elements == 1:
        return
    if divergence is not None or not all(uniformity.is_uniform(e) for e in (*store.indices, store.value)):
        raise LoweringError(
            f"not all threads write the same to an element of the fragment {store.buffer.name} outside of T.Parallel",
            location=store.location,
            expected="a value and an index that all threads agree on, as each of them holds the whole fragment",
            got=f"a condition that depends on the thread ({divergence})"
            if divergence
            else "one that depends on the thread",
            hint="T.alloc_local makes an array of each thread's own",
        )


def _check_pipelined(loop: For) -> None:
    """Loads of a pipelined loop run ahead, also of a barrier of the grid inside of it."""
    stages = loop.option("num_stages")
    barrier = next(walk(loop.body, GridSync), None)
    if barrier is not None and isinstance(stages, int) and stages > 1:
        raise LoweringError(
            "T.sync_grid() in a pipelined loop",
            location=barrier.location,
            expected="a loop whose copies do not run ahead",
            got=f"num_stages={stages}",
            hint="use T.serial for this loop",
        )

"""Atomic operations, prints and assertions outside of parallel loops are done by one thread; all threads get the
result.

Input: async stage. Output: the same. ``T.atomic_add(count[0], 1)`` at block level means one addition by the block, as
``C[0] = x`` means one store (:mod:`ptxtile.lower.elect_stores`). The value from before is handed over in shared memory;
``insert_synchronization`` orders that. An operation whose address, value or condition depends on the thread is the
user's own per-thread code and stays.

A print or an assertion of what all threads agree on is done by one thread, too.

An operation that releases comes after what *all* threads of the block did before it, one that acquires before what they
do next: barriers stand around it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.atomic_ops import ACQUIRING, ATOMIC_OPS, RELEASING, Atomic, AtomicLoad, AtomicStore
from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Expr, Load, constant
from ptxtile.ir.gpu_ops import BarSync
from ptxtile.ir.manual_ops import DeviceAssert
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import children, contains, copy_with, map_children
from ptxtile.ir.statements import Allocate, For, If, ParallelFor, Role, Statement, Store, While, seq
from ptxtile.ir.tile_ops import Print
from ptxtile.lower.options import Options
from ptxtile.lower.thread_dependence import ThreadDependence
from ptxtile.target import Target

WARP = 32

AtomicOp = Atomic | AtomicLoad | AtomicStore


def run(program: Program, target: Target, options: Options) -> Program:
    names = NameSupply(program)
    return replace(program, kernels=tuple(_elected(kernel, names) for kernel in program.kernels))


def _elected(kernel: Kernel, names: NameSupply) -> Kernel:
    if not contains(kernel.body, *ATOMIC_OPS, Print, DeviceAssert):
        return kernel
    body = _Election(kernel, names).visit(kernel.body, divergent=False)
    return kernel if body is kernel.body else replace(kernel, body=body)


class _Election:
    def __init__(self, kernel: Kernel, names: NameSupply) -> None:
        self.kernel, self.names = kernel, names
        self.uniformity = ThreadDependence(kernel)
        self.group = (0, kernel.user_threads or kernel.threads)

    def visit(self, node: Any, divergent: bool) -> Any:
        if isinstance(node, (ParallelFor, Expr)) or not isinstance(node, Statement):
            return node
        if isinstance(node, ATOMIC_OPS):
            return self._atomic(node, divergent)
        if isinstance(node, (Print, DeviceAssert)):
            return self._message(node, divergent)
        if isinstance(node, Role):
            outer, self.group = self.group, (node.first_thread, node.threads)
            node = copy_with(node, {"body": self.visit(node.body, divergent)})
            self.group = outer
            return node
        if isinstance(node, (For, While)):
            divergent |= (
                not self.uniformity.bounds_are_uniform(node) or self.uniformity.divergent_exit(node) is not None
            )
        elif isinstance(node, If):
            divergent |= not self.uniformity.is_uniform(node.condition)
        return map_children(node, lambda child: self.visit(child, divergent))

    def _atomic(self, node: AtomicOp, divergent: bool) -> Statement:
        if divergent or not all(self.uniformity.is_uniform(e) for e in children(node) if isinstance(e, Expr)):
            return node
        first, threads = self.group
        barrier = BarSync(0, -(-threads // WARP) * WARP, location=node.location)
        before = [barrier] if node.order in RELEASING and not isinstance(node, AtomicLoad) else []
        after = [barrier] if node.order in ACQUIRING and not isinstance(node, AtomicStore) else []
        is_first = self.kernel.thread.eq(first)
        result = None if isinstance(node, AtomicStore) else node.result
        if result is None:
            return seq(*before, If(is_first, node, location=node.location), *after)
        return seq(*before, *self._handed_over(node, result, is_first), *after)

    def _message(self, node: Print | DeviceAssert, divergent: bool) -> Statement:
        if divergent or not all(self.uniformity.is_uniform(e) for e in children(node) if isinstance(e, Expr)):
            return node
        return If(self.kernel.thread.eq(self.group[0]), node, location=node.location)

    def _handed_over(self, node: AtomicOp, result: Buffer, is_first: Expr) -> list[Statement]:
        location = node.location
        own = allocate(self.names.fresh(f"{result.name}_first"), Scope.LOCAL, result.dtype, ())
        slot = allocate(self.names.fresh(f"{result.name}_slot"), Scope.SHARED, result.dtype, (1,))
        zero = (constant(0),)
        elected = seq(
            Allocate(own, location=location),
            copy_with(node, {"result": own}),
            Store(slot, zero, Load(own, (), own.dtype), location=location),
        )
        return [
            Allocate(slot, location=location),
            If(is_first, elected, location=location),
            Store(result, (), Load(slot, zero, slot.dtype), location=location),
        ]

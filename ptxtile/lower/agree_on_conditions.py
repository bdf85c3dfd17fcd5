"""Control flow that depends on memory which the kernel writes: one thread evaluates it, all threads follow.

Input: async stage, scalar stores elected. Output: the same. ``if C[0] > 0: …`` around tile operations must take one way
in all threads of the CTA, and other CTAs or the branch itself may write ``C[0]`` while the threads read it. So where a
condition or loop bound depends on a tensor that the kernel stores to, one thread reads it and hands the answer over in
shared memory; ``insert_synchronization`` orders the rest. Conditions that depend on the thread are the user's own
per-thread code and stay.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.effects import writes_global
from ptxtile.ir.expressions import Const, Expr, Load, Unary, Var, constant, constant_value
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.rewrite import copy_with, map_children, walk
from ptxtile.ir.statements import Allocate, Break, For, If, Let, ParallelFor, Role, Statement, Store, While, seq
from ptxtile.ir.types import bool_
from ptxtile.lower.options import Options
from ptxtile.lower.thread_dependence import ThreadDependence
from ptxtile.target import Target

_PRIVATE = (Scope.LOCAL, Scope.REGISTER, Scope.FRAGMENT)


def run(program: Program, target: Target, options: Options) -> Program:
    names = NameSupply(program)
    groups = {
        p.buffer.storage.name: f"alias group {p.alias_group}"
        for p in program.parameters
        if isinstance(p, TensorParameter) and p.alias_group is not None
    }
    kernels = tuple(_agree(kernel, groups, names) for kernel in program.kernels)
    return replace(program, kernels=kernels)


def _agree(kernel: Kernel, groups: dict[str, str], names: NameSupply) -> Kernel:
    unstable = _Unstable(kernel, groups)
    if not unstable.written:
        return kernel
    body = _Agreement(kernel, unstable, names).visit(kernel.body)
    return kernel if body is kernel.body else replace(kernel, body=body)


class _Unstable:
    """Which scalars come from memory that the kernel's own stores, or those of another CTA, may change meanwhile."""

    def __init__(self, kernel: Kernel, groups: dict[str, str]) -> None:
        self.groups = groups
        stores = list(walk(kernel.body, Store))
        self.written = {self._memory(s.buffer) for s in stores if s.buffer.scope is Scope.GLOBAL}
        self.written |= {self._memory(b) for b in map(writes_global, walk(kernel.body)) if b is not None}
        self.names: set[str] = set()
        known = -1
        while self.written and known != len(self.names):
            known = len(self.names)
            for node in walk(kernel.body):
                if isinstance(node, Let) and self.is_in(node.value):
                    self.names.add(node.var.name)
                elif isinstance(node, Store) and node.buffer.scope in _PRIVATE:
                    if any(self.is_in(part) for part in (*node.indices, node.value)):
                        self.names.add(node.buffer.storage.name)

    def _memory(self, buffer: Buffer) -> str:
        return self.groups.get(buffer.storage.name, buffer.storage.name)

    def is_in(self, expression: Expr) -> bool:
        """Whether ``expression`` depends on such memory."""
        for node in walk(expression):
            if isinstance(node, Var) and node.name in self.names:
                return True
            if isinstance(node, Load):
                name, scope = node.buffer.storage.name, node.buffer.scope
                if scope is Scope.GLOBAL and self._memory(node.buffer) in self.written:
                    return True
                if scope in _PRIVATE and name in self.names:
                    return True
        return False


class _Agreement:
    def __init__(self, kernel: Kernel, unstable: _Unstable, names: NameSupply) -> None:
        self.kernel, self.unstable, self.supply = kernel, unstable, names
        self.uniformity = ThreadDependence(kernel)
        self.first_thread = 0

    def visit(self, node: Any) -> Any:
        if isinstance(node, (ParallelFor, Expr)) or not isinstance(node, Statement):
            return node
        if isinstance(node, Role):
            outer, self.first_thread = self.first_thread, node.first_thread
            node = copy_with(node, {"body": self.visit(node.body)})
            self.first_thread = outer
            return node
        if isinstance(node, If) and not self.uniformity.is_uniform(node.condition):
            return node
        if isinstance(node, (For, While)) and (
            not self.uniformity.bounds_are_uniform(node) or self.uniformity.divergent_exit(node) is not None
        ):
            return node
        inside = map_children(node, self.visit)
        if isinstance(node, If) and self.unstable.is_in(node.condition):
            announced, answer = self._announce(node.condition, node)
            return seq(*announced, copy_with(inside, {"condition": answer}))
        if isinstance(node, While) and self.unstable.is_in(node.condition):
            announced, answer = self._announce(node.condition, node)
            leave = If(Unary("not", answer, bool_), Break(location=node.location), location=node.location)
            body = seq(*announced, leave, inside.body)
            return copy_with(inside, {"condition": Const(True, bool_), "body": body})
        if isinstance(node, For) and (self.unstable.is_in(node.start) or self.unstable.is_in(node.stop)):
            return self._loop(node, inside)
        return inside

    def _loop(self, node: For, inside: For) -> Statement:
        before: list[Statement] = []
        bounds: dict[str, Expr] = {}
        for name, bound in (("start", node.start), ("stop", node.stop)):
            if constant_value(bound) is None:
                announced, answer = self._announce(bound, node)
                value = Var(self.supply.fresh(f"{node.var.name}_{name}"), bound.dtype)
                before += [*announced, Let(value, answer, location=node.location)]
                bounds[name] = value
        return seq(*before, copy_with(inside, bounds))

    def _announce(self, value: Expr, place: Statement) -> tuple[list[Statement], Expr]:
        """What lets all threads know the first thread's ``value``, and how they read it."""
        slot = allocate(self.supply.fresh("agreed"), Scope.SHARED, value.dtype, (1,), 16)
        write = Store(slot, (constant(0),), value, location=place.location)
        elected = If(self.kernel.thread.eq(self.first_thread), write, location=place.location)
        return [Allocate(slot, location=place.location), elected], Load(slot, (constant(0),), value.dtype)

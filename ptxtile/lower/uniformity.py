"""Which values are the same for all threads of a group: where a barrier may stand.

A barrier must be reached by all threads or by none, so it may only be placed under conditions and loop bounds that are
*uniform*. A mutable scalar (LOCAL storage) is uniform when every store to it is, in value, index and control flow. A
load from memory at a uniform index is uniform when the memory is shared (races are excluded by the barriers) or global
and not written by the kernel.
"""

from __future__ import annotations

from ptxtile.ir.access_context import Context, inlined
from ptxtile.ir.buffers import Scope
from ptxtile.ir.effects import private_results, writes_global
from ptxtile.ir.enumeration import NotEnumerable, evaluate
from ptxtile.ir.expressions import Expr, Load, Var
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.manual_ops import BarReduce
from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import children, contains, statements_in, walk
from ptxtile.ir.statements import Break, Continue, For, If, Let, Role, Seq, Specialized, Statement, Store, While

_PRIVATE = (Scope.LOCAL, Scope.REGISTER, Scope.FRAGMENT)


class Uniformity:
    """Uniformity of expressions in one kernel; ``context`` is that of the kernel's body."""

    def __init__(self, kernel: Kernel, context: Context) -> None:
        self._threads = kernel.threads
        self._varying: set[str] = {kernel.thread.name}  # variables and private storages that differ between threads
        self._written_in_roles: set[str] = set()
        stores = (node for node in walk(kernel.body, Store))
        written = [store.buffer for store in stores if store.buffer.scope is Scope.GLOBAL]
        written += [buffer for buffer in map(writes_global, statements_in(kernel.body)) if buffer is not None]
        self._written = {context.memories.get(b.storage.name, b.storage.name) for b in written}
        self._trusted: set[str] = set()  # names that an answer took to be the same in all threads
        marked = False
        while not marked or self._trusted & self._varying:
            marked = True
            self._trusted.clear()
            self._mark(kernel.body, context, True)

    def holds_for(self, expression: Expr, context: Context) -> bool:
        """Whether ``expression`` has one value for all threads of ``context``."""
        value = inlined(expression, context)
        if value is None:
            return self._leaves_are_uniform(expression, context)
        names = {node.name for node in walk(value, Var)}
        if not names & self._varying:
            self._trusted |= names
            return True
        return names <= {context.thread} and _is_constant_over_threads(value, context)

    def loop_is_uniform(self, loop: For | While, context: Context) -> bool:
        """Whether all threads run the same iterations of ``loop``: bounds, and no thread leaves or skips part of
        one."""
        bounds = (loop.start, loop.stop) if isinstance(loop, For) else (loop.condition,)
        if not all(self.holds_for(bound, context) for bound in bounds):
            return False
        if not contains(loop.body, Break, Continue):
            return True
        inner = context.with_loop(loop, symbolic=True) if isinstance(loop, For) else context
        return not self._diverges(loop.body, inner, True)

    def _diverges(self, node: Statement, context: Context, uniform: bool) -> bool:
        """Whether a Break or Continue of the loop around ``node`` happens for some threads only."""
        match node:
            case Break() | Continue():
                return not uniform
            case If(condition, then, otherwise):
                uniform = uniform and self.holds_for(condition, context)
                return any(self._diverges(part, context, uniform) for part in (then, otherwise) if part is not None)
            case Seq(statements):
                for statement in statements:
                    if self._diverges(statement, context, uniform):
                        return True
                    if isinstance(statement, Let):
                        context = context.with_let(statement)
        return False

    def _leaves_are_uniform(self, expression: Expr, context: Context) -> bool:
        if isinstance(expression, Var):
            return self.holds_for(expression, context)
        if isinstance(expression, Load):
            storage = expression.buffer.storage
            if storage.scope in _PRIVATE:
                in_roles = storage.name in self._written_in_roles and context.threads == self._threads
                if storage.name in self._varying or in_roles:
                    return False
                self._trusted.add(storage.name)
            elif storage.scope is Scope.GLOBAL and context.memories.get(storage.name, storage.name) in self._written:
                return False
        return all(self._leaves_are_uniform(child, context) for child in children(expression))

    def _mark(self, node: Statement, context: Context, uniform: bool) -> None:
        """Adds to the varying names what ``node`` makes so; ``uniform``: all threads run ``node`` or none."""
        match node:
            case Seq(statements):
                for statement in statements:
                    self._mark(statement, context, uniform)
                    if isinstance(statement, Let):
                        context = context.with_let(statement)
            case Let(var, value):
                if not self.holds_for(value, context):
                    self._varying.add(var.name)
            case Store(buffer, indices, value) if buffer.scope in _PRIVATE:
                if not uniform or not all(self.holds_for(e, context) for e in (*indices, value)):
                    self._varying.add(buffer.storage.name)
            case BarReduce() if uniform:
                pass  # all threads learn the same
            case GpuOp():
                self._varying |= {buffer.storage.name for buffer in private_results(node)}
            case For(var, _, _, _, _, body):
                if not self.loop_is_uniform(node, context):
                    uniform = False
                    self._varying.add(var.name)
                self._mark(body, context.with_loop(node, symbolic=True), uniform)
            case While(_, body):
                self._mark(body, context, uniform and self.loop_is_uniform(node, context))
            case If(condition, then, otherwise):
                uniform = uniform and self.holds_for(condition, context)
                for part in (then, otherwise):
                    if part is not None:
                        self._mark(part, context, uniform)
            case Specialized(roles):
                for role in roles:
                    self._mark_role(role, context, uniform)

    def _mark_role(self, role: Role, context: Context, uniform: bool) -> None:
        stores = (n for n in walk(role.body, Store) if n.buffer.scope in _PRIVATE)
        self._written_in_roles |= {store.buffer.storage.name for store in stores}
        self._written_in_roles |= {b.storage.name for n in statements_in(role.body) for b in private_results(n)}
        self._mark(role.body, context.for_threads(role.first_thread, role.threads), uniform)


def _is_constant_over_threads(value: Expr, context: Context) -> bool:
    import numpy as np

    threads = np.arange(context.first_thread, context.first_thread + context.threads)
    try:
        found = np.asarray(evaluate(value, {context.thread: threads}))
    except NotEnumerable:
        return False
    return bool(np.all(found == found.flat[0]))

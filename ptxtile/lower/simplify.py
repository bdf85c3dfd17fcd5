"""Simplifies expressions and removes what has no effect: decided Ifs, loops of no or one trip, unused and trivial Lets.

Input and output: any stage. Three steps for each kernel:

1. *Expressions and control flow*, outside in, with loop ranges, bound values and conditions known at each point
   (:func:`~ptxtile.ir.simplify_expression.simplify_expression`). A Let of a constant, a variable, a cheap index term,
   or a value without loads that is used once at the same loop depth is replaced by its value.
2. *Unused Lets* are dropped; expressions are pure, so a load whose value is not used goes too.
3. *Loads are forwarded*: a Let that is used once, by a later Let, Store or If of the same Seq, moves into it, when no
   statement between may write the memory that it reads. ``a = A[i]; b = B[i]; C[i] = a + b`` becomes one Store.

The order of stores, barriers and other effects never changes, nothing moves into or out of a loop, a role or a branch,
and statements keep their locations.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.buffers import Scope, Storage
from ptxtile.ir.expression_table import has_load, subexpressions, substitute_variables
from ptxtile.ir.expressions import Binary, Cast, Compare, Const, Expr, Load, Var, logical_not
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.rewrite import buffers_of, children, copy_with, map_children
from ptxtile.ir.simplify_expression import simplify_expression
from ptxtile.ir.statements import (
    Allocate,
    Break,
    Continue,
    For,
    If,
    Let,
    ParallelFor,
    Role,
    Seq,
    Specialized,
    Statement,
    Store,
    View,
    While,
    seq,
)
from ptxtile.ir.tile_ops import Assume, Copy, Fill, KeepRegisters, Print, SafeValue
from ptxtile.ir.types import bool_
from ptxtile.lower.options import Options
from ptxtile.lower.scopes import analyzer_for
from ptxtile.target import Target

_LOOPS = (For, ParallelFor, While)


def run(program: Program, target: Target, options: Options) -> Program:
    memory = _Memory(program)
    kernels = tuple(_kernel(program, kernel, memory) for kernel in program.kernels)
    unchanged = all(a is b for a, b in zip(kernels, program.kernels, strict=True))
    return program if unchanged else replace(program, kernels=kernels)


def _kernel(program: Program, kernel: Kernel, memory: _Memory) -> Kernel:
    body = _Simplification(analyzer_for(program, kernel), kernel.thread, _uses(kernel.body)).statement(kernel.body)
    body = _Forwarding(memory, _uses(body)).statement(body) if body is not None else None
    body = Seq(()) if body is None else body
    return kernel if body is kernel.body else replace(kernel, body=body)


class _Memory:
    """Which accesses may touch the same bytes."""

    def __init__(self, program: Program) -> None:
        self._groups = {
            p.buffer.storage.name: p.alias_group for p in program.parameters if isinstance(p, TensorParameter)
        }

    def may_alias(self, a: Storage, b: Storage) -> bool:
        if a.name == b.name:
            return True
        group = self._groups.get(a.name)
        return group is not None and group == self._groups.get(b.name)

    def may_write(self, statement: Statement, read: Storage) -> bool:
        """Whether running ``statement`` may change what a load of ``read`` sees, or what it must be ordered with."""
        match statement:
            case Store():
                return self.may_alias(statement.buffer.storage, read)
            case Copy() | Fill():
                return self.may_alias(statement.destination.buffer.storage, read)
            case (
                Let() | Allocate() | View() | Print() | Break() | Continue() | Assume() | SafeValue() | KeepRegisters()
            ):
                return False
            case Seq() | If() | For() | While() | ParallelFor():
                inside = (child for child in children(statement) if isinstance(child, Statement))
                return any(self.may_write(child, read) for child in inside)
            case GpuOp():  # barriers and waits make others' writes visible, but not to a thread's own memory
                private = read.scope in (Scope.LOCAL, Scope.REGISTER, Scope.FRAGMENT)
                return not private or any(buffer.storage.name == read.name for buffer in buffers_of(statement))
        return True


class _Uses:
    """How often each variable occurs, and in how many loops (and roles) its occurrences and its Let stand."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.loop_of_use: dict[str, int] = {}
        self.loop_of_let: dict[str, int] = {}
        self.pinned: set[str] = set()  # a declared buffer's shape, strides or offset names it

    def single_at_same_depth(self, name: str) -> bool:
        return self.count[name] == 1 and self.loop_of_use[name] == self.loop_of_let[name] and name not in self.pinned


def _uses(body: Statement) -> _Uses:
    uses = _Uses()
    _count_uses(body, uses, 0)
    return uses


def _count_uses(node: Any, uses: _Uses, loop: int) -> None:
    """``loop`` identifies the innermost loop or role around."""
    if isinstance(node, Expr):
        for e in subexpressions(node):
            if isinstance(e, Var):
                uses.count[e.name] += 1
                uses.loop_of_use[e.name] = loop
        return
    if isinstance(node, Let):
        uses.loop_of_let[node.var.name] = loop
    if isinstance(node, (Allocate, View)):
        sizes = (*node.buffer.shape, *node.buffer.strides, node.buffer.offset)
        parts = (part for size in sizes if isinstance(size, Expr) for part in subexpressions(size))
        uses.pinned.update(part.name for part in parts if isinstance(part, Var))
    inside = id(node) if isinstance(node, (*_LOOPS, Role)) else loop
    for child in children(node):
        bound_outside = isinstance(node, For) and isinstance(child, Expr)
        _count_uses(child, uses, loop if bound_outside else inside)


def _is_cheap(value: Expr) -> bool:
    """Not worth a name: a constant, a variable, or one integer operation of a variable with a constant."""
    match value:
        case Const() | Var():
            return True
        case Cast(operand=Var()):
            return value.dtype.is_integer and value.operand.dtype.is_integer
        case Binary(operator="add" | "sub" | "mul" | "floordiv" | "floormod"):
            leaves = isinstance(value.left, (Var, Const)) and isinstance(value.right, (Var, Const))
            return leaves and value.dtype.is_integer and isinstance(value.right, Const)
    return False


class _Simplification:
    """Step 1. Methods return None for a statement that has no effect."""

    def __init__(self, analyzer: Analyzer, thread: Var, uses: _Uses) -> None:
        self.analyzer = analyzer
        self.thread = thread
        self.uses = uses
        self.values: dict[str, Expr] = {}

    def expression(self, e: Expr) -> Expr:
        if self.values and any(isinstance(x, Var) and x.name in self.values for x in subexpressions(e)):
            e = substitute_variables(e, self.values)
        return simplify_expression(e, self.analyzer)

    def statement(self, node: Statement) -> Statement | None:
        match node:
            case Seq():
                return self._seq(node)
            case Let():
                return self._let(node)
            case If():
                return self._if(node)
            case For():
                return self._for(node)
            case While():
                return self._while(node)
            case ParallelFor():
                return self._parallel(node)
            case Specialized():
                roles = tuple(self._role(role) for role in node.roles)
                return copy_with(node, {"roles": _unless_same(node.roles, roles)})
            case Role():
                return self._role(node)
        return map_children(node, self._operand)

    def _operand(self, child: Any) -> Any:
        if isinstance(child, Expr):
            return self.expression(child)
        return map_children(child, self._operand)  # a region: its starts

    def _body(self, node: Statement) -> Statement:
        body = self.statement(node)
        return Seq(()) if body is None else body

    def _seq(self, node: Seq) -> Statement | None:
        new: list[Statement | None] = []
        with self.analyzer.scope():
            for statement in node.statements:
                new.append(self.statement(statement))
                if isinstance(statement, Assume):
                    self.analyzer.assume(statement.condition)
        return _sequence(node, new)

    def _let(self, node: Let) -> Let | None:
        value = self.expression(node.value)
        name = node.var.name
        trivial = _is_cheap(value) and name not in self.uses.pinned
        if trivial or (not has_load(value) and self.uses.single_at_same_depth(name)):
            self.values[name] = value
            return None
        self.analyzer.bind_value(node.var, value)
        return copy_with(node, {"value": value})

    def _if(self, node: If) -> Statement | None:
        condition = self.expression(node.condition)
        if isinstance(condition, Const):
            chosen = node.then if condition.value else node.otherwise
            return None if chosen is None else self.statement(chosen)
        with self.analyzer.scope():
            self.analyzer.assume(condition)
            then = self.statement(node.then)
        otherwise = None
        if node.otherwise is not None:
            with self.analyzer.scope():
                self.analyzer.assume(condition, False)
                otherwise = self.statement(node.otherwise)
        if then is None:
            if otherwise is None:
                return None
            condition, then, otherwise = self.expression(logical_not(condition)), otherwise, None
        return copy_with(node, {"condition": condition, "then": then, "otherwise": otherwise})

    def _for(self, node: For) -> Statement | None:
        start, stop = self.expression(node.start), self.expression(node.stop)
        runs = "lt" if node.step > 0 else "gt"
        if self.analyzer.prove(Compare(runs, start, stop, bool_)) is False:
            return None
        if self._runs_once(start, stop, node.step, runs) and not _leaves_loop(node.body):
            once = Let(node.var, start, location=node.location)
            self.uses.loop_of_let[node.var.name] = -1  # its value was evaluated before the body
            return self.statement(seq(once, node.body))
        with self.analyzer.scope():
            self.analyzer.bind_loop(node.var, start, stop, node.step)
            body = self.statement(node.body)
        if body is None:
            return None
        return copy_with(node, {"start": start, "stop": stop, "body": body})

    def _runs_once(self, start: Expr, stop: Expr, step: int, runs: str) -> bool:
        analyzer = self.analyzer
        second = Binary("add", start, Const(step, start.dtype), start.dtype)
        return (
            analyzer.prove(Compare(runs, start, stop, bool_)) is True
            and analyzer.fits(second)
            and analyzer.prove(Compare(runs, second, stop, bool_)) is False
        )

    def _while(self, node: While) -> Statement | None:
        condition = self.expression(node.condition)
        if isinstance(condition, Const) and not condition.value:
            return None
        with self.analyzer.scope():
            self.analyzer.assume(condition)
            return copy_with(node, {"condition": condition, "body": self._body(node.body)})

    def _parallel(self, node: ParallelFor) -> Statement | None:
        if 0 in node.extents:
            return None
        with self.analyzer.scope():
            for var, extent in zip(node.vars, node.extents, strict=True):
                self.analyzer.bind(var, 0, extent - 1)
            body = self.statement(node.body)
        return None if body is None else copy_with(node, {"body": body})

    def _role(self, node: Role) -> Role:
        with self.analyzer.scope():
            self.analyzer.bind(self.thread, node.first_thread, node.first_thread + node.threads - 1)
            return copy_with(node, {"body": self._body(node.body)})


def _unless_same(old: tuple, new: tuple) -> tuple:
    return old if len(old) == len(new) and all(a is b for a, b in zip(old, new, strict=True)) else new


def _sequence(node: Seq, statements: list[Statement | None]) -> Statement | None:
    """``node`` with these statements: flattened, without the dropped ones; None when none is left."""
    flat: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Seq):
            flat.extend(statement.statements)
        elif statement is not None:
            flat.append(statement)
    if not flat:
        return None
    if _unless_same(node.statements, tuple(flat)) is node.statements:
        return node
    return flat[0] if len(flat) == 1 else Seq(tuple(flat), location=node.location)


def _leaves_loop(body: Statement) -> bool:
    """Whether a Break or Continue inside belongs to the loop of this body."""
    if isinstance(body, (Break, Continue)):
        return True
    if isinstance(body, (For, While)):
        return False
    return any(_leaves_loop(child) for child in children(body) if isinstance(child, Statement))


class _Forwarding:
    """Steps 2 and 3: each Seq from its last statement to its first, so that a use is known before its Let is met."""

    def __init__(self, memory: _Memory, uses: _Uses) -> None:
        self.memory = memory
        self.uses = uses

    def statement(self, node: Statement) -> Statement | None:
        if isinstance(node, Seq):
            return self._seq(node)
        if isinstance(node, Let):
            return None if self._unused(node) else node
        if isinstance(node, (If, For, ParallelFor, While, Role, Specialized)):
            return self._structured(node)
        return node

    def _structured(self, node: Any) -> Statement | None:
        changed = map_children(node, lambda child: self.statement(child) if isinstance(child, Statement) else child)
        if changed is not node and isinstance(changed, (If, For, ParallelFor)) and _is_empty(changed):
            for child in children(changed):
                self._discard(child)
            return None
        return changed

    def _seq(self, node: Seq) -> Statement | None:
        following: list[Statement] = []  # the statements after the current one, last first
        for statement in reversed(node.statements):
            if isinstance(statement, Let) and (self._unused(statement) or self._forward(statement, following)):
                continue
            new = statement if isinstance(statement, Let) else self.statement(statement)
            if isinstance(new, Seq):
                following.extend(reversed(new.statements))
            elif new is not None:
                following.append(new)
        return _sequence(node, list(reversed(following)))

    def _unused(self, let: Let) -> bool:
        if self.uses.count[let.var.name] or let.var.name in self.uses.pinned:
            return False
        self._discard(let.value)
        return True

    def _discard(self, e: Any) -> None:
        if isinstance(e, Expr):
            for x in subexpressions(e):
                if isinstance(x, Var):
                    self.uses.count[x.name] -= 1

    def _forward(self, let: Let, following: list[Statement]) -> bool:
        """Moves the value into its only use among the following statements, if nothing in between can change it."""
        name = let.var.name
        if self.uses.count[name] != 1 or name in self.uses.pinned:
            return False
        reads = {load.buffer.storage for load in subexpressions(let.value) if isinstance(load, Load)}
        for position in range(len(following) - 1, -1, -1):
            statement = following[position]
            if isinstance(statement, (Let, Store, If)):
                changed = _substitute_own(statement, name, let.value)
                if changed is not statement:
                    following[position] = changed
                    return True
            if any(self.memory.may_write(statement, storage) for storage in reads):
                return False
        return False


def _is_empty(node: If | For | ParallelFor) -> bool:
    parts = (node.then, node.otherwise) if isinstance(node, If) else (node.body,)
    return all(part is None or (isinstance(part, Seq) and not part.statements) for part in parts)


def _substitute_own(node: Let | Store | If, name: str, value: Expr) -> Let | Store | If:
    """The variable replaced in the expressions that the statement evaluates itself, before any effect of it."""
    values = {name: value}
    match node:
        case Let():
            return copy_with(node, {"value": substitute_variables(node.value, values)})
        case If():
            return copy_with(node, {"condition": substitute_variables(node.condition, values)})
        case Store():
            indices = tuple(substitute_variables(index, values) for index in node.indices)
            new = {"indices": _unless_same(node.indices, indices), "value": substitute_variables(node.value, values)}
            return copy_with(node, new)

"""While loops that count become for loops, whose variable has a range that is known.

Input and output: tile stage. The loop

    while i < stop:           for i_1 in range(i, stop, step):
        ... i ...                 ... i_1 ...
        i += step                 i = i_1 + step

does the same in both forms if nothing else in it writes ``i`` or what ``stop`` is computed from. Users write the first
for CTAs that go through several tiles; the positions of copies are then known not to be negative, as TMA needs it.
"""

from __future__ import annotations

from dataclasses import replace
from operator import is_not
from typing import Any, NamedTuple

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Binary, Compare, Expr, Load, Var, constant, constant_value
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import Rewriter, buffers_of, children, contains, map_children, statements_in, walk
from ptxtile.ir.statements import Continue, For, Let, LoopKind, ParallelFor, Seq, Statement, Store, View, While, seq
from ptxtile.lower.options import Options
from ptxtile.target import Target

PASS_NAME = "count_loops"

MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


class Counter(NamedTuple):
    """``variable`` starts anywhere and grows by ``step`` (or shrinks) until it reaches ``stop``."""

    variable: Buffer
    stop: Expr
    step: int


def run(program: Program, target: Target, options: Options) -> Program:
    if not any(isinstance(node, While) for kernel in program.kernels for node in statements_in(kernel.body)):
        return program
    names, why, kernels = NameSupply(program), [], []
    for kernel in program.kernels:
        loops = _Loops(kernel, names)
        body = loops.visit(kernel.body)
        kernels.append(kernel if body is kernel.body else replace(kernel, body=body))
        why += loops.why
    return replace(program, kernels=tuple(kernels)).with_why(*why) if why else program


class _Loops:
    """Rewrites the loops of a kernel, inner ones first."""

    def __init__(self, kernel: Kernel, names: NameSupply) -> None:
        self.names = names
        self.viewed = {node.buffer.storage.name for node in walk(kernel.body, View)}
        self.why: list[Why] = []

    def visit(self, node: Any) -> Any:
        if not isinstance(node, Statement) or isinstance(node, ParallelFor):
            return node  # what is private to an element of a parallel loop is left to it
        if isinstance(node, Seq):
            found: list[Statement] = []
            for statement in node.statements:
                new = self.visit(statement)
                found.append(self._converted(new, found) if isinstance(new, While) else new)
            return seq(*found) if any(map(is_not, found, node.statements)) else node
        return map_children(node, self._alone)

    def _alone(self, node: Any) -> Any:
        """A loop directly inside of a statement that is no sequence has nothing in front of it."""
        new = self.visit(node)
        return self._converted(new, []) if isinstance(new, While) else new

    def _converted(self, loop: While, before: list[Statement]) -> Statement:
        counter = _counter(loop)
        if counter is None or counter.variable.storage.name in self.viewed:
            return loop
        variable, stop, step = counter
        subject, reason = f"the loop while {variable.name} counts", f"its end adds {step}, nothing else changes it"
        self.why.append(Why(PASS_NAME, subject, "a for loop", reason, loop.location))
        index = Var(self.names.fresh(variable.name), variable.dtype)
        start = _value_after(before, variable)
        body = _Counted(variable, index).visit(loop.body)
        return For(index, start, stop, step, LoopKind.SERIAL, body, location=loop.location)


class _Counted(Rewriter):
    """Reads of the loop's variable are those of its index."""

    def __init__(self, variable: Buffer, index: Var) -> None:
        self.variable, self.index = variable, index

    def rewrite_Load(self, node: Load) -> Expr:
        return self.index if node.buffer.storage == self.variable.storage else node


def _counter(loop: While) -> Counter | None:
    """How the loop counts; None where it does something else."""
    condition = loop.condition
    if not isinstance(condition, Compare) or condition.operator not in MIRRORED:
        return None
    for own, other, operator in (
        (condition.left, condition.right, condition.operator),
        (condition.right, condition.left, MIRRORED[condition.operator]),
    ):
        if not isinstance(own, Load) or not _is_private_integer(own.buffer):
            continue
        step = _step(loop.body, own.buffer)
        if step is None or not _is_constant_in(loop.body, other) or (step > 0) != (operator in ("lt", "le")):
            continue
        stop = _stop(other, operator)
        return None if stop is None else Counter(own.buffer, stop, step)
    return None


def _stop(value: Expr, operator: str) -> Expr | None:
    """The first value at which ``operator`` no longer holds; None where the dtype may not have it."""
    if operator in ("lt", "gt"):
        return value
    last, dtype = constant_value(value), value.dtype
    after = None if last is None else last + (1 if operator == "le" else -1)
    return None if after is None or not dtype.minimum <= after <= dtype.maximum else constant(after, dtype)


def _is_private_integer(buffer: Buffer) -> bool:
    return buffer.scope is Scope.LOCAL and buffer.rank == 0 and buffer.dtype.is_integer and buffer.dtype.bits >= 32


def _step(body: Statement, variable: Buffer) -> int | None:
    """What the body adds to the variable, at its end and nowhere else; None where it does something else."""
    statements = body.statements if isinstance(body, Seq) else (body,)
    last = statements[-1] if statements else None
    if not isinstance(last, Store) or last.buffer.storage != variable.storage or _repeats(body):
        return None
    touching = [n for n in walk(body) if any(b.storage == variable.storage for b in buffers_of(n))]
    if any(not isinstance(node, Load) and node is not last for node in touching):
        return None
    names = {
        node.var.name for node in statements
        if isinstance(node, Let) and isinstance(node.value, Load) and node.value.buffer.storage == variable.storage
    }  # fmt: skip

    def is_variable(value: Expr) -> bool:
        read = isinstance(value, Load) and value.buffer.storage == variable.storage
        return read or (isinstance(value, Var) and value.name in names)

    match last.value:
        case Binary("add", left, right) if is_variable(left) or is_variable(right):
            step = constant_value(right if is_variable(left) else left)
        case Binary("sub", value, by) if is_variable(value):
            step = constant_value(by)
            step = None if step is None else -step
        case _:
            return None
    return step if isinstance(step, int) and step != 0 else None


def _repeats(body: Statement) -> bool:
    """Whether a ``continue`` goes back to the condition without the end of the body."""
    if isinstance(body, (For, While, ParallelFor)):
        return False
    inside = (child for child in children(body) if isinstance(child, Statement))
    return isinstance(body, Continue) or any(map(_repeats, inside))


def _is_constant_in(body: Statement, value: Expr) -> bool:
    """Whether ``value`` reads nothing but private scalars that the body leaves alone."""
    read = {node.buffer for node in walk(value, Load)}
    if any(buffer.scope is not Scope.LOCAL or buffer.rank for buffer in read):
        return False
    storages = {buffer.storage for buffer in read}
    return not any(
        buffer.storage in storages for node in walk(body) if not isinstance(node, Load) for buffer in buffers_of(node)
    )


def _value_after(statements: list[Statement], variable: Buffer) -> Expr:
    """What ``variable`` holds after ``statements``, as they store it where that reads no memory."""
    for statement in reversed(statements):
        if not any(buffer.storage == variable.storage for node in walk(statement) for buffer in buffers_of(node)):
            continue
        if isinstance(statement, Store) and not contains(statement.value, Load):
            return statement.value
        break
    return Load(variable, (), variable.dtype)

"""The state of one trace: blocks being filled, unique names, the kernel that is open, what was declared."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ptxtile.errors import Location, TraceError
from ptxtile.frontend.locations import user_location
from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Const, Expr, Load, Var
from ptxtile.ir.program import Kernel, ScalarParameter, TensorParameter
from ptxtile.ir.rewrite import free_variables, has_load, substitute, walk
from ptxtile.ir.statements import Allocate, Let, Seq, Statement, Store, View
from ptxtile.ir.tile_ops import Assume
from ptxtile.ir.types import DType

if TYPE_CHECKING:
    from ptxtile.frontend.control_flow import Region
    from ptxtile.frontend.specialization import Specialization
    from ptxtile.frontend.values import Local, Value

_NOT_IN_A_NAME = re.compile(r"\W")


class HoistPoint:
    """A place in a block where allocations of names of the construct that follows are put."""

    def __init__(self) -> None:
        self.statements: list[Statement] = []


class Block:
    """Statements in order. After a Break or Continue the rest of the block is dead and is dropped."""

    def __init__(self) -> None:
        self.items: list[Statement | HoistPoint] = []
        self.terminated = False

    def append(self, statement: Statement) -> None:
        if not self.terminated:
            self.items.append(statement)

    def hoist_point(self) -> HoistPoint:
        point = HoistPoint()
        self.items.append(point)
        return point

    def last(self) -> Statement | None:
        for item in reversed(self.items):
            if isinstance(item, Statement):
                return item
        return None

    def discard(self, statement: Statement) -> bool:
        """Takes a statement out again (by identity); False when it is not in this block."""
        for position in range(len(self.items) - 1, -1, -1):
            if self.items[position] is statement:
                del self.items[position]
                return True
        return False

    def statements(self) -> tuple[Statement, ...]:
        result: list[Statement] = []
        for item in self.items:
            result.extend(item.statements if isinstance(item, HoistPoint) else (item,))
        return tuple(result)

    def close(self, location: Location | None = None) -> Seq:
        return Seq(self.statements(), location=location)


@dataclass
class OpenKernel:
    """The kernel inside whose ``with`` the tracer is."""

    grid: tuple[int | Expr, ...]
    thread_extents: tuple[int, int, int]
    block_vars: tuple[Var, Var, Var]
    thread: Var
    dimensions: int
    min_blocks: int = 0
    location: Location | None = None
    group: tuple[int, int] | None = None
    """(first thread, threads) of the T.ws that is open."""
    swizzle: tuple[int, str] | None = None
    """(panel size, order) of T.use_swizzle."""
    cluster: tuple[int, int, int] = (1, 1, 1)
    layouts: dict[str, tuple[Buffer, Location | None]] = field(default_factory=dict)
    """By name, the buffers with the layouts that T.annotate_layout gave them, and its line."""

    @property
    def threads(self) -> int:
        x, y, z = self.thread_extents
        return x * y * z


class ParameterSource(Protocol):
    """Who answers ``T.const`` and annotations: one that learns a signature, or one that builds a program."""

    def declare(self, tracer: Tracer, name: str, annotation: Any) -> Any: ...

    def constants(self, names: tuple[str, ...], dtype: DType) -> tuple[Any, ...]: ...


@dataclass
class Tracer:
    """One run of a user's function. ``specialization`` is None while only the signature is being learned."""

    name: str
    specialization: Specialization | None = None
    kernel: OpenKernel | None = None
    parallel_depth: int = 0
    pending_name: str | None = None
    blocks: list[Block] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    made: dict[int, tuple[object, Region]] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    parameters: dict[str, TensorParameter | ScalarParameter] = field(default_factory=dict)
    allocations: list[Buffer] = field(default_factory=list)
    host_views: list[View] = field(default_factory=list)
    host_assumptions: list[Assume] = field(default_factory=list)
    symbols: dict[str, Var] = field(default_factory=dict)
    definitions: dict[str, Expr] = field(default_factory=dict)
    parameter_source: ParameterSource | None = None
    _names: set[str] = field(default_factory=set)

    def unique(self, name: str) -> str:
        """``name``, or ``name_1``, ``name_2``… when it is taken; every name of a program is unique."""
        name = _NOT_IN_A_NAME.sub("_", name).strip("_") or "value"
        if name[0].isdigit():
            name = "_" + name
        candidate, count = name, 0
        while candidate in self._names:
            count += 1
            candidate = f"{name}_{count}"
        self._names.add(candidate)
        return candidate

    def name_for(self, default: str) -> str:
        """A unique name for a new object: that of the variable it is being assigned to, else ``default``."""
        return self.unique(self.pending_name or default)

    @property
    def block(self) -> Block:
        return self.blocks[-1]

    def emit(self, statement: Statement) -> None:
        if not self.blocks:
            raise TraceError("a device statement outside of T.Kernel", location=user_location())
        self.block.append(statement)

    def open_block(self) -> Block:
        self.blocks.append(Block())
        return self.block

    def close_block(self) -> Block:
        return self.blocks.pop()

    def bind(self, name: str, expr: Expr, location: Location | None = None) -> Expr:
        """``expr`` bound to a new variable by a Let; constants and variables stay themselves."""
        if isinstance(expr, (Const, Var)):
            return expr
        return self.bind_let(name, expr, location).var

    def bind_let(self, name: str, expr: Expr, location: Location | None = None) -> Let:
        var = Var(self.unique(name), expr.dtype)
        let = Let(var, expr, location=location or user_location())
        self.emit(let)
        self._define(let)
        return let

    def _define(self, let: Let) -> None:
        if not has_load(let.value):
            self.definitions[let.var.name] = let.value

    def snapshots(self) -> dict[str, Expr]:
        """The scalar variables that the latest Lets read, one after the other.

        Nothing was assigned between them, so reads of one variable are one value.
        """
        found: dict[str, Expr] = {}
        for item in reversed(self.block.items if self.blocks else []):
            if not isinstance(item, Let):
                break
            if isinstance(item.value, Load) and item.value.buffer.scope is Scope.LOCAL and not item.value.indices:
                found[item.var.name] = item.value
        return found

    def rename_last(self, value: Value, name: str) -> bool:
        """Gives the Let that ``value`` was just read by the user's name; False when it is not the last statement."""
        let = value.let
        if let is None or not self.blocks or self.block.last() is not let:
            return False
        self.block.discard(let)
        self._names.discard(let.var.name)
        renamed = Let(Var(self.unique(name), let.var.dtype), let.value, location=let.location)
        self.emit(renamed)
        value.renamed(renamed.var, renamed)
        return True

    def discard(self, statement: Statement) -> None:
        """Takes back a read that turned out to name a region (an argument of T.copy)."""
        if self.blocks:
            self.block.discard(statement)

    def capture(self, thunk: Callable[[], Any]) -> tuple[Any, tuple[Statement, ...]]:
        """What ``thunk`` returns, and the statements that it emitted, which are not emitted here."""
        self.open_block()
        result = thunk()
        return result, self.close_block().statements()

    def new_local(self, name: str, dtype: DType, hoist: HoistPoint | None, implicit: bool) -> Local:
        """A LOCAL scalar, allocated here or at a hoist point."""
        from ptxtile.frontend.values import Local

        buffer = allocate(self.unique(name), Scope.LOCAL, dtype, (), alignment=dtype.itemsize)
        statement = Allocate(buffer, location=user_location())
        if hoist is None:
            self.emit(statement)
        else:
            hoist.statements.append(statement)
        return Local(name, buffer, implicit)

    def initialise(self, local: Local, value: Expr) -> None:
        self.emit(Store(local.buffer, (), value, location=user_location()))


def inline_lets(statements: tuple[Statement, ...], expr: Expr) -> Expr | None:
    """``expr`` with the Lets of ``statements`` put in, when they are only Lets that are each used at most once."""
    if not all(isinstance(statement, Let) for statement in statements):
        return None
    lets = [statement for statement in statements if isinstance(statement, Let)]
    counts: dict[str, int] = {}
    for root in (*(let.value for let in lets), expr):
        for node in walk(root):
            if isinstance(node, Var):
                counts[node.name] = counts.get(node.name, 0) + 1
    if any(counts.get(let.var.name, 0) > 1 for let in lets):
        return None
    for let in reversed(lets):
        if let.var.name in free_variables(expr):
            expr = substitute(expr, {let.var.name: let.value})
    return expr


def reads_only_locals(expr: Expr) -> bool:
    """Whether all loads of ``expr`` are of the thread's own variables."""
    return all(node.buffer.scope is Scope.LOCAL for node in walk(expr, Load))

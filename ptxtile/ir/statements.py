"""Statements of the IR: structured control flow, stores, scalars. Tile ops and GPU ops are statements too (own files).

Every statement can carry the user's :class:`~ptxtile.errors.Location`; it is no part of equality.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from ptxtile.errors import Location
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, Var
from ptxtile.ir.nodes import Node
from ptxtile.records import record


@record
class Statement(Node):
    location: Location | None = field(default=None, compare=False, repr=False, kw_only=True)


@record
class Seq(Statement):
    statements: tuple[Statement, ...]


@record
class Let(Statement):
    """Binds ``var`` for the rest of the enclosing Seq. The value is evaluated here, once."""

    var: Var
    value: Expr


@record
class Allocate(Statement):
    """Makes ``buffer`` and its storage, uninitialised, for the rest of the enclosing Seq."""

    buffer: Buffer


@record
class View(Statement):
    """Declares ``buffer``, another view of a storage that exists already."""

    buffer: Buffer


@record
class Store(Statement):
    """``buffer[indices] = value``; a vector value fills consecutive elements from the index on."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    value: Expr


class LoopKind(Enum):
    """How a For runs. UNROLLED is expanded by the emitter. VECTORIZED and PIPELINED are tile-level kinds."""

    SERIAL = "serial"
    UNROLLED = "unrolled"
    VECTORIZED = "vectorized"
    PIPELINED = "pipelined"


@record
class For(Statement):
    """``for var in range(start, stop, step)``; step is a positive or negative constant.

    ``options``: keywords of ``T.Pipelined`` (``num_stages``, ``order``, ``stage``) and ``unroll_factor``, as (name,
    value) pairs of plain Python values.
    """

    var: Var
    start: Expr
    stop: Expr
    step: int
    kind: LoopKind
    body: Statement
    options: tuple[tuple[str, object], ...] = ()

    def option(self, name: str, default: object = None) -> object:
        return dict(self.options).get(name, default)


@record
class ParallelFor(Statement):
    """``for *vars in T.Parallel(*extents)``: iterations in no order, distributed over the threads of the role.

    A tile-level statement. ``options``: keywords of ``T.Parallel`` (``coalesced_width``, ``loop_layout``).
    """

    vars: tuple[Var, ...]
    extents: tuple[int, ...]
    body: Statement
    options: tuple[tuple[str, object], ...] = ()

    def option(self, name: str, default: object = None) -> object:
        return dict(self.options).get(name, default)


@record
class While(Statement):
    condition: Expr
    body: Statement


@record
class If(Statement):
    condition: Expr
    then: Statement
    otherwise: Statement | None = None


@record
class Break(Statement):
    """Leaves the innermost loop."""


@record
class Continue(Statement):
    """Goes on with the next iteration of the innermost loop."""


@record
class Role(Statement):
    """Threads ``first_thread … first_thread + threads - 1`` run ``body``. ``registers``: setmaxnreg's count, or
    None."""

    name: str
    first_thread: int
    threads: int
    body: Statement
    registers: int | None = None


@record
class Specialized(Statement):
    """Roles that run at the same time on disjoint thread ranges; one branch each of a single if/else."""

    roles: tuple[Role, ...]


def seq(*statements: Statement | None) -> Statement:
    """A Seq of the given statements with nested Seqs flattened and None left out; a single statement is itself."""
    flat: list[Statement] = []
    for statement in statements:
        if isinstance(statement, Seq):
            flat.extend(statement.statements)
        elif statement is not None:
            flat.append(statement)
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))

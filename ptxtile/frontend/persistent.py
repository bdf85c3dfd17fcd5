"""``for i, j in T.Persistent(...)``: a block's way through the tiles of a domain.

In a kernel with clusters the blocks of one work at the same time on tiles that follow each other along the last
dimension but one, usually the rows, so that they load the same columns and take the same number of rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from ptxtile.errors import TraceError
from ptxtile.frontend.control_flow import TracedLoop
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.loops import PersistentLoop
from ptxtile.frontend.values import Value, index_expr
from ptxtile.ir.expressions import Const, Expr, Var, as_expr, cast, constant, select
from ptxtile.ir.statements import For, If, LoopKind, Statement
from ptxtile.ir.tile_ops import Assume
from ptxtile.ir.types import int32

if TYPE_CHECKING:
    from ptxtile.frontend.frame_tracer import Frame


class TracedPersistent(TracedLoop):
    """Rounds of one tile each; the last round may have no tile for this block."""

    word = "T.Persistent loop"

    def __init__(self, frame: Frame, names: tuple[str, ...], loop: PersistentLoop, targets: tuple[str, ...]) -> None:
        super().__init__(frame, names)
        what = "T.Persistent"
        self.sizes = [cast(index_expr(size, f"a size of {what}"), int32) for size in loop.domain]
        self.wave = cast(index_expr(loop.wave_size, f"wave_size of {what}"), int32)
        self.first = cast(index_expr(loop.index, f"index of {what}"), int32)
        self.group = loop.group_size
        self.names_of = [*targets, *[""] * len(self.sizes)][: len(self.sizes)]
        self.round = Var(self.tracer.unique("wave"), int32)
        self.cluster = self._cluster()
        self.axis = max(len(self.sizes) - 2, 0)
        """The dimension along which the blocks of a cluster stand."""
        self.counted = list(self.sizes)
        if self.cluster > 1:
            self.counted[self.axis] = _rounded_up(self.sizes[self.axis], self.cluster)
            self.wave = _quotient(self.wave, self.cluster)
        self.total: Expr = self.counted[0]
        for size in self.counted[1:]:
            self.total = self.total * size
        self.conditions: list[Expr] = []

    def _cluster(self) -> int:
        """Blocks of a cluster when those of each have consecutive indices, the first a multiple; else 1."""
        kernel = self.tracer.kernel
        blocks = 1 if kernel is None else prod(kernel.cluster)
        if kernel is None or blocks == 1 or isinstance(self.wave, Const):
            return blocks if isinstance(self.wave, Const) and int(self.wave.value) % blocks == 0 else 1
        whole_grid = kernel.dimensions == 1 and cast(as_expr(kernel.grid[0]), int32) == self.wave
        return blocks if whole_grid else 1  # a grid is made of whole clusters: each launch checks it

    def __iter__(self) -> Iterator[Any]:
        tracer = self.tracer
        self.open()
        first, rank = self.first, constant(0)
        if self.cluster > 1:
            first = tracer.bind("cluster", self.first // self.cluster)
            rank = tracer.bind("rank", self.first % self.cluster)
        number = tracer.bind("tile", self.round * self.wave + first)
        self._open_condition(number.lt(self.total))
        places = self._coordinates(number)
        bound: dict[int, Expr] = {}
        if self.cluster > 1:
            place = places[self.axis] * self.cluster + rank
            bound = {self.axis: tracer.bind(self.names_of[self.axis] or "tile_index", place)}
            if not _divides(self.cluster, self.sizes[self.axis]):
                self._open_condition(bound[self.axis].lt(self.sizes[self.axis]))
        for axis, (name, size) in enumerate(zip(self.names_of, self.sizes, strict=True)):
            if axis not in bound:
                bound[axis] = tracer.bind(name or "tile_index", places[axis])
            tracer.emit(Assume(bound[axis].ge(0), location=self.location))
            tracer.emit(Assume(bound[axis].lt(size), location=self.location))
        values = [Value(bound[axis]) for axis in range(len(self.sizes))]
        yield values[0] if len(values) == 1 else tuple(values)

    def _open_condition(self, condition: Expr) -> None:
        """What follows is done only where it holds."""
        self.conditions.append(condition)
        self.tracer.open_block()

    def _coordinates(self, number: Expr) -> list[Expr]:
        """The tile of that number: groups of columns, in each the rows of all other dimensions, in each its columns."""
        *outer, last = self.counted
        rows: Expr = constant(1)
        for size in outer:
            rows = rows * size
        in_group = rows * self.group
        group = self.tracer.bind("group", number // in_group)
        rest = self.tracer.bind("in_group", number % in_group)
        left = last - group * self.group
        width = self.tracer.bind("columns", select(left.lt(self.group), left, constant(self.group)))
        row, places = rest // width, [group * self.group + rest % width]
        for size in reversed(outer[1:]):
            row = self.tracer.bind("row", row)
            places.insert(0, row % size)
            row = row // size
        return [row, *places] if outer else places

    def jump(self, statement: Statement, word: str) -> None:
        raise TraceError(
            f"`{word}` in T.Persistent", location=user_location(), hint="guard the rest of the body with `if`"
        )

    def end(self) -> None:
        tracer = self.tracer
        for condition in reversed(self.conditions):
            body = tracer.close_block().close()
            tracer.emit(If(condition, body, location=self.location))
        outer = self.close().close()
        rounds = (self.total + (self.wave - 1)) // self.wave
        statement = For(self.round, constant(0), rounds, 1, LoopKind.SERIAL, outer, location=self.location)
        tracer.emit(statement)


def _divides(divisor: int, size: Expr) -> bool:
    return isinstance(size, Const) and int(size.value) % divisor == 0


def _quotient(size: Expr, divisor: int) -> Expr:
    return constant(int(size.value) // divisor) if isinstance(size, Const) else size // divisor


def _rounded_up(size: Expr, divisor: int) -> Expr:
    """Groups of ``divisor`` that hold ``size``."""
    return constant(-(-int(size.value) // divisor)) if isinstance(size, Const) else (size + (divisor - 1)) // divisor

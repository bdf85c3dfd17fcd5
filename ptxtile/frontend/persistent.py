"""``for i, j in T.Persistent(...)``: a block's way through the tiles of a domain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ptxtile.errors import TraceError
from ptxtile.frontend.control_flow import TracedLoop
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.loops import PersistentLoop
from ptxtile.frontend.values import Value, index_expr
from ptxtile.ir.expressions import Expr, Var, cast, constant, select
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
        self.total: Expr = self.sizes[0]
        for size in self.sizes[1:]:
            self.total = self.total * size
        self.condition: Expr = self.first.lt(self.total)

    def __iter__(self) -> Iterator[Any]:
        tracer = self.tracer
        self.open()
        number = tracer.bind("tile", self.round * self.wave + self.first)
        self.condition = number.lt(self.total)
        tracer.open_block()
        values = []
        for name, size, place in zip(self.names_of, self.sizes, self._coordinates(number), strict=True):
            bound = tracer.bind(name or "tile_index", place)
            tracer.emit(Assume(bound.ge(0), location=self.location))
            tracer.emit(Assume(bound.lt(size), location=self.location))
            values.append(Value(bound))
        yield values[0] if len(values) == 1 else tuple(values)

    def _coordinates(self, number: Expr) -> list[Expr]:
        """The tile of that number: groups of columns, in each the rows of all other dimensions, in each its columns."""
        *outer, last = self.sizes
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
        body = tracer.close_block().close()
        tracer.emit(If(self.condition, body, location=self.location))
        outer = self.close().close()
        rounds = (self.total + (self.wave - 1)) // self.wave
        statement = For(self.round, constant(0), rounds, 1, LoopKind.SERIAL, outer, location=self.location)
        tracer.emit(statement)

"""Rings of stages: tiles of a pipelined loop in several versions, so that loads run ahead of their use.

Stage number and parity are state of each role, which lives on when the loop is entered again (a persistent outer loop).
"""

from __future__ import annotations

from typing import Any

from ptxtile.ir.atomic_ops import ATOMIC_OPS
from ptxtile.ir.buffers import Buffer, Scope, Storage
from ptxtile.ir.expressions import Expr, Load, Var, constant, select
from ptxtile.ir.gpu_ops import MbarrierWait
from ptxtile.ir.mapped_layouts import with_stages
from ptxtile.ir.rewrite import Rewriter, copy_with
from ptxtile.ir.statements import Allocate, Let, Statement, Store
from ptxtile.ir.tile_ops import Assume, Region
from ptxtile.ir.types import int32
from ptxtile.lower.tma_groups import LoadGroup
from ptxtile.records import record


@record
class Ring:
    """One role's position in a ring: ``stage`` and ``parity`` are LOCAL scalars, ``here`` is the stage of this
    iteration.

    ``first``: the ring's first mbarrier; ``start``: the parity of its first round (0 waits for the first completion, 1
    passes at once).
    """

    first: int
    stages: int
    stage: Buffer
    parity: Buffer
    here: Var
    start: int

    @property
    def index(self) -> Expr:
        return self.here if self.first == 0 else self.here + self.first

    def before(self, stage: Expr) -> Expr:
        """The mbarrier of the stage in front of ``stage``."""
        return select(stage.eq(0), constant(self.stages - 1), stage - 1) + self.first

    def declaration(self) -> list[Statement]:
        zero, start = constant(0), constant(self.start)
        return [
            Allocate(self.stage),
            Store(self.stage, (), zero),
            Allocate(self.parity),
            Store(self.parity, (), start),
        ]

    def wait(self, barrier: Buffer, group: LoadGroup) -> list[Statement]:
        """Reads the stage of this iteration and waits for its mbarrier."""
        parity = Load(self.parity, (), int32)
        waiting = MbarrierWait(barrier, self.index, parity, group.buffers, location=group.location)
        bounds = (Assume(self.here.ge(0)), Assume(self.here.lt(self.stages)))  # accesses of tiles need no guards
        return [Let(self.here, Load(self.stage, (), int32)), *bounds, waiting]

    def advance(self) -> list[Statement]:
        """Moves to the next stage; the parity flips where the ring closes."""
        closes, parity = self.here.eq(self.stages - 1), Load(self.parity, (), int32)
        return [
            Store(self.parity, (), select(closes, parity ^ 1, parity)),
            Store(self.stage, (), select(closes, constant(0), self.here + 1)),
        ]


def make_ring(name: str, first: int, stages: int, start: int) -> Ring:
    def scalar(what: str) -> Buffer:
        storage = Storage(f"{name}_{what}", Scope.LOCAL, 4, 4)
        return Buffer(storage.name, int32, (), (), storage)

    return Ring(first, stages, scalar("stage"), scalar("parity"), Var(f"{name}_here", int32), start)


def versioned(buffer: Buffer, stages: int) -> Buffer:
    """``buffer`` with a leading dimension of stages; a layout that the user gave holds in each."""
    return with_stages(buffer, stages)


class InStage(Rewriter, kinds=()):
    """Turns accesses of tiles into accesses of their version: ``tiles`` gives by name the versioned buffer and the
    stage."""

    def __init__(self, tiles: dict[str, tuple[Buffer, Expr]]) -> None:
        self.tiles = tiles

    def buffer(self, buffer: Buffer) -> Buffer:
        return self.tiles[buffer.name][0] if buffer.name in self.tiles else buffer

    def visit(self, node: Any) -> Any:
        names = getattr(getattr(node, "buffer", None), "name", None)
        node = super().visit(node)
        if names not in self.tiles:
            return node
        _, stage = self.tiles[names]
        if isinstance(node, (Load, Store, *ATOMIC_OPS)):
            return copy_with(node, {"indices": (stage, *node.indices)})
        if isinstance(node, Region):
            return Region(node.buffer, (stage, *node.starts), (1, *node.extents))
        return node

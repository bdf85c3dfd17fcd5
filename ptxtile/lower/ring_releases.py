"""How consumers tell the producer that they are done with a group's tiles: which threads arrive on the free mbarrier.

Fewest arrivals that are right for the way the tiles are read. ``wgmma.wait_group`` completes the reads of the whole
warpgroup, so one of its threads may speak for it. Where threads read tiles by themselves (ld.shared, ldmatrix), each
executes a proxy fence, since the next load is the async proxy's: without it an H200 lets the arrival, and then the
load, overtake an ldmatrix that was issued before. One thread of each warp arrives after ``bar.warp.sync``; where
threads write to the tiles, each arrives itself.
"""

from __future__ import annotations

from typing import Any

from ptxtile.errors import Location
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.cluster_ops import MbarrierArriveRemote
from ptxtile.ir.expressions import Expr, Load, Var, logical_and
from ptxtile.ir.gpu_ops import FenceProxyAsync, MbarrierArrive, MbarrierWait
from ptxtile.ir.rewrite import buffers_of, walk
from ptxtile.ir.statements import Allocate, If, Statement, View
from ptxtile.ir.tile_ops import Copy, CopyPath, Gemm, GemmPath, Region
from ptxtile.ir.warp_ops import SyncWarp
from ptxtile.lower.cluster_place import Multicast
from ptxtile.records import record

THREAD, WARP, WARPGROUP = 1, 32, 128


@record
class Release:
    """Arrivals on a group's free mbarriers. ``unit``: how many threads one arrival speaks for (1, 32 or 128).
    ``multicast``: the CTAs of the cluster that load the group together, each of which has to know."""

    thread: Var
    unit: int
    multicast: Multicast | None = None

    def arrivals(self, consumers: int) -> int:
        """Arrivals that complete a phase."""
        return consumers // self.unit * (1 if self.multicast is None else self.multicast.count)

    def statements(
        self, free: Buffer, index: Expr, location: Location | None, condition: Expr | None = None
    ) -> list[Statement]:
        """What all consumer threads run to release the stage of mbarrier ``index``. ``condition``: only where it holds;
        the same in all threads."""
        arrive: Statement = MbarrierArrive(free, index, location=location)
        before: list[Statement] = [] if self.unit == WARPGROUP else [FenceProxyAsync(location=location)]
        if self.unit != THREAD:
            lane = self.thread % self.unit
            elected = lane.eq(0)
            if self.multicast is not None:  # lane r tells the r-th CTA
                elected = lane.lt(self.multicast.count)
                arrive = MbarrierArriveRemote(free, index, self.multicast.receiver(lane), location=location)
            condition = elected if condition is None else logical_and(condition, elected)
            before += [SyncWarp(location=location)] if self.unit == WARP else []
        return [*before, arrive if condition is None else If(condition, arrive, location=location)]


def arrival_unit(body: Statement, names: set[str]) -> int:
    """How many threads one arrival may speak for, from the consumers' uses of the storages ``names`` in ``body``."""
    return min((_unit_of_use(node, names) for node in walk(body)), default=WARPGROUP)


def _unit_of_use(node: Any, names: set[str]) -> int:
    if isinstance(node, Copy):
        loaded = node.destination.buffer.storage.name in names
        if loaded:
            return WARPGROUP if node.path is CopyPath.TMA_LOAD else THREAD
        return WARP if node.source.buffer.storage.name in names else WARPGROUP
    if isinstance(node, Gemm):
        operands = {node.a.buffer.storage.name, node.b.buffer.storage.name}
        if node.accumulator.buffer.storage.name in names:
            return THREAD
        return WARP if operands & names and node.path is not GemmPath.WGMMA else WARPGROUP
    if isinstance(node, (Region, Allocate, View, MbarrierWait)):  # a region belongs to an operation, looked at above
        return WARPGROUP
    if not any(buffer.storage.name in names for buffer in buffers_of(node)):
        return WARPGROUP
    return WARP if isinstance(node, Load) else THREAD

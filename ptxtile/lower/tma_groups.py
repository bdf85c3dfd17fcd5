"""Groups of TMA loads that complete on one mbarrier, and the pieces of code that every plan for them needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from ptxtile.errors import Location
from ptxtile.ir.buffers import Buffer, Scope, Storage, contiguous_strides
from ptxtile.ir.cluster_ops import ClusterArrive, ClusterWait
from ptxtile.ir.expressions import Expr, Load, Var, constant
from ptxtile.ir.gpu_ops import BarSync, FenceMbarrierInit, MbarrierArriveExpectTx, MbarrierInit, MbarrierWait
from ptxtile.ir.rewrite import map_children
from ptxtile.ir.statements import Allocate, For, If, Let, Role, Seq, Statement, Store, While, seq
from ptxtile.ir.tile_ops import Copy, CopyPath, TmaCopy
from ptxtile.ir.types import int32, uint64
from ptxtile.records import record

WARP = 32

LoadIssue = Callable[[int, Copy, Buffer, Expr], TmaCopy]
"""(position in the group, copy, mbarriers, index) → the load's start."""


@record
class LoadGroup:
    """Consecutive TMA loads that are waited for together. ``in_loop``: the group may run more than once, so its parity
    is state; else the parity is 0. ``first_thread``: of the role that the user put it into; 0: of the CTA."""

    number: int
    copies: tuple[Copy, ...]
    in_loop: bool
    location: Location | None = field(default=None, compare=False)
    first_thread: int = 0

    @property
    def bytes(self) -> int:
        """What the copies bring in: TMA counts whole boxes, also where they hang over the tensor's edge."""
        total = 0
        for copy in self.copies:
            size = copy.destination.buffer.dtype.itemsize
            for extent in copy.destination.extents:
                size *= extent
            total += size
        return total

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(copy.destination.buffer for copy in self.copies)


@record
class GroupedLoads(Statement):
    """A group's copies as one statement, so that its bounds survive when what stands between two groups is cut away."""

    copies: tuple[Statement, ...]
    number: int
    in_loop: bool

    @property
    def group(self) -> LoadGroup:
        copies = tuple(copy for copy in self.copies if isinstance(copy, Copy))
        return LoadGroup(self.number, copies, self.in_loop, self.location)


@record
class Phase:
    """The parity of a wait: a constant, or a per-thread counter that each wait flips."""

    buffer: Buffer | None
    start: int

    @property
    def value(self) -> Expr:
        return constant(self.start) if self.buffer is None else Load(self.buffer, (), int32)

    def declaration(self) -> tuple[Statement, ...]:
        if self.buffer is None:
            return ()
        return (Allocate(self.buffer), Store(self.buffer, (), constant(self.start)))

    def flip(self) -> tuple[Statement, ...]:
        return () if self.buffer is None else (Store(self.buffer, (), self.value ^ 1),)


def make_phase(name: str, in_loop: bool, start: int = 0) -> Phase:
    if not in_loop:
        return Phase(None, start)
    return Phase(Buffer(name, int32, (), (), Storage(name, Scope.LOCAL, 4, 4)), start)


def barrier_buffer(name: str, count: int) -> Buffer:
    shape = (count,)
    return Buffer(name, uint64, shape, contiguous_strides(shape), Storage(name, Scope.BARRIER, 8 * count, 8))


def barrier_prologue(
    barriers: list[tuple[Buffer, tuple[int, ...]]],
    thread: Var,
    threads: int,
    then: Sequence[Statement] = (),
    for_cluster: bool = False,
) -> list[Statement]:
    """Allocates the barriers and lets thread 0 initialise them: (buffer, arrivals of each mbarrier) → statements.

    The fence makes the inits visible to the async proxy, the barrier to the other threads; ``for_cluster``: to those of
    all CTAs of the cluster. ``then``: what thread 0 does in between.
    """
    result: list[Statement] = [Allocate(buffer) for buffer, _ in barriers]
    inits: list[Statement] = [
        MbarrierInit(buffer, constant(index), arrivals)
        for buffer, counts in barriers
        for index, arrivals in enumerate(counts)
    ]
    result.append(If(thread.eq(0), seq(*inits, FenceMbarrierInit(), *then)))
    if for_cluster:
        return [*result, ClusterArrive(), ClusterWait()]
    result.append(BarSync(0, -(-threads // WARP) * WARP))  # barriers count whole warps (PTX ISA, «barrier»)
    return result


def issue(
    group: LoadGroup, barrier: Buffer, index: Expr | None = None, load: LoadIssue | None = None
) -> list[Statement]:
    """Announces the group's bytes on its mbarrier (by default that of its number) and starts its loads; for one elected
    thread. ``load``: how each is started, where it is not all of it by this CTA for itself."""
    index = constant(group.number) if index is None else index
    result: list[Statement] = [MbarrierArriveExpectTx(barrier, index, group.bytes, location=group.location)]
    for position, copy in enumerate(group.copies):
        whole = TmaCopy(copy.source, copy.destination, barrier, index, location=copy.location)
        result.append(whole if load is None else load(position, copy, barrier, index))
    return result


def wait(group: LoadGroup, barrier: Buffer, phase: Phase) -> list[Statement]:
    """Waits for the group's bytes on the mbarrier of its number, then moves the parity on."""
    arrived = MbarrierWait(barrier, constant(group.number), phase.value, group.buffers, location=group.location)
    return [arrived, *phase.flip()]


def _is_load(statement: Statement) -> bool:
    return isinstance(statement, Copy) and statement.path is CopyPath.TMA_LOAD


def replace_groups(body: Statement, make: Callable[[LoadGroup], list[Statement]]) -> tuple[Statement, list[LoadGroup]]:
    """``body`` with each group of TMA loads replaced by what ``make`` gives for it, and the groups in program order.

    A run of loads in one Seq is one group unless two of them fill the same storage. Allocations in between are moved
    up.
    """
    groups: list[LoadGroup] = []
    first_thread = 0

    def close(run: list[Copy], in_loop: bool) -> list[Statement]:
        if not run:
            return []
        group = LoadGroup(len(groups), tuple(run), in_loop, run[0].location, first_thread)
        groups.append(group)
        return make(group)

    def visit_seq(statements: tuple[Statement, ...], in_loop: bool) -> list[Statement]:
        result: list[Statement] = []
        run: list[Copy] = []
        for statement in statements:
            if isinstance(statement, Copy) and _is_load(statement):
                if any(c.destination.buffer.storage.name == statement.destination.buffer.storage.name for c in run):
                    result += close(run, in_loop)
                    run = []
                run.append(statement)
            elif isinstance(statement, Allocate):
                result.append(statement)
            else:
                result += close(run, in_loop)
                run = []
                result.append(visit(statement, in_loop))
        return result + close(run, in_loop)

    def visit(node: Any, in_loop: bool) -> Any:
        nonlocal first_thread
        if isinstance(node, Role):
            first_thread = node.first_thread
            role = map_children(node, lambda child: visit(child, in_loop))
            first_thread = 0
            return role
        if isinstance(node, Seq):
            return seq(*visit_seq(node.statements, in_loop))
        if isinstance(node, Copy) and _is_load(node):
            return seq(*close([node], in_loop))
        if isinstance(node, (Expr, Let)) or not isinstance(node, Statement):
            return node
        inside = in_loop or isinstance(node, (For, While))
        return map_children(node, lambda child: visit(child, inside))

    return visit(body, False), groups

"""Which copies of pipelined loops cp.async can carry out ahead of their use, and why the others cannot.

A copy from global to shared memory qualifies when a thread's part of it is 4, 8 or 16 bytes that lie together and
aligned on both sides (PTX ISA, «cp.async»), and when running it some iterations early changes nothing that it reads.
Its tile qualifies when each iteration uses only what it loaded itself, since every stage has a version of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ptxtile.ir.atomic_ops import ACQUIRING, Atomic, AtomicStore
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.cluster_ops import MbarrierArriveRemote
from ptxtile.ir.effects import atomic_write, private_results
from ptxtile.ir.expressions import Expr, Load, Var, as_expr, constant_value
from ptxtile.ir.gpu_ops import BarSync, FenceProxyAsync, GpuOp, MbarrierArrive, MbarrierWait
from ptxtile.ir.grid_dependency_ops import LaunchDependents
from ptxtile.ir.manual_ops import BarArrive, BarAt, BarReduce, DeviceAssert
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.rewrite import buffers_of, children, walk
from ptxtile.ir.statements import Allocate, Break, Continue, For, Let, LoopKind, Seq, Statement, Store, View, While
from ptxtile.ir.tensor_core_ops import WgmmaWaitGroup
from ptxtile.ir.tile_ops import Copy, CopyPath, Fill, Gemm, GemmPath, Region, SafeValue, TmaCopy
from ptxtile.ir.types import int32
from ptxtile.ir.warp_ops import ActiveMask, ElectOne, Match, Shuffle, SyncWarp, Vote
from ptxtile.lower.expand_copies import region_indices
from ptxtile.lower.parallel_loops import base_alignments
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.thread_dependence import ThreadDependence
from ptxtile.lower.vector_access import MemoryAccess, VectorWidths

INSIDE = "it stands under a condition or in a loop inside of the pipelined one"
FEWEST_BYTES = 4
"""Of one cp.async (PTX ISA, «cp.async»: cp-size is 4, 8 or 16)."""

_HARMLESS = (
    BarSync, BarArrive, BarAt, BarReduce, FenceProxyAsync, SyncWarp, Shuffle, Vote, Match, ActiveMask, ElectOne,
    DeviceAssert, LaunchDependents,
)  # fmt: skip
"""Ops of the user that tell a thread nothing about memory outside of the block. Copies may run ahead of them."""

_RING = (MbarrierWait, MbarrierArrive, MbarrierArriveRemote, WgmmaWaitGroup)
"""Ops by which consumers of a producer's tiles wait for these alone."""

LEAST_SHARE = 0.25
"""Of the bytes that an iteration loads: if TMA cannot load so much, no producer is made, and cp.async loads all. For
less (the scales of a tile) the producer of the rest is kept."""


@dataclass(slots=True)
class PipelinedLoop:
    """A loop whose copies run ahead: ``widths`` gives by identity the copies and the elements of one cp.async.

    ``statements``: its body. ``refused``: copies that stay where they are, with the reason.
    """

    loop: For
    stages: int
    widths: dict[int, int] = field(default_factory=dict)
    refused: list[tuple[Copy, str]] = field(default_factory=list)

    @property
    def statements(self) -> tuple[Statement, ...]:
        return self.loop.body.statements if isinstance(self.loop.body, Seq) else (self.loop.body,)

    @property
    def copies(self) -> list[Copy]:
        """Those that run ahead, in program order."""
        return [node for node in self.statements if isinstance(node, Copy) and id(node) in self.widths]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple({copy.destination.buffer.name: copy.destination.buffer for copy in self.copies}.values())


def stages_of(loop: For) -> int:
    """``num_stages`` of a T.Pipelined loop, or its trip count where that is a smaller constant; 1 for other loops."""
    stages = loop.option("num_stages") if loop.kind is LoopKind.PIPELINED else None
    if not isinstance(stages, int) or stages < 2 or loop.step != 1:
        return 1
    start, stop = constant_value(loop.start), constant_value(loop.stop)
    return stages if start is None or stop is None else max(min(stages, stop - start), 1)


def is_load(node: Any) -> bool:
    """Whether ``node`` copies a tile from global to shared memory."""
    scopes = (Scope.GLOBAL, Scope.SHARED)
    return isinstance(node, Copy) and (node.source.buffer.scope, node.destination.buffer.scope) == scopes


def pipelined_loops(program: Program, kernel: Kernel) -> list[PipelinedLoop]:
    """The pipelined loops of several stages that load tiles, with the copies that may run ahead."""
    found = [PipelinedLoop(node, stages_of(node)) for node in walk(kernel.body, For)]
    found = [entry for entry in found if entry.stages > 1 and any(is_load(node) for node in walk(entry.loop.body))]
    if not found:
        return []
    widths = _Widths(program, kernel)
    widths.visit(kernel.body)
    groups = {p.name: p.alias_group for p in program.parameters if isinstance(p, TensorParameter)}
    reasons: dict[str, str] = {}
    for entry in found:
        for name, reason in _loop_reasons(entry, widths, groups, has_producer(kernel)):
            reasons.setdefault(name, reason)
    for name, reason in _outside_reasons(kernel.body, found):
        reasons.setdefault(name, reason)
    for entry in found:
        for node in _own_loads(entry.loop.body):
            direct = any(node is statement for statement in entry.statements)
            reason = reasons.get(node.destination.buffer.storage.name, "") if direct else INSIDE
            if reason:
                entry.refused.append((node, reason))
            else:
                entry.widths[id(node)] = widths.of[id(node)][0]
    return found


def _own_loads(node: Any) -> Iterator[Copy]:
    """The loads in ``node`` that do not belong to a pipelined loop inside of it."""
    if isinstance(node, Copy) and is_load(node):
        yield node
    for child in children(node):
        if isinstance(child, Statement) and not (isinstance(child, For) and stages_of(child) > 1):
            yield from _own_loads(child)


def loads_by_hand(program: Program, kernel: Kernel) -> str:
    """The copy of a pipelined loop with tensor cores, if there is one, that a producer could not load, as TMA cannot,
    but that cp.async can load ahead together with all others: a description of it, else empty."""
    if all(node.path is CopyPath.TMA_LOAD for node in walk(kernel.body) if is_load(node)):
        return ""
    for entry in pipelined_loops(program, kernel):
        multiplies = any(n.path is not GemmPath.FMA for n in walk(entry.loop.body, Gemm))
        if multiplies and not entry.refused:
            others = [copy for copy in entry.copies if copy.path is not CopyPath.TMA_LOAD]
            if sum(map(_bytes, others)) >= LEAST_SHARE * sum(map(_bytes, entry.copies)) > 0:
                return f"the copy {others[0].source.buffer.name} -> {others[0].destination.buffer.name}"
    return ""


def _bytes(copy: Copy) -> int:
    return prod(copy.destination.extents) * copy.destination.buffer.dtype.itemsize


def copy_widths(program: Program, kernel: Kernel) -> dict[int, tuple[int, str]]:
    """By identity of each copy into a shared tile: the elements that one cp.async moves, or 0 and why it cannot."""
    widths = _Widths(program, kernel)
    widths.visit(kernel.body)
    return widths.of


# --- single copies ---------------------------------------------------------------------------------------------------


class _Widths(ScopedRewriter):
    """``of``: by identity of a copy the elements that one thread moves at once, or 0 and why cp.async cannot."""

    def __init__(self, program: Program, kernel: Kernel) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.names = NameSupply(program)
        self.widths = VectorWidths(self.analyzer, base_alignments(program))
        self.uniformity = ThreadDependence(kernel)
        self.safe = {n.buffer.name for n in walk(kernel.body, SafeValue) if constant_value(n.value) != 0}
        self.of: dict[int, tuple[int, str]] = {}

    def rewrite_Copy(self, copy: Copy) -> Copy:
        if is_load(copy):
            reason = self._refusal(copy)
            width = 0 if reason else self._width(copy)
            if not reason and width * copy.source.buffer.dtype.itemsize < FEWEST_BYTES:
                reason = "its neighbours in a row are not known to lie together in aligned groups of 4 bytes"
            self.of[id(copy)] = (width, reason)
        return copy

    def _refusal(self, copy: Copy) -> str:
        source, destination = copy.source.buffer, copy.destination.buffer
        if source.dtype != destination.dtype:
            return f"the copy converts {source.dtype} to {destination.dtype}"
        if source.dtype.bits % 8:
            return f"elements of {source.dtype} are no whole bytes"
        if source.name in self.safe:
            return f"{source.name} has a safe value of its own, and cp.async gives zeros"
        starts = (*copy.source.starts, *copy.destination.starts)
        if not all(self.uniformity.is_uniform(start) for start in starts):
            return "its position depends on the thread"
        sizes = destination.static_shape
        for start, extent, size in zip(copy.destination.starts, copy.destination.extents, sizes, strict=True):
            start = as_expr(start)
            if not (self.analyzer.prove(start.ge(0)) and self.analyzer.prove(start.le(size - extent))):
                return f"its region is not known to lie in {destination.name}"
        return ""

    def _width(self, copy: Copy) -> int:
        """The largest power of two of elements, up to 16 bytes, that is one aligned run on both sides, in every stage
        of the tile."""
        extents = copy.destination.dense_extents or (1,)
        loop_vars = tuple(Var(self.names.fresh("c"), int32) for _ in extents)
        with self.analyzer.scope():
            for var, extent in zip(loop_vars, extents, strict=True):
                self.analyzer.bind(var, 0, extent - 1)
            width = min(
                self.widths.width(MemoryAccess(region.buffer, region_indices(region, loop_vars)), loop_vars[-1],
                                  extents[-1])
                for region in (copy.source, copy.destination)
            )  # fmt: skip
        limit = copy.coalesced_width
        stage = prod(copy.destination.buffer.static_shape)
        while width > 1 and (stage % width or (limit is not None and width > max(limit, 1))):
            width //= 2
        return width


# --- loops -----------------------------------------------------------------------------------------------------------


def _loop_reasons(
    entry: PipelinedLoop, widths: _Widths, groups: dict[str, int | None], beside_producer: bool
) -> Iterator[tuple[str, str]]:
    """(storage of a tile, why the loop's copies into it cannot run ahead)."""
    statements = entry.statements
    hindrance = _hindrance(entry.loop, _RING if beside_producer else ())
    tiles: dict[str, Buffer] = {}
    for position, node in enumerate(statements):
        if not is_load(node) or not isinstance(node, Copy):
            continue
        buffer = node.destination.buffer
        tiles[buffer.storage.name] = buffer
        reason = hindrance or widths.of[id(node)][1] or _moved_reason(node, statements[:position], entry.loop, groups)
        if reason:
            yield buffer.storage.name, reason
    for name, buffer in tiles.items():
        reason = _tile_reason(buffer, statements)
        if reason:
            yield name, reason


def has_producer(kernel: Kernel) -> bool:
    """Whether ``specialize_warps`` gave the kernel a producer: what is still copied is copied by the consumers."""
    return bool(kernel.user_threads) and kernel.threads != kernel.user_threads


def _hindrance(loop: For, also_harmless: tuple[type, ...]) -> str:
    """Why no copy of the loop may run ahead; empty if some may."""
    if _leaves_early(loop.body):
        return "the loop may be left early"
    for node in walk(loop.body):
        relaxed = isinstance(node, AtomicStore) or (isinstance(node, Atomic) and node.order not in ACQUIRING)
        if isinstance(node, GpuOp) and not relaxed and not isinstance(node, (*_HARMLESS, *also_harmless)):
            return f"the loop may wait by hand ({type(node).__name__}) for what it reads"
    return ""


def _leaves_early(node: Any) -> bool:
    """Whether a Break or Continue belongs to the loop with this body."""
    if isinstance(node, (For, While, Expr)):
        return False
    return isinstance(node, (Break, Continue)) or any(_leaves_early(child) for child in children(node))


def _moved_reason(copy: Copy, before: tuple[Statement, ...], loop: For, groups: dict[str, int | None]) -> str:
    """Why the copy would read something else if it ran some iterations early."""
    written = _written(loop)
    sources = {copy.source.buffer.storage.name}
    for expression in _needed(copy, before):
        sources |= {node.buffer.storage.name for node in walk(expression, Load)}
    for source in sorted(sources):
        group = groups.get(source)
        if source in written or (group is not None and any(groups.get(name) == group for name in written)):
            return f"the loop writes {source}, which the copy reads"
    return ""


def _needed(copy: Copy, before: tuple[Statement, ...]) -> list[Expr]:
    """The copy's positions and the values of the scalars of the loop's body that they use."""
    found = [as_expr(start) for region in (copy.source, copy.destination) for start in region.starts]
    names = {node.name for start in found for node in walk(start, Var)}
    for statement in reversed(before):
        if isinstance(statement, Let) and statement.var.name in names:
            found.append(statement.value)
            names |= {node.name for node in walk(statement.value, Var)}
    return found


def _written(loop: For) -> set[str]:
    """Storages that the loop may write."""
    result: set[str] = set()
    for node in walk(loop.body):
        if isinstance(node, Store):
            result.add(node.buffer.storage.name)
        elif isinstance(node, (Copy, Fill, TmaCopy)):
            result.add(node.destination.buffer.storage.name)
        elif isinstance(node, Gemm):
            result.add(node.accumulator.buffer.storage.name)
        updated = atomic_write(node)
        if updated is not None:
            result.add(updated.storage.name)
        result |= {buffer.storage.name for buffer in private_results(node)}
    return result


def _tile_reason(buffer: Buffer, statements: tuple[Statement, ...]) -> str:
    """Why the tile cannot have a version for each stage: an iteration may use what another one left in it."""
    import numpy as np

    name = buffer.storage.name
    covered = np.zeros(buffer.static_shape, bool)
    fresh = any(isinstance(node, Allocate) and node.buffer.storage.name == name for node in statements)
    for statement in statements:
        if isinstance(statement, Copy) and is_load(statement) and statement.destination.buffer.storage.name == name:
            box = _box(statement.destination)
            if box is None:
                return f"the copy goes to a part of {name} that differs between iterations"
            if covered[box].any():
                return f"{name} is filled twice in an iteration"
            covered[box] = True
            continue
        for what, region in _uses(statement, name):
            if what == "other":
                return f"{name} is used by more than copies, gemms, loads"
            if what == "write":
                return f"{name} is written by more than the copies at the top of the loop's body"
            box = None if region is None else _box(region)
            if not (covered.any() if fresh else (covered if box is None else covered[box]).all()):
                return f"{name} is used before the copy into it, or where the copy does not reach"
    return ""


def _box(region: Region) -> tuple[slice, ...] | None:
    """The region as slices; None where it is not constant."""
    starts = [constant_value(start) for start in region.starts]
    if any(start is None for start in starts):
        return None
    return tuple(
        slice(start, start + extent) for start, extent in zip(starts, region.extents, strict=True) if start is not None
    )


def _uses(statement: Any, name: str) -> Iterator[tuple[str, Region | None]]:
    """What ``statement`` does to a storage: ``read`` or ``write`` (with the region, if it is one) or ``other``."""
    for node in walk(statement):
        if isinstance(node, (Copy, TmaCopy)):
            sides = [("read", node.source), ("write", node.destination)]
        elif isinstance(node, Gemm):
            sides = [("read", node.a), ("read", node.b), ("write", node.accumulator)]
        elif isinstance(node, Fill):
            sides = [("write", node.destination)]
        elif isinstance(node, (Allocate, Region)):
            continue  # regions are told by what they belong to
        else:
            kinds = {Load: "read", Store: "write"}
            if any(buffer.storage.name == name for buffer in buffers_of(node)):
                yield kinds.get(type(node), "other"), None
            continue
        yield from ((what, region) for what, region in sides if region.buffer.storage.name == name)


def _outside_reasons(body: Statement, found: list[PipelinedLoop]) -> Iterator[tuple[str, str]]:
    """Tiles with other views, or that something outside of their pipelined loops uses."""
    loops: dict[str, set[int]] = {}
    for entry in found:
        for node in entry.statements:
            if isinstance(node, Copy) and is_load(node):
                loops.setdefault(node.destination.buffer.storage.name, set()).add(id(entry.loop))
    for name, own in loops.items():
        if any(node.buffer.storage.name == name for node in walk(body, View)):
            yield name, f"{name} has other views, which have no versions"
        elif _used_outside(body, name, own):
            yield name, f"{name} is also used outside of the loop"


def _used_outside(node: Any, name: str, loops: set[int]) -> bool:
    if isinstance(node, For) and id(node) in loops:
        return False
    if isinstance(node, Expr) or not any(isinstance(child, Statement) for child in children(node)):
        return any(True for _ in _uses(node, name))
    return any(_used_outside(child, name, loops) for child in children(node))

"""Splits a kernel into a producer warpgroup that issues TMA loads and consumers that do the rest.

Input: tile stage with paths. Output: async stage for the kernels that were split, whose body is then a prologue and one
:class:`Specialized`; other kernels are unchanged, with the reason recorded.

The consumers keep their thread numbers; the 128 producer threads come after them, and one of them runs a slice of the
program: the TMA loads, the control flow around them and the scalars that both need. Each group of loads has a *full*
mbarrier (the producer announces bytes, TMA completes it, the consumers wait) and, if its buffers are used again, a
*free* mbarrier that the consumers arrive on after their last use (:mod:`ptxtile.lower.ring_releases`) and that the
producer waits for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.cluster_ops import ClusterArrive, ClusterWait
from ptxtile.ir.expressions import Expr, constant
from ptxtile.ir.gpu_ops import MbarrierWait, SetMaxRegisters
from ptxtile.ir.manual_ops import GridSync
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import buffers_of, contains, map_children, replace_buffers, walk
from ptxtile.ir.statements import (
    Allocate,
    For,
    If,
    Role,
    Seq,
    Specialized,
    Statement,
    seq,
)
from ptxtile.ir.tile_ops import Copy, CopyPath, Gemm, GemmPath, KeepRegisters, TmaCopy
from ptxtile.lower.async_copy_candidates import loads_by_hand
from ptxtile.lower.cluster_multicast import needs_cluster, plan_multicast
from ptxtile.lower.cluster_place import Multicast
from ptxtile.lower.handshakes import Handshake, find_handshakes, stages_of
from ptxtile.lower.hoist_dependency_waits import take_wait, without
from ptxtile.lower.join_gemms import join_gemms, with_fewest_waits
from ptxtile.lower.made_operands import overlap_made_operands
from ptxtile.lower.options import Options
from ptxtile.lower.overlap_gemms import RingUse, overlap_gemms
from ptxtile.lower.plan_registers import plan_registers
from ptxtile.lower.producer_slice import SliceRefused, producer_slice
from ptxtile.lower.rings import InStage, Ring, make_ring, versioned
from ptxtile.lower.second_versions import Room
from ptxtile.lower.tma_groups import (
    GroupedLoads,
    LoadGroup,
    barrier_buffer,
    barrier_prologue,
    issue,
    make_phase,
    replace_groups,
)
from ptxtile.records import record
from ptxtile.target import Feature, Target

WARPGROUP = 128
MAXIMUM_THREADS = 1024


def run(program: Program, target: Target, options: Options) -> Program:
    kernels: list[Kernel] = []
    why: list[Why] = []
    stage = program.stage
    for kernel in program.kernels:
        keep_registers = contains(kernel.body, KeepRegisters)
        kernel = replace(kernel, body=without(kernel.body, KeepRegisters)) if keep_registers else kernel
        if kernel.cluster != (1, 1, 1) and not target.has(Feature.CLUSTER) and not needs_cluster(kernel):
            kernel = replace(kernel, cluster=(1, 1, 1))
            why.append(Why("specialize_warps", kernel.name, "no cluster", f"{target.name} has none", kernel.location))
        refusal = _refusal(kernel, target, options)
        if not refusal and options.specialize_warps == "auto":
            by_hand = loads_by_hand(program, kernel)
            refusal = f"auto: {by_hand} cannot use TMA, and cp.async loads all ahead" if by_hand else ""
        if not refusal:
            try:
                kernel, multicast = _specialize(program, kernel, target)
                why.extend(multicast)
                if keep_registers:
                    kernel = replace(kernel, body=without(kernel.body, SetMaxRegisters))
                stage = "async"
                asked = options.specialize_warps != "auto"
                reason = "asked for" if asked else "auto: a pipelined loop that feeds tensor cores loads through TMA"
                why.append(Why("specialize_warps", kernel.name, "producer and consumers", reason, kernel.location))
            except SliceRefused as refused:
                refusal = str(refused)
        if refusal:
            why.append(Why("specialize_warps", kernel.name, "no roles", refusal, kernel.location))
            if kernel.cluster != (1, 1, 1):
                reason = "only a producer role multicasts"
                why.append(Why("specialize_warps", kernel.name, "no multicast", reason, kernel.location))
        kernels.append(kernel)
    return replace(program, kernels=tuple(kernels), stage=stage).with_why(*why)


def _refusal(kernel: Kernel, target: Target, options: Options) -> str:
    """Why ``kernel`` gets no roles; empty if it may."""
    if contains(kernel.body, Specialized):
        return "the kernel has roles of its own (T.ws)"
    if contains(kernel.body, TmaCopy):
        return "the kernel starts TMA copies of its own (T.tma_copy, or order and stage of T.Pipelined)"
    if contains(kernel.body, GridSync):
        return "a barrier of the grid (T.sync_grid) needs all threads, and loads must not run ahead of it"
    if options.specialize_warps is False:
        return "switched off by specialize_warps=False"
    automatic = options.specialize_warps == "auto"
    fed = _loads_for_tensor_cores(kernel) if automatic else []
    if automatic and not fed:
        return "auto: no pipelined loop feeds tensor cores, and one-shot kernels measure faster without roles"
    for feature in (Feature.TMA, Feature.SETMAXNREG):
        if not target.has(feature):
            return f"{target.name} has no {feature.name} ({feature.value})"
    if kernel.threads % WARPGROUP:
        return f"{kernel.threads} consumer threads are no multiple of a warpgroup (128)"
    if kernel.threads + WARPGROUP > MAXIMUM_THREADS:
        return f"{kernel.threads} consumer threads leave no room for a producer warpgroup of 128"
    if automatic and not any(load.path is CopyPath.TMA_LOAD for load in fed):
        return "auto: no load of a pipelined loop that feeds tensor cores takes the TMA path"
    _, groups = replace_groups(kernel.body, lambda group: [])
    return "" if groups else "no copy takes the TMA path"


def _loads_for_tensor_cores(kernel: Kernel) -> list[Copy]:
    """The loads in pipelined loops of several stages that multiply on tensor cores."""
    found: list[Copy] = []
    for node in walk(kernel.body):
        if isinstance(node, For) and stages_of(node) > 1:
            inside = list(walk(node.body))
            if any(isinstance(n, Gemm) and n.path is not GemmPath.FMA for n in inside):
                copies = [n for n in inside if isinstance(n, Copy)]
                found += [n for n in copies if (n.source.buffer.scope, n.destination.buffer.scope) == _LOAD]
    return found


_LOAD = Scope.GLOBAL, Scope.SHARED


@record
class _Barriers:
    """The mbarriers of a kernel: ``first[n]`` is the first of group n in both buffers, which has one for each stage."""

    full: Buffer
    free: Buffer
    first: tuple[int, ...]


def _specialize(program: Program, kernel: Kernel, target: Target) -> tuple[Kernel, list[Why]]:
    waits, body = take_wait(kernel.body)
    kernel, multicasts, why = plan_multicast(program, replace(kernel, body=body), target)
    _, groups = replace_groups(kernel.body, lambda group: [])
    consumers = kernel.threads
    handshakes = find_handshakes(kernel, groups, multicasts)
    stages = [handshakes[group.number].stages if group.number in handshakes else 1 for group in groups]
    barriers = _Barriers(
        barrier_buffer(f"{kernel.name}_full", sum(stages)),
        barrier_buffer(f"{kernel.name}_free", sum(stages)),
        tuple(sum(stages[:number]) for number in range(len(stages))),
    )
    tiles, kernel = _hoist_tiles(kernel, groups)
    producer_body = _producer(program, kernel, barriers, handshakes, multicasts)
    room = _room(kernel, tiles, groups, stages, target)
    consumer_body, overlaps = _consumers(kernel, barriers, handshakes, room, NameSupply(program))
    why += overlaps
    initialised: list[tuple[Buffer, tuple[int, ...]]] = [(barriers.full, (1,) * sum(stages))]
    if handshakes:
        counts = [
            handshakes[group.number].release.arrivals(consumers) if group.number in handshakes else 1
            for group in groups
        ]
        initialised.append(
            (barriers.free, tuple(n for n, count in zip(counts, stages, strict=True) for _ in range(count)))
        )
    registers = plan_registers(consumers, blocks=max(kernel.min_blocks, 1))
    threads = consumers + WARPGROUP
    roles = Specialized(
        (
            _role("consumer", 0, consumers, consumer_body, SetMaxRegisters("inc", registers.consumer)),
            _role("producer", consumers, WARPGROUP, producer_body, SetMaxRegisters("dec", registers.producer)),
        ),
        location=kernel.location,
    )
    prologue = barrier_prologue(initialised, kernel.thread, threads, for_cluster=bool(multicasts))
    # No CTA may end while others still arrive on its barriers or multicast into its memory.
    together = [ClusterArrive(aligned=False), ClusterWait(aligned=False)] if multicasts else []
    versions = {
        buffer.name: versioned(buffer, count)
        for group, count in zip(groups, stages, strict=True)
        for buffer in group.buffers
        if count > 1
    }
    tiles = [replace_buffers(tile, versions) for tile in tiles]
    if waits:
        reason = "a wait of one role would not hold back the loads and stores of the other"
        why.append(Why("specialize_warps", "T.pdl_sync", "in front of the roles", reason, waits[0].location))
    min_blocks = max(kernel.min_blocks, 1)
    body = seq(*tiles, *prologue, *waits, roles, *together)
    return replace(kernel, threads=threads, min_blocks=min_blocks, body=body), why


def _hoist_tiles(kernel: Kernel, groups: list[LoadGroup]) -> tuple[list[Statement], Kernel]:
    """Allocations of the tiles that the producer fills move in front of the roles, since both use them."""
    names = {buffer.storage.name for group in groups for buffer in group.buffers}
    found: list[Statement] = []

    def visit(node: Any) -> Any:
        if isinstance(node, Allocate) and node.buffer.storage.name in names:
            found.append(node)
            return None
        return map_children(node, visit) if isinstance(node, Statement) else node

    body = visit(kernel.body)
    return found, replace(kernel, body=body)


def _role(name: str, first: int, threads: int, body: Statement, registers: SetMaxRegisters) -> Role:
    return Role(name, first, threads, seq(registers, body), registers=registers.count)


def _producer(
    program: Program,
    kernel: Kernel,
    barriers: _Barriers,
    handshakes: dict[int, Handshake],
    multicasts: dict[int, Multicast],
) -> Statement:
    declarations: list[Statement] = []
    tiles: dict[str, tuple[Buffer, Expr]] = {}

    def make(group: LoadGroup) -> list[Statement]:
        handshake, first = handshakes.get(group.number), barriers.first[group.number]
        load = multicasts[group.number].issue if group.number in multicasts else None
        if handshake is None:
            return issue(group, barriers.full, constant(first), load)
        if handshake.stages > 1:
            ring = make_ring(f"{kernel.name}_load_{group.number}", first, handshake.stages, start=1)
            declarations.extend(ring.declaration())
            tiles.update({b.name: (versioned(b, ring.stages), ring.here) for b in group.buffers})
            issued = issue(group, barriers.full, ring.index, load)
            return [*ring.wait(barriers.free, group), *issued, *ring.advance()]
        phase = handshake.free
        declarations.extend(phase.declaration())
        waiting = MbarrierWait(barriers.free, constant(first), phase.value, group.buffers, location=group.location)
        return [waiting, *phase.flip(), *issue(group, barriers.full, constant(first), load)]

    def visit(node: Any) -> Any:
        if isinstance(node, GroupedLoads):
            return seq(*make(node.group))
        return node if isinstance(node, Expr) else map_children(node, visit)

    # Grouped before the slice is cut: without what stands between them two groups would look like one.
    grouped, _ = replace_groups(
        kernel.body, lambda group: [GroupedLoads(group.copies, group.number, group.in_loop, location=group.location)]
    )
    body = visit(producer_slice(program, replace(kernel, body=grouped)))
    elected = kernel.thread.eq(kernel.threads)
    return If(elected, InStage(tiles).visit(seq(*declarations, body)), location=kernel.location)


def _room(kernel: Kernel, tiles: list[Statement], groups: list[LoadGroup], stages: list[int], target: Target) -> Room:
    """What the tiles in all their stages leave of shared memory."""
    count = {b.storage.name: n for group, n in zip(groups, stages, strict=True) for b in group.buffers}
    shared = [
        node.buffer.storage
        for node in (*tiles, *walk(kernel.body))
        if isinstance(node, Allocate) and node.buffer.scope is Scope.SHARED
    ]
    used = sum(count.get(storage.name, 1) * (storage.size or 0) for storage in shared) + 16 * sum(stages)
    return Room(replace(kernel, threads=kernel.threads + WARPGROUP), kernel.threads, target, used)


def _consumers(
    kernel: Kernel, barriers: _Barriers, handshakes: dict[int, Handshake], room: Room, names: NameSupply
) -> tuple[Statement, list[Why]]:
    declarations: list[Statement] = []
    releases: list[tuple[LoadGroup, Statement, list[Statement]]] = []
    rings: dict[int, Ring] = {}
    tiles: dict[str, tuple[Buffer, Expr]] = {}

    def make(group: LoadGroup) -> list[Statement]:
        handshake, first = handshakes.get(group.number), barriers.first[group.number]
        if handshake is not None and handshake.stages > 1:
            ring = make_ring(f"{kernel.name}_use_{group.number}", first, handshake.stages, start=0)
            declarations.extend(ring.declaration())
            tiles.update({b.name: (versioned(b, ring.stages), ring.here) for b in group.buffers})
            result = ring.wait(barriers.full, group)
            release = handshake.release.statements(barriers.free, ring.index, group.location)
            releases.append((group, result[-1], [*release, *ring.advance()]))
            rings[group.number] = ring
            return result
        phase = make_phase(f"{kernel.name}_full_phase_{group.number}", group.in_loop)
        declarations.extend(phase.declaration())
        waiting = MbarrierWait(barriers.full, constant(first), phase.value, group.buffers, location=group.location)
        release = (
            [] if handshake is None else handshake.release.statements(barriers.free, constant(first), group.location)
        )
        if handshake is not None and handshake.credit:
            releases.append((group, waiting, release))
            release = []
        return [*release, waiting, *phase.flip()]

    body, _ = replace_groups(kernel.body, make)
    uses = [
        RingUse(group, waiting, rings[group.number], handshakes[group.number].release)
        for group, waiting, _ in releases
        if group.number in rings
    ]
    overlapped = overlap_gemms(body, uses, barriers.free, kernel.threads)
    unreleased = [use for use in uses if use.group.number not in overlapped.released]
    made = overlap_made_operands(overlapped.body, unreleased, barriers.free, room, names)
    body, joined = join_gemms(made.body, kernel.threads)
    released = overlapped.released | made.released
    for group, waiting, release in releases:
        if group.number not in released:
            body = _release_after_last_use(body, group, waiting, release)
    body = InStage(tiles | made.versions).visit(seq(*declarations, with_fewest_waits(body)))
    return body, [*overlapped.why, *made.why, *joined]


def _storages(node: Any) -> set[str]:
    """Names of the storages that ``node`` touches, other than by waiting for them."""
    found: set[str] = set()
    for inner in walk(node):
        if not isinstance(inner, MbarrierWait):
            found.update(buffer.storage.name for buffer in buffers_of(inner))
    return found


def _release_after_last_use(
    body: Statement, group: LoadGroup, waiting: Statement, release: list[Statement]
) -> Statement:
    """Puts the consumers' release after the last statement that uses the group, in the Seq of its wait."""
    names = {buffer.storage.name for buffer in group.buffers}

    def visit(node: Any) -> Any:
        if isinstance(node, Expr):
            return node
        if isinstance(node, Seq) and any(s is waiting for s in node.statements):
            last = max(k for k, s in enumerate(node.statements) if s is waiting or _storages(s) & names)
            return Seq((*node.statements[: last + 1], *release, *node.statements[last + 1 :]), location=node.location)
        return map_children(node, visit)

    return visit(body)

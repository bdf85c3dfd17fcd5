"""Loads that the CTAs of a cluster share: each loads a part of the tile and multicasts it to all of them.

Where a load's coordinates and the control flow around it are the same in all CTAs along an axis of the cluster, those
CTAs get the tile from L2 once: of ``n`` CTAs each loads 1/n of it (consecutive rows) into the shared memory of all n.
The full barrier of each expects the whole tile, and the producer waits until the consumers of all n have freed the
stage, so these arrive on the free barriers of all n.

Semantics are those of the CTA scope: cluster-scoped waits and arrivals cost a GEMM 30 % on an H200.
"""

from __future__ import annotations

from dataclasses import replace

from ptxtile.ir.cluster_ops import ClusterArrive, ClusterWait, MbarrierArriveRemote
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import children, walk
from ptxtile.ir.statements import For, If, Statement, While
from ptxtile.ir.tile_ops import Copy, TmaCopy
from ptxtile.lower.cluster_place import Axes, ClusterPlace, Multicast, split_dimension
from ptxtile.lower.cluster_tails import without_tail_conditions
from ptxtile.lower.rank_dependence import RankDependence
from ptxtile.lower.ring_releases import THREAD, arrival_unit
from ptxtile.lower.tma_groups import replace_groups
from ptxtile.target import Feature, Target


def needs_cluster(kernel: Kernel) -> bool:
    """Whether the user's own code uses that the CTAs of a cluster run together."""
    by_hand = (ClusterArrive, ClusterWait, MbarrierArriveRemote)
    return any(
        isinstance(node, by_hand) or (isinstance(node, TmaCopy) and node.multicast is not None)
        for node in walk(kernel.body)
    )


def plan_multicast(program: Program, kernel: Kernel, target: Target) -> tuple[Kernel, dict[int, Multicast], list[Why]]:
    """``kernel``, maybe with conditions less; its groups that are multicast, by number; and what was decided about each
    copy."""
    axes = tuple(axis for axis in range(3) if kernel.cluster[axis] > 1)
    if not axes:
        return kernel, {}, []
    if not target.has(Feature.TMA_MULTICAST):
        reason = f"{target.name} has no fast {Feature.TMA_MULTICAST.value}"
        return kernel, {}, [Why("specialize_warps", kernel.name, "no multicast", reason, kernel.location)]
    dependence = {axis: RankDependence(program, kernel, axis) for axis in axes}
    body = without_tail_conditions(program, kernel, list(dependence.values()))
    if body is not kernel.body:
        changed = replace(kernel, body=body)
        multicasts, why = _plan(changed, {axis: RankDependence(program, changed, axis) for axis in axes})
        if multicasts:
            decision, reason = "CTAs without a tile run along", "what they write is outside of the tensors"
            return changed, multicasts, [Why("specialize_warps", kernel.name, decision, reason, kernel.location), *why]
    return kernel, *_plan(kernel, dependence)


def _plan(kernel: Kernel, dependence: dict[int, RankDependence]) -> tuple[dict[int, Multicast], list[Why]]:
    _, groups = replace_groups(kernel.body, lambda group: [])
    place = ClusterPlace(kernel.block_vars, kernel.cluster)
    result: dict[int, Multicast] = {}
    why: list[Why] = []
    for group in groups:
        around = _control_around(kernel.body, group.copies[0])
        together = tuple(a for a in dependence if all(dependence[a].is_same(node) for node in around))
        written = arrival_unit(kernel.body, {buffer.storage.name for buffer in group.buffers}) == THREAD
        shared: list[Axes] = []
        for copy in group.copies:
            found = tuple(axis for axis in together if dependence[axis].is_same(copy))
            refusal = "the kernel's threads write to the tiles themselves" if written else ""
            refusal = refusal or _refusal(copy, place, together, found)
            shared.append(() if refusal else found)
            subject = f"{kernel.name}: {copy.source.buffer.name} to {copy.destination.buffer.name}"
            decision = "no multicast" if refusal else f"multicast, 1/{place.size(found)} of the tile by each CTA"
            reason = refusal or "all CTAs along " + ", ".join("xyz"[axis] for axis in found) + " load the same"
            why.append(Why("specialize_warps", subject, decision, reason, copy.location))
        if any(shared):
            result[group.number] = Multicast(place, tuple(shared))
    return result, why


def _refusal(copy: Copy, place: ClusterPlace, together: Axes, axes: Axes) -> str:
    """Why a load is not multicast; empty if it is."""
    if not together:
        return "the CTAs of a cluster may not take the same number of rounds"
    if not axes:
        return "the CTAs of a cluster load different tiles"
    count = place.size(axes)
    if split_dimension(copy.source, count) is None or split_dimension(copy.destination, count) is None:
        return f"the tile does not divide into {count} parts of whole swizzles"
    return ""


def _control_around(body: Statement, copy: Copy) -> list[For | While | If]:
    """The loops and conditions around a copy."""

    def search(node: Statement) -> list[For | While | If] | None:
        if node is copy:
            return []
        for child in children(node):
            found = search(child) if isinstance(child, Statement) else None
            if found is not None:
                return [node, *found] if isinstance(node, (For, While, If)) else found
        return None

    found = search(body)
    assert found is not None
    return found

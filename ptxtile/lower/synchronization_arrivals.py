"""Arrivals at barriers in the walk: what they hand over to others is done by then, and their phase is not too early."""

from __future__ import annotations

from dataclasses import replace

from ptxtile.ir import gpu_ops
from ptxtile.ir.access import Access
from ptxtile.ir.access_context import Context, inlined
from ptxtile.ir.buffers import Scope
from ptxtile.ir.cluster_ops import ClusterArrive
from ptxtile.ir.conflicts import Overlap
from ptxtile.ir.tensor_core_ops import WARPGROUP
from ptxtile.lower import hazards
from ptxtile.lower.hazards import Need, Path, Pending, State, need
from ptxtile.lower.synchronization_hand_overs import name_of
from ptxtile.lower.synchronization_position import Position


class Arrivals(Position):
    """The part of the walk that looks at arrivals."""

    def release(
        self, node: gpu_ops.GpuOp, handed: frozenset[str], path: Path, state: State, context: Context, mask: int
    ) -> State:
        """An arrival that lets others use ``handed``: this role's accesses come before it."""
        for pending in list(state):
            earlier = pending.access
            if pending not in state or name_of(earlier) not in handed or not _comes_before_arrivals(pending, node):
                continue
            key = (path, "release", id(earlier))
            if key not in self.facts.events:
                by_tma = earlier.in_async_proxy != self.facts.meets_other_proxy(earlier)
                later = Access(earlier.storage, True, None, 8, 8, context, asynchronous=by_tma, location=node.location)
                self.facts.events[key] = [later]
            (later,) = self.facts.events[key]
            wanted = need(pending, later, self.facts.overlaps)
            arriving = mask
            if earlier.by_warpgroups or pending.met:
                arriving = hazards.groups_of(mask, WARPGROUP if earlier.by_warpgroups else pending.met)
            by_threads = not earlier.asynchronous or pending.is_store
            if wanted is not None and by_threads and earlier.threads & ~arriving == 0:
                wanted = replace(wanted, barrier=False)  # each thread arrives after its own accesses
            if wanted is not None and (wanted.barrier or wanted.fence or wanted.wait):
                state = self.require(wanted, pending, later, path, state)
        return {pending: None for pending in state if not self._is_handed_over(pending, handed)}

    def _is_handed_over(self, pending: Pending, handed: frozenset[str]) -> bool:
        """Whether an access matters to nobody any more once ``handed`` belongs to another role."""
        access = pending.access
        return name_of(access) in handed and not access.asynchronous and not self.facts.reach.meets_own_role(access)

    def next_phase(self, node: gpu_ops.GpuOp, path: Path, state: State, context: Context, mask: int) -> State:
        """An arrival by ``mask`` on an mbarrier: it may complete a phase, so all who waited for the one before have to
        have seen it by then. One that comes late finds the parity that it waits for come round again, and hangs. The
        arrival may also be what another role waits for before it completes that phase.

        Only waits of the present threads are known here, and only what a barrier can order is decided: conditions that
        some threads pass have mbarriers of the user's between them.
        """
        if not isinstance(node, (gpu_ops.MbarrierArrive, gpu_ops.MbarrierArriveExpectTx)):
            return state
        role = None if self.role is None else context.first_thread
        for pending in list(state):
            waited = pending.access
            if waited.phase != "wait" or pending not in state or not self.is_placeable(pending):
                continue
            arriving = hazards.groups_of(mask, pending.met) if pending.met else mask
            if not waited.threads & ~pending.ordered & ~arriving:
                continue
            later = self._next_phase(node, path, context)
            if waited.storage.name == later.storage.name:
                overlap = self.facts.overlaps(waited, later, pending.relation, 0)
            else:
                told = self.facts.hand_overs.lets_advance(later.storage.name, waited.storage.name, role)
                overlap = Overlap.POSSIBLE if told else Overlap.NONE
            if overlap is not Overlap.NONE:
                state = self.require(Need(overlap, barrier=True), pending, later, path, state)
        return state

    def _next_phase(
        self, node: gpu_ops.MbarrierArrive | gpu_ops.MbarrierArriveExpectTx, path: Path, context: Context
    ) -> Access:
        key = (path, "next phase")
        if key not in self.facts.events:
            place, storage = inlined(node.index, context), node.barrier.storage
            self.facts.events[key] = [
                Access(storage, True, place, 64, 64, context, location=node.location, phase="next")
            ]
        return self.facts.events[key][0]


def _comes_before_arrivals(pending: Pending, arrival: gpu_ops.GpuOp) -> bool:
    """Whether an access has to be done when those who wait for ``arrival`` go on.

    Loads, wgmma and cp.async under way belong to other stages of a ring, or complete on a barrier of their own; stores
    that a wait of the user's left pending were left on purpose. Between the blocks of a cluster shared memory is only
    written by multicasts, and the barrier that they meet at orders reads by threads.
    """
    if pending.in_flight:
        return pending.is_store and not pending.left
    return not isinstance(arrival, ClusterArrive) or pending.access.storage.scope is Scope.GLOBAL

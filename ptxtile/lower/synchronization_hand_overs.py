"""What threads may use from a barrier on, because others arrived at it: roles of a kernel, blocks of a cluster.

Roles run at the same time, and the hazard analysis walks through each by itself. What it has to see of the others is
here: at an arrival, the storages and the global memory that those who wait for it use in a way that conflicts. All that
the arriving role did to them has to be done by then, also the reads of its TMA stores, which nothing else waits for
before shared memory is written again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from ptxtile.ir.access import Access
from ptxtile.ir.buffers import Scope
from ptxtile.ir.cluster_ops import ClusterArrive, MbarrierArriveRemote
from ptxtile.ir.gpu_ops import BarSync, GpuOp, MbarrierArrive, MbarrierArriveExpectTx, MbarrierWait, TmaLoad
from ptxtile.ir.manual_ops import BarArrive, BarAt, BarReduce

NAMED_BARRIERS = 16
"""Barrier resources of a CTA (PTX ISA, bar.sync); 0 is the whole CTA's."""

_MBARRIER_ARRIVALS = (MbarrierArrive, MbarrierArriveRemote, MbarrierArriveExpectTx)
_NAMED_BARRIERS = (BarSync, BarArrive, BarReduce, BarAt)
ARRIVALS = (*_MBARRIER_ARRIVALS, *_NAMED_BARRIERS, ClusterArrive)
"""What tells other threads that something is done."""

NamesOfRoles = dict[int | None, set[str]]
"""By a role's first thread (None: outside of roles), storages of shared memory and global memories."""


def _names() -> NamesOfRoles:
    return defaultdict(set)


@dataclass(slots=True)
class HandOvers:
    """Filled with the operations and accesses of a kernel (:meth:`note`, :meth:`touch`), then asked.

    ``retired``: by mbarrier, what those who wait for it say that they get. ``meeting``: the named barriers of each
    role. ``multicast``: storages that a block of the cluster fills for others. ``by_compiler``: the roles are not the
    user's.
    """

    reads: NamesOfRoles = field(default_factory=_names)
    writes: NamesOfRoles = field(default_factory=_names)
    retired: dict[str, NamesOfRoles] = field(default_factory=lambda: defaultdict(_names))
    meeting: dict[int | None, set[int]] = field(default_factory=lambda: defaultdict(set))
    multicast: set[str] = field(default_factory=set)
    by_compiler: bool = False
    _arrivals: dict[tuple, GpuOp] = field(default_factory=dict)
    _answers: dict[tuple, frozenset[str]] = field(default_factory=dict)
    _all: frozenset[str] | None = None

    def note(self, node: GpuOp, role: int | None) -> None:
        """``role``: the first thread of the role that runs ``node``."""
        match node:
            case MbarrierWait(barrier, _, _, retires):
                self.retired[barrier.storage.name][role].update(buffer.storage.name for buffer in retires)
            case BarSync() | BarArrive() | BarReduce() if node.id:
                self.meeting[role].add(node.id)
            case BarAt():
                self.meeting[role].update(range(NAMED_BARRIERS))
            case TmaLoad() if node.multicast is not None:
                self.multicast.add(node.shared.storage.name)
        if isinstance(node, ARRIVALS):
            self._arrivals.setdefault(_key(node, role), node)

    def touch(self, access: Access, role: int | None) -> None:
        (self.writes if access.is_write else self.reads)[role].add(name_of(access))

    def at(self, node: GpuOp, role: int | None) -> frozenset[str]:
        """What the arrival ``node`` of a role hands over: names as :func:`name_of` gives them."""
        key = _key(node, role)
        if key not in self._answers:
            self._answers[key] = frozenset(self._find(node, role))
        return self._answers[key]

    def concern(self, access: Access) -> bool:
        """Whether some arrival hands over what ``access`` touches."""
        if self._all is None:
            self._all = frozenset().union(*(self.at(node, key[-1]) for key, node in self._arrivals.items()))
        return name_of(access) in self._all

    def arrives(self, barrier: str, role: int | None) -> bool:
        """Whether a role arrives on the mbarriers of a storage itself."""
        return any((kind, barrier, role) in self._arrivals for kind in _MBARRIER_ARRIVALS)

    def lets_advance(self, arrived: str, waited: str, role: int | None) -> bool:
        """Whether an arrival of ``role`` on the mbarriers ``arrived`` may let other roles complete the next phase of
        the mbarriers ``waited``. The compiler's own rings see to that by themselves: their consumers arrive stage by
        stage, after what all of the warp or warpgroup did."""
        if role is None or self.by_compiler:
            return False
        waiters = self.retired.get(arrived, {}).keys() - {role}
        return bool(waiters) and any(
            key[1] == waited and key[-1] not in (role, None) for key in self._arrivals if key[0] in _MBARRIER_ARRIVALS
        )

    def keeps_wait(self, barrier: str, role: int | None) -> bool:
        """Whether a wait of ``role`` matters to an arrival of its own."""
        return self.arrives(barrier, role) or (role is not None and not self.by_compiler)

    def _find(self, node: Any, role: int | None) -> set[str]:
        found: set[str] = set()
        if isinstance(node, _MBARRIER_ARRIVALS):
            for waiter, names in self.retired.get(node.barrier.storage.name, {}).items():
                if waiter == role and isinstance(node, MbarrierArriveExpectTx):
                    continue  # it waits for the bytes that it announces here
                found |= names
                if waiter != role and None not in (waiter, role):
                    found |= {name for name in self._shared_with_others(role) if name.startswith(_GLOBAL)}
        elif isinstance(node, ClusterArrive):
            read, written = set().union(*self.reads.values()), set().union(*self.writes.values())
            found = self.multicast | {name for name in read & written if name.startswith(_GLOBAL)}
        elif any(
            ids if isinstance(node, BarAt) else node.id in ids for other, ids in self.meeting.items() if other != role
        ):
            found = self._shared_with_others(role)
        return found

    def _shared_with_others(self, role: int | None) -> set[str]:
        """What another role touches as well, one of the two writing: also one that those who wait here tell later."""
        reads, writes, found = self.reads[role], self.writes[role], set()
        for other in self.reads.keys() | self.writes.keys():
            if other not in (role, None):
                theirs = self.writes[other]
                found |= (reads & theirs) | (writes & (self.reads[other] | theirs))
        return found


_GLOBAL = "global "


def name_of(access: Access) -> str:
    """The storage of a shared access; of a global one the memory, which several tensors may be part of."""
    return access.memory if access.storage.scope is Scope.GLOBAL else access.storage.name


def _key(node: GpuOp, role: int | None) -> tuple:
    if isinstance(node, _MBARRIER_ARRIVALS):
        return type(node), node.barrier.storage.name, role
    return type(node), getattr(node, "id", 0), role

"""Mutants of a lowered program: each has one piece of its synchronization taken away or weakened.

They measure the checker. A mutant that it does not report is either a fault of the checker, or the piece was not
needed, since something else orders the same accesses (:mod:`ptxtile.sim.check.equivalence`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ptxtile.errors import Location
from ptxtile.ir import async_copy_ops, atomic_ops, cluster_ops, gpu_ops, manual_ops, tensor_core_ops, warp_ops
from ptxtile.ir.expressions import Expr
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import map_children, walk
from ptxtile.ir.statements import Seq, Statement
from ptxtile.records import record


@record
class Mutant:
    """``what``: the change in words, with the kernel, the operation and its number among its kind. ``original``: the
    statement that ``changed`` (None: nothing) stands for. ``only_orders``: the change takes away order between
    accesses, and nothing that anybody waits for."""

    what: str
    program: Program
    location: Location | None
    original: Statement
    changed: Statement | None
    only_orders: bool


def _removed(node: Statement) -> None:
    return None


def _weaker_wait(node: Any) -> Statement:
    return replace(node, pending=node.pending + 1)


def _more_bytes(node: Any) -> Statement:
    return replace(node, bytes=node.bytes + 16)


def _fewer_bytes(node: Any) -> Statement:
    return replace(node, bytes=node.bytes - 16)


def _other_parity(node: Any) -> Statement:
    return replace(node, parity=node.parity ^ 1)


def _one_more(node: Any) -> Statement:
    return replace(node, arrivals=node.arrivals + 1)


def _one_less(node: Any) -> Statement | None:
    return replace(node, arrivals=node.arrivals - 1) if node.arrivals > 1 else node


def _more_threads(node: Any) -> Statement:
    return replace(node, threads=node.threads + 32)


def _fewer_threads(node: Any) -> Statement:
    return replace(node, threads=node.threads - 32) if node.threads > 32 else node


def _only_read(node: Any) -> Statement:
    return replace(node, read=True)


def _relaxed(node: Any) -> Statement:
    return replace(node, order="relaxed")


@record
class Change:
    """``make`` gives the changed statement, None to remove it, or the same where it cannot be changed so."""

    what: str
    make: Callable[[Any], Statement | None]
    only_orders: bool = False


_REMOVED = Change("removed", _removed)  # of what somebody waits for
_NO_ORDER = Change("removed", _removed, only_orders=True)
_WEAKER = Change("one group more", _weaker_wait, only_orders=True)
_COUNTS = (Change("32 threads more", _more_threads), Change("32 threads fewer", _fewer_threads))
_BYTES = (Change("16 bytes more", _more_bytes), Change("16 bytes less", _fewer_bytes))
_RELAXED = Change("relaxed", _relaxed, only_orders=True)

CHANGES: dict[type, tuple[Change, ...]] = {
    gpu_ops.BarSync: (_NO_ORDER, *_COUNTS),
    manual_ops.BarArrive: (_REMOVED, *_COUNTS),
    manual_ops.BarAt: (_REMOVED, *_COUNTS),
    manual_ops.BarReduce: (_REMOVED, *_COUNTS),
    manual_ops.GridSync: (_NO_ORDER,),
    warp_ops.SyncWarp: (_NO_ORDER,),
    gpu_ops.FenceProxyAsync: (_NO_ORDER,),
    gpu_ops.FenceMbarrierInit: (_NO_ORDER,),
    gpu_ops.MbarrierInit: (Change("one arrival more", _one_more), Change("one arrival less", _one_less)),
    gpu_ops.MbarrierArrive: (_REMOVED,),
    gpu_ops.MbarrierArriveExpectTx: (_REMOVED, *_BYTES),
    manual_ops.MbarrierExpectTx: (_REMOVED, *_BYTES),
    gpu_ops.MbarrierWait: (_NO_ORDER, Change("other parity", _other_parity)),
    gpu_ops.BulkCommitGroup: (_NO_ORDER,),
    gpu_ops.BulkWaitGroup: (_NO_ORDER, _WEAKER, Change("of reads only", _only_read, only_orders=True)),
    async_copy_ops.CpAsyncCommitGroup: (_NO_ORDER,),
    async_copy_ops.CpAsyncWaitGroup: (_NO_ORDER, _WEAKER),
    async_copy_ops.CpAsyncMbarrierArrive: (_REMOVED,),
    cluster_ops.MbarrierArriveRemote: (_REMOVED,),
    cluster_ops.ClusterArrive: (_REMOVED,),
    cluster_ops.ClusterWait: (_NO_ORDER,),
    tensor_core_ops.WgmmaFence: (_NO_ORDER,),
    tensor_core_ops.WgmmaCommitGroup: (_NO_ORDER,),
    tensor_core_ops.WgmmaWaitGroup: (_NO_ORDER, _WEAKER),
    atomic_ops.Atomic: (_RELAXED,),
    atomic_ops.AtomicLoad: (_RELAXED,),
    atomic_ops.AtomicStore: (_RELAXED,),
}
"""Kind of operation → what is done to it. Prefetches, shuffles, votes and the masks of multicasts order nothing. The
wait for the grids in front (``griddepcontrol``) orders nothing within a launch, which is all that the checker sees."""


def mutants(program: Program) -> Iterator[Mutant]:
    """Every mutant of ``program`` (gpu stage), one change each."""
    for position, kernel in enumerate(program.kernels):
        counts: dict[type, int] = {}
        for node in walk(kernel.body):
            number = counts[type(node)] = counts.get(type(node), 0) + 1
            for change in CHANGES.get(type(node), ()):
                changed = change.make(node)
                if changed == node:
                    continue
                body = _with(kernel.body, node, Seq(()) if changed is None else changed)
                kernels = (*program.kernels[:position], replace(kernel, body=body), *program.kernels[position + 1 :])
                words = f"{kernel.name}: {type(node).__name__} {number} {change.what}"
                mutant = replace(program, kernels=kernels)
                yield Mutant(words, mutant, node.location, node, changed, change.only_orders)


def _with(root: Any, old: Statement, new: Statement) -> Any:
    """``root`` with the one node ``old`` (by identity) replaced."""
    if root is old:
        return new
    return root if isinstance(root, Expr) else map_children(root, lambda child: _with(child, old, new))

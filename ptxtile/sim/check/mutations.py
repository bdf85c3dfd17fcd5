"""Mutants of a lowered program: each has one piece of its synchronization taken away or weakened.

They measure the checker. A mutant that it does not report is either a fault of the checker, or the piece was not
needed, since something else orders the same accesses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from ptxtile.errors import Location
from ptxtile.ir import async_copy_ops, cluster_ops, gpu_ops, manual_ops, tensor_core_ops
from ptxtile.ir.expressions import Expr
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import map_children, walk
from ptxtile.ir.statements import Seq, Statement
from ptxtile.records import record


@record
class Mutant:
    """``what``: the change in words, with the kernel, the operation and its number among its kind."""

    what: str
    program: Program
    location: Location | None


def _removed(node: Statement) -> Statement:
    return Seq(())


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


def _one_less(node: Any) -> Statement:
    return replace(node, arrivals=node.arrivals - 1)


def _only_read(node: Any) -> Statement:
    return replace(node, read=True)


Change = Callable[[Any], Statement]
CHANGES: dict[type, tuple[tuple[str, Change], ...]] = {
    gpu_ops.BarSync: (("removed", _removed),),
    manual_ops.BarArrive: (("removed", _removed),),
    gpu_ops.FenceProxyAsync: (("removed", _removed),),
    gpu_ops.FenceMbarrierInit: (("removed", _removed),),
    gpu_ops.MbarrierInit: (("one arrival more", _one_more), ("one arrival less", _one_less)),
    gpu_ops.MbarrierArrive: (("removed", _removed),),
    gpu_ops.MbarrierArriveExpectTx: (
        ("removed", _removed), ("16 bytes more", _more_bytes), ("16 bytes less", _fewer_bytes),
    ),
    manual_ops.MbarrierExpectTx: (("16 bytes more", _more_bytes), ("16 bytes less", _fewer_bytes)),
    gpu_ops.MbarrierWait: (("removed", _removed), ("other parity", _other_parity)),
    gpu_ops.BulkCommitGroup: (("removed", _removed),),
    gpu_ops.BulkWaitGroup: (("removed", _removed), ("one group more", _weaker_wait), ("of reads only", _only_read)),
    async_copy_ops.CpAsyncCommitGroup: (("removed", _removed),),
    async_copy_ops.CpAsyncWaitGroup: (("removed", _removed), ("one group more", _weaker_wait)),
    async_copy_ops.CpAsyncMbarrierArrive: (("removed", _removed),),
    cluster_ops.MbarrierArriveRemote: (("removed", _removed),),
    cluster_ops.ClusterArrive: (("removed", _removed),),
    cluster_ops.ClusterWait: (("removed", _removed),),
    tensor_core_ops.WgmmaFence: (("removed", _removed),),
    tensor_core_ops.WgmmaCommitGroup: (("removed", _removed),),
    tensor_core_ops.WgmmaWaitGroup: (("removed", _removed), ("one group more", _weaker_wait)),
}  # fmt: skip
"""Kind of operation → (what is done to it, how)."""


def mutants(program: Program) -> Iterator[Mutant]:
    """Every mutant of ``program`` (gpu stage), one change each."""
    for position, kernel in enumerate(program.kernels):
        counts: dict[type, int] = {}
        for node in walk(kernel.body):
            number = counts[type(node)] = counts.get(type(node), 0) + 1
            for what, change in CHANGES.get(type(node), ()):
                changed = change(node)
                if isinstance(changed, gpu_ops.MbarrierInit) and changed.arrivals < 1:
                    continue
                if changed == node:
                    continue
                body = _with(kernel.body, node, changed)
                kernels = (*program.kernels[:position], replace(kernel, body=body), *program.kernels[position + 1 :])
                words = f"{kernel.name}: {type(node).__name__} {number} {what}"
                yield Mutant(words, replace(program, kernels=kernels), node.location)


def _with(root: Any, old: Statement, new: Statement) -> Any:
    """``root`` with the one node ``old`` (by identity) replaced."""
    if root is old:
        return new
    return root if isinstance(root, Expr) else map_children(root, lambda child: _with(child, old, new))

"""GPU ops of thread block clusters (PTX ISA 9.0 numbering), and a CTA's rank in its cluster.

Multicast is a field of :class:`~ptxtile.ir.gpu_ops.TmaLoad`.
"""

from __future__ import annotations

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, Var, constant
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.records import record


@record
class MbarrierArriveRemote(GpuOp):
    """mapa.shared::cluster and mbarrier.arrive.shared::cluster (9.7.9.23, 9.7.13.15.13): one arrival on the same
    barrier in the CTA of rank ``cta`` of the cluster.

    Its semantics are those of the CTA scope, which is what a ring of multicast loads needs; it orders no generic
    accesses between CTAs.
    """

    barrier: Buffer
    index: Expr
    cta: Expr


@record
class ClusterArrive(GpuOp):
    """barrier.cluster.arrive.release (9.7.13.3), by every thread of the cluster. ``aligned``: by whole warps."""

    aligned: bool = True


@record
class ClusterWait(GpuOp):
    """barrier.cluster.wait.acquire (9.7.13.3): until every thread of the cluster has arrived as often as this one."""

    aligned: bool = True


def rank_in_cluster(block_vars: tuple[Var, Var, Var], cluster: tuple[int, int, int]) -> Expr:
    """The rank of a CTA in its cluster (%cluster_ctarank, 10.16) from the block indices, int32."""
    (x, y, z), (width, height, depth) = block_vars, cluster
    rank: Expr | None = None
    for index, size, step in ((x, width, 1), (y, height, width), (z, depth, width * height)):
        if size > 1:
            part = index % size * step if step > 1 else index % size
            rank = part if rank is None else rank + part
    return constant(0) if rank is None else rank

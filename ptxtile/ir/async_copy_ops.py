"""GPU ops of cp.async: asynchronous copies from global to shared memory by ordinary threads (PTX ISA 9.0 numbering).

They belong to the generic proxy: what they wrote needs a proxy fence before wgmma or TMA reads it, and a thread's wait
completes its own copies only, so that a barrier has to follow before other threads read.
"""

from __future__ import annotations

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.records import record


@record
class CpAsync(GpuOp):
    """cp.async.{ca,cg}.shared.global (9.7.9.25.3.1): ``bytes`` (4, 8 or 16) from element ``index`` of the global
    ``source`` to element ``offset`` of ``shared``, both aligned to ``bytes``.

    ``valid_bytes`` (int32, 0 to ``bytes``; None: all): so many are read, the rest is zero. ``cache``: ``ca`` keeps the
    line in L1, ``cg`` (16 bytes only) does not.
    """

    shared: Buffer
    offset: Expr
    source: Buffer
    index: Expr
    bytes: int
    valid_bytes: Expr | None = None
    cache: str = "ca"


@record
class CpAsyncCommitGroup(GpuOp):
    """cp.async.commit_group (9.7.9.25.3.2): the copies that this thread issued since the last one become a group."""


@record
class CpAsyncWaitGroup(GpuOp):
    """cp.async.wait_group (9.7.9.25.3.3): at most ``pending`` of this thread's groups remain unfinished.

    ``retires``: the shared buffers whose writes this completes.
    """

    pending: int
    retires: tuple[Buffer, ...] = ()


@record
class CpAsyncMbarrierArrive(GpuOp):
    """cp.async.mbarrier.arrive.noinc (9.7.13.15.14): an arrival on ``barrier[index]`` once all earlier copies of this
    thread are complete; it counts as one of the phase's expected arrivals."""

    barrier: Buffer
    index: Expr

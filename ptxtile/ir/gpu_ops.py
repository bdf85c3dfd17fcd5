"""GPU ops: about one PTX instruction each, with the PTX manual's section (PTX ISA 9.0 numbering).

Byte counts, parities, tensor-map names and coordinates are plain values here, so that the simulator decodes what the
hardware would. ``barrier`` is a buffer of scope BARRIER and ``index`` picks one of its mbarriers. ``shared`` is a
SHARED buffer and ``offset`` an element offset into it. An op runs once for each active thread: guard it with an If to
elect one.
"""

from __future__ import annotations

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.statements import Statement
from ptxtile.records import record


@record
class GpuOp(Statement):
    """Base of the GPU ops."""


@record
class MbarrierInit(GpuOp):
    """mbarrier.init (9.7.13.15.9): phase 0, ``arrivals`` expected in each phase."""

    barrier: Buffer
    index: Expr
    arrivals: int


@record
class FenceMbarrierInit(GpuOp):
    """fence.mbarrier_init.release.cluster (9.7.13.4): makes the inits visible to the async proxy and the cluster."""


@record
class MbarrierArriveExpectTx(GpuOp):
    """mbarrier.arrive.expect_tx (9.7.13.15.13): adds ``bytes`` to the phase's pending transactions, then arrives."""

    barrier: Buffer
    index: Expr
    bytes: int


@record
class MbarrierArrive(GpuOp):
    """mbarrier.arrive (9.7.13.15.13), one arrival."""

    barrier: Buffer
    index: Expr


@record
class MbarrierWait(GpuOp):
    """mbarrier.try_wait.parity in a loop (9.7.13.15.16): until the phase of ``parity`` (0 or 1) has completed.

    ``retires`` names the buffers whose asynchronous writes or reads this wait makes safe to use.
    """

    barrier: Buffer
    index: Expr
    parity: Expr
    retires: tuple[Buffer, ...] = ()


@record
class TmaLoad(GpuOp):
    """cp.async.bulk.tensor global → shared (9.7.9.27.1.2), completing on an mbarrier with the box's full byte count.

    ``coordinates`` innermost first, one for each dimension of the tensor map; they may be negative or beyond the
    tensor, where the box gets zeros. The innermost one must start at a multiple of 16 bytes: an H200 stops with an
    illegal instruction at, say, column −2 of a float32 matrix. ``offset``: elements into ``shared``.

    ``multicast``: a mask of CTAs of the cluster, bit r for rank r; the box goes to the same place in each of them and
    completes on the same barrier of each. None: to this CTA only.
    """

    tensor_map: str
    coordinates: tuple[Expr, ...]
    shared: Buffer
    offset: Expr
    barrier: Buffer
    index: Expr
    multicast: int | Expr | None = None


@record
class TmaStore(GpuOp):
    """cp.async.bulk.tensor shared → global (9.7.9.27.1.2) into the current bulk group; out-of-bounds writes are
    dropped. The innermost coordinate is a multiple of 16 bytes, as for a :class:`TmaLoad`, and none is negative: an
    H200 stops with an illegal instruction when a store starts before the tensor (a load may).

    ``operator``: with one of :data:`~ptxtile.ir.atomic_ops.TMA_REDUCTIONS` it is cp.reduce.async.bulk.tensor
    (9.7.9.27.1.3): each element becomes ``operator(element, stored)``, atomically by element, in relaxed order. The
    elements' type is that of the tensor map."""

    tensor_map: str
    coordinates: tuple[Expr, ...]
    shared: Buffer
    offset: Expr
    operator: str = ""


@record
class BulkCommitGroup(GpuOp):
    """cp.async.bulk.commit_group (9.7.9.25.4.1)."""


@record
class BulkWaitGroup(GpuOp):
    """cp.async.bulk.wait_group (9.7.9.25.4.2): at most ``pending`` of this thread's groups remain unfinished.

    ``read``: only the reads of shared memory have to be done; the global writes may still be under way.
    """

    pending: int
    read: bool
    retires: tuple[Buffer, ...] = ()


@record
class PrefetchTensorMap(GpuOp):
    """prefetch.tensormap (9.7.9.17)."""

    tensor_map: str


@record
class FenceProxyAsync(GpuOp):
    """fence.proxy.async (9.7.13.4): this thread's generic accesses of ``space`` before later async-proxy accesses.

    ``space``: ``shared`` (.shared::cta) or ``global``.
    """

    space: str = "shared"


@record
class BarSync(GpuOp):
    """bar.sync id, threads (9.7.13.1): all ``threads`` threads arrive and wait; shared and global writes are
    visible."""

    id: int
    threads: int


@record
class SetMaxRegisters(GpuOp):
    """setmaxnreg (9.7.20.5), by every warp of a warpgroup. ``action``: ``inc`` or ``dec``; ``count``: a multiple of
    8."""

    action: str
    count: int

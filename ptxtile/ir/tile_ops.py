"""Tile ops: what users say about whole tiles. They are legal until the passes that lower them."""

from __future__ import annotations

from dataclasses import field
from enum import Enum

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.nodes import Node
from ptxtile.ir.statements import Statement
from ptxtile.records import record


@record
class Region(Node):
    """A box of ``buffer``: per dimension a start and a constant extent. Size-1 dimensions may be dropped when
    matching."""

    buffer: Buffer
    starts: tuple[Expr, ...]
    extents: tuple[int, ...]

    @property
    def dense_extents(self) -> tuple[int, ...]:
        """The extents without the dimensions of extent 1."""
        return tuple(extent for extent in self.extents if extent != 1)


class CopyPath(Enum):
    """How a copy is carried out, chosen by ``select_paths`` (CP_ASYNC: by ``plan_async_copies``, which sees to groups
    and waits); from then on a constraint."""

    TMA_LOAD = "tma_load"
    TMA_STORE = "tma_store"
    VECTOR = "vector"
    CP_ASYNC = "cp_async"


@record
class Copy(Statement):
    """``destination = cast(source)`` over regions of equal extents (size-1 dimensions aside), of synchronous meaning.

    Out-of-bounds reads of the source give 0, out-of-bounds writes are dropped. ``disable_tma`` and ``coalesced_width``
    (elements; None: free) are the user's. ``operator``: the user's T.atomic_add and its kin of whole tiles by TMA:
    ``destination = operator(destination, source)``, an operator of
    :data:`~ptxtile.ir.atomic_ops.TMA_REDUCTIONS`, from shared to global memory and on no other path. On the CP_ASYNC
    path ``coalesced_width`` elements are one cp.async, and the copy is only issued.
    """

    source: Region
    destination: Region
    path: CopyPath | None = None
    disable_tma: bool = False
    coalesced_width: int | None = None
    eviction_policy: str | None = None
    operator: str = ""


@record
class TmaCopy(Statement):
    """The issue of a TMA load: ``source`` (global) to ``destination`` (shared), completing on ``barrier[index]``; or of
    a TMA store, from shared to global memory, as a bulk group of its own, which has no barrier.

    What ``plan_loads`` makes of a Copy with path TMA_LOAD, next to its expect_tx and its wait, and ``stage_epilogues``
    of the store of an accumulator; ``lower_tma`` turns it into one TmaLoad or TmaStore for each box. Guarded by an If
    that elects one thread, or one of each warpgroup. ``multicast``: of a load, the mask of the CTAs of the cluster that
    get the tile, as in :class:`~ptxtile.ir.gpu_ops.TmaLoad`.
    """

    source: Region
    destination: Region
    barrier: Buffer | None = None
    index: Expr | None = None
    multicast: Expr | None = None


class GemmPath(Enum):
    """How a gemm is carried out, chosen by ``select_gemm_paths``; from then on a constraint."""

    WGMMA = "wgmma"
    MMA = "mma"
    FMA = "fma"


@record
class Gemm(Statement):
    """``accumulator (+)= op(a) · op(b)``, of synchronous meaning, by all threads of the group together.

    ``a``: M×K (K×M with ``transpose_a``); ``b``: K×N (N×K with ``transpose_b``); each a shared tile, whose leading
    dimensions of extent 1 select a stage, or a whole fragment. ``accumulator``: a fragment M×N. Once loops are lowered,
    fragments are their registers. ``clear``: start from 0 instead of the accumulator; ``clear_if``: where it holds, the
    same in all threads. ``policy``: how warps (or warpgroups) share M and N: square, full_row (M only) or full_col.
    ``pending``: groups of wgmma that may still run when it is over, None: it is not waited for here (set by
    ``specialize_warps`` and ``join_gemms``, which see to the wait). ``commits``: whether its group of wgmma ends with
    it; else the next gemm of the Seq, with nothing but names in between, goes on with the group.
    """

    a: Region
    b: Region
    accumulator: Region
    m: int
    n: int
    k: int
    transpose_a: bool = False
    transpose_b: bool = False
    clear: bool = False
    policy: str = "square"
    path: GemmPath | None = None
    pending: int | None = 0
    clear_if: Expr | None = None
    commits: bool = True


@record
class MatrixStore(Statement):
    """``count`` (2 or 4) matrices of 8 rows of 8 elements of 16 bits, from the registers of a warp to a shared tile.

    The :class:`~ptxtile.ir.tensor_core_ops.StoreMatrix` of a tile whose arrangement is not chosen yet: ``indices`` is,
    in each thread, the element of ``destination`` at which one row of a matrix starts.
    """

    source: Buffer
    source_offset: Expr
    destination: Buffer
    indices: tuple[Expr, ...]
    count: int
    transposed: bool = False


@record
class Fill(Statement):
    """Sets every element of the region to ``value`` (of the buffer's dtype)."""

    destination: Region
    value: Expr


@record
class Print(Statement):
    """``T.print``: message and scalars, by one thread of the CTA."""

    message: str
    values: tuple[Expr, ...] = field(default=())


@record
class Assume(Statement):
    """``T.assume``: the user vouches for ``condition`` here, and passes may use it."""

    condition: Expr


@record
class SafeValue(Statement):
    """``T.annotate_safe_value``: reads of ``buffer`` outside of its shape give ``value`` instead of 0, in all of the
    kernel."""

    buffer: Buffer
    value: Expr


@record
class KeepRegisters(Statement):
    """``T.no_set_max_nreg``: roles that the compiler makes keep the registers that the launch gave them."""

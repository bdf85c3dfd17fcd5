"""Tile ops: what users say about whole tiles. They are legal until the passes that lower them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.statements import Statement


@dataclass(frozen=True, slots=True)
class Region:
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
    """How a copy is carried out, chosen by ``select_paths``; from then on a constraint."""

    TMA_LOAD = "tma_load"
    TMA_STORE = "tma_store"
    VECTOR = "vector"


@dataclass(frozen=True, slots=True)
class Copy(Statement):
    """``destination = cast(source)`` over regions of equal extents (size-1 dimensions aside), of synchronous meaning.

    Out-of-bounds reads of the source give 0, out-of-bounds writes are dropped. ``disable_tma`` and ``coalesced_width``
    (elements; None: free) are the user's.
    """

    source: Region
    destination: Region
    path: CopyPath | None = None
    disable_tma: bool = False
    coalesced_width: int | None = None
    eviction_policy: str | None = None


@dataclass(frozen=True, slots=True)
class TmaCopy(Statement):
    """The issue of a TMA load: ``source`` (global) to ``destination`` (shared), completing on ``barrier[index]``.

    What ``plan_loads`` makes of a Copy with path TMA_LOAD, next to its expect_tx and its wait; ``lower_tma`` turns it
    into one TmaLoad for each box. Guarded by an If that elects one thread.
    """

    source: Region
    destination: Region
    barrier: Buffer
    index: Expr


class GemmPath(Enum):
    """How a gemm is carried out, chosen by ``select_gemm_paths``; from then on a constraint."""

    WGMMA = "wgmma"
    MMA = "mma"
    FMA = "fma"


@dataclass(frozen=True, slots=True)
class Gemm(Statement):
    """``accumulator (+)= op(a) · op(b)``, of synchronous meaning, by all threads of the group together.

    ``a``: shared, M×K (K×M with ``transpose_a``); ``b``: shared, K×N (N×K with ``transpose_b``); leading dimensions of
    extent 1 select a stage. ``pending``: groups of wgmma that may still run when it is over (set by
    ``specialize_warps``, which sees to the wait). ``accumulator``: a fragment M×N; once loops are lowered, its
    registers. ``clear``: start from 0 instead of the accumulator. ``policy``: how warps (or warpgroups) share M and N:
    square, full_row (M only) or full_col.
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
    pending: int = 0


@dataclass(frozen=True, slots=True)
class Fill(Statement):
    """Sets every element of the region to ``value`` (of the buffer's dtype)."""

    destination: Region
    value: Expr


@dataclass(frozen=True, slots=True)
class Print(Statement):
    """``T.print``: message and scalars, by one thread of the CTA."""

    message: str
    values: tuple[Expr, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Assume(Statement):
    """``T.assume``: the user vouches for ``condition`` here, and passes may use it."""

    condition: Expr


@dataclass(frozen=True, slots=True)
class SafeValue(Statement):
    """``T.annotate_safe_value``: reads of ``buffer`` outside of its shape give ``value`` instead of 0, in all of the
    kernel."""

    buffer: Buffer
    value: Expr


@dataclass(frozen=True, slots=True)
class KeepRegisters(Statement):
    """``T.no_set_max_nreg``: roles that the compiler makes keep the registers that the launch gave them."""

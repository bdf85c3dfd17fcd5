"""GPU ops between the threads of a warp (PTX ISA 9.0 numbering).

All 32 threads of the warp run each of them, or, where it has a ``mask`` (uint32, bit t for thread t), those that the
mask names: each of these gives the same mask. Results go into an element of a REGISTER or LOCAL buffer, for expressions
have no effects between threads.
"""

from __future__ import annotations

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.records import record

SHUFFLE_MODES = ("idx", "xor", "up", "down")
VOTE_MODES = ("any", "all", "ballot")
MATCH_MODES = ("any", "all")


@record
class Shuffle(GpuOp):
    """shfl.sync (9.7.9.6): ``destination[destination_offset]`` = ``value`` of another thread of the warp.

    ``mode``: ``idx`` (from thread ``lane``), ``xor`` (own lane ^ ``lane``), ``up`` (own lane − ``lane``), ``down`` (own
    lane + ``lane``), within segments of ``width`` threads (a power of two up to 32); a thread whose source is outside
    of its segment keeps its own value. ``lane``: int32. Values of 8 to 64 bits. The source is in the mask.
    """

    destination: Buffer
    destination_offset: Expr
    value: Expr
    lane: Expr
    mode: str = "xor"
    width: int = 32
    mask: Expr | None = None


@record
class Vote(GpuOp):
    """vote.sync (9.7.13.12): ``any`` or ``all`` of the warp's conditions (a bool), or the ``ballot`` of them (uint32,
    bit t for thread t)."""

    destination: Buffer
    destination_offset: Expr
    condition: Expr
    mode: str = "any"
    mask: Expr | None = None


@record
class Match(GpuOp):
    """match.sync (PTX ISA, «match.sync»): the threads whose ``value`` (32 or 64 bits) equals this thread's (``any``,
    bit by bit), or all threads that take part if they agree, else none (``all``); uint32, bit t for thread t."""

    destination: Buffer
    destination_offset: Expr
    value: Expr
    mode: str = "any"
    mask: Expr | None = None


@record
class ActiveMask(GpuOp):
    """activemask (PTX ISA, «activemask»): the threads of the warp that run this op together, at the least this one
    (uint32, bit t for thread t). Which ones of a warp that has diverged come together is up to the card."""

    destination: Buffer
    destination_offset: Expr


@record
class SyncWarp(GpuOp):
    """bar.warp.sync (9.7.13.2): the threads meet; their earlier memory accesses are visible to each other."""

    mask: Expr | None = None


@record
class ElectOne(GpuOp):
    """elect.sync (9.7.13.17): ``destination[destination_offset]`` (a bool) is true in one thread of the warp, always
    the same one, and false in the others."""

    destination: Buffer
    destination_offset: Expr

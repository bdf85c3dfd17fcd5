"""Functions between the 32 threads of a warp: shuffles, votes, matches, indices.

All threads of the warp have to come to each, or those that its ``mask`` names (bit n for lane n): each with the same
mask, which names itself. The card waits for them; the simulator refuses what would not come together.
"""

from __future__ import annotations

from typing import Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.current import kernel_tracer
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.values import Value
from ptxtile.ir.expressions import Bitcast, Const, Expr, cast, constant
from ptxtile.ir.types import BY_NAME, DType, bool_, int32, uint32, uint64
from ptxtile.ir.warp_ops import ActiveMask, Match, Shuffle, SyncWarp, Vote

FULL_MASK = 0xFFFFFFFF
WARP, WARPS_OF_A_GROUP = 32, 4


def _mask(what: str, mask: Any) -> Expr | None:
    """The mask of the threads that take part, uint32; None: all 32."""
    if mask is None or (isinstance(mask, int) and not isinstance(mask, bool) and mask in (FULL_MASK, -1)):
        return None
    integer = isinstance(mask, int) and not isinstance(mask, bool) and 0 < mask < FULL_MASK
    if not integer and not (isinstance(mask, Value) and mask.ir_dtype.is_integer):
        raise TraceError(
            f"the mask of {what}", location=user_location(), expected="an int from 1 to 0xFFFFFFFF, bit n for lane n",
            got=operations.describe(mask),
        )  # fmt: skip
    expr = constant(mask, uint32) if isinstance(mask, int) else cast(mask.expr, uint32)
    if isinstance(expr, Const) and expr.value == 0:
        raise TraceError(f"the mask of {what}", location=user_location(), expected="some lane", got="no lane: 0")
    return None if isinstance(expr, Const) and expr.value == FULL_MASK else expr


def _shuffle(what: str, mode: str, value: Any, lane: Any, width: Any, mask: Any) -> Value:
    tracer = kernel_tracer(what)
    members = _mask(what, mask)
    if width not in (1, 2, 4, 8, 16, 32) or isinstance(width, bool):
        raise TraceError(
            f"the width of {what}", location=user_location(), expected="a power of two from 1 to 32",
            got=operations.describe(width),
        )  # fmt: skip
    expr = operations.operand(value, what)
    expr = expr if isinstance(expr, Expr) else operations.number_expr(expr)
    if expr.dtype.is_bool or not 8 <= expr.dtype.bits <= 64:
        raise TypeMismatchError(
            f"{what} of {expr.dtype}", location=user_location(), expected="a number of 8 to 64 bits",
            got=str(expr.dtype), hint="cast it, such as T.int32(x)",
        )  # fmt: skip
    source = operations.converted(lane, int32)
    result = tracer.new_local(tracer.pending_name or "shuffled", expr.dtype, None, implicit=True)
    tracer.emit(Shuffle(result.buffer, constant(0), expr, source, mode, width, members, location=user_location()))
    return result.snapshot()


def shfl_sync(value: Any, srcLane: Any, width: int = WARP, mask: Any = FULL_MASK) -> Value:
    """``value`` of lane ``srcLane`` of each segment of ``width`` lanes."""
    return _shuffle("T.shfl_sync", "idx", value, srcLane, width, mask)


def tvm_warp_shuffle(mask: Any, value: Any, warp_id: Any, width: int = WARP, warp_size: int = WARP) -> Value:
    """:func:`shfl_sync` with the arguments in TVM's order; ``warp_id`` is the lane. ``warp_size`` is accepted for its
    sake."""
    return shfl_sync(value, warp_id, width, mask)


def shfl_xor(value: Any, delta: Any, width: int = WARP, mask: Any = FULL_MASK) -> Value:
    """``value`` of the lane whose number is this one's ^ ``delta``."""
    return _shuffle("T.shfl_xor", "xor", value, delta, width, mask)


def shfl_up(value: Any, delta: Any, width: int = WARP, mask: Any = FULL_MASK) -> Value:
    """``value`` of the lane ``delta`` below; its own where there is none in the segment."""
    return _shuffle("T.shfl_up", "up", value, delta, width, mask)


def shfl_down(value: Any, delta: Any, width: int = WARP, mask: Any = FULL_MASK) -> Value:
    """``value`` of the lane ``delta`` above; its own where there is none in the segment."""
    return _shuffle("T.shfl_down", "down", value, delta, width, mask)


def predicate_of(predicate: Any, what: str) -> Expr:
    """A predicate as a bool: integers are compared with 0, floats refused."""
    condition = operations.operand(predicate, what)
    if isinstance(condition, float) or (isinstance(condition, Expr) and condition.dtype.is_float):
        raise TypeMismatchError(
            f"the predicate of {what}", location=user_location(), expected="a bool or an integer",
            got=operations.describe(predicate),
        )  # fmt: skip
    return operations.truth(predicate, what)


def _vote(what: str, mode: str, predicate: Any, mask: Any, dtype: DType) -> Value:
    tracer = kernel_tracer(what)
    members, condition = _mask(what, mask), predicate_of(predicate, what)
    held = uint32 if mode == "ballot" else bool_
    result = tracer.new_local(tracer.pending_name or "vote", held, None, implicit=True)
    tracer.emit(Vote(result.buffer, constant(0), condition, mode, members, location=user_location()))
    return Value(cast(result.snapshot().expr, dtype))


def any_sync(predicate: Any, mask: Any = FULL_MASK) -> Value:
    """1 where the predicate holds in some lane of the warp, else 0."""
    return _vote("T.any_sync", "any", predicate, mask, int32)


def all_sync(predicate: Any, mask: Any = FULL_MASK) -> Value:
    """1 where the predicate holds in all lanes of the warp, else 0."""
    return _vote("T.all_sync", "all", predicate, mask, int32)


def ballot_sync(predicate: Any, mask: Any = FULL_MASK) -> Value:
    """The lanes of the warp in which the predicate holds, bit n for lane n, as uint64."""
    return _vote("T.ballot_sync", "ballot", predicate, mask, uint64)


def ballot(predicate: Any) -> Value:
    """``T.ballot_sync(predicate)``."""
    return _vote("T.ballot", "ballot", predicate, FULL_MASK, uint64)


def activemask() -> Value:
    """The lanes of the warp that run this together, bit n for lane n, as uint64: under a condition that divides the
    warp those that take the same way, as far as the card keeps them together."""
    tracer = kernel_tracer("T.activemask")
    result = tracer.new_local(tracer.pending_name or "active", uint32, None, implicit=True)
    tracer.emit(ActiveMask(result.buffer, constant(0), location=user_location()))
    return Value(cast(result.snapshot().expr, uint64))


def _match(what: str, mode: str, value: Any, mask: Any) -> Value:
    tracer = kernel_tracer(what)
    members = _mask(what, mask)
    expr = operations.operand(value, what)
    expr = expr if isinstance(expr, Expr) else operations.number_expr(expr)
    if expr.dtype.is_bool or not 8 <= expr.dtype.bits <= 64:
        raise TypeMismatchError(
            f"{what} of {expr.dtype}", location=user_location(), expected="a number of 8 to 64 bits",
            got=str(expr.dtype), hint="cast it, such as T.int32(x)",
        )  # fmt: skip
    if expr.dtype.bits < 32:
        expr = cast(expr if expr.dtype.is_integer else Bitcast(expr, BY_NAME[f"uint{expr.dtype.bits}"]), uint32)
    result = tracer.new_local(tracer.pending_name or "matching", uint32, None, implicit=True)
    tracer.emit(Match(result.buffer, constant(0), expr, mode, members, location=user_location()))
    return result.snapshot()


def match_any_sync(value: Any, mask: Any = FULL_MASK) -> Value:
    """The lanes whose value has the same bits as this lane's, bit n for lane n, as uint32."""
    return _match("T.match_any_sync", "any", value, mask)


def match_all_sync(value: Any, mask: Any = FULL_MASK) -> Value:
    """The mask if all its lanes have values of the same bits, else 0, as uint32."""
    return _match("T.match_all_sync", "all", value, mask)


def sync_warp(mask: Any = None) -> None:
    """The threads of the warp meet, or those of a mask; what they wrote before is visible to each other."""
    tracer = kernel_tracer("T.sync_warp")
    tracer.emit(SyncWarp(_mask("T.sync_warp", mask), location=user_location()))


# -- indices ----------------------------------------
def _positive(what: str, value: Any, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TraceError(what, location=user_location(), expected="an int ≥ 1", got=operations.describe(value))
    return value


def _thread(what: str) -> Expr:
    kernel = kernel_tracer(what).kernel
    assert kernel is not None
    return kernel.thread


def get_lane_idx(warp_size: int | None = None) -> Value:
    """The thread's number in its warp."""
    return Value(_thread("T.get_lane_idx") % _positive("warp_size of T.get_lane_idx", warp_size, WARP))


def get_warp_idx(warp_size: int | None = None) -> Value:
    """The number of the thread's warp in the block."""
    return Value(_thread("T.get_warp_idx") // _positive("warp_size of T.get_warp_idx", warp_size, WARP))


get_warp_idx_sync = get_warp_idx


def get_warp_group_idx(warp_size: int | None = None, warps_per_group: int | None = None) -> Value:
    """The number of the thread's warpgroup in the block."""
    what = "T.get_warp_group_idx"
    size = _positive(f"warp_size of {what}", warp_size, WARP)
    return Value(_thread(what) // (size * _positive(f"warps_per_group of {what}", warps_per_group, WARPS_OF_A_GROUP)))

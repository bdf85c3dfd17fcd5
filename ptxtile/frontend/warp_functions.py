"""Functions between the 32 threads of a warp: shuffles, votes, indices. All threads of the warp have to come to each.

Masks other than all 32 lanes are refused; TileLang passes them on to the card, which waits for them.
"""

from __future__ import annotations

from typing import Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.current import kernel_tracer
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.values import Value
from ptxtile.ir.expressions import Expr, cast, constant
from ptxtile.ir.types import DType, bool_, int32, uint32, uint64
from ptxtile.ir.warp_ops import Shuffle, Vote

FULL_MASK = 0xFFFFFFFF
WARP, WARPS_OF_A_GROUP = 32, 4


def _check_mask(what: str, mask: Any) -> None:
    if mask not in (None, FULL_MASK, -1):
        raise TraceError(
            f"the mask of {what}", location=user_location(), expected="all 32 lanes, 0xFFFFFFFF",
            got=operations.describe(mask),
        )  # fmt: skip


def _shuffle(what: str, mode: str, value: Any, lane: Any, width: Any, mask: Any) -> Value:
    tracer = kernel_tracer(what)
    _check_mask(what, mask)
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
    tracer.emit(Shuffle(result.buffer, constant(0), expr, source, mode, width, location=user_location()))
    return result.snapshot()


def shfl_sync(value: Any, srcLane: Any, width: int = WARP, mask: Any = FULL_MASK) -> Value:
    """``value`` of lane ``srcLane`` of each segment of ``width`` lanes."""
    return _shuffle("T.shfl_sync", "idx", value, srcLane, width, mask)


def shfl_xor(value: Any, delta: Any, width: int = WARP, mask: Any = FULL_MASK) -> Value:
    """``value`` of the lane whose number is this one's ^ ``delta``."""
    return _shuffle("T.shfl_xor", "xor", value, delta, width, mask)


def shfl_up(value: Any, delta: Any, width: int = WARP, mask: Any = FULL_MASK) -> Value:
    """``value`` of the lane ``delta`` below; its own where there is none in the segment."""
    return _shuffle("T.shfl_up", "up", value, delta, width, mask)


def shfl_down(value: Any, delta: Any, width: int = WARP, mask: Any = FULL_MASK) -> Value:
    """``value`` of the lane ``delta`` above; its own where there is none in the segment."""
    return _shuffle("T.shfl_down", "down", value, delta, width, mask)


def _vote(what: str, mode: str, predicate: Any, mask: Any, dtype: DType) -> Value:
    tracer = kernel_tracer(what)
    _check_mask(what, mask)
    condition = operations.operand(predicate, what)
    if isinstance(condition, float) or (isinstance(condition, Expr) and condition.dtype.is_float):
        raise TypeMismatchError(
            f"the predicate of {what}", location=user_location(), expected="a bool or an integer",
            got=operations.describe(predicate),
        )  # fmt: skip
    held = uint32 if mode == "ballot" else bool_
    result = tracer.new_local(tracer.pending_name or "vote", held, None, implicit=True)
    vote = Vote(result.buffer, constant(0), operations.truth(predicate, what), mode, location=user_location())
    tracer.emit(vote)
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

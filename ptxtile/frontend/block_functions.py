"""Barriers that tell the threads of a block something, and the barrier of all blocks of the grid."""

from __future__ import annotations

from typing import Any

from ptxtile.errors import TraceError
from ptxtile.frontend.current import kernel_tracer
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.values import Value
from ptxtile.frontend.warp_functions import WARP, predicate_of
from ptxtile.ir.expressions import cast, constant
from ptxtile.ir.manual_ops import BarReduce, GridSync
from ptxtile.ir.types import bool_, int32, uint32


def _reduce(what: str, mode: str, predicate: Any) -> Value:
    tracer = kernel_tracer(what)
    assert tracer.kernel is not None
    if tracer.parallel_depth:
        raise TraceError(
            f"{what} inside of T.Parallel", location=user_location(), got="one element's iteration",
            hint="put it before or after the loop, and the thread's own predicate into a variable",
        )  # fmt: skip
    condition = predicate_of(predicate, what)
    threads = tracer.kernel.group[1] if tracer.kernel.group else tracer.kernel.threads
    held = uint32 if mode == "popc" else bool_
    result = tracer.new_local(tracer.pending_name or "counted", held, None, implicit=True)
    whole = -(-threads // WARP) * WARP
    tracer.emit(BarReduce(result.buffer, constant(0), condition, mode, 0, whole, location=user_location()))
    return Value(cast(result.snapshot().expr, int32))


def syncthreads_count(predicate: Any) -> Value:
    """All threads of the block (inside of T.ws: of the role) meet; of how many of them the predicate holds."""
    return _reduce("T.syncthreads_count", "popc", predicate)


def syncthreads_and(predicate: Any) -> Value:
    """All threads of the block (inside of T.ws: of the role) meet; 1 if the predicate holds in all of them, else 0."""
    return _reduce("T.syncthreads_and", "and", predicate)


def syncthreads_or(predicate: Any) -> Value:
    """All threads of the block (inside of T.ws: of the role) meet; 1 if the predicate holds in some of them, else 0."""
    return _reduce("T.syncthreads_or", "or", predicate)


def sync_grid() -> None:
    """All blocks of the grid meet: what any of them wrote to tensors before is there for all of them after it.

    The kernel is launched cooperatively; the driver refuses a grid whose blocks do not fit on the card at one time.
    """
    what = "T.sync_grid"
    tracer = kernel_tracer(what)
    if tracer.parallel_depth or (tracer.kernel is not None and tracer.kernel.group is not None):
        raise TraceError(
            f"{what} inside of {'T.Parallel' if tracer.parallel_depth else 'T.ws'}", location=user_location(),
            expected="a place that all threads of the block reach together", hint=f"put {what}() outside of it",
        )  # fmt: skip
    tracer.emit(GridSync(location=user_location()))

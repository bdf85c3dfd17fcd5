"""Atomic operations on elements and tiles of global and shared memory: ``T.atomic_add`` and its kin.

On an element the operation belongs to the code around it. In ``T.Parallel`` each iteration does it. At block level the
block does it *once*, as it does ``C[0] = x`` once (TileLang lets every thread do it, so that a counter grows by the
number of threads); the value from before is the same in all threads. An element, or a condition, that depends on
``T.get_thread_binding()`` makes it an operation of each thread.

On a tile, ``T.atomic_add(C[y, x], C_local)`` is an operation for each element, as wide as the card can; with
``use_tma=True`` TMA carries it out (cp.reduce.async.bulk.tensor), or the kernel is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations, tile_operations
from ptxtile.frontend.buffers import BufferRegion, TracedBuffer
from ptxtile.frontend.current import kernel_tracer
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.tracer import Tracer
from ptxtile.frontend.values import Local, Value
from ptxtile.ir.atomic_ops import (
    LOAD_ORDERS,
    ORDERS,
    STORE_ORDERS,
    TMA_REDUCTIONS,
    Atomic,
    AtomicLoad,
    AtomicStore,
    is_legal_operator,
)
from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Const, Expr, Load, Var, cast, constant
from ptxtile.ir.statements import Allocate, For, LoopKind, ParallelFor, Seq, Statement, Store
from ptxtile.ir.tile_ops import Copy, Region
from ptxtile.ir.types import int32

_ORDER_NAMES = {"consume": "acquire"}
"""``consume`` is what C++ makes of it too: acquire."""


def _order(what: str, order: str | None, allowed: tuple[str, ...]) -> str:
    chosen = "relaxed" if order is None else _ORDER_NAMES.get(order, order)
    if chosen not in allowed:
        raise TraceError(
            f"memory_order of {what}", location=user_location(), expected=" or ".join(allowed), got=repr(order)
        )
    return chosen


def _check_buffer(what: str, buffer: Buffer, operator: str) -> None:
    if buffer.scope not in (Scope.GLOBAL, Scope.SHARED):
        raise TypeMismatchError(
            f"{what} of the {buffer.scope.value} buffer {buffer.name}", location=user_location(),
            expected="global or shared memory, which other threads see", got=f"{buffer.scope.value} memory",
            hint="what belongs to one thread needs no atomic operation",
        )  # fmt: skip
    if not is_legal_operator(operator, buffer.dtype):
        raise TypeMismatchError(
            f"{what} of {buffer.dtype}", location=user_location(),
            expected="a dtype with that arithmetic, of whole bytes", got=f"{buffer.dtype} ({buffer.name})",
            hint="view the buffer with another dtype, such as T.view(A, dtype=T.int32)",
        )  # fmt: skip


def _element(tracer: Tracer, place: Any) -> tuple[Buffer, tuple[Expr, ...]] | None:
    """The element that an argument names; None for a tile."""
    if isinstance(place, Local):
        raise TypeMismatchError(
            f"an atomic operation on the variable {place.name}", location=user_location(),
            expected="an element of global or shared memory", got="a variable of each thread's own",
        )  # fmt: skip
    if isinstance(place, Value) and place.element is not None:
        if place.let is not None:
            tracer.discard(place.let)
        buffer, indices = place.element
        return buffer.ir, indices
    if isinstance(place, TracedBuffer) and all(size == 1 for size in place.ir.shape):
        return place.ir, tuple(constant(0) for _ in place.ir.shape)
    if isinstance(place, (TracedBuffer, BufferRegion)):
        return None
    raise TypeMismatchError(
        "an atomic operation on something that is no memory", location=user_location(),
        expected="an element A[i, j], a buffer or a region", got=operations.describe(place),
    )  # fmt: skip


def _previous(tracer: Tracer, buffer: Buffer) -> Local:
    return tracer.new_local(tracer.pending_name or "previous", buffer.dtype, None, implicit=True)


def _operate(
    operator: str, dst: Any, value: Any, memory_order: str | None, return_prev: bool, what: str, use_tma: Any = False
) -> Value | None:
    tracer = kernel_tracer(what)
    order = _order(what, memory_order, ORDERS)
    if use_tma:
        return _by_tma(tracer, operator, dst, value, order, return_prev, what)
    if isinstance(value, (TracedBuffer, BufferRegion)):
        return _tile(tracer, operator, dst, value, order, return_prev, what)
    element = _element(tracer, dst)
    if element is None:
        return _tile(tracer, operator, dst, value, order, return_prev, what)
    buffer, indices = element
    _check_buffer(what, buffer, operator)
    stored = operations.converted(value, buffer.dtype)
    result = _previous(tracer, buffer) if return_prev else None
    place = None if result is None else result.buffer
    tracer.emit(Atomic(operator, buffer, indices, stored, order, place, location=user_location()))
    return None if result is None else result.snapshot()


def _tile(tracer: Tracer, operator: str, dst: Any, value: Any, order: str, return_prev: bool, what: str) -> None:
    """One operation for each element of the destination, in a loop over the threads."""
    tile_operations.outside_parallel(tracer, f"{what} of a tile")
    if return_prev:
        raise TraceError(
            f"return_prev of {what} of a tile", location=user_location(), expected="an operation on one element",
            hint="loop over the tile: "
            "`for i, j in T.Parallel(...): previous[i, j] = T.atomic_add(C[i, j], x, return_prev=True)`",
        )  # fmt: skip
    source: Region | None = None
    if isinstance(value, (TracedBuffer, BufferRegion)):
        source, destination = tile_operations.matched_regions(tracer, value, dst, what)
    else:
        destination = tile_operations.whole_region(tracer, dst, f"the destination of {what}")
    buffer = destination.buffer
    _check_buffer(what, buffer, operator)
    extents = destination.dense_extents or (1,)
    loop_vars = tuple(Var(tracer.unique(f"a{number}"), int32) for number in range(len(extents)))
    if source is None:
        stored = operations.converted(value, buffer.dtype)
    else:
        read = Load(source.buffer, _indices(source, loop_vars), source.buffer.dtype)
        stored = cast(read, buffer.dtype)
    location = user_location()
    body = Atomic(operator, buffer, _indices(destination, loop_vars), stored, order, location=location)
    tracer.emit(ParallelFor(loop_vars, extents, body, location=location))


def _by_tma(tracer: Tracer, operator: str, dst: Any, value: Any, order: str, return_prev: bool, what: str) -> None:
    """The whole tile by TMA, from shared memory; a fragment, or a tile of another dtype, is copied there first."""
    tile_operations.outside_parallel(tracer, f"{what} of a tile")
    location = user_location()
    if not isinstance(value, (TracedBuffer, BufferRegion)):
        raise TypeMismatchError(
            f"use_tma of {what} of one element", location=location, expected="a tile as the value",
            got=operations.describe(value), hint="without use_tma each thread carries its own operations out",
        )  # fmt: skip
    if return_prev or order != "relaxed":
        raise TraceError(
            f"{'return_prev' if return_prev else 'memory_order'} of {what} with use_tma", location=location,
            expected="a relaxed operation whose values from before nobody asks for", got="return_prev=True"
            if return_prev else order, hint="leave use_tma out",
        )  # fmt: skip
    source, destination = tile_operations.matched_regions(tracer, value, dst, what)
    dtype = destination.buffer.dtype
    if destination.buffer.scope is not Scope.GLOBAL or dtype.name not in TMA_REDUCTIONS[operator]:
        raise TypeMismatchError(
            f"use_tma of {what} of {dtype} in {destination.buffer.scope.value} memory", location=location,
            expected=f"global memory of {', '.join(TMA_REDUCTIONS[operator])}",
            got=f"the {destination.buffer.scope.value} buffer {destination.buffer.name} of {dtype}",
            hint="leave use_tma out",
        )  # fmt: skip
    if source.buffer.scope is not Scope.SHARED or source.buffer.dtype != dtype:
        shape = destination.extents
        staging = allocate(tracer.unique(f"{source.buffer.name}_added"), Scope.SHARED, dtype, shape, alignment=128)
        staged = Region(staging, tuple(constant(0) for _ in shape), shape)
        tracer.emit(Allocate(staging, location=location))
        tracer.emit(Copy(source, staged, location=location))
        source = staged
    tracer.emit(Copy(source, destination, operator=operator, location=location))


def _indices(region: Region, loop_vars: tuple[Var, ...]) -> tuple[Expr, ...]:
    """The element of ``region`` at a point of the loop over its extents without those of 1."""
    remaining = list(loop_vars)
    indices: list[Expr] = []
    for start, extent in zip(region.starts, region.extents, strict=True):
        if extent == 1:
            indices.append(start)
            continue
        var = remaining.pop(0)
        indices.append(var if isinstance(start, Const) and start.value == 0 else start + cast(var, start.dtype))
    return tuple(indices)


def _use_tma(use_tma: Any, annotations: Any) -> bool:
    """TileLang's annotation of that name goes before the argument."""
    return bool(annotations.get("use_tma", use_tma) if isinstance(annotations, Mapping) else use_tma)


def atomic_add(
    dst: Any, value: Any, memory_order: str | None = None, return_prev: bool = False, use_tma: bool = False,
    annotations: Any = None,
) -> Value | None:  # fmt: skip
    """``dst += value``; with ``return_prev`` the value from before. ``memory_order``: relaxed unless given.

    ``use_tma``: a tile by TMA, in relaxed order.
    """
    return _operate("add", dst, value, memory_order, return_prev, "T.atomic_add", _use_tma(use_tma, annotations))


def atomic_max(
    dst: Any, value: Any, memory_order: str | None = None, return_prev: bool = False, annotations: Any = None,
    *, use_tma: bool = False,
) -> Value | None:  # fmt: skip
    """``dst = max(dst, value)``; NaN propagates, as in T.max. ``use_tma`` (TileLang has it for ``add`` alone): a
    tile by TMA, which leaves open what a NaN gives."""
    return _operate("max", dst, value, memory_order, return_prev, "T.atomic_max", _use_tma(use_tma, annotations))


def atomic_min(
    dst: Any, value: Any, memory_order: str | None = None, return_prev: bool = False, annotations: Any = None,
    *, use_tma: bool = False,
) -> Value | None:  # fmt: skip
    """``dst = min(dst, value)``; NaN propagates, as in T.min. ``use_tma`` (TileLang has it for ``add`` alone): a
    tile by TMA, which leaves open what a NaN gives."""
    return _operate("min", dst, value, memory_order, return_prev, "T.atomic_min", _use_tma(use_tma, annotations))


def atomic_or(
    dst: Any, value: Any, memory_order: str | None = None, return_prev: bool = False, *, use_tma: bool = False
) -> Value | None:
    """``dst |= value``, of integers and bools."""
    return _operate("or", dst, value, memory_order, return_prev, "T.atomic_or", use_tma)


def atomic_and(
    dst: Any, value: Any, memory_order: str | None = None, return_prev: bool = False, *, use_tma: bool = False
) -> Value | None:
    """``dst &= value``, of integers and bools. TileLang has no such function."""
    return _operate("and", dst, value, memory_order, return_prev, "T.atomic_and", use_tma)


def atomic_xor(
    dst: Any, value: Any, memory_order: str | None = None, return_prev: bool = False, *, use_tma: bool = False
) -> Value | None:
    """``dst ^= value``, of integers and bools. TileLang has no such function."""
    return _operate("xor", dst, value, memory_order, return_prev, "T.atomic_xor", use_tma)


def atomic_exchange(dst: Any, value: Any, memory_order: str | None = None, return_prev: bool = True) -> Value | None:
    """``dst = value`` and the value from before. TileLang has no such function."""
    return _operate("exchange", dst, value, memory_order, return_prev, "T.atomic_exchange")


def _wide_add(lanes: int, dst: Any, value: Any, return_prev: bool) -> TracedBuffer | None:
    """Additions to ``lanes`` consecutive elements. Nothing has to be aligned: they are joined where that is proven."""
    what = f"T.atomic_addx{lanes}"
    tracer = kernel_tracer(what)
    source = _start(tracer, value, f"the value of {what}")
    destination = _start(tracer, dst, f"the destination of {what}")
    buffer, first = destination
    _check_buffer(what, buffer, "add")
    location = user_location()
    previous = None
    if return_prev:
        name = tracer.name_for("previous")
        previous = allocate(name, Scope.LOCAL, buffer.dtype, (lanes,))
        tracer.emit(Allocate(previous, location=location))
    lane = Var(tracer.unique("lane"), int32)
    read = Load(source[0], _moved(source[1], lane), source[0].dtype)
    stored = cast(read, buffer.dtype)
    statements: list[Statement] = []
    one = None
    if previous is not None:
        one = allocate(tracer.unique(f"{previous.name}_one"), Scope.LOCAL, buffer.dtype, ())
        statements.append(Allocate(one, location=location))
    statements.append(Atomic("add", buffer, _moved(first, lane), stored, "relaxed", one, location=location))
    if previous is not None and one is not None:
        statements.append(Store(previous, (lane,), Load(one, (), one.dtype), location=location))
    body = statements[0] if len(statements) == 1 else Seq(tuple(statements))
    tracer.emit(For(lane, constant(0), constant(lanes), 1, LoopKind.VECTORIZED, body, location=location))
    return None if previous is None else TracedBuffer(previous)


def _start(tracer: Tracer, place: Any, what: str) -> tuple[Buffer, tuple[Expr, ...]]:
    """Where the consecutive elements begin that an element, a region or a buffer names."""
    if isinstance(place, Value) and place.element is not None:
        if place.let is not None:
            tracer.discard(place.let)
        buffer, indices = place.element
        return buffer.ir, indices
    if isinstance(place, (TracedBuffer, BufferRegion)):
        region = tile_operations.whole_region(tracer, place, what)
        return region.buffer, region.starts
    raise TypeMismatchError(
        f"{what} is no memory", location=user_location(), expected="an element A[i, j] with which the others start",
        got=operations.describe(place),
    )  # fmt: skip


def _moved(indices: tuple[Expr, ...], lane: Var) -> tuple[Expr, ...]:
    return (*indices[:-1], indices[-1] + cast(lane, indices[-1].dtype))


def atomic_addx2(dst: Any, value: Any, return_prev: bool = False) -> TracedBuffer | None:
    """``dst`` and the element after it += two consecutive elements from ``value`` on. ``return_prev``: the two values
    from before, to be indexed with 0 and 1."""
    return _wide_add(2, dst, value, return_prev)


def atomic_addx4(dst: Any, value: Any, return_prev: bool = False) -> TracedBuffer | None:
    """As :func:`atomic_addx2`, of four elements."""
    return _wide_add(4, dst, value, return_prev)


def atomic_load(src: Any, memory_order: str = "seq_cst") -> Value:
    """The element ``src``, read with a memory order."""
    tracer = kernel_tracer("T.atomic_load")
    order = _order("T.atomic_load", memory_order, LOAD_ORDERS)
    buffer, indices = _one_element(tracer, src, "T.atomic_load")
    result = _previous(tracer, buffer)
    tracer.emit(AtomicLoad(buffer, indices, result.buffer, order, location=user_location()))
    return result.snapshot()


def atomic_store(dst: Any, src: Any, memory_order: str = "seq_cst") -> None:
    """``dst = src`` of one element, with a memory order."""
    tracer = kernel_tracer("T.atomic_store")
    order = _order("T.atomic_store", memory_order, STORE_ORDERS)
    buffer, indices = _one_element(tracer, dst, "T.atomic_store")
    stored = operations.converted(src, buffer.dtype)
    tracer.emit(AtomicStore(buffer, indices, stored, order, location=user_location()))


def _one_element(tracer: Tracer, place: Any, what: str) -> tuple[Buffer, tuple[Expr, ...]]:
    element = _element(tracer, place)
    if element is None:
        raise TypeMismatchError(
            f"{what} of a tile", location=user_location(), expected="one element, such as A[0]",
            got=operations.describe(place),
        )  # fmt: skip
    _check_buffer(what, element[0], "exchange")
    return element

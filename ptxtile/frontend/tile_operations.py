"""``T.copy``, ``T.fill``, ``T.clear``, ``T.print``: regions of the two sides are matched here."""

from __future__ import annotations

from typing import Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.buffers import BufferRegion, Size, TracedBuffer, shape_text
from ptxtile.frontend.current import kernel_tracer
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.tracer import Tracer
from ptxtile.frontend.values import Local, Value, is_number
from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Expr, Load, Var, constant
from ptxtile.ir.statements import Allocate, For, If, Let, LoopKind, Seq, Statement
from ptxtile.ir.tile_ops import Copy, Fill, Print, Region

WARP, WARPGROUP = 32, 128
_EVICTION_POLICIES = ("evict_normal", "evict_first", "evict_last")


class _Side:
    """One argument of a copy: a buffer, its starts, and the extents that it fixes (None: open)."""

    def __init__(
        self, buffer: TracedBuffer, starts: tuple[Expr, ...], extents: tuple[int, ...] | None, whole: bool
    ) -> None:
        self.buffer = buffer
        self.starts = starts
        self.extents = extents
        self.whole = whole

    @property
    def description(self) -> str:
        if self.extents is None or self.whole:
            return self.buffer.description
        return f"a region of shape {shape_text(self.extents)} of {self.buffer.description}"


def _static(shape: tuple[Size, ...]) -> tuple[int, ...] | None:
    return tuple(s for s in shape if isinstance(s, int)) if all(isinstance(s, int) for s in shape) else None


def _side(tracer: Tracer, value: Any, what: str) -> _Side:
    if isinstance(value, TracedBuffer):
        zero = tuple(constant(0) for _ in value.ir.shape)
        return _Side(value, zero, _static(value.ir.shape), True)
    if isinstance(value, BufferRegion):
        return _Side(value.buffer, value.region.starts, value.region.extents, False)
    if isinstance(value, Value) and value.element is not None:
        if value.let is not None:
            tracer.discard(value.let)
        buffer, starts = value.element
        return _Side(buffer, starts, None, False)
    from ptxtile.frontend.annotations import UndeclaredParameter

    if isinstance(value, UndeclaredParameter):
        value.refuse()
    raise TypeMismatchError(
        f"{what} is neither a buffer nor a region", location=user_location(),
        expected="A, A[y, x] or A[y0:y1, x0:x1]", got=operations.describe(value),
    )  # fmt: skip


def _dense(extents: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in extents if extent != 1)


def _fitted(side: _Side, extents: tuple[int, ...], other: _Side) -> Region:
    """The open side's region: the other side's extents, aligned at the last dimension, 1 in front."""
    rank = side.buffer.ir.rank
    if any(extent != 1 for extent in extents[: max(0, len(extents) - rank)]):
        extents = _dense(extents)
        if len(extents) > rank:
            _refuse_shapes(other, side)
    extents = extents[len(extents) - rank :] if len(extents) >= rank else (1,) * (rank - len(extents)) + extents
    return Region(side.buffer.ir, side.starts, extents)


def _refuse_shapes(source: _Side, destination: _Side) -> None:
    raise TypeMismatchError(
        "the two sides of T.copy have different shapes", location=user_location(),
        expected=f"{source.description} and a destination of the same extents", got=destination.description,
        hint="A[y, x] takes its extent from the other side; dimensions of size 1 do not count",
    )  # fmt: skip


def _match(source: _Side, destination: _Side) -> tuple[Region, Region]:
    """Regions of both sides with equal extents, dimensions of size 1 aside."""
    if source.extents is not None and destination.extents is not None:
        if _dense(source.extents) != _dense(destination.extents):
            _refuse_shapes(source, destination)
        return (
            Region(source.buffer.ir, source.starts, source.extents),
            Region(destination.buffer.ir, destination.starts, destination.extents),
        )
    if source.extents is not None:
        region = Region(source.buffer.ir, source.starts, source.extents)
        return region, _fitted(destination, source.extents, source)
    if destination.extents is not None:
        region = Region(destination.buffer.ir, destination.starts, destination.extents)
        return _fitted(source, destination.extents, destination), region
    if source.whole or destination.whole:
        raise TraceError(
            "neither side of T.copy has a size known at compile time", location=user_location(),
            got=f"{source.description} and {destination.description}", hint="give slices with constant extents",
        )  # fmt: skip
    ones = tuple(1 for _ in source.starts)
    return _fitted(source, ones, destination), _fitted(destination, (1,), source)


def matched_regions(tracer: Tracer, source: Any, destination: Any, what: str) -> tuple[Region, Region]:
    """Regions of equal extents of the two arguments of a tile operation, the source first."""
    second = _side(tracer, destination, f"the destination of {what}")
    return _match(_side(tracer, source, f"the source of {what}"), second)


def outside_parallel(tracer: Tracer, what: str) -> None:
    """Refuses a tile operation inside of T.Parallel."""
    if tracer.parallel_depth:
        raise TraceError(
            f"{what} inside of T.Parallel", location=user_location(), got="a tile operation in one element's iteration",
            hint="assign elements there, such as C[i, j] = A[i, j]",
        )  # fmt: skip


def copy(
    src: Any,
    dst: Any,
    *,
    coalesced_width: int | None = None,
    disable_tma: bool = False,
    eviction_policy: str | None = None,
    prefer_instruction: str | None = None,
    annotations: Any = None,
    loop_layout: Any = None,
) -> None:
    """``dst = src`` over equal extents, with a cast where dtypes differ.

    Reads outside of the source give 0, writes outside of the destination are dropped. In T.Parallel it copies one
    element to another: ``T.copy(A[i, j], B[i, j])``.
    """
    tracer = kernel_tracer("T.copy")
    if tracer.parallel_depth and _copy_element(tracer, src, dst):
        return
    outside_parallel(tracer, "T.copy")
    if eviction_policy is not None and eviction_policy not in _EVICTION_POLICIES:
        raise TraceError(
            "eviction_policy of T.copy", location=user_location(), expected=" or ".join(_EVICTION_POLICIES),
            got=repr(eviction_policy),
        )  # fmt: skip
    if loop_layout is not None:
        raise TraceError(
            "loop_layout of T.copy is not supported yet", location=user_location(), got=repr(loop_layout),
            hint="`for i, j in T.Parallel(M, N, loop_layout=...): dst[i, j] = src[i, j]`",
        )  # fmt: skip
    second = _side(tracer, dst, "the destination of T.copy")
    first = _side(tracer, src, "the source of T.copy")
    source, destination = _match(first, second)
    statement = Copy(
        source, destination, None, disable_tma or prefer_instruction in ("sync", "cp_async"), coalesced_width,
        eviction_policy, location=user_location(),
    )  # fmt: skip
    tracer.emit(statement)


def _copy_element(tracer: Tracer, source: Any, destination: Any) -> bool:
    """Whether both sides are elements; then the one is assigned to the other."""
    if not isinstance(source, Value) or not isinstance(destination, Value) or destination.element is None:
        return False
    if destination.let is not None:
        tracer.discard(destination.let)
    buffer, indices = destination.element
    buffer[tuple(Value(index) for index in indices)] = source
    return True


def whole_region(tracer: Tracer, value: Any, what: str) -> Region:
    """The region that a buffer, a slice or an element names, with its own extents."""
    side = _side(tracer, value, what)
    if side.extents is None:
        if side.whole:
            raise TraceError(
                f"{what} has no size known at compile time", location=user_location(), got=side.description
            )
        return Region(side.buffer.ir, side.starts, (1,) * len(side.starts))
    return Region(side.buffer.ir, side.starts, side.extents)


def fill(buffer: Any, value: Any, annotations: Any = None) -> None:
    """Sets every element of a buffer or region to ``value``, cast to its dtype."""
    tracer = kernel_tracer("T.fill")
    outside_parallel(tracer, "T.fill")
    if isinstance(buffer, Local):
        buffer.store(value)
        return
    stored = value.expr if isinstance(value, Value) else value
    region = whole_region(tracer, buffer, "the argument of T.fill")
    expr = operations.converted(Value(stored) if isinstance(stored, Expr) else stored, region.buffer.dtype)
    tracer.emit(Fill(region, expr, location=user_location()))


def clear(buffer: Any, annotations: Any = None) -> None:
    """Sets every element of a buffer or region to zero."""
    fill(buffer, 0)


def assign_region(target: BufferRegion, value: Any) -> None:
    """``A[0:4, :] = value``: a scalar fills the region, a buffer or region of the same shape is copied."""
    if isinstance(value, (TracedBuffer, BufferRegion)):
        copy(value, target)
    elif isinstance(value, Value) or is_number(value):
        fill(target, value)
    else:
        raise TypeMismatchError(
            f"a region of {target.buffer.name} is assigned something else than a scalar or a tile",
            location=user_location(), expected=target.description, got=operations.describe(value),
        )  # fmt: skip


def print_(obj: Any = None, msg: str = "", warp_group_id: int = 0, warp_id: int = 0) -> None:
    """``T.print(value, msg)``: one thread of each block prints. A buffer prints its elements one by one."""
    tracer = kernel_tracer("T.print")
    chosen = warp_group_id * WARPGROUP + warp_id * WARP
    if chosen:  # the thread that prints
        assert tracer.kernel is not None
        _, statements = tracer.capture(lambda: print_(obj, msg))
        before = [s for s in statements if isinstance(s, (Allocate, Copy))]
        prints = Seq(tuple(s for s in statements if not isinstance(s, (Allocate, Copy))))
        for statement in before:
            tracer.emit(statement)
        tracer.emit(If(tracer.kernel.thread.eq(chosen), prints, location=user_location()))
        return
    if isinstance(obj, TracedBuffer):
        _print_buffer(tracer, obj, msg)
        return
    if obj is None or isinstance(obj, str):
        tracer.emit(Print(msg or (obj or ""), (), location=user_location()))
        return
    expr = operations.operand(obj, "T.print")
    expr = expr if isinstance(expr, Expr) else operations.number_expr(expr)
    tracer.emit(Print(msg or "value", (expr,), location=user_location()))


def _whole(buffer: Buffer) -> Region:
    return Region(buffer, tuple(constant(0) for _ in buffer.shape), buffer.static_shape)


def _print_buffer(tracer: Tracer, buffer: TracedBuffer, message: str) -> None:
    if buffer.ir.scope is Scope.FRAGMENT:
        outside_parallel(tracer, f"T.print of the fragment {buffer.name}")
        location, ir = user_location(), buffer.ir
        shared = allocate(tracer.unique(f"{ir.name}_printed"), Scope.SHARED, ir.dtype, ir.static_shape)
        tracer.emit(Allocate(shared, location=location))
        tracer.emit(Copy(_whole(ir), _whole(shared), location=location))
        message, buffer = message or ir.name, TracedBuffer(shared)
    indices = tuple(Var(tracer.unique("index"), constant(0).dtype) for _ in buffer.ir.shape)
    load = Load(buffer.ir, indices, buffer.ir.dtype)
    item = Var(tracer.unique("item"), buffer.ir.dtype)
    body: Statement = Seq((Let(item, load), Print(message or buffer.name, (*indices, item), location=user_location())))
    for var, size in zip(reversed(indices), reversed(buffer.ir.shape), strict=True):
        stop = constant(size) if isinstance(size, int) else size
        body = For(var, constant(0), stop, 1, LoopKind.SERIAL, body, location=user_location())
    tracer.emit(body)


__all__ = ["assign_region", "clear", "copy", "fill", "print_"]

"""The loops of the language: ``T.serial``, ``T.unroll``, ``T.vectorized``, ``T.Pipelined``, ``T.Parallel``, ``T.grid``.

Each call gives a description; ``for`` over it makes the loop (:mod:`ptxtile.frontend.control_flow`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend.current import tracer_for
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.values import Value
from ptxtile.ir.expressions import Var
from ptxtile.ir.statements import LoopKind

if TYPE_CHECKING:
    from ptxtile.frontend.tracer import Tracer


@dataclass(frozen=True)
class SequentialLoop:
    """``for i in range(start, stop, step)`` of some kind."""

    kind: LoopKind
    start: Any
    stop: Any
    step: int
    options: tuple[tuple[str, object], ...] = ()

    def __iter__(self) -> Iterator[Any]:
        raise TraceError(
            "a device loop is used outside of a `for` statement",
            location=user_location(),
            hint="write `for i in T.serial(n):`; in comprehensions use range with Python ints",
        )


@dataclass(frozen=True)
class ParallelLoop:
    """``for i, j in T.Parallel(m, n)``: iterations in no order."""

    extents: tuple[int, ...]
    options: tuple[tuple[str, object], ...] = ()

    __iter__ = SequentialLoop.__iter__  # type: ignore[assignment]


@dataclass(frozen=True)
class GridLoop:
    """``for i, j in T.grid(m, n)``: nested serial loops."""

    extents: tuple[Any, ...]

    __iter__ = SequentialLoop.__iter__  # type: ignore[assignment]


def indices_of(variables: Sequence[Var], tuple_of_one: bool) -> Any:
    """What a loop or a launch gives its target: one index alone, unless the target is a tuple of one."""
    indices = tuple(Value(var) for var in variables)
    return indices if len(indices) != 1 or tuple_of_one else indices[0]


def _bounds(what: str, start: Any, stop: Any, step: Any) -> tuple[Any, Any, int]:
    tracer_for(what)
    if stop is None:
        start, stop = 0, start
    step = 1 if step is None else step
    if isinstance(step, Value):
        raise TraceError(
            f"the step of {what} must be a Python int", location=user_location(), expected="a nonzero constant",
            got=f"a {step.ir_dtype} that the device computes", hint="loop over a count and multiply inside",
        )  # fmt: skip
    if not isinstance(step, int) or step == 0:
        raise TraceError(f"the step of {what} is {step!r}", location=user_location(), expected="a nonzero integer")
    for name, bound in (("start", start), ("stop", stop)):
        if (isinstance(bound, Value) and not bound.ir_dtype.is_integer) or isinstance(bound, float):
            raise TypeMismatchError(
                f"the {name} of {what} must be an integer", location=user_location(), expected="an integer",
                got=str(bound.ir_dtype) if isinstance(bound, Value) else repr(bound),
            )  # fmt: skip
    return start, stop, step


def serial(start: Any, stop: Any = None, step: Any = None, *, annotations: Any = None) -> SequentialLoop:
    """A device loop, one iteration after the other."""
    return SequentialLoop(LoopKind.SERIAL, *_bounds("T.serial", start, stop, step))


def unroll(
    start: Any,
    stop: Any = None,
    step: Any = None,
    *,
    explicit: bool = False,
    unroll_factor: int | None = None,
    annotations: Any = None,
) -> SequentialLoop:
    """A device loop that the compiler unrolls; with bounds known only on the device it stays a loop."""
    options = () if unroll_factor is None else (("unroll_factor", unroll_factor),)
    return SequentialLoop(LoopKind.UNROLLED, *_bounds("T.unroll", start, stop, step), options)


def vectorized(start: Any, stop: Any = None, step: Any = None, *, annotations: Any = None) -> SequentialLoop:
    """A loop whose iterations become the lanes of vector instructions."""
    return SequentialLoop(LoopKind.VECTORIZED, *_bounds("T.vectorized", start, stop, step))


def Pipelined(
    start: Any,
    stop: Any = None,
    num_stages: int = 0,
    order: list[int] | None = None,
    stage: list[int] | None = None,
    annotations: Any = None,
    *,
    sync: Any = None,
    group: Any = None,
) -> SequentialLoop:
    """A loop whose copies may run ahead of its computation by ``num_stages`` iterations.

    ``order`` and ``stage``, a number for each statement of the body: the statement's place among those that are issued
    in one step, and how many steps after the iteration's first one it is issued. Scalars and allocations do not count.
    """
    if not isinstance(num_stages, int) or num_stages < 0:
        raise TraceError(
            "num_stages of T.Pipelined", location=user_location(), expected="an int ≥ 0", got=repr(num_stages)
        )
    if sync is not None or group is not None:
        raise TraceError(
            f"{'sync' if group is None else 'group'} of T.Pipelined", location=user_location(),
            expected="order and stage, which say all (TileLang has dropped the others)", got="a list",
        )  # fmt: skip
    bounds = _bounds("T.Pipelined", start, stop, None)
    options: list[tuple[str, object]] = [("num_stages", num_stages)]
    if order or stage:
        options += _schedule(order, stage)
    return SequentialLoop(LoopKind.PIPELINED, *bounds, tuple(options))


def _schedule(order: Any, stage: Any) -> list[tuple[str, object]]:
    """``order`` and ``stage`` as options of the loop. How many statements the body has only the compiler knows."""
    for name, numbers in (("order", order), ("stage", stage)):
        listed = isinstance(numbers, (list, tuple)) and len(numbers) > 0
        if not listed or any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
            raise TypeMismatchError(
                f"{name} of T.Pipelined", location=user_location(), expected="a list of ints, for both order and stage",
                got=repr(numbers),
            )  # fmt: skip
    if len(order) != len(stage):
        raise TypeMismatchError(
            "order and stage of T.Pipelined", location=user_location(), expected="lists of one length",
            got=f"{len(order)} and {len(stage)} numbers",
        )  # fmt: skip
    if sorted(order) != list(range(len(order))):
        raise TypeMismatchError(
            "order of T.Pipelined", location=user_location(), expected=f"each of 0 to {len(order) - 1} once",
            got=repr(list(order)),
        )  # fmt: skip
    if min(stage) < 0:
        raise TypeMismatchError(
            "stage of T.Pipelined", location=user_location(), expected="numbers ≥ 0", got=repr(list(stage))
        )
    return [("order", tuple(order)), ("stage", tuple(stage))]


def Parallel(
    *extents: Any, coalesced_width: int | None = None, loop_layout: Any = None, prefer_async: Any = None,
    annotations: Any = None,
) -> ParallelLoop:  # fmt: skip
    """A nest of iterations without order, spread over the threads of the block.

    ``loop_layout``: a T.Fragment of the extents that says which thread runs which iteration.
    """
    tracer = tracer_for("T.Parallel")
    if not extents:
        raise TraceError("T.Parallel needs at least one extent", location=user_location(), expected="T.Parallel(M, N)")
    sizes = tuple(_extent(extent) for extent in extents)
    options: list[tuple[str, object]] = [] if coalesced_width is None else [("coalesced_width", coalesced_width)]
    if loop_layout is not None:
        options.append(("loop_layout", _loop_layout(tracer, loop_layout, sizes)))
    return ParallelLoop(sizes, tuple(options))


def _loop_layout(tracer: Tracer, layout: Any, extents: tuple[int, ...]) -> object:
    """Which thread runs which iteration, from the user's T.Fragment of the loop's extents."""
    from ptxtile.frontend.annotate_layouts import fragment_layout
    from ptxtile.frontend.layouts import Fragment

    if not isinstance(layout, Fragment):
        raise TypeMismatchError(
            "loop_layout of T.Parallel", location=user_location(), expected="T.Fragment", got=repr(layout)
        )
    return fragment_layout(tracer, layout, extents, "the layout of T.Parallel")


def _extent(extent: Any) -> int:
    if isinstance(extent, Value):
        from ptxtile.ir.expressions import Const

        expr = extent.expr
        if isinstance(expr, Const) and isinstance(expr.value, int):
            extent = int(expr.value)
        else:
            raise TraceError(
                "an extent of T.Parallel must be known at compile time", location=user_location(),
                expected="a Python int", got=f"a {extent.ir_dtype} that the device computes",
                hint="use a constant tile size and guard the body: `if i < n:`",
            )  # fmt: skip
    if isinstance(extent, bool) or not isinstance(extent, int) or extent < 1:
        raise TraceError("an extent of T.Parallel", location=user_location(), expected="an int ≥ 1", got=repr(extent))
    return extent


@dataclass(frozen=True)
class PersistentLoop:
    """``for i, j in T.Persistent((m, n), wave_size, index)``: the tiles of one block that goes through all of them."""

    domain: tuple[Any, ...]
    wave_size: Any
    index: Any
    group_size: int

    __iter__ = SequentialLoop.__iter__  # type: ignore[assignment]


def Persistent(
    domain: Any, wave_size: Any, index: Any, group_size: int | None = 8, num_stages: int = 0, *, annotations: Any = None
) -> PersistentLoop:
    """The tiles ``index``, ``index + wave_size``, ``index + 2 · wave_size``… of ``domain``, each tile of it exactly
    once.

    Tiles are counted through groups of ``group_size`` along the last dimension; within a group the last dimension is
    the fastest, so that tiles that are worked on at the same time share rows and columns.
    """
    tracer_for("T.Persistent")
    sizes = tuple(domain) if isinstance(domain, (list, tuple)) else (domain,)
    if not sizes or num_stages:
        raise TraceError(
            "num_stages of T.Persistent" if num_stages else "T.Persistent without a size", location=user_location(),
            expected="0: T.Pipelined inside of it makes a pipeline" if num_stages else "a list of sizes",
        )  # fmt: skip
    group = 1 if group_size is None else group_size
    if isinstance(group, bool) or not isinstance(group, int) or group < 1:
        raise TraceError(
            "group_size of T.Persistent", location=user_location(), expected="an int ≥ 1", got=repr(group_size)
        )
    for name, value in (*(("size", size) for size in sizes), ("wave_size", wave_size), ("index", index)):
        if not (isinstance(value, int) and not isinstance(value, bool)) and not (
            isinstance(value, Value) and value.ir_dtype.is_integer
        ):
            raise TypeMismatchError(
                f"a {name} of T.Persistent", location=user_location(), expected="an integer", got=repr(value)
            )
    return PersistentLoop(sizes, wave_size, index, group)


def grid(*extents: Any) -> GridLoop:
    """Nested serial loops, the last extent the innermost."""
    tracer_for("T.grid")
    return GridLoop(extents)


Serial, Unroll, Vectorized, parallel = serial, unroll, vectorized, Parallel

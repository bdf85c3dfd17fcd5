"""The run-time side of rewritten ``if``, ``for`` and ``while``.

A construct whose condition or bounds are Python values is only a thin wrapper (``traced`` is False). A traced one is
a :class:`Region`: it opens blocks, and the names that it carries (rebound inside and needed outside) are exchanged
with the user's local variables by ``enter``, ``between`` and ``leave``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from ptxtile.errors import Location, TraceError
from ptxtile.frontend import operations
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.loops import GridLoop, ParallelLoop, SequentialLoop, indices_of
from ptxtile.frontend.parallel_dependences import check_parallel
from ptxtile.frontend.tracer import Block, HoistPoint, Tracer, inline_lets, reads_only_locals
from ptxtile.frontend.values import Local, Undefined, Value, index_expr, is_number
from ptxtile.ir.expressions import Const, Expr, Unary, Var, cast, constant_value
from ptxtile.ir.statements import Break, For, If, LoopKind, ParallelFor, Seq, Statement, While
from ptxtile.ir.types import bool_, int32, int64

if TYPE_CHECKING:
    from ptxtile.frontend.frame_tracer import Frame


class Unbound:
    """A name that Python has not bound."""


UNBOUND = Unbound()


def peek(thunk: Callable[[], Any]) -> Any:
    """What a name holds, or UNBOUND."""
    try:
        return thunk()
    except NameError:
        return UNBOUND


class PythonIf:
    """An ``if`` on a Python value."""

    traced = False

    def __init__(self, condition: Any) -> None:
        self.condition = bool(condition)

    def then(self) -> bool:
        return self.condition

    def otherwise(self) -> bool:
        return not self.condition

    def end(self) -> None:
        pass


class PythonLoop:
    """A ``for`` that Python runs while tracing (unrolled)."""

    traced = False

    def __init__(self, iterable: Iterable[Any], depth: int) -> None:
        self.iterable = iterable
        self.depth = depth

    def __iter__(self) -> Iterator[Any]:
        return iter(self.iterable)

    def end(self) -> None:
        pass


class PythonWhile:
    """A ``while`` on Python values."""

    traced = False
    _limit = 10_000

    def __init__(self, test: Callable[[], Any], depth: int) -> None:
        self.test = test
        self.depth = depth
        self.count = 0

    def next(self) -> bool:
        result = self.test()
        self.count += 1
        if isinstance(result, Value):
            raise TraceError(
                "the condition of this `while` was a Python value at first and became a traced one",
                location=user_location(),
                hint="start the variables of the condition as traced values, such as `found = T.bool(False)`",
            )
        if self.count > self._limit:
            raise TraceError(
                f"this `while` ran {self._limit} times while tracing: its condition is a Python value",
                location=user_location(),
                hint="for a loop on the device start its variable as a traced value, such as `i = T.int32(0)`",
            )
        return bool(result)

    def end(self) -> None:
        pass


class Region:
    """Traced control flow in one frame. ``carried``: its names; ``entry``: what they held when it began."""

    traced = True
    parallel = False

    def __init__(self, frame: Frame, names: tuple[str, ...]) -> None:
        self.frame = frame
        self.tracer: Tracer = frame.tracer
        self.carried = frozenset(names)
        self.entry: dict[str, Any] = {}
        self.location: Location | None = user_location()
        self.hoist: HoistPoint = self.tracer.block.hoist_point()

    def open(self) -> Block:
        self.frame.regions.append(self)
        self.tracer.regions.append(self)
        return self.tracer.open_block()

    def close(self) -> Block:
        assert self.tracer.regions[-1] is self
        self.frame.regions.pop()
        self.tracer.regions.pop()
        return self.tracer.close_block()

    def enter(self, name: str, thunk: Callable[[], Any]) -> Any:
        """The name's value inside: numbers and traced values become typed locals."""
        value = peek(thunk)
        if value is UNBOUND:
            value = Undefined(name, self.why_undefined(), self.hoist)
        elif not isinstance(value, (Local, Undefined)) and (isinstance(value, Value) or is_number(value)):
            value = self._variable(name, value)
        self.entry[name] = value
        return value

    def _variable(self, name: str, value: Any) -> Local:
        expr = value.expr if isinstance(value, Value) else operations.number_expr(value)
        local = self.tracer.new_local(name, expr.dtype, None, implicit=True)
        self.tracer.initialise(local, expr)
        return local

    def why_undefined(self) -> str:
        raise NotImplementedError

    def rebound(self, name: str) -> Undefined:
        """What a name is after it was bound inside by something else than an assignment (a loop target, ``with``)."""
        line = f" (line {self.location.line})" if self.location else ""
        return Undefined(name, f"it was bound by a `for` or `with` under the traced control flow{line}", self.hoist)


class TracedIf(Region):
    """``if`` on a traced condition: both branches are traced."""

    def __init__(self, frame: Frame, names: tuple[str, ...], condition: Expr) -> None:
        super().__init__(frame, names)
        self.condition = condition
        self.branches: list[Block] = []
        self.defined: dict[str, bool] = {}
        self.others: set[str] = set()

    def why_undefined(self) -> str:
        where = f" (line {self.location.line})" if self.location else ""
        return f"it is assigned in only one branch of the traced `if`{where}"

    def then(self) -> bool:
        self.open()
        return True

    def keep(self, name: str, thunk: Callable[[], Any]) -> Any:
        """A name that the first branch rebinds for itself: the second branch gets what it is now."""
        value = peek(thunk)
        self.entry[name] = Undefined(name, self.why_undefined()) if value is UNBOUND else value
        return self.entry[name]

    def restore(self, name: str, thunk: Callable[[], Any]) -> Any:
        return self.entry[name]

    def between(self, name: str, thunk: Callable[[], Any]) -> Any:
        """After the first branch: the name is again what it was before."""
        value = peek(thunk)
        self.defined[name] = self.tracer.block.terminated or not isinstance(value, Undefined)
        if value is not self.entry[name] and not isinstance(self.entry[name], Undefined):
            self.others.add(name)
        return self.entry[name]

    def otherwise(self) -> bool:
        self.branches.append(self.close())
        self.open()
        return True

    def end(self) -> None:
        self.branches.append(self.close())
        then = self.branches[0].close()
        otherwise = self.branches[1].close() if len(self.branches) == 2 else None
        self.tracer.emit(If(self.condition, then, otherwise, location=self.location))
        if len(self.branches) == 2 and all(branch.terminated for branch in self.branches):
            self.tracer.block.terminated = True

    def leave(self, name: str, thunk: Callable[[], Any]) -> Any:
        entry, last = self.entry[name], peek(thunk)
        if not isinstance(entry, Undefined):
            return self.rebound(name) if last is not entry or name in self.others else entry
        second = len(self.branches) == 2 and (self.branches[1].terminated or not isinstance(last, Undefined))
        if len(self.branches) == 1:
            last = entry
        if self.defined[name] and second and entry.local is not None:
            return entry.local
        return entry


class TracedLoop(Region):
    """What traced ``for`` and ``while`` share."""

    word = "loop"

    def __init__(self, frame: Frame, names: tuple[str, ...]) -> None:
        super().__init__(frame, names)
        self.has_jump = False
        self.runs_at_least_once = False
        self.ends_by_break = False
        self.undefined_at_jumps: set[str] = set()

    def why_undefined(self) -> str:
        where = f" (line {self.location.line})" if self.location else ""
        return f"it is assigned only inside of the traced {self.word}{where}, which may not run"

    def leave(self, name: str, thunk: Callable[[], Any]) -> Any:
        entry, last = self.entry[name], peek(thunk)
        if not isinstance(entry, Undefined):
            return entry if last is entry else self.rebound(name)
        at_end = self.ends_by_break or isinstance(last, Local)
        if entry.local is not None and self.runs_at_least_once and at_end and name not in self.undefined_at_jumps:
            return entry.local
        undefined = Undefined(name, self.why_undefined(), self.hoist)
        undefined.local = entry.local
        return undefined

    def at_jump(self, name: str, thunk: Callable[[], Any]) -> Any:
        """Before a break or continue: whether the name has a value on this way."""
        value = peek(thunk)
        if isinstance(value, Undefined):
            self.undefined_at_jumps.add(name)
        return value

    def target_after(self, name: str, thunk: Callable[[], Any]) -> Any:
        """A loop index is gone after its loop."""
        return Undefined(name, f"it is the index of a traced {self.word} that has ended", self.hoist)

    def jump(self, statement: Statement, word: str) -> None:
        self.has_jump = True
        self.tracer.emit(statement)
        self.tracer.block.terminated = True


class TracedFor(TracedLoop):
    """A device loop of one index: serial, unrolled, vectorized or pipelined."""

    word = "loop"

    def __init__(self, frame: Frame, names: tuple[str, ...], loop: SequentialLoop, target: str) -> None:
        super().__init__(frame, names)
        self.loop = loop
        start, stop = index_expr(loop.start, "a loop bound"), index_expr(loop.stop, "a loop bound")
        dtype = int64 if int64 in (start.dtype, stop.dtype) else int32
        self.start, self.stop = cast(start, dtype), cast(stop, dtype)
        self.var = Var(self.tracer.unique(target or "i"), dtype)
        first, last = constant_value(self.start), constant_value(self.stop)
        self.constant = first is not None and last is not None
        if first is not None and last is not None:
            self.runs_at_least_once = len(range(first, last, loop.step)) > 0
        if loop.kind is LoopKind.VECTORIZED and not self.constant:
            raise TraceError("T.vectorized needs constant bounds", location=self.location)

    def __iter__(self) -> Iterator[Any]:
        self.open()
        yield Value(self.var)

    def jump(self, statement: Statement, word: str) -> None:
        if self.loop.kind in (LoopKind.VECTORIZED, LoopKind.PIPELINED):
            name = "T.vectorized" if self.loop.kind is LoopKind.VECTORIZED else "T.Pipelined"
            raise TraceError(
                f"`{word}` in {name}", location=user_location(), hint="use T.serial for a loop that can be left"
            )
        super().jump(statement, word)

    def end(self) -> None:
        body = self.close().close()
        kind, options = self.loop.kind, self.loop.options
        if kind is LoopKind.UNROLLED and (self.has_jump or not self.constant):
            kind = LoopKind.SERIAL
        statement = For(self.var, self.start, self.stop, self.loop.step, kind, body, options, location=self.location)
        self.tracer.emit(statement)


class TracedGrid(TracedLoop):
    """Nested serial loops with one body."""

    def __init__(
        self, frame: Frame, names: tuple[str, ...], loop: GridLoop, targets: tuple[str, ...], tuple_of_one: bool
    ) -> None:
        super().__init__(frame, names)
        self.tuple_of_one = tuple_of_one
        self.stops = [index_expr(extent, "an extent of T.grid") for extent in loop.extents]
        names_of = [*targets, *[""] * len(self.stops)]
        self.vars = [Var(self.tracer.unique(n or "i"), s.dtype) for n, s in zip(names_of, self.stops, strict=False)]
        self.runs_at_least_once = all((constant_value(stop) or 0) > 0 for stop in self.stops)

    def __iter__(self) -> Iterator[Any]:
        self.open()
        yield indices_of(self.vars, self.tuple_of_one)

    def jump(self, statement: Statement, word: str) -> None:
        raise TraceError(f"`{word}` in T.grid", location=user_location(), hint="write nested `for … in range(…)` loops")

    def end(self) -> None:
        body: Statement = self.close().close()
        for var, stop in zip(reversed(self.vars), reversed(self.stops), strict=True):
            zero = Const(0, var.dtype)
            body = For(var, zero, stop, 1, LoopKind.SERIAL, body, location=self.location)
        self.tracer.emit(body)


class TracedParallel(TracedLoop):
    """``T.Parallel``: nothing may be carried from one iteration to another."""

    word = "T.Parallel loop"
    parallel = True

    def __init__(
        self, frame: Frame, names: tuple[str, ...], loop: ParallelLoop, targets: tuple[str, ...], tuple_of_one: bool
    ) -> None:
        super().__init__(frame, names)
        self.tuple_of_one = tuple_of_one
        if self.tracer.parallel_depth:
            raise TraceError(
                "T.Parallel inside of T.Parallel",
                location=self.location,
                hint="give all extents to one: T.Parallel(M, N)",
            )
        self.loop = loop
        names_of = [*targets, *[""] * len(loop.extents)]
        self.vars = tuple(
            Var(self.tracer.unique(n or "i"), int32) for n, _ in zip(names_of, loop.extents, strict=False)
        )

    def enter(self, name: str, thunk: Callable[[], Any]) -> Any:
        value = peek(thunk)
        if value is UNBOUND:
            value = Undefined(name, self.why_undefined(), self.hoist)
        self.entry[name] = value
        return value

    def refuse_rebinding(self, name: str) -> NoReturn:
        line = f" (line {self.location.line})" if self.location else ""
        raise TraceError(
            f"{name} is carried from one iteration of the T.Parallel loop{line} to another, but they have no order",
            location=user_location(),
            hint="write to an element of a buffer that belongs to the iteration, or use a serial loop or a reduction",
        )

    def __iter__(self) -> Iterator[Any]:
        self.open()
        self.tracer.parallel_depth += 1
        yield indices_of(self.vars, self.tuple_of_one)

    def jump(self, statement: Statement, word: str) -> None:
        raise TraceError(
            f"`{word}` in T.Parallel, whose iterations have no order", location=user_location(),
            hint="guard the rest of the body with `if`",
        )  # fmt: skip

    def end(self) -> None:
        body = self.close().close()
        self.tracer.parallel_depth -= 1
        loop = ParallelFor(self.vars, self.loop.extents, body, self.loop.options, location=self.location)
        check_parallel(loop, self.tracer.definitions)
        self.tracer.emit(loop)


class TracedWhile(TracedLoop):
    """``while`` on a traced condition, or ``while True`` in a kernel."""

    word = "`while` loop"

    def __init__(self, frame: Frame, names: tuple[str, ...], test: Callable[[], Any], endless: bool) -> None:
        super().__init__(frame, names)
        self.test = test
        self.endless = endless
        self.runs_at_least_once = self.ends_by_break = endless
        self.condition: Expr = Const(True, bool_)
        self.started = False

    def next(self) -> bool:
        if self.started:
            return False
        self.started = True
        self.open()
        if self.endless:
            return True
        condition, statements = self.tracer.capture(lambda: operations.truth(self.test(), "while"))
        inlined = inline_lets(statements, condition)
        if inlined is not None and reads_only_locals(inlined):
            self.condition = inlined
            return True
        for statement in statements:
            self.tracer.emit(statement)
        leave = Seq((Break(location=self.location),))
        self.tracer.emit(If(Unary("not", condition, bool_), leave, location=self.location))
        return True

    def end(self) -> None:
        body = self.close().close()
        if self.endless and not self.has_jump:
            raise TraceError("this `while True` has no `break`: it never ends", location=self.location)
        self.tracer.emit(While(self.condition, body, location=self.location))

"""Layouts that users give: where the elements of a shared tile lie, and which thread holds those of a fragment.

``T.Layout(shape, function)`` and ``T.Fragment(shape, function)`` take TileLang's functions of the indices. A layout is
checked when it is given to a buffer: no two elements at one place, every element with a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.current import active_tracer
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.values import Value, index_expr
from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.enumeration import NotEnumerable
from ptxtile.ir.expressions import Const, Expr, Var, cast, constant
from ptxtile.ir.mapped_layouts import COORDINATES, MAXIMUM_RANK, offsets_of
from ptxtile.ir.rewrite import substitute
from ptxtile.ir.simplify_expression import simplify_expression
from ptxtile.ir.types import int32

if TYPE_CHECKING:
    import numpy as np


def _sizes(shape: Any, what: str) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    legal = all(isinstance(n, int) and not isinstance(n, bool) and n >= 1 for n in sizes)
    if not 1 <= len(sizes) <= MAXIMUM_RANK or not legal:
        raise TypeMismatchError(
            f"the shape of {what}", location=user_location(), expected=f"1 to {MAXIMUM_RANK} ints ≥ 1", got=repr(shape)
        )
    return sizes


def _formulas(what: str, function: Callable[..., Any], variables: Sequence[Var], several: bool = True) -> list[Expr]:
    """What ``function`` gives for the variables: one integer expression, or several."""
    if not callable(function):
        raise TypeMismatchError(
            f"the function of {what}", location=user_location(), expected="a function of the indices",
            got=operations.describe(function), hint="such as lambda i, j: i * 64 + j",
        )  # fmt: skip
    tracer = active_tracer()
    given = [Value(variable) for variable in variables]
    if tracer is None or not tracer.blocks:
        result, statements = function(*given), ()
    else:
        result, statements = tracer.capture(lambda: function(*given))
    if statements:
        raise TraceError(
            f"the function of {what} does more than to compute a place", location=user_location(),
            expected="an expression of the indices", hint="write a condition as T.if_then_else(condition, a, b)",
        )  # fmt: skip
    results = list(result) if several and isinstance(result, (tuple, list)) else [result]
    if not results:
        raise TypeMismatchError(f"the function of {what}", location=user_location(), expected="a place", got="nothing")
    return [cast(index_expr(item, f"a result of the function of {what}"), int32) for item in results]


def _table(what: str, formula: Expr, shape: tuple[int, ...]) -> np.ndarray:
    try:
        return offsets_of(formula, shape)
    except NotEnumerable:
        raise TypeMismatchError(
            f"the function of {what} depends on more than the indices", location=user_location(),
            expected="integer arithmetic of the indices and constants", got="a value that the device computes",
        ) from None  # fmt: skip


def place(table: np.ndarray, position: int) -> tuple[int, ...]:
    """The coordinate of an element of a table, by its number in row-major order."""
    import numpy as np

    return tuple(int(index) for index in np.unravel_index(position, table.shape))


class Layout:
    """``T.Layout(shape, function)``: the element with indices i, j… lies at ``function(i, j, …)``, one place or several
    of them, which are counted row by row (the last is the fastest)."""

    def __init__(self, shape: Any, forward_fn: Callable[..., Any]) -> None:
        self.shape = _sizes(shape, "T.Layout")
        self.forward = _formulas("T.Layout", forward_fn, COORDINATES[: len(self.shape)])

    @classmethod
    def _of(cls, shape: tuple[int, ...], forward: list[Expr]) -> Layout:
        layout = cls.__new__(cls)
        layout.shape, layout.forward = shape, forward
        return layout

    def tables(self) -> list[np.ndarray]:
        """The places of each element, one table in the tile's shape for each result of the function."""
        found = [_table("T.Layout", formula, self.shape) for formula in self.forward]
        for table in found:
            if table.min() < 0:
                where = place(table, int(table.argmin()))
                raise TypeMismatchError(
                    "a layout with a negative place", location=user_location(), expected="places from 0 on",
                    got=f"{int(table.min())} for the element {where}",
                )  # fmt: skip
        return found

    @property
    def output_shape(self) -> tuple[int, ...]:
        return tuple(int(table.max()) + 1 for table in self.tables())

    def formula(self) -> Expr:
        """The offset of an element, over :data:`COORDINATES`."""
        result: Expr = constant(0)
        for formula, size in zip(self.forward, self.output_shape, strict=True):
            result = formula if len(self.forward) == 1 else result * size + formula
        return result

    def offsets(self) -> np.ndarray:
        """The offset of every element, in the tile's shape."""
        sizes = self.output_shape
        result: Any = 0
        for table, size in zip(self.tables(), sizes, strict=True):
            result = result * size + table
        return result

    # TileLang's methods ----------------------------------------

    def get_input_shape(self) -> list[int]:
        return list(self.shape)

    def get_output_shape(self) -> list[int]:
        return list(self.output_shape)

    def map_forward_index(self, indices: Sequence[Any]) -> list[Any]:
        """The places of the element with these indices, ints or values of the kernel."""
        values = {v.name: index_expr(i, "an index of a layout") for v, i in zip(COORDINATES, indices, strict=False)}
        return [_plain(substitute(formula, values)) for formula in self.forward]

    def __call__(self, *indices: Any) -> list[Any]:
        return self.map_forward_index(indices)

    def expand(self, leading_shape: Any) -> Layout:
        """The same in each of some matrices: new dimensions in front that go to places in front."""
        front = _sizes(leading_shape, "Layout.expand") if leading_shape not in ((), []) else ()
        moved = _moved(self.forward, len(self.shape), len(front))
        return Layout._of((*front, *self.shape), [*COORDINATES[: len(front)], *moved])

    def repeat(self, dim: int, factor: int) -> Layout:
        """The layout ``factor`` times along a dimension, one copy after the other."""
        rank = len(self.shape)
        legal = isinstance(dim, int) and -rank <= dim < rank and isinstance(factor, int) and factor >= 1
        if not legal:
            raise TypeMismatchError(
                "Layout.repeat", location=user_location(), expected=f"a dimension of {rank}, and a factor ≥ 1",
                got=f"{dim!r}, {factor!r}",
            )  # fmt: skip
        if factor == 1:
            return self
        along, extent = COORDINATES[dim % rank], self.shape[dim]
        forward = [substitute(formula, {along.name: along % extent}) for formula in self.forward]
        shape = tuple(n * factor if position == dim % rank else n for position, n in enumerate(self.shape))
        return Layout._of(shape, [along // extent, *forward])

    def is_equal(self, other: Layout) -> bool:
        """Whether both put every element at the same place."""
        import numpy as np

        return self.shape == other.shape and np.array_equal(self.offsets(), other.offsets())

    def __repr__(self) -> str:
        return f"Layout({self.shape} -> {self.output_shape})"


def _plain(expr: Expr) -> Any:
    """An int where the expression is one, else a value of the kernel."""
    simple = simplify_expression(expr, Analyzer())
    return int(simple.value) if isinstance(simple, Const) else Value(simple)


def _moved(formulas: Sequence[Expr], rank: int, by: int) -> list[Expr]:
    moved: dict[str, Expr] = {COORDINATES[k].name: COORDINATES[k + by] for k in range(rank)}
    return [substitute(formula, moved) for formula in formulas]


class Fragment:
    """``T.Fragment(shape, function)``: the element with indices i, j… is held by the thread, and in its register, that
    ``function(i, j, …)`` gives as (thread, register); the register may be several numbers, counted row by row.

    ``replicate``: so many threads hold each element; the function then gets the number of the copy as one more
    argument. Or ``forward_thread_fn`` gives the thread and ``forward_index_fn`` the register (without it: 0).
    """

    def __init__(
        self,
        shape: Any,
        forward_fn: Callable[..., Any] | None = None,
        forward_thread_fn: Callable[..., Any] | None = None,
        replicate: int = 1,
        forward_index_fn: Callable[..., Any] | None = None,
    ) -> None:
        what = "T.Fragment"
        self.shape = _sizes(shape, what)
        (self.replicate,) = _sizes(replicate, f"the replication of {what}")
        indices = COORDINATES[: len(self.shape)]
        every = (*indices, Var("copy", int32)) if self.replicate > 1 else indices
        if forward_fn is not None:
            thread, *register = _pair(what, forward_fn, every)
        elif forward_thread_fn is not None:
            (thread,) = _formulas(what, forward_thread_fn, every, several=False)
            register = [] if forward_index_fn is None else _formulas(what, forward_index_fn, indices)
        else:
            raise TypeMismatchError(
                what, location=user_location(), expected="forward_fn, or forward_thread_fn", got="neither"
            )
        self.thread, self.register = thread, register

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Thread and register of each copy of each element, [copy, *shape]."""
        import numpy as np

        shape = (self.replicate, *self.shape)
        moved = _moved([self.thread, *self.register], len(self.shape), 1)
        moved = [substitute(formula, {"copy": COORDINATES[0]}) for formula in moved]
        thread, *registers = (_table("T.Fragment", formula, shape) for formula in moved)
        register = np.zeros(shape, dtype=np.int64)
        for table in registers:
            register = register * (int(table.max()) + 1) + table
        return thread, register

    def get_input_shape(self) -> list[int]:
        return list(self.shape)

    def get_thread_size(self) -> int:
        return int(self.tables()[0].max()) + 1

    def __repr__(self) -> str:
        return f"Fragment({self.shape}, threads {self.get_thread_size()}, replicate {self.replicate})"


def _pair(what: str, function: Callable[..., Any], variables: Sequence[Var]) -> list[Expr]:
    """Thread, then registers, of a function that gives (thread, register) or (thread, (registers…))."""

    def flat(*arguments: Any) -> Any:
        result = function(*arguments)
        if not isinstance(result, (tuple, list)) or len(result) != 2:
            raise TypeMismatchError(
                f"the function of {what}", location=user_location(), expected="(thread, register)",
                got=operations.describe(result),
            )  # fmt: skip
        thread, register = result
        return (thread, *register) if isinstance(register, (tuple, list)) else (thread, register)

    return _formulas(what, flat, variables)

"""``and``, ``or``, ``not``, chained comparisons and ternaries of traced values: the side not taken is not evaluated."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from ptxtile.frontend import operations
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.mathematics import if_then_else
from ptxtile.frontend.tracer import Tracer, inline_lets
from ptxtile.frontend.values import Local, Value, is_number
from ptxtile.ir.expressions import Const, Expr, LogicalAnd, LogicalOr, Select, Unary
from ptxtile.ir.statements import If, Seq, Store
from ptxtile.ir.types import bool_

_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge,
    "is_": operator.is_, "is_not": operator.is_not,
    "in": lambda a, b: a in b, "not in": lambda a, b: a not in b,
}  # fmt: skip


def is_scalar(value: Any) -> bool:
    """Whether a value is a traced scalar or a number."""
    return isinstance(value, Value) or is_number(value)


class LazyOperators:
    """The part of a frame that evaluates operands only where Python would."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer

    def and_(self, first: Any, *rest: Callable[[], Any]) -> Any:
        return self._logical(True, first, rest)

    def or_(self, first: Any, *rest: Callable[[], Any]) -> Any:
        return self._logical(False, first, rest)

    def _logical(self, conjunction: bool, value: Any, rest: tuple[Callable[[], Any], ...]) -> Any:
        """``and`` (conjunction) or ``or``: the next side is only evaluated when the ones before leave it open."""
        for thunk in rest:
            if isinstance(value, Value):
                value = self._traced_logical(conjunction, value, thunk)
            elif bool(value) is not conjunction:
                return value
            else:
                value = thunk()
        return value

    def _traced_logical(self, conjunction: bool, left: Value, thunk: Callable[[], Any]) -> Value:
        word = "and" if conjunction else "or"
        first = operations.truth(left, word)
        if self.tracer.kernel is None:
            second = operations.truth(thunk(), word)
            return Value(LogicalAnd(first, second) if conjunction else LogicalOr(first, second))
        second, statements = self.tracer.capture(lambda: operations.truth(thunk(), word))
        inlined = inline_lets(statements, second)
        if inlined is not None:
            return Value(LogicalAnd(first, inlined) if conjunction else LogicalOr(first, inlined))
        local = self.tracer.new_local("condition", bool_, None, implicit=True)
        self.tracer.initialise(local, first)
        body = Seq((*statements, Store(local.buffer, (), second)))
        taken = Value(local.expr).expr
        self.tracer.emit(If(taken if conjunction else Unary("not", taken, bool_), body, location=user_location()))
        return local.snapshot()

    def not_(self, value: Any) -> Any:
        if isinstance(value, Value):
            return Value(Unary("not", operations.truth(value, "not"), bool_))
        return not value

    def chain(self, left: Any, links: tuple[tuple[str, Callable[[], Any]], ...]) -> Any:
        """``left < b < c``: each operand is evaluated once, later ones only when the comparisons before hold."""
        name, thunk = links[0]
        right = thunk()
        first = _COMPARISONS[name](left, right)
        return first if len(links) == 1 else self.and_(first, lambda: self.chain(right, links[1:]))

    def select(self, condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """``then() if condition else otherwise()``; only the loads of the side that is taken happen."""
        if not isinstance(condition, Value):
            return then() if condition else otherwise()
        test = operations.truth(condition, "a ternary")
        if isinstance(test, Const):
            return then() if test.value else otherwise()
        if self.tracer.kernel is None:
            a, b, dtype = operations.common(then(), otherwise(), "a ternary")
            return Value(Select(test, operations.as_dtype_expr(a, dtype), operations.as_dtype_expr(b, dtype), dtype))
        first, first_statements = self.tracer.capture(lambda: self._side(then()))
        second, second_statements = self.tracer.capture(lambda: self._side(otherwise()))
        if not is_scalar(first) and first is second:
            return first
        a, b, dtype = operations.common(first, second, "a ternary")
        a, b = operations.as_dtype_expr(a, dtype), operations.as_dtype_expr(b, dtype)
        inlined = inline_lets(first_statements, a), inline_lets(second_statements, b)
        if inlined[0] is not None and inlined[1] is not None:
            return Value(Select(test, inlined[0], inlined[1], dtype))
        return self._select_with_statements(test, (first_statements, a), (second_statements, b))

    @staticmethod
    def _side(value: Any) -> Any:
        return value.snapshot() if isinstance(value, Local) else value

    def _select_with_statements(self, test: Expr, then: tuple[Any, Expr], otherwise: tuple[Any, Expr]) -> Value:
        local = self.tracer.new_local("choice", then[1].dtype, None, implicit=True)
        first = Seq((*then[0], Store(local.buffer, (), then[1])))
        second = Seq((*otherwise[0], Store(local.buffer, (), otherwise[1])))
        self.tracer.emit(If(test, first, second, location=user_location()))
        return local.snapshot()

    def lazy_call(self, function: Any, condition: Any, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """T.if_then_else(condition, a, b), with lazy sides; any other function of that name is just called."""
        if function is if_then_else and isinstance(condition, Value):
            return self.select(condition, then, otherwise)
        return function(condition, then(), otherwise())

"""What is known about integer expressions: ranges, congruences, linear forms, and proofs of conditions.

An :class:`Analyzer` holds facts about variables (:meth:`Analyzer.bind` and its kin) and conditions that hold at the
place in question (:meth:`Analyzer.assume`), both undone at the end of a :meth:`Analyzer.scope`. Everything it says is
about values *after* wrapping to the dtype: a sum is only read as a sum over the integers where its range fits into the
dtype.

Its parts: rules for one operator (:mod:`ptxtile.ir.intervals`, :mod:`ptxtile.ir.congruence`); linear forms, in which
equal terms cancel (:mod:`ptxtile.ir.linear`, :mod:`ptxtile.ir.value_analysis`); and here inequalities «linear form ≥ 0»
from assumptions, of which a few are combined (Fourier–Motzkin elimination, to a small depth) when ranges alone do not
decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ptxtile.ir import congruence as congruences
from ptxtile.ir import intervals
from ptxtile.ir.expression_table import has_load, map_operands, subexpressions
from ptxtile.ir.expressions import (
    Binary,
    Bitcast,
    Cast,
    Compare,
    Const,
    Expr,
    LogicalAnd,
    LogicalOr,
    Select,
    Unary,
    Var,
    as_expr,
    compare,
)
from ptxtile.ir.linear import Linear
from ptxtile.ir.program import Fact
from ptxtile.ir.value_analysis import Caches, ValueAnalysis, is_scalar_integer

NEGATED = {"eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "le": "gt", "gt": "le"}
"""The comparison that holds exactly when the other does not (integers; of floats only eq and ne, because of NaN)."""

_ELIMINATIONS = 3  # a loop bound, a rounded-up division and a declared inequality: as many as a tile guard needs


class _Frame:
    """What a scope adds: facts that wait for a question, and all that is known once they have been worked out (None: as
    outside)."""

    __slots__ = ("state", "waiting")

    def __init__(self) -> None:
        self.state: tuple[Any, ...] | None = None
        self.waiting: list[tuple[Any, ...]] = []


class _Scope:
    """Passes open one for nearly every statement, so it is plain code rather than a generator."""

    __slots__ = ("_analyzer",)

    def __init__(self, analyzer: Analyzer) -> None:
        self._analyzer = analyzer

    def __enter__(self) -> None:
        self._analyzer.enter()

    def __exit__(self, *_: object) -> None:
        self._analyzer.leave()


class Analyzer(ValueAnalysis):
    """Facts about integer variables, and questions about expressions over them.

    A variable that was never bound can have any value of its dtype. Binding narrows what is known; names are unique.
    Facts are only noted when they are stated, and worked out, in their order and each in its own scope, before the next
    question: a pass walks with the facts in step, and asks about few places.
    """

    def __init__(self, facts: Iterable[Fact] = ()) -> None:
        super().__init__()
        self._known: dict[int, bool] = {}
        self._facts: tuple[Linear, ...] = ()
        self._frames = [_Frame()]
        self._worked_out = 0  # the innermost frame whose state these attributes are
        for fact in facts:
            self.bind(fact.var, fact.lower, fact.upper, fact.divisor)

    # ---------------------------------------------------------------- scopes

    def scope(self) -> _Scope:
        """``with analyzer.scope():`` bindings and assumptions made inside are forgotten at the end."""
        return _Scope(self)

    def enter(self) -> None:
        self._frames.append(_Frame())

    def leave(self) -> None:
        frame = self._frames.pop()
        self._waiting -= len(frame.waiting)
        if self._worked_out == len(self._frames):
            outer = self._worked_out - 1
            while (state := self._frames[outer].state) is None:
                outer -= 1
            self._worked_out = outer
            self._set_state(state)

    def _state_fact(self, method: Callable[..., None], *arguments: Any) -> None:
        if self._settling:  # part of another fact
            method(*arguments)
        else:
            self._frames[-1].waiting.append((method, *arguments))
            self._waiting += 1

    def settle(self) -> None:
        """Work out the facts that wait. Whoever asks through this class's methods need not call it."""
        self._settling, self._waiting = True, 0
        for number in range(self._worked_out, len(self._frames)):
            frame = self._frames[number]
            if not frame.waiting:
                continue
            if number != self._worked_out:
                self._frames[self._worked_out].state = state = self._state()
                self._set_state(tuple([v if isinstance(v, tuple) else v.copy() for v in state]))
                self._worked_out = number
            waiting, frame.waiting = frame.waiting, []
            for method, *arguments in waiting:
                method(*arguments)
        self._settling = False

    def _state(self) -> tuple[Any, ...]:
        """All that is known, by reference."""
        return (
            self._bounds, self._strides, self._definitions, self._narrowed, self._known, self._facts, self._sums,
            self.caches,
        )  # fmt: skip

    def _set_state(self, state: tuple[Any, ...]) -> None:
        (
            self._bounds, self._strides, self._definitions, self._narrowed, self._known, self._facts, self._sums,
            self.caches,
        ) = state  # fmt: skip

    # ---------------------------------------------------------------- facts

    def bind(
        self, var: Var, lower: int | None, upper_inclusive: int | None, divisor: int = 1, remainder: int = 0
    ) -> None:
        """``lower <= var <= upper_inclusive`` (None: no bound) and ``var % divisor == remainder``."""
        if is_scalar_integer(var.dtype):
            self._state_fact(self._bind, var, lower, upper_inclusive, divisor, remainder)

    def bind_value(self, var: Var, value: Expr | int) -> None:
        """``var`` is the value of an expression, which proofs see through unless it reads memory."""
        self._state_fact(self._bind_value, var, as_expr(value, var.dtype))

    def bind_loop(self, var: Var, start: Expr | int, stop: Expr | int, step: int = 1) -> None:
        """``var`` runs through ``range(start, stop, step)``; ``step`` is a constant other than 0."""
        self._state_fact(self._bind_loop, var, as_expr(start, var.dtype), as_expr(stop, var.dtype), step)

    def assume(self, condition: Expr, value: bool = True) -> None:
        """``condition`` has this value from here to the end of the scope.

        Conditions that read memory are not remembered, since a store could change them.
        """
        if not has_load(condition):
            self._state_fact(self._assume_here, condition, value)

    def _bind(self, var: Var, lower: int | None, upper_inclusive: int | None, divisor: int, remainder: int) -> None:
        self._forget(var)
        limits = intervals.full(var.dtype)
        stated = (limits[0] if lower is None else lower, limits[1] if upper_inclusive is None else upper_inclusive)
        self._bounds[var.name] = intervals.intersect(limits, stated)
        if divisor != 1:
            self._strides[var.name] = congruences.normal(divisor, remainder)

    def _bind_value(self, var: Var, value: Expr) -> None:
        self._forget(var)
        if not is_scalar_integer(var.dtype):
            if var.dtype.is_bool and (known := self.prove(value)) is not None:
                self._known[self.table.key(var)] = known
            return
        self._bounds[var.name] = self._interval(value)
        self._strides[var.name] = self.congruence(value)
        self._definitions[var.name] = value

    def _bind_loop(self, var: Var, start: Expr, stop: Expr, step: int) -> None:
        first, last = self._interval(start), self._interval(stop)
        modulus, remainder = self.congruence(start)
        stride = congruences.add((modulus, remainder), (abs(step), 0))
        if step > 0:
            bounds = [first[0], last[1] - 1]
        else:
            bounds = [last[0] + 1, first[1]]
        if modulus == 0:  # a constant start: the last value lies on the grid
            position = 1 if step > 0 else 0
            bounds[position] = remainder + (bounds[position] - remainder) // abs(step) * abs(step)
            if step < 0:
                bounds[0] = remainder - (remainder - (last[0] + 1)) // -step * -step
        self.bind(var, bounds[0], bounds[1], *stride)
        for bound, operator in ((start, "ge" if step > 0 else "le"), (stop, "lt" if step > 0 else "gt")):
            if not isinstance(bound, Const):
                self.assume(compare(operator, var, bound))

    def _assume_here(self, condition: Expr, value: bool) -> None:
        self._assume(condition, value)
        self.caches = Caches()

    def is_bound_to_one_value(self, var: Var) -> bool:
        """Whether ``var`` has one value wherever it is in scope, not only where an assumed condition holds.

        An index keeps a variable that a condition on data pins: which thread touches which element is seen by it.
        """
        if self._waiting:
            self.settle()
        low, high = self._bounds.get(var.name, (0, 1))
        return low == high or var.name in self._definitions

    def _assume(self, condition: Expr, value: bool) -> None:
        match condition:
            case LogicalAnd() if value:
                self._assume(condition.left, True)
                self._assume(condition.right, True)
            case LogicalOr() if not value:
                self._assume(condition.left, False)
                self._assume(condition.right, False)
            case Unary("not"):
                self._assume(condition.operand, not value)
            case Compare() if is_scalar_integer(condition.left.dtype):
                self._assume_comparison(condition if value else self._negated(condition))
        self._known[self.table.key(condition)] = value

    @staticmethod
    def _negated(condition: Compare) -> Compare:
        return Compare(NEGATED[condition.operator], condition.left, condition.right, condition.dtype)

    def _assume_comparison(self, condition: Compare) -> None:
        difference = self._exact(condition.left).plus(self._exact(condition.right), -1)
        match condition.operator:
            case "lt":
                self._assume_nonnegative(difference.times(-1).shifted(-1))
            case "le":
                self._assume_nonnegative(difference.times(-1))
            case "gt":
                self._assume_nonnegative(difference.shifted(-1))
            case "ge":
                self._assume_nonnegative(difference)
            case "eq":
                self._assume_nonnegative(difference)
                self._assume_nonnegative(difference.times(-1))
            case "ne":
                if self._nonnegative(difference, 0):
                    self._assume_nonnegative(difference.shifted(-1))
                elif self._nonnegative(difference.times(-1), 0):
                    self._assume_nonnegative(difference.times(-1).shifted(-1))

    def _assume_nonnegative(self, form: Linear) -> None:
        if not form.terms or self._range(form)[0] >= 0:
            return
        modulus, remainder = self._congruence_of(Linear(form.terms, 0))
        if modulus > 1:  # terms ≥ −constant, and terms only take values that are ≡ remainder
            lowest = -form.constant + (remainder + form.constant) % modulus
            form = Linear(form.terms, -lowest)
        self.caches = Caches()
        for atom, coefficient in form.terms.items():
            others = self._range(Linear({a: c for a, c in form.terms.items() if a != atom}, form.constant))
            current = self._interval_of(atom)
            if coefficient > 0:
                narrowed = intervals.intersect(current, (max(current[0], -(others[1] // coefficient)), current[1]))
            else:
                narrowed = intervals.intersect(current, (current[0], min(current[1], others[1] // -coefficient)))
            self._narrowed[atom] = narrowed
        self.caches = Caches()
        self._facts = (*self._facts, form)
        known = self._sums.get(form.shape)
        self._sums[form.shape] = -form.constant if known is None else max(known, -form.constant)

    def _forget(self, var: Var) -> None:
        """Drops what was concluded from an earlier binding of this name."""
        if self.table.known_variable(var.name):
            self.caches = Caches()
            self._facts = tuple(f for f in self._facts if not any(self._mentions(a, var) for a in f.terms))
            self._sums = {f: c for f, c in self._sums.items() if not any(self._mentions(a, var) for a, _ in f)}
            self._narrowed = {a: i for a, i in self._narrowed.items() if not self._mentions(a, var)}
            self._known = {a: k for a, k in self._known.items() if not self._mentions(a, var)}
        self._bounds.pop(var.name, None)
        self._strides.pop(var.name, None)
        self._definitions.pop(var.name, None)

    def _mentions(self, key: int, var: Var) -> bool:
        return self.depends_on(self.table.expressions[key], var)

    # ---------------------------------------------------------------- dependence

    def coefficient(self, expression: Expr, var: Var) -> int | None:
        """The constant c of ``expression == c·var + (something without var)``; None when there is no such form."""
        if self._waiting:
            self.settle()
        from ptxtile.ir.simplify_expression import simplify_expression  # it is built on this module

        found = self._coefficient(expression, var)
        if found is None and is_scalar_integer(expression.dtype):
            found = self._coefficient(simplify_expression(self._spelled_out(expression), self), var)
        return found

    def _spelled_out(self, e: Expr) -> Expr:
        """``e`` with variables that are bound to values without loads replaced by them."""
        if isinstance(e, Var):
            definition = self._definitions.get(e.name)
            return e if definition is None or has_load(definition) else self._spelled_out(definition)
        return map_operands(e, self._spelled_out)

    def _coefficient(self, expression: Expr, var: Var) -> int | None:
        if not is_scalar_integer(expression.dtype):
            return None if self.depends_on(expression, var) else 0
        form, own = self._form(expression), self.table.key(var)
        if any(a != own and self.depends_on(self.table.expressions[a], var) for a in form.terms):
            return None
        return form.terms.get(own, 0)

    def depends_on(self, expression: Expr, var: Var) -> bool:
        """Whether ``var`` occurs in the expression, also through variables bound to values."""
        if self._waiting:
            self.settle()
        for e in subexpressions(expression):
            if isinstance(e, Var):
                if e.name == var.name:
                    return True
                definition = self._definitions.get(e.name)
                if definition is not None and self.depends_on(definition, var):
                    return True
        return False

    # ---------------------------------------------------------------- proofs

    def prove(self, condition: Expr) -> bool | None:
        """True: the condition holds for every value that the facts allow; False: for none; None: not known."""
        if self._waiting:
            self.settle()
        key = self.table.key(condition)
        if key in self._known:
            return self._known[key]
        if key not in self.caches.proofs:
            self.caches.proofs[key] = None
            self.caches.proofs[key] = self._prove(condition)
        return self.caches.proofs[key]

    def _prove(self, condition: Expr) -> bool | None:
        match condition:
            case Const():
                return bool(condition.value)
            case Unary("not") if condition.dtype.is_bool:
                known = self.prove(condition.operand)
                return None if known is None else not known
            case LogicalAnd() | LogicalOr():
                absorbing = isinstance(condition, LogicalOr)
                left, right = self.prove(condition.left), self.prove(condition.right)
                if absorbing in (left, right):
                    return absorbing
                return None if left is None or right is None else not absorbing
            case Select():
                which = self.prove(condition.condition)
                if which is not None:
                    return self.prove(condition.if_true if which else condition.if_false)
            case Cast() if is_scalar_integer(condition.operand.dtype):
                return self.prove(compare("ne", condition.operand, 0))
            case Bitcast():
                return None
            case Compare() if is_scalar_integer(condition.left.dtype):
                return self._prove_comparison(condition.operator, condition.left, condition.right)
        return None

    def _prove_comparison(self, operator: str, left: Expr, right: Expr) -> bool | None:
        if operator in ("eq", "ne"):
            equal = self._prove_equal(left, right)
            return equal if equal is None or operator == "eq" else not equal
        if operator in ("gt", "le"):  # a > b is b < a; a <= b is not b < a
            left, right = right, left
        difference = self._exact(left).plus(self._exact(right), -1)
        less = None
        if self._nonnegative(difference.times(-1).shifted(-1)):
            less = True
        elif self._nonnegative(difference):
            less = False
        return less if less is None or operator in ("lt", "gt") else not less

    def _prove_equal(self, left: Expr, right: Expr) -> bool | None:
        modular = self._form(left).plus(self._form(right), -1).modulo(left.dtype.bits)
        if not modular.terms:
            return modular.constant == 0
        modulus, remainder = congruences.wrapped(self._congruence_of(modular), left.dtype.bits)
        if remainder % (modulus or 1 << left.dtype.bits):
            return False
        difference = self._exact(left).plus(self._exact(right), -1)
        if self._nonnegative(difference):
            if self._nonnegative(difference.shifted(-1)):
                return False
            return True if self._nonnegative(difference.times(-1)) else None
        return False if self._nonnegative(difference.times(-1).shifted(-1)) else None

    def _nonnegative(self, form: Linear, eliminations: int = _ELIMINATIONS) -> bool:
        """Whether a linear form over the integers is never negative: by its range, or less a multiple of a known
        one."""
        if self._range(form)[0] >= 0:
            return True
        if eliminations == 0 or not form.terms:
            return False
        for fact in (*self._facts, *self._inherent_facts(form)):
            for atom, coefficient in fact.terms.items():
                own = form.terms.get(atom, 0)
                if own * coefficient > 0:
                    rest = form.times(abs(coefficient)).plus(fact, -abs(own))
                    if self._nonnegative(rest, eliminations - 1):
                        return True
        return False

    def _inherent_facts(self, form: Linear) -> Iterator[Linear]:
        """What quotients and extrema among the atoms say about their operands."""
        for atom in form.terms:
            e = self.table.expressions[atom]
            if isinstance(e, Binary) and e.operator in ("min", "max"):
                sign = 1 if e.operator == "max" else -1
                for side in (e.left, e.right):
                    yield Linear({atom: sign}, 0).plus(self._exact(side), -sign)
            elif isinstance(e, Binary) and e.operator == "floordiv" and isinstance(e.right, Const):
                divisor = int(e.right.value)
                if divisor > 0:
                    remainder = self._exact(e.left).plus(Linear({atom: divisor}, 0), -1)
                    modulus, low = self.congruence(Binary("floormod", e.left, e.right, e.dtype))
                    low, high = (low, low) if modulus == 0 else (0, divisor - 1)
                    yield remainder.shifted(-low)
                    yield remainder.times(-1).shifted(high)

"""Ranges, congruences and linear forms of integer expressions: the part of the analysis that computes values.

:class:`ValueAnalysis` holds what is known about variables and answers from it; :class:`~ptxtile.ir.analysis.Analyzer`
adds the ways to state facts, and proofs.
"""

from __future__ import annotations

from ptxtile.ir import congruence as congruences
from ptxtile.ir import intervals
from ptxtile.ir.congruence import ANYTHING, Congruence
from ptxtile.ir.expression_table import ExpressionTable, has_load
from ptxtile.ir.expressions import Binary, Cast, Const, Expr, Select, Unary, Var
from ptxtile.ir.intervals import Interval
from ptxtile.ir.linear import Linear
from ptxtile.ir.types import DType


def is_scalar_integer(dtype: DType) -> bool:
    return dtype.is_integer and dtype.lanes == 1


class Caches:
    """Answers that hold as long as no fact is added. ``forms``: linear forms in which variables are replaced by their
    values; ``sums``: linear forms over simplified atoms."""

    __slots__ = ("congruences", "forms", "intervals", "proofs", "simplified", "sums")

    def __init__(self) -> None:
        self.forms: dict[int, Linear] = {}
        self.intervals: dict[int, Interval] = {}
        self.congruences: dict[int, Congruence] = {}
        self.proofs: dict[int, bool | None] = {}
        self.simplified: dict[int, Expr] = {}
        self.sums: dict[int, Linear] = {}

    def copy(self) -> Caches:
        new = Caches.__new__(Caches)
        new.forms, new.intervals, new.congruences = self.forms.copy(), self.intervals.copy(), self.congruences.copy()
        new.proofs, new.simplified, new.sums = self.proofs.copy(), self.simplified.copy(), self.sums.copy()
        return new


class ValueAnalysis:
    """What integer expressions can be, given what is known about their variables."""

    def __init__(self) -> None:
        self.table = ExpressionTable()
        self._bounds: dict[str, Interval] = {}
        self._strides: dict[str, Congruence] = {}
        self._definitions: dict[str, Expr] = {}
        self._narrowed: dict[int, Interval] = {}
        self._sums: dict[frozenset[tuple[int, int]], int] = {}
        self.caches = Caches()
        self._waiting = 0  # facts that are stated and not worked out
        self._settling = False

    def prove(self, condition: Expr) -> bool | None:
        raise NotImplementedError

    def settle(self) -> None:
        """Work out the facts that wait, before a question is answered."""
        raise NotImplementedError

    # ---------------------------------------------------------------- ranges

    def interval(self, expression: Expr) -> tuple[int | None, int | None]:
        """Inclusive bounds of an integer or bool expression's values; (None, None) for a float.

        Never wider than the dtype: where arithmetic may wrap, the bounds are the dtype's range.
        """
        if self._waiting:
            self.settle()
        if not (expression.dtype.is_integer or expression.dtype.is_bool):
            return None, None
        return self._interval(expression)

    def bounds(self, expression: Expr) -> Interval:
        """:meth:`interval` of an expression that is known to be an integer or a bool."""
        if self._waiting:
            self.settle()
        return self._interval(expression)

    def is_nonnegative(self, expression: Expr) -> bool:
        if self._waiting:
            self.settle()
        return self._interval(expression)[0] >= 0

    def _interval(self, e: Expr) -> Interval:
        return self._interval_of(self.table.key(e))

    def _interval_of(self, key: int) -> Interval:
        found = self.caches.intervals.get(key)
        if found is None:
            e = self.table.expressions[key]
            # Assumptions may lead from a condition back to itself: inside, it counts as unknown. So below.
            self.caches.intervals[key] = intervals.full(e.dtype)
            found = self._compute_interval(key, e)
            narrowed = self._narrowed.get(key)
            if narrowed is not None:
                found = intervals.intersect(found, narrowed)
            self.caches.intervals[key] = found
        return found

    def _compute_interval(self, key: int, e: Expr) -> Interval:
        if e.dtype.is_bool and e.dtype.lanes == 1:
            known = self.prove(e)
            return (0, 1) if known is None else (int(known), int(known))
        if not is_scalar_integer(e.dtype):
            return intervals.full(e.dtype)
        form = self._form(e)
        limits = intervals.full(e.dtype)
        if isinstance(e, Var):
            limits = self._bounds.get(e.name, limits)
        if key in form.terms:
            own = self._operator_interval(e)
        else:
            own = intervals.wrapped(self._range(form), e.dtype)
        return intervals.intersect(limits, own)

    def _operator_interval(self, e: Expr) -> Interval:
        """From the intervals of the operands, for an expression that is no sum."""
        match e:
            case Const():
                return int(e.value), int(e.value)
            case Cast():
                if is_scalar_integer(e.operand.dtype) or (e.operand.dtype.is_bool and e.operand.dtype.lanes == 1):
                    return intervals.wrapped(self._interval(e.operand), e.dtype)
            case Select():
                known = self.prove(e.condition)
                if known is not None:
                    return self._interval(e.if_true if known else e.if_false)
                return intervals.hull(self._interval(e.if_true), self._interval(e.if_false))
            case Unary("abs"):
                return intervals.wrapped(intervals.absolute(self._interval(e.operand)), e.dtype)
            case Unary("not"):
                low, high = self._interval(e.operand)
                top = e.dtype.maximum + e.dtype.minimum  # ~x is −1 − x, for unsigned maximum − x
                return top - high, top - low
            case Binary():
                result = self._binary_interval(e)
                if result is not None:
                    return intervals.wrapped(result, e.dtype)
        return intervals.full(e.dtype)

    def _binary_interval(self, e: Binary) -> Interval | None:
        left, right = self._interval(e.left), self._interval(e.right)
        match e.operator:
            case "mul":
                return intervals.multiply(left, right)
            case "floordiv":
                return intervals.floor_divide(left, right)
            case "floormod":
                return intervals.floor_remainder(left, right)
            case "truncdiv":
                return intervals.truncate_divide(left, right)
            case "truncmod":
                return intervals.truncate_remainder(left, right)
            case "min":
                return intervals.minimum(left, right)
            case "max":
                return intervals.maximum(left, right)
            case "and":
                return intervals.bitwise_and(left, right)
            case "or":
                return intervals.bitwise_or(left, right)
            case "xor":
                return intervals.bitwise_xor(left, right)
            case "shl":
                return intervals.shift_left(left, right, e.dtype.bits)
            case "shr":
                return intervals.shift_right(left, right, e.dtype.bits)
        return None

    def _range(self, form: Linear) -> Interval:
        """Bounds of a linear form over the integers."""
        lower = upper = form.constant
        for atom, coefficient in form.terms.items():
            low, high = self._interval_of(atom)
            if coefficient >= 0:
                lower += low * coefficient
                upper += high * coefficient
            else:
                lower += high * coefficient
                upper += low * coefficient
        if self._sums and len(form.terms) > 1:
            known = self._sums.get(form.shape)
            if known is not None:
                lower = max(lower, known + form.constant)
            known = self._sums.get(form.times(-1).shape)
            if known is not None:
                upper = min(upper, form.constant - known)
        return lower, upper

    # ---------------------------------------------------------------- congruences

    def congruence(self, expression: Expr) -> Congruence:
        """``(modulus, remainder)`` of an integer expression; modulus 0: exactly the remainder; modulus 1: nothing
        known."""
        if self._waiting:
            self.settle()
        if not is_scalar_integer(expression.dtype):
            return ANYTHING
        return self._congruence_of_key(self.table.key(expression))

    def divisible(self, expression: Expr | int, divisor: int) -> bool:
        """Whether every value is a multiple of ``divisor``."""
        if isinstance(expression, int):
            return expression % divisor == 0
        modulus, remainder = self.congruence(expression)
        return modulus % divisor == 0 and remainder % divisor == 0

    def _congruence_of_key(self, key: int) -> Congruence:
        found = self.caches.congruences.get(key)
        if found is None:
            e = self.table.expressions[key]
            self.caches.congruences[key] = ANYTHING
            found = self._compute_congruence(key, e) if is_scalar_integer(e.dtype) else ANYTHING
            low, high = self._interval_of(key)
            if low == high:
                found = (0, low)
            self.caches.congruences[key] = found
        return found

    def _congruence_of(self, form: Linear) -> Congruence:
        result: Congruence = (0, form.constant)
        for atom, coefficient in form.terms.items():
            result = congruences.add(result, congruences.scale(self._congruence_of_key(atom), coefficient))
        return result

    def _compute_congruence(self, key: int, e: Expr) -> Congruence:
        stated = self._strides.get(e.name, ANYTHING) if isinstance(e, Var) else ANYTHING
        form = self._form(e)
        if key in form.terms:
            return congruences.meet(self._operator_congruence(e), stated)
        result = self._congruence_of(form)
        low, high = self._range(form)
        if low < e.dtype.minimum or high > e.dtype.maximum:
            result = congruences.wrapped(result, e.dtype.bits)
        return congruences.meet(result, stated)

    def _operator_congruence(self, e: Expr) -> Congruence:
        """From the congruences of the operands, for an expression that is no sum."""
        match e:
            case Const():
                return 0, int(e.value)
            case Cast() if is_scalar_integer(e.operand.dtype):
                return congruences.wrapped(self.congruence(e.operand), min(e.dtype.bits, e.operand.dtype.bits))
            case Select():
                return congruences.join(self.congruence(e.if_true), self.congruence(e.if_false))
            case Binary("min" | "max"):
                return congruences.join(self.congruence(e.left), self.congruence(e.right))
            case Binary("and" | "or" | "xor"):
                result = congruences.bitwise(e.operator, self.congruence(e.left), self.congruence(e.right))
                return congruences.wrapped(result, e.dtype.bits)
            case Binary("mul"):
                result = congruences.multiply(self.congruence(e.left), self.congruence(e.right))
                low, high = intervals.multiply(self._interval(e.left), self._interval(e.right))
                fits = e.dtype.minimum <= low and high <= e.dtype.maximum
                return result if fits else congruences.wrapped(result, e.dtype.bits)
            case Binary("floordiv" | "floormod" | "truncdiv" | "truncmod" | "shr"):
                return self._quotient_congruence(e)
        return ANYTHING

    def _quotient_congruence(self, e: Binary) -> Congruence:
        modulus, divisor = self.congruence(e.right)
        if modulus:
            return ANYTHING
        if e.operator == "shr":
            if not 0 <= divisor < e.dtype.bits:
                return ANYTHING
            divisor = 1 << divisor
        if divisor <= 0 or (e.operator.startswith("trunc") and not self.is_nonnegative(e.left)):
            return ANYTHING
        rule = congruences.floor_remainder if e.operator.endswith("mod") else congruences.floor_divide
        return rule(self.congruence(e.left), divisor)

    # ---------------------------------------------------------------- linear forms

    def linear_form(self, expression: Expr) -> tuple[dict[Expr, int], int]:
        """``Σ coefficient·atom + constant``, equal to the expression modulo 2**bits of its dtype.

        Variables bound to values are replaced by them. Atoms may have a narrower dtype than the expression, where a
        cast that cannot change the value lies between.
        """
        if self._waiting:
            self.settle()
        form = self._form(expression)
        return {self.table.expressions[a]: c for a, c in form.terms.items()}, form.constant

    def range_of(self, form: Linear) -> Interval:
        """Bounds of a linear form over the integers (its atoms are keys of this analyzer's table)."""
        if self._waiting:
            self.settle()
        return self._range(form)

    def fits_product(self, product: Binary) -> bool:
        """Whether a product of two operands never wraps."""
        if self._waiting:
            self.settle()
        low, high = intervals.multiply(self._interval(product.left), self._interval(product.right))
        return product.dtype.minimum <= low and high <= product.dtype.maximum

    def fits(self, expression: Expr) -> bool:
        """Whether the expression's value is its linear form over the integers: that never leaves the dtype."""
        if self._waiting:
            self.settle()
        low, high = self._range(self._form(expression))
        return expression.dtype.minimum <= low and high <= expression.dtype.maximum

    def _exact(self, e: Expr) -> Linear:
        """A linear form that equals the value of ``e`` over the integers; ``e`` itself as one atom where a sum may
        wrap."""
        return self._form(e) if self.fits(e) else Linear({self.table.key(e): 1}, 0)

    def _form(self, e: Expr) -> Linear:
        """A linear form equal to ``e`` modulo 2**bits, with variables replaced by their values."""
        key = self.table.key(e)
        form = self.caches.forms.get(key)
        if form is None:
            atom = self.caches.forms[key] = Linear({key: 1}, 0)
            form = self._compute_form(e)
            form = atom if form is None else form.modulo(e.dtype.bits)
            self.caches.forms[key] = form
        return form

    def _compute_form(self, e: Expr) -> Linear | None:
        if isinstance(e, Var):
            definition = self._definitions.get(e.name)
            return None if definition is None or has_load(definition) else self._form(definition)
        if not is_scalar_integer(e.dtype):
            return None
        if isinstance(e, Const):
            return Linear({}, int(e.value))
        if isinstance(e, Binary):
            return self._binary_form(e)
        if isinstance(e, Cast) and is_scalar_integer(e.operand.dtype):
            return self._form(e.operand) if e.dtype.bits <= e.operand.dtype.bits else self._exact(e.operand)
        if isinstance(e, Unary) and e.operator == "neg":
            return self._form(e.operand).times(-1)
        return None

    def _binary_form(self, e: Binary) -> Linear | None:
        if e.operator in ("add", "sub"):
            return self._form(e.left).plus(self._form(e.right), 1 if e.operator == "add" else -1)
        if e.operator == "mul":
            left, right = self._form(e.left), self._form(e.right)
            if not right.terms:
                return left.times(right.constant)
            return right.times(left.constant) if not left.terms else None
        if e.operator == "shl":
            right = self._form(e.right)
            if not right.terms and 0 <= right.constant < e.dtype.bits:
                return self._form(e.left).times(1 << right.constant)
        return None

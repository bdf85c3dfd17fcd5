"""Algebraic simplification of expressions, under the facts of an :class:`~ptxtile.ir.analysis.Analyzer`.

The value of an expression never changes, wrap-around included. Rules that hold for integers modulo 2**bits (sums,
products with constants) need no proof; rules about quotients, remainders, comparisons and extrema are applied where the
analyzer proves that nothing wraps. Canonical forms: sums ``a*64 + b + 3`` ordered by falling coefficient, subtracted
terms after added ones, the constant last; ``floordiv``/``floormod`` by a constant for shifts right, masks of low bits
and for truncating division of what is not negative; ``(x // a) % b`` for ``(x % (a*b)) // a``. Floating-point
arithmetic is left as it is; only conversions of constants that are exact are folded. A load may vanish (its value is
not needed), but is never duplicated into another place of evaluation or moved.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptxtile.ir.analysis import NEGATED, Analyzer, is_scalar_integer
from ptxtile.ir.expression_table import map_operands
from ptxtile.ir.expressions import (
    Binary,
    Bitcast,
    Broadcast,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    LogicalAnd,
    LogicalOr,
    Select,
    SharedAddress,
    Unary,
    Var,
    constant,
)
from ptxtile.ir.fold_constants import fold_binary, fold_cast, fold_compare, fold_unary
from ptxtile.ir.linear import Linear
from ptxtile.ir.simplify_division import DivisionSimplifier, is_power_of_two
from ptxtile.ir.types import DType, bool_

_TRUE, _FALSE = Const(True, bool_), Const(False, bool_)


def simplify_expression(expression: Expr, analyzer: Analyzer | None = None) -> Expr:
    """An expression with the same value under the analyzer's facts; the same object when there is nothing to do."""
    if isinstance(expression, Const):
        return expression
    analyzer = analyzer or Analyzer()
    analyzer.settle()
    return _Simplifier(analyzer).simplify(expression)


class _Simplifier(DivisionSimplifier):
    def simplify(self, e: Expr) -> Expr:
        rule = _RULES.get(type(e))
        if rule is None:  # Const, Var
            return self._leaf(e)
        key = self.table.key(e)
        found = self.analyzer.caches.simplified.get(key)
        if found is None:
            found = rule(self, e)
            result_key = self.table.key(found)
            if result_key == key:
                found = e
            self.analyzer.caches.simplified[key] = found
            self.analyzer.caches.simplified.setdefault(result_key, found)
        return found

    def _leaf(self, e: Expr) -> Expr:
        if isinstance(e, Const):
            return e
        if is_scalar_integer(e.dtype):
            if isinstance(e, Var) and not self.analyzer.is_bound_to_one_value(e):
                return e
            low, high = self.analyzer.interval(e)
            if low == high and low is not None:
                return constant(low, e.dtype)
        elif e.dtype.is_bool:
            return self._proven(e)
        return e

    def _proven(self, e: Expr) -> Expr:
        """A bool expression as a constant when it is one."""
        known = self.analyzer.prove(e) if e.dtype.lanes == 1 else None
        return e if known is None else _TRUE if known else _FALSE

    # ---------------------------------------------------------------- operators

    def _binary(self, e: Binary) -> Expr:
        if e.dtype.is_bool:
            return self._bool_binary(e)
        if not is_scalar_integer(e.dtype):
            return self._with_operands(e)
        if e.operator in ("add", "sub"):
            return self._sum(e)
        left, right = self.simplify(e.left), self.simplify(e.right)
        if isinstance(left, Const) and isinstance(right, Const):
            folded = fold_binary(e.operator, int(left.value), int(right.value), e.dtype)
            return self._replaced(e, left, right) if folded is None else folded
        rule = _OPERATORS.get(e.operator)
        return self._replaced(e, left, right) if rule is None else rule(self, e, left, right)

    def _replaced(self, e: Binary | Compare | LogicalAnd | LogicalOr, left: Expr, right: Expr) -> Expr:
        if left is e.left and right is e.right:
            return e
        if isinstance(e, (Binary, Compare)):
            return type(e)(e.operator, left, right, e.dtype)
        return type(e)(left, right, e.dtype)

    def _mul(self, e: Binary, left: Expr, right: Expr) -> Expr:
        if isinstance(left, Const) or isinstance(right, Const):
            return self._sum(Binary("mul", left, right, e.dtype))
        factor, parts = 1, []
        for side in (left, right):
            if isinstance(side, Binary) and side.operator == "mul" and isinstance(side.right, Const):
                factor *= int(side.right.value)
                parts.append(side.left)
            else:
                parts.append(side)
        if factor != 1:
            product = Binary("mul", *sorted(parts, key=self.table.key), dtype=e.dtype)
            return self._built(Linear({self.table.key(product): factor}, 0).modulo(e.dtype.bits), e.dtype)
        return self._replaced(e, *sorted(parts, key=self.table.key))

    def _shl(self, e: Binary, left: Expr, right: Expr) -> Expr:
        if isinstance(right, Const):
            if 0 <= right.value < e.dtype.bits:
                return self._sum(Binary("shl", left, right, e.dtype))
            return constant(0, e.dtype)
        return self._replaced(e, left, right)

    def _shr(self, e: Binary, left: Expr, right: Expr) -> Expr:
        if isinstance(right, Const) and 0 <= int(right.value) < e.dtype.maximum.bit_length():
            return self.floor_divide(left, 1 << int(right.value))
        return self._replaced(e, left, right)

    def _division(self, e: Binary, left: Expr, right: Expr) -> Expr:
        operator = e.operator
        if operator.startswith("trunc") and self._bounds(left)[0] >= 0 and self._bounds(right)[0] > 0:
            operator = "floor" + operator[len("trunc") :]  # both round the same way
        if operator in ("floordiv", "floormod"):
            if isinstance(right, Const) and right.value > 0:
                rule = self.floor_divide if operator == "floordiv" else self.floor_remainder
                return rule(left, int(right.value))
            symbolic = self._divide_by_symbol(left, right)
            if symbolic is not None:
                return symbolic[0 if operator == "floordiv" else 1]
        elif isinstance(right, Const) and right.value == 1:
            return left if operator == "truncdiv" else constant(0, e.dtype)
        if operator != e.operator:
            return Binary(operator, left, right, e.dtype)
        return self._replaced(e, left, right)

    def _extremum(self, e: Binary, left: Expr, right: Expr) -> Expr:
        smaller, larger = (left, right) if e.operator == "min" else (right, left)
        at_most = self.analyzer.prove(Compare("le", smaller, larger, bool_))
        if at_most:
            return left
        if at_most is False or self.analyzer.prove(Compare("le", larger, smaller, bool_)):
            return right
        return self._replaced(e, left, right)

    def _bitwise(self, e: Binary, left: Expr, right: Expr) -> Expr:
        if isinstance(left, Const):
            left, right = right, left
        if self._same(left, right):
            return constant(0, e.dtype) if e.operator == "xor" else left
        if isinstance(right, Const):
            value, ones = int(right.value), int(constant(-1, e.dtype).value)
            if value == 0:
                return right if e.operator == "and" else left
            if value == ones and e.operator != "xor":
                return left if e.operator == "and" else right
            if e.operator == "and" and value > 0 and is_power_of_two(value + 1) and value < e.dtype.maximum:
                return self.floor_remainder(left, value + 1)
        return self._replaced(e, left, right)

    def _bool_binary(self, e: Binary) -> Expr:
        left, right = self.simplify(e.left), self.simplify(e.right)
        if e.dtype.lanes == 1 and e.operator in ("and", "or", "xor"):
            if isinstance(left, Const):
                left, right = right, left
            if isinstance(right, Const):
                if e.operator == "xor":
                    return self._not(left) if right.value else left
                return left if bool(right.value) == (e.operator == "and") else right
        return self._replaced(e, left, right)

    # ---------------------------------------------------------------- conditions

    def _compare(self, e: Compare) -> Expr:
        left, right = self.simplify(e.left), self.simplify(e.right)
        if isinstance(left, Const) and isinstance(right, Const) and left.dtype.lanes == 1:
            return fold_compare(e.operator, left, right)
        if is_scalar_integer(left.dtype):
            known = self.analyzer.prove(e)
            if known is None:
                known = self.analyzer.prove(self._replaced(e, left, right))
            if known is not None:
                return _TRUE if known else _FALSE
            return self._solved(e, left, right)
        if left.dtype.is_bool and left.dtype.lanes == 1 and e.operator in ("eq", "ne") and isinstance(right, Const):
            return left if bool(right.value) == (e.operator == "eq") else self._not(left)
        return self._replaced(e, left, right)

    def _solved(self, e: Compare, left: Expr, right: Expr) -> Expr:
        """Common terms cancelled, the constant on the right, divided by the common factor; when that is shorter."""
        dtype = left.dtype
        form_left, form_right = self.form(left), self.form(right)
        if not (self._in_range(form_left, dtype) and self._in_range(form_right, dtype)):
            return self._replaced(e, left, right)
        difference = form_left.plus(form_right, -1)
        if not difference.terms:
            return fold_compare(e.operator, Const(difference.constant, dtype), Const(0, dtype))
        factor, bound = difference.content, -difference.constant
        if e.operator in ("eq", "ne"):
            if bound % factor:
                return _FALSE if e.operator == "eq" else _TRUE
            limit = bound // factor
        else:  # terms < b: terms/f < ceil(b/f), the same for >=; terms <= b: terms/f <= floor(b/f), the same for >
            limit = -(-bound // factor) if e.operator in ("lt", "ge") else bound // factor
        terms = {atom: c // factor for atom, c in difference.terms.items()}
        added = Linear({a: c for a, c in terms.items() if c > 0}, 0)
        subtracted = Linear({a: -c for a, c in terms.items() if c < 0}, 0)
        operator = e.operator
        if not added.terms:
            operator, added, subtracted, limit = _MIRRORED[operator], subtracted, Linear({}, 0), -limit
        new_right = subtracted.shifted(limit)
        if limit < 0 and subtracted.terms and not added.constant:
            added, new_right = added.shifted(-limit), subtracted
        if not (self._in_range(added, dtype) and self._in_range(new_right, dtype)):
            return self._replaced(e, left, right)
        size = len(form_left.terms) + len(form_right.terms), form_left.constant != 0 and form_right.constant != 0
        new_size = len(terms), added.constant != 0 and new_right.constant != 0
        moved = not form_right.terms and form_left.constant != 0
        if new_size < size or factor > 1 or moved or operator != e.operator:
            return Compare(operator, self._built(added, dtype), self._built(new_right, dtype), e.dtype)
        return self._replaced(e, left, right)

    def _logical(self, e: LogicalAnd | LogicalOr) -> Expr:
        absorbing = isinstance(e, LogicalOr)
        left = self.simplify(e.left)
        if isinstance(left, Const):
            return left if bool(left.value) == absorbing else self.simplify(e.right)
        right = self._simplify_under(left, not absorbing, e.right)
        if isinstance(right, Const) and bool(right.value) != absorbing:
            return left
        if isinstance(right, Const) or self._same(left, right):
            return right
        return self._replaced(e, left, right)

    def _simplify_under(self, condition: Expr, value: bool, e: Expr) -> Expr:
        """``e`` simplified where ``condition`` is known to have been evaluated to ``value``."""
        if _RULES.get(type(e)) is None:
            return self.simplify(e)
        with self.analyzer.scope():
            self.analyzer.assume(condition, value)
            self.analyzer.settle()
            return self.simplify(e)

    def _select(self, e: Select) -> Expr:
        condition = self.simplify(e.condition)
        if isinstance(condition, Const):
            return self.simplify(e.if_true if condition.value else e.if_false)
        if_true = self._simplify_under(condition, True, e.if_true)
        if_false = self._simplify_under(condition, False, e.if_false)
        if self._same(if_true, if_false):
            return if_true
        if e.dtype == bool_ and isinstance(if_true, Const) and isinstance(if_false, Const):
            return condition if if_true.value else self._not(condition)
        if condition is e.condition and if_true is e.if_true and if_false is e.if_false:
            return e
        return Select(condition, if_true, if_false, e.dtype)

    def _unary(self, e: Unary) -> Expr:
        if e.operator == "neg" and is_scalar_integer(e.dtype):
            return self._sum(e)
        operand = self.simplify(e.operand)
        if e.dtype.lanes == 1:
            if e.operator == "not" and e.dtype.is_bool:
                return self._not(operand, e)
            if isinstance(operand, Const) and (folded := fold_unary(e.operator, operand)) is not None:
                return folded
            if e.operator == "abs" and is_scalar_integer(e.dtype) and self.analyzer.is_nonnegative(operand):
                return operand
        return e if operand is e.operand else Unary(e.operator, operand, e.dtype)

    def _not(self, operand: Expr, e: Unary | None = None) -> Expr:
        match operand:
            case Const():
                return _FALSE if operand.value else _TRUE
            case Unary("not"):
                return operand.operand
            case Compare() if operand.left.dtype.is_integer or operand.operator in ("eq", "ne"):
                return Compare(NEGATED[operand.operator], operand.left, operand.right, operand.dtype)
        return e if e is not None and operand is e.operand else Unary("not", operand, operand.dtype)

    # ---------------------------------------------------------------- everything else

    def _cast(self, e: Cast) -> Expr:
        operand = self.simplify(e.operand)
        if operand.dtype == e.dtype:
            return operand
        if isinstance(operand, Const) and (folded := fold_cast(operand, e.dtype)) is not None:
            return folded
        if isinstance(operand, Cast) and is_scalar_integer(e.dtype) and is_scalar_integer(operand.dtype):
            source = operand.operand
            # the middle type keeps the value, or the bits that the outer cast wants
            if is_scalar_integer(source.dtype) and (
                e.dtype.bits <= operand.dtype.bits or self._keeps_value(source, operand.dtype)
            ):
                return self._cast(Cast(source, e.dtype))
        return e if operand is e.operand else Cast(operand, e.dtype)

    def _keeps_value(self, source: Expr, dtype: DType) -> bool:
        low, high = self._bounds(source)
        return dtype.minimum <= low and high <= dtype.maximum

    def _with_operands(self, e: Expr) -> Expr:
        """``e`` with simplified operands, for operators that have no rule."""
        return map_operands(e, self.simplify)


_MIRRORED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le", "eq": "eq", "ne": "ne"}


_OPERATORS: dict[str, Callable[[_Simplifier, Binary, Expr, Expr], Expr]] = {
    "mul": _Simplifier._mul,
    "shl": _Simplifier._shl,
    "shr": _Simplifier._shr,
    "min": _Simplifier._extremum,
    "max": _Simplifier._extremum,
    **dict.fromkeys(("floordiv", "floormod", "truncdiv", "truncmod"), _Simplifier._division),
    **dict.fromkeys(("and", "or", "xor"), _Simplifier._bitwise),
}

_RULES: dict[type[Expr], Callable[[_Simplifier, Any], Expr]] = {
    Binary: _Simplifier._binary,
    Compare: _Simplifier._compare,
    Unary: _Simplifier._unary,
    LogicalAnd: _Simplifier._logical,
    LogicalOr: _Simplifier._logical,
    Select: _Simplifier._select,
    Cast: _Simplifier._cast,
    Bitcast: _Simplifier._with_operands,
    Broadcast: _Simplifier._with_operands,
    Load: _Simplifier._with_operands,
    Call: _Simplifier._with_operands,
    SharedAddress: _Simplifier._with_operands,
}

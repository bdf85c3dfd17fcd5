"""Sums in normal form: collecting an expression into a linear form, and writing a linear form as an expression.

The part of :mod:`ptxtile.ir.simplify_expression` about ``+``, ``-`` and products with constants. All of it holds modulo
2**bits, so nothing here needs a proof.
"""

from __future__ import annotations

from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.expressions import Binary, Const, Expr, Unary, constant
from ptxtile.ir.linear import Linear
from ptxtile.ir.types import DType


def _is_sum(e: Expr) -> bool:
    if isinstance(e, Binary):
        has_constant = isinstance(e.right, Const) or isinstance(e.left, Const)
        return e.operator in ("add", "sub") or (e.operator in ("mul", "shl") and has_constant)
    return isinstance(e, Const) or (isinstance(e, Unary) and e.operator == "neg")


class SumSimplifier:
    """Builds sums of one dtype from atoms that :meth:`simplify` (of a subclass) has simplified."""

    def __init__(self, analyzer: Analyzer) -> None:
        self.analyzer = analyzer
        self.table = analyzer.table

    def simplify(self, e: Expr) -> Expr:
        raise NotImplementedError

    def _same(self, a: Expr, b: Expr) -> bool:
        return self.table.key(a) == self.table.key(b)

    def _sum(self, e: Expr) -> Expr:
        form = self._recombined(self.form(e).modulo(e.dtype.bits))
        return self._built(form, e.dtype)

    def form(self, e: Expr) -> Linear:
        """The linear form modulo 2**bits over simplified atoms of the same dtype, for building expressions."""
        key = self.table.key(e)
        found = self.analyzer.caches.sums.get(key)
        if found is None:
            terms: dict[int, int] = {}
            found = self.analyzer.caches.sums[key] = Linear(terms, self._collect(e, 1, terms))
        return found

    def _collect(self, e: Expr, factor: int, terms: dict[int, int]) -> int:
        """Adds ``factor * e`` to ``terms``; returns its constant part."""
        if isinstance(e, Const):
            return factor * int(e.value)
        if isinstance(e, Binary):
            operator, left, right = e.operator, e.left, e.right
            if operator == "add":
                return self._collect(left, factor, terms) + self._collect(right, factor, terms)
            if operator == "sub":
                return self._collect(left, factor, terms) + self._collect(right, -factor, terms)
            if operator == "mul" and isinstance(right, Const):
                return self._collect(left, factor * int(right.value), terms)
            if operator == "mul" and isinstance(left, Const):
                return self._collect(right, factor * int(left.value), terms)
            if operator == "shl" and isinstance(right, Const) and 0 <= right.value < e.dtype.bits:
                return self._collect(left, factor << int(right.value), terms)
        elif isinstance(e, Unary) and e.operator == "neg":
            return self._collect(e.operand, -factor, terms)
        simple = self.simplify(e)
        if simple is not e and _is_sum(simple):
            return self._collect(simple, factor, terms)
        atom = self.table.key(simple)
        total = terms.get(atom, 0) + factor
        if total:
            terms[atom] = total
        else:
            terms.pop(atom, None)
        return 0

    def _recombined(self, form: Linear) -> Linear:
        """n·(x // n) + x % n is x, and x − n·(x // n) is x % n (both hold modulo 2**bits for every x)."""
        for atom, coefficient in form.terms.items():
            e = self.table.expressions[atom]
            if not (isinstance(e, Binary) and isinstance(e.right, Const) and e.right.value > 0):
                continue
            divisor = int(e.right.value)
            if e.operator == "floormod":
                other = self.table.key(Binary("floordiv", e.left, e.right, e.dtype))
                if form.terms.get(other) == coefficient * divisor:
                    removed = Linear({atom: coefficient, other: coefficient * divisor}, 0)
                    whole = form.plus(removed, -1).plus(self.form(e.left), coefficient)
                    return self._recombined(whole.modulo(e.dtype.bits))
            elif e.operator == "floordiv" and coefficient % divisor == 0:
                whole_factor = form.terms.get(self.table.key(e.left))
                if whole_factor is not None and whole_factor * divisor == -coefficient:
                    removed = Linear({atom: coefficient, self.table.key(e.left): whole_factor}, 0)
                    remainder = self.simplify(Binary("floormod", e.left, e.right, e.dtype))
                    return form.plus(removed, -1).plus(self.form(remainder), whole_factor).modulo(e.dtype.bits)
        return form

    def _built(self, form: Linear, dtype: DType) -> Expr:
        """The expression of a linear form: positive terms by falling coefficient, negative terms, constant."""
        ordered = sorted(form.terms.items(), key=lambda term: (term[1] < 0, -abs(term[1])))
        result: Expr | None = None
        for atom, coefficient in ordered:
            e = self.table.expressions[atom]
            if result is None and coefficient < 0 and form.constant > 0:
                result = constant(form.constant, dtype)
            subtracted = result is not None and coefficient < 0
            size = -coefficient if subtracted else coefficient
            if size == -1:
                term: Expr = Unary("neg", e, dtype)
            else:
                term = e if size == 1 else Binary("mul", e, constant(size, dtype), dtype)
            result = term if result is None else Binary("sub" if subtracted else "add", result, term, dtype)
        if result is None:
            return constant(form.constant, dtype)
        if form.constant == 0 or (form.constant > 0 and ordered[0][1] < 0):
            return result
        if form.constant < 0 and -form.constant <= dtype.maximum:
            return Binary("sub", result, constant(-form.constant, dtype), dtype)
        return Binary("add", result, constant(form.constant, dtype), dtype)

    def _bounds(self, x: Expr) -> tuple[int, int]:
        return self.analyzer.bounds(x)

    def _range(self, form: Linear) -> tuple[int, int]:
        return self.analyzer.range_of(form)

    def _in_range(self, form: Linear, dtype: DType) -> bool:
        """Whether the form over the integers is the value: nothing wraps."""
        low, high = self._range(form)
        return dtype.minimum <= low and high <= dtype.maximum

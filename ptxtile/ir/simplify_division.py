"""Quotients and remainders by a positive constant, or by a symbol that the dividend is built from.

The part of :mod:`ptxtile.ir.simplify_expression` that undoes what layouts do to indices: ``(64*a + b) // 64`` and
``(64*a + b) % 64``. The rules are about integers, so each asks that the dividend does not wrap; only remainders modulo
a power of two hold in any case.
"""

from __future__ import annotations

from math import gcd

from ptxtile.ir import intervals
from ptxtile.ir.expressions import Binary, Compare, Const, Expr, LogicalAnd, constant
from ptxtile.ir.linear import Linear
from ptxtile.ir.simplify_sum import SumSimplifier
from ptxtile.ir.types import DType, bool_


def is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


class DivisionSimplifier(SumSimplifier):
    def floor_divide(self, x: Expr, divisor: int) -> Expr:
        """``x // divisor`` of a simplified x."""
        dtype = x.dtype
        low, high = self._bounds(x)
        if divisor == 1:
            return x
        if low // divisor == high // divisor:
            return constant(low // divisor, dtype)
        form = self.form(x)
        split = self._split_quotient(form, divisor, dtype) if self._in_range(form, dtype) else None
        if split is not None:
            return split
        match x:
            case Binary("floordiv", inner, Const(value)) if value > 0 and value * divisor <= dtype.maximum:
                return self.floor_divide(inner, int(value) * divisor)
            case Binary("floormod", inner, Const(value)) if value > 0 and value % divisor == 0:
                return self.floor_remainder(self.floor_divide(inner, divisor), int(value) // divisor)
            case Binary("and" | "or" | "xor") if is_power_of_two(divisor):
                # an arithmetic shift distributes over bitwise operators: worth it when it removes a division
                if any(self.analyzer.divisible(side, divisor) for side in (x.left, x.right)):
                    left, right = self.floor_divide(x.left, divisor), self.floor_divide(x.right, divisor)
                    return self.simplify(Binary(x.operator, left, right, dtype))
        return Binary("floordiv", x, constant(divisor, dtype), dtype)

    def _split_quotient(self, form: Linear, divisor: int, dtype: DType) -> Expr | None:
        """(divisor·a + b) // divisor is a + b // divisor; then a low part of b that cannot carry is dropped."""
        whole = {atom: c // divisor for atom, c in form.terms.items() if c % divisor == 0}
        rest = {atom: c for atom, c in form.terms.items() if c % divisor}
        carried = form.constant // divisor if whole or abs(form.constant) >= divisor else 0
        inner = Linear(rest, form.constant - carried * divisor)
        if not self._in_range(inner, dtype):
            return None
        low, high = self._range(inner)
        if low // divisor == high // divisor:
            quotient: Linear | None = Linear({}, low // divisor)
        else:
            quotient = self._quotient_without_low_part(inner, divisor, dtype)
        if quotient is None:
            if not whole and carried == 0:
                return None
            divided = self.floor_divide(self._built(inner, dtype), divisor)
            quotient = self.form(divided)
        return self._built(self._recombined(Linear(whole, carried).plus(quotient).modulo(dtype.bits)), dtype)

    def _quotient_without_low_part(self, form: Linear, divisor: int, dtype: DType) -> Linear | None:
        for unit, high, _ in self._carry_free_splits(form, divisor):
            if unit == divisor:
                return high
            return self.form(self.floor_divide(self._built(high, dtype), divisor // unit))
        return None

    def _carry_free_splits(self, form: Linear, divisor: int) -> list[tuple[int, Linear, Linear]]:
        """(unit, high, low) with form = unit·high + low, 0 ≤ low < unit, unit | divisor, unit > 1; largest unit
        first."""
        units = sorted({gcd(c, divisor) for c in form.terms.values()} - {1}, reverse=True)
        result = []
        for unit in units:
            high = {atom: c // unit for atom, c in form.terms.items() if c % unit == 0}
            low = Linear({atom: c for atom, c in form.terms.items() if c % unit}, form.constant % unit)
            bounds = self._range(low)
            if bounds[0] >= 0 and bounds[1] < unit:
                result.append((unit, Linear(high, form.constant // unit), low))
                break
        return result

    def floor_remainder(self, x: Expr, divisor: int) -> Expr:
        """``x % divisor`` of a simplified x, not negative."""
        dtype = x.dtype
        modulus, remainder = self.analyzer.congruence(x)
        if modulus % divisor == 0:
            return constant(remainder % divisor, dtype)
        low, high = self._bounds(x)
        if low >= 0 and high < divisor:
            return x
        # modulo a power of two, wrapping changes nothing
        wraps_freely = is_power_of_two(divisor)
        form = self.form(x)
        if wraps_freely or self._in_range(form, dtype):
            reduced = Linear(
                {a: r for a, c in form.terms.items() if (r := intervals.truncated_remainder(c, divisor))},
                form.constant % divisor,
            )
            if wraps_freely or self._in_range(reduced, dtype):
                result = self._split_remainder(reduced, divisor, dtype)
                if result is not None:
                    return result
                x = self._built(reduced, dtype)
        match x:
            case Binary("floormod", inner, Const(value)) if value > 0 and value % divisor == 0:
                return self.floor_remainder(inner, divisor)
        return Binary("floormod", x, constant(divisor, dtype), dtype)

    def _split_remainder(self, form: Linear, divisor: int, dtype: DType) -> Expr | None:
        low, high = self._range(form)
        if low >= 0 and high < divisor:
            return self._built(form, dtype)
        if low // divisor == high // divisor and self._in_range(form, dtype):
            return self._built(form.shifted(-(low // divisor) * divisor), dtype)
        for unit, high_part, low_part in self._carry_free_splits(form, divisor):
            if unit == divisor:
                return self._built(low_part, dtype)
            if not (is_power_of_two(divisor) or self._in_range(high_part, dtype)):
                continue
            inner = self.floor_remainder(self._built(high_part, dtype), divisor // unit)
            return self._built(self.form(inner).times(unit).plus(low_part), dtype)
        return None

    def _divide_by_symbol(self, x: Expr, divisor: Expr) -> tuple[Expr, Expr] | None:
        """Quotient and remainder of n·a + b by a symbolic n, where 0 ≤ b < n is proven."""
        form, own = self.form(x), self.table.key(divisor)
        if not self._in_range(form, x.dtype):
            return None
        quotient, rest = Linear({}, 0), Linear({}, form.constant)
        for atom, coefficient in form.terms.items():
            e = self.table.expressions[atom]
            if atom == own:
                quotient = quotient.shifted(coefficient)
            elif isinstance(e, Binary) and e.operator == "mul" and own in map(self.table.key, (e.left, e.right)):
                if not self.analyzer.fits_product(e):
                    return None
                other = e.right if self.table.key(e.left) == own else e.left
                quotient = quotient.plus(self.form(other), coefficient)
            else:
                rest = rest.plus(Linear({atom: coefficient}, 0))
        remainder = self._built(rest, x.dtype)
        inside = LogicalAnd(
            Compare("ge", remainder, constant(0, x.dtype), bool_), Compare("lt", remainder, divisor, bool_)
        )
        if not self._in_range(rest, x.dtype) or not self.analyzer.prove(inside):
            return None
        return self._built(quotient.modulo(x.dtype.bits), x.dtype), remainder

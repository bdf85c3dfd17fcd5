"""Linear forms ``Σ coefficient·atom + constant`` over integers, the normal form of index arithmetic.

Atoms are expressions that are no sums themselves, known here by the small integer key under which an
:class:`~ptxtile.ir.expression_table.ExpressionTable` holds them: equal keys mean equal expressions.
"""

from __future__ import annotations

from math import gcd


class Linear:
    """``terms``: atom key → coefficient, never 0. Treated as immutable."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: dict[int, int], constant: int) -> None:
        self.terms = terms
        self.constant = constant

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """``self + factor * other``."""
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = terms.get(atom, 0) + factor * coefficient
            if total:
                terms[atom] = total
            else:
                del terms[atom]
        return Linear(terms, self.constant + factor * other.constant)

    def times(self, factor: int) -> Linear:
        if factor == 0:
            return Linear({}, 0)
        return Linear({atom: c * factor for atom, c in self.terms.items()}, self.constant * factor)

    def shifted(self, offset: int) -> Linear:
        return Linear(self.terms, self.constant + offset)

    def divided(self, divisor: int) -> Linear:
        """Every coefficient and the constant divided by a number that divides them all."""
        return Linear({atom: c // divisor for atom, c in self.terms.items()}, self.constant // divisor)

    def modulo(self, bits: int) -> Linear:
        """Coefficients and constant reduced modulo 2**bits to the numbers nearest zero: the same after wrapping."""
        half, whole = 1 << (bits - 1), 1 << bits
        if -half <= self.constant < half and all(-half <= c < half for c in self.terms.values()):
            return self
        terms = {atom: (c + half) % whole - half for atom, c in self.terms.items()}
        return Linear({a: c for a, c in terms.items() if c}, (self.constant + half) % whole - half)

    @property
    def content(self) -> int:
        """Greatest common divisor of the coefficients; 0 without terms."""
        return gcd(*self.terms.values())

    @property
    def shape(self) -> frozenset[tuple[int, int]]:
        """The terms without the constant, hashable."""
        return frozenset(self.terms.items())

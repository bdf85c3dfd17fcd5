"""Linear forms of integer expressions: a constant plus integer multiples of atoms, enough to subtract two indices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ptxtile.ir.expressions import Binary, Cast, Const, Expr, Unary, Var


@dataclass(frozen=True)
class Linear:
    """``constant + Σ coefficient · atom``; atoms are variables or expressions that are not linear."""

    constant: int = 0
    terms: dict[Expr, int] = field(default_factory=dict)

    def __add__(self, other: Linear) -> Linear:
        terms = dict(self.terms)
        for atom, coefficient in other.terms.items():
            total = terms.get(atom, 0) + coefficient
            if total:
                terms[atom] = total
            else:
                terms.pop(atom, None)
        return Linear(self.constant + other.constant, terms)

    def scaled(self, factor: int) -> Linear:
        if factor == 0:
            return Linear()
        return Linear(self.constant * factor, {atom: c * factor for atom, c in self.terms.items()})

    def __sub__(self, other: Linear) -> Linear:
        return self + other.scaled(-1)

    @property
    def is_constant(self) -> bool:
        return not self.terms


def linear(expr: Expr | int, definitions: Mapping[str, Expr]) -> Linear:
    """The linear form of ``expr``; variables that ``definitions`` has are replaced by what they stand for."""
    if isinstance(expr, int):
        return Linear(expr)
    if isinstance(expr, Const):
        return Linear(expr.value) if isinstance(expr.value, int) else Linear(0, {expr: 1})
    if isinstance(expr, Var):
        definition = definitions.get(expr.name)
        return Linear(0, {expr: 1}) if definition is None else linear(definition, definitions)
    if isinstance(expr, Cast) and _keeps_value(expr):
        return linear(expr.operand, definitions)
    if isinstance(expr, Unary) and expr.operator == "neg":
        return linear(expr.operand, definitions).scaled(-1)
    if isinstance(expr, Binary) and expr.dtype.is_integer:
        left, right = linear(expr.left, definitions), linear(expr.right, definitions)
        if expr.operator == "add":
            return left + right
        if expr.operator == "sub":
            return left - right
        if expr.operator == "mul" and right.is_constant:
            return left.scaled(right.constant)
        if expr.operator == "mul" and left.is_constant:
            return right.scaled(left.constant)
    return Linear(0, {expr: 1})


def _keeps_value(expr: Cast) -> bool:
    """Whether a cast is from an integer to one at least as wide."""
    source, target = expr.operand.dtype, expr.dtype
    return source.is_integer and target.is_integer and target.bits >= source.bits

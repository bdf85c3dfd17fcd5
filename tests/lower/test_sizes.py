"""Host-side sizes against the IR expressions that they come from, evaluated independently."""

from __future__ import annotations

import operator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ptxtile.errors import LoweringError
from ptxtile.ir.expressions import Binary, Cast, Const, Expr, Var, as_expr, call, cast, constant, unary
from ptxtile.ir.types import bool_, int32, int64
from ptxtile.launch_record import SizeOperation, Symbol, evaluate_size
from ptxtile.lower.sizes import as_size

M, N, WIDE = Var("M", int32), Var("N", int32), Var("wide", int64)


@pytest.mark.parametrize(
    ("value", "size"),
    [
        (7, 7),
        (constant(7), 7),
        (constant(2**40, int64), 2**40),
        (constant(-3), -3),
        (M, Symbol("M")),
        (cast(M, int64), Symbol("M")),
        (M * 4, SizeOperation("mul", Symbol("M"), 4)),
        ((M + 63) // 64, SizeOperation("floordiv", SizeOperation("add", Symbol("M"), 63), 64)),
        (M % 8, SizeOperation("mod", Symbol("M"), 8)),
        (Binary("truncdiv", M, N, int32), SizeOperation("floordiv", Symbol("M"), Symbol("N"))),
        (Binary("truncmod", M, N, int32), SizeOperation("mod", Symbol("M"), Symbol("N"))),
        (-M, SizeOperation("sub", 0, Symbol("M"))),
        (Binary("max", M, N, int32), SizeOperation("max", Symbol("M"), Symbol("N"))),
        (constant(3) + 4, 7),
        ((constant(64) + 63) // 64 * constant(2), 2),
        (M + (constant(3) - 5), SizeOperation("add", Symbol("M"), -2)),
        (-constant(5), -5),
    ],
)
def test_rules(value: int | Expr, size: object):
    assert as_size(value) == size


@pytest.mark.parametrize(
    "value",
    [M & 3, M << 2, M.lt(3), call("f", M), unary("abs", M), Cast(M.lt(3), int32), M + (N ^ 1)],
)
def test_what_the_host_cannot_compute_is_an_error(value: Expr):
    with pytest.raises(LoweringError, match="integer arithmetic"):
        as_size(value)


def test_a_bool_counts_as_a_number():
    assert as_size(Const(True, bool_)) == 1
    assert type(as_size(Const(True, bool_))) is int


PYTHON = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "floordiv": operator.floordiv,
    "floormod": operator.mod, "min": min, "max": max,
}  # fmt: skip


@st.composite
def sizes(draw, depth: int = 3) -> tuple[Expr, int]:
    """An expression over M = 12 and N = 5 and its value by Python's own arithmetic."""
    if depth == 0 or draw(st.booleans()):
        leaf = draw(st.sampled_from([(M, 12), (N, 5)]) | st.integers(1, 100).map(lambda n: (as_expr(n), n)))
        return leaf
    name = draw(st.sampled_from(sorted(PYTHON)))
    (left, a), (right, b) = draw(sizes(depth - 1)), draw(sizes(depth - 1))
    assume(b != 0 or name not in ("floordiv", "floormod"))
    return Binary(name, left, right, int32), PYTHON[name](a, b)


@given(sizes())
def test_a_size_has_the_value_of_its_expression(pair: tuple[Expr, int]):
    expression, value = pair
    assert evaluate_size(as_size(expression), {"M": 12, "N": 5}) == value

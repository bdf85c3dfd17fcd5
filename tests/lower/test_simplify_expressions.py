"""Simplified expressions have the same value, wrap-around included, and the forms that later passes look for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.expressions import (
    Binary,
    Cast,
    Const,
    Expr,
    Select,
    Var,
    binary,
    cast,
    constant,
    logical_and,
    logical_not,
    logical_or,
    select,
    unary,
)
from ptxtile.ir.printer import print_node
from ptxtile.ir.simplify_expression import simplify_expression
from ptxtile.ir.types import bfloat16, bool_, float16, float32, float64, int8, int32, int64, uint32
from tests.lower.integer_expressions import Space, Unspecified, evaluate
from tests.lower.test_analysis import samples

seeds = st.integers(0, 2**63)


@settings(max_examples=600)
@given(seed=seeds, depth=st.integers(1, 4), conditional=st.booleans())
def test_the_value_stays_the_same(seed, depth, conditional):
    space, analyzer = Space.random(seed), Analyzer()
    space.bind(analyzer)
    assignments = samples(space, analyzer)
    e = space.condition(depth) if conditional else space.integer(depth, space.rng.choice([int32, int32, int64, uint32]))
    simple = simplify_expression(e, analyzer)
    assert simple.dtype == e.dtype
    assert simplify_expression(simple, analyzer) == simple
    for values in assignments:
        try:
            expected = evaluate(e, values)
        except Unspecified:
            continue
        assert evaluate(simple, values) == expected


x, y, n, by, i, t, v = (Var(name, int32) for name in ("x", "y", "n", "by", "i", "t", "v"))
flag, f = Var("flag", bool_), Var("f", float32)


@pytest.fixture
def analyzer() -> Analyzer:
    result = Analyzer()
    result.bind(by, 0, 15)
    result.bind(i, 0, 63)
    result.bind(t, 0, 127)
    result.bind(v, 0, 3)
    result.bind(n, 64, 4096)
    return result


offset = (t * 4 + v) * 4
CASES: list[tuple[Expr, str]] = [
    # sums
    (i + by * 64 + 1 + i, "by * 64 + i * 2 + 1"),
    (x - x + 3, "3"),
    ((x + 2) * 4 - x * 3, "x + 8"),
    (3 - x - 4, "-x - 1"),
    (5 - i, "5 - i"),
    ((x << 3) + x, "x * 9"),
    (x * 0, "0"),
    ((x * 4) * y, "x * y * 4"),
    # what layouts do to an index
    ((by * 64 + i) // 64, "by"),
    ((by * 64 + i) % 64, "i"),
    ((t * 4 + v) // 64, "t // 16"),
    ((t * 4 + v) % 64, "t % 16 * 4 + v"),
    ((t * 4 + v) // 64 * 64 + (t * 4 + v) % 64, "t * 4 + v"),
    ((t * 4 + v) // 2, "t * 2 + v // 2"),
    (t * 4 - (t * 4) // 16 * 16, "t % 4 * 4"),
    ((offset ^ ((offset >> 3) & 112)) // 4, "t * 4 + v ^ t // 2 & 28"),
    ((by * n + i) // n, "by"),
    ((by * n + i) % n, "i"),
    (x // 4 // 8, "x // 32"),
    ((x % 32) // 8, "x // 8 % 4"),
    (x % 32 % 8, "x % 8"),
    (x >> 3, "x // 8"),
    (x & 7, "x % 8"),
    (binary("truncdiv", t, 32), "t // 32"),
    (binary("truncmod", t, 32), "t % 32"),
    (t % 128, "t"),
    (t // 128, "0"),
    ((t * 2 + 128) % 64, "t % 32 * 2"),
    # nothing is assumed about what may wrap
    ((x + 4) // 4, "(x + 4) // 4"),
    ((x * 4) // 4, "x * 4 // 4"),
    ((x * 4) % 8, "x % 2 * 4"),  # modulo a power of two, wrapping does not matter
    ((x * 3) % 3, "x * 3 % 3"),
    (binary("truncdiv", x, 4), "truncdiv(x, 4)"),
    (x.lt(x + 1), "x < x + 1"),
    # comparisons
    ((by * 64 + i).lt(1024), "True"),
    ((by * 64 + i).lt(1000), "by * 64 + i < 1000"),
    ((t * 4).lt(64), "t < 16"),
    ((t * 4).le(66), "t <= 16"),
    ((t * 4).gt(66), "t > 16"),
    ((t * 4).ge(66), "t >= 17"),
    ((t * 4 + 2).eq(8), "False"),
    ((t + 3).lt(10), "t < 7"),
    ((by * 64 + i).lt(by * 64 + 7), "i < 7"),
    (binary("min", by, 20), "by"),
    (binary("max", by * 64, -1), "by * 64"),
    # conditions
    (logical_not(x.lt(y)), "x >= y"),
    (logical_not(f.lt(1.0)), "not f < float32(1.0)"),  # not f >= 1: NaN
    (logical_and(i.lt(64), x.lt(y)), "x < y"),
    (logical_and(x.lt(5), x.lt(10)), "x < 5"),
    (logical_or(x.lt(5), x.ge(5)), "True"),
    (logical_and(x.ge(0), logical_and(x.lt(8), (x * 8).lt(64))), "x >= 0 and x < 8"),
    (select(x.lt(4), x, x), "x"),
    (select(flag, constant(True, bool_), constant(False, bool_)), "flag"),
    (select(i.lt(64), x, y), "x"),
    # conversions
    (cast(cast(x, int64), int32), "x"),
    (Cast(Cast(x, int8), int64), "cast(cast(x, int8), int64)"),
    (Cast(Cast(v, int8), int64), "cast(v, int64)"),
    (Cast(constant(3), float32), "float32(3.0)"),
    (Cast(constant(2**24 + 1), float32), "cast(16777217, float32)"),  # would round
    (Cast(Const(0.1, float32), float16), "cast(float32(0.1), float16)"),
    (Cast(Const(0.5, float64), bfloat16), "bfloat16(0.5)"),
    # floating point is left alone
    (f + 0.0, "f + float32(0.0)"),
    (f * 1.0, "f * float32(1.0)"),
    (f - f, "f - f"),
    (unary("neg", Const(0.0, float32)), "float32(-0.0)"),
]


@pytest.mark.parametrize(("e", "expected"), CASES, ids=[print_node(e) for e, _ in CASES])
def test_forms(analyzer, e, expected):
    assert print_node(simplify_expression(e, analyzer)) == expected


def test_unchanged_is_the_same_object(analyzer):
    e = select(x.lt(y), by * 64 + i, t % 16 * 4 + v)
    assert simplify_expression(e, analyzer) is e


def test_constants_wrap():
    top = constant(2**31 - 1)
    assert simplify_expression(top + 1) == constant(-(2**31))
    assert simplify_expression(constant(200, uint32) - 201) == constant(2**32 - 1, uint32)
    assert simplify_expression(binary("truncdiv", constant(-7), constant(2))) == constant(-3)
    assert simplify_expression(constant(-7) // 2) == constant(-4)
    assert simplify_expression(constant(-7) % 4) == constant(1)
    assert simplify_expression(binary("truncmod", constant(-7), constant(4))) == constant(-3)
    assert simplify_expression(constant(1) << 40) == constant(0)
    assert simplify_expression(constant(-1) >> 40) == constant(-1)
    by_zero = constant(1) // 0
    assert simplify_expression(by_zero) is by_zero  # unspecified: not ours to choose


def test_the_side_that_is_not_taken_is_simplified_under_the_negation(analyzer):
    e = select(x.lt(16), x // 16, binary("max", x, 3))
    simple = simplify_expression(e, analyzer)
    assert isinstance(simple, Select)
    assert simple.if_false == x
    assert simple.if_true == Binary("floordiv", x, constant(16), int32)  # x may be negative there

"""The analyzer against brute force: what it says of an expression holds for every assignment that the facts allow."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.expressions import Binary, Var, cast, constant, load, logical_and, logical_or
from ptxtile.ir.program import Fact
from ptxtile.ir.types import float32, int32, int64, uint8
from tests.lower.integer_expressions import Space, Unspecified, evaluate

seeds = st.integers(0, 2**63)


def holds(condition, values) -> bool:
    try:
        return bool(evaluate(condition, values))
    except Unspecified:
        return False


def samples(space: Space, analyzer: Analyzer, count: int = 40) -> list[dict[str, int]]:
    """Assignments within the bounds; half of the time under a random assumption, which the analyzer is told."""
    assignments = [space.assignment() for _ in range(count)]
    if space.rng.random() < 0.5:
        return assignments
    assumed = space.condition(2)
    possible = [values for values in assignments if holds(assumed, values)]
    if possible:
        analyzer.assume(assumed)
    return possible


def bounds(e, analyzer: Analyzer) -> tuple[int, int]:
    lower, upper = analyzer.interval(e)
    assert lower is not None
    assert upper is not None
    return lower, upper


def check(e, space: Space, analyzer: Analyzer, assignments) -> None:
    lower, upper = bounds(e, analyzer)
    modulus, remainder = analyzer.congruence(e)
    proven = analyzer.prove(e) if e.dtype.is_bool else None
    for values in assignments:
        try:
            value = evaluate(e, values)
        except Unspecified:
            continue
        assert lower <= value <= upper
        assert value == remainder if modulus == 0 else (value - remainder) % modulus == 0
        assert proven is None or proven == bool(value)


@settings(max_examples=400)
@given(seed=seeds, depth=st.integers(1, 4))
def test_what_is_said_about_integers_holds(seed, depth):
    space, analyzer = Space.random(seed), Analyzer()
    space.bind(analyzer)
    assignments = samples(space, analyzer)
    for dtype in (int32, int64):
        check(space.integer(depth, dtype), space, analyzer, assignments)


@settings(max_examples=400)
@given(seed=seeds, depth=st.integers(1, 3))
def test_proofs_hold(seed, depth):
    space, analyzer = Space.random(seed), Analyzer()
    space.bind(analyzer)
    check(space.condition(depth), space, analyzer, samples(space, analyzer))


@settings(max_examples=200)
@given(seed=seeds)
def test_bound_values_are_seen_through(seed):
    space, analyzer = Space.random(seed), Analyzer()
    space.bind(analyzer)
    definition = space.integer(2)
    named = Var("named", int32)
    analyzer.bind_value(named, definition)
    e = Binary("add", Binary("mul", named, constant(4), int32), space.integer(2), int32)
    lower, upper = bounds(e, analyzer)
    modulus, remainder = analyzer.congruence(e)
    assert analyzer.prove(named.eq(definition)) is True
    for _ in range(20):
        values = space.assignment()
        try:
            values["named"] = evaluate(definition, values)
            value = evaluate(e, values)
        except Unspecified:
            continue
        assert lower <= value <= upper
        assert value == remainder if modulus == 0 else (value - remainder) % modulus == 0


x, y, n, by, i, t, v = (Var(name, int32) for name in ("x", "y", "n", "by", "i", "t", "v"))


@pytest.fixture
def analyzer() -> Analyzer:
    result = Analyzer()
    result.bind(by, 0, 15)
    result.bind(i, 0, 63)
    result.bind(t, 0, 127)
    result.bind(v, 0, 3)
    return result


def test_ranges_near_the_end_of_the_dtype(analyzer):
    analyzer.bind(x, 2**31 - 8, 2**31 - 1)
    assert analyzer.interval(x - 1) == (2**31 - 9, 2**31 - 2)
    assert analyzer.interval(x + 1) == (-(2**31), 2**31 - 1)  # may wrap
    assert analyzer.interval(x + 1 - 1) == (2**31 - 8, 2**31 - 1)  # wraps there and back
    assert analyzer.prove(x.lt(x + 1)) is None  # false for the largest value
    assert analyzer.prove((x - 1).lt(x)) is True
    assert analyzer.interval(cast(x, int64) + 1) == (2**31 - 7, 2**31)
    assert analyzer.interval(cast(x + 1, int64)) == (-(2**31), 2**31 - 1)
    assert analyzer.prove((y + 1).gt(y)) is None
    assert analyzer.prove((y + 1).eq(y - 1 + 2)) is True  # holds modulo 2**32
    assert analyzer.prove((y + 1).eq(y)) is False


def test_congruences(analyzer):
    analyzer.bind(x, 0, 2**31 - 1, 16)
    assert analyzer.divisible(x * 3 + by * 64, 16)
    assert not analyzer.divisible(x + i, 2)
    assert analyzer.congruence(x * 4 + 7) == (64, 7)
    assert analyzer.divisible((x * 4) ^ (((x * 4) >> 3) & 112), 16)
    assert analyzer.divisible(x // 4, 4)
    assert analyzer.congruence((x + 5) % 16) == (0, 5)
    assert analyzer.prove((x + 1).eq(by * 8)) is False
    analyzer.bind(y, None, None, 3)
    assert analyzer.congruence(y * 2) == (2, 0)  # 3 is lost when y * 2 wraps, 2 is not


def test_facts_of_a_variant():
    analyzer = Analyzer((Fact(n, 1, 4096, 64),))
    assert analyzer.interval(n) == (1, 4096)
    assert analyzer.divisible(n, 64)
    assert analyzer.divisible(n * 3, 192)


def test_a_guard_over_a_symbolic_size():
    """Blocks of 64 rows cover n rows: the first row of a block is inside; all are when 64 divides n."""
    analyzer = Analyzer((Fact(n, 1, 2**31 - 64),))
    analyzer.bind(i, 0, 63)
    analyzer.bind(by, 0, 2**31 - 2)
    analyzer.assume(by.lt((n + 63) // 64))
    assert analyzer.prove((by * 64).lt(n)) is True
    assert analyzer.prove((by * 64 + i).lt(n)) is None
    with analyzer.scope():
        analyzer.assume((by * 64 + 63).lt(n))
        assert analyzer.prove((by * 64 + i).lt(n)) is True
    assert analyzer.prove((by * 64 + i).lt(n)) is None

    divisible = Analyzer((Fact(n, 64, 2**31 - 64, 64),))
    divisible.bind(i, 0, 63)
    divisible.bind(by, 0, 2**31 - 2)
    divisible.assume(by.lt((n + 63) // 64))
    assert divisible.prove((by * 64 + i).lt(n)) is True


def test_without_an_upper_bound_nothing_is_proven_that_could_wrap():
    analyzer = Analyzer((Fact(n, 1),))
    analyzer.bind(by, 0, 2**31 - 2)
    analyzer.assume(by.lt((n + 63) // 64))
    assert analyzer.prove((by * 64).lt(n)) is None


def test_assumptions_end_with_their_scope(analyzer):
    with analyzer.scope():
        analyzer.assume(logical_and(x.ge(0), x.lt(by)))
        assert analyzer.interval(x) == (0, 14)
        assert analyzer.prove(x.lt(15)) is True
        assert analyzer.prove(by.gt(0)) is True
        assert analyzer.prove(x.ge(by)) is False
    assert analyzer.prove(x.lt(15)) is None
    with analyzer.scope():
        analyzer.assume(logical_or(x.ge(0), y.ge(0)), False)
        assert analyzer.prove((x).lt(0)) is True
        assert analyzer.interval(y) == (-(2**31), -1)


def test_conditions_on_memory_are_not_remembered(analyzer):
    counter = load(allocate("counter", Scope.LOCAL, int32, ()), ())
    analyzer.assume(counter.lt(5))
    assert analyzer.prove(counter.lt(5)) is None


def test_a_rebound_variable_loses_what_was_concluded(analyzer):
    analyzer.assume(x.lt(by))
    assert analyzer.prove(x.lt(16)) is True
    analyzer.bind(x, 0, 100)
    assert analyzer.prove(x.lt(16)) is None
    assert analyzer.interval(x * 2) == (0, 200)


@pytest.mark.parametrize(("start", "stop", "step"), [(0, 10, 3), (1, 20, 4), (10, 0, -3), (7, -8, -4), (0, 1, 5)])
def test_loops(start, stop, step):
    analyzer = Analyzer()
    analyzer.bind_loop(x, start, stop, step)
    expected = range(start, stop, step)
    assert analyzer.interval(x) == (min(expected), max(expected))
    modulus, remainder = analyzer.congruence(x)
    assert all((value - remainder) % modulus == 0 if modulus else value == remainder for value in expected)
    assert modulus in (0, abs(step))


def test_a_loop_to_a_symbol():
    analyzer = Analyzer((Fact(n, 0, 1000),))
    analyzer.bind_loop(x, 0, n, 4)
    assert analyzer.interval(x) == (0, 996)
    assert analyzer.prove(x.lt(n)) is True
    assert analyzer.divisible(x, 4)


def test_coefficients(analyzer):
    row = Var("row", int32)
    analyzer.bind_value(row, by * 64 + i)
    index = row * 3 + t // 4
    assert analyzer.coefficient(index, by) == 192
    assert analyzer.coefficient(index, i) == 3
    assert analyzer.coefficient(index, t) is None
    assert analyzer.coefficient(index, x) == 0
    assert analyzer.coefficient(row // 64, by) == 1  # the simplifier takes by out of the quotient
    assert analyzer.coefficient(row // 4, i) is None
    assert analyzer.coefficient(cast(by * 64 + i, int64) * 8, i) == 8
    assert analyzer.coefficient(cast(x * 64, int64), x) is None  # x * 64 may wrap before it is widened
    assert analyzer.coefficient(x * y, x) is None
    assert analyzer.coefficient((t * 4 + v) % 64, v) == 1
    terms, rest = analyzer.linear_form(row * 2 - by + 5)
    assert (terms, rest) == ({by: 127, i: 2}, 5)


def test_floats_and_narrow_loads(analyzer):
    assert analyzer.interval(Var("f", float32)) == (None, None)
    byte = load(allocate("bytes", Scope.GLOBAL, uint8, (8,)), (x,))
    assert analyzer.interval(cast(byte, int32) * 2) == (0, 510)
    assert analyzer.prove(Var("f", float32).eq(Var("f", float32))) is None  # not for NaN


@settings(max_examples=100)
@given(seed=seeds)
def test_facts_may_wait_for_a_question(seed):
    """Worked out at once or before the next question, in whatever scopes: the answers are the same."""
    space = Space.random(seed)
    rng, waiting, at_once = space.rng, Analyzer(), Analyzer()
    for analyzer in (waiting, at_once):
        space.bind(analyzer)
    opened: list[tuple] = []

    def tell(method: str, *arguments) -> None:
        getattr(waiting, method)(*arguments)
        getattr(at_once, method)(*arguments)
        at_once.settle()

    for step in range(30):
        action = rng.choice(("open", "open", "close", "assume", "value", "loop", "ask"))
        if action == "open":
            opened.append((waiting.scope(), at_once.scope()))
            for scope in opened[-1]:
                scope.__enter__()
        elif action == "close" and opened:
            for scope in opened.pop():
                scope.__exit__()
        elif action == "assume":
            tell("assume", space.condition(2), rng.random() < 0.7)
        elif action == "value":
            tell("bind_value", Var(f"let{step % 4}", int32), space.integer(2, int32))
        elif action == "loop":
            tell("bind_loop", Var(f"loop{step % 3}", int32), rng.randrange(-4, 4), space.integer(1, int32), 2)
        else:
            asked, condition = space.integer(2, int32) + Var(f"let{rng.randrange(4)}", int32), space.condition(2)
            for question in ("interval", "congruence", "linear_form", "fits"):
                assert getattr(waiting, question)(asked) == getattr(at_once, question)(asked)
            assert waiting.prove(condition) == at_once.prove(condition)

"""What the CTAs of a cluster have in common: found where it holds, and never claimed where it does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import (
    Binary,
    Compare,
    Const,
    Expr,
    Load,
    LogicalAnd,
    Select,
    Var,
    as_expr,
    compare,
    constant,
    load,
    select,
)
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Allocate, Break, For, If, Let, LoopKind, Statement, Store, While, seq
from ptxtile.ir.tile_ops import Copy, Fill
from ptxtile.ir.types import float32, int32
from ptxtile.lower.rank_dependence import RankDependence
from tests.lower.race_referee import BINARY, COMPARE
from tests.lower.tile_programs import BX, BY, THREAD, program, tensor, tile_of, whole

GRID, ROUNDS = 8, 6
K = Var("k", int32)
X, TABLE = tensor("X", 1 << 20, 64), tensor("table", 64, dtype=int32)
TILE = allocate("tile", Scope.SHARED, float32, (16, 64))


def copy_at(row: Expr) -> Copy:
    return Copy(tile_of(X, (row, as_expr(0)), (16, 64)), whole(TILE))


def with_clusters(body: Statement, cluster: tuple[int, int, int], grid=(GRID, GRID, 1)) -> Program:
    made = program(seq(Allocate(TILE), body), [X, TABLE], [], grid)
    return replace(made, kernels=(replace(made.kernels[0], cluster=cluster),))


def rounds(*statements: Statement) -> For:
    return For(K, constant(0), constant(ROUNDS), 1, LoopKind.SERIAL, seq(*statements))


def is_same(body: Statement, axis: int = 0, cluster: tuple[int, int, int] = (2, 1, 1)) -> bool:
    """Whether the only load of ``body`` is the same in all CTAs, and so is the control flow around it."""
    made = with_clusters(body, cluster)
    dependence = RankDependence(made, made.kernels[0], axis)
    (copy,) = (n for n in walk(body) if isinstance(n, Copy) and n.destination.buffer is TILE)
    around = [n for n in walk(body) if isinstance(n, (For, While, If)) and any(i is copy for i in walk(n))]
    return all(dependence.is_same(node) for node in (*around, copy))


T, M = Var("t", int32), Var("m", int32)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (copy_at(BX * 16), False),
        (copy_at(BY * 16), True),
        (copy_at(constant(5)), True),
        (copy_at(BX // 2 * 16), True),
        (copy_at(BX // 3 * 16), False),
        (copy_at(BX % 2 * 16), False),
        (copy_at((BX - BX % 2) * 16), True),
        (copy_at(load(TABLE, (BX // 2,))), True),
        (copy_at(load(TABLE, (BX,))), False),
        (seq(Let(T, BX + 1), copy_at(T * 16)), False),
        (seq(Let(T, BX * 2), Let(M, T // 4), copy_at(M * 16)), True),
        # a persistent loop by hand: the tile's number, its column and its row
        (rounds(Let(T, K * 8 + BX), copy_at(T // 4 * 16)), True),
        (rounds(Let(T, K * 8 + BX), copy_at(T % 4 * 16)), False),
        (rounds(Let(T, K * 8 + BX), copy_at(T // 5 * 16)), False),
        (rounds(Let(T, K * 8 + BX), If(T.lt(36), copy_at(T // 4 * 16))), True),
        (rounds(Let(T, K * 8 + BX), If(T.lt(35), copy_at(T // 4 * 16))), False),
        (rounds(Let(T, K * 8 + BX), If(LogicalAnd(T.ge(8), constant(36).gt(T)), copy_at(constant(0)))), True),
        (rounds(If(BX.eq(1), copy_at(constant(0)))), False),
        (For(K, constant(0), BX // 2, 1, LoopKind.SERIAL, copy_at(K * 16)), True),
        (For(K, constant(0), BX, 1, LoopKind.SERIAL, copy_at(constant(0))), False),
        (rounds(copy_at(K * 16), If(BX.lt(K), Break())), False),
        (rounds(copy_at(K * 16), If((BX // 2).lt(K), Break())), True),
        # a loop inside that CTAs leave at different times does not matter
        (rounds(copy_at(K * 16), For(M, constant(0), constant(4), 1, LoopKind.SERIAL, If(BX.lt(M), Break()))), True),
    ],
)
def test_known_cases(body, expected):
    assert is_same(body) == expected


def test_axes_are_independent():
    for axis, expected in ((0, False), (1, True)):
        assert is_same(copy_at(BX * 16), axis, (2, 2, 1)) == expected
        assert is_same(copy_at(BY * 16), axis, (2, 2, 1)) != expected


COUNT = allocate("count", Scope.LOCAL, int32, ())


def counting(step: Expr, where: Expr | None = None) -> Statement:
    add: Statement = Store(COUNT, (), Load(COUNT, (), int32) + step)
    return rounds(add if where is None else If(where, add), copy_at(Load(COUNT, (), int32) * 16))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (counting(constant(1)), True),
        (counting(BY), True),
        (counting(BX), False),
        (counting(BX // 2), True),
        (counting(constant(1), BX.lt(3)), False),
        (counting(constant(1), BX.lt(4)), True),
        # what is added and taken away again at another time does not cancel
        (rounds(Let(T, Load(COUNT, (), int32)), Store(COUNT, (), T + BX), copy_at(Load(COUNT, (), int32) - T)), False),
        (While(Load(COUNT, (), int32).lt(BX), seq(Store(COUNT, (), Load(COUNT, (), int32) + 1), copy_at(BY))), False),
        (While(Load(COUNT, (), int32).lt(9), seq(Store(COUNT, (), Load(COUNT, (), int32) + 1), copy_at(BY))), True),
        (rounds(If(BX.lt(3), Store(COUNT, (), constant(0)), Store(COUNT, (), constant(1))),
                copy_at(Load(COUNT, (), int32))), False),
    ],
)  # fmt: skip
def test_scalars_that_change(body, expected):
    assert is_same(seq(Allocate(COUNT), Store(COUNT, (), constant(0)), body)) == expected


ROWS = allocate("rows", Scope.LOCAL, int32, (4,))
HELD = allocate("held", Scope.FRAGMENT, int32, (4,))
OTHER = allocate("other", Scope.LOCAL, int32, (4,))
SHARED = allocate("shared", Scope.SHARED, int32, (4,))


def from_table(row: Expr, buffer: Buffer) -> Copy:
    return Copy(tile_of(TABLE, (row * 4,), (4,)), whole(buffer))


@pytest.mark.parametrize("buffer", [ROWS, HELD])
@pytest.mark.parametrize(
    ("fill", "expected"),
    [
        (lambda b: Fill(whole(b), BY), True),
        (lambda b: Fill(whole(b), BX), False),
        (lambda b: Fill(whole(b), BX // 2), True),
        (lambda b: from_table(BY, b), True),
        (lambda b: from_table(BX, b), False),
        (lambda b: If(BX.lt(3), from_table(BY, b)), False),
        (lambda b: seq(Fill(whole(OTHER), BX), Copy(whole(OTHER), whole(b))), False),
        (lambda b: seq(Fill(whole(OTHER), BY), Copy(whole(OTHER), whole(b))), True),
        (lambda b: Copy(whole(SHARED), whole(b)), False),  # what is in shared memory is not followed
    ],
)
def test_tables_that_are_filled(buffer, fill, expected):
    load_at = copy_at(Load(buffer, (K % 4,), int32) * 16)
    allocations = (Allocate(b) for b in (ROWS, HELD, OTHER, SHARED))
    assert is_same(seq(*allocations, Fill(whole(buffer), constant(0)), fill(buffer), rounds(load_at))) == expected


# -- any expression ----------------------------------------
def expressions(depth: int = 4) -> st.SearchStrategy[Expr]:
    leaves = st.one_of(st.sampled_from([BX, BX, BY, K]), st.integers(0, 9).map(constant))

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        factor, divisor = st.sampled_from([1, 2, 3, 4, 8, 16]), st.sampled_from([1, 2, 3, 4, 6, 8])
        return st.one_of(
            st.tuples(st.sampled_from(["add", "sub", "min", "max"]), inner, inner).map(
                lambda t: Binary(t[0], t[1], t[2], int32)
            ),
            st.tuples(inner, factor).map(lambda t: t[0] * t[1]),
            st.tuples(inner, divisor).map(lambda t: t[0] // t[1]),
            st.tuples(inner, divisor).map(lambda t: t[0] % t[1]),
            st.tuples(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), inner, inner, inner, inner).map(
                lambda t: select(compare(t[0], t[1], t[2]), t[3], t[4])
            ),
        )

    return st.recursive(leaves, grow, max_leaves=2**depth // 2)


def value(expression: Expr, values: dict[str, int]) -> int:
    match expression:
        case Const(number, _):
            return int(number)
        case Var(name, _):
            return values[name]
        case Binary(operator, left, right, _):
            return BINARY[operator](value(left, values), value(right, values))
        case Compare(operator, left, right, _):
            return COMPARE[operator](value(left, values), value(right, values))
        case Select(condition, if_true, if_false, _):
            return value(if_true if value(condition, values) else if_false, values)
    raise AssertionError(expression)


def differs(expression: Expr, size: int) -> bool:
    """Whether the CTAs of some cluster along x have different values."""
    return any(
        len({value(expression, {"bx": first + rank, "by": by, "k": k}) for rank in range(size)}) > 1
        for first in range(0, GRID, size)
        for by in (0, 3)
        for k in range(ROUNDS)
    )


@settings(max_examples=300)
@given(expressions(), expressions(3), st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), st.sampled_from([2, 4]))
def test_nothing_is_claimed_that_does_not_hold(row, bound, operator, size):
    condition = compare(operator, row, bound)
    for body in (
        rounds(copy_at(row)),
        rounds(Let(T, row), copy_at(T + bound)),
        rounds(If(condition, copy_at(constant(0)))),
    ):
        made = with_clusters(body, (size, 1, 1))
        dependence = RankDependence(made, made.kernels[0], 0)
        (copy,) = (n for n in walk(body) if isinstance(n, Copy))
        conditions = [n for n in walk(body) if isinstance(n, If)]
        if conditions:
            assert not (dependence.is_same(conditions[0]) and differs(condition, size)), condition
        else:
            used = row if not any(isinstance(n, Let) for n in walk(body)) else row + bound
            assert not (dependence.is_same(copy) and differs(used, size)), used


def test_the_thread_is_not_the_rank():
    """What differs between threads is another question (the producer is one thread)."""
    assert is_same(copy_at(THREAD * 0 + BY))

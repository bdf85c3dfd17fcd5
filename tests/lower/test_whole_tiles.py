"""Which statements surely write all of a tile, against a loop over its elements in Python."""

from __future__ import annotations

from typing import Any

import pytest

from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.expressions import Const, Expr, Load, Var, constant
from ptxtile.ir.statements import Break, For, If, Let, LoopKind, ParallelFor, Seq, Statement, Store
from ptxtile.ir.tile_ops import Copy, Fill, Region
from ptxtile.ir.types import float32, int32
from ptxtile.lower.whole_tiles import is_wholly_written

TILE = allocate("tile", Scope.SHARED, float32, (8, 6))
OTHER = allocate("other", Scope.SHARED, float32, (8, 6))
ONE = Const(1.0, float32)
I, J, K, N = (Var(name, int32) for name in "ijkn")


def store(*indices: Expr | int, tile: Any = TILE) -> Statement:
    return Store(tile, tuple(constant(i) if isinstance(i, int) else i for i in indices), ONE)


def parallel(rows: int, columns: int, *body: Statement) -> Statement:
    return ParallelFor((I, J), (rows, columns), Seq(body))


def serial(var: Var, start: int, stop: int, step: int, *body: Statement) -> Statement:
    return For(var, constant(start), constant(stop), step, LoopKind.SERIAL, Seq(body))


def region(starts: tuple[Expr | int, int], extents: tuple[int, int]) -> Region:
    row, column = starts
    return Region(TILE, (constant(row) if isinstance(row, int) else row, constant(column)), extents)


def whole_of_other() -> Region:
    return Region(OTHER, (constant(0), constant(0)), (8, 6))


WHOLE = {
    "each element": [parallel(8, 6, store(I, J))],
    "two columns at a time": [parallel(8, 3, store(I, J * 2), store(I, J * 2 + 1))],
    "swapped": [parallel(6, 8, store(J, I))],
    "two statements": [parallel(8, 4, store(I, J)), parallel(8, 2, store(I, J + 4))],
    "a serial loop outside": [serial(K, 0, 8, 2, parallel(2, 6, store(K + I, J)))],
    "a serial loop inside": [parallel(4, 6, serial(K, 1, -1, -1, store(I * 2 + K, J)))],
    "a name for an index": [parallel(8, 6, Let(K, 7 - I), store(K, J))],
    "more than the tile": [parallel(10, 6, store(I - 1, J))],
    "copy": [Copy(whole_of_other(), region((0, 0), (8, 6)))],
    "two fills": [Fill(region((0, 0), (8, 3)), ONE), Fill(region((0, 3), (8, 3)), ONE)],
}
NOT_WHOLE = {
    "nothing": [],
    "another tile": [parallel(8, 6, store(I, J, tile=OTHER))],
    "too few rows": [parallel(7, 6, store(I, J))],
    "every other column": [parallel(8, 3, store(I, J * 2))],
    "a step over rows": [serial(K, 0, 8, 3, parallel(2, 6, store(K + I, J)))],
    "a condition": [parallel(8, 6, If(I.lt(4), store(I, J)))],
    "an unknown bound": [For(K, constant(0), N, 1, LoopKind.SERIAL, parallel(8, 6, store(I, J)))],
    "an unknown index": [parallel(8, 6, store(I, (J + N) % 6))],
    "an index from memory": [parallel(8, 6, store(I, Load(OTHER, (I, J), int32)))],
    "a loop that is left": [serial(K, 0, 8, 1, parallel(1, 6, store(K, J)), If(N.lt(K), Break()))],
    "an unknown region": [Copy(whole_of_other(), region((N, 0), (8, 6)))],
    "a region beyond the end": [Fill(region((1, 0), (8, 6)), ONE)],
    "a reduction": [Copy(whole_of_other(), region((0, 0), (8, 6)), operator="add")],
}


@pytest.mark.parametrize("statements", WHOLE.values(), ids=WHOLE)
def test_all_is_written(statements):
    assert is_wholly_written(statements, TILE)


@pytest.mark.parametrize("statements", NOT_WHOLE.values(), ids=NOT_WHOLE)
def test_something_may_be_left(statements):
    assert not is_wholly_written(statements, TILE)


def test_random_loops(random_generator):
    """Affine indices under one serial and two parallel loops: whole if and only if a Python loop reaches every
    element."""
    random, seen = random_generator, set()
    for _ in range(300):
        rows, columns, turns = (int(random.integers(1, high)) for high in (9, 7, 5))
        a, b, c, d = (int(number) for number in random.integers(0, 3, 4))
        shift = int(random.integers(0, 2))
        program = [serial(K, 0, turns, 1, parallel(rows, columns, store(I * a + K * b - shift, J * c + K * d)))]
        reached = {
            (i * a + k * b - shift, j * c + k * d) for i in range(rows) for j in range(columns) for k in range(turns)
        }
        wanted = all((row, column) in reached for row in range(8) for column in range(6))
        assert is_wholly_written(program, TILE) == wanted, (rows, columns, turns, a, b, c, d, shift)
        seen.add(wanted)
    assert seen == {True, False}

"""TMA boxes that meet or not, against the elements that they cover in every iteration of a small grid."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile.ir.access import Access, accesses, kernel_context
from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.conflicts import Overlap, Relation, compare
from ptxtile.ir.expressions import Expr, Var, binary, constant
from ptxtile.ir.gpu_ops import TmaStore
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.statements import If, seq
from ptxtile.ir.types import int32
from ptxtile.launch_record import TensorMapRecord

THREAD, BY, BX, N = Var("thread", int32), Var("by", int32), Var("bx", int32), Var("n", int32)
S = allocate("S", Scope.SHARED, int32, (4096,))
T = allocate("T", Scope.GLOBAL, int32, (1 << 10, 1 << 10))
BOX = (16, 8)
"""Columns and rows."""


def store(column: Expr, row: Expr, threads: int = 256, group: int = 128) -> Access:
    """The write of one box by the first thread of each group."""
    kernel = Kernel("k", (1, 1, 1), threads, (BX, BY, Var("bz", int32)), THREAD, seq())
    record = TensorMapRecord("m", "T", "int32", (1 << 10, 1 << 10), (4 << 10,), BOX)
    program = Program("p", (TensorParameter(T),), (kernel,), symbols=(N,), tensor_maps=(record,), stage="gpu")
    issue = If(binary("floormod", THREAD, group).eq(0), TmaStore("m", (column, row), S, constant(0)))
    return next(access for access in accesses(issue, kernel_context(program, kernel)) if access.is_write)


def half(step: int) -> Expr:
    return binary("mul", binary("floordiv", THREAD, 128), step)


def plus(*terms: Expr | int) -> Expr:
    total: Expr = constant(0)
    for term in terms:
        total = binary("add", total, term if isinstance(term, Expr) else constant(term))
    return total


def times(var: Var, factor: int) -> Expr:
    return binary("mul", var, factor)


@settings(max_examples=200)
@given(
    steps=st.tuples(*[st.sampled_from([0, 4, 8, 16, 24, 32, 48, 64])] * 4),
    shift=st.tuples(st.sampled_from([0, 4, 8, 16, 32, 64]), st.sampled_from([0, 4, 8, 16, 32])),
    group=st.sampled_from([0, 1, 128]),
)
def test_what_is_said_to_be_apart_never_meets(steps, shift, group):
    """Two stores of two warpgroups each at columns bx·a + warpgroup·b and rows by·c + warpgroup·d, the second one
    shifted; blocks of one launch."""
    a, b, c, d = steps
    first = store(plus(times(BX, a), half(b)), plus(times(BY, c), half(d)))
    second = store(plus(times(BX, a), half(b), shift[0]), plus(times(BY, c), half(d), shift[1]))
    found = compare(first, second, threads_matter=group > 0, group=group or 1)

    def box(warpgroup: int, moved: tuple[int, int]) -> tuple[range, range]:
        column, row = warpgroup * b + moved[0], warpgroup * d + moved[1]
        return range(column, column + BOX[0]), range(row, row + BOX[1])

    pairs = [(one, other) for one, other in product((0, 1), repeat=2) if group == 0 or one != other]
    meet = any(
        all(set(x) & set(y) for x, y in zip(box(one, (0, 0)), box(other, shift), strict=True)) for one, other in pairs
    )
    assert (found is not Overlap.NONE) == meet


@pytest.mark.parametrize(
    ("apart", "rows", "expected"), [(64, 128, True), (64, 64, False), (8, 16, True), (4, 16, False)]
)
def test_rows_of_two_warpgroups_never_meet_wherever_their_tiles_lie(apart, rows, expected):
    """Tiles of ``rows`` rows, at a row that depends on the iteration in a way that is not known (``n % 7``)."""
    tile = binary("mul", binary("floormod", Var("k", int32), 7), rows)
    access = store(constant(0), plus(tile, half(apart)))
    access = replace(access, context=replace(access.context, uniform=access.context.uniform | {"k"}))
    later = Relation((("k", 1),))
    assert compare(access, access, later, threads_matter=False) is Overlap.POSSIBLE
    assert (compare(access, access, later, group=128) is Overlap.NONE) == expected

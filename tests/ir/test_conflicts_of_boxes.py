"""TMA boxes that meet or not, against the elements that they cover in every iteration of a small grid."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ptxtile.ir.access import Access
from ptxtile.ir.access_context import Axis, kernel_context
from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.conflicts import Overlap, Relation, compare
from ptxtile.ir.expressions import Compare, Expr, Var, binary, constant
from ptxtile.ir.gpu_ops import TmaStore
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.statement_accesses import accesses
from ptxtile.ir.statements import If, seq
from ptxtile.ir.types import bool_, int32
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


def times(var: Expr, factor: int) -> Expr:
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


# --- the tiles of a persistent kernel --------------------------------------------------------------------------------

WAVE, PART = Var("wave", int32), Var("part", int32)


def in_loops(access: Access, waves: int | Expr, ctas: int | None, tiles: int, tile: Expr, parts: int = 1) -> Access:
    """``access`` in a loop of waves and one of parts, where ``tile`` < ``tiles``; ``ctas``: blocks, None: not known."""
    stop = waves if isinstance(waves, Expr) else constant(waves)
    loops = (Axis("wave", constant(0), stop, 1), Axis("part", constant(0), constant(parts), 1))
    happens = Compare("lt", tile, constant(tiles), bool_)
    blocks = {} if ctas is None else {"bx": ctas}
    context = replace(access.context, loops=loops, outer=2, assumed=(happens,), blocks=blocks)
    return replace(access, context=context)


def tile_of(kind: str, ctas: int, waves: int) -> tuple[Expr, Callable[[int, int], int]]:
    """The number of a block's tile in a wave, as an expression and as a function of (wave, block)."""
    if kind == "strided":
        return plus(times(WAVE, ctas), BX), lambda wave, cta: wave * ctas + cta
    if kind == "blocked":
        return plus(times(BX, waves), WAVE), lambda wave, cta: cta * waves + wave
    if kind == "backwards":
        return plus(times(binary("sub", constant(waves - 1), WAVE), ctas), BX), (
            lambda wave, cta: (waves - 1 - wave) * ctas + cta
        )
    if kind == "again":  # each tile twice
        return plus(times(binary("floordiv", WAVE, 2), ctas), BX), lambda wave, cta: wave // 2 * ctas + cta
    return plus(binary("floormod", times(WAVE, 3), 5), BX), lambda wave, cta: wave * 3 % 5 + cta


def often(usual, *others):
    return st.sampled_from([usual] * 3 + list(others))


BY_LAG_AND_PART = [Relation((("wave", lag),), frozenset(out)) for lag in (1, 2) for out in ((), ("part",))]
PLAIN = {
    "kind": "strided", "ctas": 1, "waves": 3, "width": 1, "tiles": 16, "steps": (16, 8), "half_step": 0,
    "shift": (0, 0), "part_step": 0, "other_row": False, "other_condition": False, "relation": BY_LAG_AND_PART[0],
}  # fmt: skip


@settings(max_examples=300)
@given(
    kind=st.sampled_from(["strided", "blocked", "backwards", "again", "modulo"]),
    ctas=st.integers(1, 3), waves=st.integers(2, 5), width=st.integers(1, 4), tiles=st.integers(2, 16),
    steps=st.sampled_from([(16, 8), (32, 16), (16, 16), (8, 8), (16, 4), (32, 24)]), half_step=often(0, 8),
    shift=often((0, 0), (8, 0), (16, 0), (0, 8), (8, 8)), part_step=often(0, 8, 16),
    other_row=often(False, True), other_condition=often(False, True), relation=st.sampled_from(BY_LAG_AND_PART),
)  # fmt: skip
@example(**PLAIN | {"kind": "backwards", "other_row": True})
@example(**PLAIN | {"part_step": 8, "relation": BY_LAG_AND_PART[1]})
@example(**PLAIN | {"kind": "again", "tiles": 2, "other_condition": True, "relation": BY_LAG_AND_PART[2]})
@example(**PLAIN | {"steps": (8, 8), "width": 2})
@example(**PLAIN | {"kind": "backwards", "shift": (0, 8)})
def test_tiles_that_are_said_to_differ_never_meet(
    kind, ctas, waves, width, tiles, steps, half_step, shift, part_step, other_row, other_condition, relation
):
    """Two stores of the tiles ``width`` to a row, each by two warpgroups and in two parts ``part_step`` below each
    other, of which the second is ``shift`` away, or a row on, or happens in any wave: against the elements of all pairs
    of waves in each block."""
    tile, number = tile_of(kind, ctas, waves)
    column, row = binary("floormod", tile, width), binary("floordiv", tile, width)
    columns, rows = steps
    parts = 2 if part_step else 1
    below = [half(half_step), times(PART, part_step)] if part_step else [half(half_step)]
    corner = binary("mul", column, columns), plus(binary("mul", row, rows), *below)
    first = in_loops(store(*corner), waves, ctas, tiles, tile, parts)
    further = plus(binary("mul", binary("floordiv", plus(tile, width), width), rows), *below)
    moved = store(plus(corner[0], shift[0]), plus(further if other_row else corner[1], shift[1]))
    second = in_loops(moved, waves, ctas, 1 << 16 if other_condition else tiles, tile, parts)
    found = compare(first, second, relation, threads_matter=False)

    def boxes(wave: int, cta: int, is_second: bool) -> list[tuple[int, int, int]]:
        """The corners, and the part that they belong to."""
        where = number(wave, cta)
        if where >= tiles and not (is_second and other_condition):
            return []
        x, y = where % width * columns, (where // width + (is_second and other_row)) * rows
        x, y = (x + shift[0], y + shift[1]) if is_second else (x, y)
        return [
            (x, y + warpgroup * half_step + part * part_step, part) for warpgroup in (0, 1) for part in range(parts)
        ]

    meet = any(
        abs(x[0] - y[0]) < BOX[0] and abs(x[1] - y[1]) < BOX[1]
        for cta in range(ctas)
        for earlier, later in product(range(waves), repeat=2)
        if (later - earlier == 1 if relation.lags[0][1] == 1 else later > earlier)
        for x in boxes(earlier, cta, False)
        for y in boxes(later, cta, True)
        if x[2] == y[2] or relation.exited
    )
    assert not meet or found is not Overlap.NONE


def persistent_store(kind: str = "strided", waves: int | Expr = 8, ctas: int | None = 132, tiles: int = 1024) -> Access:
    """The tiles of 16 columns and 16 rows of a matrix of 32 tiles to a row, each half a warpgroup's box."""
    tile, _ = tile_of(kind, 132, 8)
    corner = binary("mul", binary("floormod", tile, 32), 16), binary("mul", binary("floordiv", tile, 32), 16)
    return in_loops(store(corner[0], plus(corner[1], half(8))), waves, ctas, tiles, tile)


@pytest.mark.parametrize(
    ("arguments", "apart"),
    [
        ({}, True),
        ({"kind": "blocked", "ctas": 128}, True),
        ({"kind": "again"}, False),
        ({"waves": N}, False),  # not known how many
        ({"ctas": None}, False),
        ({"waves": 300, "tiles": 1 << 16}, False),  # too many to try
        ({"waves": 248, "tiles": 1 << 16}, True),
    ],
)
def test_tiles_of_a_persistent_loop(arguments, apart):
    access = persistent_store(**arguments)
    for relation in (Relation((("wave", 1),)), Relation((("wave", 2),))):
        assert (compare(access, access, relation, threads_matter=False) is Overlap.NONE) == apart
    assert compare(access, access, threads_matter=False) is Overlap.POSSIBLE
    entered_again = Relation((), frozenset({"wave"}))
    assert compare(access, access, entered_again, threads_matter=False) is Overlap.POSSIBLE


def test_parts_of_a_tile_in_a_loop_of_their_own():
    """Two parts below each other: any of one wave is apart from any of a later wave."""
    tile, _ = tile_of("strided", 4, 8)
    corner = times(binary("floormod", tile, 4), 16), plus(times(binary("floordiv", tile, 4), 16), times(PART, 8))
    access = in_loops(store(*corner), 8, 4, 32, tile, parts=2)
    left = Relation((("wave", 1),), frozenset({"part"}))
    assert compare(access, access, left, threads_matter=False) is Overlap.NONE
    longer = in_loops(store(*corner), 8, 4, 32, tile, parts=4)  # of the second row of tiles, too
    assert compare(longer, longer, left, threads_matter=False) is Overlap.POSSIBLE


def test_conditions_count_that_both_accesses_have():
    """The first store happens in wave 0 only, the second one in wave 1 as well, where the tile is the same."""
    tile, _ = tile_of("again", 1, 2)
    second = in_loops(store(times(tile, 16), constant(0)), 2, 1, 9, tile)
    first = replace(second, context=replace(second.context, assumed=(WAVE.lt(1),)))
    assert compare(first, second, Relation((("wave", 1),)), threads_matter=False) is Overlap.POSSIBLE


def test_coordinates_of_different_tensor_maps_are_not_compared():
    """A view of the tensor has other rows: boxes far apart in one may be neighbours in the other."""
    first, second = store(constant(0), constant(0)), store(constant(64), constant(64))
    assert compare(first, second, threads_matter=False) is Overlap.NONE
    assert compare(first, replace(second, space="a view"), threads_matter=False) is Overlap.POSSIBLE

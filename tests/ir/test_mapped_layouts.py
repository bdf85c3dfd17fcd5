"""Layouts found from tables of offsets, and formulas: against the tables themselves."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.expressions import Var, constant, select
from ptxtile.ir.layouts import TMA_SWIZZLES, Layout, SharedLayout
from ptxtile.ir.mapped_layouts import (
    COORDINATES,
    MappedLayout,
    mapped_layout,
    offsets_of,
    structured_fragment,
    structured_layout,
    with_stages,
)
from ptxtile.ir.parser import parse_program
from ptxtile.ir.printer import print_program
from ptxtile.ir.types import float16, int32
from ptxtile.ir.verifier import verify
from tests.ir.test_verifier import tile

I, J = COORDINATES[:2]


@st.composite
def nested_layouts(draw: st.DrawFn) -> Layout:
    """Strides that enumerate the offsets of a tile in some order of digits, with gaps."""
    digits = draw(st.lists(st.integers(2, 4), min_size=1, max_size=5))
    cuts = sorted(draw(st.lists(st.integers(1, len(digits) - 1), max_size=2, unique=True))) if len(digits) > 1 else []
    order = draw(st.permutations(range(len(digits))))
    strides, running = [0] * len(digits), 1
    for position in order:
        strides[position] = running
        running *= digits[position]
        running += draw(st.sampled_from([0, 0, 0, 8]))
    groups = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, len(digits)], strict=True)]

    def mode(values: list[int]) -> int | tuple[int, ...]:
        return values[0] if len(values) == 1 else tuple(values)

    return Layout(tuple(mode(digits[g]) for g in groups), tuple(mode(strides[g]) for g in groups))


def table_of(layout, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(layout(tuple(np.meshgrid(*map(np.arange, shape), indexing="ij"))))


@settings(max_examples=200, deadline=None)
@given(nested_layouts())
def test_sums_of_strides_are_found(layout: Layout) -> None:
    shape = tuple(prod(mode) if isinstance(mode, tuple) else mode for mode in layout.shape)
    wanted = table_of(layout, shape)
    found = structured_layout(wanted, 2)
    assert found is not None and found.swizzle.bits == 0
    assert (table_of(found, shape) == wanted).all()


@pytest.mark.parametrize("span", [32, 64, 128])
@pytest.mark.parametrize("itemsize", [1, 2, 4, 8])
@pytest.mark.parametrize("boxes", [1, 3])
def test_swizzles_are_found(span: int, itemsize: int, boxes: int) -> None:
    """The arrangement of PTX ISA, «Swizzling modes», written out: a box of rows of ``span`` bytes, whose 16-byte chunk
    c in the 128-byte line r goes to c XOR the low bits of r."""
    rows, columns = 24, boxes * span // itemsize
    wanted = np.zeros((rows, columns), dtype=np.int64)
    for row in range(rows):
        for column in range(columns):
            box, inside = divmod(column * itemsize, span)
            address = (box * rows + row) * span + inside
            line, chunk = address // 128, address % 128 // 16
            wanted[row, column] = (line * 128 + (chunk ^ (line % (span // 16))) * 16 + address % 16) // itemsize
    found = structured_layout(wanted, itemsize)
    assert found is not None and found.span == span
    assert (table_of(found, (rows, columns)) == wanted).all()


def test_what_is_no_sum_is_not_found() -> None:
    rows = np.arange(8)[:, None]
    for wanted in (rows * 8 + (np.arange(8) + rows) % 8, 63 - rows * 8 - np.arange(8), rows * 8 + np.arange(8) + 1):
        assert structured_layout(wanted, 4) is None


@pytest.mark.parametrize(
    ("formula", "contiguous"),
    [
        (I * 64 + (J + I * 8) % 64, 8),
        (I * 64 + (J + I * 2) % 64, 2),
        (I * 64 + (J + I) % 64, 1),
        (constant(1023) - I * 64 - J, 1),
        (I * 72 + (J ^ (I % 4) * 4), 4),
        (select(I.lt(4), I * 64 + J, I * 64 + (J ^ 8)), 8),
    ],
)
def test_formulas(formula, contiguous: int) -> None:
    """Runs of neighbours by brute force, and calls with ints, arrays and expressions."""
    table = offsets_of(formula, (16, 64))
    layout = mapped_layout(formula, table, 2)
    runs = [n for n in (1, 2, 4, 8) if all(
        table[i, j] == table[i, j - j % n] + j % n and table[i, j - j % n] % n == 0
        for i in range(16) for j in range(64)
    )]  # fmt: skip
    assert layout.contiguous == contiguous == max(runs)
    assert layout.size == table.max() + 1
    assert layout((3, 5)) == table[3, 5]
    assert (layout((np.arange(16)[:, None], np.arange(64))) == table).all()
    x = Var("x", int32)
    moved = layout((x + 1, 7))
    from ptxtile.ir.enumeration import evaluate

    assert [evaluate(moved, {"x": k}) for k in range(15)] == [table[k + 1, 7] for k in range(15)]


@pytest.mark.parametrize("which", ["plain", "swizzled", "padded", "mapped"])
def test_stages_lie_one_after_another(which: str) -> None:
    buffer = allocate("S", Scope.SHARED, float16, (24, 64))
    formula = I * 64 + (J + I * 8) % 64
    layouts = {
        "plain": None,
        "swizzled": SharedLayout(Layout((24, 64), (64, 1)), TMA_SWIZZLES[128], 2),
        "padded": SharedLayout(Layout((24, 64), (72, 1)), TMA_SWIZZLES[0], 2),
        "mapped": mapped_layout(formula, offsets_of(formula, (24, 64)), 2),
    }
    buffer = replace(buffer, layout=layouts[which])
    staged = with_stages(buffer, 3)
    assert staged.shape == (3, 24, 64)
    grid = np.meshgrid(np.arange(3), np.arange(24), np.arange(64), indexing="ij")
    strides = lambda where, of: sum(w * s for w, s in zip(where, of, strict=True))  # noqa: E731
    whole = staged.layout(tuple(grid)) if staged.layout is not None else strides(grid, staged.strides)
    single = buffer.layout(tuple(grid[1:])) if buffer.layout is not None else strides(grid[1:], buffer.strides)
    step = whole[1, 0, 0] - whole[0, 0, 0]
    assert (whole == single + grid[0] * step).all()
    assert len(np.unique(whole)) == whole.size and (whole.max() + 1) * 2 <= staged.storage.size
    if which == "swizzled":
        assert step * 2 % 1024 == 0


def test_fragments_are_found() -> None:
    """Thread t holds rows t and t + 4 of an 8×6 tile; with a replica in the threads 4 to 7."""
    held = np.array([[[t % 4 * 6 + c, (t % 4 + 4) * 6 + c] for c in range(6)] for t in range(8)]).reshape(8, 12)
    fragment = structured_fragment(held, (8, 6))
    assert fragment is not None and (fragment.table() == held).all()
    held[3, 2] = 47
    assert structured_fragment(held, (8, 6)) is None


def test_the_text_reads_back() -> None:
    body = """\
i0: int32 = 5
Z = allocate_shared(float32, (8, 16), layout=MappedLayout(shape=(8, 16), size=128, contiguous=4, itemsize=4, \
offset=i0 * 16 + (i1 + i0 * 4) % 16))
Z[i0, thread % 16] = float32(1.0)"""
    program = tile(body)
    verify(program)
    text = print_program(program)
    assert "offset=i0 * 16 + (i1 + i0 * 4) % 16" in text
    assert parse_program(text) == program
    layout = next(s.buffer.layout for s in program.kernels[0].body.statements
                  if getattr(getattr(s, "buffer", None), "name", "") == "Z")  # fmt: skip
    assert isinstance(layout, MappedLayout) and layout((1, 0)) == 20

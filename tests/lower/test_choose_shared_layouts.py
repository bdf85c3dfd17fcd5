"""Arrangements of shared tiles: bank conflicts counted here by the programming guide's rules, swizzles by the PTX
manual's («Swizzling modes»), and the choice against a brute force over all candidates."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.expressions import Var, as_expr
from ptxtile.ir.layouts import SharedLayout
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import buffers_of, walk
from ptxtile.ir.statements import Allocate
from ptxtile.ir.tile_ops import Region
from ptxtile.ir.types import BY_NAME, float32, int32
from ptxtile.lower import choose_shared_layouts
from ptxtile.lower.choose_shared_layouts import boxes_start_patterns, columns_of_boxes
from tests.lower.kernel_texts import apply, kernel_program, nodes, text

DECLARATIONS = "A = tensor(float32, (4096, 4096))"
SIZES = {"float32": 4, "float16": 2, "int8": 1, "float64": 8}


def address(row: int, column: int, shape: tuple[int, int], size: int, span: int) -> int:
    """Bytes from the tile's start. ``span`` 0: row-major. Else columns of boxes of ``span`` bytes, whose 16-byte chunks
    are exchanged within the span: chunk number XOR number of the 128-byte line (PTX ISA, «Swizzling modes»)."""
    rows, columns = shape
    if span == 0:
        return (row * columns + column) * size
    box = column * size // span
    plain = box * rows * span + row * span + column * size % span
    line, chunk, rest = plain // 128, plain % 128 // 16, plain % 16
    mask = span // 16 - 1
    return line * 128 + (chunk ^ (line % 8 & mask)) * 16 + rest


def conflicts(addresses: list[int], width: int) -> int:
    """Cycles beyond the first of each group: 32 lanes of up to 4 bytes, 16 of 8 bytes, 8 of 16 bytes go together."""
    group = 32 // max(1, width // 4)
    total = 0
    for first in range(0, 32, group):
        words = {word for a in addresses[first : first + group] for word in range(a // 4, (a + width - 1) // 4 + 1)}
        total += max(sum(1 for word in words if word % 32 == bank) for bank in range(32)) - 1
    return total


def chosen(of: Program, name: str = "S") -> SharedLayout | None:
    (allocation,) = [n for n in nodes(of, Allocate) if n.buffer.name == name]
    return allocation.buffer.layout


def program(body: str, shape: tuple[int, ...] = (32, 32), dtype: str = "float32", threads: int = 128) -> Program:
    declared = f"S = allocate_shared({dtype}, {shape})\nR = allocate_register({dtype}, (64,))\n"
    return kernel_program(declared + text(body), DECLARATIONS, threads=threads, stage="thread")


ROW_WRITE = "for r in unrolled(0, 8):\n    S[r * 4 + tx // 32, tx % 32] = R[r]\n"
COLUMN_READ = "for q in unrolled(0, 8):\n    R[q] = S[tx % 32, q * 4 + tx // 32]\n"


def test_row_accesses_keep_the_tile_row_major():
    given_program = program(ROW_WRITE)
    result = apply(choose_shared_layouts, given_program)
    assert result == given_program and not result.why
    assert result.kernels[0].body is given_program.kernels[0].body


def test_a_transposed_read_gets_a_swizzle_and_the_reason_counts_its_conflicts():
    result = apply(choose_shared_layouts, program(ROW_WRITE + COLUMN_READ))
    layout = chosen(result)
    assert layout is not None and layout.span == 128
    # a column of plain rows of 128 bytes is in one bank: 31 waits, 8 times; swizzled, 32 rows are in 8 chunks: 3 waits
    assert result.why[0].reason == f"bank conflicts of a CTA's warp: {8 * 3} instead of {8 * 31}"
    assert result.why[0].decision == "columns of boxes, swizzle 128"


def test_all_uses_of_the_buffer_have_the_layout_and_its_alignment():
    result = apply(choose_shared_layouts, program(ROW_WRITE + COLUMN_READ))
    buffers = {b for node in walk(result.kernels[0].body) for b in buffers_of(node) if b.name == "S"}
    assert len(buffers) == 1
    (buffer,) = buffers
    assert (
        buffer.layout is not None and buffer.storage.alignment == 8 * 128
    )  # the pattern repeats after 8 lines of 128 bytes


@pytest.mark.parametrize(
    "body",
    [
        'V = view(float32, (1024,), "S")\n' + ROW_WRITE + COLUMN_READ,  # somebody counts on the arrangement
        ROW_WRITE.replace("tx % 32", "tx % 32 * cast(R[0], int32)"),  # nothing can be counted
    ],
)
def test_tiles_whose_arrangement_is_not_free(body: str):
    assert chosen(apply(choose_shared_layouts, program(body))) is None


def test_vectors_have_one_dimension_and_no_swizzle():
    result = apply(choose_shared_layouts, program("R[0] = S[tx % 32 * 32]", (1024,)))
    assert chosen(result) is None


def test_threads_of_a_role_are_counted_from_its_first():
    """Lanes tx − 32 read a column; the first warp of the CTA would read outside of it."""
    body = """
    with specialized():
        with role("a", first_thread=0, threads=32):
            R[0] = S[0, tx]
        with role("b", first_thread=32, threads=96):
            for q in unrolled(0, 4):
                R[q] = S[(tx - 32) % 32, q]
    """
    result = apply(choose_shared_layouts, program(body))
    assert result.why[0].reason == f"bank conflicts of a CTA's warp: {4 * 3} instead of {4 * 31}"


# ---- against a brute force


@st.composite
def accesses(draw, shape: tuple[int, int], size: int) -> tuple[str, list[tuple[int, int]], int, int]:
    """An access of a warp: its text, (row, column) by lane, elements a lane, rounds."""
    rows, columns = shape
    lanes = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n * size in (4, 8, 16)]))
    kind = draw(st.sampled_from(("row", "column", "block", "diagonal")))
    per_row = columns // lanes
    if kind == "row":
        place, numbers = f"tx % 32 // {per_row} % {rows}, tx % {per_row} * {lanes}", [
            (t // per_row % rows, t % per_row * lanes) for t in range(32)
        ]  # fmt: skip
    elif kind == "column":
        place, numbers = f"tx % {rows}, 0", [(t % rows, 0) for t in range(32)]
    elif kind == "block":
        place, numbers = f"tx // 4 % {rows}, tx % 4 * {lanes}", [(t // 4 % rows, t % 4 * lanes) for t in range(32)]
    else:
        place = f"tx % {rows}, tx % {per_row} * {lanes}"
        numbers = [(t % rows, t % per_row * lanes) for t in range(32)]
    times = draw(st.integers(1, 3))
    vector = "" if lanes == 1 else f".x{lanes}"
    variable = f"k{draw(st.integers(0, 10**6))}"
    source, target = f"S{vector}[{place}]", f"R{vector}[0]"
    statement = f"{target} = {source}" if draw(st.booleans()) else f"{source} = {target}"
    return f"for {variable} in serial(0, {times}):\n    {statement}", numbers, lanes, times


@settings(max_examples=60)
@given(st.data())
def test_the_choice_is_the_cheapest_and_the_plainest_of_those(data):
    dtype = data.draw(st.sampled_from(sorted(SIZES)))
    size = SIZES[dtype]
    shape = (data.draw(st.sampled_from((8, 16, 32, 64))), data.draw(st.sampled_from((16, 32, 64, 128, 48))))
    used = data.draw(st.lists(accesses(shape, size), min_size=1, max_size=3, unique_by=lambda a: a[0].split()[1]))
    result = apply(choose_shared_layouts, program("\n".join(a[0] for a in used), shape, dtype))
    costs = {}
    for span in (0, 32, 64, 128):
        if span and shape[1] * size % span:
            continue
        costs[span] = sum(
            times * conflicts([address(r, c, shape, size, span) for r, c in places], lanes * size)
            for _, places, lanes, times in used
        )
    best = min(costs, key=lambda span: (costs[span], span))
    layout = chosen(result)
    others = [  # rows whose pieces are exchanged by address bits of the row, where the swizzles of TMA do not suffice
        sum(
            times * conflicts([exchanged((r * shape[1] + c) * size, *bits) for r, c in places], lanes * size)
            for _, places, lanes, times in used
        )
        for bits in exchanges(shape, size)
        if costs[best]
    ]
    if others and min(others) < costs[best]:
        assert layout is not None
        found = [conflicts([int(layout(at)) * size for at in places], lanes * size) for _, places, lanes, _ in used]
        assert sum(n * times for n, (_, _, _, times) in zip(found, used, strict=True)) == min(others)
        assert [int(n) for n in re.findall(r"\d+", result.why[0].reason)] == [min(others), costs[0]]
        offsets = {int(layout((r, c))) for r in range(shape[0]) for c in range(shape[1])}
        assert offsets == set(range(shape[0] * shape[1]))
        return
    assert (0 if layout is None else layout.span) == best
    if layout is not None:
        numbers = [int(n) for n in re.findall(r"\d+", result.why[0].reason)]
        assert numbers == [costs[best], costs[0]]
        for row, column in [(0, 0), (1, 3), (shape[0] - 1, shape[1] - 1), (5, shape[1] // 2)]:
            assert int(layout((row, column))) * size == address(row, column, shape, size, best)


def exchanges(shape: tuple[int, int], size: int) -> list[tuple[int, int, int]]:
    """(lowest bit of the pieces, how many bits, lowest bit that exchanges them) for rows of a power of two of bytes."""
    row = shape[1] * size
    first = row.bit_length() - 1
    if 1 << first != row:
        return []
    return [
        (piece, count, first + above)
        for piece in (4, 5)
        for count in (1, 2, 3)
        for above in (0, 1, 2)
        if piece + count <= first + above and shape[0] * row % (1 << piece + count) == 0
    ]


def exchanged(linear: int, piece: int, count: int, first: int) -> int:
    return linear ^ (linear >> first & (1 << count) - 1) << piece


# ---- with TMA


def tma(tile: tuple[int, ...], region: str = "S", extents: tuple[int, ...] | None = None, body: str = "") -> Program:
    extents = extents or tile
    global_shape = tuple(max(extent, 4096 if k == len(extents) - 1 else 64) for k, extent in enumerate(extents))
    starts, sizes = ", ".join("0" for _ in extents), ", ".join(map(str, extents))
    copy = f"copy({region}, A[{starts}].tile({sizes}), path=CopyPath.TMA_STORE)"
    registers = "R = allocate_register(float32, (64,))\n"
    text_of_body = f"S = allocate_shared(float32, {tile})\n{registers}{text(body)}\n{copy}"
    return kernel_program(text_of_body, f"A = tensor(float32, {global_shape})", stage="thread", grid="(4, 1, 1)")


@pytest.mark.parametrize(
    ("tile", "shape", "stride"),
    [
        ((64, 512), (64, (2, 256)), (256, (64 * 256, 1))),
        ((512,), ((2, 256),), ((256, 1),)),
        ((4, 8, 512), (4, 8, (2, 256)), (8 * 256, 256, (4 * 8 * 256, 1))),  # a box holds all four matrices
    ],
)
def test_rows_longer_than_a_box_become_columns_of_boxes(tile, shape, stride):
    result = apply(choose_shared_layouts, tma(tile))
    layout = chosen(result)
    assert layout is not None
    assert (layout.layout.shape, layout.layout.stride, layout.span) == (shape, stride, 0)
    assert "longer than a TMA box" in result.why[0].reason


def test_matrices_that_are_moved_one_by_one_stay_apart():
    layout = chosen(apply(choose_shared_layouts, tma((3, 8, 512), "S[1, 0, 0].tile(1, 8, 512)", (8, 512))))
    assert layout is not None
    assert layout.layout.stride == (8 * 512, 256, (8 * 256, 1))


@pytest.mark.parametrize("tile", [(64, 256), (64, 64), (512, 64)])
def test_rows_that_fit_a_box_stay_row_major(tile: tuple[int, int]):
    assert chosen(apply(choose_shared_layouts, tma(tile))) is None


def test_long_rows_without_tma_stay_row_major():
    assert chosen(apply(choose_shared_layouts, program("R[0] = S[0, tx]", (16, 512)))) is None


def test_a_tma_tile_with_transposed_reads_is_swizzled():
    result = apply(choose_shared_layouts, tma((32, 32), body=COLUMN_READ))
    assert chosen(result) is not None
    assert result.why[0].reason == f"bank conflicts of a CTA's warp: {8 * 3} instead of {8 * 31}"


STAGES = (3, 16, 32)
"""Matrices of 16 rows of 128 bytes: each starts at a multiple of the 1024 bytes of a swizzle."""


@pytest.mark.parametrize(
    ("shape", "starts", "extents", "span", "legal"),
    [
        ((32, 32), (0, 0), (32, 32), 128, True),
        ((32, 32), (8, 0), (8, 32), 128, True),  # 8 rows of 128 bytes
        ((32, 32), (4, 0), (8, 32), 128, False),
        ((32, 16), (4, 0), (8, 16), 64, False),  # 4 rows of 64 bytes: the 64-byte pattern repeats after 512
        ((32, 16), (8, 0), (8, 16), 64, True),
        ((32, 8), (8, 0), (8, 8), 32, True),  # 8 rows of 32 bytes: after 256
        ((32, 8), (4, 0), (8, 8), 32, False),
        ((32, 64), (0, 32), (32, 32), 128, True),  # the second column of boxes
        ((32, 64), (0, 16), (32, 32), 128, False),
        ((32, 64), (0, 0), (32, 16), 128, False),  # half a box
        ((4, 64), (0, 0), (4, 64), 128, False),  # the second box starts after 512 bytes
        ((4, 64), (0, 0), (4, 32), 128, True),
        (STAGES, (1, 0, 0), (1, 16, 32), 128, True),
        (STAGES, (Var("k", int32), 0, 0), (1, 16, 32), 128, True),
        (STAGES, (0, Var("k", int32), 0), (1, 16, 32), 128, False),
        ((3, 4, 32), (Var("k", int32), 0, 0), (1, 4, 32), 128, False),
        (STAGES, (0, 0, Var("k", int32)), (1, 16, 32), 128, False),
    ],
)
def test_boxes_start_where_the_pattern_does(shape, starts, extents, span: int, legal: bool):
    tile = allocate("S", Scope.SHARED, float32, shape)
    layout = columns_of_boxes(tile, span // 4, span)
    assert boxes_start_patterns(layout, Region(tile, tuple(map(as_expr, starts)), extents)) is legal


@pytest.mark.parametrize("spans_outer", [False, True])
@pytest.mark.parametrize(("shape", "columns"), [((6, 64), 32), ((2, 3, 64), 16), ((64,), 32), ((2, 3, 4, 32), 32)])
def test_columns_of_boxes_give_every_element_a_place_of_its_own(shape, columns, spans_outer):
    tile = allocate("S", Scope.SHARED, BY_NAME["float32"], shape)
    layout = columns_of_boxes(tile, columns, 0, spans_outer)
    places: list[int] = [0]
    for n in shape:
        places = [p * n + k for p in places for k in range(n)]
    found = []
    for place in places:
        coordinates = []
        for n in reversed(shape):
            coordinates.insert(0, place % n)
            place //= n
        found.append(int(layout(tuple(coordinates))))
    assert sorted(found) == list(range(tile.elements))


# --- tiles that TMA stores -------------------------------------------------------------------------------------------

STORED = "copy(S, A[0, 0].tile({rows}, {columns}), path=CopyPath.TMA_STORE)"
MATRICES = """
for r in unrolled(0, {pairs}):
    matrix_store(source=H, source_offset=0, destination=S, indices={rows}, count=4)
"""
ROWS = "(tx // 32 * 16 + tx % 16, r * 16 + tx % 32 // 16 * 8)"
PAIRS = """
for r in unrolled(0, {blocks}):
    S.x2[tx // 32 * 16 + tx % 32 // 4, r * 8 + tx % 4 * 2] = R.x2[0]
    S.x2[tx // 32 * 16 + tx % 32 // 4 + 8, r * 8 + tx % 4 * 2] = R.x2[0]
"""


@pytest.mark.parametrize(("columns", "span"), [(16, 32), (32, 64), (64, 128), (96, 64), (128, 128), (256, 128)])
def test_stmatrix_has_no_conflicts_and_the_fewest_boxes(columns, span):
    body = MATRICES.format(pairs=columns // 16, rows=ROWS) + STORED.format(rows=64, columns=columns)
    declared = f"S = allocate_shared(bfloat16, (64, {columns}))\nH = allocate_register(bfloat16, (8,))\n"
    given_program = kernel_program(declared + text(body), DECLARATIONS.replace("float32", "bfloat16"), stage="thread")
    result = apply(choose_shared_layouts, given_program)
    layout = chosen(result)
    assert layout is not None and layout.span == span
    assert result.why[0].reason.startswith("bank conflicts of a CTA's warp: 0 instead of ")


def test_float32_pairs_rather_wait_once_than_go_in_narrow_boxes():
    """Pairs of an accumulator meet no other in spans of 32 bytes, but that is four times as many rows of boxes."""
    body = PAIRS.format(blocks=8) + STORED.format(rows=64, columns=64)
    result = apply(choose_shared_layouts, program(body, (64, 64)))
    layout = chosen(result)
    assert layout is not None and layout.span == 128

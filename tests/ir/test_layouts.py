"""The layout algebra by property, against brute force and against the PTX manual's tables."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ptxtile.ir.enumeration import evaluate
from ptxtile.ir.expressions import Binary, Const, Expr, Var, as_expr
from ptxtile.ir.layouts import (
    TMA_SWIZZLES,
    Fragment,
    Layout,
    SharedLayout,
    Swizzle,
    composition,
    inverse,
    linear_fragment,
    replicated_fragment,
    row_major,
    size,
)
from ptxtile.ir.types import int32

SIZES = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 16])


def nested_shapes(depth: int = 2) -> st.SearchStrategy:
    if depth == 0:
        return SIZES
    return SIZES | st.lists(st.deferred(lambda: nested_shapes(depth - 1)), min_size=1, max_size=3).map(tuple)


SHAPES = st.lists(nested_shapes(), min_size=1, max_size=3).map(tuple).filter(lambda shape: size(shape) <= 2000)


@st.composite
def layouts(draw) -> Layout:
    """Any nesting, any strides."""
    shape = draw(SHAPES)
    strides = st.sampled_from([0, 1, 2, 3, 4, 7, 8, 16, 24, 64, 100])

    def strides_of(part):
        return draw(strides) if isinstance(part, int) else tuple(strides_of(p) for p in part)

    return Layout(shape, strides_of(shape))


@st.composite
def compact_layouts(draw) -> Layout:
    """Bijections onto 0 … size − 1: the modes of a shape in a random order of strides."""
    shape = tuple(draw(st.lists(SIZES, min_size=1, max_size=4)))
    assume(prod(shape) <= 2000)
    strides, running = [0] * len(shape), 1
    for position in draw(st.permutations(range(len(shape)))):
        strides[position] = running
        running *= shape[position]
    return Layout(shape, tuple(strides))


def flat_modes(part) -> list[int]:
    return [part] if isinstance(part, int) else [n for p in part for n in flat_modes(p)]


def brute_force(layout: Layout) -> list[int]:
    """Offsets by flat coordinate: all coordinates of the leaf modes, the last one fastest."""
    sizes, strides = flat_modes(layout.shape), flat_modes(layout.stride)
    coordinates = product(*(range(n) for n in sizes))
    return [sum(c * d for c, d in zip(coordinate, strides, strict=True)) for coordinate in coordinates]


def evaluated(expression: Expr | int, values: dict[str, int]) -> int:
    """An integer expression by Python's own arithmetic; ``//``, ``%`` floor in both."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, Const):
        return int(expression.value)
    if isinstance(expression, Var):
        return values[expression.name]
    assert isinstance(expression, Binary)
    left, right = evaluated(expression.left, values), evaluated(expression.right, values)
    operations = {
        "add": lambda: left + right, "sub": lambda: left - right, "mul": lambda: left * right,
        "floordiv": lambda: left // right, "floormod": lambda: left % right, "xor": lambda: left ^ right,
        "and": lambda: left & right, "shr": lambda: left >> right, "shl": lambda: left << right,
    }  # fmt: skip
    return operations[expression.operator]()


# ---- layouts


@given(layouts())
def test_a_flat_coordinate_counts_the_last_mode_fastest(layout):
    assert [layout(c) for c in range(layout.size)] == brute_force(layout)


@given(layouts())
def test_numpy_and_expressions_agree_with_ints(layout):
    expected = [layout(c) for c in range(layout.size)]
    assert np.broadcast_to(layout(np.arange(layout.size)), layout.size).tolist() == expected
    expression = layout(Var("c", int32))
    assert [evaluated(expression, {"c": c}) for c in range(layout.size)] == expected


@given(layouts(), st.data())
def test_nested_and_flat_coordinates_of_a_mode_agree(layout, data):
    """Each coordinate may be given as a tuple down to the leaves, or flat at any level."""

    def coordinate(shape):
        """A random coordinate of ``shape``, flat or nested, and the same one down to the leaves."""
        if isinstance(shape, int):
            leaf = data.draw(st.integers(0, shape - 1))
            return leaf, leaf, [leaf]
        parts = [coordinate(part) for part in shape]
        flat = 0
        for (_, value, _), part in zip(parts, shape, strict=True):
            flat = flat * size(part) + value
        leaves = [leaf for _, _, inner in parts for leaf in inner]
        nested = tuple(given for given, _, _ in parts)
        return (nested if data.draw(st.booleans()) else flat), flat, leaves

    parts = [coordinate(part) for part in layout.shape]
    leaves = [leaf for _, _, inner in parts for leaf in inner]
    expected = sum(c * d for c, d in zip(leaves, flat_modes(layout.stride), strict=True))
    assert layout(tuple(given for given, _, _ in parts)) == expected


@given(layouts())
def test_cosize_is_one_past_the_largest_offset(layout):
    assert layout.cosize == max(brute_force(layout)) + 1


@given(layouts())
def test_coalesced_is_the_same_function_with_fewer_modes(layout):
    coalesced = layout.coalesced()
    assert [coalesced(c) for c in range(layout.size)] == brute_force(layout)
    modes = coalesced.modes
    assert len(modes) <= len(layout.modes)
    assert len(modes) == 1 or all(n > 1 for n, _ in modes)
    assert all(outer[1] != inner[0] * inner[1] for outer, inner in pairwise(modes))


def test_shape_and_stride_nested_differently_are_refused():
    with pytest.raises(ValueError, match="nested differently"):
        Layout((2, 3), (1,))


@given(st.lists(SIZES, min_size=1, max_size=4).map(tuple))
def test_row_major_is_numpys_order(shape):
    assert tuple(n * 8 for n in row_major(shape).stride) == np.empty(shape, dtype=np.float64).strides


# ---- composition and inverse


def composes(outer: Layout, inner: Layout) -> Layout | None:
    try:
        return composition(outer, inner)
    except ValueError:
        return None


@given(compact_layouts() | layouts(), layouts())
@settings(max_examples=400)
def test_composition_is_the_composed_function_wherever_it_exists(outer, inner):
    """At flat and at per-mode coordinates. (Where it does not exist, the next tests say why.)"""
    result = composes(outer, inner)
    if result is None:
        return
    assert [result(c) for c in range(inner.size)] == [outer(inner(c)) for c in range(inner.size)]
    for coordinate in product(*(range(min(3, size(mode))) for mode in inner.shape)):
        assert result(coordinate) == outer(inner(coordinate))


@given(st.data())
@settings(max_examples=200)
def test_parts_of_power_of_two_layouts_always_compose(data):
    """Tiles cut out of a layout, powers of two throughout: a composition must be found, not just refused."""
    bits = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(bits))))
    strides, running = [0] * len(bits), 1
    for position in order:
        strides[position], running = running, running << bits[position]
    outer = Layout(tuple(1 << b for b in bits), tuple(strides))
    # inner: the address bits of outer's domain, dealt out to modes
    total = sum(bits)
    cuts = sorted(data.draw(st.sets(st.integers(0, total), max_size=4)) | {0, total})
    pieces = data.draw(st.permutations([(b - a, a) for a, b in pairwise(cuts)] or [(0, 0)]))
    inner = Layout(tuple(1 << b for b, _ in pieces), tuple(1 << a for _, a in pieces))
    result = composition(outer, inner)
    assert [result(c) for c in range(inner.size)] == [outer(inner(c)) for c in range(inner.size)]


@pytest.mark.parametrize(
    ("outer", "inner", "message"),
    [
        (Layout((4,), (1,)), Layout((8,), (1,)), "leave"),
        (Layout((4, 6), (1, 10)), Layout((2, 2), (5, 4)), "carries"),
        (Layout((4, 6), (1, 10)), Layout((4,), (4,)), "divide"),
    ],
)
def test_compositions_that_are_no_layouts_are_refused(outer, inner, message):
    with pytest.raises(ValueError, match=message):
        composition(outer, inner)


def test_composition_as_in_the_cutlass_documentation():
    """(6,2):(8,2) ∘ (4,3):(3,1) = ((2,2),3):((24,2),8) in «CuTe Layout Algebra»; modes read from right to left here."""
    result = composition(Layout((2, 6), (2, 8)), Layout((3, 4), (1, 3)))
    assert result == Layout((3, (2, 2)), (8, (2, 24)))


@given(compact_layouts())
def test_the_inverse_of_a_bijection_is_its_inverse_from_both_sides(layout):
    inverted = inverse(layout)
    assert inverted.size == layout.size
    assert [layout(inverted(k)) for k in range(layout.size)] == list(range(layout.size))
    assert [inverted(layout(c)) for c in range(layout.size)] == list(range(layout.size))


@given(layouts())
def test_the_inverse_is_a_right_inverse_on_its_domain(layout):
    inverted = inverse(layout)
    assert [layout(inverted(k)) for k in range(inverted.size)] == list(range(inverted.size))


# ---- swizzles


@given(st.integers(0, 4), st.integers(0, 6), st.integers(0, 1 << 20), st.data())
def test_a_swizzle_is_an_involution_within_its_block(bits, base, offset, data):
    swizzle = Swizzle(bits, base, data.draw(st.integers(bits, 6)))
    assert swizzle(swizzle(offset)) == offset
    block = 1 << (base + swizzle.shift + bits)
    assert swizzle(offset) // block == offset // block
    assert swizzle(np.array([offset]))[0] == swizzle(offset)
    assert evaluated(swizzle(Var("x", int32)), {"x": offset}) == swizzle(offset)


@pytest.mark.parametrize("span", [32, 64, 128])
def test_a_swizzle_is_a_bijection(span):
    block = TMA_SWIZZLES[span](np.arange(4096))
    assert sorted(block) == list(range(4096))


# The 16-byte chunks of each row of the pattern, as the PTX manual's tables show them for shared memory (tensors,
# swizzling modes): entry [row][position] is the chunk of that row that lies there.
PTX_128B = [
    [0, 1, 2, 3, 4, 5, 6, 7],
    [1, 0, 3, 2, 5, 4, 7, 6],
    [2, 3, 0, 1, 6, 7, 4, 5],
    [3, 2, 1, 0, 7, 6, 5, 4],
    [4, 5, 6, 7, 0, 1, 2, 3],
    [5, 4, 7, 6, 1, 0, 3, 2],
    [6, 7, 4, 5, 2, 3, 0, 1],
    [7, 6, 5, 4, 3, 2, 1, 0],
]
PTX_64B = [  # rows of 128 bytes: two rows of the box lie in each
    [0, 1, 2, 3, 4, 5, 6, 7],
    [1, 0, 3, 2, 5, 4, 7, 6],
    [2, 3, 0, 1, 6, 7, 4, 5],
    [3, 2, 1, 0, 7, 6, 5, 4],
]
PTX_32B = [[0, 1, 2, 3, 4, 5, 6, 7], [1, 0, 3, 2, 5, 4, 7, 6]]


@pytest.mark.parametrize(("span", "table"), [(128, PTX_128B), (64, PTX_64B), (32, PTX_32B)])
def test_swizzles_are_the_ptx_manuals(span, table):
    """Chunk c of 128-byte row r lies at the position where the table's row shows c."""
    for row in range(32):
        for chunk in range(8):
            address = row * 128 + chunk * 16
            position = table[row % len(table)].index(chunk)
            for byte in (0, 4, 15):
                assert TMA_SWIZZLES[span](address + byte) == row * 128 + position * 16 + byte


# ---- shared layouts


@given(st.sampled_from([32, 64, 128]), st.sampled_from([1, 2, 4, 8]), st.integers(1, 3), st.integers(1, 24), st.data())
def test_a_shared_layout_swizzles_the_byte_address_of_its_layout(span, itemsize, boxes, rows, data):
    """Whatever is added outside of the swizzle, the offset is that of the swizzled byte address, for ints, arrays and
    expressions alike; stages may lie any whole number of rows apart."""
    width = span // itemsize
    stage = data.draw(st.integers(boxes * rows, boxes * rows + 9)) * width
    layout = Layout((3, rows, (boxes, width)), (stage, width, (rows * width, 1)))
    shared = SharedLayout(layout, TMA_SWIZZLES[span], itemsize)
    index = np.arange(layout.size)
    coordinates = (index // (rows * boxes * width), index // (boxes * width) % rows, index % (boxes * width))
    expected = TMA_SWIZZLES[span](layout(coordinates) * itemsize) // itemsize
    assert np.array_equal(shared(coordinates), expected)
    s, r, c = (Var(name, int32) for name in "src")
    values = dict(zip("src", coordinates, strict=True))
    assert np.array_equal(np.broadcast_to(evaluate(as_expr(shared((s, r, c))), values), index.shape), expected)


@given(st.sampled_from([0, 32, 64, 128]), st.sampled_from([1, 2, 4, 8]), st.integers(1, 20), st.integers(1, 4))
def test_a_swizzled_tile_is_a_bijection_and_keeps_chunks_together(span, itemsize, rows, boxes):
    """Boxes as wide as the span, side by side: every element has its own place, 16-byte chunks stay whole."""
    width = (span or 128) // itemsize
    layout = Layout((rows, (boxes, width)), (width, (rows * width, 1)))
    shared = SharedLayout(layout, TMA_SWIZZLES[span], itemsize)
    row, column = np.divmod(np.arange(rows * boxes * width), boxes * width)
    offsets = shared((row, column))
    assert len(np.unique(offsets)) == rows * boxes * width
    assert offsets.max() < -(-rows * boxes * width * itemsize // shared.alignment) * shared.alignment // itemsize
    chunk = 16 // itemsize
    starts = offsets.reshape(-1, chunk)
    assert (starts[:, 0] % chunk == 0).all()
    assert (starts == starts[:, :1] + np.arange(chunk)).all()
    assert shared.span == span
    expression = shared((Var("r", int32), Var("c", int32)))
    for n in range(0, len(offsets), max(1, len(offsets) // 50)):
        assert evaluated(expression, {"r": int(row[n]), "c": int(column[n])}) == offsets[n]


# ---- fragments


def dimensions(most: int) -> st.SearchStrategy[tuple[int, ...]]:
    sizes = st.integers(1, 40) | st.sampled_from([64, 96, 100, 128])
    shapes = st.lists(sizes, min_size=1, max_size=4).map(tuple)
    return shapes.filter(lambda shape: prod(shape) <= most)


@given(dimensions(20000), st.integers(1, 8).map(lambda n: 32 * n) | st.integers(1, 300), st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=300)
@example((96,), 128, 1)
@example((1, 1), 128, 1)
@example((3, 5), 32, 1)
@example((2, 96), 128, 4)
def test_a_linear_fragment_covers_every_tile_exactly_once(shape, threads, vector):
    if shape[-1] % vector:
        vector = 1
    fragment = linear_fragment(shape, threads, vector)
    assert fragment.threads == threads
    fragment.check()
    owners = np.zeros(prod(shape), dtype=int)
    table = fragment.table()
    np.add.at(owners, table[table >= 0], 1)
    assert (owners == 1).all()
    assert fragment.is_exclusive
    assert (table < 0).sum() == table.size - prod(shape)
    # vectors are consecutive elements of one row, and all of them or none are padding
    vectors = table.reshape(-1, vector)
    inside = vectors[:, 0] >= 0
    assert (vectors[inside] == vectors[inside][:, :1] + np.arange(vector)).all()
    assert (vectors[~inside] < 0).all()


@given(dimensions(500), st.integers(1, 130), st.sampled_from([1, 2, 4]))
def test_the_table_is_the_coordinates(shape, threads, vector):
    if shape[-1] % vector:
        vector = 1
    fragment = linear_fragment(shape, threads, vector)
    table = fragment.table()
    thread_expression, value_expression = Var("t", int32), Var("v", int32)
    expressions = fragment.coordinates(thread_expression, value_expression)
    for thread in range(0, threads, max(1, threads // 7)):
        for value in range(fragment.values):
            coordinates = fragment.coordinates(thread, value)
            inside = all(0 <= c < n for c, n in zip(coordinates, shape, strict=True))
            expected = int(np.ravel_multi_index(coordinates, shape)) if inside else -1
            assert table[thread, value] == expected
            values = {"t": thread, "v": value}
            assert tuple(evaluated(e, values) for e in expressions) == coordinates


@given(dimensions(200), st.integers(2, 130))
def test_a_replicated_fragment_gives_each_thread_everything(shape, threads):
    fragment = replicated_fragment(shape, threads)
    fragment.check()
    assert not fragment.is_exclusive
    assert (fragment.table() == np.arange(prod(shape))).all()


@pytest.mark.parametrize(
    ("fragment", "message"),
    [
        (Fragment((64,), (64,), Layout((32,), (1,)), Layout((1,), (0,))), "belong to no thread"),
        (Fragment((64,), (64,), Layout((32,), (1,)), Layout((2,), (0,))), "belong to no thread"),
        (Fragment((32,), (32,), Layout((32,), (1,)), Layout((2,), (0,))), "one element twice"),
    ],
)
def test_fragments_that_do_not_cover_are_refused(fragment, message):
    with pytest.raises(ValueError, match=message):
        fragment.check()


def test_the_mma_accumulator_is_a_fragment():
    """m16n8 of mma.sync (PTX ISA, «Matrix fragments for mma.m16n8k16»): row t/4 (+8), columns 2(t%4) + {0, 1}."""
    fragment = Fragment((16, 8), (16, 8), Layout((8, 4), (8, 2)), Layout((2, 2), (64, 1)))
    fragment.check()
    for thread in range(32):
        for value in range(4):
            row = thread // 4 + (8 if value >= 2 else 0)
            column = thread % 4 * 2 + value % 2
            assert fragment.coordinates(thread, value) == (row, column)

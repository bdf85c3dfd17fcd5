"""Widths of memory accesses against a brute force over all lanes, and against the rules of the PTX ISA («ld»: up to 16
bytes, aligned to the access)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.buffers import Buffer, Scope, Storage, allocate
from ptxtile.ir.enumeration import evaluate
from ptxtile.ir.expressions import (
    COMPARISONS,
    Expr,
    Var,
    as_expr,
    cast,
    compare,
    constant,
    load,
    logical_and,
    logical_not,
    logical_or,
    select,
)
from ptxtile.ir.layouts import TMA_SWIZZLES, Layout, SharedLayout, row_major
from ptxtile.ir.program import Fact
from ptxtile.ir.statements import If, Seq, Store
from ptxtile.ir.types import BY_NAME, DType, float16, float32, float64, int8, int32, int64
from ptxtile.lower.vector_access import MemoryAccess, VectorWidths, memory_accesses
from tests.lower.tile_programs import tensor

V, K, M, N = Var("v", int32), Var("k", int32), Var("M", int32), Var("N", int32)
EXTENT = 16
ROUNDS = 3  # K is 0, 1 or 2


def width(
    buffer: Buffer,
    *indices: Expr | int,
    guards: tuple[Expr, ...] = (),
    extent: int = EXTENT,
    alignments: Mapping[str, int] | None = None,
    facts: tuple[Fact, ...] = (),
) -> int:
    analyzer = Analyzer(facts)
    analyzer.bind(V, 0, extent - 1)
    analyzer.bind(K, 0, ROUNDS - 1)
    access = MemoryAccess(buffer, tuple(map(as_expr, indices)), guards)
    return VectorWidths(analyzer, alignments or {}).width(access, V, extent)


def vector(dtype: DType = float32) -> Buffer:
    return tensor("X", 4096, dtype=dtype)


# ---- size, contiguity, alignment


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("float64", 2), ("float32", 4), ("bfloat16", 8), ("float16", 8), ("int8", 16), ("bool", 16), ("float4_e2m1fn", 1)],
)
def test_an_access_moves_at_most_16_bytes_and_whole_bytes(dtype: str, expected: int):
    assert width(vector(BY_NAME[dtype]), V) == expected


@pytest.mark.parametrize(("extent", "expected"), [(1, 1), (2, 2), (3, 1), (4, 4), (6, 2), (12, 4), (16, 4)])
def test_the_width_divides_the_loop(extent: int, expected: int):
    assert width(vector(), V, extent=extent) == expected


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (V, 4),
        (V + 2, 2),
        (V + 1, 1),
        (V + 4, 4),
        (V - 8, 4),
        (V * 2, 1),
        (V * 1, 4),
        (constant(15) - V, 1),
        (constant(3), 1),
        (V // 2, 1),
        (V + K, 1),
        (V + K * 2, 2),
        (V + K * 4, 4),
        (K * 16 + V + 2 - 2, 4),
        (M + V, 1),
        (M * 4 + V, 4),
        (M // 8 * 8 + V, 4),
        (cast(V, int64) + constant(2**33, int64), 4),
        (V + V, 1),
        (V + V - V, 4),
        (K + V // 16, 1),
    ],
)
def test_the_index_steps_by_one_from_an_aligned_start(index: Expr, expected: int):
    assert width(vector(), index) == expected


@pytest.mark.parametrize(("alignment", "expected"), [(1, 1), (2, 1), (4, 1), (8, 2), (16, 4), (512, 4)])
def test_base_alignment_of_the_tensor(alignment: int, expected: int):
    assert width(vector(), V, alignments={"X": alignment}) == expected
    assert width(vector(), V, alignments={"Y": alignment}) == 4


def test_base_alignment_is_no_matter_in_shared_memory():
    assert width(allocate("X", Scope.SHARED, float32, (64,)), V, alignments={"X": 4}) == 4


@pytest.mark.parametrize(
    ("stride", "facts", "expected"),
    [
        (64, (), 4),
        (66, (), 2),
        (63, (), 1),
        (0, (), 4),
        (M, (), 1),
        (M, (Fact(M, divisor=2),), 2),
        (M, (Fact(M, divisor=4),), 4),
        (M * 4, (), 4),
        (cast(M, int64) * 4, (), 4),
    ],
)
def test_the_rows_keep_the_alignment(stride: int | Expr, facts: tuple[Fact, ...], expected: int):
    matrix = Buffer("X", float32, (64, 64), (stride, 1), Storage("X", Scope.GLOBAL))
    assert width(matrix, K, V, facts=facts) == expected


def test_a_row_index_can_make_up_for_its_stride():
    matrix = Buffer("X", float32, (64, 64), (3, 1), Storage("X", Scope.GLOBAL))
    assert width(matrix, K * 4, V) == 4
    assert width(matrix, constant(2), V) == 2


def test_only_the_last_index_may_move():
    matrix = tensor("X", 64, 64)
    assert width(matrix, V, K) == 1
    assert width(matrix, V, V) == 1


def test_no_vector_along_a_dimension_with_another_stride():
    assert width(Buffer("X", float32, (64,), (2,), Storage("X", Scope.GLOBAL)), V) == 1
    assert width(Buffer("X", float32, (64,), (M,), Storage("X", Scope.GLOBAL)), V) == 1
    assert width(allocate("X", Scope.LOCAL, float32, ())) == 1


@pytest.mark.parametrize(("offset", "expected"), [(0, 4), (2, 2), (3, 1), (8, 4), (M, 1), (M * 2, 2)])
def test_the_offset_of_a_view_counts(offset: int | Expr, expected: int):
    assert width(Buffer("W", float32, (64,), (1,), Storage("X", Scope.GLOBAL), offset), V) == expected


@pytest.mark.parametrize(
    ("layout", "dtype", "expected"),
    [
        (SharedLayout(row_major((64, 64)), TMA_SWIZZLES[0], 4), float32, 4),
        (SharedLayout(Layout((64, (2, 32)), (32, (2048, 1))), TMA_SWIZZLES[128], 4), float32, 4),
        (SharedLayout(Layout((64, (32, 2)), (2, (128, 1))), TMA_SWIZZLES[0], 4), float32, 2),  # columns of 2
        (SharedLayout(Layout((64, 64), (1, 64)), TMA_SWIZZLES[0], 4), float32, 1),  # column-major
        (SharedLayout(Layout((64, 64), (66, 1)), TMA_SWIZZLES[0], 4), float32, 2),  # padded rows
        (SharedLayout(Layout((64, (8, 8)), (8, (512, 1))), TMA_SWIZZLES[0], 2), float16, 8),
        (SharedLayout(Layout((64, (4, 16)), (16, (1024, 1))), TMA_SWIZZLES[128], 8), float64, 2),
    ],
)
def test_shared_layouts(layout: SharedLayout, dtype: DType, expected: int):
    tile = allocate("S", Scope.SHARED, dtype, (64, 64)).with_layout(layout)
    found = width(tile, K, V)
    assert found == expected
    for row, first in itertools.product(range(ROUNDS), range(0, EXTENT, found)):
        offsets = [int(layout((row, first + lane))) for lane in range(found)]
        assert offsets == list(range(offsets[0], offsets[0] + found))
        assert offsets[0] % found == 0


# ---- guards


@pytest.mark.parametrize(
    ("guard", "expected"),
    [
        (K.lt(2), 4),
        (V.lt(M), 1),
        (V.lt(M * 4), 4),
        (V.lt(8), 4),
        (V.lt(6), 2),
        (V.lt(7), 1),
        (V.ge(8), 4),
        (V.ge(6), 2),
        (V.le(7), 4),  # v < 8
        (V.le(6), 1),
        (V.gt(7), 4),  # v ≥ 8
        (V.gt(5), 2),
        (constant(8).gt(V), 4),
        (constant(7).ge(V), 4),
        (constant(7).lt(V), 4),
        (constant(8).le(V), 4),
        (constant(6).le(V), 2),
        ((constant(15) - V).lt(8), 4),  # v ≥ 8
        ((constant(15) - V).lt(10), 2),  # v ≥ 6
        ((constant(15) - V).ge(8), 4),  # v < 8
        ((constant(15) - V).gt(8), 1),  # v < 7
        (V.eq(8), 1),
        (V.ne(8), 1),
        (logical_and(V.lt(8), V.ge(4)), 4),
        (logical_and(V.lt(8), V.ge(2)), 2),
        (logical_or(V.lt(4), V.ge(6)), 2),
        (logical_not(V.lt(8)), 4),
        (logical_not(V.lt(6)), 2),
        ((V * 2).lt(16), 1),  # slope 2 is not looked at
        (V.lt(V + M), 4),
        ((K * 16 + V).lt(M * 8 + 4), 4),
        (Var("flag", BY_NAME["bool"]), 4),
        (cast(V, float32).lt(8.0), 1),
        (load(tensor("mask", 64, dtype=int32), (V,)).lt(3), 1),
        (load(tensor("mask", 64, dtype=int32), (K,)).lt(3), 4),
        (cast(V, int64).lt(cast(M, int64) * 4), 4),
    ],
)
def test_a_guard_has_one_value_for_all_elements_of_a_vector(guard: Expr, expected: int):
    assert width(vector(), V, guards=(guard,)) == expected
    assert width(vector(), V, guards=(K.lt(2), guard)) == expected


# ---- brute force

coefficients = st.sampled_from((-4, -2, -1, 0, 1, 1, 2, 3, 4, 8))


@st.composite
def linear(draw, with_lane: bool = True) -> Expr:
    """a·v + b·k + c·N + d: small numbers, so that nothing wraps."""
    result: Expr = constant(draw(st.integers(-9, 17)))
    for var in (V, K, N) if with_lane else (K, N):
        factor = draw(coefficients)
        if factor:
            result = result + var * factor
    return result


@st.composite
def conditions(draw, depth: int = 2) -> Expr:
    kind = draw(st.sampled_from(("compare", "compare", "and", "or", "not"))) if depth else "compare"
    if kind == "compare":
        return compare(draw(st.sampled_from(COMPARISONS)), draw(linear()), draw(linear() | linear(with_lane=False)))
    left = draw(conditions(depth - 1))
    if kind == "not":
        return logical_not(left)
    right = draw(conditions(depth - 1))
    return logical_and(left, right) if kind == "and" else logical_or(left, right)


@st.composite
def accesses(draw) -> tuple[MemoryAccess, int, int]:
    """An access, the tensor's alignment in bytes and what N is a multiple of."""
    dtype = draw(st.sampled_from((int8, float16, float32, float64)))
    inner = draw(st.sampled_from((1, 1, 1, 1, 2)))
    outer = draw(st.sampled_from((16, 12, 10, 7)) | st.just(N))
    offset = draw(st.sampled_from((0, 0, 4, 2, 1)))
    buffer = Buffer("X", dtype, (64, 64), (outer, inner), Storage("X", Scope.GLOBAL), offset)
    last: Expr = V + draw(linear(with_lane=False)) if draw(st.booleans()) else draw(linear())
    guards = tuple(draw(st.lists(conditions(), max_size=2)))
    alignment = draw(st.sampled_from((1, 4, 8, 16))) * 1
    return (
        MemoryAccess(buffer, (draw(linear(with_lane=False)), last), guards),
        alignment,
        draw(st.sampled_from((1, 2, 4, 8))),
    )


@settings(max_examples=400)
@given(accesses(), st.sampled_from((4, 6, 8, 16)))
def test_a_vector_is_one_aligned_run_under_uniform_guards(case: tuple[MemoryAccess, int, int], extent: int):
    access, alignment, divisor = case
    analyzer = Analyzer((Fact(N, 0, 64, divisor),))
    analyzer.bind(V, 0, extent - 1)
    analyzer.bind(K, 0, ROUNDS - 1)
    found = VectorWidths(analyzer, {"X": alignment}).width(access, V, extent)
    size = access.buffer.dtype.itemsize
    assert found in (1, 2, 4, 8, 16) and extent % found == 0 and found * size <= 16
    if found == 1:
        return
    row, last = access.indices
    strides = [stride if isinstance(stride, int) else None for stride in access.buffer.strides]
    for n, k, first in itertools.product(range(0, 65, divisor), range(ROUNDS), range(0, extent, found)):
        addresses, held = [], []
        for lane in range(found):
            values = {"N": n, "k": k, "v": first + lane}
            outer = n if strides[0] is None else strides[0]
            element = evaluate(row, values) * outer + evaluate(last, values) * strides[1] + access.buffer.offset
            addresses.append(alignment + int(element) * size)  # the least aligned base that there can be
            held.append([bool(evaluate(guard, values)) for guard in access.conditions])
        assert addresses == list(range(addresses[0], addresses[0] + found * size, size))
        assert addresses[0] % (found * size) == 0
        assert all(guards == held[0] for guards in held)


# ---- which accesses there are


def test_memory_accesses_are_found_with_the_conditions_around_them():
    x, y = tensor("X", 64), tensor("Y", 64)
    fragment = allocate("F", Scope.FRAGMENT, float32, (64,))
    inner, outer = V.lt(3), K.lt(1)
    value = select(inner, load(x, (V,)), load(y, (V,))) + load(fragment, (V,))
    mask = load(tensor("mask", 64, dtype=int32), (K,)).eq(0)
    body = Seq((
        Store(x, (V,), value),
        If(outer, Store(y, (V,), constant(0.0, float32)), Store(x, (V + 1,), load(y, (K,)))),
        If(mask, Store(fragment, (V,), load(x, (K,)))),
    ))  # fmt: skip
    found = [(a.buffer.name, a.is_store, a.conditions) for a in memory_accesses(body)]
    assert sorted(found, key=str) == sorted(
        [
            ("X", True, ()),
            ("X", False, (inner,)),
            ("Y", False, (inner,)),  # under its opposite, which is as uniform
            ("Y", True, (outer,)),
            ("X", True, (outer,)),
            ("Y", False, (outer,)),
            ("mask", False, ()),
            ("X", False, (mask,)),
        ],
        key=str,
    )

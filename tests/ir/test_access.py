"""Access maps against plain Python loops over threads and iterations."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile.ir.access import Access
from ptxtile.ir.access_context import Context, kernel_context
from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.conflicts import Overlap, Relation, compare, conflicts, repeats_conflict
from ptxtile.ir.enumeration import NotEnumerable, evaluate, separate
from ptxtile.ir.expressions import Binary, Const, Expr, Var, binary, constant, load, logical_and
from ptxtile.ir.expressions import compare as comparison
from ptxtile.ir.footprint import NOBODY, SEVERAL, footprint
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.statement_accesses import accesses
from ptxtile.ir.statements import For, If, Let, LoopKind, Statement, Store, seq
from ptxtile.ir.types import float32, int32, int64, uint8

THREAD, BX, N = Var("thread", int32), Var("bx", int32), Var("n", int32)
S = allocate("S", Scope.SHARED, int32, (512,))
R = allocate("R", Scope.REGISTER, int32, (8,))


def context(threads: int = 8, tensors: tuple[Buffer, ...] = ()) -> Context:
    others = (Var("by", int32), Var("bz", int32))
    kernel = Kernel("k", (1, 1, 1), threads, (BX, *others), THREAD, seq())
    parameters = tuple(TensorParameter(t) for t in tensors)
    return kernel_context(Program("p", parameters, (kernel,), symbols=(N,), stage="gpu"), kernel)


def loop(name: str, stop: int | Expr, body: Statement, start: int = 0, step: int = 1) -> For:
    bound = constant(stop) if isinstance(stop, int) else stop
    return For(Var(name, int32), constant(start), bound, step, LoopKind.SERIAL, body)


def put(index: Expr, buffer: Buffer = S, lanes: int = 1) -> Store:
    return Store(buffer, (index,), load(R, (constant(0),), lanes))


def only(statement: Statement, where: Context | None = None) -> Access:
    (access,) = accesses(statement, where or context())
    return access


def owners_by_byte(access: Access) -> dict[int, int]:
    found = footprint(access)
    assert found.owners is not None
    table = {}
    for cell, owner in enumerate(found.owners.tolist()):
        if owner != NOBODY:
            for byte in range(found.granule):
                table[found.start + cell * found.granule + byte] = owner
    return table


INDICES = st.recursive(
    st.sampled_from([THREAD, Var("i", int32), Var("j", int32), constant(1), constant(3), constant(8)]),
    lambda inner: st.builds(
        lambda operator, left, right: binary(operator, left, right),
        st.sampled_from(["add", "sub", "mul", "xor", "floormod", "floordiv", "min", "max", "truncdiv"]),
        inner,
        inner,
    ),
    max_leaves=5,
)
PYTHON = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "xor": lambda a, b: a ^ b,
    "floormod": lambda a, b: a % b, "floordiv": lambda a, b: a // b, "min": min, "max": max,
    "truncdiv": lambda a, b: int(a / b), "lt": lambda a, b: a < b,
}  # fmt: skip


def value(expression: Expr, **variables: int) -> int:
    match expression:
        case Const(number, _):
            return int(number)
        case Var(name, _):
            return variables[name]
        case Binary(operator, left, right, _):
            return PYTHON[operator](value(left, **variables), value(right, **variables))
    raise AssertionError


@settings(max_examples=150, deadline=None)
@given(index=INDICES, limit=st.integers(1, 9), lanes=st.sampled_from([1, 2]), stop=st.integers(1, 3))
def test_owner_table(index: Expr, limit: int, lanes: int, stop: int) -> None:
    statement = loop("i", stop, loop("j", 6, If(THREAD.lt(limit), put(index, lanes=lanes)), start=1, step=2))
    expected: dict[int, set[int]] = {}
    iterations: dict[int, set[tuple[int, int]]] = {}
    try:
        for thread, i, j in product(range(min(limit, 8)), range(stop), range(1, 6, 2)):
            start = 4 * value(index, thread=thread, i=i, j=j)
            for byte in range(start, start + 4 * lanes):
                expected.setdefault(byte, set()).add(thread)
                iterations.setdefault(byte, set()).add((i, j))
    except ZeroDivisionError:
        return  # unspecified
    access = only(statement)
    found = owners_by_byte(access)
    assert found == {byte: SEVERAL if len(threads) > 1 else min(threads) for byte, threads in expected.items()}
    meets_itself = any(len(threads) > 1 and len(iterations[byte]) > 1 for byte, threads in expected.items())
    assert repeats_conflict(access) == meets_itself


@settings(max_examples=150, deadline=None)
@given(first=INDICES, second=INDICES, writes=st.booleans())
def test_conflicts(first: Expr, second: Expr, writes: bool) -> None:
    def touched(index: Expr) -> dict[int, set[int]]:
        result: dict[int, set[int]] = {}
        for thread, i, j in product(range(8), range(2), range(3)):
            result.setdefault(value(index, thread=thread, i=i, j=j), set()).add(thread)
        return result

    try:
        a, b = touched(first), touched(second)
    except ZeroDivisionError:
        return
    expected = any(t != u for place in a.keys() & b.keys() for t in a[place] for u in b[place])
    reading = Store(R, (constant(0),), load(S, (second,)))
    one = only(loop("i", 2, loop("j", 3, put(first))))
    other = only(loop("i", 2, loop("j", 3, put(second) if writes else reading)))
    assert conflicts(one, other) == expected
    assert conflicts(other, one) == expected


def test_reads_of_two_threads_do_not_conflict() -> None:
    a, b = accesses(seq(*(Store(R, (constant(0),), load(S, (constant(0),))) for _ in range(2))), context())
    assert not conflicts(a, b)


@settings(max_examples=100, deadline=None)
@given(
    factor=st.integers(-9, 9), offset=st.integers(-5, 5), modulus=st.sampled_from([0, 2, 3]), lag=st.integers(0, 2),
    trips=st.integers(3, 6),
)  # fmt: skip
def test_iterations_apart(factor: int, offset: int, modulus: int, lag: int, trips: int) -> None:
    """Iteration k writes elements factor · (k mod modulus) + thread, and + offset: which lags meet."""
    k = Var("k", int32)
    stage = k % modulus if modulus else k
    base = binary("mul", stage, factor) + 100
    outer = context().with_loop(loop("k", trips, seq()), symbolic=True)
    a, b = only(put(base + THREAD), outer), only(put(base + THREAD + offset), outer)
    pairs = [
        (p, q)
        for p in range(trips)
        for q in range(trips)
        if (q == p if lag == 0 else q == p + 1 if lag == 1 else q > p)
    ]

    def places(iteration: int, shift: int) -> dict[int, int]:
        step = iteration % modulus if modulus else iteration
        return {factor * step + 100 + thread + shift: thread for thread in range(8)}

    expected = False
    for p, q in pairs:
        early, late = places(p, 0), places(q, offset)
        expected |= any(early[x] != late[x] for x in early.keys() & late.keys())
    relation = Relation((("k", lag),)) if lag else Relation()
    assert compare(a, b, relation) is (Overlap.CERTAIN if expected else Overlap.NONE)


def test_unknown_trip_count_with_a_constant_stride() -> None:
    k = Var("k", int32)
    outer = context().with_loop(loop("k", N, seq()), symbolic=True)
    for stride, expected in ((8, Overlap.NONE), (7, Overlap.CERTAIN), (-8, Overlap.NONE), (3, Overlap.CERTAIN)):
        access = only(put(binary("mul", k, stride) + THREAD), outer)
        assert compare(access, access, Relation((("k", 1),))) is expected, stride
        assert compare(access, access, Relation((("k", 2),))) is expected, stride


def test_block_offsets_cancel() -> None:
    g = allocate("G", Scope.GLOBAL, float32, (1 << 20,))
    where = context(tensors=(g,))
    tile = binary("mul", BX, 64)
    mirrored = tile + (7 - THREAD)
    here, there = only(put(tile + THREAD, g), where), only(put(mirrored, g), where)
    elsewhere = only(put(tile + 64 + THREAD, g), where)
    other_block = only(put(binary("mul", BX, 32) + THREAD, g), where)
    assert compare(here, here) is Overlap.NONE
    assert compare(here, there) is Overlap.CERTAIN
    assert compare(here, elsewhere) is Overlap.NONE
    assert compare(here, other_block) is Overlap.POSSIBLE


def test_wide_indices_and_casts_are_split_too() -> None:
    from ptxtile.ir.expressions import cast

    index = cast(binary("mul", BX, 64) + THREAD, int64) + 5
    terms, residual = separate(index, {"thread"}, {"bx"})
    assert {(str(term), factor) for term, factor in residual} == {(str(BX), 64)}
    assert sum(factor * evaluate(term, {"thread": 3}) for factor, term in terms) == 8
    with pytest.raises(NotEnumerable):
        separate(binary("mul", THREAD, N), {"thread"}, {"n"})


def test_data_dependent_address() -> None:
    somewhere = load(S, (THREAD,))
    read_index, written = accesses(put(somewhere), context())
    assert footprint(read_index).exact
    assert not footprint(written).exact
    assert compare(written, only(put(THREAD))) is Overlap.POSSIBLE
    x = Var("x", int32)
    through_let = accesses(seq(Let(x, somewhere), put(x), put(x)), context())
    assert not footprint(through_let[1]).exact
    assert compare(through_let[1], through_let[2]) is Overlap.NONE  # one map, whatever its values
    assert compare(through_let[1], through_let[2], Relation((("k", 1),))) is Overlap.POSSIBLE


@pytest.mark.parametrize(("distance", "lanes", "apart"), [(4, 4, True), (-4, 4, True), (3, 4, False), (0, 1, False)])
def test_parts_of_a_place_that_is_not_known(distance: int, lanes: int, apart: bool) -> None:
    """One thread, at a stage that it read from memory: the parts of one iteration lie beside each other, those of
    another one anywhere; and another thread may be at another stage."""
    stage = binary("mul", Var("stage", int32), constant(64))
    asked = dict(threads_matter=False)

    def stored(index: Expr, thread: int) -> Access:
        return only(If(THREAD.eq(thread), put(index, lanes=lanes)))

    first, second = stored(stage, 3), stored(binary("add", stage, constant(distance)), 3)
    assert (compare(first, second, **asked) is Overlap.NONE) == apart
    assert compare(first, second, Relation((("k", 1),)), **asked) is not Overlap.NONE
    other = stored(binary("add", stage, constant(distance)), 4)
    assert compare(first, other, **asked) is not Overlap.NONE
    elsewhere = stored(binary("add", binary("mul", Var("turn", int32), constant(64)), constant(distance)), 3)
    assert compare(first, elsewhere, **asked) is not Overlap.NONE
    twice = binary("mul", Var("i", int32), constant(2))
    looped = [only(If(THREAD.eq(3), loop("i", N, put(binary("add", twice, constant(d)))))) for d in (0, 2)]
    assert compare(*looped, **asked) is not Overlap.NONE
    places = (stage, binary("add", stage, constant(64)))
    read_again = [only(If(THREAD.eq(3), loop("j", N, put(place)))) for place in places]
    assert compare(*read_again, **asked) is not Overlap.NONE, "the stage may be another one in each turn"


def test_a_tail_guard_is_a_superset() -> None:
    guarded = only(If((binary("mul", BX, 8) + THREAD).lt(N), put(THREAD)))
    assert footprint(guarded).exact
    assert not footprint(guarded).complete
    assert compare(guarded, only(put(7 - THREAD))) is Overlap.POSSIBLE


def test_lazy_operands_are_read_under_their_condition() -> None:
    from ptxtile.ir.expressions import select

    chosen = select(THREAD.lt(3), load(S, (THREAD,)), load(S, (THREAD + 100,)))
    first, second = accesses(Store(R, (constant(0),), chosen), context())
    assert set(owners_by_byte(first).values()) == {0, 1, 2}
    assert set(owners_by_byte(second).values()) == {3, 4, 5, 6, 7}


def test_active_threads() -> None:
    where = context()
    assert where.active_threads() == (0xFF, True)
    assert where.with_condition(logical_and(THREAD.lt(3), N.gt(1))).active_threads() == (0b111, True)
    assert where.with_condition(THREAD.lt(N)).active_threads() == (0xFF, False)
    assert where.with_condition(THREAD.lt(3), holds=False).active_threads() == (0xF8, True)
    assert where.for_threads(4, 2).active_threads() == (0x30, True)


def test_bytes_and_words_of_one_storage() -> None:
    as_bytes = replace(S, name="bytes", dtype=uint8, shape=(2048,))
    word = only(put(THREAD))
    part = only(Store(as_bytes, (THREAD * 4 + 3,), load(R, (constant(0),))))
    assert part.width_bits == 32
    narrow = only(Store(as_bytes, (THREAD * 4 + 3,), Const(1, uint8)))
    assert not conflicts(word, narrow)
    assert conflicts(word, only(Store(as_bytes, (THREAD * 4 + 4,), Const(1, uint8))))


def test_integer_arithmetic_wraps() -> None:
    big = constant(2**31 - 1)
    assert evaluate(big + 1, {}) == -(2**31)
    assert int(evaluate(binary("mul", THREAD, 2**30), {"thread": 4})) == 0
    assert bool(evaluate(comparison("lt", big + 1, constant(0)), {}))


def test_a_typical_tile_is_cheap() -> None:
    """64 × 64 float32 over 128 threads as 16-byte vectors: enumerated in well under a millisecond (median of
    several)."""
    tile = allocate("tile", Scope.SHARED, float32, (64, 64))
    vectors = loop("v", 8, Store(tile, (binary("mul", Var("v", int32), 512) + THREAD * 4,), load(R, (constant(0),), 4)))
    seconds = []
    for _ in range(9):
        access = only(vectors, context(128))
        start = time.perf_counter()
        footprint(access)
        seconds.append(time.perf_counter() - start)
    assert sorted(seconds)[4] < 0.001
    owners = footprint(access).owners
    assert owners is not None
    assert len(owners) == 1024

"""Barriers between generic accesses: kinds of hazards, loops and trip counts, divergence, thread counts, global
memory."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ptxtile.errors import LoweringError, ResourceError
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, Var, binary, logical_and
from ptxtile.ir.program import Program
from ptxtile.ir.statements import Break, If, Let, Role, Specialized, Statement, While, seq
from ptxtile.ir.types import int8, int32
from tests.lower.hazard_programs import (
    BLOCKS,
    THREAD,
    TRIPS,
    barriers_of,
    body,
    loop,
    number,
    outline,
    placed,
    plus,
    program,
    read,
    registers,
    scalar,
    shared,
    synchronized,
    tensor,
    unrolled,
    write,
)
from tests.lower.race_referee import races

S, T, R = shared("S", 64), shared("T", 64), registers("R")
MIRROR = binary("sub", number(31), THREAD)


def put(line: int = 1, buffer: Buffer = S, index: Expr = THREAD) -> Statement:
    return write(buffer, index, THREAD, line)


def get(line: int = 2, buffer: Buffer = S, index: Expr = MIRROR, register: int = 0) -> Statement:
    return write(R, register, read(buffer, index), line)


def check(p: Program, expected: str, *, trips: tuple[int, ...] = (0, 1, 2, 3)) -> Program:
    """The outline after the pass is ``expected``. The referee finds races before it if it has barriers, and none
    after."""
    result = synchronized(p)
    assert outline(result) == expected
    for n in trips:
        assert races(result, n=n) == []
    assert any(races(placed(p), n=n) for n in trips) == ("B" in expected)
    return result


@pytest.mark.parametrize(
    ("first", "second"),
    [(put(), get()), (get(1), put(2)), (put(), write(S, MIRROR, 7, 2))],
    ids=["read after write", "write after read", "write after write"],
)
def test_two_statements(first: Statement, second: Statement) -> None:
    result = check(program(first, second), "S B S")
    (why,) = [record for record in result.why if record.pass_name == "insert_synchronization"]
    assert "kernel.py:1" in why.reason
    assert "kernel.py:2" in why.reason


def test_each_thread_reads_back_what_it_wrote() -> None:
    check(program(put(), get(index=THREAD), put(3), get(4, index=THREAD)), "S S S S")


def test_a_vector_access_is_bytes() -> None:
    """32 threads write 4 elements each; the same thread reads them back one by one, or another thread does."""
    big = shared("V", 128)
    fill = write(big, THREAD * 4, read(R, 0, lanes=4), 1)
    same = unrolled("v", 4, lambda v: write(R, v, read(big, plus(THREAD * 4, v)), 2))
    other = unrolled("v", 4, lambda v: write(R, v, read(big, plus(v * 32, THREAD)), 2))
    check(program(fill, same), "S for[S]")
    check(program(fill, other), "S B for[S]")


def test_barrier_serves_several_hazards_and_stands_as_late_as_possible() -> None:
    check(program(put(1), put(2, T), write(R, 1, 5), get(3), get(4, T)), "S S S B S S")


@pytest.mark.parametrize("trips", [1, 2, 3, TRIPS])
def test_loop_with_write_and_read(trips) -> None:
    """The read is after the write; the next iteration's write is after the read, if there is a next iteration."""
    expected = "for[S B S]" if trips == 1 else "for[B S B S]"
    check(program(loop("k", trips, seq(put(), get()))), expected)


def test_loop_of_no_iterations() -> None:
    check(program(put(), loop("k", TRIPS, seq(put(2, T))), get(3)), "S for[S] B S")


def test_statement_that_conflicts_with_its_next_iteration() -> None:
    """In iteration k thread t writes element t + k: the next iteration's write of it is another thread's."""
    p = program(loop("k", 3, lambda k: write(S, plus(THREAD, k), THREAD, 1)), get(2))
    check(p, "for[B S] B S")


def test_single_statement_loop_of_one_iteration() -> None:
    check(program(loop("k", 1, lambda k: write(S, plus(THREAD, k), THREAD, 1))), "for[S]")


def test_double_buffer_needs_one_barrier_an_iteration() -> None:
    half = lambda k: binary("mul", binary("floormod", k, number(2)), 32)  # noqa: E731
    p = program(
        loop("k", 4, lambda k: seq(write(S, plus(half(k), THREAD), k, 1), get(2, index=plus(half(k), MIRROR)))),
    )
    check(p, "for[S B S]")


def test_hazard_with_what_stood_before_the_loop_is_ordered_before_the_loop() -> None:
    check(program(put(), loop("k", 3, seq(get(), put(3, T, THREAD)))), "S B for[S S]")


def test_nested_loops() -> None:
    inner = loop("j", 2, seq(put(1), get(2)))
    check(program(loop("k", TRIPS, seq(inner, write(R, 1, 3)))), "for[for[B S B S] S]")


def test_uniform_condition_holds_the_barrier() -> None:
    check(program(put(), If(TRIPS.gt(1), get(2), get(3, index=THREAD))), "S if[B S|S]")
    check(program(If(TRIPS.gt(1), put(1)), get(2)), "if[S] B S")


def test_barrier_moves_in_front_of_a_divergent_condition() -> None:
    check(program(put(), If(THREAD.lt(7), seq(put(2, T), get(3)))), "S B if[S S]")
    nested = If(THREAD.lt(7), loop("k", 2, If(THREAD.gt(3), get(3))))
    check(program(put(), If(TRIPS.gt(0), nested)), "S if[B if[for[if[S]]]]")


def test_hazard_inside_a_divergent_condition_is_an_error_with_both_lines() -> None:
    with pytest.raises(LoweringError) as caught:
        synchronized(program(If(THREAD.lt(7), seq(put(4), get(5, index=binary("sub", number(6), THREAD))))))
    assert "kernel.py:4" in str(caught.value)
    assert "kernel.py:5" in str(caught.value)


def test_statement_that_races_with_itself_is_an_error() -> None:
    with pytest.raises(LoweringError, match="one statement"):
        synchronized(program(write(S, THREAD, read(S, MIRROR), 1)))


def test_divergent_loop_bound() -> None:
    check(program(put(), loop("k", THREAD, get(2))), "S B for[S]")
    with pytest.raises(LoweringError, match="not all threads arrive"):
        synchronized(program(loop("k", THREAD, seq(put(1), get(2)))))


def test_divergent_break_keeps_barriers_out_of_the_loop() -> None:
    leaves = If(binary("add", THREAD, number(0)).gt(5), Break())
    check(program(put(), loop("k", 3, seq(leaves, get(2)))), "S B for[if[] S]")
    with pytest.raises(LoweringError, match="not all threads arrive"):
        synchronized(program(loop("k", 3, seq(leaves, put(1), get(2)))))


def test_uniform_break() -> None:
    leaves = If(TRIPS.eq(1), Break())
    check(program(loop("k", 3, seq(put(1), leaves, get(2))), put(3)), "for[B S if[] B S] B S")


def test_while_over_a_uniform_scalar() -> None:
    i = scalar("i")
    turn = seq(put(1), get(2), write(i, 0, plus(read(i, 0), 1)))
    p = program(write(i, 0, 0), While(read(i, 0).lt(TRIPS), turn))
    check(p, "S while[B S B S S]")
    varying = program(write(i, 0, THREAD), While(read(i, 0).lt(TRIPS), turn))
    with pytest.raises(LoweringError, match="not all threads arrive"):
        synchronized(varying)


def test_while_condition_that_reads_shared_memory() -> None:
    """The condition is read again after the body has written the flag."""
    i = scalar("i")
    step = seq(write(i, 0, plus(read(i, 0), 1)), If(THREAD.eq(0), write(S, 0, read(i, 0), 2)))
    start = seq(write(i, 0, 0), If(THREAD.eq(0), write(S, 0, 0, 1)))
    p = program(start, While(read(S, 0).lt(TRIPS), step))
    result = synchronized(p)
    assert outline(result) == "S if[S] B while[S B if[S] B]"


@pytest.mark.parametrize("threads", [1, 5, 32, 33, 100])
def test_any_thread_count(threads: int) -> None:
    mirror = binary("sub", number(threads - 1), THREAD)
    big = shared("V", 128)
    p = program(write(big, THREAD, THREAD, 1), write(R, 0, read(big, mirror), 2), threads=threads)
    result = synchronized(p)
    whole_warps = {5: 32, 32: 32, 33: 64, 100: 128}
    assert [(b.id, b.threads) for b in barriers_of(result)] == ([] if threads == 1 else [(0, whole_warps[threads])])
    assert races(result) == []


def test_data_dependent_addresses_are_conservative() -> None:
    somewhere = read(T, THREAD)
    assert outline(synchronized(program(put(), get(2, index=somewhere)))) == "S B S"
    through_let = seq(Let(Var("x", int32), somewhere), get(2, index=Var("x", int32)))
    assert outline(synchronized(program(put(), through_let))) == "S B S"


def test_loop_marked_independent_is_taken_at_its_word() -> None:
    histogram = lambda v: write(S, read(T, plus(THREAD, v)), 1, 1)  # noqa: E731
    guarded = lambda v: If(THREAD.lt(9), seq(histogram(v), get(2, index=read(T, v))))  # noqa: E731
    assert outline(synchronized(program(loop("v", 2, guarded, independent=True)))) == "for[if[S S]]"
    with pytest.raises(LoweringError):
        synchronized(program(loop("v", 2, guarded)))


def test_lets_are_seen_through() -> None:
    x = Var("x", int32)
    check(program(put(), Let(x, plus(THREAD, 0)), get(2, index=x)), "S S")
    check(program(put(), Let(x, MIRROR), get(2, index=x)), "S B S")


def test_global_memory_within_the_block() -> None:
    a = tensor("A")
    tile = binary("mul", BLOCKS[0], 64)
    mine, other = plus(tile, THREAD), plus(tile, MIRROR)
    tensors = (a,)
    check(program(put(1, a, mine), get(2, a, mine), tensors=tensors), "S S")
    check(program(put(1, a, mine), get(2, a, other), tensors=tensors), "S B S")


def test_global_tensors_that_may_alias_are_one_memory() -> None:
    a, c = tensor("A"), tensor("C")
    first, second = get(1, a, THREAD), put(2, c, MIRROR)
    assert outline(synchronized(program(first, second, tensors=(a, c)))) == "S S"
    assert outline(synchronized(program(first, second, tensors=(a, c), alias=("A", "C")))) == "S B S"
    in_place = put(2, c, THREAD)
    assert outline(synchronized(program(first, in_place, tensors=(a, c), alias=("A", "C")))) == "S S"


def test_global_tiles_of_one_loop_do_not_meet() -> None:
    a = tensor("A")
    tile = lambda k: plus(binary("mul", k, 32), THREAD)  # noqa: E731
    overlapping = lambda k: plus(binary("mul", k, 31), THREAD)  # noqa: E731
    assert outline(synchronized(program(loop("k", TRIPS, lambda k: put(1, a, tile(k))), tensors=(a,)))) == "for[S]"
    q = synchronized(program(loop("k", TRIPS, lambda k: put(1, a, overlapping(k))), tensors=(a,)))
    assert outline(q) == "for[B S]"


def test_symbolic_strides_in_place() -> None:
    """A[row · n + column] read and written by the same map: no thread meets another."""
    a = tensor("A")
    index = plus(binary("mul", plus(BLOCKS[0] * 8, binary("floordiv", THREAD, number(8))), TRIPS), THREAD)
    guard = logical_and(index.lt(TRIPS), THREAD.lt(TRIPS))
    step = lambda v: If(guard, write(a, plus(index, v), read(a, plus(index, v)), 1))  # noqa: E731
    assert outline(synchronized(program(step(number(0)), tensors=(a,)))) == "if[S]"
    assert outline(synchronized(program(loop("v", 2, step, independent=True), tensors=(a,)))) == "for[if[S]]"
    copied = program(loop("v", 2, step, independent=True), loop("w", 2, step, independent=True), tensors=(a,))
    assert outline(synchronized(copied)) == "for[if[S]] for[if[S]]"


def test_roles_use_barriers_of_their_own() -> None:
    tile = shared("V", 128)

    def half(first: int) -> Statement:
        low, mirror = THREAD, binary("sub", number(2 * first + 63), THREAD)
        return seq(write(tile, low, 1, 1), write(R, 0, read(tile, mirror), 2))

    p = program(Specialized((Role("a", 0, 64, half(0)), Role("b", 64, 64, half(64)))), threads=128)
    result = check(p, "a[S B S] b[S B S]")
    assert [(b.id, b.threads) for b in barriers_of(result)] == [(1, 64), (2, 64)]


def test_role_after_common_code_is_ordered_by_the_whole_block() -> None:
    tile = shared("V", 128)
    mirror = binary("sub", number(127), THREAD)
    reads = write(R, 0, read(tile, mirror), 2)
    p = program(
        write(tile, THREAD, 1, 1), Specialized((Role("a", 0, 64, reads), Role("b", 64, 64, put(3)))), threads=128
    )
    result = check(p, "S B a[S] b[S]")
    assert [b.id for b in barriers_of(result)] == [0]


def test_common_code_after_roles() -> None:
    tile = shared("V", 128)
    writes = write(tile, THREAD, 1, 1)
    after = write(R, 0, read(tile, binary("sub", number(127), THREAD)), 2)
    p = program(Specialized((Role("a", 0, 64, writes), Role("b", 64, 64, writes))), after, threads=128)
    check(p, "a[S] b[S] B S")


def test_roles_that_share_memory_without_a_hand_over() -> None:
    p = program(Specialized((Role("a", 0, 32, put(1)), Role("b", 32, 32, get(2, index=THREAD - 32)))), threads=64)
    with pytest.raises(LoweringError, match="roles a and b both touch S"):
        synchronized(p)


def test_named_barriers_run_out() -> None:
    tile = shared("V", 1024)
    roles = []
    for number_of_role in range(16):
        first = 32 * number_of_role
        mirror = binary("sub", number(2 * first + 31), THREAD)
        roles.append(Role(f"r{first}", first, 32, seq(write(tile, THREAD, 1), write(R, 0, read(tile, mirror)))))
    assert len(barriers_of(synchronized(program(Specialized(tuple(roles[:15])), threads=480)))) == 15
    with pytest.raises(ResourceError, match="no named barrier is left"):
        synchronized(program(Specialized(tuple(roles)), threads=512))


def test_a_merge_creates_a_hazard_and_a_barrier() -> None:
    """T takes S's bytes after S's last read by another thread."""
    use_t = seq(put(3, T), get(4, T, THREAD))
    p = program(put(1), get(2, index=THREAD), use_t)
    assert outline(synchronized(p)) == "S S S S"
    crossed = seq(write(T, MIRROR, 1, 3), get(4, T, MIRROR))
    q = synchronized(program(put(1), get(2, index=THREAD), crossed))
    assert outline(q) == "S S B S S"
    assert races(q) == []


def test_nothing_changes_where_nothing_is_needed() -> None:
    p = placed(program(put(1), get(2, index=THREAD)))
    assert body(synchronized(p)) is body(p)


def test_elements_of_another_width_through_one_storage() -> None:
    """One storage seen as bytes and as words: thread t's word is bytes 4t to 4t + 3."""
    view = replace(S, name="bytes", dtype=int8, shape=(256,))
    fill = put(1)
    mine = unrolled("v", 4, lambda v: write(R, v, binary("add", number(0), number(0)), 2))
    same = unrolled("v", 4, lambda v: Let(Var("b", int8), read(view, plus(THREAD * 4, v))))
    other = unrolled("v", 4, lambda v: Let(Var("b", int8), read(view, plus(THREAD, v * 32))))
    check(program(fill, mine, same), "S for[S] for[]")
    check(program(fill, mine, other), "S for[S] B for[]")

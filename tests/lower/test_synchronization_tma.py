"""Proxy fences, barriers and waits around TMA operations and mbarriers."""

from __future__ import annotations

import pytest

from ptxtile.errors import LoweringError
from ptxtile.ir import gpu_ops as g
from ptxtile.ir.atomic_ops import Atomic
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, binary, constant, logical_and
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import If, Role, Specialized, Statement, seq
from ptxtile.ir.types import float32
from tests.lower.hazard_programs import (
    THREAD,
    TRIPS,
    at,
    barriers,
    barriers_of,
    body,
    elected,
    loop,
    number,
    offsets,
    outline,
    placed,
    plus,
    program,
    read,
    registers,
    shared,
    synchronized,
    tensor,
    unrolled,
    write,
)
from tests.lower.race_referee import races

SIZE = 4096
A, B, C = (shared(name, SIZE) for name in "ABC")
R = registers("R", 32)
BARS = barriers()
MAPS = tuple((f"m{name}", f"T{name}", SIZE) for name in "ABC")
TENSORS = tuple(tensor(f"T{name}") for name in "ABC")


def tma_program(
    *statements: Statement, threads: int = 128, initialise: bool = True, alias: tuple[str, ...] = ()
) -> Program:
    start = (elected(0, g.MbarrierInit(BARS, number(0), 1), g.FenceMbarrierInit()), g.BarSync(0, threads))
    kept = start if initialise else ()
    return program(*kept, *statements, threads=threads, tensors=TENSORS, alias=alias, maps=MAPS)


def load_tiles(*tiles: Buffer, coordinate: Expr | int = 0, condition: Expr | None = None, line: int = 10) -> Statement:
    where = coordinate if isinstance(coordinate, Expr) else number(coordinate)
    loads = [g.TmaLoad(f"m{t.name}", (where,), t, number(0), BARS, number(0), location=at(line)) for t in tiles]
    inside = seq(g.MbarrierArriveExpectTx(BARS, number(0), 4 * SIZE * len(tiles)), *loads)
    return If(THREAD.eq(0) if condition is None else logical_and(THREAD.eq(0), condition), inside)


def wait_for(*tiles: Buffer, parity: Expr | int = 0) -> Statement:
    return g.MbarrierWait(BARS, number(0), parity if isinstance(parity, Expr) else number(parity), tiles)


def store_tile(
    tile: Buffer, coordinate: Expr | int = 0, read_wait: bool = True, thread: int = 0, to: str = ""
) -> Statement:
    where = coordinate if isinstance(coordinate, Expr) else number(coordinate)
    operation = g.TmaStore(f"m{to or tile.name}", (where,), tile, number(0), location=at(14))
    return elected(thread, operation, g.BulkCommitGroup(), *((g.BulkWaitGroup(0, True),) if read_wait else ()))


def rows(v: Expr) -> Expr:
    return plus(binary("mul", v, 128), THREAD)


def columns(v: Expr) -> Expr:
    return plus(binary("mul", THREAD, 32), v)


def add_tiles() -> Statement:
    return unrolled("v", 32, lambda v: write(R, v, plus(read(A, rows(v)), read(B, rows(v))), 12))


def stage(tile: Buffer = C, where=rows) -> Statement:
    return unrolled("w", 32, lambda v: write(tile, where(v), read(R, v), 13))


def check(p: Program, expected: str) -> Program:
    result = synchronized(p)
    assert outline(result) == expected
    assert races(result) == []
    return result


START = "if[I FI] B "


def test_add_with_a_staged_result_needs_one_fence_and_one_barrier() -> None:
    p = tma_program(load_tiles(A, B), wait_for(A, B), add_tiles(), stage(), store_tile(C))
    q = check(p, START + "if[E TL TL] W for[S] for[S] Fs B if[TS C Wr]")
    assert q.kernels[0].shared_bytes == 32768 + 8
    assert offsets(q)["C"] in (offsets(q)["A"], offsets(q)["B"])
    assert races(placed(p)) != []
    assert any("TMA read of C" in why.reason and "kernel.py:13" in why.reason for why in q.why)


def test_result_staged_by_other_threads_over_the_inputs() -> None:
    """Merged bytes are read by one thread and written by another: a barrier that no program line asks for."""
    p = tma_program(load_tiles(A, B), wait_for(A, B), add_tiles(), stage(where=columns), store_tile(C))
    check(p, START + "if[E TL TL] W for[S] B for[S] Fs B if[TS C Wr]")


def test_barrier_initialisation_is_completed_and_not_doubled() -> None:
    init = elected(0, g.MbarrierInit(BARS, number(0), 1))
    rest = (load_tiles(A), wait_for(A), unrolled("v", 32, lambda v: write(R, v, read(A, rows(v)))))
    after = "if[E TL] B W for[S]"
    q = synchronized(tma_program(init, *rest, initialise=False))
    assert outline(q) == "if[I] FI " + after
    fenced = elected(0, g.MbarrierInit(BARS, number(0), 1), g.FenceMbarrierInit())
    assert outline(synchronized(tma_program(fenced, *rest, initialise=False))) == "if[I FI] " + after
    synced = seq(init, g.BarSync(0, 128))
    assert outline(synchronized(tma_program(synced, *rest, initialise=False))) == "if[I] FI B if[E TL] W for[S]"
    assert outline(synchronized(tma_program(*rest))) == START + "if[E TL] W for[S]"


def test_load_over_what_was_read_needs_a_fence_and_a_barrier() -> None:
    reads = unrolled("v", 32, lambda v: write(R, v, read(A, rows(v)), 12))
    p = tma_program(loop("k", TRIPS, lambda k: seq(load_tiles(A, coordinate=k), wait_for(A, parity=k % 2), reads)))
    check(p, START + "for[Fs B if[E TL] W for[S]]")


def test_load_over_what_was_written_needs_a_fence() -> None:
    fill = unrolled("v", 32, lambda v: write(A, rows(v), 1, 9))
    p = tma_program(fill, load_tiles(A), wait_for(A))
    check(p, START + "for[S] Fs B if[E TL] W")


def test_store_reuses_its_source_in_a_loop() -> None:
    """The issuing thread alone has waited for the reads: the others meet it at a barrier before they write again."""
    tile = lambda k: binary("mul", k, SIZE)  # noqa: E731
    p = tma_program(loop("k", TRIPS, lambda k: seq(stage(), store_tile(C, tile(k)))))
    check(p, START + "for[B for[S] Fs B if[TS C Wr]]")


def test_store_without_a_wait_is_waited_for_before_its_source_is_written() -> None:
    tile = lambda k: binary("mul", k, SIZE)  # noqa: E731
    p = tma_program(loop("k", TRIPS, lambda k: seq(stage(), store_tile(C, tile(k), read_wait=False))))
    check(p, START + "for[Wr B for[S] Fs B if[TS C]] Wr")


def test_two_buffers_by_turns_leave_the_other_store_pending() -> None:
    """A buffer is written again when the store before the last one has read it; the last one goes on."""
    tile = lambda k: binary("mul", k, SIZE)  # noqa: E731

    def turn(k: Expr) -> Statement:
        return seq(*(part for t in (C, B) for part in (stage(t), store_tile(t, tile(k), read_wait=False))))

    large = shared("large", 32 * 1024)  # only one block fits, whether B and C share bytes or not
    p = tma_program(write(large, THREAD, 1), loop("k", TRIPS, turn), write(R, 0, read(large, THREAD)))
    check(p, START + "S for[Wr1 B for[S] Fs B if[TS C] Wr1 B for[S] Fs B if[TS C]] S Wr")


def test_the_end_waits_for_the_reads_of_stores_that_are_left() -> None:
    """Shared memory goes with the block; what a store writes outlives it."""
    check(tma_program(stage(), store_tile(C, read_wait=False)), START + "for[S] Fs B if[TS C] Wr")
    some = If(TRIPS.gt(1), seq(stage(), store_tile(C, read_wait=False)))
    check(tma_program(some), START + "if[for[S] Fs B if[TS C]] Wr")


def test_a_role_waits_for_its_own_stores() -> None:
    consumer = seq(wait_for(A, B), add_tiles(), stage(), store_tile(C, read_wait=False))
    q = synchronized(specialized(consumer, producer_loads(A, B)))
    assert outline(q) == START + "consumer[W for[S] for[S] Fs B if[TS C] Wr] producer[if[E TL TL]]"
    assert races(q) == []


def test_stores_of_one_thread_to_one_place_wait_where_they_stand() -> None:
    """The thread waits for itself: that needs no place that all threads reach."""
    copy = g.TmaStore("mC", (number(0),), C, number(0), location=at(14))
    twice = elected(0, copy, g.BulkCommitGroup(), copy, g.BulkCommitGroup())
    check(tma_program(stage(), twice), START + "for[S] Fs B if[TS C Wg TS C] Wr")


def test_a_store_of_another_place_does_not_wait() -> None:
    """Two parts of one tile at different columns, as an epilogue stores them."""
    row = binary("mul", TRIPS, 2 * SIZE)
    for distance, between in ((SIZE, ""), (SIZE // 2, "Wg ")):
        second = store_tile(B, plus(row, distance), False, to="C")
        p = tma_program(stage(C), stage(B), store_tile(C, row, False), second)
        check(p, START + f"for[S] for[S] Fs B if[TS C] {between}if[TS C] Wr")


def test_a_store_that_nobody_commits_is_reported() -> None:
    copy = elected(0, g.TmaStore("mC", (number(0),), C, number(0), location=at(14)))
    with pytest.raises(LoweringError, match="nothing commits a TMA store"):
        synchronized(tma_program(stage(), copy, stage()))


def test_stores_to_one_tile_are_ordered_and_to_different_tiles_are_not() -> None:
    same = tma_program(loop("k", TRIPS, lambda k: seq(stage(), store_tile(C, 0))))
    assert outline(synchronized(same)) == START + "for[B for[S] Wg Fs B if[TS C Wr]]"
    halves = lambda k: binary("mul", k, SIZE // 2)  # noqa: E731
    overlapping = tma_program(loop("k", TRIPS, lambda k: seq(stage(), store_tile(C, halves(k)))))
    assert "Wg" in outline(synchronized(overlapping))


def test_generic_read_of_what_a_bulk_store_wrote() -> None:
    """wait_group.read is not enough: the full wait, a global proxy fence and a barrier."""
    out = TENSORS[2]
    p = tma_program(stage(), store_tile(C), write(R, 0, read(out, THREAD), 15))
    assert outline(synchronized(p)) == START + "for[S] Fs B if[TS C Wr] Wg Fg B S"


def reduce_tile(tile: Buffer, operator: str, coordinate: int = 0, map_of: str = "C") -> Statement:
    operation = g.TmaStore(f"m{map_of}", (number(coordinate),), tile, number(0), operator, location=at(16))
    return elected(0, operation, g.BulkCommitGroup(), g.BulkWaitGroup(0, True))


def test_reductions_of_one_place_commute_when_their_operator_is_the_same() -> None:
    added = [reduce_tile(C, "add"), reduce_tile(C, "add")]
    assert outline(synchronized(tma_program(stage(), *added))) == START + "for[S] Fs B if[TS C Wr] if[TS C Wr]"
    mixed = [reduce_tile(C, "add"), reduce_tile(C, "max")]
    assert outline(synchronized(tma_program(stage(), *mixed))) == START + "for[S] Fs B if[TS C Wr] Wg if[TS C Wr]"
    stored = [store_tile(C), reduce_tile(C, "add")]
    assert outline(synchronized(tma_program(stage(), *stored))) == START + "for[S] Fs B if[TS C Wr] Wg if[TS C Wr]"


def test_generic_accesses_of_what_a_reduction_combines() -> None:
    """Before it: a global proxy fence, also for atomic operations; after it: the full wait and a fence."""
    out = TENSORS[2]
    after = tma_program(stage(), reduce_tile(C, "add"), write(R, 0, read(out, THREAD), 15))
    assert outline(synchronized(after)) == START + "for[S] Fs B if[TS C Wr] Wg Fg B S"
    before = tma_program(write(out, THREAD, 1, 9), stage(), reduce_tile(C, "add"))
    assert outline(synchronized(before)) == START + "S for[S] Fg Fs B if[TS C Wr]"
    atomic = Atomic("add", out, (THREAD,), constant(1.0, float32), location=at(9))
    assert outline(synchronized(tma_program(atomic, stage(), reduce_tile(C, "add")))).endswith("Fg Fs B if[TS C Wr]")


def test_load_of_what_was_written_to_global_memory_in_the_kernel() -> None:
    p = tma_program(write(TENSORS[0], THREAD, 1, 9), load_tiles(A), wait_for(A))
    assert outline(synchronized(p)) == START + "S Fg B if[E TL] W"


def test_in_place_tensors_keep_their_order() -> None:
    """The load of A has been waited for by the thread that stores C, which may be the same memory."""
    p = tma_program(load_tiles(A, B), wait_for(A, B), add_tiles(), stage(), store_tile(C), alias=("TA", "TC"))
    check(p, START + "if[E TL TL] W for[S] for[S] Fs B if[TS C Wr]")


def test_fence_goes_before_a_barrier_that_is_there_for_another_reason() -> None:
    """All threads write C; a barrier orders that before a transposed read; the store needs no barrier of its own."""
    crossed = unrolled("v", 32, lambda v: write(R, v, read(C, columns(v)), 13))
    p = tma_program(stage(), crossed, store_tile(C))
    check(p, START + "for[S] Fs B for[S] if[TS C Wr]")


def test_one_thread_writes_and_stores() -> None:
    """Same thread: a fence and no barrier."""
    fill = elected(0, loop("i", SIZE, lambda i: write(C, i, 1, 13)))
    check(tma_program(fill, store_tile(C)), START + "if[for[S]] Fs if[TS C Wr]")


def test_store_by_another_thread_than_the_loader_waits_at_the_barrier() -> None:
    p = tma_program(load_tiles(A), wait_for(A), store_tile(A, thread=32))
    check(p, START + "if[E TL] W if[TS C Wr]")


def test_load_that_nobody_waits_for_is_an_error() -> None:
    with pytest.raises(LoweringError, match="nothing waits for a TMA load") as caught:
        synchronized(tma_program(load_tiles(A), unrolled("v", 32, lambda v: write(R, v, read(A, rows(v)), 12))))
    assert "kernel.py:10" in str(caught.value)
    assert "kernel.py:12" in str(caught.value)


def specialized(consumer: Statement, producer: Statement, consumers: int = 128) -> Program:
    threads = consumers + 128
    start = (elected(0, g.MbarrierInit(BARS, number(0), 1), g.FenceMbarrierInit()), g.BarSync(0, threads))
    roles = Specialized((Role("consumer", 0, consumers, consumer), Role("producer", consumers, 128, producer)))
    return program(*start, roles, threads=threads, tensors=TENSORS, maps=MAPS)


def producer_loads(*tiles: Buffer, thread: int = 128) -> Statement:
    loads = [g.TmaLoad(f"m{t.name}", (number(0),), t, number(0), BARS, number(0), location=at(10)) for t in tiles]
    return elected(thread, g.MbarrierArriveExpectTx(BARS, number(0), 4 * SIZE * len(tiles)), *loads)


def test_specialized_add() -> None:
    """One named barrier of the consumers; C takes the bytes of A, which the producer loads only once."""
    consumer = seq(wait_for(A, B), add_tiles(), stage(), store_tile(C))
    q = synchronized(specialized(consumer, producer_loads(A, B)))
    assert outline(q) == START + "consumer[W for[S] for[S] Fs B if[TS C Wr]] producer[if[E TL TL]]"
    assert [(b.id, b.threads) for b in barriers_of(q)] == [(0, 256), (1, 128)]
    assert q.kernels[0].shared_bytes == 32768 + 8
    assert races(q) == []


def ring(releases: Statement, arrivals: int) -> Program:
    """A ring of one stage: the producer waits until A is empty, the consumers until it is full."""
    full, empty = barriers("full"), barriers("empty")

    def load(k: Expr) -> Statement:
        arrive = g.MbarrierArriveExpectTx(full, number(0), 4 * SIZE)
        copy = g.TmaLoad("mA", (number(0),), A, number(0), full, number(0), location=at(10))
        return seq(g.MbarrierWait(empty, number(0), (k + 1) % 2, (A,)), elected(128, arrive, copy))

    use = unrolled("v", 32, lambda v: write(R, v, read(A, rows(v)), 12))
    consume = lambda k: seq(g.MbarrierWait(full, number(0), k % 2, (A,)), use, releases)  # noqa: E731
    initialise = [
        elected(0, g.MbarrierInit(b, number(0), count), g.FenceMbarrierInit())
        for b, count in ((full, 1), (empty, arrivals))
    ]
    roles = Specialized(
        (Role("consumer", 0, 128, loop("k", TRIPS, consume)), Role("producer", 128, 128, loop("j", TRIPS, load)))
    )
    return program(*initialise, g.BarSync(0, 256), roles, threads=256, tensors=TENSORS, maps=MAPS)


def test_ring_between_roles_needs_no_barrier_when_every_consumer_arrives() -> None:
    q = synchronized(ring(g.MbarrierArrive(barriers("empty"), number(0)), 128))
    assert [b.id for b in barriers_of(q)] == [0]
    assert outline(q).endswith("B consumer[for[W for[S] Fs A]] producer[for[W if[E TL]]]")
    assert races(q) == []


def test_one_arrival_for_all_consumers_comes_after_their_barrier() -> None:
    q = synchronized(ring(elected(0, g.MbarrierArrive(barriers("empty"), number(0))), 1))
    assert outline(q).endswith("B consumer[for[W for[S] Fs B if[A]]] producer[for[W if[E TL]]]")
    assert races(q) == []
    assert [(b.id, b.threads) for b in barriers_of(q)] == [(0, 256), (1, 128)]


def test_ring_keeps_its_memory() -> None:
    """A is loaded again and again: nothing may be merged with it, also after the consumers' last read."""
    q = synchronized(ring(seq(g.MbarrierArrive(barriers("empty"), number(0)), stage(C), store_tile(C)), 128))
    place = offsets(q)
    assert abs(place["A"] - place["C"]) >= 4 * SIZE


def test_every_inserted_op_has_a_record() -> None:
    q = synchronized(tma_program(load_tiles(A, B), wait_for(A, B), add_tiles(), stage(where=columns), store_tile(C)))
    inserted = [n for n in walk(body(q)) if isinstance(n, (g.BarSync, g.FenceProxyAsync))]
    records = [why for why in q.why if why.pass_name == "insert_synchronization"]
    assert len(inserted) - 1 == 3  # one barrier came with the program
    assert sum(why.decision.count("barrier") + why.decision.count("fence") for why in records) == 3


# --- warpgroups by themselves ----------------------------------------------------------------------------------------

PART = SIZE // 2
HALVES = (("half", "TC", PART),)


def own_part(line: int = 13) -> Statement:
    """256 threads fill C, each warpgroup a half of it."""
    here = binary("mul", binary("floordiv", THREAD, 128), PART)
    lane = binary("floormod", THREAD, 128)
    place = lambda v: plus(plus(here, binary("mul", v, 128)), lane)  # noqa: E731
    return unrolled("w", 16, lambda v: write(C, place(v), read(R, v), line))


def store_own_part(coordinate: Expr | int = 0, elements: int = PART) -> Statement:
    """One thread of each warpgroup stores its half, ``elements`` apart in global memory."""
    half = binary("floordiv", THREAD, 128)
    where = plus(coordinate if isinstance(coordinate, Expr) else number(coordinate), binary("mul", half, elements))
    copy = g.TmaStore("half", (where,), C, binary("mul", half, PART), location=at(14))
    return If(binary("floormod", THREAD, 128).eq(0), seq(copy, g.BulkCommitGroup()))


def of_warpgroups(*statements: Statement, threads: int = 256) -> Program:
    return program(*statements, threads=threads, tensors=TENSORS, maps=HALVES)


def test_warpgroups_that_store_their_own_parts_do_not_meet() -> None:
    check(of_warpgroups(own_part(), store_own_part()), "for[S] Fs if[B|B] if[TS C] Wr")
    q = check(
        of_warpgroups(loop("k", TRIPS, lambda k: seq(own_part(), store_own_part(binary("mul", k, SIZE))))),
        "for[Wr if[B|B] for[S] Fs if[B|B] if[TS C]] Wr",
    )
    assert sorted({(b.id, b.threads) for b in barriers_of(q)}) == [(1, 128), (2, 128)]
    assert [why.decision for why in q.why if "warpgroup" in why.decision]


def test_parts_of_two_warpgroups_that_overlap_in_memory_are_ordered() -> None:
    """In the same iteration they are one statement's; from one iteration to the next both have to be done."""
    p = of_warpgroups(loop("k", TRIPS, lambda k: seq(own_part(), store_own_part(binary("mul", k, PART)))))
    assert outline(synchronized(p)) == "for[Wr if[B|B] for[S] Wg Fs B if[TS C]] Wr"
    assert races(synchronized(p), n=3) == []


def test_a_store_of_all_by_one_thread_needs_all() -> None:
    whole = program(own_part(), store_tile(C, 0, False), threads=256, tensors=TENSORS, maps=MAPS)
    check(whole, "for[S] Fs B if[TS C] Wr")


def test_a_read_of_the_other_half_needs_all() -> None:
    """Barriers of warpgroups do not tell the other warpgroup."""
    other = unrolled("u", 16, lambda v: write(R, v, read(C, binary("sub", number(SIZE - 1), plus(THREAD, v * 256)))))
    own = unrolled("o", 16, lambda v: write(R, v, read(C, plus(binary("mul", THREAD, 16), v))))
    check(of_warpgroups(own_part(), own), "for[S] if[B|B] for[S]")
    check(of_warpgroups(own_part(), own, other), "for[S] if[B|B] for[S] B for[S]")
    check(of_warpgroups(own_part(), other), "for[S] B for[S]")


def test_one_warpgroup_has_one_barrier() -> None:
    own = unrolled("o", 16, lambda v: write(R, v, read(C, plus(binary("mul", THREAD, 16), v))))
    fill = unrolled("w", 16, lambda v: write(C, plus(binary("mul", v, 128), THREAD), 1))
    q = check(of_warpgroups(fill, own, threads=128), "for[S] B for[S]")
    assert [(b.id, b.threads) for b in barriers_of(q)] == [(0, 128)]


def test_a_role_of_three_warpgroups_has_three_barriers() -> None:
    part = lambda v: plus(binary("mul", binary("floordiv", THREAD, 128), PART // 2), v)  # noqa: E731
    lane = binary("floormod", THREAD, 128)
    fill = unrolled("w", 8, lambda v: write(C, plus(part(binary("mul", v, 128)), lane), 1))
    own = unrolled("o", 8, lambda v: write(R, v, read(C, plus(binary("mul", THREAD, 8), v))))
    idle = unrolled("i", 8, lambda v: write(R, v, 1))
    roles = Specialized((Role("work", 0, 384, seq(fill, own)), Role("other", 384, 128, idle)))
    q = check(of_warpgroups(roles, threads=512), "work[for[S] if[B|if[B|B]] for[S]] other[for[S]]")
    assert [(b.id, b.threads) for b in barriers_of(q)] == [(1, 128), (2, 128), (3, 128)]

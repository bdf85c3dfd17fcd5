"""Offsets in shared memory: what may share bytes, alignment, totals, and the error when it does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptxtile.errors import ResourceError
from ptxtile.ir import gpu_ops as g
from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.layouts import TMA_SWIZZLES, SharedLayout, row_major
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import Rewriter
from ptxtile.ir.statements import Allocate, Break, If, Role, Specialized, Statement, seq
from ptxtile.ir.types import float32
from ptxtile.lower import place_shared_memory
from ptxtile.lower.options import Options
from tests.lower.hazard_programs import (
    TARGET,
    THREAD,
    TRIPS,
    at,
    barriers,
    body,
    elected,
    loop,
    number,
    offsets,
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
from tests.lower.race_referee import referee
from tests.lower.random_hazards import Generator

A, B, C = (shared(name, 64) for name in "ABC")
R = registers("R")


def fill(buffer=A) -> Statement:
    return unrolled("v" + buffer.name, 2, lambda v: write(buffer, plus(THREAD * 2, v), 1))


def use(buffer=A, name: str = "w") -> Statement:
    return unrolled(name + buffer.name, 2, lambda v: write(R, v, read(buffer, plus(THREAD * 2, v))))


def total(*statements: Statement, **options) -> int | None:
    return placed(program(*statements, **options)).kernels[0].shared_bytes


def test_storages_used_one_after_the_other_share_their_bytes() -> None:
    p = placed(program(fill(A), use(A), fill(B), use(B)))
    assert offsets(p) == {"A": 0, "B": 0}
    assert p.kernels[0].shared_bytes == 256
    (why,) = p.why
    assert "shares bytes 0 to 255 with A" in why.decision


def test_storages_used_at_the_same_time_do_not() -> None:
    assert total(fill(A), fill(B), use(A), use(B)) == 512
    both = unrolled("v", 2, lambda v: write(B, plus(THREAD * 2, v), read(A, plus(THREAD * 2, v))))
    assert total(fill(A), both, use(B)) == 512


def test_best_fit_takes_the_smallest_gap() -> None:
    """P, Q, S live in turn with a long-lived storage between; the small one goes where it fits best."""
    big, small, late = shared("big", 256), shared("small", 64), shared("late", 60)
    keep = shared("keep", 64)
    sequence = (fill(keep), fill(big), fill(small), use(big), use(small), fill(late), use(late), use(keep))
    p = placed(program(*sequence))
    assert p.kernels[0].shared_bytes == 4 * (256 + 64 + 64)
    place = offsets(p)
    assert place["late"] == place["small"]


def test_nothing_shared() -> None:
    p = placed(program(write(R, 0, 1)))
    assert p.kernels[0].shared_bytes == 0


def test_unused_allocation_takes_no_bytes() -> None:
    assert total(Allocate(A), fill(B), use(B)) == 256


@pytest.mark.parametrize("trips", [1, 3, TRIPS])
def test_each_iteration_writes_before_it_reads(trips) -> None:
    assert total(loop("k", trips, seq(fill(A), use(A), fill(B), use(B)))) == 256


def test_contents_carried_to_the_next_iteration() -> None:
    assert total(fill(A), loop("k", 3, seq(use(A), fill(A), fill(B), use(B)))) == 512
    assert total(loop("k", 3, seq(use(A), fill(B), use(B), fill(A)))) == 512


def test_contents_used_after_the_loop() -> None:
    assert total(loop("k", 3, seq(fill(B), use(B), fill(A))), use(A)) == 512


def test_partial_write_before_the_read() -> None:
    half = If(THREAD.lt(16), fill(A))
    assert total(loop("k", 3, seq(half, use(A), fill(B), use(B)))) == 512
    first_elements = write(A, THREAD, 1)
    assert total(loop("k", 3, seq(first_elements, use(A), fill(B), use(B)))) == 512


def test_write_that_may_not_happen() -> None:
    assert total(loop("k", 3, seq(If(TRIPS.gt(1), fill(A)), use(A), fill(B), use(B)))) == 512
    assert total(loop("k", 3, seq(loop("j", TRIPS, fill(A)), use(A), fill(B), use(B)))) == 512
    leaving = loop("j", 2, seq(If(TRIPS.gt(1), Break()), fill(A)))
    assert total(loop("k", 3, seq(leaving, use(A), fill(B), use(B)))) == 512
    assert total(loop("k", 3, seq(loop("j", 2, fill(A)), use(A), fill(B), use(B)))) == 256


def test_allocated_inside_the_loop() -> None:
    """What an iteration allocates holds nothing of the one before."""
    half = If(THREAD.lt(16), fill(A))
    assert total(loop("k", 3, seq(Allocate(A), half, use(A), fill(B), use(B)))) == 256


def test_data_dependent_read_keeps_the_contents() -> None:
    somewhere = write(R, 0, read(A, read(R, 1)))
    assert total(loop("k", 3, seq(write(A, THREAD, 1), somewhere, fill(B), use(B)))) == 512
    assert total(loop("k", 3, seq(fill(A), somewhere, fill(B), use(B)))) == 256


SIZE = 4096
TILES = [shared(name, SIZE) for name in "ABC"]
MAPS = tuple((f"m{name}", f"T{name}", SIZE) for name in "ABC")
TENSORS = tuple(tensor(f"T{name}") for name in "ABC")
BARS = barriers(count=2)


def load(tile, thread: int = 0) -> Statement:
    arrive = g.MbarrierArriveExpectTx(BARS, number(0), 4 * SIZE)
    return elected(thread, arrive, g.TmaLoad(f"m{tile.name}", (number(0),), tile, number(0), BARS, number(0)))


def store(tile) -> Statement:
    return elected(0, g.TmaStore(f"m{tile.name}", (number(0),), tile, number(0)), g.BulkCommitGroup())


def wait(*tiles) -> Statement:
    return g.MbarrierWait(BARS, number(0), number(0), tiles)


READ_DONE = elected(0, g.BulkWaitGroup(0, True))


def row_use(tile) -> Statement:
    return unrolled("u" + tile.name, 32, lambda v: write(R, v, read(tile, plus(v * 128, THREAD))))


def row_fill(tile) -> Statement:
    return unrolled("f" + tile.name, 32, lambda v: write(tile, plus(v * 128, THREAD), 1))


def tma_total(*statements: Statement, threads: int = 128) -> int:
    """Bytes without those of the barriers."""
    p = placed(program(*statements, threads=threads, tensors=TENSORS, maps=MAPS))
    assert p.kernels[0].shared_bytes is not None
    return p.kernels[0].shared_bytes - (16 if "bars" in offsets(p) else 0)


def test_the_add_fits_in_two_tiles_and_its_barriers() -> None:
    a, b, c = TILES
    add = seq(load(a), load(b), wait(a, b), row_use(a), row_use(b), row_fill(c), store(c), READ_DONE)
    p = placed(program(add, threads=128, tensors=TENSORS, maps=MAPS))
    assert p.kernels[0].shared_bytes == 32768 + 16
    place = offsets(p)
    assert place["bars"] == 32768
    assert sorted((place["A"], place["B"])) == [0, 16384]


def test_a_load_lives_from_its_issue_and_a_store_to_its_wait() -> None:
    a, b, _ = TILES
    assert tma_total(row_fill(a), load(b), row_use(a), wait(b), row_use(b)) == 8 * SIZE
    assert tma_total(row_fill(a), row_use(a), load(b), wait(b), row_use(b)) == 4 * SIZE
    assert tma_total(row_fill(a), store(a), row_fill(b), READ_DONE, row_use(b)) == 8 * SIZE
    assert tma_total(row_fill(a), store(a), READ_DONE, row_fill(b), row_use(b)) == 4 * SIZE


def test_a_load_without_a_reader_lives_to_its_wait() -> None:
    a, b, _ = TILES
    assert tma_total(load(a), row_fill(b), wait(a), row_use(b)) == 8 * SIZE


def test_a_store_that_is_never_waited_for_keeps_its_memory_unless_that_costs_a_block() -> None:
    """Of 228 KiB: 16 blocks of 128 threads have 13 KiB each, and 13 blocks 16 KiB; but two of 64 KiB or one of 128."""
    a, b, _ = TILES
    assert tma_total(row_fill(a), store(a), row_fill(b), row_use(b)) == 4 * SIZE
    in_loop = loop("k", 3, seq(row_fill(a), store(a), row_fill(b), row_use(b)))
    assert tma_total(in_loop) == 4 * SIZE
    large = shared("D", 128 * 1024 // 4)  # one block a multiprocessor, with or without 16 KiB more
    around = (write(large, THREAD, 1), write(R, 0, read(large, THREAD)))
    assert tma_total(around[0], in_loop, around[1]) == 128 * 1024 + 8 * SIZE
    assert tma_total(row_fill(a), store(a), *around) == 128 * 1024 + 4 * SIZE
    assert tma_total(row_fill(a), row_use(a), *around) == 128 * 1024


def test_transfers_in_flight_over_a_back_edge() -> None:
    a, b, _ = TILES
    waited = seq(row_fill(b), row_use(b), READ_DONE, row_fill(a), store(a))
    assert tma_total(loop("k", 3, waited)) == 8 * SIZE
    prefetched = seq(row_fill(b), row_use(b), wait(a), row_use(a), load(a))
    assert tma_total(load(a), loop("k", 3, prefetched)) == 8 * SIZE


def roles(*bodies: Statement) -> Statement:
    return Specialized(tuple(Role(f"r{i}", 128 * i, 128, inside) for i, inside in enumerate(bodies)))


def test_roles_run_at_the_same_time() -> None:
    a, b, c = TILES

    def shifted(tile, first: int):
        return unrolled("s" + tile.name, 32, lambda v: write(R, v, read(tile, plus(v * 128, THREAD - first))))

    one, two = seq(row_fill(a), row_use(a)), seq(shifted(b, 128))
    assert tma_total(roles(one, two), threads=256) == 8 * SIZE
    assert tma_total(roles(seq(one, row_fill(c), row_use(c)), two), threads=256) == 8 * SIZE
    before = tma_total(row_fill(c), row_use(c), roles(one, two), threads=256)
    assert before == 8 * SIZE


def test_a_one_shot_hand_over_ends_with_its_user() -> None:
    a, b, c = TILES
    consumer = seq(wait(a, b), row_use(a), row_use(b), row_fill(c), store(c), READ_DONE)
    producer = seq(load(a, 128), load(b, 128))
    assert tma_total(roles(consumer, producer), threads=256) == 8 * SIZE
    repeated = loop("k", TRIPS, producer)
    assert tma_total(roles(consumer, repeated), threads=256) == 12 * SIZE
    again = loop("k", TRIPS, roles(consumer, producer))
    assert tma_total(again, threads=256) == 12 * SIZE


def test_alignment() -> None:
    odd = allocate("odd", Scope.SHARED, float32, (3,), alignment=4)
    tile = TILES[0]
    layout = SharedLayout(row_major((32, 32)), TMA_SWIZZLES[128], 4)
    swizzled = replace(shared("swizzled", 1024), layout=layout)
    everything = seq(fill(odd), load(tile), fill(swizzled), wait(tile), use(odd), use(swizzled), row_use(tile))
    place = offsets(placed(program(everything, threads=128, tensors=TENSORS, maps=MAPS)))
    assert place["A"] % 128 == 0
    assert place["swizzled"] % 1024 == 0
    assert place["bars"] % 8 == 0


def test_barriers_share_bytes_with_nothing() -> None:
    more = barriers("more", 3)
    init = seq(g.MbarrierInit(BARS, number(1), 1), g.MbarrierInit(more, number(2), 1))
    p = placed(program(elected(0, init), fill(A), use(A)))
    assert offsets(p) == {"A": 0, "bars": 256, "more": 272}
    assert p.kernels[0].shared_bytes == 256 + 16 + 24


def test_too_much_shared_memory() -> None:
    big, other = shared("big_tile", 50_000), shared("other_tile", 10_000)
    allocated = [replace(Allocate(buffer), location=at(line)) for buffer, line in ((big, 7), (other, 8))]
    p = program(*allocated, fill(big), fill(other), use(big), use(other))
    with pytest.raises(ResourceError) as caught:
        place_shared_memory.run(p, TARGET, Options())
    text = str(caught.value)
    for part in (
        "big_tile",
        "200000",
        "other_tile",
        "40000",
        "240000 bytes",
        str(TARGET.max_shared_bytes),
        "kernel.py:7",
    ):
        assert part in text


class _Apart(Rewriter):
    """Every shared storage at an offset of its own."""

    def __init__(self) -> None:
        self.places: dict[str, int] = {}

    def buffer(self, buffer):
        if buffer.scope is not Scope.SHARED:
            return buffer
        offset = self.places.setdefault(buffer.storage.name, len(self.places) << 16)
        return replace(buffer, storage=replace(buffer.storage, offset=offset))


def _apart(p: Program) -> Program:
    return replace(p, kernels=(replace(p.kernels[0], body=_Apart().visit(body(p))),))


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9), threads=st.sampled_from([5, 8]))
def test_merged_memory_computes_what_separate_memory_does(seed: int, threads: int) -> None:
    """Every value that is defined with storages apart is the same with storages merged."""
    merged = synchronized(Generator(seed, threads).program())
    for n in (0, 1, 3):
        wanted, found = referee(_apart(merged), n=n).trace, referee(merged, n=n).trace
        assert wanted.keys() == found.keys()
        assert all(found[key] == value for key, value in wanted.items() if value is not None)


def test_random_programs_do_merge() -> None:
    """The test above says something: many of its programs have storages that share bytes."""
    used = [placed(Generator(seed, 8).program()) for seed in range(40)]
    apart = [sum(64 for _ in offsets(p)) for p in used]
    assert sum((p.kernels[0].shared_bytes or 0) < size for p, size in zip(used, apart, strict=True)) >= 10

"""What a role did has to be done when it arrives at a barrier that lets another one go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ptxtile.ir import gpu_ops as g
from ptxtile.ir.cluster_ops import ClusterArrive, ClusterWait
from ptxtile.ir.expressions import Expr, binary, constant
from ptxtile.ir.manual_ops import BarArrive
from ptxtile.ir.program import Program
from ptxtile.ir.statements import If, Role, Specialized, Statement, seq
from ptxtile.lower import hand_over_buffers, insert_synchronization
from ptxtile.lower.options import Options
from ptxtile.lower.synchronization_hand_overs import HandOvers
from tests.lower.hazard_programs import (
    TARGET,
    THREAD,
    TRIPS,
    barriers,
    barriers_of,
    elected,
    loop,
    number,
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
from tests.lower.race_referee import faults, races
from tests.lower.random_roles import RoleGenerator

SIZE = 64
S, R, TS = shared("S", SIZE), registers("R", 2), tensor("TS", SIZE)
FULL, EMPTY = barriers("full"), barriers("empty")
START = "if[I] if[I] FI B "


def fill(lane: Expr) -> Statement:
    return unrolled("v", 2, lambda v: write(S, plus(binary("mul", v, 32), lane), lane))


def store(k: Expr, thread: int = 32, waits: tuple[Statement, ...] = ()) -> Statement:
    """Of the whole tile, to another place in each round."""
    return elected(thread, g.TmaStore("mS", (binary("mul", k, SIZE),), S, number(0)), g.BulkCommitGroup(), *waits)


def parity(k: Expr) -> Expr:
    return binary("and", k, 1)


def roles(first, second, arrivals: int = 32, trips: Expr | int = TRIPS) -> Program:
    """Two roles of a warp each; ``arrivals``: of each barrier's phase."""
    start = [elected(0, g.MbarrierInit(bar, number(0), arrivals)) for bar in (FULL, EMPTY)]
    bodies = (Role("first", 0, 32, loop("i", trips, first)), Role("second", 32, 32, loop("j", trips, second)))
    p = program(
        *start, g.FenceMbarrierInit(), g.BarSync(0, 64), Specialized(bodies), threads=64, tensors=(TS,),
        maps=(("mS", "TS", SIZE),),
    )  # fmt: skip
    return hand_over_buffers.run(p, TARGET, Options())


def writer(k: Expr) -> Statement:
    return seq(fill(THREAD), g.MbarrierArrive(FULL, number(0)), g.MbarrierWait(EMPTY, number(0), parity(k)))


def storer(*between: Statement, waits: tuple[Statement, ...] = ()):
    """Waits, stores, does ``between``, and arrives."""

    def body(k: Expr) -> Statement:
        done = between or (g.MbarrierArrive(EMPTY, number(0)),)
        return seq(g.MbarrierWait(FULL, number(0), parity(k)), store(k, waits=waits), *done)

    return body


def check(p: Program, expected: str) -> Program:
    result = synchronized(p)
    assert outline(result) == START + expected
    for n in (1, 3):
        assert races(result, n=n) == []
    return result


FIRST = "first[for[for[S] Fs A W]] "


def test_a_store_has_read_its_tile_before_the_arrival() -> None:
    check(roles(writer, storer()), FIRST + "second[for[W if[TS C] Wr A]]")
    check(roles(writer, storer(waits=(g.BulkWaitGroup(0, True),))), FIRST + "second[for[W if[TS C Wr] A]]")


def test_one_thread_arrives_for_all() -> None:
    """After a barrier of the role: the others have to be past their wait, else the next phase may be over as well."""
    first = lambda k: seq(  # noqa: E731
        fill(THREAD), elected(0, g.MbarrierArrive(FULL, number(0))), g.MbarrierWait(EMPTY, number(0), parity(k))
    )
    for thread in (32, 40):  # the storing one, and another one
        arrive = elected(thread, g.MbarrierArrive(EMPTY, number(0)))
        p = roles(first, storer(arrive), arrivals=1)
        q = check(p, "first[for[for[S] Fs B if[A] W]] second[for[W if[TS C] Wr B if[A]]]")
        assert faults(q, n=3) == []


def test_an_arrival_that_announces_bytes_is_one_as_well() -> None:
    announce = elected(40, g.MbarrierArriveExpectTx(EMPTY, number(0), 0))
    first = lambda k: seq(  # noqa: E731
        fill(THREAD), elected(0, g.MbarrierArrive(FULL, number(0))), g.MbarrierWait(EMPTY, number(0), parity(k))
    )
    expected = "first[for[for[S] Fs B if[A] W]] second[for[W if[TS C] Wr B if[E]]]"
    check(roles(first, storer(announce), arrivals=1), expected)


def test_named_barriers_between_roles() -> None:
    first = lambda k: seq(fill(THREAD), BarArrive(3, 64), g.BarSync(4, 64))  # noqa: E731
    second = lambda k: seq(g.BarSync(3, 64), store(k), BarArrive(4, 64))  # noqa: E731
    check(roles(first, second), "first[for[for[S] Fs N B]] second[for[B if[TS C] Wr N]]")
    meeting = lambda k: seq(g.BarSync(3, 64), store(k), g.BarSync(4, 64))  # noqa: E731
    check(roles(first, meeting), "first[for[for[S] Fs N B]] second[for[B if[TS C] Wr B]]")


def test_a_barrier_of_the_role_alone_hands_nothing_over() -> None:
    first = lambda k: seq(fill(THREAD), g.BarSync(5, 32), g.MbarrierArrive(FULL, number(0)))  # noqa: E731
    second = lambda k: seq(g.MbarrierWait(FULL, number(0), parity(k)), store(k), g.BarSync(6, 32))  # noqa: E731
    q = synchronized(roles(first, second, trips=1))
    assert outline(q) == START + "first[for[for[S] Fs B A]] second[for[W if[TS C] B] Wr]"


def test_what_is_read_from_global_memory_has_been_written() -> None:
    """The full wait and a proxy fence of the storing thread, before the arrival."""
    give = lambda k: seq(fill(THREAD), store(k, thread=0), g.MbarrierArrive(FULL, number(0)))  # noqa: E731
    place = lambda k: plus(binary("mul", k, SIZE), binary("sub", number(63), THREAD))  # noqa: E731
    take = lambda k: seq(g.MbarrierWait(FULL, number(0), parity(k)), write(R, 0, read(TS, place(k))))  # noqa: E731
    p = roles(give, take, trips=1)
    q = synchronized(p)
    assert "if[TS C] Wg Fg A" in outline(q)
    assert races(q) == []
    only_other = lambda k: seq(g.MbarrierWait(FULL, number(0), parity(k)), write(R, 0, THREAD))  # noqa: E731
    assert "Wg" not in outline(synchronized(roles(give, only_other, trips=1)))


def test_a_wait_on_an_mbarrier_completes_no_store() -> None:
    """Though it retires the tile: the store of the round before may still be writing to the same place."""
    same = lambda k: seq(  # noqa: E731
        g.MbarrierWait(FULL, number(0), parity(k)), store(number(0)), g.MbarrierArrive(EMPTY, number(0))
    )
    check(roles(writer, same), FIRST + "second[for[W Wg if[TS C] Wr A]]")


def test_a_store_that_the_user_left_under_way_is_the_users_affair() -> None:
    """Two tiles by turns: the arrival is for the tile of the round before."""
    left = storer(elected(32, g.BulkWaitGroup(1, True)), g.MbarrierArrive(EMPTY, number(0)))
    assert outline(synchronized(roles(writer, left))) == START + FIRST + "second[for[W if[TS C] if[Wr1] A] Wr]"


def test_a_cluster_does_not_go_on_while_a_store_reads_what_others_fill() -> None:
    tile, bar = shared("M", SIZE), barriers("bar")

    def around(multicast: Expr | None) -> Program:
        load = g.TmaLoad("mT", (number(0),), tile, number(0), bar, number(0), multicast)
        out = elected(0, g.TmaStore("mS", (number(SIZE),), tile, number(0)), g.BulkCommitGroup())
        p = program(
            elected(0, g.MbarrierInit(bar, number(0), 1), g.FenceMbarrierInit()), g.BarSync(0, 32), out,
            ClusterArrive(), ClusterWait(), If(THREAD.eq(0), seq(g.MbarrierArriveExpectTx(bar, number(0), 256), load)),
            g.MbarrierWait(bar, number(0), number(0), (tile,)), threads=32, tensors=(TS, tensor("TT", SIZE)),
            maps=(("mS", "TS", SIZE), ("mT", "TT", SIZE)),
        )  # fmt: skip
        return replace(p, kernels=(replace(p.kernels[0], cluster=(2, 1, 1)),))

    run = lambda p: outline(insert_synchronization.run(placed(p), TARGET, Options()))  # noqa: E731
    assert run(around(constant(3))) == "if[I FI] B if[TS C] Wr CA CW if[E TL] W"
    assert run(around(None)) == "if[I FI] B if[TS C] CA CW Wr if[E TL] W"


def resolved(seed: int) -> Program:
    return hand_over_buffers.run(RoleGenerator(seed).program(), TARGET, Options())


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9))
def test_no_race_is_left_between_roles(seed: int) -> None:
    p = synchronized(resolved(seed))
    for n in (1, 2, 3):
        assert faults(p, n=n) == []


def test_the_referee_finds_races_where_nothing_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [resolved(seed) for seed in range(30)]
    assert sum(any(races(placed(p), n=n) for n in (1, 2)) for p in programs) >= 15
    monkeypatch.setattr(HandOvers, "at", lambda self, node, role: frozenset())
    assert sum(any(races(synchronized(p), n=n) for n in (1, 2)) for p in programs) >= 5


def test_barriers_of_roles_have_ids_that_the_program_does_not_use() -> None:
    for seed in range(20):
        for barrier in barriers_of(synchronized(resolved(seed))):
            assert barrier.id == 0 or barrier.threads == (64 if barrier.id >= 8 else 32)

"""Barriers, roles and deadlocks."""

from __future__ import annotations

import pytest
import torch

from ptxtile import sim
from ptxtile.errors import DeadlockError, Location, SimulationError
from ptxtile.ir import gpu_ops
from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import cast
from ptxtile.ir.gpu_ops import (
    BarSync,
    MbarrierArrive,
    MbarrierArriveExpectTx,
    MbarrierInit,
    MbarrierWait,
    SetMaxRegisters,
)
from ptxtile.ir.statements import Allocate, If, Let, Role, Specialized, Statement, seq
from ptxtile.ir.types import float32
from ptxtile.sim.rules import RULES
from tests.sim.programs import (
    BLOCK_X,
    THREAD,
    Var,
    barriers,
    get,
    int32,
    loop,
    number,
    on_chip,
    program,
    put,
    tensor,
    tma_add,
)

ZERO, ONE = number(0), number(1)
FULL, EMPTY = barriers("full", 2, 0), barriers("empty", 2, 16)
OUT = tensor("out", (256,), int32)


def run(body: Statement, threads: int = 32, grid: tuple[int, int, int] = (1, 1, 1)) -> torch.Tensor:
    out = torch.full((256,), -1, dtype=torch.int32)
    sim.run(program(body, [OUT], grid, threads, 4096), {"out": out}, {})
    return out


def operands(rows: int, columns: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * columns)
    tensors = {name: torch.randn(rows, columns, generator=generator) for name in "AB"}
    return tensors | {"C": torch.full((rows, columns), float("nan"))}


@pytest.mark.parametrize(("rows", "columns", "swizzle"), [(128, 192, 0), (100, 132, 0), (1, 4, 128), (65, 64, 64)])
def test_tma_add_with_roles(rows: int, columns: int, swizzle: int) -> None:
    tensors = operands(rows, columns)
    sim.run(tma_add(rows, columns, swizzle=swizzle), tensors, {})
    assert torch.equal(tensors["C"], tensors["A"] + tensors["B"])


def test_reading_before_the_data_is_there_gives_no_right_result() -> None:
    tensors = operands(64, 64)
    sim.run(tma_add(64, 64, parity=1), tensors, {})
    assert not torch.isfinite(tensors["C"]).any()


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (
            {"arrivals": 129},
            r"consumer \(threads 0 to 127\).*full\[0\] with parity 0.*128 of 129 arrivals came, 1 missing",
        ),
        ({"expected_bytes": 32784}, r"full\[0\].*128 of 128 arrivals.*16 bytes outstanding"),
        ({"expected_bytes": 16384}, r"full\[0\].*-16384 bytes outstanding"),
        ({"sync_threads": 160}, r"bar.sync 3 for 160 threads: 128 arrived, 32 missing"),
    ],
)
def test_deadlocks_are_reported(mistake: dict[str, int], message: str) -> None:
    with pytest.raises(DeadlockError, match=message):
        sim.run(tma_add(64, 64, **mistake), operands(64, 64), {})  # type: ignore[arg-type]


def test_too_many_threads_at_a_named_barrier() -> None:
    with pytest.raises(SimulationError, match="more threads arrive at bar.sync 3"):
        sim.run(tma_add(64, 64, sync_threads=96), operands(64, 64), {})


def test_registers_of_the_roles_must_fit_the_pool() -> None:
    role = SetMaxRegisters("inc", 240)
    roles = Specialized((Role("one", 0, 256, role), Role("two", 256, 128, SetMaxRegisters("dec", 40))))
    with pytest.raises(SimulationError, match="66560"):
        run(roles, threads=384)
    fits = Specialized((Role("one", 0, 256, role), Role("two", 256, 128, SetMaxRegisters("dec", 24))))
    run(fits, threads=384)


def test_setmaxnreg_needs_whole_warpgroups_and_multiples_of_8() -> None:
    with pytest.raises(SimulationError, match="whole warpgroups"):
        run(If(THREAD.lt(32), SetMaxRegisters("dec", 24)), threads=128)
    with pytest.raises(SimulationError, match="illegal operand"):
        run(SetMaxRegisters("dec", 30), threads=128)


def test_wrong_parity_deadlocks_and_names_the_line() -> None:
    place = Location("kernel.py", 7)
    body = seq(
        If(THREAD.eq(0), MbarrierInit(FULL, ONE, 32)),
        BarSync(0, 32),
        MbarrierArrive(FULL, ONE),
        MbarrierWait(FULL, ONE, ZERO),
        MbarrierWait(FULL, ONE, ONE, location=place),
    )
    with pytest.raises(DeadlockError, match=r"full\[1\] with parity 1: in phase 1 .*0 of 32 arrivals") as caught:
        run(body)
    assert caught.value.location == place
    assert "kernel.py:7" in str(caught.value)


def test_parity_one_passes_on_a_fresh_barrier() -> None:
    run(seq(If(THREAD.eq(0), MbarrierInit(FULL, ZERO, 1)), BarSync(0, 32), MbarrierWait(FULL, ZERO, ONE)))


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (MbarrierWait(FULL, ZERO, ZERO), "before mbarrier.init"),
        (MbarrierArrive(FULL, ZERO), "before mbarrier.init"),
        (MbarrierArriveExpectTx(FULL, ZERO, 16), "before mbarrier.init"),
        (MbarrierInit(FULL, ZERO, 32), "more than once"),
        (MbarrierArrive(FULL, number(2)), "out of bounds"),
        (MbarrierInit(FULL, THREAD, 1), "out of bounds"),
        (BarSync(16, 32), "unknown barrier"),
        (If(THREAD.lt(16), BarSync(0, 32)), "only some threads of a warp"),
    ],
)
def test_illegal_uses(op: Statement, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        run(op)


def test_parity_must_be_zero_or_one() -> None:
    body = seq(If(THREAD.eq(0), MbarrierInit(FULL, ZERO, 1)), MbarrierWait(FULL, ZERO, number(2)))
    with pytest.raises(SimulationError, match="parity"):
        run(body)


def test_arrival_overflow() -> None:
    body = seq(
        If(
            THREAD.eq(0),
            seq(MbarrierInit(FULL, ZERO, 1), MbarrierArriveExpectTx(FULL, ZERO, 64), MbarrierArrive(FULL, ZERO)),
        )
    )
    with pytest.raises(SimulationError, match="more arrivals"):
        run(body)


def test_transaction_count_overflow() -> None:
    body = If(THREAD.eq(0), seq(MbarrierInit(FULL, ZERO, 2), MbarrierArriveExpectTx(FULL, ZERO, 1 << 20)))
    with pytest.raises(SimulationError, match="overflows"):
        run(body)


def test_missing_warps_at_bar_sync() -> None:
    with pytest.raises(DeadlockError, match="bar.sync 0 for 128 threads: 64 arrived, 64 missing"):
        run(If(THREAD.lt(64), BarSync(0, 128)), threads=128)


def test_one_barrier_with_two_counts() -> None:
    body = If(THREAD.lt(64), BarSync(1, 128), BarSync(1, 96))
    with pytest.raises(SimulationError, match="two thread counts"):
        run(body, threads=128)


def test_a_block_that_is_no_multiple_of_a_warp() -> None:
    out = run(seq(BarSync(0, 48), put(OUT, THREAD, THREAD), BarSync(0, 48)), threads=48)
    assert out[:48].tolist() == list(range(48))


def test_ring_between_roles() -> None:
    """A ring of two slots over seven items and five CTAs: phases flip, the roles alternate."""
    slots = on_chip("slots", Scope.SHARED, int32, 64, 1024)
    item, slot, parity = Var("item", int32), Var("slot", int32), Var("parity", int32)
    total = on_chip("total", Scope.LOCAL, int32, 1)
    i, s, p = Var("i", int32), Var("s", int32), Var("p", int32)
    producer = loop(
        item,
        7,
        seq(
            Let(slot, item % 2),
            Let(parity, (item // 2) % 2 ^ 1),
            MbarrierWait(EMPTY, slot, parity),
            put(slots, slot * 32 + THREAD - 32, item * 100 + THREAD - 32 + BLOCK_X),
            MbarrierArrive(FULL, slot),
        ),
    )
    consumer = seq(
        Allocate(total),
        put(total, 0, ZERO),
        loop(
            i,
            7,
            seq(
                Let(s, i % 2),
                Let(p, (i // 2) % 2),
                MbarrierWait(FULL, s, p, (slots,)),
                put(total, 0, get(total, 0) + get(slots, s * 32 + THREAD)),
                MbarrierArrive(EMPTY, s),
            ),
        ),
        put(OUT, BLOCK_X * 32 + THREAD, get(total, 0)),
    )
    initialise = [MbarrierInit(barrier, index, 32) for barrier in (FULL, EMPTY) for index in (ZERO, ONE)]
    body = seq(
        If(THREAD.eq(0), seq(*initialise)),
        BarSync(0, 64),
        Specialized((Role("consumer", 0, 32, consumer), Role("producer", 32, 32, producer))),
    )
    out = run(body, threads=64, grid=(5, 1, 1))
    expected = [sum(k * 100 + lane + cta for k in range(7)) for cta in range(5) for lane in range(32)]
    assert out[:160].tolist() == expected


def test_warps_go_on_past_a_branch_in_which_others_wait() -> None:
    """Two Ifs in a row, without roles: the first one's warp waits for what the second one's warp sends."""
    body = seq(
        If(THREAD.eq(0), MbarrierInit(FULL, ZERO, 32)),
        BarSync(0, 64),
        If(THREAD.lt(32), seq(MbarrierWait(FULL, ZERO, ZERO), put(OUT, THREAD, get(OUT, THREAD + 32)))),
        If(THREAD.ge(32), seq(put(OUT, THREAD, THREAD * 3), MbarrierArrive(FULL, ZERO))),
        BarSync(0, 64),
        put(OUT, THREAD + 64, get(OUT, (THREAD + 1) % 64)),
    )
    out = run(body, threads=64).tolist()
    values = [3 * (lane % 32 + 32) for lane in range(64)]
    assert out[:64] == values
    assert out[64:128] == [values[(lane + 1) % 64] for lane in range(64)]


def test_lanes_of_one_warp_meet_again_after_a_branch() -> None:
    """One elected lane waits for the other warp, which has to go past the If to send; then a barrier of all."""
    body = seq(
        If(THREAD.eq(0), MbarrierInit(FULL, ZERO, 32)),
        BarSync(0, 64),
        If(THREAD.eq(3), seq(MbarrierWait(FULL, ZERO, ZERO), put(OUT, 99, get(OUT, 40) + 1))),
        If(THREAD.ge(32), seq(put(OUT, THREAD, THREAD * 3), MbarrierArrive(FULL, ZERO))),
        BarSync(0, 64),
        put(OUT, THREAD + 128, get(OUT, 99)),
    )
    assert run(body, threads=64, grid=(2, 1, 1))[128:192].tolist() == [121] * 64


def test_both_sides_of_an_if_wait_for_each_other() -> None:
    first = seq(MbarrierArrive(FULL, ZERO), MbarrierWait(EMPTY, ZERO, ZERO), put(OUT, THREAD, ONE))
    second = seq(MbarrierWait(FULL, ZERO, ZERO), MbarrierArrive(EMPTY, ZERO), put(OUT, THREAD, number(2)))
    body = seq(
        If(THREAD.eq(0), seq(MbarrierInit(FULL, ZERO, 32), MbarrierInit(EMPTY, ZERO, 32))),
        BarSync(0, 64),
        If(THREAD.ge(32), first, second),
    )
    assert run(body, threads=64)[:64].tolist() == [2] * 32 + [1] * 32


def test_private_state_passes_into_roles_and_out_of_them() -> None:
    value, other = on_chip("value", Scope.LOCAL, int32, 1), on_chip("other", Scope.LOCAL, float32, 1)
    twice = Var("twice", int32)
    body = seq(
        Allocate(value),
        Allocate(other),
        Let(twice, THREAD * 2),
        put(value, 0, THREAD),
        put(other, 0, number(1.5, float32)),
        Specialized(
            (
                Role("low", 0, 32, put(value, 0, get(value, 0) + twice)),
                Role("high", 32, 32, put(other, 0, cast(THREAD, float32))),
            )
        ),
        put(OUT, THREAD, get(value, 0) * 100 + cast(get(other, 0) * 2.0, int32)),
    )
    expected = [300 * t + 3 for t in range(32)] + [100 * t + 2 * t for t in range(32, 64)]
    assert run(body, threads=64)[:64].tolist() == expected


def test_roles_must_lie_within_the_block() -> None:
    with pytest.raises(SimulationError, match="not there"):
        run(Specialized((Role("far", 32, 64, BarSync(1, 64)),)), threads=64)


def test_every_gpu_op_has_a_rule() -> None:
    ops = {node for node in vars(gpu_ops).values() if isinstance(node, type) and issubclass(node, gpu_ops.GpuOp)}
    assert ops - {gpu_ops.GpuOp} <= set(RULES)

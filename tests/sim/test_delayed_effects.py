"""Effects that come as late as the waits allow: right programs stay right, and a wait that is missing or too weak is
found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ptxtile import sim
from ptxtile.errors import DeadlockError, SimulationError
from ptxtile.ir.buffers import Scope
from ptxtile.ir.gpu_ops import (
    BarSync,
    BulkCommitGroup,
    BulkWaitGroup,
    MbarrierArriveExpectTx,
    MbarrierInit,
    MbarrierWait,
    TmaLoad,
    TmaStore,
)
from ptxtile.ir.program import Program
from ptxtile.ir.statements import If, Statement, seq
from ptxtile.ir.types import float32
from ptxtile.launch_record import TensorMapRecord
from ptxtile.sim.delayed_effects import ALWAYS, NEVER, DelayedEffects
from tests.sim.programs import THREAD, barriers, get, number, on_chip, program, put, tensor
from tests.sim.test_tensor_cores import conformance, run_mma

SIZE = 64
LOADED = TensorMapRecord("load_map", "source", "float32", (SIZE,), (), (SIZE,), 0)
STORED = replace(LOADED, name="store_map", tensor="target")


def through_shared(*, waits: bool = True, between: tuple[Statement, ...] = (), at_the_end: tuple[Statement, ...] = ()):
    """Two rounds: source → tile → target, the second of which stores the doubled tile to the target's second half."""
    source, target = tensor("source", (SIZE,)), tensor("target", (2 * SIZE,))
    tile = on_chip("tile", Scope.SHARED, float32, SIZE, 128)
    full, zero = barriers("full", 1, 0), number(0)
    first = THREAD.eq(0)
    body = [
        If(first, MbarrierInit(full, zero, 1)),
        BarSync(0, 64),
        If(
            first,
            seq(MbarrierArriveExpectTx(full, zero, 4 * SIZE), TmaLoad("load_map", (zero,), tile, zero, full, zero)),
        ),
        *([MbarrierWait(full, zero, zero, (tile,))] if waits else []),
        If(first, seq(TmaStore("store_map", (zero,), tile, zero), BulkCommitGroup(), *between)),
        BarSync(0, 64),
        put(tile, THREAD, get(tile, THREAD) * number(2.0, float32)),
        BarSync(0, 64),
        If(first, seq(TmaStore("store_map", (number(SIZE),), tile, zero), BulkCommitGroup(), *at_the_end)),
    ]
    maps = (LOADED, replace(STORED, dimensions=(2 * SIZE,)))
    return program(seq(*body), [source, target], threads=64, shared_bytes=128 + 4 * SIZE, tensor_maps=maps)


def run(changed: Program, delay=ALWAYS, seed: int = 0) -> bool:
    """Whether the result is right."""
    source = torch.randn(SIZE)
    tensors = {"source": source, "target": torch.full((2 * SIZE,), float("nan"))}
    sim.run(changed, tensors, {}, effects=lambda: DelayedEffects(seed, delay))
    return torch.equal(tensors["target"], torch.cat([source, 2 * source]))


READ, FULL = BulkWaitGroup(0, True), BulkWaitGroup(0, False)


@pytest.mark.parametrize("delay", [ALWAYS, NEVER, dict.fromkeys(ALWAYS, 0.5)])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("between", "end"), [(READ, READ), (FULL, READ), (READ, FULL), (FULL, FULL)])
def test_enough_waits(delay, seed, between, end):
    assert run(through_shared(between=(between,), at_the_end=(end,)), delay, seed)


def test_a_load_that_nobody_waits_for():
    assert run(through_shared(waits=False, between=(FULL,), at_the_end=(FULL,)), NEVER)
    assert not run(through_shared(waits=False, between=(FULL,), at_the_end=(FULL,)))


def test_shared_memory_that_is_written_while_a_store_reads_it():
    assert run(through_shared(at_the_end=(FULL,)), NEVER)
    assert not run(through_shared(at_the_end=(FULL,)))
    assert not run(through_shared(between=(BulkWaitGroup(1, True),), at_the_end=(FULL,)))


def test_a_block_that_ends_too_early():
    assert run(through_shared(between=(READ,)), NEVER)
    with pytest.raises(SimulationError, match="may still read its shared memory"):
        run(through_shared(between=(READ,)))


def test_a_wait_by_another_thread_does_not_count():
    other = If(THREAD.eq(1), FULL)
    changed = through_shared(between=(READ,))
    kernel = changed.kernels[0]
    longer = replace(kernel, body=seq(*kernel.body.statements, other))  # type: ignore[attr-defined]
    with pytest.raises(SimulationError, match="may still read its shared memory"):
        run(replace(changed, kernels=(longer,)))


def test_a_barrier_that_no_load_completes_is_still_a_deadlock():
    full, zero = barriers("full", 1, 0), number(0)
    body = seq(If(THREAD.eq(0), MbarrierInit(full, zero, 1)), BarSync(0, 32), MbarrierWait(full, zero, zero, ()))
    with pytest.raises(DeadlockError):
        sim.run(program(body, [], threads=32, shared_bytes=8), {}, {}, effects=DelayedEffects)


def test_groups_of_other_engines():
    weak = conformance("mma_sync", ("cp_async_wait_group(pending=1,", "cp_async_wait_group(pending=2,"))
    assert run_mma(conformance("mma_sync"), DelayedEffects) < 1e-3
    assert run_mma(weak, DelayedEffects) > 0.5


def test_loads_arrive_in_any_order():
    """With four loads under way, different seeds finish them in different orders, and every load is seen."""
    tile, full, zero = on_chip("tile", Scope.SHARED, float32, 4 * 32, 128), barriers("full", 4, 0), number(0)
    record = replace(LOADED, dimensions=(128,), box=(32,))
    source, target = tensor("source", (128,)), tensor("target", (128,))
    issue = [
        seq(
            MbarrierArriveExpectTx(full, number(i), 128),
            TmaLoad("load_map", (number(32 * i),), tile, number(32 * i), full, number(i)),
        )
        for i in range(4)
    ]
    waits = [MbarrierWait(full, number(i), zero, (tile,)) for i in range(4)]
    body = seq(
        If(THREAD.eq(0), seq(*(MbarrierInit(full, number(i), 1) for i in range(4)))),
        BarSync(0, 32),
        If(THREAD.eq(0), seq(*issue)),
        *(seq(wait, put(target, THREAD + 32 * i, get(tile, THREAD + 32 * i))) for i, wait in enumerate(waits)),
    )
    late = program(body, [source, target], threads=32, shared_bytes=128 + 512, tensor_maps=(record,))
    for seed in range(5):
        tensors = {"source": torch.randn(128), "target": torch.zeros(128)}
        sim.run(late, tensors, {}, effects=lambda seed=seed: DelayedEffects(seed))
        assert torch.equal(tensors["source"], tensors["target"])

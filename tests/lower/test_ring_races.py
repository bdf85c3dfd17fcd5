"""Rings under the referee: what the compiler makes has no races in any order of its threads, what is left out has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ptxtile.ir.cluster_ops import ClusterArrive, ClusterWait, MbarrierArriveRemote
from ptxtile.ir.expressions import Compare, Const
from ptxtile.ir.gpu_ops import BarSync, MbarrierArrive, MbarrierInit
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import Rewriter, copy_with, walk
from ptxtile.ir.statements import Seq
from ptxtile.ir.tensor_core_ops import WgmmaWaitGroup
from ptxtile.ir.warp_ops import SyncWarp
from tests.clusters import kernels
from tests.clusters.simulate import specialized
from tests.lower import ring_kernels
from tests.lower.cluster_referee import cluster_races
from tests.lower.test_specialize_warps import lowered, summing_program

SEEDS = range(3)


class Change(Rewriter):
    """A program with each statement of a kind replaced by what ``make`` gives for it."""

    def __init__(self, kind: type, make: Callable[[Any], Any]) -> None:
        self.kind, self.make = kind, make

    def visit(self, node: Any) -> Any:
        return self.make(node) if isinstance(node, self.kind) else super().visit(node)


def changed(program: Program, kind: type, make: Callable[[Any], Any]) -> Program:
    kernel = program.kernels[0]
    body = Change(kind, make).visit(kernel.body)
    assert body is not kernel.body
    return replace(program, kernels=(replace(kernel, body=body),))


def has_races(program: Program) -> bool:
    return any(cluster_races(program, seed) for seed in SEEDS)


def persistent(**options: Any) -> Program:
    arguments = {"M": 128, "N": 64, "K": 96, "block_K": 32, "num_stages": 2, "blocks": 2} | options
    return specialized(kernels.persistent_gemm, "sm_90a", **arguments).program


@pytest.mark.parametrize(
    "options",
    [{"num_stages": 1}, {"num_stages": 4, "K": 160}, {"N": 128, "K": 64, "num_stages": 3}, {"M": 64}],
)
def test_a_multicast_ring_has_no_races(options):
    assert not any(cluster_races(persistent(**options), seed) for seed in SEEDS[:2])


def test_a_ring_shared_along_both_axes_has_no_races():
    arguments = {"M": 128, "N": 128, "K": 96, "block_K": 32, "num_stages": 2, "cluster": (2, 2)}
    assert not cluster_races(specialized(kernels.gemm, "sm_90a", **arguments).program, 5)


def test_tiles_that_are_loaded_once_have_no_races():
    assert not has_races(specialized(kernels.common_left, "sm_90a", M=64, N=128).program)


def test_two_gemms_in_flight_have_no_races():
    arguments = {"M": 64, "N": 64, "K": 192, "block_K": 32, "num_stages": 4}
    assert not cluster_races(specialized(ring_kernels.gated, "sm_90a", **arguments).program, 1)


def only_own(node: MbarrierArriveRemote) -> MbarrierArrive:
    return MbarrierArrive(node.barrier, node.index)


def fewer(node: MbarrierInit) -> MbarrierInit:
    return copy_with(node, {"arrivals": 1})


def nothing(node: Any) -> Seq:
    return Seq(())


def later(node: WgmmaWaitGroup) -> WgmmaWaitGroup:
    return copy_with(node, {"pending": node.pending + 1})


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        pytest.param(MbarrierArriveRemote, only_own, id="arrivals on the own barriers only"),
        pytest.param(MbarrierInit, fewer, id="barriers that wait for one block"),
        pytest.param(WgmmaWaitGroup, later, id="release before the products are done"),
    ],
)
def test_weaker_handshakes_have_races(kind, make):
    assert has_races(changed(persistent(), kind, make))


def test_overlapped_products_must_be_done_when_their_stage_is_released():
    program = persistent(num_stages=4, K=192)
    assert {node.pending for node in walk(program.kernels[0].body) if isinstance(node, WgmmaWaitGroup)} == {0, 1}
    assert has_races(changed(program, WgmmaWaitGroup, later))


def test_blocks_meet_before_the_first_load_and_before_they_end():
    program = persistent()
    kernel = program.kernels[0]
    assert isinstance(kernel.body, Seq)
    statements = kernel.body.statements
    waits = [position for position, node in enumerate(statements) if isinstance(node, ClusterWait)]
    assert len(waits) == 2 and waits[-1] == len(statements) - 1
    for position in waits:
        assert isinstance(statements[position - 1], ClusterArrive)
        left = (*statements[: position - 1], BarSync(0, kernel.threads), *statements[position + 1 :])
        without = replace(program, kernels=(replace(kernel, body=Seq(left)),))
        assert has_races(without)


# -- who arrives in a kernel without clusters ----------------------------------------
@pytest.mark.parametrize("use", ["credit", "before"])
def test_tiles_that_threads_read_or_write_have_no_races(use):
    program = lowered(summing_program(3, use))
    assert any(isinstance(node, SyncWarp) for node in walk(program.kernels[0].body)) == (use == "credit")
    assert not has_races(program)


def test_one_thread_speaks_for_its_warp_only_after_the_warp_has_met():
    program = lowered(summing_program(3))
    assert has_races(changed(program, SyncWarp, nothing))


def test_one_thread_cannot_speak_for_warps_that_read_by_themselves():
    """One arrival a warpgroup is for what wgmma reads."""
    program = lowered(summing_program(3))

    def elected(node: Compare) -> Compare:
        mask = node.left
        is_lane = node.operator == "eq" and isinstance(getattr(mask, "right", None), Const) and mask.right.value == 31
        return copy_with(node, {"left": copy_with(mask, {"right": Const(127, mask.right.dtype)})}) if is_lane else node

    by_warpgroup = changed(changed(program, Compare, elected), MbarrierInit, fewer)
    assert has_races(by_warpgroup)


@pytest.mark.parametrize("cluster", [1, 2])
def test_the_ring_gives_its_memory_to_the_epilogue(cluster):
    """Two warpgroups that may finish at different times; nothing may still arrive in the memory, or be read from it.
    A ring that leaves no room beside it for the 32 KiB of the result."""
    arguments = {"M": 128, "N": 64 * cluster, "K": 128, "block_M": 128, "block_K": 64, "num_stages": 9, "threads": 256}
    kernel = specialized(kernels.gemm, "sm_90a", cluster=cluster, **arguments)
    ring, result = 9 * (128 + 64) * 64 * 2, 128 * 64 * 4
    staged = [why for why in kernel.program.why if why.pass_name == "stage_epilogues"]
    assert ["1 chunk of 128x64" in why.reason for why in staged] == [True]
    assert ring <= kernel.launch.launches[0].shared_bytes < ring + result
    assert not any(cluster_races(kernel.program, seed) for seed in SEEDS[:2])

"""Multicast pipelines: what is shared, in which form, and results against float64 whenever the copies arrive."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile import target
from ptxtile.compiler import lower_program
from ptxtile.errors import VerificationError
from ptxtile.ir.cluster_ops import ClusterArrive, ClusterWait, MbarrierArriveRemote
from ptxtile.ir.expressions import Expr, constant, constant_value
from ptxtile.ir.gpu_ops import MbarrierArriveExpectTx, MbarrierInit, TmaLoad
from ptxtile.ir.parser import parse_program
from ptxtile.ir.printer import print_program
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import copy_with, map_children, walk
from ptxtile.ir.tensor_core_ops import MmaSync
from ptxtile.ir.tile_ops import TmaCopy
from ptxtile.ir.verifier import verify
from ptxtile.ir.warp_ops import SyncWarp
from ptxtile.kernel import JITKernel
from ptxtile.lower.options import Options
from tests.clusters import kernels
from tests.clusters.simulate import decisions, nodes, outputs, policies, specialized
from tests.ptxas import assemble

BOUND = 1e-6
"""Products of 16-bit values are exact in float32; what is left is the rounding of sums of some hundred terms."""


def matrices(generator: torch.Generator, *shapes: tuple[int, int]) -> list[torch.Tensor]:
    return [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]


@pytest.fixture
def generator(request: pytest.FixtureRequest) -> torch.Generator:
    return torch.Generator().manual_seed(request.config.getoption("random_seed"))


def check_product(kernel: JITKernel, generator: torch.Generator, m: int, n: int, k: int, seeds: int = 2) -> None:
    """A · Bᵀ against float64, under several policies of when copies and products happen."""
    a, b = matrices(generator, (m, k), (n, k))
    wanted = a.double() @ b.double().T
    for effects in policies(range(seeds)):
        (found,) = outputs(kernel.program, effects, A=a, B=b).values()
        error = float((found.double() - wanted).norm() / wanted.norm())
        assert error < BOUND, effects


def multicast(kernel: JITKernel) -> dict[str, int]:
    """Tensor → how many of its loads are multicast, of those in the kernel."""
    tensor_of = {record.name: record.tensor for record in kernel.program.tensor_maps}
    found: dict[str, int] = {}
    for load in nodes(kernel.program, TmaLoad):
        tensor = tensor_of[load.tensor_map]
        found[tensor] = found.get(tensor, 0) + (load.multicast is not None)
    return found


# -- who shares what ----------------------------------------
@pytest.mark.parametrize(
    ("cluster", "shared", "arrivals"),
    [
        (2, {"A": 1, "B": 0}, 2),
        ((2, 1, 1), {"A": 1, "B": 0}, 2),
        (4, {"A": 1, "B": 0}, 4),
        ((1, 2), {"A": 0, "B": 1}, 2),
        ([1, 4], {"A": 0, "B": 1}, 4),
        ((2, 2), {"A": 1, "B": 1}, 4),
        ((4, 2), {"A": 1, "B": 1}, 8),
    ],
)
@pytest.mark.parametrize("stages", [1, 3, 4])
def test_blocks_of_a_row_share_a_and_blocks_of_a_column_b(cluster, shared, arrivals, stages, generator):
    kernel = specialized(
        kernels.gemm, "sm_90a", M=256, N=256, K=160, block_K=32, cluster=cluster,
        num_stages=stages,
    )  # fmt: skip
    assert multicast(kernel) == shared
    program = kernel.program
    # One arrival of each warpgroup of consumers, here one a block, from every block that receives.
    counts = {node.barrier.name.rpartition("_")[2]: node.arrivals for node in nodes(program, MbarrierInit)}
    assert counts == {"full": 1, "free": arrivals}
    (expected,) = nodes(program, MbarrierArriveExpectTx)
    assert expected.bytes == 2 * 64 * 32 * 2  # the whole tiles, whoever loads them
    assert len(nodes(program, ClusterArrive)) == len(nodes(program, ClusterWait)) == 2
    check_product(kernel, generator, 256, 256, 160, seeds=0)


def test_each_block_loads_its_part_into_all_blocks():
    kernel = specialized(kernels.gemm, "sm_90a", M=256, N=256, K=64, cluster=4)
    (load,) = [node for node in nodes(kernel.program, TmaLoad) if node.multicast is not None]
    assert constant_value(load.multicast) == 0b1111
    (record,) = [r for r in kernel.program.tensor_maps if r.name == load.tensor_map]
    assert record.box == (64, 16)


def test_without_a_common_load_there_is_no_multicast_but_a_cluster(generator):
    kernel = specialized(kernels.by_hand, "sm_90a", M=256, N=320, K=64, rows_fastest=False)
    assert multicast(kernel) == {"A": 0, "B": 0}
    assert kernel.launch.launches[0].cluster == (2, 1, 1)
    assert decisions(kernel, "A to A_shared") == ["no multicast: the CTAs of a cluster load different tiles"]
    assert not nodes(kernel.program, MbarrierArriveRemote) and not nodes(kernel.program, ClusterWait)
    check_product(kernel, generator, 256, 320, 64, seeds=1)


@pytest.mark.parametrize(
    ("architecture", "options", "reason"),
    [
        ("sm_120a", {}, "sm_120a has no fast"),
        ("sm_90", {}, "only a producer role multicasts"),
        ("sm_90a", {"block_M": 64, "block_K": 64, "cluster": 8, "block_N": 64, "threads": 128}, ""),
        ("sm_90a", {"cluster": (1, 8), "block_N": 32}, "does not divide into 8 parts"),
    ],
)
def test_refusals_have_a_reason(architecture, options, reason):
    kernel = specialized(kernels.gemm, architecture, M=512, N=512, K=128, **options)
    text = " ".join(f"{why.decision}: {why.reason}" for why in kernel.why if why.pass_name == "specialize_warps")
    assert ("no multicast" in text and reason in text) if reason else "multicast, 1/8" in text
    assert kernel.launch.launches[0].cluster != (1, 1, 1)


@pytest.mark.parametrize("panel", [1, 2, 3])
@pytest.mark.parametrize("cluster", [2, (1, 2), (2, 2)])
def test_swizzled_blocks_keep_their_place_in_the_cluster(panel, cluster, generator):
    kernel = specialized(kernels.gemm, "sm_90a", M=384, N=256, K=64, cluster=cluster, panel=panel)
    assert sum(multicast(kernel).values()) == (2 if cluster == (2, 2) else 1)
    check_product(kernel, generator, 384, 256, 64, seeds=0)


@pytest.mark.parametrize("cluster", [2, (1, 2)])
def test_an_operand_that_lies_along_n(cluster, generator):
    kernel = specialized(kernels.gemm, "sm_90a", M=128, N=256, K=192, cluster=cluster, transpose_B=False)
    assert sum(multicast(kernel).values()) == 1
    a, b = matrices(generator, (128, 192), (192, 256))
    for effects in policies([3]):
        (found,) = outputs(kernel.program, effects, A=a, B=b).values()
        torch.testing.assert_close(found.double(), a.double() @ b.double(), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("cluster", [2, (2, 2)])
def test_tiles_that_warps_read_by_themselves(cluster, generator):
    """32 rows are too few for wgmma: a thread of each warp tells all blocks after the warp has met."""
    kernel = specialized(kernels.gemm, "sm_90a", M=64, N=128, K=160, block_M=32, block_K=32, cluster=cluster)
    assert sum(multicast(kernel).values()) == (2 if cluster == (2, 2) else 1)
    assert nodes(kernel.program, SyncWarp) and nodes(kernel.program, MmaSync)
    (count,) = {n.arrivals for n in nodes(kernel.program, MbarrierInit) if n.barrier.name.endswith("free")}
    assert count == 4 * (4 if cluster == (2, 2) else 2)
    check_product(kernel, generator, 64, 128, 160, seeds=1)


# -- persistent loops ----------------------------------------
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6])
def test_any_trip_count(stages, generator):
    """The ring goes on from tile to tile: no rounds, one, fewer than stages, as many, one more."""
    m, n, most = 128, 192, (stages + 1) * 32
    kernel = specialized(kernels.partial_gemm, "sm_90a", M=m, N=n, K=most, num_stages=stages)
    assert multicast(kernel) == {"A": 0, "B": 1}
    a, b = matrices(generator, (m, most), (n, most))
    for rounds in sorted({0, 1, stages - 1, stages, stages + 1}):
        wanted = a[:, : 32 * rounds].double() @ b[:, : 32 * rounds].double().T
        for effects in policies([rounds])[1:]:
            given = torch.tensor([rounds], dtype=torch.int32)
            found = outputs(kernel.program, effects, A=a, B=b, rounds=given)["C"]
            torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)


def test_a_tile_that_is_loaded_once_and_one_that_all_blocks_need(generator):
    kernel = specialized(kernels.scores, "sm_90a", M=256, N=192, cluster=4, stages=2)
    assert multicast(kernel) == {"Q": 0, "K": 1}
    q, k = matrices(generator, (256, 64), (192, 64))
    for effects in policies([1]):
        found = outputs(kernel.program, effects, Q=q, K=k)["S"]
        torch.testing.assert_close(found.double(), q.double() @ k.double().T, rtol=1e-5, atol=1e-4)


def test_a_tile_that_is_loaded_once_for_all_blocks(generator):
    """No ring: the parts arrive as soon as all blocks have started."""
    kernel = specialized(kernels.common_left, "sm_90a", M=64, N=256, cluster=4)
    assert multicast(kernel) == {"A": 1, "B": 0}
    a, b = matrices(generator, (64, 64), (256, 64))
    for effects in policies([1]):
        found = outputs(kernel.program, effects, A=a, B=b)["C"]
        torch.testing.assert_close(found.double(), a.double() @ b.double().T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("columns_first", [False, True])
@pytest.mark.parametrize(("cluster", "blocks"), [(2, 2), (2, 6), (4, 4), (4, 8)])
def test_neighbours_share_what_the_first_dimension_does_not_move(cluster, blocks, columns_first, generator):
    kernel = specialized(
        kernels.persistent_gemm, "sm_90a", M=256, N=256, K=96, cluster=cluster, blocks=blocks,
        columns_first=columns_first, group=3,
    )  # fmt: skip
    assert multicast(kernel) == {"A": int(columns_first), "B": int(not columns_first)}
    check_product(kernel, generator, 256, 256, 96, seeds=1)


@pytest.mark.parametrize(("m", "cluster", "blocks"), [(190, 2, 4), (64, 2, 4), (300, 4, 4), (590, 4, 8), (40, 8, 8)])
def test_blocks_without_a_tile_run_along(m, cluster, blocks, generator):
    """An odd number of rows of tiles: the last cluster has tiles for some of its blocks."""
    kernel = specialized(kernels.persistent_gemm, "sm_90a", M=m, N=200, K=160, cluster=cluster, blocks=blocks)
    assert multicast(kernel) == {"A": 0, "B": 1}
    assert any("run along" in decision for decision in decisions(kernel, "kernel"))
    check_product(kernel, generator, m, 200, 160, seeds=1)


def test_blocks_whose_extra_tiles_would_be_seen_stay_out(generator):
    kernel = specialized(kernels.counting_gemm, "sm_90a", M=190, N=128, K=64)
    assert sum(multicast(kernel).values()) == 0
    (reason,) = decisions(kernel, "B to B_shared")
    assert "same number of rounds" in reason
    a, b = matrices(generator, (190, 64), (128, 64))
    count = torch.zeros(1, dtype=torch.int32)
    found = outputs(kernel.program, policies([])[1], A=a, B=b, tiles_done=count)["C"]
    assert int(count) == 3 * 2
    torch.testing.assert_close(found.double(), a.double() @ b.double().T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("rows", "shared"), [(4, 1), (3, 0)])
def test_a_persistent_loop_by_hand(rows, shared, generator):
    """Neighbours have the same column exactly where a cluster divides the rows."""
    kernel = specialized(kernels.by_hand, "sm_90a", M=64 * rows, N=192, K=128)
    assert multicast(kernel)["B"] == shared
    check_product(kernel, generator, 64 * rows, 192, 128, seeds=1)


@settings(max_examples=8)
@given(
    st.integers(1, 400), st.integers(1, 5), st.integers(1, 200), st.sampled_from([(2, 2), (2, 6), (4, 8), (8, 8)]),
    st.integers(1, 6), st.sampled_from([16, 32, 64]), st.sampled_from([(64, 64, 128), (128, 64, 256), (64, 128, 128)]),
    st.integers(1, 9), st.booleans(), st.integers(0, 1000),
)  # fmt: skip
def test_any_persistent_product(m, n, k, clusters, stages, block_k, tile, group, columns_first, seed):
    n, k = n * 40, k * 8
    kernel = specialized(
        kernels.persistent_gemm, "sm_90a", M=m, N=n, K=k, cluster=clusters[0], blocks=clusters[1], num_stages=stages,
        block_K=block_k, block_M=tile[0], block_N=tile[1], threads=tile[2], group=group, columns_first=columns_first,
    )  # fmt: skip
    a, b = matrices(torch.Generator().manual_seed(seed), (m, k), (n, k))
    wanted = a.double() @ b.double().T
    for effects in policies([seed])[1:]:
        (found,) = outputs(kernel.program, effects, A=a, B=b).values()
        assert float((found.double() - wanted).norm() / wanted.norm()) < BOUND


# -- PTX ----------------------------------------
@pytest.mark.parametrize("architecture", ["sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("function", [kernels.gemm, kernels.persistent_gemm])
def test_it_assembles(function, architecture):
    kernel = specialized(function, architecture, M=512, N=512, K=512, cluster=2, num_stages=3)
    messages = assemble(kernel.ptx, architecture)
    assert "setmaxnreg" not in messages and "C75" not in messages, messages
    assert (".multicast::cluster" in kernel.ptx) == (architecture != "sm_120a")
    assert ".cluster." not in kernel.ptx.replace("barrier.cluster.", "").replace("mbarrier_init.release.cluster", "")


# -- the IR ----------------------------------------
def specialized_tiles(mask: int | None) -> Program:
    """The program right after specialize_warps; ``mask``: put into every load."""
    kernel = specialized(kernels.gemm, "sm_90a", M=128, N=128, K=128, cluster=2)
    found: list[Program] = []

    def observe(name: str, program: Program) -> None:
        if name == "specialize_warps":
            found.append(program)

    lower_program(kernel.variant.tile_program, target.get("sm_90a"), Options(specialize_warps=True), observe=observe)
    (program,) = found
    if mask is None:
        return program

    def masked(node: Any) -> Any:
        if isinstance(node, TmaCopy):
            return copy_with(node, {"multicast": constant(mask)})
        return node if isinstance(node, Expr) else map_children(node, masked)

    changed = replace(program.kernels[0], body=masked(program.kernels[0].body))
    return replace(program, kernels=(changed,))


def test_a_tile_copy_with_a_mask_is_text_and_legal():
    program = specialized_tiles(None)
    masks = [node.multicast for node in walk(program.kernels[0].body) if isinstance(node, TmaCopy)]
    assert sorted(mask is None for mask in masks) == [False, True]
    verify(program)
    assert parse_program(print_program(program)) == program
    verify(specialized_tiles(0b10))


@pytest.mark.parametrize("mask", [0, 0b100, -1])
def test_a_mask_names_blocks_of_the_cluster(mask):
    with pytest.raises(VerificationError, match="invariant 47"):
        verify(specialized_tiles(mask))

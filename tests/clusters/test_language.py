"""cluster_dims of T.Kernel, a block's place in its cluster, the cluster's barrier, barriers of other blocks."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import LaunchError, ResourceError, TargetError, TraceError, TypeMismatchError
from ptxtile.ir.cluster_ops import ClusterArrive, ClusterWait
from ptxtile.ir.gpu_ops import BarSync
from tests.clusters.simulate import nodes, policies, specialized
from tests.ptxas import assemble


def filling(cluster, grid=(4, 4)):
    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((4, 4), "int32")
        with T.Kernel(*grid, threads=32, cluster_dims=cluster) as (bx, by):
            A[by, bx] = 1

    return kernel


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (None, (1, 1, 1)), (1, (1, 1, 1)), (2, (2, 1, 1)), ((2,), (2, 1, 1)), ((1, 2), (1, 2, 1)),
        ([2, 2], (2, 2, 1)), ((4, 2, 1), (4, 2, 1)), ((1, 1, 1), (1, 1, 1)),
    ],
)  # fmt: skip
def test_extents(cluster, expected):
    kernel = specialized(filling(cluster), "sm_90a")
    assert kernel.launch.launches[0].cluster == expected
    assert kernel.program.kernels[0].cluster == expected


@pytest.mark.parametrize(
    ("cluster", "error", "parts"),
    [
        (0, TypeMismatchError, ["an int ≥ 1"]),
        (-2, TypeMismatchError, ["an int ≥ 1"]),
        (2.0, TypeMismatchError, ["an int ≥ 1"]),
        (True, TypeMismatchError, ["an int ≥ 1"]),
        ((), TypeMismatchError, ["up to three"]),
        ((1, 1, 1, 1), TypeMismatchError, ["up to three"]),
        (16, ResourceError, ["at most 8", "16"]),
        ((4, 4), ResourceError, ["at most 8", "16"]),
        (3, LaunchError, ["along x", "a multiple of 3", "4"]),
        ((1, 3), LaunchError, ["along y", "a multiple of 3"]),
        ((1, 1, 2), LaunchError, ["along z", "a multiple of 2", "1"]),
    ],
)
def test_refusals_name_the_line(cluster, error, parts):
    with pytest.raises(error) as raised:
        specialized(filling(cluster), "sm_90a")
    assert all(part in str(raised.value) for part in [*parts, "with T.Kernel"])


def test_a_grid_known_at_launch_is_checked_there(monkeypatch):
    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")
    N = T.dynamic("N")

    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((N,), "int32")
        with T.Kernel(T.ceildiv(N, 4), threads=32, cluster_dims=2) as bx:
            for i in T.Parallel(4):
                A[bx * 4 + i] = bx

    a = torch.full((16,), -1, dtype=torch.int32)
    kernel(a)
    assert torch.equal(a, torch.arange(16, dtype=torch.int32) // 4)
    with pytest.raises(LaunchError, match="whole clusters along x") as raised:
        kernel(torch.zeros(12, dtype=torch.int32))
    assert "a multiple of 2" in str(raised.value) and "N = 12" in str(raised.value)


@pytest.mark.parametrize("cluster", [(2, 1, 1), (1, 2, 1), (2, 2, 1), (2, 1, 2)])
def test_places_in_the_cluster(cluster):
    """Against the definitions of %cluster_ctarank and %clusterid (PTX ISA, «Special Registers»)."""

    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((2, 4, 4, 5), "int32")
        with T.Kernel(4, 4, 2, threads=32, cluster_dims=cluster) as (bx, by, bz):
            A[bz, by, bx, 0] = T.block_rank_in_cluster()
            ids = T.get_cluster_ids()
            A[bz, by, bx, 1] = ids[0]
            A[bz, by, bx, 2] = T.get_cluster_id(1)
            A[bz, by, bx, 3] = ids[2]
            A[bz, by, bx, 4] = T.get_cluster_size() * 1000 + T.get_cluster_extent(0) * 10 + T.get_cluster_extents()[2]

    program = specialized(kernel, "sm_90a").program
    found = torch.full((2, 4, 4, 5), -1, dtype=torch.int32)
    ptxtile.sim.run(program, {"A": found}, {})
    x, y, z = cluster
    for bz in range(2):
        for by in range(4):
            for bx in range(4):
                rank = bx % x + x * (by % y) + x * y * (bz % z)
                size = x * y * z * 1000 + 4 // x * 10 + 2 // z
                assert found[bz, by, bx].tolist() == [rank, bx // x, by // y, bz // z, size]


@ptxtile.jit
def handing_over(A, B):
    """Blocks of a cluster write, meet, and read what their neighbour wrote."""
    A: T.Tensor((8,), "int32")
    B: T.Tensor((8,), "int32")
    with T.Kernel(8, threads=64, cluster_dims=4) as bx:
        A[bx] = bx * bx
        T.cluster_sync()
        neighbour = bx - T.block_rank_in_cluster() + (T.block_rank_in_cluster() + 1) % 4
        B[bx] = A[neighbour]


def test_a_cluster_meets():
    program = specialized(handing_over, "sm_90a").program
    assert len(nodes(program, ClusterArrive)) == len(nodes(program, ClusterWait)) == 1
    assert not nodes(program, BarSync)  # the cluster's barrier is one for each of its blocks, too
    for effects in policies([]):
        b = torch.full((8,), -1, dtype=torch.int32)
        ptxtile.sim.run(program, {"A": torch.zeros(8, dtype=torch.int32), "B": b}, {}, effects=effects)
        assert b.tolist() == [1, 4, 9, 0, 25, 36, 49, 16]


def test_the_barrier_in_two_halves():
    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((2, 64), "int32")
        with T.Kernel(2, threads=64, cluster_dims=2) as bx:
            tile = T.alloc_shared((64,), "int32")
            tx = T.get_thread_binding()
            tile[tx] = tx
            T.cluster_arrive()
            A[bx, tx] = 1
            T.cluster_wait()
            A[bx, tx] += tile[63 - tx]

    program = specialized(kernel, "sm_90a").program
    assert not nodes(program, BarSync)
    a = torch.zeros(2, 64, dtype=torch.int32)
    ptxtile.sim.run(program, {"A": a}, {})
    assert torch.equal(a, (1 + torch.arange(63, -1, -1, dtype=torch.int32)).expand(2, 64))


def test_what_comes_after_the_arrival_is_not_ordered_by_the_wait():
    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((2, 64), "int32")
        with T.Kernel(2, threads=64, cluster_dims=2) as bx:
            tile = T.alloc_shared((64,), "int32")
            tx = T.get_thread_binding()
            T.cluster_arrive()
            tile[tx] = tx
            T.cluster_wait()
            A[bx, tx] = tile[63 - tx]

    assert len(nodes(specialized(kernel, "sm_90a").program, BarSync)) == 1


@ptxtile.jit
def signalling(A, B):
    """Block 0 writes and tells block 1 through its barrier."""
    A: T.Tensor((4, 64), "int32")
    B: T.Tensor((4, 64), "int32")
    with T.Kernel(4, threads=64, cluster_dims=2) as bx:
        ready = T.alloc_cluster_barrier([64])
        tx = T.get_thread_binding()
        T.cluster_sync()
        if T.block_rank_in_cluster() == 0:
            A[bx, tx] = bx + tx
            T.mbarrier_arrive(ready, 1)
        else:
            T.mbarrier_wait_parity(ready, 0)
            B[bx, tx] = A[bx - 1, 63 - tx]
        T.cluster_sync()


def test_an_arrival_in_another_block():
    program = specialized(signalling, "sm_90a").program
    b = torch.full((4, 64), -1, dtype=torch.int32)
    ptxtile.sim.run(program, {"A": torch.zeros(4, 64, dtype=torch.int32), "B": b}, {})
    assert (b[0::2] == -1).all()
    down = torch.arange(63, -1, -1, dtype=torch.int32)
    assert torch.equal(b[1], down) and torch.equal(b[3], down + 2)


@ptxtile.jit
def multicasting(A, B):
    """All blocks of a cluster get the tile that the first of them loads; each announces it and waits by itself."""
    A: T.Tensor((2, 16, 64), "float32")
    B: T.Tensor((4, 16, 64), "float32")
    with T.Kernel(4, threads=128, cluster_dims=2) as bx:
        tile = T.alloc_shared((16, 64), "float32")
        loaded = T.alloc_cluster_barrier([1])
        T.cluster_sync()
        T.tma_copy(A[bx // 2, 0:16, 0:64], tile, barrier=loaded, cluster_mask=0b11)
        if T.get_thread_binding() == 0:
            T.mbarrier_arrive(loaded)
        T.mbarrier_wait_parity(loaded, 0)
        T.copy(tile, B[bx, 0:16, 0:64])
        T.cluster_sync()


def test_a_multicast_by_hand():
    kernel = specialized(multicasting, "sm_90a")
    a = torch.randn(2, 16, 64)
    for effects in policies([0, 1]):
        b = torch.full((4, 16, 64), float("nan"))
        ptxtile.sim.run(kernel.program, {"A": a, "B": b}, {}, effects=effects)
        assert torch.equal(b, a.repeat_interleave(2, dim=0))
    assert ".multicast::cluster" in kernel.ptx


@pytest.mark.parametrize("target", ["sm_90", "sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("function", [handing_over, signalling])
def test_it_assembles(function, target):
    ptx = specialized(function, target).ptx
    assert ".reqnctapercluster" in ptx or ".explicitcluster" in ptx
    assemble(ptx, target)


def test_a_target_without_clusters():
    """A cluster that nothing is done with is an optimisation; its barrier is not."""
    kernel = specialized(filling(2), "sm_80")
    assert kernel.launch.launches[0].cluster == (1, 1, 1)
    assert any("no cluster" in why.decision and "sm_80" in why.reason for why in kernel.why)
    with pytest.raises(TargetError, match="CLUSTER|cluster"):
        _ = specialized(handing_over, "sm_80").ptx


@pytest.mark.parametrize("mask", [0, -1, "3", 0b100, True])
def test_masks_of_blocks_that_are_not_there(mask):
    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((16, 64), "float32")
        with T.Kernel(2, threads=128, cluster_dims=2):
            tile = T.alloc_shared((16, 64), "float32")
            loaded = T.alloc_cluster_barrier([1])
            T.tma_copy(A[0:16, 0:64], tile, barrier=loaded, cluster_mask=mask)

    with pytest.raises(TraceError) as raised:
        specialized(kernel, "sm_90a")
    assert "cluster_mask" in str(raised.value)

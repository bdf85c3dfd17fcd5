"""Clusters of blocks: ``cluster_dims`` of T.Kernel, a block's place in its cluster, and the cluster's barrier.

The blocks of a cluster run at the same time and reach one another's barriers. A pipelined kernel with a producer
multicasts by itself what all blocks of a cluster load alike (:mod:`ptxtile.lower.cluster_multicast`); the functions
here are for doing it by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from ptxtile.errors import LaunchError, ResourceError, TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.buffers import Size, TracedBuffer, size_value
from ptxtile.frontend.current import kernel_tracer
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.manual_control import alloc_barrier, mbarrier_arrive
from ptxtile.frontend.tile_operations import outside_parallel
from ptxtile.frontend.tracer import OpenKernel
from ptxtile.frontend.values import Value
from ptxtile.ir.cluster_ops import ClusterArrive, ClusterWait, rank_in_cluster
from ptxtile.ir.expressions import as_expr

MOST_BLOCKS = 8
"""Blocks of a portable cluster (CUDA C++ Programming Guide, «Thread Block Clusters»). 16 are possible on some cards
only, and not for every amount of shared memory."""


def cluster_extents(dims: Any) -> tuple[int, int, int]:
    """``cluster_dims`` of T.Kernel as three sizes, x first: an int is along x. Errors name what is wrong with it."""
    if dims is None:
        return 1, 1, 1
    sizes = list(dims) if isinstance(dims, (tuple, list)) else [dims]
    if not 1 <= len(sizes) <= 3 or any(isinstance(s, bool) or not isinstance(s, int) or s < 1 for s in sizes):
        raise TypeMismatchError(
            "cluster_dims of T.Kernel", location=user_location(), expected="an int ≥ 1, or up to three",
            got=operations.describe(dims),
        )  # fmt: skip
    if prod(sizes) > MOST_BLOCKS:
        raise ResourceError(
            "too many blocks in a cluster", location=user_location(),
            expected=f"at most {MOST_BLOCKS}, which every card with clusters has", got=str(prod(sizes)),
        )  # fmt: skip
    x, y, z = [*sizes, 1, 1][:3]
    return x, y, z


def check_grid(grid: Sequence[Size], cluster: tuple[int, int, int]) -> None:
    """LaunchError when sizes known now are no multiples of the cluster; the others are checked at each launch."""
    for axis, size, part in zip("xyz", (*grid, 1, 1), cluster, strict=False):
        if isinstance(size, int) and size % part:
            raise LaunchError(
                f"the grid is not made of whole clusters along {axis}", location=user_location(),
                expected=f"a multiple of {part} blocks", got=str(size),
                hint="round the grid up and guard the blocks too many, or leave cluster_dims out for this size",
            )  # fmt: skip


def _kernel(what: str) -> OpenKernel:
    kernel = kernel_tracer(what).kernel
    assert kernel is not None
    return kernel


def _dimension(dim: Any, what: str) -> int:
    if isinstance(dim, bool) or dim not in (0, 1, 2):
        raise TraceError(f"the dimension of {what}", location=user_location(), expected="0, 1 or 2", got=repr(dim))
    return dim


# -- where a block stands ----------------------------------------
def get_cluster_dims() -> list[int]:
    """Blocks of a cluster along x, y and z."""
    return list(_kernel("T.get_cluster_dims").cluster)


def get_cluster_size() -> int:
    """Blocks of a cluster."""
    return prod(_kernel("T.get_cluster_size").cluster)


def get_cluster_id(dim: int = 0) -> Value:
    """The index of the block's cluster along x, y or z."""
    what = "T.get_cluster_id"
    kernel = _kernel(what)
    return Value(kernel.block_vars[_dimension(dim, what)] // kernel.cluster[dim])


def get_cluster_ids() -> list[Value]:
    """The indices of the block's cluster along the dimensions of the grid."""
    return [get_cluster_id(dim) for dim in range(_kernel("T.get_cluster_ids").dimensions)]


def get_cluster_extent(dim: int = 0) -> Any:
    """Clusters of the grid along x, y or z."""
    what = "T.get_cluster_extent"
    kernel = _kernel(what)
    size = ([*kernel.grid, 1, 1])[_dimension(dim, what)]
    part = kernel.cluster[dim]
    return size_value(-(-size // part) if isinstance(size, int) else (as_expr(size) + (part - 1)) // part)


def get_cluster_extents() -> list[Any]:
    return [get_cluster_extent(dim) for dim in range(3)]


def block_rank_in_cluster() -> Value:
    """The block's number in its cluster, x fastest (%cluster_ctarank)."""
    kernel = _kernel("T.block_rank_in_cluster")
    return Value(rank_in_cluster(kernel.block_vars, kernel.cluster))


# -- the cluster's barrier ----------------------------------------
def cluster_arrive() -> None:
    """All threads of the cluster arrive at its barrier and go on; what they did before is seen after cluster_wait."""
    _emit("T.cluster_arrive", ClusterArrive(location=user_location()))


cluster_arrive_relaxed = cluster_arrive


def cluster_wait() -> None:
    """Waits until all threads of the cluster have arrived at its barrier."""
    _emit("T.cluster_wait", ClusterWait(location=user_location()))


def cluster_sync() -> None:
    """All threads of the cluster meet."""
    cluster_arrive()
    cluster_wait()


def _emit(what: str, statement: ClusterArrive | ClusterWait) -> None:
    tracer = kernel_tracer(what)
    outside_parallel(tracer, what)
    tracer.emit(statement)


# -- barriers of other blocks ----------------------------------------
def alloc_cluster_barrier(arrive_count: int | list[int] | tuple[int, ...]) -> TracedBuffer:
    """T.alloc_barrier for barriers that other blocks of the cluster arrive on, or multicast to; those have to meet
    first, in T.cluster_sync()."""
    return alloc_barrier(arrive_count)


def ptx_arrive_cluster_barrier(mbarrier: Any, cta_id: Any) -> None:
    """T.mbarrier_arrive(mbarrier, cta_id)."""
    mbarrier_arrive(mbarrier, cta_id)

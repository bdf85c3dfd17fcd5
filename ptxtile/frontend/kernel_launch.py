"""``with T.Kernel(...)``: the device part of a function, its grid and its threads."""

from __future__ import annotations

from typing import Any

from ptxtile.errors import ResourceError, TraceError, TypeMismatchError
from ptxtile.frontend.annotate_layouts import laid_out
from ptxtile.frontend.buffers import Size, size_of, size_value
from ptxtile.frontend.clusters import check_grid, cluster_extents
from ptxtile.frontend.current import kernel_tracer, tracer_for
from ptxtile.frontend.kernel_annotations import swizzled_blocks
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.loops import indices_of
from ptxtile.frontend.tracer import OpenKernel, Tracer
from ptxtile.frontend.values import Value
from ptxtile.ir.expressions import Binary, Expr, Var, constant
from ptxtile.ir.program import Kernel as KernelNode
from ptxtile.ir.rewrite import buffers_of, walk
from ptxtile.ir.statements import Seq, View
from ptxtile.ir.types import int32

MAX_THREADS = 1024
"""Threads of a block on every target (CUDA C++ Programming Guide, «Technical Specifications per Compute
Capability»)."""


class KernelLaunch:
    """The object that ``with`` enters. ``names``: those of the ``as`` part, for the block indices; ``tuple_of_one``:
    whether it is a tuple of one name."""

    def __init__(
        self, grid: tuple[Size, ...], threads: tuple[int, int, int], cluster: tuple[int, int, int] = (1, 1, 1)
    ) -> None:
        self.grid = grid
        self.threads = threads
        self.cluster = cluster
        self.names: tuple[str, ...] = ()
        self.tuple_of_one = False

    def __enter__(self) -> Any:
        tracer = tracer_for("T.Kernel")
        if tracer.kernel is not None:
            raise TraceError("T.Kernel inside of T.Kernel", location=user_location(), hint="put it after the first one")
        tracer.pending_name = None
        names = [*self.names, *("bx", "by", "bz")[len(self.names) :]]
        x, y, z = (Var(tracer.unique(name), int32) for name in names[:3])
        block_vars = (x, y, z)
        grid = (*self.grid, *(1,) * (3 - len(self.grid)))
        thread = Var(tracer.unique("thread"), int32)
        tracer.kernel = OpenKernel(
            grid,
            self.threads,
            block_vars,
            thread,
            len(self.grid),
            cluster=self.cluster,
            location=user_location(),  # type: ignore[arg-type]
        )
        tracer.open_block()
        return indices_of(block_vars[: len(self.grid)], self.tuple_of_one)

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if error is not None:
            return
        tracer = tracer_for("T.Kernel")
        assert tracer.kernel is not None
        _finish(tracer, tracer.kernel)
        tracer.kernel = None


def _finish(tracer: Tracer, kernel: OpenKernel) -> None:
    body = laid_out(kernel, tracer.close_block().close())
    views: tuple[View, ...] = ()
    if tracer.host_views:
        used = {buffer.name for node in walk(body) for buffer in buffers_of(node)}
        views = tuple(view for view in tracer.host_views if view.buffer.name in used)
    block_vars, prologue = kernel.block_vars, []
    if kernel.swizzle is not None:
        x, y, z = kernel.block_vars
        launched = (Var(tracer.unique(f"{x.name}_launched"), int32), Var(tracer.unique(f"{y.name}_launched"), int32))
        block_vars, prologue = (*launched, z), swizzled_blocks(kernel, launched)
    body = Seq((*prologue, *tracer.host_assumptions, *views, *body.statements))
    node = KernelNode(
        tracer.unique(f"{tracer.name}_kernel"), kernel.grid, kernel.threads, block_vars,  # type: ignore[arg-type]
        kernel.thread, body, user_threads=kernel.threads, cluster=kernel.cluster, min_blocks=kernel.min_blocks,
        location=kernel.location,
    )  # fmt: skip
    tracer.kernels.append(node)


def Kernel(*blocks: Any, threads: Any = None, prelude: str | None = None, cluster_dims: Any = None) -> KernelLaunch:
    """A launch of a grid of up to three dimensions of blocks (x first), with ``threads`` each (an int or up to three);
    of one block where no size is given.

    ``with T.Kernel(grid_x, grid_y, threads=128) as (bx, by):`` gives the indices of the block. ``cluster_dims``: so
    many blocks along x (or x, y and z) run together as a cluster; the grid must be a multiple of it. What the blocks of
    a cluster load alike in a pipelined loop is then loaded once and multicast.
    """
    tracer_for("T.Kernel")
    if prelude is not None:
        raise TraceError(
            "prelude of T.Kernel is C++ source, which this compiler cannot have", location=user_location(),
            hint="write what it does with T operations",
        )  # fmt: skip
    if len(blocks) > 3:
        raise TraceError(
            "the grid of T.Kernel", location=user_location(), expected="at most 3 sizes", got=str(len(blocks))
        )
    grid = tuple(size_of(size, "a grid size of T.Kernel") for size in blocks or (1,))
    cluster = cluster_extents(cluster_dims)
    check_grid(grid, cluster)
    return KernelLaunch(grid, _thread_extents(threads), cluster)


def ClusterKernel(*blocks: Any, cluster_dims: Any, threads: Any = None, prelude: str | None = None) -> KernelLaunch:
    """``T.Kernel(*blocks, cluster_dims=cluster_dims)``."""
    return Kernel(*blocks, threads=threads, prelude=prelude, cluster_dims=cluster_dims)


def _thread_extents(threads: Any) -> tuple[int, int, int]:
    if threads is None:
        threads = 128
    extents = list(threads) if isinstance(threads, (tuple, list)) else [threads]
    if not 1 <= len(extents) <= 3 or any(isinstance(e, bool) or not isinstance(e, int) or e < 1 for e in extents):
        raise TypeMismatchError(
            "threads of T.Kernel", location=user_location(), expected="an int ≥ 1, or up to three", got=repr(threads)
        )
    x, y, z = [*extents, 1, 1][:3]
    if x * y * z > MAX_THREADS:
        raise ResourceError(
            "too many threads in a block", location=user_location(), expected=f"at most {MAX_THREADS}",
            got=str(x * y * z),
            hint="give each thread more elements: T.Parallel spreads any tile over any number of threads",
        )  # fmt: skip
    return x, y, z


def _kernel(what: str) -> OpenKernel:
    kernel = kernel_tracer(what).kernel
    assert kernel is not None
    return kernel


def _dimension(dim: int, what: str) -> int:
    if dim not in (0, 1, 2):
        raise TraceError(f"the dimension of {what}", location=user_location(), expected="0, 1 or 2", got=repr(dim))
    return dim


def get_thread_binding(dim: int = 0) -> Value:
    """The thread's index in the block along x, y or z."""
    kernel = _kernel("T.get_thread_binding")
    x, y, _ = kernel.thread_extents
    thread: Expr = kernel.thread
    if kernel.threads == x:
        return Value(thread if _dimension(dim, "T.get_thread_binding") == 0 else constant(0))
    inner = (1, x, x * y)[_dimension(dim, "T.get_thread_binding")]
    index = thread if inner == 1 else Binary("floordiv", thread, constant(inner), int32)
    if dim < 2:
        index = Binary("floormod", index, constant(kernel.thread_extents[dim]), int32)
    return Value(index)


def get_thread_bindings() -> list[Value]:
    """The thread's indices along x, y and z."""
    return [get_thread_binding(dim) for dim in range(3)]


def thread_binding(start: Any, stop: Any = None, thread: str | None = None, *, annotations: Any = None) -> Value:
    """``T.thread_binding(0, 128, thread="threadIdx.x")``: the thread's (or with ``blockIdx`` the block's) index along
    x, y or z, of which the kernel must have as many as this says. TraceError otherwise."""
    kernel = _kernel("T.thread_binding")
    first, count = (0, start) if stop is None else (start, stop)
    kind, _, axis = (thread or "").partition(".")
    if kind not in ("threadIdx", "blockIdx") or axis not in ("x", "y", "z"):
        raise TraceError(
            "thread of T.thread_binding", location=user_location(), expected="threadIdx or blockIdx, .x, .y or .z",
            got=repr(thread),
        )  # fmt: skip
    dimension = "xyz".index(axis)
    extent = (kernel.thread_extents if kind == "threadIdx" else kernel.grid)[dimension]
    if isinstance(extent, int) and (first, count) != (0, extent):
        raise TraceError(
            f"T.thread_binding of {thread}", location=user_location(), expected=f"0 … {extent}, as in T.Kernel",
            got=f"{first} … {count}",
        )  # fmt: skip
    return get_thread_binding(dimension) if kind == "threadIdx" else get_block_binding(dimension)


def get_block_binding(dim: int = 0) -> Value:
    """The block's index in the grid along x, y or z."""
    return Value(_kernel("T.get_block_binding").block_vars[_dimension(dim, "T.get_block_binding")])


def get_block_bindings() -> list[Value]:
    kernel = _kernel("T.get_block_bindings")
    return [Value(var) for var in kernel.block_vars[: kernel.dimensions]]


def get_thread_extent(dim: int = 0) -> int:
    """Threads of a block along x, y or z."""
    return _kernel("T.get_thread_extent").thread_extents[_dimension(dim, "T.get_thread_extent")]


def get_thread_extents() -> list[int]:
    return list(_kernel("T.get_thread_extents").thread_extents)


def get_block_extent(dim: int = 0) -> Any:
    """Blocks of the grid along x, y or z."""
    return size_value(_kernel("T.get_block_extent").grid[_dimension(dim, "T.get_block_extent")])


def get_block_extents() -> list[Any]:
    return [size_value(size) for size in _kernel("T.get_block_extents").grid]

"""What a kernel says about itself: the order of its blocks, occupancy, safe values, assumptions and assertions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ptxtile.config import logger
from ptxtile.errors import TraceError, TypeMismatchError
from ptxtile.frontend import operations
from ptxtile.frontend.buffers import TracedBuffer
from ptxtile.frontend.current import kernel_tracer, tracer_for
from ptxtile.frontend.locations import user_location
from ptxtile.frontend.tile_operations import outside_parallel
from ptxtile.frontend.tracer import OpenKernel
from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import Const, Expr, Var, as_expr, cast, select
from ptxtile.ir.grid_dependency_ops import GridDependencyWait, LaunchDependents
from ptxtile.ir.manual_ops import DeviceAssert
from ptxtile.ir.statements import Let, Statement
from ptxtile.ir.tile_ops import Assume, KeepRegisters, SafeValue
from ptxtile.ir.types import int32

SWIZZLE_ORDERS = ("row", "column")


def use_swizzle(panel_size: int, order: str = "row", enable: bool = True) -> None:
    """Blocks that start after each other work on a panel of the grid: ``panel_size`` rows (of the second index) of it,
    column by column and there and back, so that they share what they read in the L2 cache. ``order`` ``column``: panels
    of columns.

    The block indices of the whole kernel are renumbered, also those used before this line.
    """
    kernel = kernel_tracer("T.use_swizzle").kernel
    assert kernel is not None
    if isinstance(panel_size, bool) or not isinstance(panel_size, int) or panel_size < 1:
        raise TraceError(
            "panel_size of T.use_swizzle", location=user_location(), expected="an int ≥ 1",
            got=operations.describe(panel_size),
        )  # fmt: skip
    if order not in SWIZZLE_ORDERS:
        raise TraceError(
            "order of T.use_swizzle", location=user_location(), expected=" or ".join(SWIZZLE_ORDERS), got=repr(order)
        )
    if enable:
        kernel.swizzle = (panel_size, order)


def swizzled_blocks(kernel: OpenKernel, launched: tuple[Var, Var]) -> list[Statement]:
    """The renumbered indices of a block from those that it was launched with, and what is known of them.

    Panels of ``panel`` lines along the minor axis go through the major axis alternately forwards and backwards; the
    last panel has as many lines as are left. In a kernel with clusters it is those that are renumbered; a block keeps
    its place in its cluster.
    """
    assert kernel.swizzle is not None
    panel, order = kernel.swizzle
    sizes, ranks, places = [], [], []
    for index, size, part in zip(launched, kernel.grid, kernel.cluster, strict=False):
        sizes.append(cast(as_expr(size), int32) // part if part > 1 else cast(as_expr(size), int32))
        places.append(index // part if part > 1 else index)
        ranks.append(index % part if part > 1 else None)
    (x, y), (width, height) = places, sizes
    major, minor = (width, height) if order == "row" else (height, width)
    number = x + y * width
    area = major * panel
    index, offset = number // area, number % area
    remaining = minor - index * panel
    lines = select(remaining.lt(panel), remaining, as_expr(panel))
    along, line = offset // lines, offset % lines + index * panel
    along = select((index & 1).eq(0), along, major - 1 - along)
    first, second = (along, line) if order == "row" else (line, along)
    location = kernel.location
    statements: list[Statement] = []
    for axis, place in enumerate((first, second)):
        rank, part, size = ranks[axis], kernel.cluster[axis], cast(as_expr(kernel.grid[axis]), int32)
        place = place if rank is None else place * part + rank
        statements.append(Let(kernel.block_vars[axis], place, location=location))
        statements.append(Assume(kernel.block_vars[axis].ge(0), location=location))
        statements.append(Assume(kernel.block_vars[axis].lt(size), location=location))
    return statements


def annotate_min_blocks_per_sm(n: int) -> None:
    """So many blocks shall fit on a multiprocessor at once: their registers are limited accordingly."""
    kernel = kernel_tracer("T.annotate_min_blocks_per_sm").kernel
    assert kernel is not None
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= 32:
        raise TraceError(
            "T.annotate_min_blocks_per_sm", location=user_location(), expected="an int from 1 to 32",
            got=operations.describe(n),
        )  # fmt: skip
    kernel.min_blocks = n


def annotate_l2_hit_ratio(ratios: Any) -> None:
    """Accepted without effect: no part of the L2 cache is set aside, and results do not depend on it."""
    kernel_tracer("T.annotate_l2_hit_ratio")
    logger().info("T.annotate_l2_hit_ratio has no effect")


def pdl_trigger() -> None:
    """A kernel behind this one that starts early (T.pdl_sync) may do so from here on, once one thread of each block has
    come here or the block has ended. Without it: once all blocks have ended. A hint, which orders nothing."""
    what = "T.pdl_trigger"
    tracer = kernel_tracer(what)
    outside_parallel(tracer, what)
    tracer.emit(LaunchDependents(location=user_location()))


def pdl_sync() -> None:
    """Waits until the kernels in front of this one on its stream are complete, with all that they wrote.

    What lies before it may run while they still do, and must not touch what they write nor write what they read. All
    threads of the block have to come here. Where the compiler gives the kernel roles, and inside of loops, branches and
    T.ws, the wait comes in front of these.
    """
    what = "T.pdl_sync"
    tracer = kernel_tracer(what)
    outside_parallel(tracer, what)
    tracer.emit(GridDependencyWait(location=user_location()))


def annotate_safe_value(safe_value_map: Mapping[TracedBuffer, Any]) -> None:
    """Reads outside of these buffers give the values, in the whole kernel, instead of 0."""
    tracer = kernel_tracer("T.annotate_safe_value")
    if not isinstance(safe_value_map, Mapping):
        raise TypeMismatchError(
            "T.annotate_safe_value", location=user_location(), expected="a dict of buffers and numbers",
            got=operations.describe(safe_value_map), hint="T.annotate_safe_value({A: 1.0})",
        )  # fmt: skip
    for buffer, value in safe_value_map.items():
        if not isinstance(buffer, TracedBuffer) or buffer.ir.scope not in (Scope.GLOBAL, Scope.SHARED):
            raise TypeMismatchError(
                "a key of T.annotate_safe_value", location=user_location(), expected="a global or shared buffer",
                got=operations.describe(buffer),
            )  # fmt: skip
        number = operations.converted(value, buffer.ir.dtype)
        if not isinstance(number, Const):
            raise TypeMismatchError(
                f"the safe value of {buffer.name}", location=user_location(), expected="a number known at compile time",
                got=operations.describe(value),
            )  # fmt: skip
        tracer.emit(SafeValue(buffer.ir, number, location=user_location()))


def assume(condition: Any) -> None:
    """The caller vouches for ``condition``: guards that follow from it are left out. Wrong, it makes the kernel
    undefined. Before T.Kernel, of sizes and number arguments, it holds in the kernels that follow."""
    tracer = tracer_for("T.assume")
    expr = _condition(condition, "T.assume")
    if not isinstance(expr, Const):
        assumption = Assume(expr, location=user_location())
        if tracer.kernel is None:
            tracer.host_assumptions.append(assumption)
        else:
            tracer.emit(assumption)
    elif not expr.value:
        raise TraceError("T.assume of something that is false", location=user_location())


def device_assert(condition: Any, msg: str = "", no_stack_info: bool = False) -> None:
    """Stops the kernel where ``condition`` does not hold: in the simulator with an error at this line, on a card with a
    trap after printing the message and (unless ``no_stack_info``) this line."""
    tracer = kernel_tracer("T.device_assert")
    expr = _condition(condition, "T.device_assert")
    location = user_location()
    text = msg or "device assertion failed"
    if location is not None and not no_stack_info:
        text += f" at {location.file}:{location.line}"
    tracer.emit(DeviceAssert(expr, text, location=location))


def _condition(value: Any, what: str) -> Expr:
    if isinstance(value, TracedBuffer):
        raise TypeMismatchError(
            f"the condition of {what}", location=user_location(), expected="a scalar", got=value.description
        )
    return operations.truth(value, what)


def no_set_max_nreg() -> None:
    """Roles that the compiler makes of this kernel keep the registers of the launch."""
    tracer = kernel_tracer("T.no_set_max_nreg")
    tracer.emit(KeepRegisters(location=user_location()))


disable_warp_group_reg_alloc = no_set_max_nreg

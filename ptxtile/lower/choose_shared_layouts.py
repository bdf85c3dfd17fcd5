"""Gives shared tiles the arrangement that their copies need and their accesses like best.

Input: thread stage, before TMA copies are lowered. Output: the same, with a ``layout`` on each shared buffer that is
not plain row-major. TMA writes a box of at most 256 elements a side densely, so a tile with longer rows is kept as
columns of boxes. A swizzled arrangement is taken when it saves bank conflicts, counted exactly on the first warp of
every access, and when each box of every TMA copy would start where the swizzle's pattern does. Narrow spans cost TMA
more rows of boxes, which counts against the cycles that they save.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.bank_conflicts import bank_conflicts
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.enumeration import NotEnumerable, evaluate
from ptxtile.ir.expressions import Expr, Load, constant_value
from ptxtile.ir.layouts import TMA_SWIZZLES, SharedLayout
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import Rewriter, children, walk
from ptxtile.ir.statements import Allocate, For, Let, Role, Statement, Store, View
from ptxtile.ir.tile_ops import Copy, CopyPath, Gemm, GemmPath, MatrixStore, Region, TmaCopy
from ptxtile.lower.gemm_geometry import grid_of
from ptxtile.lower.lower_async_copies import first_warp_access
from ptxtile.lower.operand_fragments import first_warp_accesses
from ptxtile.lower.options import Options
from ptxtile.lower.shared_columns import boxes_start_patterns, columns_of_boxes, operand_layout, row_swizzles
from ptxtile.lower.tma_rules import MAXIMUM_BOX
from ptxtile.records import record
from ptxtile.target import Target

WARP = 32
SPANS = (32, 64, 128)
"""Swizzle spans in bytes, smallest first: on a tie the plainest arrangement wins, or the one with the fewest boxes."""
MATRIX_ROW = 8
"""Elements of a row that stmatrix stores, of 16 bits each."""
REQUEST_BYTES = 128
"""What TMA is taken to move at once at most: a row of the widest swizzle."""


def run(program: Program, target: Target, options: Options) -> Program:
    kernels, why = [], []
    for kernel in program.kernels:
        chosen: dict[str, Buffer] = {}
        accesses = list(_accesses(kernel))
        moved_by_tma = _tma_regions(kernel.body)
        operands = _wgmma_operands(kernel.body)
        for buffer in _candidates(kernel.body):
            if buffer.name in operands:
                layout = operand_layout(buffer)
                chosen[buffer.name] = _with_layout(buffer, layout)
                reason = "an operand of wgmma"
                why.append(Why("choose_shared_layouts", buffer.name, _described(layout), reason, kernel.location))
                continue
            mine = [access for access in accesses if access.buffer.name == buffer.name]
            warps = max((kernel.user_threads or kernel.threads) // WARP, 1)
            layout, reason = _choose(buffer, mine, [r for r in moved_by_tma if r.buffer.name == buffer.name], warps)
            if layout is not None:
                chosen[buffer.name] = _with_layout(buffer, layout)
                why.append(Why("choose_shared_layouts", buffer.name, _described(layout), reason, kernel.location))
        kernels.append(replace(kernel, body=_Replacement(chosen).visit(kernel.body)))
    return replace(program, kernels=tuple(kernels)).with_why(*why)


def _described(layout: SharedLayout) -> str:
    swizzle = layout.swizzle
    if swizzle in TMA_SWIZZLES.values():
        return f"columns of boxes, swizzle {layout.span}"
    pieces, first = 1 << swizzle.base, swizzle.base + swizzle.shift
    return f"rows, pieces of {pieces} bytes exchanged by the {swizzle.bits} address bits from bit {first} on"


def _with_layout(buffer: Buffer, layout: SharedLayout) -> Buffer:
    storage = replace(buffer.storage, alignment=max(buffer.storage.alignment, layout.alignment))
    return replace(buffer, layout=layout, storage=storage)


class _Replacement(Rewriter):
    """Buffers with their layouts; tiles that TMA touches are aligned to 128 bytes (PTX ISA, «cp.async.bulk.tensor»)."""

    def __init__(self, chosen: dict[str, Buffer]) -> None:
        self.chosen = chosen

    def buffer(self, buffer: Buffer) -> Buffer:
        return self.chosen.get(buffer.name, buffer)


@record
class _Access:
    """One memory instruction: its indices for the lanes of the first warp, and how often it runs at most."""

    buffer: Buffer
    indices: tuple[Any, ...]
    lanes: int
    times: int


def _candidates(body: Statement) -> list[Buffer]:
    """Shared tiles with one view only, whose arrangement is free."""
    viewed = {node.buffer.storage.name for node in walk(body, View)}
    return [
        node.buffer
        for node in walk(body, Allocate)
        if node.buffer.scope is Scope.SHARED
        and node.buffer.storage.name not in viewed
        and node.buffer.layout is None
        and node.buffer.rank >= 1
        and node.buffer.dtype.bits % 8 == 0
    ]


def _tma_regions(body: Statement) -> list[Region]:
    """The regions of shared memory that TMA copies fill or read."""
    copies = list(walk(body, TmaCopy))
    found = [c.source if c.source.buffer.scope is Scope.SHARED else c.destination for c in copies]
    return found + [n.source for n in walk(body, Copy) if n.path is not CopyPath.CP_ASYNC]


def _wgmma_operands(body: Statement) -> set[str]:
    gemms = [node for node in walk(body, Gemm) if node.path is GemmPath.WGMMA]
    return {region.buffer.name for gemm in gemms for region in (gemm.a, gemm.b)}


def _choose(
    buffer: Buffer, accesses: list[_Access], regions: list[Region], warps: int
) -> tuple[SharedLayout | None, str]:
    *_, columns = buffer.static_shape
    size = buffer.dtype.itemsize
    spans_outer = any(extent > 1 for region in regions for extent in region.extents[:-2])
    plain = columns_of_boxes(buffer, MAXIMUM_BOX, 0, spans_outer) if regions and columns > MAXIMUM_BOX else None
    options: list[SharedLayout | None] = [plain]
    if buffer.rank >= 2:
        swizzled = [
            columns_of_boxes(buffer, span // size, span, spans_outer)
            for span in SPANS
            if columns * size % span == 0 and span // size <= MAXIMUM_BOX
        ]
        options += [layout for layout in swizzled if all(boxes_start_patterns(layout, region) for region in regions)]
    conflicts = [_all_conflicts(accesses, option) for option in options]
    if buffer.rank >= 2 and not regions and min(conflicts):
        others = row_swizzles(buffer)
        options, conflicts = options + others, conflicts + [_all_conflicts(accesses, option) for option in others]
    requests = [_requests(buffer, option, regions) for option in options]
    costs = [count * warps + rows for count, rows in zip(conflicts, requests, strict=True)]
    best = costs.index(min(costs))
    if best == 0:
        return plain, f"rows of {columns} elements are longer than a TMA box"
    if regions:  # of equal ones, the one with the fewest boxes
        best = max(position for position, cost in enumerate(costs) if cost == costs[best])
    return options[best], f"bank conflicts of a CTA's warp: {conflicts[best]} instead of {conflicts[0]}"


def _requests(buffer: Buffer, layout: SharedLayout | None, regions: list[Region]) -> int:
    """Rows of boxes that TMA moves for the whole tile, as so many cycles; 0 for a tile that it does not touch."""
    if not regions:
        return 0
    row = buffer.static_shape[-1] * buffer.dtype.itemsize
    span = layout.span if layout is not None and layout.span else REQUEST_BYTES
    return buffer.elements // buffer.static_shape[-1] * -(-row // span)


def _all_conflicts(accesses: list[_Access], layout: SharedLayout | None) -> int:
    return sum(_conflicts(access, layout) * access.times for access in accesses)


def _conflicts(access: _Access, layout: SharedLayout | None) -> int:
    import numpy as np

    size = access.buffer.dtype.itemsize
    if layout is not None:
        offset = layout(access.indices)
    else:
        offset = sum(i * int(s) for i, s in zip(access.indices, access.buffer.strides, strict=True))  # type: ignore[arg-type]
    addresses = np.broadcast_to(np.asarray(offset) * size, (WARP,))
    return bank_conflicts(addresses, access.lanes * size)


def _accesses(kernel: Kernel) -> Iterator[_Access]:
    """Every shared access that can be enumerated: loop counters at their start, other variables at 0 (they move all
    lanes alike in the usual case, and this is a cost, not a proof)."""
    import numpy as np

    def visit(node: Any, values: dict[str, Any], times: int, threads: int) -> Iterator[_Access]:
        if isinstance(node, Role):
            values = values | {kernel.thread.name: node.first_thread + np.arange(WARP, dtype=np.int64)}
            threads = node.threads
        if isinstance(node, For):
            start, stop = constant_value(node.start), constant_value(node.stop)
            values = values | {node.var.name: 0 if start is None else start}
            if start is not None and stop is not None:
                times *= max(len(range(start, stop, node.step)), 1)
        if isinstance(node, (Load, Store)) and node.buffer.scope is Scope.SHARED and node.buffer.dtype.bits % 8 == 0:
            found = _access(node, values, times)
            if found is not None:
                yield found
        if isinstance(node, Gemm) and node.path is GemmPath.MMA:
            grid = grid_of(node, threads, GemmPath.MMA)
            for buffer, indices, lanes, each in first_warp_accesses(node, grid, Analyzer()) if grid else ():
                yield _Access(buffer, indices, lanes, each * times)
        if isinstance(node, Copy) and node.path is CopyPath.CP_ASYNC:
            indices, lanes, each = first_warp_access(node, threads)
            yield _Access(node.destination.buffer, indices, lanes, each * times)
        if isinstance(node, MatrixStore):
            rows = _place(node.indices, values)
            if rows is not None:
                yield _Access(node.destination, rows, MATRIX_ROW, times)
        for child in children(node):
            yield from visit(child, values, times, threads)

    values: dict[str, Any] = {kernel.thread.name: np.arange(WARP, dtype=np.int64)}
    values |= {var.name: 0 for var in kernel.block_vars}
    values |= {node.var.name: 0 for node in walk(kernel.body, Let)}
    yield from visit(kernel.body, values, 1, kernel.threads)


def _access(node: Load | Store, values: dict[str, Any], times: int) -> _Access | None:
    lanes = node.dtype.lanes if isinstance(node, Load) else node.value.dtype.lanes
    indices = _place(node.indices, values)
    return None if indices is None else _Access(node.buffer, indices, lanes // node.buffer.dtype.lanes, times)


def _place(indices: tuple[Expr, ...], values: dict[str, Any]) -> tuple[Any, ...] | None:
    try:
        return tuple(evaluate(index, values) for index in indices)
    except NotEnumerable:
        return None

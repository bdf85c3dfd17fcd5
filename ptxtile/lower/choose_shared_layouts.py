"""Gives shared tiles the arrangement that their copies need and their accesses like best.

Input: thread stage, before TMA copies are lowered. Output: the same, with a ``layout`` on each shared buffer that is
not plain row-major. TMA writes a box of at most 256 elements a side densely, so a tile with longer rows is kept as
columns of boxes. A swizzled arrangement is taken when it saves bank conflicts, counted exactly on the first warp of
every access, and when each box of every TMA copy would start where the swizzle's pattern does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from ptxtile.ir.bank_conflicts import bank_conflicts
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.enumeration import NotEnumerable, evaluate
from ptxtile.ir.expressions import Load, constant_value
from ptxtile.ir.layouts import SharedLayout
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import Rewriter, children, walk
from ptxtile.ir.statements import Allocate, For, Let, Role, Statement, Store, View
from ptxtile.ir.tile_ops import Copy, Gemm, GemmPath, Region, TmaCopy
from ptxtile.lower.options import Options
from ptxtile.lower.select_paths import MAXIMUM_BOX
from ptxtile.lower.shared_columns import columns_of_boxes, operand_layout
from ptxtile.target import Target

WARP = 32
SPANS = (32, 64, 128)
"""Swizzle spans in bytes, smallest first: on a tie the plainest arrangement wins."""


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
                decision = f"columns of boxes, swizzle {layout.span}"
                why.append(Why("choose_shared_layouts", buffer.name, decision, "an operand of wgmma", kernel.location))
                continue
            mine = [access for access in accesses if access.buffer.name == buffer.name]
            layout, reason = _choose(buffer, mine, [r for r in moved_by_tma if r.buffer.name == buffer.name])
            if layout is not None:
                chosen[buffer.name] = _with_layout(buffer, layout)
                decision = f"columns of boxes, swizzle {layout.span}"
                why.append(Why("choose_shared_layouts", buffer.name, decision, reason, kernel.location))
        kernels.append(replace(kernel, body=_Replacement(chosen).visit(kernel.body)))
    return replace(program, kernels=tuple(kernels)).with_why(*why)


def _with_layout(buffer: Buffer, layout: SharedLayout) -> Buffer:
    storage = replace(buffer.storage, alignment=max(buffer.storage.alignment, layout.alignment))
    return replace(buffer, layout=layout, storage=storage)


class _Replacement(Rewriter):
    """Buffers with their layouts; tiles that TMA touches are aligned to 128 bytes (PTX ISA, «cp.async.bulk.tensor»)."""

    def __init__(self, chosen: dict[str, Buffer]) -> None:
        self.chosen = chosen

    def buffer(self, buffer: Buffer) -> Buffer:
        return self.chosen.get(buffer.name, buffer)


@dataclass(frozen=True, slots=True)
class _Access:
    """One memory instruction: its indices for the lanes of the first warp, and how often it runs at most."""

    buffer: Buffer
    indices: tuple[Any, ...]
    lanes: int
    times: int


def _candidates(body: Statement) -> list[Buffer]:
    """Shared tiles with one view only, whose arrangement is free."""
    viewed = {node.buffer.storage.name for node in walk(body) if isinstance(node, View)}
    return [
        node.buffer
        for node in walk(body)
        if isinstance(node, Allocate)
        and node.buffer.scope is Scope.SHARED
        and node.buffer.storage.name not in viewed
        and node.buffer.layout is None
        and node.buffer.rank >= 1
        and node.buffer.dtype.bits % 8 == 0
    ]


def _tma_regions(body: Statement) -> list[Region]:
    """The regions of shared memory that TMA copies fill or read."""
    found = [node.destination for node in walk(body) if isinstance(node, TmaCopy)]
    return found + [node.source for node in walk(body) if isinstance(node, Copy)]


def _wgmma_operands(body: Statement) -> set[str]:
    gemms = [node for node in walk(body) if isinstance(node, Gemm) and node.path is GemmPath.WGMMA]
    return {region.buffer.name for gemm in gemms for region in (gemm.a, gemm.b)}


def _choose(buffer: Buffer, accesses: list[_Access], regions: list[Region]) -> tuple[SharedLayout | None, str]:
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
    costs = [sum(_conflicts(access, option) * access.times for access in accesses) for option in options]
    best = costs.index(min(costs))
    if best == 0:
        return plain, f"rows of {columns} elements are longer than a TMA box"
    return options[best], f"bank conflicts of a CTA's warp: {costs[best]} instead of {costs[0]}"


def boxes_start_patterns(layout: SharedLayout, region: Region) -> bool:
    """Whether each box of a TMA copy of ``region`` has the layout's full columns and starts at a multiple of the bytes
    after which its swizzle repeats: the card derives the pattern from the address (PTX ISA, «Swizzling modes»)."""
    *outer, (_, columns) = layout.layout.shape
    *strides, (box_stride, _) = layout.layout.stride
    unit = layout.alignment // layout.itemsize
    if region.extents[-1] % columns or constant_value(region.starts[-1]) is None:
        return False
    first = constant_value(region.starts[-1]) or 0
    if first % columns:
        return False
    steps = [(first // columns, box_stride), (1 if region.extents[-1] > columns else 0, box_stride)]
    for start, extent, stride in zip(region.starts, region.extents, strides, strict=False):
        position = constant_value(start)
        steps.append((1 if position is None else position, stride))
        steps.append((MAXIMUM_BOX if extent > MAXIMUM_BOX else 0, stride))
    return all(count * stride % unit == 0 for count, stride in steps) and len(strides) == len(outer)


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

    def visit(node: Any, values: dict[str, Any], times: int) -> Iterator[_Access]:
        if isinstance(node, Role):
            values = values | {kernel.thread.name: node.first_thread + np.arange(WARP, dtype=np.int64)}
        if isinstance(node, For):
            start, stop = constant_value(node.start), constant_value(node.stop)
            values = values | {node.var.name: 0 if start is None else start}
            if start is not None and stop is not None:
                times *= max(len(range(start, stop, node.step)), 1)
        if isinstance(node, (Load, Store)) and node.buffer.scope is Scope.SHARED and node.buffer.dtype.bits % 8 == 0:
            found = _access(node, values, times)
            if found is not None:
                yield found
        for child in children(node):
            yield from visit(child, values, times)

    values: dict[str, Any] = {kernel.thread.name: np.arange(WARP, dtype=np.int64)}
    values |= {var.name: 0 for var in kernel.block_vars}
    values |= {node.var.name: 0 for node in walk(kernel.body) if isinstance(node, Let)}
    yield from visit(kernel.body, values, 1)


def _access(node: Load | Store, values: dict[str, Any], times: int) -> _Access | None:
    lanes = node.dtype.lanes if isinstance(node, Load) else node.value.dtype.lanes
    try:
        indices = tuple(evaluate(index, values) for index in node.indices)
    except NotEnumerable:
        return None
    return _Access(node.buffer, indices, lanes // node.buffer.dtype.lanes, times)

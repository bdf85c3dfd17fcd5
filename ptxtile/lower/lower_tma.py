"""TMA copies become bulk tensor instructions and tensor-map records.

Input: thread stage (TmaCopy and Copy with path TMA_STORE). Output: thread stage without tile operations. A box is at
most 256 elements a side, so a larger tile takes several instructions; a swizzled shared layout takes one for each
column of boxes. The tensor maps are prefetched by the thread that will use them first.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

from ptxtile.ir.atomic_ops import TMA_REDUCTIONS
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr, as_expr, cast, constant, constant_value
from ptxtile.ir.gpu_ops import BulkCommitGroup, PrefetchTensorMap, TmaLoad, TmaStore
from ptxtile.ir.layouts import SharedLayout
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import contains, map_children, walk
from ptxtile.ir.statements import If, Role, Specialized, Statement, seq
from ptxtile.ir.tile_ops import Copy, Region, TmaCopy
from ptxtile.ir.types import int32
from ptxtile.launch_record import TensorMapRecord
from ptxtile.lower.options import Options
from ptxtile.lower.sizes import as_size
from ptxtile.lower.tma_rules import MAXIMUM_BOX
from ptxtile.target import Target

WARP = 32


def run(program: Program, target: Target, options: Options) -> Program:
    maps = _TensorMaps(NameSupply(program))
    kernels = []
    for kernel in program.kernels:
        lowered = _Lowering(kernel, maps).visit(kernel.body)
        kernels.append(replace(kernel, body=_with_prefetch(kernel, lowered)))
    return replace(program, kernels=tuple(kernels), tensor_maps=(*program.tensor_maps, *maps.records.values()))


class _TensorMaps:
    """One record for each different (tensor view, box, swizzle)."""

    def __init__(self, names: NameSupply) -> None:
        self.names = names
        self.records: dict[tuple, TensorMapRecord] = {}

    def record(self, buffer: Buffer, box: tuple[int, ...], swizzle: int, element: str) -> str:
        """The name of the record for boxes of ``box`` (outermost first) of ``buffer``, as elements of type
        ``element``."""
        key = (buffer.name, box, swizzle, element)
        if key not in self.records:
            itemsize = buffer.dtype.itemsize
            strides = [as_size(as_expr(stride) * itemsize) for stride in reversed(buffer.strides[:-1])]
            offset = constant_value(buffer.offset)
            assert offset is not None, "select_paths admits constant offsets only"
            self.records[key] = TensorMapRecord(
                name=self.names.fresh(f"{buffer.name}_map"),
                tensor=buffer.storage.name,
                dtype=element,
                dimensions=tuple(as_size(size) for size in reversed(buffer.shape)),
                strides=tuple(strides),
                box=tuple(reversed(box)),
                swizzle=swizzle,
                offset=offset * itemsize,
            )
        return self.records[key].name


class _Lowering:
    def __init__(self, kernel: Kernel, maps: _TensorMaps) -> None:
        self.kernel, self.maps = kernel, maps
        self.first_thread = 0

    def visit(self, node: Any) -> Any:
        if isinstance(node, Expr) or not isinstance(node, Statement):
            return node
        if isinstance(node, Role):
            outer, self.first_thread = self.first_thread, node.first_thread
            node = map_children(node, self.visit)
            self.first_thread = outer
            return node
        if isinstance(node, TmaCopy):
            return self._load(node)
        if isinstance(node, Copy):
            return self._store(node)
        return map_children(node, self.visit)

    def _load(self, copy: TmaCopy) -> Statement:
        if copy.source.buffer.scope is Scope.SHARED:
            return self._issue_store(copy)
        assert copy.barrier is not None and copy.index is not None, "a load completes on a barrier"
        name, pieces = self._pieces(copy.source, copy.destination)
        shared = copy.destination.buffer
        return seq(
            *(
                TmaLoad(
                    name, coordinates, shared, offset, copy.barrier, copy.index, copy.multicast, location=copy.location
                )
                for coordinates, offset in pieces
            )
        )

    def _issue_store(self, copy: TmaCopy) -> Statement:
        """A store of the user's own, or of a part of an epilogue."""
        name, pieces = self._pieces(copy.destination, copy.source)
        shared = copy.source.buffer
        stores = (TmaStore(name, where, shared, offset, location=copy.location) for where, offset in pieces)
        return seq(*stores, BulkCommitGroup(location=copy.location))

    def _store(self, copy: Copy) -> Statement:
        """One thread stores. The wait stands where shared memory is written again (``insert_synchronization``)."""
        name, pieces = self._pieces(copy.destination, copy.source, copy.operator)
        shared = copy.source.buffer
        stores = [
            TmaStore(name, where, shared, offset, copy.operator, location=copy.location) for where, offset in pieces
        ]
        elected = self.kernel.thread.eq(self.first_thread)
        return If(elected, seq(*stores, BulkCommitGroup(location=copy.location)), location=copy.location)

    def _pieces(
        self, outer: Region, inner: Region, operator: str = ""
    ) -> tuple[str, list[tuple[tuple[Expr, ...], Expr]]]:
        """The tensor map and, for each instruction, its coordinates (innermost first) and its offset in shared
        memory."""
        shared = inner.buffer
        layout = shared.layout if isinstance(shared.layout, SharedLayout) else None
        box = tuple(min(extent, MAXIMUM_BOX) for extent in outer.extents)
        span = 0
        if layout is not None:
            span = layout.span
            box = (*box[:-1], min(box[-1], _box_columns(layout)))
        element = outer.buffer.dtype.name
        name = self.maps.record(outer.buffer, box, span, TMA_REDUCTIONS[operator][element] if operator else element)
        start = _region_offset(inner)
        pieces = []
        for corner in product(*(range(0, extent, size) for extent, size in zip(outer.extents, box, strict=True))):
            coordinates = tuple(
                cast(as_expr(first), int32) + step if step else cast(as_expr(first), int32)
                for first, step in zip(outer.starts, corner, strict=True)
            )
            pieces.append((tuple(reversed(coordinates)), start + _box_offset(outer, inner, corner, layout)))
        return name, pieces


def _box_columns(layout: SharedLayout) -> int:
    """Columns of one box of a layout whose last dimension is split into (boxes, columns)."""
    last = layout.layout.shape[-1]
    return last if isinstance(last, int) else last[-1]


def _region_offset(inner: Region) -> Expr:
    """Element offset of the region's first element."""
    layout = inner.buffer.layout
    if isinstance(layout, SharedLayout):
        return as_expr(layout.layout(tuple(cast(as_expr(start), int32) for start in inner.starts)))
    offset: Expr = constant(0)
    for start, stride in zip(inner.starts, inner.buffer.strides, strict=True):
        offset = offset + cast(as_expr(start), int32) * as_expr(stride)
    return offset


def _box_offset(outer: Region, inner: Region, corner: tuple[int, ...], layout: SharedLayout | None) -> int:
    """Where the box at ``corner`` of the region lies in the tile, in elements from the tile's start.

    A box is written densely; boxes follow each other in the order of the tile's layout: row-major boxes need the box to
    span all inner dimensions, which select_paths and the choice of layouts see to.
    """
    dense_corner = [c for c, extent in zip(corner, outer.extents, strict=True) if extent != 1]
    if layout is not None:
        coordinates = _coordinates(inner, dense_corner)
        return int(layout.layout(coordinates))
    offset, inner_size = 0, 1
    for position, extent in reversed(list(zip(dense_corner, outer.dense_extents, strict=True))):
        offset += position * inner_size
        inner_size *= extent
    return offset


def _coordinates(inner: Region, dense_corner: list[int]) -> tuple[int, ...]:
    remaining = list(dense_corner)
    return tuple(0 if extent == 1 else remaining.pop(0) for extent in inner.extents)


def _with_prefetch(kernel: Kernel, body: Statement) -> Statement:
    """Tensor maps are fetched ahead: all of them by the producer's first thread; without roles those of the stores only
    (the loads come at once), by a thread that does not issue the loads."""
    has_roles = contains(body, Specialized)
    kinds = (TmaLoad, TmaStore) if has_roles else (TmaStore,)
    names = list(dict.fromkeys(node.tensor_map for node in walk(body, *kinds)))
    if not names:
        return body
    if has_roles:
        thread = next((n.first_thread for n in walk(body, Role) if n.name == "producer"), 0)
    else:
        thread = WARP if kernel.threads > WARP else 0
    prefetch = If(kernel.thread.eq(thread), seq(*(PrefetchTensorMap(name) for name in names)))
    return seq(prefetch, body)

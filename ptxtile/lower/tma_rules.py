"""When TMA can move a region of a tensor to or from a region of a shared tile.

The rules are those of cuTensorMapEncodeTiled (CUDA driver API): rank 1…5, unit innermost stride, other strides and the
base address multiples of 16 bytes, box sizes 1…256 with an innermost box of a multiple of 16 bytes; and what the card
adds to them.
"""

from __future__ import annotations

from collections.abc import Callable

from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.expressions import Expr, as_expr, cast, constant, constant_value
from ptxtile.ir.layouts import SharedLayout
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import View
from ptxtile.ir.tile_ops import Copy, Region, SafeValue
from ptxtile.ir.types import int64
from ptxtile.lower.options import Options
from ptxtile.lower.shared_columns import MAXIMUM_BOX, boxes_start_patterns, columns_of_boxes, written_columns
from ptxtile.lower.thread_dependence import ThreadDependence
from ptxtile.target import Feature, Target

MAXIMUM_RANK = 5
ALIGNMENT = 16
SHARED_ALIGNMENT = 128
"""Bytes; of the address in shared memory (PTX ISA, «cp.async.bulk.tensor»)."""
TMA_DTYPES = frozenset((
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
))  # fmt: skip


class TmaRules:
    """Judges copies of a kernel; ``analyzer`` knows what holds where the copy stands."""

    def __init__(self, program: Program, kernel: Kernel, analyzer: Analyzer, target: Target, options: Options) -> None:
        self.analyzer, self.target, self.options = analyzer, target, options
        self.alignments = {p.name: p.alignment for p in program.parameters if isinstance(p, TensorParameter)}
        self.uniformity = ThreadDependence(kernel)
        self.viewed = {node.buffer.storage.name for node in walk(kernel.body, View)}
        self.safe_values = {n.buffer.name for n in walk(kernel.body, SafeValue) if constant_value(n.value) != 0}

    def refusal(self, copy: Copy, outer: Region, inner: Region) -> str:
        """Why TMA cannot move ``outer`` (global) to or from ``inner`` (shared); empty if it can."""
        reasons = (check(copy, outer, inner) for check in self._checks)
        return next((reason for reason in reasons if reason), "")

    @property
    def _checks(self) -> tuple[Callable[[Copy, Region, Region], str], ...]:
        return (
            self._judge_target,
            self._judge_safe_value,
            self._judge_types,
            self._judge_tensor,
            self._judge_position,
            self._judge_box,
            self._judge_shared,
            self._judge_layout,
        )

    def _judge_target(self, copy: Copy, outer: Region, inner: Region) -> str:
        if not self.target.has(Feature.TMA):
            return f"{self.target.name} has no TMA"
        if self.options.disable_tma:
            return "TMA is disabled by an option"
        if copy.disable_tma:
            return "TMA is disabled for this copy"
        return ""

    def _judge_safe_value(self, copy: Copy, outer: Region, inner: Region) -> str:
        if copy.source.buffer.name in self.safe_values:
            return f"{outer.buffer.name} has a safe value of its own, and TMA gives zeros outside of a tensor"
        return ""

    def _judge_types(self, copy: Copy, outer: Region, inner: Region) -> str:
        if outer.buffer.dtype != inner.buffer.dtype:
            return f"the copy converts {copy.source.buffer.dtype} to {copy.destination.buffer.dtype}"
        if outer.buffer.dtype.name not in TMA_DTYPES:
            return f"tensor maps have no element type for {outer.buffer.dtype}"
        starts = (*outer.starts, *inner.starts)
        if not all(self.uniformity.is_uniform(start) for start in starts):
            return "its position depends on the thread"
        return ""

    def _judge_tensor(self, copy: Copy, outer: Region, inner: Region) -> str:
        buffer, itemsize = outer.buffer, outer.buffer.dtype.itemsize
        if not 1 <= buffer.rank <= MAXIMUM_RANK:
            return f"rank {buffer.rank} is not between 1 and {MAXIMUM_RANK}"
        if self.alignments.get(buffer.storage.name, ALIGNMENT) < ALIGNMENT:
            return f"{buffer.name}'s base address is not known to be a multiple of 16 bytes"
        offset = constant_value(buffer.offset)
        if offset is None or offset * itemsize % ALIGNMENT:
            return f"the view {buffer.name} does not start at a multiple of 16 bytes"
        if constant_value(buffer.strides[-1]) != 1:
            return f"the innermost stride of {buffer.name} is not 1"
        for dimension, stride in enumerate(buffer.strides[:-1]):
            if constant_value(stride) == 0:
                return f"dimension {dimension} of {buffer.name} has stride 0"
            if not self.analyzer.divisible(as_expr(stride) * itemsize, ALIGNMENT):
                return f"the stride of dimension {dimension} of {buffer.name} is not known to be a multiple of 16 bytes"
        return ""

    def _judge_position(self, copy: Copy, outer: Region, inner: Region) -> str:
        """A box that starts inside a 16-byte unit, or a store that starts before the tensor, stops the card with an
        illegal instruction (seen on an H200)."""
        start = as_expr(outer.starts[-1])
        if not self.analyzer.divisible(cast(start, int64) * outer.buffer.dtype.itemsize, ALIGNMENT):
            return "its innermost position is not known to be a multiple of 16 bytes"
        if outer is copy.destination and not all(self.analyzer.is_nonnegative(as_expr(s)) for s in outer.starts):
            return "a store must be known not to start before the tensor"
        return ""

    def _judge_box(self, copy: Copy, outer: Region, inner: Region) -> str:
        if outer.dense_extents != inner.dense_extents:
            return "the regions have different shapes"
        row = outer.extents[-1] * outer.buffer.dtype.itemsize
        if row % ALIGNMENT:
            return f"the innermost extent is {row} bytes, not a multiple of 16"
        dense = outer.dense_extents
        for position, extent in enumerate(dense):
            if extent > MAXIMUM_BOX and extent % MAXIMUM_BOX:
                return f"an extent of {extent} does not split into boxes of {MAXIMUM_BOX}"
            if extent > MAXIMUM_BOX and 0 < position < len(dense) - 1:
                return f"a middle dimension of {extent} is longer than a box"
        return ""

    def _judge_shared(self, copy: Copy, outer: Region, inner: Region) -> str:
        """The shared region must be a run of whole innermost rows that starts at a multiple of 128 bytes."""
        buffer = inner.buffer
        if constant_value(buffer.offset) != 0:
            return f"{buffer.name} is a view into another buffer"
        whole = True
        for start, extent, size in reversed(tuple(zip(inner.starts, inner.extents, buffer.static_shape, strict=True))):
            if not whole and extent != 1:
                return f"the region of {buffer.name} is not contiguous"
            if extent != size:
                whole = False
            elif constant_value(start) != 0:
                return f"the region of {buffer.name} does not start at 0"
        if inner.extents[-1] != buffer.static_shape[-1] > MAXIMUM_BOX:
            return f"the region is a part of rows of {buffer.name} that are longer than a box"
        if len(inner.dense_extents) > 1 and inner.dense_extents[-1] > MAXIMUM_BOX:
            # choose_shared_layouts keeps such a tile as columns of boxes, where it is free to
            if buffer.storage.name in self.viewed or buffer.static_shape[-1] == 1:
                return f"rows of {buffer.name} are longer than a box, and the tile cannot be kept as columns of boxes"
        offset: Expr = constant(0, int64)
        for start, extent, size, stride in zip(
            inner.starts, inner.extents, buffer.static_shape, buffer.strides, strict=True
        ):
            start = as_expr(start)
            if not (self.analyzer.prove(start.ge(0)) and self.analyzer.prove(start.le(size - extent))):
                return f"the region is not known to lie in {buffer.name}"
            offset = offset + cast(start, int64) * cast(as_expr(stride), int64)
        if not self.analyzer.divisible(offset * outer.buffer.dtype.itemsize, SHARED_ALIGNMENT):
            return f"a slice of {buffer.name} does not start at a multiple of 128 bytes"
        return ""

    def _judge_layout(self, copy: Copy, outer: Region, inner: Region) -> str:
        """A layout that the user gave must be one that TMA writes."""
        layout = inner.buffer.layout
        if layout is None:
            return ""
        buffer, columns = inner.buffer, written_columns(inner.buffer)
        if columns is None or not isinstance(layout, SharedLayout):
            return f"the layout given to {buffer.name} is none that TMA writes"
        if any(extent > 1 for extent in inner.extents[:-2]) and columns < buffer.static_shape[-1]:
            return f"the region spans several matrices of {buffer.name}, whose layout keeps them apart"
        if layout.span and not boxes_start_patterns(columns_of_boxes(buffer, columns, layout.span), inner):
            return f"not every box would start where the swizzle given to {buffer.name} does"
        offset = as_expr(layout.layout(tuple(cast(as_expr(start), int64) for start in inner.starts)))
        if not self.analyzer.divisible(offset * layout.itemsize, SHARED_ALIGNMENT):
            return f"the region of {buffer.name} does not start at a multiple of 128 bytes in the layout given to it"
        return ""

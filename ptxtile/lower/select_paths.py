"""Chooses how each copy is carried out, and says why.

Input: tile stage. Output: tile stage, every Copy with a ``path``. A copy from registers to global memory whose tile can
leave through TMA is split in two: registers → a staging tile in shared memory → global memory.
Invariant: from here on a path is a constraint; later passes carry it out or fail.

The rules of TMA are those of cuTensorMapEncodeTiled (CUDA driver API): rank 1…5, unit innermost stride, other strides
and the base address multiples of 16 bytes, box sizes 1…256 with an innermost box of a multiple of 16 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from ptxtile.errors import Location, LoweringError
from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.expressions import Expr, as_expr, cast, constant, constant_value
from ptxtile.ir.program import Kernel, Program, TensorParameter, Why
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Allocate, Role, Seq, Statement, View
from ptxtile.ir.tile_ops import Copy, CopyPath, Region, SafeValue, TmaCopy
from ptxtile.ir.types import int64
from ptxtile.lower.options import Options
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.thread_dependence import ThreadDependence
from ptxtile.target import Feature, Target

MAXIMUM_RANK = 5
MAXIMUM_BOX = 256
ALIGNMENT = 16
SHARED_ALIGNMENT = 128
"""Bytes; of the address in shared memory (PTX ISA, «cp.async.bulk.tensor»)."""
TMA_DTYPES = frozenset((
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
))  # fmt: skip


def run(program: Program, target: Target, options: Options) -> Program:
    kernels, why = [], []
    for kernel in program.kernels:
        chooser = _PathChooser(program, kernel, target, options)
        kernels.append(replace(kernel, body=chooser.visit(kernel.body)))
        why.extend(chooser.why)
    return replace(program, kernels=tuple(kernels)).with_why(*why)


@dataclass(frozen=True, slots=True)
class _Verdict:
    legal: bool
    reason: str


class _PathChooser(ScopedRewriter):
    def __init__(self, program: Program, kernel: Kernel, target: Target, options: Options) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.target, self.options = target, options
        self.alignments = {p.name: p.alignment for p in program.parameters if isinstance(p, TensorParameter)}
        self.uniformity = ThreadDependence(kernel)
        self.viewed = {node.buffer.storage.name for node in walk(kernel.body) if isinstance(node, View)}
        self.kernel = kernel
        self.why: list[Why] = []
        self.staged = 0
        self.in_role = False
        self.safe_values = {
            n.buffer.name for n in walk(kernel.body) if isinstance(n, SafeValue) and constant_value(n.value) != 0
        }

    def visit(self, node: Any) -> Any:
        if not isinstance(node, Role):
            return super().visit(node)
        self.in_role = True
        node = super().visit(node)
        self.in_role = False
        return node

    def rewrite_TmaCopy(self, copy: TmaCopy) -> Statement:
        """The user's own: it uses TMA or is an error."""
        loads = copy.destination.buffer.scope is Scope.SHARED
        outer, inner = (copy.source, copy.destination) if loads else (copy.destination, copy.source)
        verdict = self._judge(Copy(copy.source, copy.destination), outer, inner)
        if not verdict.legal:
            raise LoweringError(
                f"T.tma_copy from {copy.source.buffer.name} to {copy.destination.buffer.name} cannot use TMA",
                location=copy.location,
                expected="a target, strides, an alignment and a box that tensor copies can have",
                got=verdict.reason,
                hint="T.copy takes another path where TMA cannot go",
            )
        return copy

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
        )

    def rewrite_Copy(self, copy: Copy) -> Statement:
        if copy.path is not None:
            return copy
        if self.in_role:
            self._record(
                copy.location, copy, CopyPath.VECTOR, "in a role that the user made; T.tma_copy uses TMA there"
            )
            return replace(copy, path=CopyPath.VECTOR)
        source, destination = copy.source.buffer.scope, copy.destination.buffer.scope
        if (source, destination) == (Scope.GLOBAL, Scope.SHARED):
            return self._choose(copy, CopyPath.TMA_LOAD, copy.source, copy.destination)
        if (source, destination) == (Scope.SHARED, Scope.GLOBAL):
            return self._choose(copy, CopyPath.TMA_STORE, copy.destination, copy.source)
        if (source, destination) == (Scope.FRAGMENT, Scope.GLOBAL):
            return self._stage_store(copy)
        return replace(copy, path=CopyPath.VECTOR)

    def _choose(self, copy: Copy, path: CopyPath, outer: Region, inner: Region) -> Copy:
        verdict = self._judge(copy, outer, inner)
        self._record(copy.location, copy, path if verdict.legal else CopyPath.VECTOR, verdict.reason)
        return replace(copy, path=path if verdict.legal else CopyPath.VECTOR)

    def _record(self, location: Location | None, copy: Copy, path: CopyPath, reason: str) -> None:
        subject = f"copy {copy.source.buffer.name} -> {copy.destination.buffer.name}"
        self.why.append(Why("select_paths", subject, path.value, reason, location))

    def _stage_store(self, copy: Copy) -> Statement:
        """registers → staging tile → TMA, when the roles of the seed's form are asked for; else direct vector stores.

        Direct stores of 16 bytes a thread measure as fast as the staged form for one-shot kernels and need no shared
        memory.
        """
        if self.options.specialize_warps is not True:
            self._record(copy.location, copy, CopyPath.VECTOR, "registers are stored directly with vector accesses")
            return replace(copy, path=CopyPath.VECTOR)
        tile = copy.destination.buffer.dtype
        shape = copy.destination.extents
        name = f"{copy.source.buffer.name}_staging_{self.staged}"
        staging = allocate(name, Scope.SHARED, tile, shape, alignment=128)
        whole = Region(staging, tuple(as_expr(0) for _ in shape), shape)
        verdict = self._judge(copy, copy.destination, whole)
        if not verdict.legal:
            self._record(copy.location, copy, CopyPath.VECTOR, verdict.reason)
            return replace(copy, path=CopyPath.VECTOR)
        self.staged += 1
        self._record(copy.location, copy, CopyPath.TMA_STORE, f"through the staging tile {name}: {verdict.reason}")
        return Seq(
            (
                Allocate(staging, location=copy.location),
                replace(copy, destination=whole, path=CopyPath.VECTOR),
                replace(copy, source=whole, path=CopyPath.TMA_STORE),
            ),
            location=copy.location,
        )

    def _judge(self, copy: Copy, outer: Region, inner: Region) -> _Verdict:
        """Whether TMA can move ``outer`` (global) to or from ``inner`` (shared)."""
        for check in self._checks:
            reason = check(copy, outer, inner)
            if reason:
                return _Verdict(False, reason)
        return _Verdict(True, "the target has TMA and strides, alignment and box are legal")

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

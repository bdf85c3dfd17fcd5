"""Copies on the cp.async path become what each thread copies.

Input: thread stage, shared layouts chosen. Output: thread stage without Copy of path CP_ASYNC. Consecutive threads take
consecutive pieces of ``coalesced_width`` elements. What lies outside of the tensor is filled with zeros: a piece reads
as many bytes as are inside, none where its row is outside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

from ptxtile.ir.async_copy_ops import CpAsync
from ptxtile.ir.expressions import (
    Compare,
    Expr,
    Var,
    as_expr,
    binary,
    cast,
    constant,
    constant_value,
    logical_and,
    select,
)
from ptxtile.ir.layouts import Fragment
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.statements import For, If, Let, LoopKind, Role, Statement, seq
from ptxtile.ir.tile_ops import Copy, CopyPath, Region
from ptxtile.ir.types import int32
from ptxtile.lower.expand_copies import region_indices
from ptxtile.lower.flatten_buffers import element_offset
from ptxtile.lower.guard_bounds import in_range
from ptxtile.lower.options import Options
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.simplify import simplify_expression
from ptxtile.records import record
from ptxtile.target import Target

WARP = 32
MOST_UNROLLED = 32
"""Pieces of a thread that are written out; more are a loop."""
SPANS = (128, 64, 32)
"""Bytes that swizzles span (PTX ISA, «Swizzling modes»)."""
THROUGH_L2 = 16
"""Bytes that a cp.async may copy past L1 (``.cg``, PTX ISA, «cp.async»)."""


def run(program: Program, target: Target, options: Options) -> Program:
    names = NameSupply(program)
    kernels = []
    for kernel in program.kernels:
        body = _Lowering(program, kernel, names).visit(kernel.body)
        kernels.append(kernel if body is kernel.body else replace(kernel, body=body))
    return replace(program, kernels=tuple(kernels))


@record
class Pieces:
    """A copy's pieces, in the order in which consecutive threads take them: along a ``segment`` of a row, then down the
    rows, then the next segment of each.

    ``extents``: those of the copied box without its dimensions of extent 1; ``width``: elements of a piece. A segment
    is the whole row, or as much of it as the widest swizzle that divides it spans: then eight lanes of 16 bytes fill
    whole 128-byte lines of shared memory, swizzled or not.
    """

    extents: tuple[int, ...]
    width: int
    segment: int

    @property
    def count(self) -> int:
        return prod(self.extents) // self.width

    def rounds(self, threads: int) -> int:
        """How many pieces a thread copies at most."""
        return -(-self.count // threads)

    def corner(self, number: Any) -> tuple[Any, ...]:
        """Where piece ``number`` (an expression, or an array) starts in the box."""
        *outer, last = self.extents
        along, rows = self.segment // self.width, prod(outer)
        row, column = number // along, number % along * self.width
        if self.segment < last:
            column = row // rows * self.segment + column
            row = row % rows
        result: list[Any] = []
        for position, size in enumerate(outer):
            inner = prod(outer[position + 1 :])
            part = row if inner == 1 else row // inner
            result.append(part if position == 0 else part % size)
        return (*result, column)


def pieces_of(copy: Copy) -> Pieces:
    assert copy.coalesced_width is not None, "plan_async_copies gives the width"
    extents, size = copy.destination.dense_extents or (1,), copy.destination.buffer.dtype.itemsize
    row = extents[-1] * size
    span = next((span for span in SPANS if row % span == 0), row)
    segment = extents[-1] if span == SPANS[0] else span // size
    return Pieces(extents, copy.coalesced_width, segment if segment % copy.coalesced_width == 0 else extents[-1])


def first_warp_access(copy: Copy, threads: int) -> tuple[tuple[Any, ...], int, int]:
    """(indices of the lanes of the first warp, elements each, times) of the writes to shared memory."""
    import numpy as np

    pieces = pieces_of(copy)
    indices = _places(copy.destination, pieces.corner(np.arange(WARP, dtype=np.int64) % pieces.count))
    return indices, pieces.width, pieces.rounds(threads)


def _places(region: Region, corner: tuple[Any, ...]) -> tuple[Any, ...]:
    """:func:`region_indices` of arrays, with starts that are not constant taken as 0."""
    remaining, dense, indices = list(corner), bool(region.dense_extents), []
    for start, extent in zip(region.starts, region.extents, strict=True):
        first = constant_value(start) or 0
        indices.append(first + remaining.pop(0) if remaining and (extent != 1 or not dense) else first)
    return tuple(indices)


def _round_step(copy: Copy, pieces: Pieces, threads: int) -> int | None:
    """The elements of shared memory from a thread's piece to its next one, where they are always the same; None where
    they are not: the swizzle, or a row that does not end with a round, sends each piece elsewhere."""
    import numpy as np

    destination = copy.destination
    if any(constant_value(start) is None for start in destination.starts[-2:]):
        return None
    numbers = np.arange(threads)[:, None] + np.arange(pieces.rounds(threads))[None, :] * threads
    places = _places(destination, pieces.corner(numbers))
    layout, strides = destination.buffer.layout, destination.buffer.strides
    if layout is not None and not isinstance(layout, Fragment):
        offsets = layout(places)
    else:
        offsets = sum(place * (constant_value(stride) or 0) for place, stride in zip(places, strides, strict=True))
    steps = np.diff(np.broadcast_to(offsets, numbers.shape), axis=1)
    return int(steps[0, 0]) if (steps == steps[0, 0]).all() else None


class _Lowering(ScopedRewriter, kinds=(Copy,)):
    def __init__(self, program: Program, kernel: Kernel, names: NameSupply) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.kernel, self.names = kernel, names
        self.group = (0, kernel.threads)

    def visit(self, node: Any) -> Any:
        if isinstance(node, Role):
            outer, self.group = self.group, (node.first_thread, node.threads)
            node = super().visit(node)
            self.group = outer
            return node
        if isinstance(node, Copy) and node.path is CopyPath.CP_ASYNC:
            return self._lowered(node)
        return super().visit(node)

    def _lowered(self, copy: Copy) -> Statement:
        pieces, (first, threads) = pieces_of(copy), self.group
        rounds = pieces.rounds(threads)
        thread = self.kernel.thread - first if first else self.kernel.thread
        if rounds == 1:
            return self._piece(copy, pieces, thread, threads, self._shared_offset(copy, pieces, thread))
        r = Var(self.names.fresh("r"), int32)
        with self.analyzer.scope():
            self.analyzer.bind(r, 0, rounds - 1)
            apart = _round_step(copy, pieces, threads)
            offset = self._shared_offset(copy, pieces, thread + r * threads if apart is None else thread)
            offset = offset if apart is None else offset + r * apart
            body = self._piece(copy, pieces, thread + r * threads, threads, offset)
        kind = LoopKind.UNROLLED if rounds <= MOST_UNROLLED else LoopKind.SERIAL
        independent = (("independent", True),)  # each piece goes to a place of its own
        return For(r, constant(0), constant(rounds), 1, kind, body, independent, location=copy.location)

    def _shared_offset(self, copy: Copy, pieces: Pieces, number: Expr) -> Expr:
        indices = region_indices(copy.destination, pieces.corner(number))
        return element_offset(copy.destination.buffer, indices, self.analyzer)

    def _piece(self, copy: Copy, pieces: Pieces, number: Expr, threads: int, offset: Expr) -> Statement:
        corner = tuple(simplify_expression(part, self.analyzer) for part in pieces.corner(number))
        source = region_indices(copy.source, corner)
        size = pieces.width * copy.source.buffer.dtype.itemsize
        lets, valid = self._valid_bytes(copy, source, pieces.width)
        operation = CpAsync(
            shared=copy.destination.buffer,
            offset=offset,
            source=copy.source.buffer,
            index=element_offset(copy.source.buffer, source, self.analyzer),
            bytes=size,
            valid_bytes=valid,
            cache="cg" if size == THROUGH_L2 else "ca",
            location=copy.location,
        )
        body = seq(*lets, operation)
        if pieces.count % threads == 0:
            return body
        return If(number.lt(pieces.count), body, location=copy.location)

    def _valid_bytes(self, copy: Copy, indices: tuple[Expr, ...], width: int) -> tuple[list[Let], Expr | None]:
        """The bytes of a piece that lie in the tensor; None: all of them.

        A piece starts at a multiple of its width, so that it lies on one side of 0 in every dimension; only the last
        dimension can end inside of it.
        """
        buffer, size = copy.source.buffer, copy.source.buffer.dtype.itemsize
        inside: Expr | None = None
        for condition in self._unproven(copy.source, indices):
            inside = condition if inside is None else logical_and(inside, condition)
        last, end = indices[-1], as_expr(buffer.shape[-1])
        whole = width == 1 or self.analyzer.divisible(end, width) or self._proven(last + (width - 1), end)
        if inside is None and whole:
            return [], None
        result: Expr = constant(width * size)
        if not whole:
            _, below = in_range(last, end, self.analyzer)
            left = binary("min", binary("sub", below.right, below.left), width)
            result = cast(left, int32) * size
        if inside is not None:
            result = select(inside, result, 0)
        valid = Var(self.names.fresh("bytes"), int32)
        return [Let(valid, result, location=copy.location)], valid

    def _unproven(self, region: Region, indices: tuple[Expr, ...]) -> Iterator[Compare]:
        for index, size in zip(indices, region.buffer.shape, strict=True):
            for condition in in_range(index, as_expr(size), self.analyzer):
                if self.analyzer.prove(condition) is not True:
                    yield condition

    def _proven(self, index: Expr, size: Expr) -> bool:
        _, below = in_range(index, size, self.analyzer)
        return self.analyzer.prove(below) is True

"""Into which parts a tensor core's accumulator is cut on its way through shared memory.

A *chunk* is a range of rows, and of the columns of each group of threads (warps or warpgroups that stand side by side
over the tile): so every thread has an equal share of it. One chunk is staged after the other, in one buffer or in two
by turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr, Load, constant_value
from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import buffers_of, children, walk
from ptxtile.ir.statements import Allocate, ParallelFor, Role, Store, View
from ptxtile.ir.tile_ops import Copy, CopyPath, Gemm, GemmPath, Region
from ptxtile.lower.gemm_geometry import WARP, WARPGROUP, grid_of, unit_rows
from ptxtile.records import record

SPANS = (128, 64, 32)
"""Bytes of a row of a swizzled tile, widest first (PTX ISA, «Swizzling modes»)."""
NARROWEST = 64
"""Bytes of a chunk's rows at least: TMA writes global memory in whole sectors of 32 bytes, best several at once."""
ALIGNMENT = 1024
"""Bytes after which the widest swizzle repeats."""


@record
class Ownership:
    """How the groups of threads share an M×N accumulator: each has ``columns`` next to each other, and ``unit`` rows;
    the rows of all repeat every ``rows``. ``threads``: of a group, 32 or 128."""

    m: int
    n: int
    rows: int
    columns: int
    unit: int
    threads: int

    @property
    def side_by_side(self) -> int:
        """Groups that share a row."""
        return self.n // self.columns


@record
class Chunks:
    """``rows`` × ``columns`` of each group in a chunk; ``buffers``: so many staging tiles, used by turns."""

    owner: Ownership
    rows: int
    columns: int
    buffers: int

    @property
    def count(self) -> int:
        return self.owner.m // self.rows * (self.owner.columns // self.columns)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a staging tile: the groups that stand side by side, rows, columns of each."""
        return (self.owner.side_by_side, self.rows, self.columns)

    def bytes(self, itemsize: int) -> int:
        """Of all staging tiles."""
        each = prod(self.shape) * itemsize
        return self.buffers * -(-each // ALIGNMENT) * ALIGNMENT

    def origins(self) -> Iterator[tuple[int, int]]:
        """First row and first column (of each group's) of every chunk."""
        for row in range(0, self.owner.m, self.rows):
            for column in range(0, self.owner.columns, self.columns):
                yield row, column


def choose_chunks(owner: Ownership, itemsize: int, available: int) -> Chunks | None:
    """The division that fits into ``available`` bytes and stops the epilogue least; None if nothing fits.

    All at once is best, then two halves one after the other. More chunks go through two buffers by turns, so that one
    is stored while the next one is written; two halves gain nothing from that but more barriers. Among equals the
    widest swizzle, then the fewest chunks, and the widest.
    """
    fitting = [chunks for chunks in _divisions(owner, itemsize) if chunks.bytes(itemsize) <= available]

    def preference(chunks: Chunks) -> tuple[int, ...]:
        flows = chunks.count <= 2 or chunks.buffers == 2
        span = _span(chunks.columns * itemsize)
        return (chunks.count == 1, flows, span, -chunks.count, -chunks.buffers, chunks.columns)

    return max(fitting, key=preference, default=None)


def _divisions(owner: Ownership, itemsize: int) -> Iterator[Chunks]:
    for rows in range(owner.rows, owner.m + 1, owner.rows):
        for columns in range(8, owner.columns + 1, 8):
            row, whole = columns * itemsize, columns == owner.columns
            divides = owner.m % rows == 0 and owner.columns % columns == 0
            if not divides or row % 16 or not (whole or (row >= NARROWEST and _span(row))):
                continue
            yield Chunks(owner, rows, columns, 1)
            if rows < owner.m or not whole:
                yield Chunks(owner, rows, columns, 2)


def _span(row: int) -> int:
    """The widest swizzle for rows of so many bytes; 0: none."""
    return next((span for span in SPANS if row % span == 0), 0)


# --- which fragments are accumulators --------------------------------------------------------------------------------


def accumulators(kernel: Kernel) -> dict[str, Ownership]:
    """By name, the accumulators of the kernel's gemms on tensor cores, and the fragments that are computed from them
    element by element and so lie in the same way."""
    found = dict(_of_gemms(kernel.body, kernel.user_threads or kernel.threads))
    links = list(_links(kernel.body)) if found else []
    changed = True
    while changed:
        changed = False
        for names in links:
            owner = next((found[name] for name in sorted(names) if name in found), None)
            if owner is not None and not names <= found.keys():
                found |= dict.fromkeys(sorted(names - found.keys()), owner)
                changed = True
    return found


def _of_gemms(node: Any, threads: int) -> Iterator[tuple[str, Ownership]]:
    if isinstance(node, Gemm) and node.path in (GemmPath.WGMMA, GemmPath.MMA):
        grid = grid_of(node, threads, node.path)
        assert grid is not None, "select_gemm_paths chose a path that fits"
        unit, size = unit_rows(node.path), WARPGROUP if node.path is GemmPath.WGMMA else WARP
        owner = Ownership(node.m, node.n, unit * grid.rows, node.n // grid.columns, unit, size)
        yield node.accumulator.buffer.name, owner
    for child in children(node):
        if not isinstance(child, Expr):
            yield from _of_gemms(child, node.threads if isinstance(node, Role) else threads)


def _links(node: Any) -> Iterator[set[str]]:
    """The fragments that statements handle together, element by element and whole."""
    if isinstance(node, Copy):
        sides = (node.source, node.destination)
        whole = all(
            side.buffer.scope is Scope.FRAGMENT
            and side.extents == side.buffer.shape
            and all(constant_value(start) == 0 for start in side.starts)
            for side in sides
        )
        if whole and node.source.extents == node.destination.extents:
            yield {side.buffer.name for side in sides}
    elif isinstance(node, ParallelFor):
        fragments = (inner for inner in _accesses(node.body) if inner.buffer.scope is Scope.FRAGMENT)
        yield {f.buffer.name for f in fragments if f.indices == node.vars and f.buffer.shape == node.extents}
    else:
        for child in children(node):
            if not isinstance(child, Expr):
                yield from _links(child)


def _accesses(node: Any) -> Iterator[Load | Store]:
    if isinstance(node, (Load, Store)):
        yield node
    for child in children(node):
        yield from _accesses(child)


# --- which tiles hold one --------------------------------------------------------------------------------------------


def owner_of_tile(kernel: Kernel, tile: Buffer, owners: dict[str, Ownership]) -> Ownership | None:
    """How the groups of threads share the shared ``tile``, if one statement writes it, all of it, from a fragment of
    ``owners``."""
    writers = list(_writers(kernel.body, tile))
    if len(writers) != 1 or any(n.buffer.storage == tile.storage for n in walk(kernel.body, View)):
        return None
    (writer,) = writers
    fragments: set[str] = set()
    if isinstance(writer, Copy) and writer.path is CopyPath.VECTOR and writer.destination.extents == tile.shape:
        source = writer.source
        if source.extents == source.buffer.shape and source.extents == tile.shape:
            fragments = {source.buffer.name}
    elif isinstance(writer, ParallelFor) and isinstance(writer.body, Store):
        if writer.body.indices == writer.vars and writer.extents == tile.shape:
            fragments = set().union(*_links(writer))
    found = [owners[name] for name in sorted(fragments) if name in owners]
    return found[0] if found else None


def _writers(node: Any, tile: Buffer) -> Iterator[Any]:
    """The statements that may write ``tile``: parallel loops as a whole, and all that do more than read it."""
    if isinstance(node, ParallelFor):
        stores = (n for n in walk(node.body) if not isinstance(n, (Load, Region)))
        if any(buffer.storage == tile.storage for n in stores for buffer in buffers_of(n)):
            yield node
        return
    if isinstance(node, Allocate):
        return
    named = [region.buffer for region in children(node) if isinstance(region, Region)]
    if isinstance(node, Copy):
        named = [node.destination.buffer]
    if any(buffer.storage == tile.storage for buffer in (*buffers_of(node), *named)):
        yield node
    for child in children(node):
        if not isinstance(child, (Expr, Region)):
            yield from _writers(child, tile)

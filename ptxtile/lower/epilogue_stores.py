"""The statements that carry a chunk of an accumulator to its staging tile, and from there to global memory.

Where the accumulator belongs to several warpgroups each of them stores its own part: one thread of each issues its
boxes. So no warpgroup has to wait for another one's registers.
"""

from __future__ import annotations

from dataclasses import replace

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, Var, as_expr, cast, constant, constant_value, load
from ptxtile.ir.names import NameSupply
from ptxtile.ir.statements import If, ParallelFor, Statement, Store, seq
from ptxtile.ir.tile_ops import Copy, CopyPath, Region, TmaCopy
from ptxtile.ir.types import int32
from ptxtile.lower.epilogue_chunks import WARPGROUP, Chunks, Ownership


def to_staging(copy: Copy, chunks: Chunks, staging: Buffer, row: int, column: int, names: NameSupply) -> Statement:
    """The chunk that starts at ``row`` and (in each group's columns) at ``column``, from registers to ``staging``."""
    groups, rows, columns = chunks.shape
    if groups == 1:
        part = Region(copy.source.buffer, (constant(row), constant(column)), (rows, columns))
        return replace(copy, source=part, destination=_whole(staging, rows, columns))
    i, g, j = (Var(names.fresh(base), int32) for base in ("i", "g", "j"))
    value = load(copy.source.buffer, (_moved(i, row), g * chunks.owner.columns + _moved(j, column)))
    body = Store(staging, (g, i, j), cast(value, staging.dtype), location=copy.location)
    return ParallelFor((i, g, j), (rows, groups, columns), body, location=copy.location)


def _whole(staging: Buffer, rows: int, columns: int) -> Region:
    return Region(staging, (constant(0), constant(0)), (rows, columns))


def to_global(copy: Copy, chunks: Chunks, staging: Buffer, row: int, column: int, thread: Expr) -> list[Statement]:
    """The TMA stores of a chunk; ``thread``: counted from the first one of those that hold the accumulator."""
    groups, rows, columns = chunks.shape
    if by_warpgroups(chunks.owner):
        return [store_own_part(copy, chunks.owner, staging, rows, columns, row, column, thread)]
    if groups == 1:
        return [_store(copy, _whole(staging, rows, columns), constant(row), constant(column))]
    return [
        _store(
            copy,
            Region(staging, (constant(group), constant(0), constant(0)), (1, rows, columns)),
            constant(row),
            constant(group * chunks.owner.columns + column),
        )
        for group in range(groups)
    ]


def by_warpgroups(owner: Ownership) -> bool:
    """Whether each of several warpgroups stores its own part."""
    return owner.threads == WARPGROUP and owner.rows // owner.unit * owner.side_by_side > 1


def store_own_part(
    copy: Copy, owner: Ownership, staging: Buffer, rows: int, columns: int, row: int, column: int, thread: Expr
) -> Statement:
    """The stores of ``rows`` staged rows by one thread of each warpgroup; ``columns`` of each group side by side."""
    warpgroup, groups = thread // WARPGROUP, owner.side_by_side
    side = warpgroup % groups if groups > 1 else constant(0)
    first = (warpgroup // groups if groups > 1 else warpgroup) * owner.unit if owner.rows > owner.unit else constant(0)
    stores = []
    for above in range(0, rows, owner.rows):
        inside = (_moved(first, above), constant(0))
        starts, extents = ((side, *inside), (1, owner.unit, columns)) if groups > 1 else (inside, (owner.unit, columns))
        store = _store(
            copy, Region(staging, starts, extents), _moved(first, above + row), _moved(side * owner.columns, column)
        )
        stores.append(TmaCopy(store.source, store.destination, location=copy.location))
    return If((thread % WARPGROUP).eq(0), seq(*stores), location=copy.location)


def _store(copy: Copy, staged: Region, row: Expr, column: Expr) -> Copy:
    """The TMA store of ``staged`` to the part of the copy's destination that starts at ``row`` and ``column``."""
    destination = copy.destination
    sides = [position for position, extent in enumerate(destination.extents) if extent != 1]
    starts, extents = list(destination.starts), list(destination.extents)
    for side, offset, extent in zip(sides, (row, column), staged.extents[-2:], strict=True):
        start = as_expr(starts[side])
        starts[side] = start if constant_value(offset) == 0 else start + cast(offset, start.dtype)
        extents[side] = extent
    part = Region(destination.buffer, tuple(starts), tuple(extents))
    return replace(copy, source=staged, destination=part, path=CopyPath.TMA_STORE)


def _moved(start: Expr, by: int) -> Expr:
    return start + by if by else start

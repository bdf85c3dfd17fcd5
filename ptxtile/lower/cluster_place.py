"""A CTA's place in its cluster, and the part of a tile that it loads for all of those that share it."""

from __future__ import annotations

from math import prod

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, Var, cast, constant
from ptxtile.ir.tile_ops import Copy, Region, TmaCopy
from ptxtile.records import record

SWIZZLED_ROWS = 8
"""Rows after which a swizzle repeats (PTX ISA, «Tensor swizzling modes»): a part of a tile starts at a multiple."""
TMA_ALIGNMENT = 128
"""Bytes that the shared address of a tensor copy is a multiple of (PTX ISA, cp.async.bulk.tensor)."""

Axes = tuple[int, ...]


@record
class ClusterPlace:
    """A CTA's place in its cluster, from its block indices."""

    block_vars: tuple[Var, Var, Var]
    sizes: tuple[int, int, int]

    def size(self, axes: Axes) -> int:
        return prod(self.sizes[axis] for axis in axes)

    def step(self, axis: int) -> int:
        """What one CTA further along ``axis`` adds to the rank in the cluster (x fastest)."""
        return prod(self.sizes[:axis])

    def along(self, axis: int) -> Expr:
        return self.block_vars[axis] % self.sizes[axis]

    def rank_within(self, axes: Axes) -> Expr:
        """The CTA's number among those that differ from it along ``axes`` only."""
        result: Expr = constant(0)
        for position, axis in enumerate(axes):
            result = result + self.along(axis) * self.size(axes[:position])
        return result

    def _first_rank(self, axes: Axes) -> Expr | None:
        """The rank in the cluster of the first of those; None: 0."""
        others = [axis for axis in range(3) if self.sizes[axis] > 1 and axis not in axes]
        result: Expr | None = None
        for axis in others:
            part = self.along(axis) * self.step(axis)
            result = part if result is None else result + part
        return result

    def rank_of(self, number: Expr, axes: Axes) -> Expr:
        """The rank in the cluster of the CTA with that ``number`` within ``axes``."""
        first = self._first_rank(axes)
        if first is None:
            return number
        result = first
        for position, axis in enumerate(axes):
            place = number // self.size(axes[:position]) % self.sizes[axis]
            result = result + place * self.step(axis)
        return result

    def mask(self, axes: Axes) -> Expr:
        """The multicast mask of all CTAs that differ from this one along ``axes`` only."""
        ranks = [0]
        for axis in axes:
            ranks = [rank + place * self.step(axis) for rank in ranks for place in range(self.sizes[axis])]
        base, first = constant(sum(1 << rank for rank in ranks)), self._first_rank(axes)
        return base if first is None else base << first


@record
class Multicast:
    """How the CTAs of a cluster load one group: ``axes``, for each of its copies, along which they share it (none: each
    loads its own)."""

    place: ClusterPlace
    axes: tuple[Axes, ...]

    @property
    def receivers(self) -> Axes:
        """The axes of all CTAs that a CTA of the group may write to."""
        return tuple(axis for axis in range(3) if any(axis in axes for axes in self.axes))

    @property
    def count(self) -> int:
        """The CTAs along :attr:`receivers`, this one included."""
        return self.place.size(self.receivers)

    def receiver(self, number: Expr) -> Expr:
        """The rank in the cluster of the ``number``-th of them."""
        return self.place.rank_of(number, self.receivers)

    def issue(self, position: int, copy: Copy, barrier: Buffer, index: Expr) -> TmaCopy:
        """The load that this CTA issues for the group's copy of that ``position``."""
        axes = self.axes[position]
        if not axes:
            return TmaCopy(copy.source, copy.destination, barrier, index, location=copy.location)
        count, rank = self.place.size(axes), self.place.rank_within(axes)
        source, destination = (_part(region, count, rank) for region in (copy.source, copy.destination))
        return TmaCopy(source, destination, barrier, index, self.place.mask(axes), location=copy.location)


def split_dimension(region: Region, count: int) -> int | None:
    """The dimension to divide into ``count`` parts: the outermost of more than one element, when each part starts where
    TMA can write; else None."""
    dense = [dimension for dimension, extent in enumerate(region.extents) if extent > 1]
    if not dense or region.extents[dense[0]] % count:
        return None
    part = region.extents[dense[0]] // count
    bytes_of_part = part * prod(region.extents[d] for d in dense[1:]) * region.buffer.dtype.itemsize
    if bytes_of_part % TMA_ALIGNMENT or (len(dense) == 2 and part % SWIZZLED_ROWS):
        return None
    return dense[0]


def _part(region: Region, count: int, number: Expr) -> Region:
    """Part ``number`` of ``count`` of a region."""
    dimension = split_dimension(region, count)
    assert dimension is not None
    extent = region.extents[dimension] // count
    starts = list(region.starts)
    starts[dimension] = starts[dimension] + cast(number * extent, starts[dimension].dtype)
    extents = tuple(extent if d == dimension else e for d, e in enumerate(region.extents))
    return Region(region.buffer, tuple(starts), extents)

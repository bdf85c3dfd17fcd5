"""Which dimensions of two buffers a copy can go between, and how its regions are written."""

from __future__ import annotations

import random

from tests.random_programs import model as m
from tests.random_programs.draw_expressions import ZERO


def match(
    rng: random.Random, source: m.Buffer, target: m.Buffer,
    source_limits: tuple[int, ...], target_limits: tuple[int, ...],
    full: bool,
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:  # fmt: skip
    """Extents of both sides with equal dense extents, or None. ``full``: the target's whole shape."""
    wanted = [p for p in range(len(target.shape)) if not full or target.shape[p] > 1]
    pairs = _by_label(source, target, wanted)
    if pairs is None or (full and len(pairs) < len(wanted)) or rng.random() < 0.08:
        pairs = _any_increasing(rng, len(source.shape), wanted, full)
    if pairs is None:
        return None
    source_extents, target_extents = [1] * len(source.shape), [1] * len(target.shape)
    for left, right in pairs:
        extent = min(source_limits[left], target_limits[right])
        if full:
            if extent < target.shape[right]:
                return None
            extent = target.shape[right]
        elif rng.random() < 0.15:
            extent = rng.randint(1, extent)
        source_extents[left] = target_extents[right] = extent
    return tuple(source_extents), tuple(target_extents)


def _by_label(source: m.Buffer, target: m.Buffer, wanted: list[int]) -> list[tuple[int, int]] | None:
    """Dimensions of the same label, when both sides have them in one order."""
    pairs = [
        (source.labels.index(target.labels[p]), p)
        for p in wanted
        if target.labels[p] is not None and target.labels[p] in source.labels
    ]
    lefts = [left for left, _ in pairs]
    return pairs if pairs and lefts == sorted(lefts) else None


def _any_increasing(rng: random.Random, rank: int, wanted: list[int], full: bool) -> list[tuple[int, int]] | None:
    count = len(wanted) if full else rng.randint(0, min(rank, len(wanted)))
    if count > rank:
        return None
    lefts = sorted(rng.sample(range(rank), count))
    rights = wanted if full else sorted(rng.sample(wanted, count))
    return list(zip(lefts, rights, strict=True))


def fits_point(extents: tuple[int, ...], side: m.Region) -> bool:
    """Whether ``A[y, x]`` against a side of ``extents`` means this region: aligned at the last dimension, 1 in
    front."""
    rank = len(side.extents)
    if any(extent != 1 for extent in extents[: max(0, len(extents) - rank)]):
        extents = tuple(extent for extent in extents if extent != 1)
        if len(extents) > rank:
            return False
    fitted = extents[len(extents) - rank :] if len(extents) >= rank else (1,) * (rank - len(extents)) + extents
    return fitted == side.extents


def region_form(
    rng: random.Random, source: m.Region, target: m.Region, source_named: bool, target_named: bool
) -> tuple[m.Region, m.Region]:
    """Both sides in forms that mean what they are: whole, point, or slices."""
    sides = [
        _written(side, "whole") if _is_whole(side) and not named and rng.random() < 0.85 else side
        for side, named in ((source, source_named), (target, target_named))
    ]
    order = [0, 1]
    rng.shuffle(order)
    for position in order:
        side, other = sides[position], sides[1 - position]
        if side.form == "slice" and other.form != "point" and fits_point(other.extents, side) and rng.random() < 0.7:
            sides[position] = _written(side, "point")
    return sides[0], sides[1]


def _is_whole(side: m.Region) -> bool:
    return side.extents == side.buffer.shape and all(start == ZERO for start in side.starts)


def _written(side: m.Region, form: str) -> m.Region:
    return m.Region(side.buffer, side.starts, side.extents, form)

"""Exchanges within a warp: shfl.sync (PTX ISA 9.7.9.6), vote.sync (9.7.13.12), match.sync, activemask, elect.sync,
bar.warp.sync.

An op with a mask is run by the threads that the mask names, all together. The card waits for those that do not come;
here they have to come at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.warp_ops import ActiveMask, ElectOne, Match, Shuffle, SyncWarp, Vote
from ptxtile.sim import fragments
from ptxtile.sim.dtypes import as_array, to_memory
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

WARP = fragments.WARP


def _by_warp(threads: Threads, expression: Expr, mask: Mask) -> np.ndarray:
    """[CTA, warp, lane]"""
    value = as_array(threads.evaluate(expression, mask), expression.dtype)
    return np.broadcast_to(value, (threads.group.ctas, threads.lanes)).reshape(threads.group.ctas, -1, WARP)


_NAMES = {Shuffle: "shfl.sync", Vote: "vote.sync", Match: "match.sync", SyncWarp: "bar.warp.sync"}


def _active(threads: Threads, mask: Mask) -> np.ndarray:
    """[CTA, warp, lane]: who runs the op."""
    shape = (threads.group.ctas, threads.lanes)
    here = np.ones(shape, dtype=bool) if mask is None else np.broadcast_to(mask, shape)
    return here.reshape(threads.group.ctas, -1, WARP)


def _members(threads: Threads, op: Shuffle | Vote | Match | SyncWarp, mask: Mask) -> np.ndarray | None:
    """[CTA, warp, lane, lane]: with whom each lane takes part; None: all 32 lanes of every warp take part."""
    name = _NAMES[type(op)]
    if op.mask is None:
        fragments.whole_groups(threads, name, mask, WARP)
        return None
    masks, here = _by_warp(threads, op.mask, mask).astype(np.int64), _active(threads, mask)
    members = (masks[..., None] >> np.arange(WARP)) & 1 != 0
    if (here & ~members[..., np.arange(WARP), np.arange(WARP)]).any():
        lane = int(np.argwhere(here & ~members[..., np.arange(WARP), np.arange(WARP)])[0, 2])
        got = f"{int(masks[here & ~members[..., np.arange(WARP), np.arange(WARP)]][0]):#010x} in lane {lane}"
        raise SimulationError(f"{name} by a lane that its mask does not name", expected=f"bit {lane} set", got=got)
    differs = members & (~here[..., None, :] | (masks[..., None, :] != masks[..., None]))
    wrong = here[..., None] & differs
    if wrong.any():
        cta, warp, lane, other = (int(found) for found in np.argwhere(wrong)[0])
        raise SimulationError(
            f"{name}: the lanes of a mask do not come together",
            expected=f"lane {other} with the mask {int(masks[cta, warp, lane]):#010x} of lane {lane}",
            got="another mask" if here[cta, warp, other] else "it is not here",
        )
    return members


def _bits(lanes: np.ndarray) -> np.ndarray:
    """[…, lane, lane] or […, lane] of bools as the bits of a uint32."""
    return (lanes.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(axis=-1).astype(np.uint32)


def _store(
    threads: Threads, op: Shuffle | Vote | ElectOne | Match | ActiveMask, values: np.ndarray, mask: Mask
) -> None:
    buffer: Buffer = op.destination
    whole = values.reshape(threads.group.ctas, threads.lanes)
    threads.store(buffer, threads.evaluate(op.destination_offset, mask), whole, buffer.dtype, mask)


def shuffle(threads: Threads, op: Shuffle, mask: Mask) -> None:
    """The manual's pseudocode: bval, the segment's first and last lane, and own value where the source is outside."""
    members = _members(threads, op, mask)
    values, operand = _by_warp(threads, op.value, mask), _by_warp(threads, op.lane, mask).astype(np.int64)
    lane, count = np.arange(WARP), operand & 31
    segment = WARP - op.width  # the bits of a lane's number that name its segment
    first = lane & segment
    last = first | (31 & ~segment)
    source, inside = {
        "up": (lane - count, lane - count >= first),
        "down": (lane + count, lane + count <= last),
        "xor": (lane ^ count, (lane ^ count) <= last),
        "idx": (first | (count & ~segment & 31), np.ones((), dtype=bool)),
    }[op.mode]
    source = np.broadcast_to(np.where(inside, source, lane), values.shape)
    if members is not None:
        outside = _active(threads, mask) & ~np.take_along_axis(members, source[..., None], axis=3)[..., 0]
        if outside.any():
            raise SimulationError(
                "shfl.sync from a lane outside of its mask", expected="a source that takes part",
                got=f"lane {int(source[outside][0])}",
            )  # fmt: skip
    _store(threads, op, np.take_along_axis(values, source, axis=2), mask)


def vote(threads: Threads, op: Vote, mask: Mask) -> None:
    members = _members(threads, op, mask)
    holds = _by_warp(threads, op.condition, mask).astype(bool)
    if members is None:
        alike = _bits(holds) if op.mode == "ballot" else getattr(holds, op.mode)(axis=2)
        found = np.repeat(np.asarray(alike)[..., None], WARP, axis=2)
    elif op.mode == "all":
        found = np.asarray((~members | holds[..., None, :]).all(axis=3))
    else:
        agreeing = members & holds[..., None, :]
        found = _bits(agreeing) if op.mode == "ballot" else np.asarray(agreeing.any(axis=3))
    _store(threads, op, found, mask)


def match(threads: Threads, op: Match, mask: Mask) -> None:
    """Values are compared bit by bit."""
    members = _members(threads, op, mask)
    values = _by_warp(threads, op.value, mask)
    words = np.ascontiguousarray(to_memory(values, op.value.dtype)).view(f"u{op.value.dtype.itemsize}")
    equal = words[..., None] == words[..., None, :]
    taking_part = np.ones_like(equal) if members is None else members
    if op.mode == "any":
        found = equal & taking_part
    else:
        found = taking_part & (equal | ~taking_part).all(axis=3)[..., None]
    _store(threads, op, _bits(found), mask)


def active(threads: Threads, op: ActiveMask, mask: Mask) -> None:
    """All lanes of the warp that are here; a card may split them up."""
    _store(threads, op, np.repeat(_bits(_active(threads, mask))[..., None], WARP, axis=2), mask)


def elect(threads: Threads, op: ElectOne, mask: Mask) -> None:
    """Lane 0; the card may choose another, always the same."""
    fragments.whole_groups(threads, "elect.sync", mask, WARP)
    _store(threads, op, np.tile(np.arange(threads.lanes) % WARP == 0, (threads.group.ctas, 1)), mask)


def sync(threads: Threads, op: SyncWarp, mask: Mask) -> None:
    _members(threads, op, mask)

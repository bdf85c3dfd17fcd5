"""Exchanges within a warp: shfl.sync (PTX ISA 9.7.9.6), vote.sync (9.7.13.12), elect.sync, bar.warp.sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.warp_ops import ElectOne, Shuffle, SyncWarp, Vote
from ptxtile.sim import fragments
from ptxtile.sim.dtypes import as_array
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

WARP = fragments.WARP


def _by_warp(threads: Threads, expression: Expr, mask: Mask) -> np.ndarray:
    """[CTA, warp, lane]"""
    value = as_array(threads.evaluate(expression, mask), expression.dtype)
    return np.broadcast_to(value, (threads.group.ctas, threads.lanes)).reshape(threads.group.ctas, -1, WARP)


def _store(threads: Threads, op: Shuffle | Vote | ElectOne, values: np.ndarray, mask: Mask) -> None:
    buffer: Buffer = op.destination
    whole = values.reshape(threads.group.ctas, threads.lanes)
    threads.store(buffer, threads.evaluate(op.destination_offset, mask), whole, buffer.dtype, mask)


def shuffle(threads: Threads, op: Shuffle, mask: Mask) -> None:
    """The manual's pseudocode: bval, the segment's first and last lane, and own value where the source is outside."""
    fragments.whole_groups(threads, "shfl.sync", mask, WARP)
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
    _store(threads, op, np.take_along_axis(values, source, axis=2), mask)


def vote(threads: Threads, op: Vote, mask: Mask) -> None:
    fragments.whole_groups(threads, "vote.sync", mask, WARP)
    holds = _by_warp(threads, op.condition, mask).astype(bool)
    found: np.ndarray
    if op.mode == "ballot":
        found = (holds.astype(np.uint64) << np.arange(WARP, dtype=np.uint64)).sum(axis=2).astype(np.uint32)
    else:
        found = np.asarray(holds.any(axis=2) if op.mode == "any" else holds.all(axis=2))
    _store(threads, op, np.repeat(found[..., None], WARP, axis=2), mask)


def elect(threads: Threads, op: ElectOne, mask: Mask) -> None:
    """Lane 0; the card may choose another, always the same."""
    fragments.whole_groups(threads, "elect.sync", mask, WARP)
    _store(threads, op, np.tile(np.arange(threads.lanes) % WARP == 0, (threads.group.ctas, 1)), mask)


def sync(threads: Threads, op: SyncWarp, mask: Mask) -> None:
    fragments.whole_groups(threads, "bar.warp.sync", mask, WARP)

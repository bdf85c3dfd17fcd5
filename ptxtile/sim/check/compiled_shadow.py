"""The loop over the bytes of an access, compiled by numba; its arguments are those of Shadow and Actors in
:mod:`ptxtile.sim.check.shadow`.

The compiled code is kept on disk, beside this file or in the user's cache folder (numba's NUMBA_CACHE_DIR): the first
import on a machine takes some seconds, later ones some 0.2 s.
"""

from __future__ import annotations

import numpy as np
from numba import njit

LAST_BIT = 63
"""The bit of all slots from this number on."""

MOST_ALIKE = 2
"""Conflicts of one access with one cause that are kept."""


@njit(cache=True)
def _known(state, private, owner, crosses, proxy, fence_row, row, thread, agent):
    """Up to which time an actor may rely on what ``agent`` did: for accesses that cross from one proxy to the other,
    up to a fence."""
    which = fence_row if crosses[agent] & proxy else 0
    known = state[row, which, agent]
    if thread >= 0 and owner[agent] == thread:
        if agent == thread and which == 0:
            return np.int32(2**31 - 1)
        return max(known, private[which, agent])
    return known


@njit(cache=True)
def _note(found, count, what, access, byte, other, site, time):
    alike = 0
    for row in range(count):
        alike += found[row, 0] == what and found[row, 4] == site
    if count < len(found) and alike < MOST_ALIKE:
        found[count, 0], found[count, 1], found[count, 2] = what, access, byte
        found[count, 3], found[count, 4], found[count, 5] = other, site, time
        return count + 1
    return count


@njit(cache=True)
def _clear(byte, present, used, others):
    """No accesses of other kinds than writes."""
    if used[byte] >> np.uint64(LAST_BIT):
        for slot in range(LAST_BIT, len(others)):
            others[slot, byte, 1] = 0
    present[byte] = 0
    used[byte] = 0


@njit(cache=True)
def _leave_to_strangers(byte, present, used, group, strange, others, number):
    """What an earlier group did here becomes that of strangers."""
    if present[byte]:
        for slot in range(len(others)):
            if used[byte] >> np.uint64(min(slot, LAST_BIT)) & np.uint64(1) and others[slot, byte, 1] != 0:
                strange[byte, 1] = others[slot, byte, 2]
        strange[byte, 0] |= present[byte]
        _clear(byte, present, used, others)
    group[byte] = number


@njit(cache=True)
def _forget(byte, last, present, used, group, strange, others, number):
    """The memory is another CTA's now."""
    _clear(byte, present, used, others)
    strange[byte, 0] = 0
    last[byte, 0] = -1
    group[byte] = number


@njit(cache=True)
def _is_harmless(last, byte, call, site, access, before, after):
    """Whether a plain write leaves what the last one left there, which another thread made by the same statement: in
    the same call if neither changed the byte's value among its lanes, else if the memory held the value already."""
    if len(before) == 0 or last[byte, 2] != site:
        return False
    if last[byte, 3] == call or last[byte, 3] == -call:
        return after[access] != 0 and last[byte, 3] > 0
    return before[access] != 0


@njit(cache=True)
def _judge_rivals(
    byte, access, rivals, used, others, base_of, kind_of, slots, row, thread, state, private, owner, crosses, proxy,
    fence_row, found, count,
):  # fmt: skip
    """The accesses of rivalling kinds since the last plain write that the actor does not know of."""
    there = used[byte]
    for rival in range(slots):
        if not there >> np.uint64(min(rival, LAST_BIT)):
            break
        if not there >> np.uint64(min(rival, LAST_BIT)) & np.uint64(1) or not rivals >> kind_of[rival] & 1:
            continue
        lanes, when, agent = np.uint32(others[rival, byte, 1]), others[rival, byte, 0], base_of[rival]
        while lanes:
            if lanes & np.uint32(1):
                if _known(state, private, owner, crosses, proxy, fence_row, row, thread, agent) < when:
                    what = 3 if kind_of[rival] < 2 else 2
                    count = _note(found, count, what, access, byte, agent, others[rival, byte, 2], when)
            lanes >>= np.uint32(1)
            agent += 1
    return count


@njit(cache=True)
def _keep_write(byte, last, present, used, strange, others, agent, time, site, call, storage):
    """A plain write: what came before it no longer matters."""
    if present[byte]:
        _clear(byte, present, used, others)
    strange[byte, 0] = 0
    last[byte, 0], last[byte, 1], last[byte, 2], last[byte, 3], last[byte, 4] = agent, time, site, call, storage


@njit(cache=True)
def _keep_other(byte, present, used, others, slot, bit, mark, time, site, kind):
    """An access of another kind, among those since the last plain write."""
    if others[slot, byte, 0] != time or (slot < LAST_BIT and not used[byte] & mark):
        others[slot, byte, 0], others[slot, byte, 1] = time, 0
    others[slot, byte, 1] |= bit
    others[slot, byte, 2] = site
    present[byte] |= 1 << kind
    used[byte] |= mark


_SIGNATURE = (
    "int64(int32[:,::1], uint8[::1], uint64[::1], int32[::1], int32[:,::1], int32[:,:,::1], int32[::1], int32[::1], "
    "int32[::1], int64, int64, int64, int64, boolean, boolean, int64, int64, boolean, int64[::1], int64, int64[::1], "
    "int32[::1], int32[::1], int64[::1], int32[:,:,::1], int32[:,::1], int32[::1], uint8[::1], int64, int64, int64, "
    "int64, uint8[::1], uint8[::1], int64[:,::1])"
)
"""One form, so that it is compiled once."""


@njit(_SIGNATURE, cache=True)
def judge(
    last, present, used, group, strange, others, slot_of, base_of, kind_of, slots, base, number, call, initialised,
    forgets, kind, rivals, reads, offsets, width, agents, times, rows, threads, state, private, owner, crosses, proxy,
    fence_row, site, storage, before, after, found,
):  # fmt: skip
    count = 0
    for access in range(len(offsets)):
        row, thread, agent, time = rows[access], threads[access], agents[access], times[access]
        slot, bit, mark = 0, np.int32(0), np.uint64(0)
        if kind != 4:
            slot = slot_of[agent]
            bit = np.int32(np.uint32(1) << np.uint32(agent - base_of[slot]))
            mark = np.uint64(1) << np.uint64(min(slot, LAST_BIT))
        seen_writer, seen_time = -9, 0
        for byte in range(offsets[access], offsets[access] + width):
            if group[byte] != number:
                if forgets:
                    _forget(byte, last, present, used, group, strange, others, number)
                else:
                    _leave_to_strangers(byte, present, used, group, strange, others, number)
            # The last plain write
            writer, written = last[byte, 0], last[byte, 1]
            if writer >= 0:
                if writer != seen_writer or written != seen_time:
                    other, known = writer - base if writer >= base else -3, np.int32(0)
                    if other >= 0:
                        known = _known(state, private, owner, crosses, proxy, fence_row, row, thread, other)
                    if known >= written:
                        seen_writer, seen_time = writer, written
                    elif kind != 4 or not _is_harmless(last, byte, call, site, access, before, after):
                        count = _note(found, count, 2, access, byte, other, last[byte, 2], written)
                if reads and storage >= 0 and last[byte, 4] != storage:
                    count = _note(found, count, 1, access, byte, last[byte, 4], last[byte, 2], written)
            elif writer == -1 and reads and not initialised:
                count = _note(found, count, 0, access, byte, -1, 0, 0)
            # Accesses of other kinds since then
            if strange[byte, 0] & rivals:
                what = 3 if strange[byte, 0] & rivals & 3 else 2
                count = _note(found, count, what, access, byte, -3, strange[byte, 1], 1)
            if present[byte] & rivals:
                count = _judge_rivals(
                    byte, access, rivals, used, others, base_of, kind_of, slots, row, thread, state, private, owner,
                    crosses, proxy, fence_row, found, count,
                )  # fmt: skip
            # What is kept
            if kind == 4:
                signed = -call if len(after) > 0 and after[access] == 0 else call
                _keep_write(byte, last, present, used, strange, others, agent + base, time, site, signed, storage)
            else:
                _keep_other(byte, present, used, others, slot, bit, mark, time, site, kind)
                if writer == -1 and kind == 2:
                    last[byte, 0] = -2
    return count

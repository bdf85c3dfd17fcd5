"""The bank conflict counter against a simulation that serves one word of each bank a cycle, and against known cases."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxtile.ir.bank_conflicts import bank_conflicts, wavefronts
from ptxtile.ir.layouts import TMA_SWIZZLES


def simulated(addresses, width: int) -> int:
    """Cycles: groups of lanes in turn; in a cycle every bank picks a word that is still wanted, for all its lanes."""
    lanes_together = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}[width]
    cycles = 0
    for first in range(0, len(addresses), lanes_together):
        wanted = {
            byte // 4
            for address in addresses[first : first + lanes_together]
            if address is not None
            for byte in range(address, address + width)
        }
        while wanted:
            served: dict[int, int] = {}
            for word in wanted:
                served.setdefault(word % 32, word)
            wanted -= set(served.values())
            cycles += 1
    return cycles


@given(st.sampled_from([1, 2, 4, 8, 16]), st.data())
def test_wavefronts_are_those_of_the_simulation(width, data):
    slots = st.none() | st.integers(0, 96)
    lanes = data.draw(st.lists(slots, min_size=1, max_size=32))
    addresses = [None if slot is None else slot * width for slot in lanes]
    assert wavefronts(addresses, width) == simulated(addresses, width)


@pytest.mark.parametrize(
    ("name", "address", "width", "conflicts"),
    [
        ("consecutive words", lambda lane: 4 * lane, 4, 0),
        ("one word for all", lambda lane: 0, 4, 0),
        ("every second word", lambda lane: 8 * lane, 4, 1),
        ("a column of a 32-wide float tile", lambda lane: 128 * lane, 4, 31),
        ("a column of a tile padded by one", lambda lane: 132 * lane, 4, 0),
        ("consecutive bytes", lambda lane: lane, 1, 0),
        ("consecutive halves", lambda lane: 2 * lane, 2, 0),
        ("consecutive 8-byte values", lambda lane: 8 * lane, 8, 0),
        ("consecutive 16-byte vectors", lambda lane: 16 * lane, 16, 0),
        ("rows of 128 bytes, 16 bytes of each", lambda lane: 128 * lane, 16, 28),
        ("the same, 128-byte swizzle", lambda lane: TMA_SWIZZLES[128](128 * lane), 16, 0),
        ("rows of 64 bytes, 64-byte swizzle", lambda lane: TMA_SWIZZLES[64](64 * lane), 16, 0),
        ("rows of 32 bytes, 32-byte swizzle", lambda lane: TMA_SWIZZLES[32](32 * lane), 16, 0),
    ],
)
def test_known_patterns(name, address, width, conflicts):
    assert bank_conflicts([address(lane) for lane in range(32)], width) == conflicts, name


def test_inactive_lanes_cost_nothing():
    assert wavefronts([None] * 32, 16) == 0
    assert bank_conflicts([0, *[None] * 31], 16) == 0


@pytest.mark.parametrize(
    ("addresses", "width", "message"),
    [([0], 3, "bytes wide"), ([0] * 33, 4, "32 lanes"), ([2], 4, "not a multiple")],
)
def test_impossible_accesses_are_refused(addresses, width, message):
    with pytest.raises(ValueError, match=message):
        bank_conflicts(addresses, width)

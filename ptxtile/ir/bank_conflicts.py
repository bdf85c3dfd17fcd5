"""Shared-memory bank conflicts of one warp's access, counted exactly.

Shared memory has 32 banks of 4 bytes. An access of up to 4 bytes a lane takes the whole warp at once, 8 bytes a lane
half-warps, 16 bytes quarter-warps. In each of these groups every bank delivers one 4-byte word a cycle; lanes that want
the same word share it. (CUDA C++ programming guide, shared memory of compute capability 5.x and later; NVIDIA Nsight
Compute calls the cycles *wavefronts*.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    Addresses = Sequence[int | None] | np.ndarray

BANKS = 32
BANK_BYTES = 4
LANES = 32


def wavefronts(addresses: Addresses, width: int) -> int:
    """Cycles of an access in which lane i touches ``width`` bytes at byte ``addresses[i]`` (None: the lane is
    inactive).

    ``width`` is 1, 2, 4, 8 or 16, and each address a multiple of it (ValueError).
    """
    return sum(_group_wavefronts(group, width) for group in _groups(addresses, width))


def bank_conflicts(addresses: Addresses, width: int) -> int:
    """Cycles beyond those that the access needs at best: one for each group that has an active lane."""
    needed = sum(any(address is not None for address in group) for group in _groups(addresses, width))
    return wavefronts(addresses, width) - needed


def _groups(addresses: Addresses, width: int) -> list[Addresses]:
    if width not in (1, 2, 4, 8, 16):
        raise ValueError(f"no access is {width} bytes wide")
    if len(addresses) > LANES:
        raise ValueError(f"a warp has {LANES} lanes, not {len(addresses)}")
    if any(address is not None and address % width for address in addresses):
        raise ValueError(f"an address is not a multiple of {width}")
    lanes = LANES // max(1, width // BANK_BYTES)
    return [addresses[first : first + lanes] for first in range(0, len(addresses), lanes)]


def _group_wavefronts(addresses: Addresses, width: int) -> int:
    words: list[set[int]] = [set() for _ in range(BANKS)]
    for address in addresses:
        if address is not None:
            for word in range(address // BANK_BYTES, (address + width - 1) // BANK_BYTES + 1):
                words[word % BANKS].add(word)
    return max(len(bank) for bank in words)

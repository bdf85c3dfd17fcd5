"""How an accumulator is cut to fit into the shared memory that is left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptxtile.lower.epilogue_chunks import NARROWEST, Chunks, Ownership, choose_chunks

KIB = 1024


def warpgroups(m: int, n: int, below: int, beside: int = 1) -> Ownership:
    """An accumulator of ``below`` × ``beside`` warpgroups of 64 rows."""
    return Ownership(m, n, 64 * below, n // beside, 64, 128)


@pytest.mark.parametrize(
    ("owner", "itemsize", "available", "expected"),
    [
        # all at once where it fits
        (warpgroups(128, 256, 2), 2, 64 * KIB, (128, 256, 1)),
        (warpgroups(128, 128, 2), 2, 35 * KIB, (128, 128, 1)),
        # 128×256×64 in 4 stages leaves 35 KiB of 227: two halves, one after the other
        (warpgroups(128, 256, 2), 2, 35 * KIB, (128, 128, 1)),
        # rows or columns, whatever leaves the widest rows
        (warpgroups(256, 128, 2), 2, 35 * KIB, (128, 128, 1)),
        # a quarter at a time: two buffers by turns
        (warpgroups(128, 256, 2), 4, 64 * KIB, (128, 128, 1)),
        (warpgroups(128, 256, 2), 4, 35 * KIB, (128, 32, 2)),
        # side by side: as many columns of each
        (warpgroups(64, 256, 1, 2), 2, 16 * KIB, (64, 64, 1)),
        (warpgroups(128, 256, 2), 2, 7 * KIB, None),
    ],
)
def test_divisions(owner, itemsize, available, expected):
    chunks = choose_chunks(owner, itemsize, available)
    found = None if chunks is None else (chunks.rows, chunks.columns, chunks.buffers)
    assert found == expected


@given(
    below=st.integers(1, 4), beside=st.integers(1, 4), repeats=st.integers(1, 3), columns=st.integers(1, 32),
    itemsize=st.sampled_from([1, 2, 4]), available=st.integers(0, 227),
)  # fmt: skip
def test_chunks_cover_the_tile_once_and_fit(below, beside, repeats, columns, itemsize, available):
    owner = warpgroups(64 * below * repeats, 8 * columns * beside, below, beside)
    chunks = choose_chunks(owner, itemsize, available * KIB)
    if chunks is None:
        return
    covered = [
        (row + i, group * owner.columns + column + j)
        for row, column in chunks.origins()
        for i in range(chunks.rows)
        for group in range(beside)
        for j in range(chunks.columns)
    ]
    assert sorted(covered) == [(i, j) for i in range(owner.m) for j in range(owner.n)]
    assert chunks.count == len(list(chunks.origins()))
    groups, rows, width = chunks.shape
    assert chunks.buffers * groups * rows * width * itemsize <= available * KIB
    assert rows % owner.rows == 0 and width % 8 == 0 and width * itemsize % 16 == 0
    assert width * itemsize >= NARROWEST or width == owner.columns


def test_bytes_are_whole_repetitions_of_the_swizzle():
    assert Chunks(warpgroups(64, 40, 1), 64, 40, 2).bytes(2) == 2 * 5 * KIB
    assert Chunks(warpgroups(64, 24, 1), 64, 24, 1).bytes(2) == 3 * KIB

"""The matrix descriptors of wgmma: from 64 bits to the addresses of a matrix in shared memory (PTX ISA 9.7.15.5.1.2).

The canonical layouts of the manual, in bytes, for elements of s bytes, swizzle spans of w bytes, leading offset L and
stride offset S. K-major: element (row, k) at (row % 8)·w + (row // 8)·S + k·s with a swizzle, without one at
(row % 8)·16 + (row // 8)·S + (k·s % 16) + (k·s // 16)·L. M- or N-major: element (row, k) at row·s % w +
(row·s // w)·L + (k % 8)·w + (k // 8)·S with a swizzle, without one at row·s % 16 + (row·s // 16)·S + (k % 8)·16 +
(k // 8)·L. The swizzle then acts on the absolute address, as for TMA.
"""

from __future__ import annotations

import numpy as np

from ptxtile.errors import SimulationError
from ptxtile.records import record

SPANS = {0: 0, 1: 128, 2: 64, 3: 32}
"""Swizzle span in bytes by bits 62 and 63."""
_CHUNK = 16
_CHUNK_MASK = {0: 0, 32: 1, 64: 3, 128: 7}
_USED_BITS = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 0x7 << 49 | 0x3 << 62


@record
class MatrixDescriptor:
    """``start``, ``leading`` and ``stride`` in bytes; ``span``: of the swizzle, 0 for none."""

    start: int
    leading: int
    stride: int
    span: int

    def addresses(self, rows: int, columns: int, itemsize: int, *, transposed: bool) -> np.ndarray:
        """[row, k]: the shared address of each element of an M×k or N×k operand; ``transposed``: M- or N-major."""
        row, column = np.arange(rows)[:, None], np.arange(columns)[None, :]
        if transposed:
            width = self.span or _CHUNK
            next_piece, next_rows = (self.leading, self.stride) if self.span else (self.stride, self.leading)
            along = row * itemsize
            offsets = along % width + along // width * next_piece + column % 8 * width + column // 8 * next_rows
        elif self.span:
            offsets = row % 8 * self.span + row // 8 * self.stride + column * itemsize
        else:
            along = column * itemsize
            offsets = row % 8 * _CHUNK + row // 8 * self.stride + along % _CHUNK + along // _CHUNK * self.leading
        linear = self.start + offsets
        return linear ^ ((linear >> 7 & _CHUNK_MASK[self.span]) << 4)


def decode(bits: int) -> MatrixDescriptor:
    """SimulationError for bits that the manual reserves, and for a base offset, which is not simulated."""
    if bits & ~_USED_BITS:
        raise SimulationError(
            "a matrix descriptor with reserved bits set",
            expected="bits 14, 15, 30, 31, 46 to 48 and 52 to 61 to be zero",
            got=f"{bits:#018x}",
        )
    if bits >> 49 & 0x7:
        raise SimulationError(
            "a matrix descriptor with a base offset, which is not simulated",
            expected="a tile whose swizzle pattern starts at a multiple of its size",
            got=f"base offset {bits >> 49 & 0x7}",
        )
    start, leading, stride = ((bits >> shift & 0x3FFF) << 4 for shift in (0, 16, 32))
    return MatrixDescriptor(start, leading, stride, SPANS[bits >> 62])

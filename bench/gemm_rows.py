"""The products that are measured, by group: sizes, dtypes, operands, and what limits each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

SQUARE = (16384, 8192, 4096, 2048, 1024)
DEPTHS = (256, 512, 1024, 2048, 4096, 16384)
FEW_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WEIGHTS = ((8192, 8192), (14336, 4096))
"""N×K."""
FLOAT8 = ((8192, 8192, 8192), (4096, 4096, 4096), (2048, 2048, 2048), (8192, 8192, 1024))
MEMORY_BOUND_ROWS = 64
"""Decode rows of at most so many are as fast as the weights can be read."""


@dataclass(frozen=True)
class Row:
    """C[m, n] bfloat16 = A[m, k] · B[n, k]ᵀ; ``dtype`` of A and B. ``group``: square, k-sweep, decode or fp8."""

    group: str
    m: int
    n: int
    k: int
    dtype: str = "bfloat16"

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k} {'fp8' if self.itemsize == 1 else 'bf16'}"

    @property
    def itemsize(self) -> int:
        return getattr(torch, self.dtype).itemsize

    @property
    def operations(self) -> int:
        return 2 * self.m * self.n * self.k

    @property
    def bytes(self) -> int:
        """Each operand read once, the result written once."""
        return self.itemsize * (self.m + self.n) * self.k + 2 * self.m * self.n

    @property
    def flush(self) -> bool:
        """Whether the L2 cache is overwritten before each launch: where the weights have to come from memory."""
        return self.group == "decode"

    @property
    def summary(self) -> str:
        """The mean that this row is part of."""
        if self.group == "decode":
            return "decode, m <= 64" if self.m <= MEMORY_BOUND_ROWS else "decode, m > 64"
        return "fp8" if self.group == "fp8" else "compute-bound bf16"


GROUPS: dict[str, tuple[Row, ...]] = {
    "square": tuple(Row("square", size, size, size) for size in SQUARE),
    "k-sweep": tuple(Row("k-sweep", 8192, 8192, depth) for depth in DEPTHS),
    "decode": tuple(Row("decode", m, n, k) for n, k in WEIGHTS for m in FEW_ROWS),
    "fp8": tuple(Row("fp8", m, n, k, "float8_e4m3fn") for m, n, k in FLOAT8),
}


def selected(groups: list[str], sizes: list[str]) -> list[Row]:
    """The rows of the named groups (``all``: each); with ``sizes`` ("MxNxK") those of them, or new ones of the first
    group when none of its rows has these sizes."""
    names = list(GROUPS) if "all" in groups else groups
    rows = [row for name in names for row in GROUPS[name]]
    if not sizes:
        return rows
    wanted = [tuple(int(part) for part in size.replace(",", "x").split("x")) for size in sizes]
    known = {(row.m, row.n, row.k) for row in rows}
    dtype = GROUPS[names[0]][0].dtype
    found = [row for row in rows if (row.m, row.n, row.k) in wanted]
    return found + [Row(names[0], *size, dtype=dtype) for size in wanted if size not in known]


class Operands:
    """Fresh random operands of a row, a poisoned result, and what is expected of some of its rows."""

    SAMPLE = 64
    """Rows of the result that are compared with float64."""

    def __init__(self, row: Row, device: str, multiprocessors: int) -> None:
        self.row, self.device, self.multiprocessors = row, device, multiprocessors
        dtype = getattr(torch, row.dtype)
        self.a = torch.randn(row.m, row.k, device=device, dtype=torch.bfloat16).to(dtype)
        self.b = torch.randn(row.n, row.k, device=device, dtype=torch.bfloat16).to(dtype)
        self.c = torch.full((row.m, row.n), torch.nan, device=device, dtype=torch.bfloat16)
        self.places = torch.randperm(row.m, device=device)[: self.SAMPLE]

    @cached_property
    def exact(self) -> torch.Tensor:
        """[sample, n] float64, in pieces of 1024 columns, whose copies of B are small."""
        left = self.a[self.places].double()
        return torch.cat([left @ piece.double().T for piece in self.b.split(1024)], dim=1)

    @cached_property
    def whole(self) -> torch.Tensor:
        """[m, n] bfloat16, by torch."""
        a, b = (self.a, self.b) if self.row.itemsize == 2 else (self.a.bfloat16(), self.b.bfloat16())
        return a @ b.T

    def errors(self, found: torch.Tensor) -> tuple[float, float]:
        """Relative error norms: against float64 in the sampled rows, and against torch everywhere. NaN if anything is
        not finite."""
        sample = found[self.places].double()
        first = float((sample - self.exact).norm() / self.exact.norm())
        return first, float((found - self.whole).float().norm() / self.whole.float().norm())

    @property
    def bound(self) -> float:
        """bfloat16 rounds to 8 bits, 1.7e-3 on average; the tensor cores keep 14 bits of sums of 8-bit floats."""
        return 4e-3 if self.row.itemsize == 2 else 2e-2

    def poison(self) -> None:
        self.c.fill_(torch.nan)


@dataclass(frozen=True)
class Contender:
    """``side``: ours, plain (the form without T.Persistent), peer or probe. ``build`` makes a call that gives the
    result, and raises :class:`Unavailable` or the compiler's error where that cannot be."""

    name: str
    side: str
    build: Any


class Unavailable(Exception):
    """A contender that cannot run here, with the reason."""

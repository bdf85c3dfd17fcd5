"""Which sizes of a gemm's tile the tensor cores would take, for what tells users why theirs are not."""

from __future__ import annotations

from dataclasses import replace

from ptxtile.ir.tensor_core_ops import MMA_SHAPES
from ptxtile.ir.tile_ops import Gemm, GemmPath
from ptxtile.lower.gemm_geometry import COLUMNS, MMA_ROWS, WARP, dtype_names, grid_of

MOST_THREADS = 1024


def sizes_that_fit(gemm: Gemm, threads: int) -> str:
    """The nearest larger M, N and K, and numbers of threads, that mma.sync takes; only those that have to change.

    The element types are ones that it multiplies.
    """
    parts: list[str] = []
    depth = min(k for m, n, k in MMA_SHAPES[dtype_names(gemm)] if (m, n) == (MMA_ROWS, COLUMNS))
    if gemm.k % depth:
        parts.append(f"K = {_up(gemm.k, depth)} (a multiple of {depth})")
    m, n = _up(gemm.m, MMA_ROWS), _up(gemm.n, COLUMNS)
    if (m, n) != (gemm.m, gemm.n):
        changed = [f"{name} = {new} (a multiple of {unit})" for name, old, new, unit in
                   (("M", gemm.m, m, MMA_ROWS), ("N", gemm.n, n, COLUMNS)) if new != old]  # fmt: skip
        parts += changed
    if not _takes(gemm, m, n, threads):
        counts = [t for t in range(WARP, MOST_THREADS + 1, WARP) if _takes(gemm, m, n, t)]
        nearest = sorted(counts, key=lambda t: abs(t - threads))[:2]
        parts.append(f"{' or '.join(str(t) for t in sorted(nearest))} threads (warps share 16 rows x 8 columns each)")
    return ", ".join(parts)


def _up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _takes(gemm: Gemm, m: int, n: int, threads: int) -> bool:
    return grid_of(replace(gemm, m=m, n=n), threads, GemmPath.MMA) is not None

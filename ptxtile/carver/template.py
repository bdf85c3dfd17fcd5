"""Tile sizes that are worth trying for a matrix product: ``MatmulTemplate(...).with_arch(arch).recommend_hints(topk)``.

They come from a model, not from measurements: what fits in the shared memory and the registers of the architecture is
ordered by the work of the busiest multiprocessor. The tuner (:mod:`ptxtile.tune`) measures them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import Any

from ptxtile.carver.arch import CUDA
from ptxtile.carver.roller.rasterization import NoRasterization, Rasterization2DColumn
from ptxtile.frontend.dtypes import as_dtype

_TILES = (16, 32, 64, 128, 256)
_STAGES = (4, 3, 2)
_ACCUMULATORS_OF_A_THREAD = 128
"""Registers of float32 sums; about as many are left for operands and addresses."""
_FLOPS_PER_BYTE = 64
"""Multiplications of a multiprocessor's tensor cores in the time in which a byte comes from the L2 cache, by order of
magnitude."""


@dataclass(frozen=True)
class Hint:
    """``block``: rows and columns of a block's tile; ``warp``: of a warp's; ``rstep``: its depth at a step."""

    block: tuple[int, int]
    warp: tuple[int, int]
    rstep: tuple[int]
    pipeline_stage: int
    rasterization_plan: Any
    use_tc: bool = True
    thread: tuple[int, ...] = ()


@dataclass
class MatmulTemplate:
    """C of M×N from A of M×K and B, N×K unless ``trans_B`` is False."""

    M: int
    N: int
    K: int
    trans_A: bool = False
    trans_B: bool = True
    in_dtype: Any = "float16"
    out_dtype: Any = "float16"
    accum_dtype: Any = "float32"
    with_bias: bool = False
    arch: CUDA | None = None

    def with_arch(self, arch: CUDA) -> MatmulTemplate:
        self.arch = arch
        return self

    def equivalent_function(self) -> Callable[..., Any]:
        """The product in torch, of the tensors A and B (and a bias)."""

        def function(a: Any, b: Any, bias: Any = 0) -> Any:
            return (a.T if self.trans_A else a) @ (b.T if self.trans_B else b) + bias

        return function

    def recommend_hints(self, topk: int = 10) -> list[Hint]:
        """At most ``topk`` hints, the most promising first; at least one."""
        arch = self.arch or CUDA()
        bits = as_dtype(self.in_dtype).bits
        found: list[tuple[float, tuple[int, ...], Hint]] = []
        for rows, columns, depth in product(_TILES, _TILES, (256 // bits, 512 // bits, 1024 // bits)):
            warps = _warps(rows, columns)
            stage_bytes = (rows + columns) * depth * bits // 8
            stages = next((s for s in _STAGES if s * stage_bytes <= arch.target.max_shared_bytes), 0)
            if warps is None or not stages or depth > max(self.K, 16, 256 // bits):
                continue
            blocks = ceil(self.M / rows) * ceil(self.N / columns)
            work = max(rows * columns, (rows + columns) * bits / 8 * _FLOPS_PER_BYTE) * self.K
            time = ceil(blocks / arch.multiprocessors) * work
            swizzled = blocks > arch.multiprocessors
            plan: Any = Rasterization2DColumn() if swizzled else NoRasterization
            warp = (rows // warps[0], columns // warps[1])
            found.append((time, (-depth, rows, columns), Hint((rows, columns), warp, (depth,), stages, plan)))
        return [hint for _, _, hint in sorted(found, key=lambda entry: entry[:2])[:topk]]


def _warps(rows: int, columns: int) -> tuple[int, int] | None:
    """How 4 or 8 warps share a tile; None where a thread would hold too many sums, or a warp less than 16×8."""
    for across, along in ((2, 2), (4, 1), (1, 4), (4, 2)):
        sums = rows * columns // (32 * across * along)
        if rows % (16 * across) == 0 and columns % (8 * along) == 0 and sums <= _ACCUMULATORS_OF_A_THREAD:
            return across, along
    return None

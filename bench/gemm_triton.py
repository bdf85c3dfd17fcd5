"""Triton's side of the comparison: a persistent kernel with TMA descriptors, and the configurations that are tried.

C = A · Bᵀ. A CTA goes through output tiles in groups of ``GROUP`` rows of tiles; the tile that is stored is counted
apart from the one that is loaded, so that the loop can be flattened and the stores overlap with the next tile's loads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

Configuration = dict[str, Any]

CONFIGURATIONS: dict[str, Configuration] = {
    "128x256x128 bytes, 3 stages, 8 warps, halved store": dict(
        BLOCK_M=128, BLOCK_N=256, SUBTILE=True, FLATTEN=True, WARP_SPECIALIZE=False, num_stages=3, num_warps=8
    ),
    "128x256x128 bytes, 4 stages, 8 warps, halved store": dict(
        BLOCK_M=128, BLOCK_N=256, SUBTILE=True, FLATTEN=True, WARP_SPECIALIZE=False, num_stages=4, num_warps=8
    ),
    "128x128x128 bytes, 4 stages, 8 warps": dict(
        BLOCK_M=128, BLOCK_N=128, SUBTILE=False, FLATTEN=True, WARP_SPECIALIZE=False, num_stages=4, num_warps=8
    ),
    "128x256x128 bytes, 3 stages, 8 warps, nested loops": dict(
        BLOCK_M=128, BLOCK_N=256, SUBTILE=True, FLATTEN=False, WARP_SPECIALIZE=True, num_stages=3, num_warps=8
    ),
}
"""Tiles are rows x columns x bytes of K. ``WARP_SPECIALIZE`` is asked for where loops stay nested; the PTX of Triton
3.6 for sm_90a is the same without it."""

FEW_ROWS: dict[str, Configuration] = {
    "16x64x256 bytes, 6 stages, 4 warps": dict(
        BLOCK_M=16, BLOCK_N=64, DEPTH=256, SUBTILE=False, FLATTEN=True, WARP_SPECIALIZE=False, num_stages=6,
        num_warps=4,
    ),
    "64x64x256 bytes, 5 stages, 4 warps": dict(
        BLOCK_M=64, BLOCK_N=64, DEPTH=256, SUBTILE=False, FLATTEN=True, WARP_SPECIALIZE=False, num_stages=5,
        num_warps=4,
    ),
    "128x64x128 bytes, 5 stages, 4 warps": dict(
        BLOCK_M=128, BLOCK_N=64, SUBTILE=False, FLATTEN=True, WARP_SPECIALIZE=False, num_stages=5, num_warps=4
    ),
    "128x128x128 bytes, 4 stages, 8 warps": CONFIGURATIONS["128x128x128 bytes, 4 stages, 8 warps"],
}  # fmt: skip
"""For products of at most 256 rows."""

GROUP = 8


@triton.jit
def _origin(tile, row_tiles, column_tiles, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    in_group = GROUP * column_tiles
    first = tile // in_group * GROUP
    rows = min(row_tiles - first, GROUP)
    return (first + tile % in_group % rows) * BLOCK_M, tile % in_group // rows * BLOCK_N


@triton.jit
def persistent(
    a_pointer, b_pointer, c_pointer, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, SUBTILE: tl.constexpr,
    FLATTEN: tl.constexpr, WARP_SPECIALIZE: tl.constexpr, CTAS: tl.constexpr,
):  # fmt: skip
    out = c_pointer.dtype.element_ty
    width: tl.constexpr = BLOCK_N // 2 if SUBTILE else BLOCK_N
    a = tl.make_tensor_descriptor(a_pointer, shape=[M, K], strides=[K, 1], block_shape=[BLOCK_M, BLOCK_K])
    b = tl.make_tensor_descriptor(b_pointer, shape=[N, K], strides=[K, 1], block_shape=[BLOCK_N, BLOCK_K])
    c = tl.make_tensor_descriptor(c_pointer, shape=[M, N], strides=[N, 1], block_shape=[BLOCK_M, width])
    first = tl.program_id(0)
    row_tiles, column_tiles, steps = tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), tl.cdiv(K, BLOCK_K)
    stored = first - CTAS
    for tile in tl.range(first, row_tiles * column_tiles, CTAS, flatten=FLATTEN, warp_specialize=WARP_SPECIALIZE):
        row, column = _origin(tile, row_tiles, column_tiles, BLOCK_M, BLOCK_N, GROUP)
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(steps):
            total = tl.dot(a.load([row, step * BLOCK_K]), b.load([column, step * BLOCK_K]).T, total)
        stored += CTAS
        row, column = _origin(stored, row_tiles, column_tiles, BLOCK_M, BLOCK_N, GROUP)
        if SUBTILE:
            halves = tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            c.store([row, column], left.to(out))
            c.store([row, column + BLOCK_N // 2], right.to(out))
        else:
            c.store([row, column], total.to(out))


def options_of(configuration: Configuration, itemsize: int) -> Configuration:
    """The keyword arguments of a launch, but for CTAS; ``itemsize``: bytes of an operand's element."""
    rest = {name: value for name, value in configuration.items() if name != "DEPTH"}
    return rest | {"BLOCK_K": configuration.get("DEPTH", 128) // itemsize, "GROUP": GROUP}


def contender(configuration: Configuration, a: Any, b: Any, c: Any, multiprocessors: int) -> Callable[[], object]:
    """A call of the kernel: a [M, K], b [N, K] → c [M, N]. The first call compiles."""
    import torch

    def allocate(size: int, alignment: int, stream: int | None) -> torch.Tensor:
        return torch.empty(size, device=a.device, dtype=torch.int8)

    triton.set_allocator(allocate)
    (M, K), N = a.shape, b.shape[0]
    options = options_of(configuration, a.element_size())
    tiles = triton.cdiv(M, options["BLOCK_M"]) * triton.cdiv(N, options["BLOCK_N"])
    ctas = min(multiprocessors, tiles)
    return lambda: persistent[(ctas,)](a, b, c, M, N, K, CTAS=ctas, **options)

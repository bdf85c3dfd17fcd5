"""A product for each group of rows: the experts of a mixture-of-experts layer, in one launch.

Run it:  python examples/gemm_grouped.py [N K SIZE...]

The tokens are sorted by expert and ``offsets`` says where each group starts and ends; groups may have any size, also
none. The grid has as many rows of tiles as the groups can have at most. A CTA counts through the table until it finds
the group that its tile belongs to; CTAs that find none have nothing to do. The sizes are in a tensor and the number of
tokens is dynamic, so that one kernel serves every batch.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def gemm_grouped(X, W, offsets, block_M=128, block_N=128, block_K=64, num_stages=3, threads=256):
    """X: [tokens, K], W: [groups, N, K], both bfloat16; offsets: [groups + 1] int32, ascending from 0 to tokens
    → [tokens, N] bfloat16 with row t = X[t] · W[g]ᵀ for offsets[g] ≤ t < offsets[g + 1]."""
    groups, N, K = T.const("groups, N, K")
    tokens = T.dynamic("tokens")
    X: T.Tensor((tokens, K), T.bfloat16)
    W: T.Tensor((groups, N, K), T.bfloat16)
    offsets: T.Tensor((groups + 1,), T.int32)
    C = T.empty((tokens, N), T.bfloat16)
    most_tiles = T.ceildiv(tokens, block_M) + groups - 1
    with T.Kernel(T.ceildiv(N, block_N), most_tiles, threads=threads) as (bx, by):
        X_shared = T.alloc_shared((block_M, block_K), T.bfloat16)
        W_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        group, row, end, tiles_before = -1, 0, 0, 0
        for g in range(groups):
            tile = by - tiles_before
            tiles = T.ceildiv(offsets[g + 1] - offsets[g], block_M)
            if 0 <= tile < tiles:
                group, row, end = g, offsets[g] + tile * block_M, offsets[g + 1]
            tiles_before += tiles
        if group >= 0:
            first, rows = row, end - row
            T.assume(first >= 0)  # a TMA store must be known not to start before the tensor
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(X[first, k * block_K], X_shared)
                T.copy(W[group, bx * block_N, k * block_K], W_shared)
                T.gemm(X_shared, W_shared, C_local, transpose_B=True)
            if rows >= block_M:
                T.copy(C_local, C[first, bx * block_N])
            else:  # the rows behind the group's end belong to the next group
                for i, j in T.Parallel(block_M, block_N):
                    if i < rows:
                        C[first + i, bx * block_N + j] = C_local[i, j]
    return C


def check(N: int, K: int, sizes: list[int], device: str, **options) -> float:
    """The relative error against float64 for random inputs."""
    x = torch.randn(sum(sizes), K, device=device).bfloat16()
    w = torch.randn(len(sizes), N, K, device=device).bfloat16()
    offsets = torch.tensor([0, *sizes], device=device).cumsum(0).int()
    c = gemm_grouped(x, w, offsets, **options)
    wanted = torch.cat([rows.double() @ w[g].double().T for g, rows in enumerate(x.split(sizes))])
    error = float((c.double() - wanted).norm() / wanted.norm())
    assert error < 4e-3, f"bfloat16 rounds to 8 bits, 2e-3 on average; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    default = [4096, 4096, 900, 0, 1, 3000, 128, 517, 256, 2000] if device == "cuda" else [200, 136, 70, 0, 129, 1]
    N, K, *sizes = [int(size) for size in sys.argv[1:]] or default
    print(f"groups of {sizes} rows, {N}x{K} bfloat16 on {device}: relative error {check(N, K, sizes, device):.1e}")


if __name__ == "__main__":
    main()

"""X · Wᵀ for a few rows of X: the products of decoding, which are as fast as the weights can be read.

Run it:  python examples/gemm_decode.py [m N K [splits]]

The operands are exchanged: the tile is Wᵀ's, C^T = W · X^T, so that the 64 rows of the tensor-core instruction are rows
of the weights and the few rows of X are its columns, padded to a multiple of 8. A CTA streams 64 rows of W through a
deep ring of stages. When N/64 CTAs do not fill the card, ``splits`` of them share the rows, each with a part of K, and
add up their sums with atomics.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T

ROWS = 64
"""Weight rows of a CTA."""


@ptxtile.jit
def gemm_decode(X, W, C, splits=1, block_K=64, num_stages=6, threads=128):
    """X: [m, K], W: [N, K], both bfloat16, m ≤ 64; C: [m, N] becomes X · Wᵀ in bfloat16, or, with more than one split,
    is float32 and has X · Wᵀ added to it."""
    m, N, K = T.const("m, N, K")
    X: T.Tensor((m, K), T.bfloat16)
    W: T.Tensor((N, K), T.bfloat16)
    C: T.Tensor((m, N), T.bfloat16 if splits == 1 else T.float32)
    columns = T.ceildiv(m, 8) * 8
    blocks = T.ceildiv(K, block_K)
    each = T.ceildiv(blocks, splits)
    with T.Kernel(T.ceildiv(N, ROWS), splits, threads=threads) as (bx, split):
        W_shared = T.alloc_shared((ROWS, block_K), T.bfloat16)
        X_shared = T.alloc_shared((columns, block_K), T.bfloat16)
        C_local = T.alloc_fragment((ROWS, columns), T.float32)
        T.clear(C_local)
        for k in T.Pipelined(split * each, T.min((split + 1) * each, blocks), num_stages=num_stages):
            T.copy(W[bx * ROWS, k * block_K], W_shared)
            T.copy(X[0, k * block_K], X_shared)
            T.gemm(W_shared, X_shared, C_local, transpose_B=True)
        if splits == 1:
            C_shared = T.alloc_shared((columns, ROWS), T.bfloat16)
            for i, j in T.Parallel(ROWS, columns):
                C_shared[j, i] = C_local[i, j]
            T.copy(C_shared, C[0, bx * ROWS])
        else:
            for i, j in T.Parallel(ROWS, columns):
                T.atomic_add(C[j, bx * ROWS + i], C_local[i, j])


def check(m: int, N: int, K: int, device: str, splits: int = 1, **options) -> float:
    """The relative error against float64 for random inputs."""
    x, w = (torch.randn(rows, K, device=device).bfloat16() for rows in (m, N))
    wanted = x.double() @ w.double().T
    if splits == 1:
        c, bound = torch.full((m, N), torch.nan, device=device, dtype=torch.bfloat16), 4e-3
    else:
        c, bound = torch.randn(m, N, device=device), 1e-5
        wanted += c.double()
    gemm_decode(x, w, c, splits, **options)
    error = float((c.double() - wanted).norm() / wanted.norm())
    assert error < bound, f"bfloat16 rounds to 8 bits, float32 sums are good for 1e-6; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:4]] or ([16, 8192, 8192] if device == "cuda" else [5, 200, 520])
    parts = [int(sys.argv[4])] if len(sys.argv) > 4 else [1, 2]
    errors = ", ".join(f"{check(*sizes, device, splits):.1e} in {splits} part(s)" for splits in parts)
    print(f"{'x'.join(map(str, sizes))} bfloat16 on {device}: relative error {errors}")


if __name__ == "__main__":
    main()

"""C = A · Bᵀ in bfloat16 with a pipelined loop: copies, one T.gemm, nothing else.

Run it:  python examples/gemm.py [M N K]

On a card with TMA and wgmma the compiler makes a producer warpgroup that loads ahead through a ring of stages, and
consumer warpgroups that multiply; on other targets the same source takes mma.sync. Without a card a small product runs
in the simulator. The result is checked against float64.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def gemm(A, B, block_M=128, block_N=256, block_K=64, num_stages=4, threads=256):
    """A: [M, K], B: [N, K], both bfloat16 → [M, N] bfloat16, accumulated in float32."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), T.bfloat16)
        B_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[bx * block_N, k * block_K], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def main() -> None:
    on_card = torch.cuda.is_available()
    M, N, K = (
        (int(size) for size in sys.argv[1:4]) if len(sys.argv) > 3 else (4096,) * 3 if on_card else (256, 320, 200)
    )
    device = "cuda" if on_card else "cpu"
    if not on_card:
        print("no CUDA card here: the lowered program runs in the simulator")
    a, b = (torch.randn(rows, K, device=device).bfloat16() for rows in (M, N))
    c = gemm(a, b)
    wanted = a.double() @ b.double().T
    error = float((c.double() - wanted).norm() / wanted.norm())
    print(f"{M}x{N}x{K} bfloat16: relative error {error:.1e}")
    assert error < 4e-3, "bfloat16 rounds to 8 bits: 2e-3 on average"


if __name__ == "__main__":
    main()

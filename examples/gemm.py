"""C = A · Bᵀ in bfloat16 with a pipelined loop: copies, one T.gemm, nothing else.

Run it:  python examples/gemm.py [M N K]

On a card with TMA and wgmma the compiler makes a producer warpgroup that loads ahead through a ring of stages, and
consumer warpgroups that multiply; on other targets the same source takes mma.sync. Without a card a small product runs
in the simulator (device "cpu"). The result is checked against float64.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def gemm(A, B, block_M=128, block_N=128, block_K=64, num_stages=3, threads=256):
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


def check(M: int, N: int, K: int, device: str, **options) -> float:
    """The relative error against float64 for random inputs."""
    a, b = (torch.randn(rows, K, device=device).bfloat16() for rows in (M, N))
    c = gemm(a, b, **options)
    wanted = a.double() @ b.double().T
    error = float((c.double() - wanted).norm() / wanted.norm())
    assert error < 4e-3, f"bfloat16 rounds to 8 bits, 2e-3 on average; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:4]] or ([4096, 4096, 4096] if device == "cuda" else [256, 320, 200])
    # the largest tiles and the deepest ring that the 227 KB of shared memory on Hopper have room for
    hopper = device == "cuda" and torch.cuda.get_device_capability() == (9, 0)
    error = check(*sizes, device, **(dict(block_N=256, num_stages=4) if hopper else {}))
    print(f"{'x'.join(map(str, sizes))} bfloat16 on {device}: relative error {error:.1e}")


if __name__ == "__main__":
    main()

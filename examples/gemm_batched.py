"""C[b] = A[b] · B[b] for a batch of matrices: three-dimensional tensors, the batch a dimension of the grid.

Run it:  python examples/gemm_batched.py [batch M N K]

A tile is a region of one matrix of the batch: ``A[bz, by * block_M, k * block_K]`` names where it starts, and its
extent comes from the other side of the copy. A tile that hangs over its matrix reads zeros there, never the next one.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def gemm_batched(A, B, block_M=128, block_N=128, block_K=64, num_stages=3, threads=256):
    """A: [batch, M, K], B: [batch, K, N], both float16 → [batch, M, N] float16, accumulated in float32."""
    batch, M, N, K = T.const("batch, M, N, K")
    A: T.Tensor((batch, M, K), T.float16)
    B: T.Tensor((batch, K, N), T.float16)
    C = T.empty((batch, M, N), T.float16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), batch, threads=threads) as (bx, by, bz):
        A_shared = T.alloc_shared((block_M, block_K), T.float16)
        B_shared = T.alloc_shared((block_K, block_N), T.float16)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[bz, by * block_M, k * block_K], A_shared)
            T.copy(B[bz, k * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local)
        T.copy(C_local, C[bz, by * block_M, bx * block_N])
    return C


def check(batch: int, M: int, N: int, K: int, device: str, **options) -> float:
    """The relative error against float64 for random inputs."""
    a, b = torch.randn(batch, M, K, device=device).half(), torch.randn(batch, K, N, device=device).half()
    c = gemm_batched(a, b, **options)
    wanted = a.double() @ b.double()
    error = float((c.double() - wanted).norm() / wanted.norm())
    assert error < 5e-4, f"float16 rounds to 11 bits, 2e-4 on average; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:5]] or ([32, 1024, 1024, 1024] if device == "cuda" else [3, 136, 200, 72])
    print(f"{'x'.join(map(str, sizes))} float16 on {device}: relative error {check(*sizes, device):.1e}")


if __name__ == "__main__":
    main()

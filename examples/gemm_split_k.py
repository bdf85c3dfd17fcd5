"""A · Bᵀ with the k loop split over several CTAs, for products whose tiles are too few to fill the card.

Run it:  python examples/gemm_split_k.py [M N K [splits]]

Two ways to bring the partial sums together. Atomic: each CTA adds its tile to a float32 output that starts as zero; one
kernel, and the order of the additions is not fixed. Workspace: each CTA writes its tile to a slice of a temporary
tensor, and a second kernel of the same program adds the slices up in a fixed order.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T


@T.macro
def partial_product(A, B, C_local, by, bx, split, splits, tile, num_stages):
    """C_local = the tile (by, bx) of A · Bᵀ, of the k blocks that belong to ``split``."""
    block_M, block_N, block_K = tile
    A_shared = T.alloc_shared((block_M, block_K), T.bfloat16)
    B_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
    blocks = T.ceildiv(A.shape[1], block_K)
    each = T.ceildiv(blocks, splits)
    T.clear(C_local)
    for k in T.Pipelined(split * each, T.min((split + 1) * each, blocks), num_stages=num_stages):
        T.copy(A[by * block_M, k * block_K], A_shared)
        T.copy(B[bx * block_N, k * block_K], B_shared)
        T.gemm(A_shared, B_shared, C_local, transpose_B=True)


@ptxtile.jit
def gemm_split_k_atomic(A, B, C, splits=8, block_M=128, block_N=128, block_K=64, num_stages=3, threads=256):
    """C += A · Bᵀ. A: [M, K], B: [N, K], both bfloat16; C: [M, N] float32."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    C: T.Tensor((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), splits, threads=threads) as (bx, by, split):
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        partial_product(A, B, C_local, by, bx, split, splits, (block_M, block_N, block_K), num_stages)
        T.atomic_add(C[by * block_M, bx * block_N], C_local)


@ptxtile.jit
def gemm_split_k_workspace(A, B, splits=8, block_M=128, block_N=128, block_K=64, num_stages=3, threads=256):
    """A: [M, K], B: [N, K], both bfloat16 → [M, N] bfloat16; two kernels, the same result on each run."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    partial = T.empty((splits, M, N), T.float32)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), splits, threads=threads) as (bx, by, split):
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        partial_product(A, B, C_local, by, bx, split, splits, (block_M, block_N, block_K), num_stages)
        T.copy(C_local, partial[split, by * block_M, bx * block_N])
    with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 8), threads=128) as (bx, by):
        total = T.alloc_fragment((8, 128), T.float32)
        T.clear(total)
        for split in range(splits):
            for i, j in T.Parallel(8, 128):
                total[i, j] += partial[split, by * 8 + i, bx * 128 + j]
        T.copy(total, C[by * 8, bx * 128])
    return C


def check(M: int, N: int, K: int, device: str, splits: int = 8, atomic: bool = False, **options) -> float:
    """The relative error against float64 for random inputs."""
    a, b = (torch.randn(rows, K, device=device).bfloat16() for rows in (M, N))
    wanted = a.double() @ b.double().T
    if atomic:
        c = torch.randn(M, N, device=device)
        wanted += c.double()
        gemm_split_k_atomic(a, b, c, splits, **options)
    else:
        c = gemm_split_k_workspace(a, b, splits, **options)
    error = float((c.double() - wanted).norm() / wanted.norm())
    bound = 1e-5 if atomic else 4e-3
    assert error < bound, f"float32 sums are good for 1e-6, bfloat16 rounds to 8 bits; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:4]] or ([256, 512, 16384] if device == "cuda" else [136, 72, 520])
    splits = int(sys.argv[4]) if len(sys.argv) > 4 else 16 if device == "cuda" else 3
    errors = [check(*sizes, device, splits, atomic) for atomic in (True, False)]
    print(
        f"{'x'.join(map(str, sizes))} bfloat16 in {splits} parts on {device}: "
        f"relative error {errors[0]:.1e} with atomics, {errors[1]:.1e} with a workspace"
    )


if __name__ == "__main__":
    main()

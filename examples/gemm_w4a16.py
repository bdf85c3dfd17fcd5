"""bfloat16 activations times 4-bit weights that are unpacked and scaled on the way to the tensor cores.

Run it:  python examples/gemm_w4a16.py [M N K]

Two weights share a byte, so the matrix is a quarter of its bfloat16 size in memory, and groups of 128 weights along K
share a scale. A tile travels packed to shared memory, is unpacked to bfloat16 in registers, and goes back to shared
memory for T.gemm.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T

GROUP = 128
"""Weights along K with a scale of their own."""


@ptxtile.jit
def gemm_w4a16(X, packed, scale, block_M=128, block_N=128, block_K=64, num_stages=3, threads=256):
    """X: [M, K] bfloat16; packed: [N, K/2] uint8, weight 2·j in the low half of byte j, each stored plus 8; scale:
    [N, K/GROUP] bfloat16 → X · Wᵀ, [M, N] bfloat16, accumulated in float32."""
    M, N, K = T.const("M, N, K")
    X: T.Tensor((M, K), T.bfloat16)
    packed: T.Tensor((N, K // 2), T.uint8)
    scale: T.Tensor((N, K // GROUP), T.bfloat16)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        X_shared = T.alloc_shared((block_M, block_K), T.bfloat16)
        packed_shared = T.alloc_shared((block_N, block_K // 2), T.uint8)
        W_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
        W_local = T.alloc_fragment((block_N, block_K), T.bfloat16)
        scale_local = T.alloc_fragment((block_N,), T.bfloat16)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(X[by * block_M, k * block_K], X_shared)
            T.copy(packed[bx * block_N, k * block_K // 2], packed_shared)
            T.copy(scale[bx * block_N : (bx + 1) * block_N, k * block_K // GROUP], scale_local)
            for i, j in T.Parallel(block_N, block_K // 2):
                byte = T.cast(packed_shared[i, j], T.int32)
                W_local[i, j * 2] = T.cast((byte & 15) - 8, T.float32) * scale_local[i]
                W_local[i, j * 2 + 1] = T.cast((byte >> 4) - 8, T.float32) * scale_local[i]
            T.copy(W_local, W_shared)
            T.gemm(X_shared, W_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def quantised(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Packed 4-bit values and the scale of each group by its largest magnitude, and what the two stand for, in
    bfloat16."""
    N, K = weights.shape
    groups = weights.reshape(N, K // GROUP, GROUP)
    scale = (groups.abs().amax(2, keepdim=True).clamp(min=1e-12) / 7).bfloat16()
    values = (groups / scale).round().clamp(-8, 7)
    stored = (values + 8).to(torch.uint8).reshape(N, K)
    return stored[:, ::2] | stored[:, 1::2] << 4, scale.reshape(N, -1), (values * scale).bfloat16().reshape(N, K)


def check(M: int, N: int, K: int, device: str, **options) -> float:
    """The relative error against float64 for random inputs; what quantising the weights loses is not part of it."""
    x = torch.randn(M, K, device=device).bfloat16()
    packed, scale, weights = quantised(torch.randn(N, K, device=device))
    c = gemm_w4a16(x, packed, scale, **options)
    wanted = x.double() @ weights.double().T
    error = float((c.double() - wanted).norm() / wanted.norm())
    assert error < 4e-3, f"bfloat16 rounds to 8 bits, 2e-3 on average; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:4]] or ([4096, 4096, 4096] if device == "cuda" else [136, 200, 384])
    print(f"{'x'.join(map(str, sizes))} w4a16 on {device}: relative error {check(*sizes, device):.1e}")


if __name__ == "__main__":
    main()

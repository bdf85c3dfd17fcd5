"""e4m3 × e4m3 with scales for blocks of 128, as in DeepSeek's fine-grained quantisation.

Run it:  python examples/gemm_fp8.py [M N K]

Each row of A has a scale for every 128 values along K, each 128×128 block of B has one. The sum of such a block comes
from the tensor cores (whose accumulation of 8-bit floats keeps fewer bits than float32), is scaled, and is added to a
second accumulator in full float32: two levels, which keep long sums exact enough.
Source: DeepSeek-AI, «DeepSeek-V3 Technical Report», section 3.3.2.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T

BLOCK = 128
"""Values of a quantisation block along K, and along N for B."""


@ptxtile.jit
def gemm_fp8(A, B, scale_A, scale_B, block_M=128, block_N=128, num_stages=3, threads=256):
    """A: [M, K], B: [N, K], both float8_e4m3fn, K a multiple of 128; scale_A: [M, K/128], scale_B: [⌈N/128⌉, K/128],
    float32 → [M, N] bfloat16."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.float8_e4m3fn)
    B: T.Tensor((N, K), T.float8_e4m3fn)
    scale_A: T.Tensor((M, K // BLOCK), T.float32)
    scale_B: T.Tensor((T.ceildiv(N, BLOCK), K // BLOCK), T.float32)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, BLOCK), T.float8_e4m3fn)
        B_shared = T.alloc_shared((block_N, BLOCK), T.float8_e4m3fn)
        partial = T.alloc_fragment((block_M, block_N), T.float32)
        total = T.alloc_fragment((block_M, block_N), T.float32)
        scale = T.alloc_fragment((block_M,), T.float32)
        T.clear(total)
        for k in T.Pipelined(K // BLOCK, num_stages=num_stages):
            T.copy(A[by * block_M, k * BLOCK], A_shared)
            T.copy(B[bx * block_N, k * BLOCK], B_shared)
            for i in T.Parallel(block_M):
                scale[i] = scale_A[by * block_M + i, k] * scale_B[bx * block_N // BLOCK, k]
            T.gemm(A_shared, B_shared, partial, transpose_B=True, clear_accum=True)
            for i, j in T.Parallel(block_M, block_N):
                total[i, j] += partial[i, j] * scale[i]
        T.copy(total, C[by * block_M, bx * block_N])
    return C


def quantised(matrix: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """e4m3 values, the scale of each block of ``rows``×128 by its largest magnitude (448 is the largest e4m3), and what
    the two stand for, in float64."""
    M, K = matrix.shape
    padded = torch.nn.functional.pad(matrix, (0, 0, 0, -M % rows))
    blocks = padded.reshape(-1, rows, K // BLOCK, BLOCK)
    scale = blocks.abs().amax((1, 3), keepdim=True).clamp(min=1e-12) / 448
    values = (blocks / scale).to(torch.float8_e4m3fn)
    meaning = (values.double() * scale.double()).reshape(-1, K)[:M]
    return values.reshape(-1, K)[:M].contiguous(), scale.reshape(-1, K // BLOCK), meaning


def check(M: int, N: int, K: int, device: str, **options) -> float:
    """The relative error against float64 for random inputs; what quantising them loses is not part of it."""
    a, scale_a, a_meaning = quantised(torch.randn(M, K, device=device), 1)
    b, scale_b, b_meaning = quantised(torch.randn(N, K, device=device), BLOCK)
    c = gemm_fp8(a, b, scale_a, scale_b, **options)
    wanted = a_meaning @ b_meaning.T
    error = float((c.double() - wanted).norm() / wanted.norm())
    assert error < 4e-3, f"bfloat16 rounds to 8 bits, 2e-3 on average; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:4]] or ([4096, 4096, 4096] if device == "cuda" else [200, 136, 384])
    print(f"{'x'.join(map(str, sizes))} e4m3 on {device}: relative error {check(*sizes, device):.1e}")


if __name__ == "__main__":
    main()

"""A · Bᵀ with stream-K: all k blocks of all tiles in one row, cut into equal spans, one for each multiprocessor.

Run it:  python examples/gemm_stream_k.py [M N K]

With one tile a CTA the last wave leaves multiprocessors without work. Here each has the same number of k blocks, to
within one; a span may end inside of a tile, and then the CTAs that share the tile add their parts to the output, which
starts as zero, with atomics. A tile that one CTA has to itself is stored.
Source: Osama, Merrill et al., «Stream-K: Work-centric Parallel Decomposition for Dense Matrix-Matrix Multiplication on
the GPU», 2023.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def gemm_stream_k(A, B, C, sms, block_M=128, block_N=128, block_K=64, num_stages=3, threads=256):
    """A: [M, K], B: [N, K], both bfloat16; C: [M, N] float32 zeros, becomes A · Bᵀ. ``sms``: CTAs."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    C: T.Tensor((M, N), T.float32)
    columns, k_blocks = T.ceildiv(N, block_N), T.ceildiv(K, block_K)
    total = T.ceildiv(M, block_M) * columns * k_blocks
    with T.Kernel(sms, threads=threads) as cta:
        A_shared = T.alloc_shared((block_M, block_K), T.bfloat16)
        B_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        first, last = cta * total // sms, (cta + 1) * total // sms
        for tile in range(first // k_blocks, T.ceildiv(last, k_blocks)):
            by, bx = tile // columns, tile % columns
            start, stop = T.max(first - tile * k_blocks, 0), T.min(last - tile * k_blocks, k_blocks)
            T.clear(C_local)
            for k in T.Pipelined(start, stop, num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            if stop - start == k_blocks:
                T.copy(C_local, C[by * block_M, bx * block_N])
            else:
                T.atomic_add(C[by * block_M, bx * block_N], C_local)


def check(M: int, N: int, K: int, device: str, sms: int | None = None, **options) -> float:
    """The relative error against float64 for random inputs."""
    if sms is None:
        sms = torch.cuda.get_device_properties(device).multi_processor_count if device == "cuda" else 5
    a, b = (torch.randn(rows, K, device=device).bfloat16() for rows in (M, N))
    c = torch.zeros(M, N, device=device)
    gemm_stream_k(a, b, c, sms, **options)
    wanted = a.double() @ b.double().T
    error = float((c.double() - wanted).norm() / wanted.norm())
    assert error < 1e-5, f"float32 sums are good for 1e-6; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:4]] or ([2048, 2304, 4096] if device == "cuda" else [200, 264, 456])
    print(f"{'x'.join(map(str, sizes))} bfloat16 on {device}: relative error {check(*sizes, device):.1e}")


if __name__ == "__main__":
    main()

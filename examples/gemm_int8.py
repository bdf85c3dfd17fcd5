"""int8 × int8 → int32 on the tensor cores, then dequantised in the epilogue with a scale for each row and column.

Run it:  python examples/gemm_int8.py [M N K]

Integer sums are exact, so without scales the result equals the exact product. With them (the usual case: activations
quantised by token, weights by output channel) the epilogue multiplies and writes bfloat16.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def gemm_int8(A, B, block_M=128, block_N=128, block_K=128, num_stages=3, threads=256):
    """A: [M, K], B: [N, K], both int8 → A · Bᵀ, [M, N] int32, exact."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.int8)
    B: T.Tensor((N, K), T.int8)
    C = T.empty((M, N), T.int32)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), T.int8)
        B_shared = T.alloc_shared((block_N, block_K), T.int8)
        C_local = T.alloc_fragment((block_M, block_N), T.int32)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[bx * block_N, k * block_K], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit
def gemm_int8_scaled(A, B, scale_A, scale_B, block_M=128, block_N=128, block_K=128, num_stages=3, threads=256):
    """As :func:`gemm_int8`, times scale_A: [M] and scale_B: [N], float32 → [M, N] bfloat16."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.int8)
    B: T.Tensor((N, K), T.int8)
    scale_A: T.Tensor((M,), T.float32)
    scale_B: T.Tensor((N,), T.float32)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), T.int8)
        B_shared = T.alloc_shared((block_N, block_K), T.int8)
        C_local = T.alloc_fragment((block_M, block_N), T.int32)
        C_scaled = T.alloc_fragment((block_M, block_N), T.bfloat16)
        rows, columns = T.alloc_fragment((block_M,), T.float32), T.alloc_fragment((block_N,), T.float32)
        T.copy(scale_A[by * block_M], rows)
        T.copy(scale_B[bx * block_N], columns)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[bx * block_N, k * block_K], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        for i, j in T.Parallel(block_M, block_N):
            C_scaled[i, j] = T.cast(C_local[i, j], T.float32) * rows[i] * columns[j]
        T.copy(C_scaled, C[by * block_M, bx * block_N])
    return C


def quantised(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """int8 values and the float32 scale of each row, by its largest magnitude."""
    scale = matrix.abs().amax(1).clamp(min=1e-12) / 127
    return (matrix / scale[:, None]).round().to(torch.int8), scale


def check(M: int, N: int, K: int, device: str, scaled: bool = True, **options) -> float:
    """The relative error against float64 for random inputs; 0 without scales."""
    (a, scale_a), (b, scale_b) = (quantised(torch.randn(rows, K, device=device)) for rows in (M, N))
    wanted = a.double() @ b.double().T
    if scaled:
        c = gemm_int8_scaled(a, b, scale_a, scale_b, **options)
        wanted *= scale_a.double()[:, None] * scale_b.double()
    else:
        c = gemm_int8(a, b, **options)
    error = float((c.double() - wanted).norm() / wanted.norm())
    assert error < 4e-3 if scaled else error == 0, f"int32 is exact, bfloat16 rounds to 8 bits; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:4]] or ([4096, 4096, 4096] if device == "cuda" else [200, 136, 272])
    exact, scaled = check(*sizes, device, scaled=False), check(*sizes, device, scaled=True)
    print(f"{'x'.join(map(str, sizes))} int8 on {device}: relative error {exact:g} in int32, {scaled:.1e} scaled")


if __name__ == "__main__":
    main()

"""Gemm kernels as users write them, and a check of a product against float64."""

from __future__ import annotations

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def gemm(
    A, B, transpose_A=False, transpose_B=False, block_M=64, block_N=64, block_K=64, threads=128, num_stages=3,
    dtype="bfloat16", accum="float32", out="float32", policy=T.GemmWarpPolicy.Square,
):  # fmt: skip
    """C = op(A) · op(B), one tile a CTA, the k loop pipelined."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((K, M) if transpose_A else (M, K), dtype)
    B: T.Tensor((N, K) if transpose_B else (K, N), dtype)
    C = T.empty((M, N), out)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_K, block_M) if transpose_A else (block_M, block_K), dtype)
        B_shared = T.alloc_shared((block_N, block_K) if transpose_B else (block_K, block_N), dtype)
        C_local = T.alloc_fragment((block_M, block_N), accum)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            if transpose_A:
                T.copy(A[k * block_K, by * block_M], A_shared)
            else:
                T.copy(A[by * block_M, k * block_K], A_shared)
            if transpose_B:
                T.copy(B[bx * block_N, k * block_K], B_shared)
            else:
                T.copy(B[k * block_K, bx * block_N], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_A, transpose_B, policy)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


@ptxtile.jit
def gemm_bias_relu(A, B, bias, block_M=64, block_N=64, block_K=32, threads=128):
    """relu(A · Bᵀ + bias) in bfloat16: an epilogue on the accumulator, with a broadcast row."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((N, K), "bfloat16")
    bias: T.Tensor((N,), "float32")
    C = T.empty((M, N), "bfloat16")
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), "bfloat16")
        B_shared = T.alloc_shared((block_N, block_K), "bfloat16")
        bias_local = T.alloc_fragment((block_N,), "float32")
        C_local = T.alloc_fragment((block_M, block_N), "float32")
        T.copy(bias[bx * block_N], bias_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=2):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[bx * block_N, k * block_K], B_shared)
            if k == 0:
                T.gemm(A_shared, B_shared, C_local, transpose_B=True, clear_accum=True)
            else:
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        for i, j in T.Parallel(block_M, block_N):
            C_local[i, j] = T.max(C_local[i, j] + bias_local[j], 0.0)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def operands(m: int, n: int, k: int, dtype: torch.dtype, device: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random M×K and K×N matrices; small integers for integer types."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def matrix(*shape: int) -> torch.Tensor:
        if dtype.is_floating_point:
            return torch.randn(shape, generator=generator, device=device).to(dtype)
        low = 0 if dtype is torch.uint8 else -100
        return torch.randint(low, 100, shape, generator=generator, device=device).to(dtype)

    return matrix(m, k), matrix(k, n)


def relative_error(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """‖found − a·b‖ / ‖a·b‖ in float64; NaN if anything is not finite."""
    wanted = a.double() @ b.double()
    return float((found.double() - wanted).norm() / wanted.norm().clamp(min=1e-30))


def run(m: int, n: int, k: int, device: str = "cpu", seed: int = 0, **options) -> float:
    """The relative error of one product."""
    dtype = getattr(torch, options.get("dtype", "bfloat16"))
    a, b = operands(m, n, k, dtype, device, seed)
    left = a.T.contiguous() if options.get("transpose_A") else a
    right = b.T.contiguous() if options.get("transpose_B") else b
    return relative_error(gemm(left, right, **options), a, b)

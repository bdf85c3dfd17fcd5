"""silu(X · Gᵀ) * (X · Uᵀ): the two products of a SwiGLU layer in one kernel.

Run it:  python examples/gemm_swiglu.py [M N K]

Each tile of X is loaded once and multiplied by a tile of each weight matrix; the two accumulators meet in the epilogue,
so that neither product is ever written to memory.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def gemm_swiglu(X, gate, up, block_M=128, block_N=128, block_K=64, num_stages=2, threads=256):
    """X: [M, K], gate and up: [N, K], all bfloat16 → [M, N] bfloat16; all arithmetic in float32."""
    M, N, K = T.const("M, N, K")
    X: T.Tensor((M, K), T.bfloat16)
    gate: T.Tensor((N, K), T.bfloat16)
    up: T.Tensor((N, K), T.bfloat16)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        X_shared = T.alloc_shared((block_M, block_K), T.bfloat16)
        gate_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
        up_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
        gate_local = T.alloc_fragment((block_M, block_N), T.float32)
        up_local = T.alloc_fragment((block_M, block_N), T.float32)
        T.clear(gate_local)
        T.clear(up_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(X[by * block_M, k * block_K], X_shared)
            T.copy(gate[bx * block_N, k * block_K], gate_shared)
            T.copy(up[bx * block_N, k * block_K], up_shared)
            T.gemm(X_shared, gate_shared, gate_local, transpose_B=True)
            T.gemm(X_shared, up_shared, up_local, transpose_B=True)
        for i, j in T.Parallel(block_M, block_N):
            up_local[i, j] *= gate_local[i, j] * T.sigmoid(gate_local[i, j])
        T.copy(up_local, C[by * block_M, bx * block_N])
    return C


def check(M: int, N: int, K: int, device: str, **options) -> float:
    """The relative error against float64 for random inputs."""
    x = torch.randn(M, K, device=device).bfloat16()
    gate, up = ((torch.randn(N, K, device=device) / K**0.5).bfloat16() for _ in range(2))
    c = gemm_swiglu(x, gate, up, **options)
    wanted = torch.nn.functional.silu(x.double() @ gate.double().T) * (x.double() @ up.double().T)
    error = float((c.double() - wanted).norm() / wanted.norm())
    assert error < 4e-3, f"bfloat16 rounds to 8 bits, 2e-3 on average; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:4]] or ([4096, 14336, 4096] if device == "cuda" else [136, 200, 264])
    # a deeper ring where the 227 KB of shared memory on Hopper have room for it
    hopper = device == "cuda" and torch.cuda.get_device_capability() == (9, 0)
    error = check(*sizes, device, **(dict(num_stages=4) if hopper else {}))
    print(f"{'x'.join(map(str, sizes))} bfloat16 on {device}: relative error {error:.1e}")


if __name__ == "__main__":
    main()

"""activation(A · Bᵀ + bias) in one kernel: a fused epilogue on the accumulator.

Run it:  python examples/gemm_bias_activation.py [M N K [none|relu|gelu|silu]]

The epilogue is an elementwise loop over the accumulator's fragment; the bias is a row that every row of the tile adds.
Which activation is a Python argument: each choice is a variant of the kernel of its own, and no branch is left in it.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T

ACTIVATIONS = {
    "none": lambda x: x,
    "relu": torch.nn.functional.relu,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}
"""What torch calls them; the kernel's own formulas are in ``activate``."""


def activate(x, activation):
    """A plain Python function: the kernel calls it while it is traced."""
    if activation == "relu":
        return T.max(x, 0.0)
    if activation == "gelu":
        return 0.5 * x * (1.0 + T.erf(x * 0.7071067811865476))
    if activation == "silu":
        return x * T.sigmoid(x)
    return x


@ptxtile.jit
def gemm_bias_activation(
    A, B, bias, activation="gelu", block_M=128, block_N=128, block_K=64, num_stages=3, threads=256
):
    """A: [M, K], B: [N, K] bfloat16, bias: [N] float32 → [M, N] bfloat16; all arithmetic in float32."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    bias: T.Tensor((N,), T.float32)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_M, block_K), T.bfloat16)
        B_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        bias_local = T.alloc_fragment((block_N,), T.float32)
        T.copy(bias[bx * block_N], bias_local)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
            T.copy(A[by * block_M, k * block_K], A_shared)
            T.copy(B[bx * block_N, k * block_K], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        for i, j in T.Parallel(block_M, block_N):
            C_local[i, j] = activate(C_local[i, j] + bias_local[j], activation)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def check(M: int, N: int, K: int, device: str, activation: str = "gelu", **options) -> float:
    """The relative error against float64 for random inputs."""
    a, b = torch.randn(M, K, device=device).bfloat16(), (torch.randn(N, K, device=device) / K**0.5).bfloat16()
    bias = torch.randn(N, device=device)
    c = gemm_bias_activation(a, b, bias, activation=activation, **options)
    wanted = ACTIVATIONS[activation](a.double() @ b.double().T + bias.double())
    error = float((c.double() - wanted).norm() / wanted.norm())
    assert error < 4e-3, f"bfloat16 rounds to 8 bits, 2e-3 on average; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:4]] or ([4096, 4096, 4096] if device == "cuda" else [200, 328, 136])
    activation = sys.argv[4] if len(sys.argv) > 4 else "gelu"
    error = check(*sizes, device, activation)
    print(f"{'x'.join(map(str, sizes))} bfloat16 with bias and {activation} on {device}: relative error {error:.1e}")


if __name__ == "__main__":
    main()

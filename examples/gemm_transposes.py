"""The four layouts of a product: NN, NT, TN and TT, for row-major matrices that lie as they are.

Run it:  python examples/gemm_transposes.py [M N K [NN|NT|TN|TT]]

The first letter says whether A lies as [M, K] (N) or as [K, M] (T), the second whether B lies as [K, N] (N) or as
[N, K] (T). Nothing is moved to transpose a tile: the tensor cores read either order from shared memory.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def gemm_transposes(
    A, B, transpose_A=False, transpose_B=False, block_M=128, block_N=128, block_K=64, num_stages=3, threads=256
):
    """A: [M, K] or [K, M], B: [K, N] or [N, K], all bfloat16 → [M, N] bfloat16, accumulated in float32."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((K, M) if transpose_A else (M, K), T.bfloat16)
    B: T.Tensor((N, K) if transpose_B else (K, N), T.bfloat16)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
        A_shared = T.alloc_shared((block_K, block_M) if transpose_A else (block_M, block_K), T.bfloat16)
        B_shared = T.alloc_shared((block_N, block_K) if transpose_B else (block_K, block_N), T.bfloat16)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
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
            T.gemm(A_shared, B_shared, C_local, transpose_A, transpose_B)
        T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def check(M: int, N: int, K: int, device: str, layout: str = "NT", **options) -> float:
    """The relative error against float64 for random inputs."""
    transpose_a, transpose_b = (letter == "T" for letter in layout)
    a = torch.randn(*((K, M) if transpose_a else (M, K)), device=device).bfloat16()
    b = torch.randn(*((N, K) if transpose_b else (K, N)), device=device).bfloat16()
    c = gemm_transposes(a, b, transpose_a, transpose_b, **options)
    wanted = (a.T if transpose_a else a).double() @ (b.T if transpose_b else b).double()
    error = float((c.double() - wanted).norm() / wanted.norm())
    assert error < 4e-3, f"bfloat16 rounds to 8 bits, 2e-3 on average; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:4]] or ([4096, 4096, 4096] if device == "cuda" else [136, 264, 200])
    layouts = sys.argv[4:] or ["NN", "NT", "TN", "TT"]
    errors = ", ".join(f"{layout} {check(*sizes, device, layout):.1e}" for layout in layouts)
    print(f"{'x'.join(map(str, sizes))} bfloat16 on {device}: relative errors {errors}")


if __name__ == "__main__":
    main()

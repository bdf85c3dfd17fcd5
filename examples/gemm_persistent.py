"""C = A · Bᵀ with as many CTAs as multiprocessors, each of which goes through several tiles.

Run it:  python examples/gemm_persistent.py [M N K]

``T.Persistent`` gives a CTA its tiles one after another, in an order that lets the CTAs which run at the same time
share rows of A and B in the L2 cache. The ring of stages of the inner loop goes on over tiles: while a tile is stored,
the producer already loads the next one.
With ``cluster`` CTAs in a cluster (Hopper) these work on tiles below each other, and what they load alike, the tile of
B, is loaded once and multicast.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def gemm_persistent(
    A, B, sms, block_M=128, block_N=128, block_K=64, num_stages=3, threads=256, group_size=8, cluster=1
):
    """A: [M, K], B: [N, K], both bfloat16 → [M, N] bfloat16. ``sms``: CTAs, one for each multiprocessor, a multiple of
    ``cluster``."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(sms, threads=threads, cluster_dims=cluster) as cta:
        A_shared = T.alloc_shared((block_M, block_K), T.bfloat16)
        B_shared = T.alloc_shared((block_N, block_K), T.bfloat16)
        C_local = T.alloc_fragment((block_M, block_N), T.float32)
        for by, bx in T.Persistent([T.ceildiv(M, block_M), T.ceildiv(N, block_N)], sms, cta, group_size):
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def check(M: int, N: int, K: int, device: str, sms: int | None = None, cluster: int = 1, **options) -> float:
    """The relative error against float64 for random inputs."""
    if sms is None:
        sms = torch.cuda.get_device_properties(device).multi_processor_count if device == "cuda" else 3
    a, b = (torch.randn(rows, K, device=device).bfloat16() for rows in (M, N))
    c = gemm_persistent(a, b, sms // cluster * cluster, cluster=cluster, **options)
    wanted = a.double() @ b.double().T
    error = float((c.double() - wanted).norm() / wanted.norm())
    assert error < 4e-3, f"bfloat16 rounds to 8 bits, 2e-3 on average; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:4]] or ([8192, 8192, 8192] if device == "cuda" else [400, 264, 200])
    # the largest tiles and the deepest ring that the 227 KB of shared memory on Hopper have room for
    hopper = device == "cuda" and torch.cuda.get_device_capability() == (9, 0)
    error = check(*sizes, device, **(dict(block_N=256, num_stages=4, cluster=2) if hopper else {}))
    print(f"{'x'.join(map(str, sizes))} bfloat16 on {device}: relative error {error:.1e}")


if __name__ == "__main__":
    main()

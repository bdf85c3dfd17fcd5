"""A · Bᵀ with roles and barriers by hand: what the compiler makes of examples/gemm.py, written out.

Run it:  python examples/gemm_roles.py [M N K]

Warpgroup 2 loads tiles through TMA into a ring of stages, warpgroups 0 and 1 multiply. ``full[s]`` completes a phase
when the bytes of stage s have arrived, ``empty[s]`` when all consumers have read it. In turn n of a stage (from 0) the
consumers wait for the end of phase n of ``full``, the producer for the end of phase n - 1 of ``empty``. A wait names a
phase by its parity; a fresh barrier counts as past the phase before the first one, whose parity is 1.
Needs TMA and setmaxnreg: sm_90a, sm_100a or sm_120a.
"""

from __future__ import annotations

import sys

import torch

import ptxtile
import ptxtile.language as T


@ptxtile.jit
def gemm_roles(A, B, block_M=128, block_N=128, block_K=64, stages=3):
    """A: [M, K], B: [N, K], both bfloat16 → [M, N] bfloat16, accumulated in float32."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=384) as (bx, by):
        A_shared = T.alloc_shared((stages, block_M, block_K), T.bfloat16)
        B_shared = T.alloc_shared((stages, block_N, block_K), T.bfloat16)
        full, empty = T.alloc_barrier([1] * stages), T.alloc_barrier([256] * stages)
        with T.ws(2):
            T.dec_max_nreg(40)
            for k in range(T.ceildiv(K, block_K)):
                stage, turn = k % stages, k // stages
                T.barrier_wait(empty[stage], (turn & 1) ^ 1)
                T.tma_copy(A[by * block_M, k * block_K], A_shared[stage, :, :], barrier=full[stage])
                T.tma_copy(B[bx * block_N, k * block_K], B_shared[stage, :, :], barrier=full[stage])
                if T.shuffle_elect(128):
                    T.barrier_arrive(full[stage])
        with T.ws(0, 1):
            T.inc_max_nreg(232)
            C_local = T.alloc_fragment((block_M, block_N), T.float32)
            T.clear(C_local)
            for k in range(T.ceildiv(K, block_K)):
                stage, turn = k % stages, k // stages
                T.barrier_wait(full[stage], turn & 1)
                T.gemm(A_shared[stage, :, :], B_shared[stage, :, :], C_local, transpose_B=True)
                T.barrier_arrive(empty[stage])
            T.copy(C_local, C[by * block_M, bx * block_N])
    return C


def check(M: int, N: int, K: int, device: str, **options) -> float:
    """The relative error against float64 for random inputs."""
    a, b = (torch.randn(rows, K, device=device).bfloat16() for rows in (M, N))
    c = gemm_roles(a, b, **options)
    wanted = a.double() @ b.double().T
    error = float((c.double() - wanted).norm() / wanted.norm())
    assert error < 4e-3, f"bfloat16 rounds to 8 bits, 2e-3 on average; got {error}"
    return error


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(size) for size in sys.argv[1:4]] or ([4096, 4096, 4096] if device == "cuda" else [136, 200, 328])
    print(f"{'x'.join(map(str, sizes))} bfloat16 on {device}: relative error {check(*sizes, device):.1e}")


if __name__ == "__main__":
    main()

"""TileLang's side of the comparison, where it is installed: its pipelined gemm with rasterisation.

Importing this module needs TileLang, and compiling its kernels a CUDA toolkit.
"""

from __future__ import annotations

from typing import Any

import tilelang
import tilelang.language as T


def configurations(itemsize: int) -> dict[str, dict[str, Any]]:
    """Tiles are rows x columns x bytes of K."""
    depth = 128 // itemsize
    return {
        "128x256x128 bytes, 4 stages": dict(block_M=128, block_N=256, block_K=depth, num_stages=4, threads=256),
        "128x256x128 bytes, 3 stages": dict(block_M=128, block_N=256, block_K=depth, num_stages=3, threads=256),
        "128x128x128 bytes, 4 stages": dict(block_M=128, block_N=128, block_K=depth, num_stages=4, threads=128),
    }


@tilelang.jit(out_idx=[-1])
def matmul(M, N, K, block_M, block_N, block_K, num_stages, threads, dtype):
    @T.prim_func
    def gemm(
        A: T.Tensor((M, K), dtype),
        B: T.Tensor((N, K), dtype),
        C: T.Tensor((M, N), "bfloat16"),
    ):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            A_shared = T.alloc_shared((block_M, block_K), dtype)
            B_shared = T.alloc_shared((block_N, block_K), dtype)
            C_shared = T.alloc_shared((block_M, block_N), "bfloat16")
            C_local = T.alloc_fragment((block_M, block_N), "float32")
            T.use_swizzle(panel_size=10)
            T.clear(C_local)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=num_stages):
                T.copy(A[by * block_M, k * block_K], A_shared)
                T.copy(B[bx * block_N, k * block_K], B_shared)
                T.gemm(A_shared, B_shared, C_local, transpose_B=True)
            T.copy(C_local, C_shared)
            T.copy(C_shared, C[by * block_M, bx * block_N])

    return gemm

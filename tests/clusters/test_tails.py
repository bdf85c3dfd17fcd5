"""Blocks of a cluster without a tile run along only where nobody can see it."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.ir.gpu_ops import TmaLoad
from tests.clusters.simulate import nodes, outputs, policies, specialized

M, N, K, BLOCK = 190, 128, 160, 64
"""Three rows of tiles for clusters of two."""


def product(epilogue: str, rows: int = 3, tensor_rows: int = M):
    """A kernel with one of several ends of a tile; it gives A · Bᵀ, or what its name says."""

    @ptxtile.jit(specialize_warps=True)
    def kernel(A, B, extra):
        A: T.Tensor((tensor_rows, K), "bfloat16")
        B: T.Tensor((N, K), "bfloat16")
        extra: T.Tensor((8,), "int32")
        C = T.empty((tensor_rows, N), "float32")
        with T.Kernel(4, threads=128, cluster_dims=2) as block:
            A_shared = T.alloc_shared((BLOCK, 32), "bfloat16")
            B_shared = T.alloc_shared((BLOCK, 32), "bfloat16")
            C_local = T.alloc_fragment((BLOCK, BLOCK), "float32")
            staged = T.alloc_shared((BLOCK, BLOCK), "float32")
            done = T.alloc_var("int32", 0)
            T.clear(C_local)
            for by, bx in T.Persistent([rows, N // BLOCK], 4, block):
                if epilogue != "no clear":
                    T.clear(C_local)
                for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                    T.copy(A[by * BLOCK, k * 32], A_shared)
                    T.copy(B[bx * BLOCK, k * 32], B_shared)
                    T.gemm(A_shared, B_shared, C_local, transpose_B=True)
                if epilogue == "guarded elements":
                    for i, j in T.Parallel(BLOCK, BLOCK):
                        if by * BLOCK + i < M:
                            C[by * BLOCK + i, bx * BLOCK + j] = C_local[i, j]
                elif epilogue == "staged":
                    T.copy(C_local, staged)
                    T.copy(staged, C[by * BLOCK, bx * BLOCK])
                elif epilogue == "row from a table":
                    T.copy(C_local, C[extra[by] * BLOCK, bx * BLOCK])
                else:
                    T.copy(C_local, C[by * BLOCK, bx * BLOCK])
                if epilogue == "counts":
                    done += 1
                if epilogue == "element" and bx == 0:
                    extra[by] = 7
            if epilogue == "counts":
                extra[block] = done
        return C

    return kernel


def run(kernel, effects, rows: int, extra: torch.Tensor, tensor_rows: int = M):
    a, b = torch.randn(tensor_rows, K).bfloat16(), torch.randn(N, K).bfloat16()
    found = outputs(kernel.program, effects, A=a, B=b, extra=extra)["C"]
    return found, (a.double() @ b.double().T)[: rows * BLOCK]


def is_multicast(kernel) -> bool:
    return any(load.multicast is not None for load in nodes(kernel.program, TmaLoad))


@pytest.mark.parametrize("epilogue", ["copy", "guarded elements", "staged"])
def test_what_is_written_outside_is_dropped(epilogue):
    kernel = specialized(product(epilogue), "sm_90a")
    assert is_multicast(kernel)
    for effects in policies([0]):
        found, wanted = run(kernel, effects, 3, torch.zeros(8, dtype=torch.int32))
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("epilogue", ["no clear", "row from a table", "counts", "element"])
def test_what_could_be_seen_keeps_blocks_out(epilogue):
    kernel = specialized(product(epilogue), "sm_90a")
    assert not is_multicast(kernel)
    extra = torch.tensor([2, 0, 1, 0, 0, 0, 0, 0], dtype=torch.int32)
    found, wanted = run(kernel, policies([])[1], 3, extra)
    if epilogue == "row from a table":
        wanted = torch.cat([wanted[64:128], wanted[128:], wanted[:64]])
        assert_tiles(found, wanted)
    elif epilogue == "counts":
        assert extra[:4].tolist() == [1, 1, 2, 2] or int(extra[:4].sum()) == 6
    elif epilogue == "element":
        assert extra.tolist() == [7, 7, 7, 0, 0, 0, 0, 0]
    if epilogue in ("counts", "element"):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-4)


def assert_tiles(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Rows of tiles 0 and 1 whole; of the last one what lies in the tensor."""
    torch.testing.assert_close(found[:64].double(), wanted[:64], rtol=1e-5, atol=1e-4)


def test_tiles_that_the_tensor_has_but_the_loop_has_not():
    """Two rows of tiles of a tensor of three, in clusters of four: the third must stay as it is."""
    kernel = specialized(product("copy", rows=1, tensor_rows=128), "sm_90a")
    assert not is_multicast(kernel)
    found, wanted = run(kernel, policies([])[1], 1, torch.zeros(8, dtype=torch.int32), 128)
    torch.testing.assert_close(found[:64].double(), wanted, rtol=1e-5, atol=1e-4)
    assert found[64:].isnan().all()

"""Tables of each thread's own that are filled from a place on that is only known when the kernel runs."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from tests import ptxas


@ptxtile.jit
def product(A, B, places, by_thread=False):
    """The product of 64 rows of A, those from row ``table[1]`` on, and B."""
    A: T.Tensor((192, 128), T.bfloat16)
    B: T.Tensor((64, 128), T.bfloat16)
    places: T.Tensor((1,), T.int32)
    C = T.empty((64, 64), T.float32)
    with T.Kernel(1, threads=128):
        A_shared = T.alloc_shared((64, 64), T.bfloat16)
        B_shared = T.alloc_shared((64, 64), T.bfloat16)
        total = T.alloc_fragment((64, 64), T.float32)
        table = T.alloc_local((4,), T.int32)
        T.fill(table, 0)
        start = T.get_thread_binding() % 2 if by_thread else places[0] * 3 % 2
        T.fill(table[start : start + 2], 64)
        T.clear(total)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[table[0], k * 64], A_shared)
            T.copy(B[0, k * 64], B_shared)
            T.gemm(A_shared, B_shared, total, transpose_B=True)
        T.copy(total, C)
    return C


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("place", [0, 1])
def test_the_producer_fills_its_table_at_the_same_place(target: str, place: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PTXTILE_TARGET", target)
    a, b = torch.randn(192, 128).bfloat16(), torch.randn(64, 128).bfloat16()
    places = torch.tensor([place], dtype=torch.int32)
    rows = a[64:128] if place == 0 else a[:64]
    torch.testing.assert_close(product(a, b, places).double(), rows.double() @ b.double().T, rtol=1e-4, atol=1e-3)
    kernel = ptxtile.jit(product.function.function, target=target).compile()
    ptxas.assemble(kernel.ptx, target)


def test_a_table_filled_by_the_thread_does_not_decide_for_all():
    """One thread's TMA load would take its own rows for all."""
    maps = {}
    for by_thread in (False, True):
        program = ptxtile.jit(product.function.function, target="sm_90a").specialize(by_thread=by_thread).program
        maps[by_thread] = {record.tensor for record in program.tensor_maps}
    assert "A" in maps[False] and "A" not in maps[True]

"""What a wait on a barrier of the user's retires: what the arriving role touches, as far as the other one sees it."""

from __future__ import annotations

import torch

import ptxtile
import ptxtile.language as T
from ptxtile.ir.gpu_ops import MbarrierWait
from ptxtile.ir.rewrite import walk


@ptxtile.jit(target="sm_90a")
def with_a_tile_of_its_own(A, B):
    """Warpgroup 0 reverses through a tile that it declares itself, and hands over another one."""
    A: T.Tensor((128,), T.float32)
    B: T.Tensor((128,), T.float32)
    with T.Kernel(1, threads=256):
        handed = T.alloc_shared((128,), T.float32)
        ready = T.alloc_barrier(128)
        with T.ws(0):
            own = T.alloc_shared((128,), T.float32)
            for i in T.Parallel(128):
                own[i] = A[i] + 1
            for i in T.Parallel(128):
                handed[i] = own[127 - i] * 2
            T.barrier_arrive(ready)
        with T.ws(1):
            T.barrier_wait(ready, 0)
            for i in T.Parallel(128):
                B[i] = handed[127 - i] - 3


def test_a_tile_declared_in_the_arriving_role_is_not_handed_over() -> None:
    a, b = torch.randn(128), torch.full((128,), torch.nan)
    with_a_tile_of_its_own(a, b)
    torch.testing.assert_close(b, (a + 1) * 2 - 3)
    kernel = with_a_tile_of_its_own.compile(A=a, B=b)
    (wait,) = (node for node in walk(kernel.program.kernels[0].body) if isinstance(node, MbarrierWait))
    assert [buffer.name for buffer in wait.retires] == ["handed"]

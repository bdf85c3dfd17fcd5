"""Kernels that once were lowered wrongly, in the simulator, for a target with TMA and one without."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import LoweringError

TARGETS = ("sm_80", "sm_90a")


@pytest.mark.parametrize("target", TARGETS)
def test_one_element_read_under_one_condition_with_two_defaults(target: str) -> None:
    """The registers of the first read hold its default where the condition fails, not that of the second."""

    @ptxtile.jit(target=target)
    def kernel(A, n):
        A: T.Tensor((128,), T.float32)
        B = T.empty((128,), T.float32)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(128):
                B[i] = T.if_then_else(i < n, A[i], 0.0) * 2 + T.if_then_else(i < n, A[i], 1.0)
        return B

    a, inside = torch.randn(128), torch.arange(128) < 20
    assert torch.equal(kernel(a, 20), torch.where(inside, a, 0.0) * 2 + torch.where(inside, a, 1.0))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("first", ["guarded", "free"])
def test_a_default_after_a_read_that_has_none(target: str, first: str) -> None:
    """A read inside an If, or without any condition, and then the same element with a default."""

    @ptxtile.jit(target=target)
    def kernel(A, n, first):
        A: T.Tensor((128,), T.float32)
        B = T.empty((128,), T.float32)
        C = T.empty((128,), T.float32)
        with T.Kernel(1, threads=32):
            for i in T.Parallel(128):
                if first == "guarded":
                    C[i] = 0.0
                    if i < n:
                        C[i] = A[i]
                else:
                    C[i] = A[i]
                B[i] = T.if_then_else(i < n, A[i], 1.0)
        return B, C

    a, inside = torch.randn(128), torch.arange(128) < 20
    b, c = kernel(a, 20, first)
    assert torch.equal(b, torch.where(inside, a, 1.0))
    assert torch.equal(c, torch.where(inside, a, 0.0) if first == "guarded" else a)


@pytest.mark.parametrize("way", ["break", "continue"])
def test_a_copy_in_a_loop_that_one_thread_leaves_is_refused(way: str) -> None:
    def kernel_that_leaves(A):
        A: T.Tensor((4, 32), T.float32)
        B = T.empty((4, 32), T.float32)
        with T.Kernel(1, threads=32):
            for q in T.serial(4):
                if T.get_thread_binding() == 3:
                    break
                T.copy(A[q, :], B[q, :])
        return B

    def kernel_that_skips(A):
        A: T.Tensor((4, 32), T.float32)
        B = T.empty((4, 32), T.float32)
        with T.Kernel(1, threads=32):
            for q in T.serial(4):
                if T.get_thread_binding() == 3:
                    continue
                T.copy(A[q, :], B[q, :])
        return B

    kernel = ptxtile.jit(target="sm_90a")(kernel_that_leaves if way == "break" else kernel_that_skips)
    with pytest.raises(LoweringError, match="reached by only some of the threads"):
        kernel(torch.randn(4, 32))


@pytest.mark.parametrize("target", TARGETS)
def test_a_store_after_the_first_thread_has_left_the_loop(target: str) -> None:
    """It is not left to the thread that has gone."""

    @ptxtile.jit(target=target)
    def kernel(A):
        A: T.Tensor((4, 32), T.float32)
        B = T.empty((4,), T.float32)
        with T.Kernel(1, threads=32):
            for q in T.serial(4):
                if T.get_thread_binding() == 0:
                    break
                B[q] = A[q, 0]
        return B

    a = torch.randn(4, 32)
    assert torch.equal(kernel(a), a[:, 0])


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_stencil_over_a_tensor_without_neighbours(size: int) -> None:
    """Reads that for this size always miss give 0, as those that sometimes do."""

    @ptxtile.jit(target="sm_90a")
    def kernel(A):
        N = T.const("N")
        A: T.Tensor((N,), T.float32)
        B = T.empty((N,), T.float32)
        with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
            for i in T.Parallel(32):
                x = bx * 32 + i
                B[x] = A[x - 1] + A[x] + A[x + 1]
        return B

    a = torch.randn(size)
    padded = torch.nn.functional.pad(a, (1, 1))
    assert torch.equal(kernel(a), padded[:-2] + padded[1:-1] + padded[2:])

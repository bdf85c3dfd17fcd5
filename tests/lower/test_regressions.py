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


@pytest.mark.parametrize("shape", [(37, 64), (30, 128), (2, 8, 512), (3, 2, 64)])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_a_tile_read_by_columns_after_tma(shape: tuple[int, ...], dtype: str) -> None:
    """Its swizzled arrangement must suit the boxes: whole patterns between the columns of boxes, and boxes that reach
    over several matrices."""

    @ptxtile.jit(target="sm_90a")
    def kernel(A, shape, dtype):
        A: T.Tensor(shape, dtype)
        B = T.empty((shape[-1], *shape[:-1]), dtype)
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared(shape, dtype)
            T.copy(A, tile)
            if len(shape) == 2:
                for j, i in T.Parallel(shape[1], shape[0]):
                    B[j, i] = tile[i, j]
            else:
                for k, i, j in T.Parallel(shape[2], shape[0], shape[1]):
                    B[k, i, j] = tile[i, j, k]
        return B

    a = torch.randint(-100, 100, shape).to(getattr(torch, dtype))
    assert torch.equal(kernel(a, shape, dtype), a.movedim(-1, 0))
    (made,) = kernel._kernels.values()
    assert any(why.decision == "tma_load" for why in made.why)


@pytest.mark.parametrize("row", [0, 3, 10, 16, 40])
def test_one_row_of_a_swizzled_tile_and_rows_that_are_not_there(row: int) -> None:
    """A row that the tile does not have is dropped; TMA would write it behind the tile."""

    @ptxtile.jit(target="sm_90a")
    def kernel(A, row):
        A: T.Tensor((128,), T.bfloat16)
        row: T.int32
        B = T.empty((128, 16), T.bfloat16)
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((16, 128), T.bfloat16)
            T.clear(tile)
            T.copy(A, tile[row, 0])
            for j, i in T.Parallel(128, 16):
                B[j, i] = tile[i, j]
        return B

    a = torch.randn(128).to(torch.bfloat16)
    expected = torch.zeros(128, 16, dtype=torch.bfloat16)
    if row < 16:
        expected[:, row] = a
    assert torch.equal(kernel(a, row), expected)


@pytest.mark.parametrize("target", TARGETS)
def test_tiles_that_meet_only_under_a_condition_of_threads_are_not_merged(target: str) -> None:
    """The last read of one tile decides which threads write the other first: no barrier can stand in between."""

    @ptxtile.jit(target=target)
    def kernel(A):
        A: T.Tensor((64,), T.uint32)
        B = T.empty((64,), T.int32)
        with T.Kernel(1, threads=64):
            asked = T.alloc_shared((64,), T.uint32)
            answer = T.alloc_shared((64,), T.int32)
            T.copy(A, asked, disable_tma=True)
            for i in T.Parallel(64):
                if asked[63 - i] > 1:
                    answer[i] = 7
                else:
                    answer[i] = i
            for i in T.Parallel(64):
                B[i] = answer[63 - i]
        return B

    a = torch.arange(64, dtype=torch.int32) % 4
    expected = torch.where(a.flip(0) > 1, 7, torch.arange(64)).flip(0).to(torch.int32)
    assert torch.equal(kernel(a.view(torch.uint32)), expected)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("memory", ["fragment", "shared"])
def test_an_update_in_place_in_a_loop_whose_fragment_is_replicated(target: str, memory: str) -> None:
    """Only one of an iteration's replicas stores; if the others still read the element, they may see the new value. So
    such a loop has one thread for each iteration."""

    @ptxtile.jit(target=target)
    def kernel(A, memory):
        A: T.Tensor((37, 8), T.float32)
        B = T.empty((37, 8), T.float32)
        C = T.empty((37, 8), T.float32)
        with T.Kernel(1, threads=512):
            tile = T.alloc_fragment((37, 8), T.float32) if memory == "fragment" else T.alloc_shared((37, 8), T.float32)
            whole = T.alloc_fragment((37, 8), T.float32)
            column = T.alloc_fragment((37,), T.float32)
            T.copy(A, tile)
            for i in T.Parallel(37):
                column[i] = tile[i, 6]
                tile[i, 6] = 1
            for i, j in T.Parallel(37, 8):
                whole[i, j] = column[i]
            T.copy(whole, B)
            T.copy(tile, C)
        return B, C

    a = torch.randn(37, 8)
    b, c = kernel(a, memory)
    expected = a.clone()
    expected[:, 6] = 1
    assert torch.equal(b, a[:, 6:7].expand(37, 8)) and torch.equal(c, expected)


def test_one_tensor_under_two_names_with_free_strides() -> None:
    """Each iteration asks and writes its own element; that the strides are equal is not known when it is compiled."""

    @ptxtile.jit(target="sm_90a")
    def kernel(A, C):
        n = T.dynamic("n")
        A: T.Tensor((n, 4), T.float16)
        C: T.Tensor((n, 4), T.float16)
        with T.Kernel(T.ceildiv(n, 16), threads=128) as bx:
            for i, j in T.Parallel(16, 4):
                if A[bx * 16 + i, j] <= 1:
                    C[bx * 16 + i, j] = 3

    a = torch.randn(20, 12).to(torch.float16)
    part = a[:, ::3]
    expected = torch.where(part <= 1, 3.0, part.float()).to(torch.float16)
    kernel(part, part)
    assert torch.equal(part, expected)


def test_a_tile_that_the_consumers_write_several_times_before_its_load() -> None:
    """One fence before the hand-over to the producer serves all of the writes."""

    @ptxtile.jit(target="sm_90a", specialize_warps=True)
    def kernel(A):
        A: T.Tensor((64, 64), T.float32)
        B = T.empty((64, 64), T.float32)
        C = T.empty((64, 64), T.float32)
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), T.float32)
            T.clear(tile)
            T.fill(tile[3, :], 2)
            T.fill(tile, 1)
            T.copy(tile, C)
            T.copy(A, tile)
            T.copy(tile, B)
        return B, C

    a = torch.randn(64, 64)
    b, c = kernel(a)
    assert torch.equal(b, a) and torch.equal(c, torch.ones(64, 64))


def test_two_fills_before_a_load_of_the_producer() -> None:
    @ptxtile.jit(target="sm_90a", specialize_warps=True)
    def kernel(A):
        A: T.Tensor((64, 64), T.float32)
        B = T.empty((64, 64), T.float32)
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((64, 64), T.float32)
            T.clear(tile)
            T.clear(tile)
            T.copy(A, tile)
            T.copy(tile, B)
        return B

    a = torch.randn(64, 64)
    assert torch.equal(kernel(a), a)

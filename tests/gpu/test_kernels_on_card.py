"""A sample of the kernel suite on a card: the very calls that the simulator runs, compared with the same values."""

from __future__ import annotations

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import ArgumentError
from tests.kernels import suite
from tests.kernels.case import Case, generator_of, parameters, run


@pytest.mark.parametrize("case", parameters(suite.CASES, on_card=True))
def test_kernel(case: Case, card: torch.device, request: pytest.FixtureRequest) -> None:
    run(case.make(generator_of(case, request.config.option.random_seed)), card)


@ptxtile.jit
def add(A, B, block=64):
    """Two flat tensors; the offset of an element may pass 2³¹."""
    N = T.const("N")
    A: T.Tensor((N,), T.int8)
    B: T.Tensor((N,), T.int8)
    C = T.empty((N,), T.int8)
    with T.Kernel(T.ceildiv(N, block * 1024), threads=256) as bx:
        for k in range(block):
            for i in T.Parallel(1024):
                at = T.int64(bx) * (block * 1024) + k * 1024 + i
                if at < N:
                    C[at] = A[at] + B[at]
    return C


def test_more_elements_than_an_int32_counts(card: torch.device) -> None:
    """2³¹ + 1000 elements: the last ones are right, and so is every other one."""
    count = 2**31 + 1000
    a = torch.randint(-60, 60, (count,), dtype=torch.int8, device=card)
    b = torch.randint(-60, 60, (count,), dtype=torch.int8, device=card)
    assert torch.equal(add(a, b), a + b)


@ptxtile.jit
def scale(A, block=128):
    """Tiles, through shared memory, of a tensor whose offsets pass 2³¹."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float16)
    B = T.empty((M, N), T.float16)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=256) as (bx, by):
        tile = T.alloc_shared((block, block), T.float16)
        T.copy(A[by * block, bx * block], tile)
        for i, j in T.Parallel(block, block):
            tile[i, j] = tile[i, j] * 2
        T.copy(tile, B[by * block, bx * block])
    return B


@pytest.mark.parametrize("columns", [1 << 16, (1 << 16) - 3])
def test_tiles_of_a_tensor_of_more_than_2_31_elements(card: torch.device, columns: int) -> None:
    """Also with rows that TMA cannot take."""
    a = torch.randint(-60, 60, ((1 << 15) + 40, columns), dtype=torch.int8, device=card).half()
    assert torch.equal(scale(a), a * 2)


def test_a_large_stride(card: torch.device) -> None:
    """Few elements, far apart: the stride alone passes 2³¹ bytes."""
    base = torch.zeros(3 * (1 << 30) + 64, dtype=torch.float16, device=card)
    a = base.as_strided((4, 64), (1 << 30, 1))
    a.copy_(torch.randn(4, 64, device=card))
    assert torch.equal(scale(a), a * 2)


def test_tensors_of_two_devices(card: torch.device) -> None:
    a = torch.zeros(8, dtype=torch.int8)
    with pytest.raises(ArgumentError, match="argument 'A'.*wrong device(.|\n)*expected: .*cuda(.|\n)*got: .*cpu"):
        add(a, a.to(card))
    with pytest.raises(ArgumentError, match="argument 'B'.*wrong device(.|\n)*expected: .*cuda(.|\n)*got: .*cpu"):
        add(a.to(card), a)


def test_calls_on_another_stream_and_in_a_graph(card: torch.device) -> None:
    a, b = (torch.randint(-60, 60, (5000,), dtype=torch.int8, device=card) for _ in range(2))
    expected = add(a, b)
    side = torch.cuda.Stream(card)
    side.wait_stream(torch.cuda.current_stream(card))
    with torch.cuda.stream(side):
        assert torch.equal(add(a, b), expected)
    torch.cuda.synchronize(card)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = add(a, b)
    a.add_(1)
    graph.replay()
    torch.cuda.synchronize(card)
    assert torch.equal(result, a + b)

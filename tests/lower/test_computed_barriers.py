"""Named barriers whose id is computed: what they order, which ids are left for others, and ids that do not exist."""

from __future__ import annotations

import re

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.errors import DeadlockError, LoweringError, PtxtileError, ResourceError, SimulationError, TraceError
from ptxtile.ir.access_context import kernel_context
from ptxtile.lower.barrier_ids import computed_ids
from tests import ptxas
from tests.kernels.branches import number_from_memory, own_barriers, turns
from tests.lower.kernel_texts import kernel_program

NUMBERS = torch.arange(128, dtype=torch.int32)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
def test_the_id_is_in_a_register(arch: str) -> None:
    """The reads only meet what threads of their own warp have written, which its own barrier orders."""

    @ptxtile.jit(target=arch)
    def kernel(A):
        A: T.Tensor((128,), T.int32)
        B = T.empty((128,), T.int32)
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            tile = T.alloc_shared((128,), T.int32)
            tile[tx] = A[tx] * 2
            T.sync_threads(tx // 32 + 1, 32)
            B[tx] = tile[tx // 32 * 32 + 31 - tx % 32]
            T.named_barrier_arrive(5 + tx % 2 * 0, 128)
        return B

    ptx = kernel.compile(A=NUMBERS).get_kernel_source()
    found = [line.strip() for line in ptx.splitlines() if re.match(r"\s*bar", line)]
    assert len(found) == 2
    assert re.fullmatch(r"barrier\.sync\.aligned %r\d+, 32;", found[0])
    assert re.fullmatch(r"bar(rier)?\.arrive(\.aligned)? (%r\d+|5), 128;", found[1])
    ptxas.assemble(ptx, arch)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        ("tx // 32 + 3", {3, 4, 5, 6}),
        ("tx // 64 * 5 + k", {0, 1, 2, 5, 6, 7}),
        ("(tx // 32) * 7 - 7", {0, 7, 14}),
        ("A[k]", set(range(16))),
        ("n", set(range(16))),
    ],
)
def test_ids_that_may_be_used(index: str, expected: set[int]) -> None:
    text = f"for k in serial(0, 3):\n    bar_at(index={index}, threads=32)"
    p = kernel_program(text, "n = symbol(int32)\nA = tensor(int32, (4,))", stage="gpu")
    assert computed_ids(p.kernels[0], kernel_context(p, p.kernels[0])) == expected


@pytest.mark.parametrize("number", [-1, 16, 1 << 20])
def test_an_id_that_does_not_exist_is_reported(number: int) -> None:
    with pytest.raises(SimulationError, match="an id that is not from 0 to 15"):
        number_from_memory(torch.tensor([number], dtype=torch.int32), NUMBERS[:64].clone(), NUMBERS[:64].clone())


def test_the_checker_reports_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PTXTILE_SIM", "check")
    with pytest.raises(PtxtileError, match="an id that is not from 0 to 15"):
        number_from_memory(torch.tensor([99], dtype=torch.int32), NUMBERS[:64].clone(), NUMBERS[:64].clone())
    number_from_memory(torch.tensor([9], dtype=torch.int32), NUMBERS[:64].clone(), NUMBERS[:64].clone())
    own_barriers(NUMBERS)
    turns(torch.ones(3, 64, dtype=torch.int32))


def test_a_warp_has_one_id() -> None:
    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((64,), T.int32)
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            T.sync_threads(1 + tx % 2, 32)
            A[tx] = 0

    with pytest.raises(SimulationError, match="only some threads of a warp"):
        kernel(NUMBERS[:64].clone())


def test_more_threads_than_arrive() -> None:
    """Nobody goes on."""
    with pytest.raises(DeadlockError, match="for 64 threads: 32 arrived, 32 missing"):
        own_barriers(NUMBERS, count=64)


def roles(index):
    @ptxtile.jit(target="sm_90a")
    def kernel(A, B):
        A: T.Tensor((256,), T.int32)
        B: T.Tensor((256,), T.int32)
        with T.Kernel(1, threads=256):
            tx = T.get_thread_binding()
            S = T.alloc_shared((256,), T.int32)
            with T.ws(0):
                S[tx] = A[tx]
                T.sync_threads()
                B[tx] = S[127 - tx]
            with T.ws(1):
                T.sync_threads(index(A, tx), 32)
                B[tx] = A[tx]

    return kernel


def test_barriers_of_roles_have_other_ids() -> None:
    numbers = torch.arange(256, dtype=torch.int32)
    kernel = roles(lambda A, tx: tx // 32 - 3)  # 1 to 4
    ptx = kernel.compile(A=numbers, B=numbers).get_kernel_source()
    assert re.findall(r"bar\.sync\s+(\d+), 128", ptx) == ["5"]
    result = torch.zeros_like(numbers)
    kernel(numbers, result)
    assert torch.equal(result, torch.cat([numbers[:128].flip(0), numbers[128:]]))


def test_no_id_is_left_where_it_may_be_any() -> None:
    numbers = torch.arange(256, dtype=torch.int32)
    with pytest.raises(ResourceError, match="no named barrier is left"):
        roles(lambda A, tx: A[0]).compile(A=numbers, B=numbers)


@pytest.mark.parametrize("index", [0, 16, True, 2.0])
def test_ids_that_are_wrong_when_traced(index) -> None:
    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((64,), T.int32)
        with T.Kernel(1, threads=64):
            T.sync_threads(index, 64)

    with pytest.raises(TraceError, match="the barrier of T.sync_threads"):
        kernel.compile(A=NUMBERS[:64])


def test_a_statement_that_nobody_lets_the_warps_run_in_turn_is_refused() -> None:
    @ptxtile.jit
    def kernel(A):
        A: T.Tensor((64,), T.int32)
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            total = T.alloc_shared((1,), T.int32)
            T.sync_threads(4 + tx // 32, 32)
            if tx % 32 == 0:
                total[0] += A[tx]

    with pytest.raises(LoweringError, match="one statement reads and writes one place"):
        kernel.compile(A=NUMBERS[:64])

"""The measure of the checker, on small programs of each target: it reports each mutant that is not equivalent, and
nothing of the programs themselves. bench/mutations.py does the same for all examples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import ptxtile
import ptxtile.language as T
from ptxtile import sim
from ptxtile.ir import gpu_ops
from ptxtile.ir.program import Program
from ptxtile.sim.check.equivalence import Fate, judge
from ptxtile.sim.check.mutations import CHANGES, Mutant, mutants
from ptxtile.sim.check.run import check
from tests.sim.check.faults import Pair

SEEDS = range(4)
Call = tuple[Program, Mapping[str, torch.Tensor], Mapping[str, Any]]


def add(A, B):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float32)
    B: T.Tensor((M, N), T.float32)
    C = T.empty((M, N), T.float32)
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
        A_shared, B_shared = T.alloc_shared((32, 32), T.float32), T.alloc_shared((32, 32), T.float32)
        C_shared = T.alloc_shared((32, 32), T.float32)
        T.copy(A[by * 32, bx * 32], A_shared)
        T.copy(B[by * 32, bx * 32], B_shared)
        for i, j in T.Parallel(32, 32):
            C_shared[i, j] = A_shared[i, j] + B_shared[i, j]
        T.copy(C_shared, C[by * 32, bx * 32])
    return C


def gemm(A, B, block=64, threads=128):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), T.bfloat16)
    B: T.Tensor((N, K), T.bfloat16)
    C = T.empty((M, N), T.bfloat16)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=threads) as (bx, by):
        A_shared, B_shared = T.alloc_shared((block, 64), T.bfloat16), T.alloc_shared((block, 64), T.bfloat16)
        C_local = T.alloc_fragment((block, block), T.float32)
        T.clear(C_local)
        for k in T.Pipelined(T.ceildiv(K, 64), num_stages=2):
            T.copy(A[by * block, k * 64], A_shared)
            T.copy(B[bx * block, k * 64], B_shared)
            T.gemm(A_shared, B_shared, C_local, transpose_B=True)
        T.copy(C_local, C[by * block, bx * block])
    return C


def _matrix(rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(rows, columns).to(dtype)


def _add(target: str, roles: bool | None = None) -> None:
    options: dict[str, Any] = {} if roles is None else {"specialize_warps": roles}
    ptxtile.jit(add, target=target, **options)(*(_matrix(33, 36, torch.float32) for _ in range(2)))


def _wgmma() -> None:
    ptxtile.jit(gemm, target="sm_90a")(_matrix(65, 392, torch.bfloat16), _matrix(64, 392, torch.bfloat16))


def _mma(target: str, threads: int) -> None:
    operands = _matrix(33, 392, torch.bfloat16), _matrix(32, 392, torch.bfloat16)
    ptxtile.jit(gemm, target=target)(*operands, block=32, threads=threads)


PROGRAMS = {
    "add, sm_90a": lambda: _add("sm_90a"),
    "add with roles, sm_90a": lambda: _add("sm_90a", roles=True),
    "add, sm_120a": lambda: _add("sm_120a"),
    "gemm, sm_90a": _wgmma,
    "gemm, sm_80": lambda: _mma("sm_80", threads=64),
    "gemm, sm_120a": lambda: _mma("sm_120a", threads=128),
}


@pytest.fixture(params=PROGRAMS)
def call(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Call:
    """What the simulator is called with; every stage of a ring is used three times."""
    found: list[Call] = []
    monkeypatch.setattr(sim, "run", lambda program, tensors, scalars: found.append((program, tensors, scalars)))
    PROGRAMS[request.param]()
    return found[0]


def test_every_mutant_is_reported(call: Call) -> None:
    program, tensors, scalars = call
    report = check(program, tensors, scalars, seeds=SEEDS, strict=True)
    assert report.clean, report
    fates: Counter[Fate] = Counter()
    for mutant in mutants(program):
        verdict = judge(mutant, program, tensors, scalars, SEEDS)
        assert verdict.fate is not Fate.SURVIVED, f"{mutant.what}: {verdict.reason}"
        fates[verdict.fate] += 1
    assert fates[Fate.KILLED] >= 7
    assert fates[Fate.EQUIVALENT] <= fates.total() // 4, "the programs hardly have what they do not need"


def test_a_piece_that_is_needed_is_no_equivalent(call: Call) -> None:
    """Its order is withheld from the unchanged program, and then accesses are missing it."""
    program, tensors, scalars = call
    barrier = next(m for m in mutants(program) if isinstance(m.original, gpu_ops.BarSync) and m.only_orders)
    untouched = Mutant("nothing", program, None, barrier.original, None, True)
    verdict = judge(untouched, program, tensors, scalars, SEEDS)
    assert verdict.fate is Fate.SURVIVED
    assert "its order is needed" in verdict.reason


def test_changes_change_something() -> None:
    """Every kind of change is of a class of operations that the checker follows."""
    from ptxtile.sim.check.hooks import HOOKS
    from ptxtile.sim.named_barriers import EXPANDED

    assert set(CHANGES) <= {*HOOKS, *EXPANDED}


LAST_ARRIVAL = """
    S = allocate_shared(int32, (64,), storage_offset=0, storage_alignment=128)
    full = allocate_barrier(uint64, (1,), storage_alignment=8, storage_offset=1024)
    if tx == 0:
        mbarrier_init(barrier=full, index=0, arrivals=32)
        fence_mbarrier_init()
    bar_sync(id=0, threads=64)
    if tx < 32:
        S[tx] = A[tx]
        mbarrier_arrive(barrier=full, index=0)
    else:
        mbarrier_wait(barrier=full, index=0, parity=0)
        B[tx] = S[tx - 32]
    if tx >= 32:
        mbarrier_arrive(barrier=full, index=0)
"""


def test_an_arrival_that_nobody_waits_for_is_not_needed() -> None:
    """And one that somebody waits for is."""
    tensors = "A = tensor(int32, (64,))\nB = tensor(int32, (64,))"
    program = Pair("race", "", LAST_ARRIVAL, tensors).program(wrong=False)
    values = {name: torch.zeros(64, dtype=torch.int32) for name in ("A", "B")}
    found = {m.what: m for m in mutants(program) if isinstance(m.original, gpu_ops.MbarrierArrive)}
    first, last = (
        judge(found[f"kernel: MbarrierArrive {number} removed"], program, values, {}, SEEDS) for number in (1, 2)
    )
    assert first.fate is Fate.KILLED
    assert last.fate is Fate.EQUIVALENT and "nobody waited for what it arrives at" in last.reason
    needed = Mutant("nothing", program, None, found["kernel: MbarrierArrive 1 removed"].original, None, False)
    verdict = judge(needed, program, values, {}, SEEDS)
    assert verdict.fate is Fate.SURVIVED and "somebody waits" in verdict.reason

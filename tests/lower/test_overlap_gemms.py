"""Gemms that run on over the iterations: which do, how many groups stay in flight, and results against float64."""

from __future__ import annotations

import pytest
import torch

from ptxtile.ir.gpu_ops import MbarrierInit
from ptxtile.ir.program import Program
from ptxtile.ir.tensor_core_ops import WgmmaWaitGroup
from ptxtile.sim.check.run import check
from tests.clusters.simulate import nodes, outputs, policies, specialized
from tests.gemm.kernels import gemm
from tests.lower import ring_kernels
from tests.ptxas import assemble


def pending(program: Program) -> list[int]:
    """Of the waits for products, in program order."""
    return [node.pending for node in nodes(program, WgmmaWaitGroup)]


def random_matrices(count: int, *shape: int) -> list[torch.Tensor]:
    return [torch.randn(*shape).bfloat16() for _ in range(count)]


@pytest.mark.parametrize(("stages", "expected"), [(2, [0]), (3, [0]), (4, [1, 0]), (6, [1, 0])])
def test_one_gemm_runs_on_where_the_ring_is_long(stages, expected):
    kernel = specialized(gemm, "sm_90a", M=64, N=64, K=512, num_stages=stages, transpose_B=True)
    assert pending(kernel.program) == expected


@pytest.mark.parametrize("k", [64, 128, 192, 256, 320, 512])
@pytest.mark.parametrize("between", [False, True])
def test_two_gemms_on_one_tile_run_on_together(k, between):
    kernel = specialized(ring_kernels.gated, "sm_90a", M=64, N=128, K=k, between=between)
    if k > 64:
        assert pending(kernel.program) == [2 if between else 1, 0]
        (count,) = {n.arrivals for n in nodes(kernel.program, MbarrierInit) if n.barrier.name.endswith("free")}
        assert count == 1
    a, b, g = random_matrices(1, 64, k) + random_matrices(2, 128, k)
    wanted = (a.double() @ b.double().T) * (a.double() @ g.double().T)
    for effects in policies([k]):
        found = outputs(kernel.program, effects, A=a, B=b, G=g)["C"]
        assert float((found.double() - wanted).norm() / wanted.norm()) < 1e-6


def test_an_accumulator_that_the_loop_reads_is_waited_for():
    kernel = specialized(ring_kernels.gated, "sm_90a", M=64, N=64, K=320, first_alone=True)
    assert 0 in pending(kernel.program)[:2]
    a, b, g = random_matrices(1, 64, 320) + random_matrices(2, 64, 320)
    wanted = (a.double() @ b.double().T) * (a.double() @ g.double().T)
    for effects in policies([1]):
        found = outputs(kernel.program, effects, A=a, B=b, G=g)["C"]
        assert float((found.double() - wanted).norm() / wanted.norm()) < 1e-6


def test_tiles_of_two_rings_are_released_together():
    kernel = specialized(ring_kernels.two_rings, "sm_90a", M=64, N=64, K=512)
    assert pending(kernel.program) == [1, 0]
    a, b = random_matrices(2, 64, 512)
    index = torch.randperm(8, dtype=torch.int32)
    chosen = b.reshape(64, 8, 64)[:, index.long()].reshape(64, 512)
    wanted = a.double() @ chosen.double().T
    for effects in policies([2]):
        found = outputs(kernel.program, effects, A=a, B=b, index=index)["C"]
        assert float((found.double() - wanted).norm() / wanted.norm()) < 1e-6


def test_an_operand_that_the_loop_rewrites_is_waited_for():
    kernel = specialized(ring_kernels.rewritten_operand, "sm_90a", M=64, N=64, K=512)
    assert set(pending(kernel.program)) == {0}
    a, b = random_matrices(2, 64, 512)
    wanted = 2 * a.double() @ b.double().T
    for effects in policies([3]):
        found = outputs(kernel.program, effects, A=a, B=b)["C"]
        assert float((found.double() - wanted).norm() / wanted.norm()) < 1e-6


@pytest.mark.parametrize("target", ["sm_90a", "sm_120a", "sm_80"])
def test_atomic_operations_find_their_stage(target):
    kernel = specialized(ring_kernels.raised, target, M=64, N=64, K=512)
    a, b = random_matrices(2, 64, 512)
    wanted = (a + 1).double() @ b.double().T
    for effects in policies([4]):
        found = outputs(kernel.program, effects, A=a, B=b)["C"]
        assert float((found.double() - wanted).norm() / wanted.norm()) < 1e-6
    report = check(kernel.program, {"A": a, "B": b, "C": torch.zeros(64, 64)}, {})
    assert not report.findings, report.findings


@pytest.mark.parametrize("function", [ring_kernels.gated, ring_kernels.gemm_and_rows])
def test_it_assembles_without_serialised_products(function):
    kernel = specialized(function, "sm_90a", M=64, N=64, K=512)
    log = assemble(kernel.ptx, "sm_90a")
    assert "C751" not in log and "setmaxnreg" not in log, log

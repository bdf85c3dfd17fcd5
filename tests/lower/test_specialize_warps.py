"""Roles: the seed's form, loops with handshakes, refusals; results from the simulator against torch."""

from __future__ import annotations

import pytest
import torch

from ptxtile import sim, target
from ptxtile.compiler import lower_program
from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.expressions import Expr, Var, as_expr, cast, constant, load
from ptxtile.ir.gpu_ops import (
    BarSync,
    FenceProxyAsync,
    MbarrierArrive,
    MbarrierArriveExpectTx,
    MbarrierInit,
    PrefetchTensorMap,
    SetMaxRegisters,
    TmaLoad,
    TmaStore,
)
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import (
    Allocate,
    For,
    If,
    LoopKind,
    ParallelFor,
    Role,
    Seq,
    Specialized,
    Statement,
    Store,
    seq,
)
from ptxtile.ir.tensor_core_ops import Wgmma
from ptxtile.ir.tile_ops import Copy
from ptxtile.ir.types import float32, int32
from ptxtile.ir.warp_ops import SyncWarp
from ptxtile.lower.options import Options
from tests.clusters.simulate import outputs, policies, specialized
from tests.gemm.kernels import gemm
from tests.lower.ring_kernels import gemm_and_rows
from tests.lower.tile_programs import BX, THREAD, add_program, program, tensor, tile_of, whole

ROLES = Options(specialize_warps=True)


def lowered(traced: Program, arch: str = "sm_90a", options: Options = ROLES) -> Program:
    return lower_program(traced, target.get(arch), options)[0]


def run(traced: Program, arch: str = "sm_90a", options: Options = ROLES, **tensors: torch.Tensor) -> Program:
    result = lowered(traced, arch, options)
    sim.run(result, tensors, {})
    return result


def nodes(of: Program, kind: type) -> list:
    return [node for node in walk(of.kernels[0].body) if isinstance(node, kind)]


@pytest.mark.parametrize("through_shared", [False, True])
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
def test_the_add_kernel_takes_the_seeds_form(arch: str, through_shared: bool):
    a, b = torch.randn(2, 256, 256).unbind()
    c = torch.full((256, 256), float("nan"))
    result = run(add_program(256, 256, through_shared=through_shared), arch, A=a, B=b, C=c)
    assert torch.equal(c, a + b)
    kernel = result.kernels[0]
    assert kernel.threads == 256
    consumer, producer = nodes(result, Role)
    assert (consumer.first_thread, consumer.threads, producer.first_thread, producer.threads) == (0, 128, 128, 128)
    counts = {node.action: node.count for node in nodes(result, SetMaxRegisters)}
    assert counts["dec"] == 24 and 128 * (24 + counts["inc"]) * kernel.min_blocks <= 65_536
    (expect,) = nodes(result, MbarrierArriveExpectTx)
    assert expect.bytes == 2 * 64 * 64 * 4
    assert len(nodes(result, TmaLoad)) == 2 and len(nodes(result, TmaStore)) == 1
    assert len(nodes(result, PrefetchTensorMap)) == 3
    assert nodes(result, FenceProxyAsync)
    assert {node.id for node in nodes(result, BarSync)} == {0, 1}


def test_the_staged_tile_has_memory_of_its_own_where_that_costs_no_block():
    """Then nobody waits for the inputs to be read before it is written; registers admit four blocks in either case."""
    result = lowered(add_program(256, 256, through_shared=True))
    barriers = 8
    assert result.kernels[0].shared_bytes == 3 * 64 * 64 * 4 + barriers
    assert result.kernels[0].min_blocks == 4


@pytest.mark.parametrize(
    ("arch", "threads", "options", "reason"),
    [
        ("sm_80", 128, ROLES, "no TMA"),
        ("sm_90", 128, ROLES, "setmaxnreg"),
        ("sm_90a", 96, ROLES, "warpgroup"),
        ("sm_90a", 1024, ROLES, "no room"),
        ("sm_90a", 128, Options(), "auto"),
        ("sm_90a", 128, Options(specialize_warps=False), "switched off"),
        ("sm_90a", 128, Options(specialize_warps=True, disable_tma=True), "no copy takes the TMA path"),
    ],
)
def test_refusals_are_recorded_with_their_reason(arch: str, threads: int, options: Options, reason: str):
    result = lowered(add_program(128, 128, threads=threads), arch, options)
    assert not nodes(result, Specialized)
    decisions = [why for why in result.why if why.pass_name == "specialize_warps"]
    assert len(decisions) == 1 and reason in decisions[0].reason


@pytest.mark.parametrize(
    ("arch", "k", "reason"),
    [
        ("sm_80", 256, "sm_80 has no TMA"),
        ("sm_90", 256, "sm_90 has no SETMAXNREG"),
        ("sm_90a", 252, "no load of a pipelined loop that feeds tensor cores takes the TMA path"),  # rows of 504 bytes
        ("sm_90a", 256, "loads through TMA"),
    ],
)
def test_pipelined_products_say_why_they_have_roles_or_none(arch: str, k: int, reason: str):
    traced = gemm.specialize(M=128, N=128, K=k, num_stages=2, transpose_B=True).variant.tile_program
    result = lowered(traced, arch, Options())
    (why,) = (why for why in result.why if why.pass_name == "specialize_warps" and why.subject == "gemm_kernel")
    assert reason in why.reason
    assert bool(nodes(result, Specialized)) == (why.decision == "producer and consumers") == ("loads" in reason[:5])


def summing_program(trips: int, use: str = "credit") -> Program:
    """Y[tile] = Σ_k X[k, tile] over ``trips`` tiles, loaded in a serial loop.

    ``use``: 'credit' uses the loaded tile only after its load in the loop; 'before' also reads it before the load.
    """
    x, y = tensor("X", max(trips, 1) * 16, 64), tensor("Y", 16, 64)
    tile, total = (
        allocate("tile", Scope.SHARED, float32, (16, 64)),
        allocate("total", Scope.FRAGMENT, float32, (16, 64)),
    )
    k, i, j = Var("k", int32), Var("i", int32), Var("j", int32)
    add: Statement = ParallelFor((i, j), (16, 64), Store(total, (i, j), load(total, (i, j)) + load(tile, (i, j))))
    body: list[Statement] = [Copy(tile_of(x, (k * 16, as_expr(0)), (16, 64)), whole(tile)), add]
    if use == "before":
        p, q = Var("p", int32), Var("q", int32)
        body.insert(
            0, ParallelFor((p, q), (16, 64), Store(total, (p, q), load(total, (p, q)) + load(tile, (p, q)) * 0.0))
        )
    e, f, g, h = (Var(name, int32) for name in "efgh")
    statements: list[Statement] = [
        Allocate(tile),
        Allocate(total),
        ParallelFor((e, f), (16, 64), Store(total, (e, f), constant(0.0, float32))),
    ]
    if use == "before":
        statements.append(ParallelFor((g, h), (16, 64), Store(tile, (g, h), constant(1.0, float32))))
    statements += [
        For(k, constant(0), constant(trips), 1, LoopKind.SERIAL, Seq(tuple(body))),
        Copy(whole(total), whole(y)),
    ]
    return program(seq(*statements), [x, y], [], (1, 1, 1))


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("use", ["credit", "before"])
@pytest.mark.parametrize("options", [ROLES, Options()])
def test_loads_in_a_loop_wait_for_the_consumers(trips: int, use: str, options: Options):
    x = torch.randn(max(trips, 1) * 16, 64)
    y = torch.full((16, 64), float("nan"))
    result = run(summing_program(trips, use), options=options, X=x, Y=y)
    expected = torch.zeros(16, 64)
    for k in range(trips):
        expected += x[16 * k : 16 * k + 16]
    assert torch.equal(y, expected)
    if options is ROLES and trips > 1:
        assert nodes(result, Specialized) and nodes(result, MbarrierArrive)


def arrivals(of: Program) -> dict[str, int]:
    """Barrier → arrivals that complete its phase, for the barriers of the consumers."""
    return {n.barrier.name: n.arrivals for n in nodes(of, MbarrierInit) if n.barrier.name.endswith("_free")}


def test_a_warp_arrives_once_for_tiles_that_threads_read():
    result = lowered(summing_program(3))
    assert arrivals(result) == {"kernel_free": 4}
    assert nodes(result, SyncWarp)


def test_each_thread_arrives_for_tiles_that_threads_write():
    result = lowered(summing_program(3, "before"))
    assert arrivals(result) == {"kernel_free": 128}
    assert not nodes(result, SyncWarp)


@pytest.mark.parametrize("threads", [128, 256])
@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("stages", [2, 4])
def test_a_warpgroup_arrives_once_for_tiles_of_wgmma(arch: str, threads: int, stages: int):
    kernel = specialized(gemm, arch, M=128, N=128, K=256, threads=threads, num_stages=stages, block_M=threads // 2)
    result = kernel.program
    unit = 128 if arch == "sm_90a" else 32  # mma.sync: the warps read by themselves
    assert arrivals(result) == {"gemm_kernel_free": threads // unit}
    assert bool(nodes(result, SyncWarp)) == (arch != "sm_90a")
    assert bool(nodes(result, Wgmma)) == (arch == "sm_90a")


def test_a_tile_that_wgmma_and_threads_read_is_released_by_warps():
    kernel = specialized(gemm_and_rows, "sm_90a", M=64, N=64, K=192)
    assert arrivals(kernel.program) == {"gemm_and_rows_kernel_free": 4}
    a, b = (torch.randn(64, 192).bfloat16() for _ in range(2))
    for effects in policies([0]):
        found = outputs(kernel.program, effects, A=a, B=b)
        torch.testing.assert_close(found["C"].double(), a.double() @ b.double().T, rtol=1e-5, atol=1e-4)
        torch.testing.assert_close(found["R"].double(), a.double().sum(dim=1), rtol=1e-5, atol=1e-4)


def test_a_position_that_only_consumers_know_refuses_roles():
    """The tile's row is read from a tensor that the kernel writes."""
    x, rows, y = tensor("X", 64, 64), tensor("rows", 4, dtype=int32), tensor("Y", 16, 64)
    tile = allocate("tile", Scope.SHARED, float32, (16, 64))
    zero = as_expr(0)
    start: Expr = load(rows, (zero,)) * 16
    statements: list[Statement] = [
        Allocate(tile),
        If(THREAD.eq(0), Store(rows, (as_expr(1),), constant(5))),
        Copy(tile_of(x, (start, zero), (16, 64)), whole(tile)),
        Copy(whole(tile), whole(y)),
    ]
    result = lowered(program(seq(*statements), [x, rows, y], [], (1, 1, 1)))
    assert not nodes(result, Specialized)
    assert any("rows" in why.reason for why in result.why if why.pass_name == "specialize_warps")


def test_a_position_read_from_a_constant_tensor_goes_to_the_producer():
    x, rows, y = tensor("X", 64, 64), tensor("rows", 4, dtype=int32), tensor("Y", 64, 64)
    tile = allocate("tile", Scope.SHARED, float32, (16, 64))
    zero = as_expr(0)
    start: Expr = cast(load(rows, (BX,)), int32) * 16
    statements: list[Statement] = [
        Allocate(tile),
        Copy(tile_of(x, (start, zero), (16, 64)), whole(tile)),
        Copy(whole(tile), tile_of(y, (BX * 16, zero), (16, 64))),
    ]
    tensors = {"X": torch.randn(64, 64), "rows": torch.tensor([2, 0, 3, 1], dtype=torch.int32)}
    y_out = torch.full((64, 64), float("nan"))
    result = run(program(seq(*statements), [x, rows, y], [], (4, 1, 1)), **tensors, Y=y_out)
    assert nodes(result, Specialized)
    assert torch.equal(y_out, tensors["X"].reshape(4, 16, 64)[tensors["rows"].long()].reshape(64, 64))


def test_groups_stay_apart_when_only_consumers_work_between_them():
    """Load X, fill the second tile by hand, load Y into it: two loads in a row for the producer, but two groups."""
    x, y, out = tensor("X", 16, 64), tensor("Y", 16, 64), tensor("out", 16, 64)
    first, second = (allocate(name, Scope.SHARED, float32, (16, 64)) for name in ("first", "second"))
    i, j, k, m = (Var(name, int32) for name in "ijkm")
    statements: list[Statement] = [
        Allocate(first),
        Allocate(second),
        Copy(whole(x), whole(first)),
        ParallelFor((i, j), (16, 64), Store(second, (i, j), constant(1.0, float32))),
        Copy(whole(y), whole(second)),
        ParallelFor((k, m), (16, 64), Store(out, (k, m), load(first, (k, m)) + load(second, (k, m)))),
    ]
    a, b = torch.randn(2, 16, 64).unbind()
    found = torch.full((16, 64), float("nan"))
    result = run(program(seq(*statements), [x, y, out], [], (1, 1, 1)), X=a, Y=b, out=found)
    assert nodes(result, Specialized)
    assert torch.equal(found, a + b)

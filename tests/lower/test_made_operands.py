"""Gemms that run while the consumers make the next operand: versions, waits, releases, and results against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from ptxtile.ir.cluster_ops import MbarrierArriveRemote
from ptxtile.ir.expressions import Binary, Const, Var
from ptxtile.ir.gpu_ops import BarSync
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import buffers_of, copy_with, map_children, walk
from ptxtile.ir.statements import Allocate, For, LoopKind, Seq, Statement
from ptxtile.ir.tensor_core_ops import Wgmma, WgmmaWaitGroup
from ptxtile.kernel import JITKernel
from ptxtile.sim.check.run import check
from tests.clusters.simulate import nodes, outputs, policies, specialized
from tests.lower import made_kernels
from tests.lower.cluster_referee import cluster_races
from tests.lower.test_ring_races import Change
from tests.ptxas import assemble

TRIPS = (0, 1, 2, 3, 6)
FORMS: list[dict[str, Any]] = [
    {},
    {"through": "direct"},
    {"left": False},
    {"blocks": 1},
    {"blocks": 1, "left": False, "through": "direct"},
    {"threads": 256, "block_M": 128},
    {"num_stages": 4},
    {"through": "registers"},
    {"through": "late", "threads": 256, "block_M": 128},
    {"through": "late", "num_stages": 4, "blocks": 1},
    {"through": "late", "block_M": 128},
]


def name(value: Any) -> str:
    return "-".join(map(str, value.values())) or "plain" if isinstance(value, dict) else str(value)


def scaled(trips: int = 8, **options: Any) -> JITKernel:
    first = {"first": 64} if trips == 0 else {}
    return specialized(made_kernels.scaled, "sm_90a", **{"M": 128, "N": 64, "K": 64 * max(trips, 1)} | first | options)


def consumers_loop(program: Program) -> tuple[Statement, ...]:
    """The statements of the innermost serial loop around the multiplications."""
    loops = [
        node
        for node in nodes(program, For)
        if node.kind is not LoopKind.UNROLLED and any(isinstance(inner, Wgmma) for inner in walk(node.body))
    ]
    assert isinstance(loops[-1].body, Seq)
    return loops[-1].body.statements


def positions(statements: tuple[Statement, ...], kind: type) -> list[int]:
    return [k for k, statement in enumerate(statements) if isinstance(statement, kind)]


def reasons(kernel: JITKernel, decision: str) -> list[str]:
    return [w.reason for w in kernel.why if w.pass_name == "specialize_warps" and w.decision == decision]


def shape_of(program: Program, tile: str) -> tuple[int, ...]:
    (found,) = {node.buffer.static_shape for node in nodes(program, Allocate) if node.buffer.name == tile}
    return found


# --- what it looks like ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [o for o in FORMS if o.get("through") not in ("registers", "late")], ids=name)
def test_a_tile_that_consumers_make_has_two_versions_and_an_iteration_one_barrier(options):
    kernel = scaled(**options)
    assert shape_of(kernel.program, "made")[0] == 2
    body = consumers_loop(kernel.program)
    (wait,), (barrier,), products = (positions(body, kind) for kind in (WgmmaWaitGroup, BarSync, Wgmma))
    assert wait < barrier < products[0]
    assert [node.pending for node in nodes(kernel.program, WgmmaWaitGroup)] == [0, 0]
    assert len(reasons(kernel, "two versions")) == 1
    (reason,) = reasons(kernel, "waited for in the next iteration")
    assert reason.startswith("in front of the next one")
    assert not [why for why in kernel.why if why.decision == "left as it is"]


def uses(statements: tuple[Statement, ...], buffer: str) -> list[int]:
    return [
        k for k, s in enumerate(statements) for node in walk(s)
        if buffer in {found.name for found in buffers_of(node)} and not isinstance(node, (Wgmma, WgmmaWaitGroup))
    ]  # fmt: skip


@pytest.mark.parametrize("through", ["registers", "late"])
def test_an_operand_in_registers_is_copied_behind_the_wait(through):
    kernel = scaled(through=through)
    body = consumers_loop(kernel.program)
    (wait,), products = positions(body, WgmmaWaitGroup), positions(body, Wgmma)
    assert min(uses(body, "made_local")) < wait < min(uses(body, "made_local_multiplied")) < products[0]
    assert all(node.a is not None and node.a.name == "made_local_multiplied" for node in nodes(kernel.program, Wgmma))
    waiting = body[wait]
    assert isinstance(waiting, WgmmaWaitGroup) and [b.name for b in waiting.fragments] == ["made_local_multiplied"]
    assert not positions(body, BarSync)
    assert not [why for why in kernel.why if why.decision == "goes through shared memory"]
    assert len(reasons(kernel, "two versions")) == 1


def test_without_registers_for_both_an_operand_is_written_behind_the_wait():
    kernel = scaled(through="late", block_M=128)
    body = consumers_loop(kernel.program)
    (wait,), products = positions(body, WgmmaWaitGroup), positions(body, Wgmma)
    assert min(uses(body, "wide")) < wait < min(uses(body, "made_local")) < products[0]
    (reason,) = reasons(kernel, "waited for in the next iteration")
    assert "made_local has one version: a thread would need about 253 registers, and 240 are to be had" in reason
    log = assemble(kernel.ptx, "sm_90a")
    assert "C75" not in log and "0 bytes spill stores" in log, log


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"after": True}, "it is used outside of the loop"),
        ({"through": "direct", "rows": 32}, "not all of it is surely written before it is read in each iteration"),
        ({"padding": 172_000}, "a second version takes 8192 bytes of shared memory, and"),
        ({"padding": 54_000}, "with a second version a multiprocessor holds 1 instead of 2 CTAs"),
    ],
    ids=name,
)
def test_a_tile_that_cannot_have_two_versions_is_written_behind_the_wait(options, reason):
    kernel = scaled(**options)
    assert len(shape_of(kernel.program, "made")) == 2
    assert not reasons(kernel, "two versions")
    (found,) = reasons(kernel, "waited for in the next iteration")
    assert found.startswith("in front of what disturbs it") and f"made has one version: {reason}" in found
    body = consumers_loop(kernel.program)
    (wait,), barriers, products = (positions(body, kind) for kind in (WgmmaWaitGroup, BarSync, Wgmma))
    assert wait < barriers[0] < products[0]


def test_a_short_ring_has_no_stage_to_spare():
    kernel = scaled(num_stages=2)
    body = consumers_loop(kernel.program)
    assert positions(body, WgmmaWaitGroup)[0] > positions(body, Wgmma)[-1]
    reason = "a ring of 2 stages has none to spare: 2 in use and 1 to load ahead are needed"
    assert reasons(kernel, "waited for at once") == [reason]


def test_registers_that_do_not_suffice_are_not_kept():
    kernel = scaled(through="late", N=128, block_M=128, block_N=128, block_K=128)
    (reason,) = reasons(kernel, "waited for at once")
    assert reason.startswith("a thread would need about")
    assert "0 bytes spill stores" in assemble(kernel.ptx, "sm_90a")


@pytest.mark.parametrize("target", ["sm_80", "sm_120a"])
def test_without_wgmma_nothing_has_versions(target):
    kernel = specialized(made_kernels.scaled, target, M=64, N=64, K=256)
    assert shape_of(kernel.program, "made") == (64, 64)
    assert not reasons(kernel, "two versions")


# --- what it computes ------------------------------------------------------------------------------------------------


def arguments(trips: int, M: int = 128, N: int = 64) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Inputs, and the product in float64 of what the threads make in bfloat16."""
    K = 64 * max(trips, 1)
    a, b, s = torch.randn(M, K).bfloat16(), torch.randn(N, K).bfloat16(), torch.randn(M)
    first = 64 if trips == 0 else 0
    made = (a.float() * s[:, None]).bfloat16()[:, first:]
    return {"A": a, "B": b, "S": s}, made.double() @ b[:, first:].double().T


@pytest.mark.parametrize("trips", TRIPS)
@pytest.mark.parametrize("options", FORMS, ids=name)
def test_results_and_races(options, trips):
    kernel = scaled(trips, **options)
    inputs, wanted = arguments(trips)
    for effects in policies([trips]):
        found = outputs(kernel.program, effects, **inputs)["C"]
        assert float((found.double() - wanted).norm()) <= 1e-6 * float(wanted.norm())
    report = check(kernel.program, {**inputs, "C": torch.zeros(128, 64)}, {}, seeds=range(3), strict=True)
    assert not report.findings, report.findings


@pytest.mark.parametrize("trips", [2, 3, 7])
def test_all_blocks_of_a_cluster_release_late(trips):
    kernel = specialized(made_kernels.scaled_in_cluster, "sm_90a", M=64, N=128, K=64 * trips)
    assert len(reasons(kernel, "two versions")) == 1
    assert nodes(kernel.program, MbarrierArriveRemote)
    inputs, wanted = arguments(trips, M=64, N=128)
    for effects in policies([trips]):
        found = outputs(kernel.program, effects, **inputs)["C"]
        assert float((found.double() - wanted).norm() / wanted.norm()) < 1e-6
    report = check(kernel.program, {**inputs, "C": torch.zeros(64, 128)}, {}, seeds=range(3), strict=True)
    assert not report.findings, report.findings


@pytest.mark.parametrize("options", [{}, {"left": False, "through": "direct"}, {"through": "registers"}], ids=name)
def test_the_referee_finds_no_races(options):
    kernel = specialized(made_kernels.scaled, "sm_90a", M=64, N=64, K=96, block_K=32, **options)
    assert not cluster_races(kernel.program, 1)


def changed(program: Program, kind: type, make: Any) -> Program:
    """``program`` with each node of a kind in its pipelined loop replaced."""
    loop = next(node for node in nodes(program, For) if any(s is consumers_loop(program)[0] for s in walk(node.body)))
    made = Change(kind, make).visit(loop)
    assert made is not loop

    def replaced(node: Any) -> Any:
        return made if node is loop else map_children(node, replaced)

    kernel = program.kernels[0]
    return replace(program, kernels=(replace(kernel, body=replaced(kernel.body)),))


def one_version(node: Any) -> Any:
    if isinstance(node, Binary) and node.operator == "and" and isinstance(node.left, Var) and node.left.name == "k":
        return Const(0, node.dtype)
    return map_children(node, one_version)


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        pytest.param(
            WgmmaWaitGroup, lambda node: copy_with(node, {"pending": 1}), id="the last product is not waited for"
        ),
        pytest.param(BarSync, lambda node: Seq(()), id="no barrier"),
        pytest.param(Binary, one_version, id="one version"),
    ],
)
def test_weaker_loops_are_reported(kind, make):
    program = scaled(4).program
    inputs, _ = arguments(4)
    weaker = changed(program, kind, make)
    report = check(weaker, {**inputs, "C": torch.zeros(128, 64)}, {}, seeds=range(4))
    assert report.findings


# --- two products ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_stages": 4, "rescaled": True},
        {"through": "shared"},
        {"through": "shared", "rescaled": True, "block": 128, "threads": 256},
    ],
    ids=name,
)
@pytest.mark.parametrize("blocks", [2, 5])
def test_the_second_product_is_waited_for_with_the_next_first_one(options, blocks):
    kernel = specialized(made_kernels.two_products, "sm_90a", M=128, N=64 * blocks, D=64, **options)
    (reason,) = reasons(kernel, "waited for in the next iteration")
    assert reason.startswith("together with the gemm")
    q, k, v = (torch.randn(rows, 64).bfloat16() for rows in (128, 64 * blocks, 64 * blocks))
    p = (q.float() @ k.float().T * 0.125).bfloat16().double()
    factor = 0.5 if options.get("rescaled") else 1.0
    parts = zip(p.split(64, 1), v.double().split(64), strict=True)
    wanted = sum(part @ rows * factor ** (blocks - 1 - i) for i, (part, rows) in enumerate(parts))
    assert isinstance(wanted, torch.Tensor)
    for effects in policies([blocks]):
        found = outputs(kernel.program, effects, Q=q, K=k, V=v)["O"]
        assert float((found.double() - wanted).norm() / wanted.norm()) < 1e-3  # P may round differently
    tensors = {"Q": q, "K": k, "V": v, "O": torch.zeros(128, 64)}
    report = check(kernel.program, tensors, {}, seeds=range(3), strict=True)
    assert not report.findings, report.findings
    log = assemble(kernel.ptx, "sm_90a")
    assert "C75" not in log and "0 bytes spill stores" in log, log


def test_two_products_in_a_short_ring_are_waited_for_at_once():
    kernel = specialized(made_kernels.two_products, "sm_90a", M=128, N=320, D=64, num_stages=2)
    reason = "a ring of 2 stages has none to spare: 1 in use and 2 to load ahead are needed"
    assert reasons(kernel, "waited for at once") == [reason]


@pytest.mark.parametrize("options", FORMS, ids=name)
def test_it_assembles_without_serialised_products(options):
    log = assemble(scaled(**options).ptx, "sm_90a")
    assert "C75" not in log and "0 bytes spill stores" in log and "setmaxnreg" not in log, log

"""Several products in an iteration: what waits for what, and results, races and ptxas for random plans of them."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import For, LoopKind, Seq, Statement
from ptxtile.ir.tensor_core_ops import Wgmma, WgmmaCommitGroup, WgmmaFence, WgmmaWaitGroup
from ptxtile.kernel import JITKernel
from ptxtile.sim.check.run import check
from tests.clusters.simulate import nodes, outputs, policies, specialized
from tests.lower import product_kernels
from tests.lower.product_kernels import Product
from tests.ptxas import assemble

BLOCK, DEPTH = 64, 32
MOST_TRIPS = 6


def compiled(plan: tuple[Product, ...], **options: Any) -> JITKernel:
    sizes = {"P": len(plan), "M": options.get("block_M", BLOCK), "N": BLOCK, "K": DEPTH * MOST_TRIPS}
    return specialized(product_kernels.products, "sm_90a", plan=plan, **sizes, **options)


def arguments(plan: tuple[Product, ...], rows: int = BLOCK) -> dict[str, torch.Tensor]:
    """Small integers, whose sums are exact in any order."""
    a, b = (torch.randint(-4, 5, (len(plan), count, DEPTH * MOST_TRIPS)).to(torch.bfloat16) for count in (rows, BLOCK))
    return {"A": a, "B": b}


def wanted(plan: tuple[Product, ...], inputs: dict[str, torch.Tensor], trips: int) -> torch.Tensor:
    a, b = inputs["A"].double()[..., : trips * DEPTH], inputs["B"].double()[..., : trips * DEPTH]
    sums = torch.zeros(1 + max(product.accumulator for product in plan), a.shape[1], b.shape[1], dtype=torch.float64)
    for p, product in enumerate(plan):
        left = {"own": a[p], "common": a[0], "made": 2 * a[p]}[product.left]
        sums[product.accumulator] += left @ b[p].T
    return sums


def require_right(kernel: JITKernel, plan: tuple[Product, ...], trips: range | tuple[int, ...], rows: int) -> None:
    """Results in the simulator, and no finding of the checker, for each of the numbers of iterations."""
    inputs = arguments(plan, rows)
    for count in trips:
        expected, rounds = wanted(plan, inputs, count), torch.tensor([count], dtype=torch.int32)
        for effects in policies([count]):
            found = outputs(kernel.program, effects, **inputs, rounds=rounds)
            assert torch.equal(found["C"].double(), expected), (count, effects)
            assert int(found["counted"]) == count * sum(product.scalar for product in plan)
        tensors = {**inputs, "rounds": rounds, "C": torch.zeros(expected.shape), "counted": torch.zeros(1).int()}
        report = check(kernel.program, tensors, {}, seeds=range(2), strict=True)
        assert not report.findings, report.findings


def consumers_loop(program: Program) -> tuple[Statement, ...]:
    (loop,) = (
        node
        for node in nodes(program, For)
        if node.kind is not LoopKind.UNROLLED and any(isinstance(inner, Wgmma) for inner in walk(node.body))
    )
    assert isinstance(loop.body, Seq)
    return loop.body.statements


def kinds(program: Program) -> list[str]:
    """What the loop does with wgmma, in order: fences, commits, waits with their counts, and accumulators."""
    result: list[str] = []
    for statement in consumers_loop(program):
        match statement:
            case WgmmaFence():
                result.append("fence")
            case WgmmaCommitGroup():
                result.append("commit")
            case WgmmaWaitGroup(pending):
                result.append(f"wait {pending}")
            case Wgmma(accumulator) if result[-1:] != [accumulator.storage.name]:
                result.append(accumulator.storage.name)
    return result


# --- what it looks like ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("stages", "wait"), [(1, 0), (2, 0), (3, 0), (4, 1), (5, 1)])
@pytest.mark.parametrize("accumulators", [(0, 1), (0, 0), (0, 1, 0, 2)])
def test_products_that_share_a_tile_are_one_group(accumulators, stages, wait):
    plan = tuple(Product(number, "common" if p else "own") for p, number in enumerate(accumulators))
    found = kinds(compiled(plan, num_stages=stages).program)
    assert (found[0], found[-2:]) == ("fence", ["commit", f"wait {wait}"])
    assert not {"fence", "commit"} & set(found[1:-2]) and len(set(found[1:-2])) == len(set(accumulators))


@pytest.mark.parametrize(("accumulators", "waits"), [((0, 1), 2), ((0, 0), 1), ((0, 1, 0), 1)])
def test_several_warpgroups_fill_each_others_gaps(accumulators, waits):
    plan = tuple(Product(number, "common" if p else "own") for p, number in enumerate(accumulators))
    found = kinds(compiled(plan, num_stages=3, threads=256, block_M=128).program)
    assert [kind for kind in found if "wait" in kind] == ["wait 0"] * waits
    in_flight = kinds(compiled(plan, num_stages=4, threads=256, block_M=128).program)
    assert [kind for kind in in_flight if "wait" in kind] == ["wait 1"]


def test_operands_in_registers_are_multiplied_in_the_same_group():
    plan = (Product(0, "made"), Product(1), Product(0, "made"))
    found = kinds(compiled(plan, num_stages=2).program)
    assert [kind for kind in found if kind in ("fence", "commit") or "wait" in kind] == ["fence", "commit", "wait 0"]
    waits = nodes(compiled(plan, num_stages=2).program, WgmmaWaitGroup)
    assert [len(wait.fragments) for wait in waits] == [2]


@pytest.mark.parametrize(("stages", "waits"), [(2, ["wait 1", "wait 0"]), (4, ["wait 2", "wait 2"])])
def test_each_ring_is_released_when_its_product_is_done(stages, waits):
    """Between the two stands the wait for the tiles of the second, so that they are groups of their own."""
    found = kinds(compiled((Product(0), Product(1, late=True)), num_stages=stages).program)
    groups = [kind for kind in found if kind in ("fence", "commit")]
    assert groups == ["fence", "commit"] * 2
    assert [kind for kind in found if "wait" in kind] == waits
    if stages == 2:
        assert found[-2:] == waits


@pytest.mark.parametrize("count", [5, 9])
def test_no_more_groups_are_pending_than_a_wait_can_count(count):
    plan = (Product(0), *(Product(number % 2, late=True) for number in range(count)))
    kernel = compiled(plan, num_stages=2)
    assert kinds(kernel.program).count("commit") == 1 + count
    found = [wait.pending for wait in nodes(kernel.program, WgmmaWaitGroup)]
    assert found == ([5, 4, 3, 2, 1, 0] if count == 5 else [6, 5, 4, 3, 2, 1, 0, 2, 1, 0])
    require_right(kernel, plan, (1, 3), BLOCK)
    log = assemble(kernel.ptx, "sm_90a")
    assert "C75" not in log, log


def test_a_run_is_recorded():
    kernel = compiled((Product(0), Product(1, "common")), num_stages=2)
    (why,) = (why for why in kernel.why if why.pass_name == "join_gemms")
    assert why.decision == "one wait behind them" and why.subject.count("gemm ") == 2


@pytest.mark.parametrize(
    ("stages", "decision", "reason"),
    [
        (3, "waited for at once", "a ring of 3 stages has none to spare: 2 in use and 2 to load ahead are needed"),
        (4, "waited for in the next iteration", "behind the next ones; a ring of 4 stages has those that it takes"),
    ],
)
def test_how_long_rings_must_be_is_recorded(stages, decision, reason):
    kernel = compiled((Product(0), Product(1, "common")), num_stages=stages)
    (why,) = (why for why in kernel.why if why.pass_name == "specialize_warps" and why.subject.startswith("gemm "))
    assert (why.decision, why.reason) == (decision, reason)


@pytest.mark.parametrize("stages", [2, 4])
def test_instructions_of_two_kinds_in_one_accumulator_wait_for_each_other(stages):
    kernel = specialized(product_kernels.two_types, "sm_90a", M=64, N=64, K=192, num_stages=stages)
    assert [kind for kind in kinds(kernel.program) if "wait" in kind] == ["wait 0", "wait 0"]
    a, b = (torch.randint(-4, 5, (64, 192)).bfloat16() for _ in range(2))
    d, e = (torch.randint(-4, 5, (64, 192)).half() for _ in range(2))
    for effects in policies([stages]):
        found = outputs(kernel.program, effects, A=a, B=b, D=d, E=e)["C"]
        assert torch.equal(found.double(), a.double() @ b.double().T + d.double() @ e.double().T)


@pytest.mark.parametrize("stages", [2, 3, 4])
def test_sums_that_are_multiplied_again_are_waited_for(stages):
    kernel = specialized(product_kernels.chained, "sm_90a", M=64, N=320, D=64, num_stages=stages)
    q, k, v = torch.randint(-1, 2, (64, 64)).half(), *(torch.randint(-1, 2, (320, 64)).half() for _ in range(2))
    expected = q.double() @ k.double().T @ v.double()
    for effects in policies([stages]):
        assert torch.equal(outputs(kernel.program, effects, Q=q, K=k, V=v)["O"].double(), expected)
    tensors = {"Q": q, "K": k, "V": v, "O": torch.zeros(64, 64)}
    report = check(kernel.program, tensors, {}, seeds=range(3), strict=True)
    assert not report.findings, report.findings
    log = assemble(kernel.ptx, "sm_90a")
    assert "C75" not in log and "0 bytes spill stores" in log, log


@pytest.mark.parametrize("stages", [2, 3])
def test_a_product_in_flight_is_waited_for_with_all_of_the_next_run(stages):
    kernel = specialized(product_kernels.two_scores, "sm_90a", M=64, N=320, D=64, num_stages=stages)
    found = kinds(kernel.program)
    scores = ["fence", "S", "R", "commit", "wait 0"]
    assert found == scores + ["fence", "total", "commit"] + (["wait 0"] if stages == 2 else [])
    q, k, l, v = torch.randint(-1, 2, (64, 64)).bfloat16(), *(torch.randint(-1, 2, (320, 64)).bfloat16() for _ in "klv")
    p = ((q.float() @ k.float().T) * (q.float() @ l.float().T)).bfloat16()
    for effects in policies([stages]):
        got = outputs(kernel.program, effects, Q=q, K=k, L=l, V=v)["O"]
        assert torch.equal(got.double(), p.double() @ v.double())
    tensors = {"Q": q, "K": k, "L": l, "V": v, "O": torch.zeros(64, 64)}
    report = check(kernel.program, tensors, {}, seeds=range(3), strict=True)
    assert not report.findings, report.findings


@pytest.mark.parametrize(("handed_over", "waits"), [(False, [0]), (True, [0, 0])])
def test_without_a_loop_and_with_a_barrier_of_the_users(handed_over, waits):
    kernel = specialized(product_kernels.straight, "sm_90a", M=64, N=64, K=64, handed_over=handed_over)
    assert [wait.pending for wait in nodes(kernel.program, WgmmaWaitGroup)] == waits
    a, b, d = (torch.randint(-4, 5, (64, 64)).bfloat16() for _ in range(3))
    for effects in policies([1]):
        found = outputs(kernel.program, effects, A=a, B=b, D=d)["C"].double()
        assert torch.equal(found, torch.stack([a.double() @ b.double().T, a.double() @ d.double().T]))


# --- random plans ----------------------------------------------------------------------------------------------------


def random_plan(draw: random.Random) -> tuple[Product, ...]:
    def product(number: int) -> Product:
        left = draw.choice(["own", "own", "common", "made"]) if number else draw.choice(["own", "made"])
        return Product(draw.randrange(3), left, draw.random() < 0.25, draw.random() < 0.2)

    first, *others = (product(number) for number in range(draw.randint(1, 4)))
    return (replace(first, late=False), *others)


@pytest.mark.parametrize("number", range(24))
def test_random_products(number):
    draw = random.Random(number + torch.initial_seed())
    plan, stages = random_plan(draw), draw.randint(1, 5)
    options = draw.choice([{}, {}, {"threads": 256, "block_M": 128}]) if stages * len(plan) < 16 else {}
    kernel = compiled(plan, num_stages=stages, **options)
    require_right(kernel, plan, range(stages + 2), options.get("block_M", BLOCK))
    log = assemble(kernel.ptx, "sm_90a")
    assert "C75" not in log and "0 bytes spill stores" in log, (plan, stages, log)

"""Epilogues against float64 in the simulator: through staging tiles, stmatrix and TMA, or directly, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from ptxtile import sim
from ptxtile import target as targets
from ptxtile.compiler import lower_program
from ptxtile.errors import SimulationError
from ptxtile.ir import box_positions
from ptxtile.ir.gpu_ops import BarSync, BulkCommitGroup, BulkWaitGroup, FenceProxyAsync, TmaStore
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import Rewriter, walk
from ptxtile.ir.statements import For, If, Role, Seq, Statement, Store
from ptxtile.ir.tensor_core_ops import StoreMatrix
from ptxtile.lower.options import Options
from ptxtile.nvvm import emit
from ptxtile.sim.async_effects import ImmediateEffects
from ptxtile.sim.check.run import check
from ptxtile.sim.delayed_effects import DelayedEffects
from tests import ptxas
from tests.gemm import epilogue_kernels as kernels

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4, "int32": 0.0}
"""Half a unit in the last place of 1; the smallest float8 is 2⁻⁹."""


def lowered(kernel: Any, arch: str, **arguments: Any) -> Program:
    traced = kernel.specialize(**arguments).variant.tile_program
    return lower_program(traced, targets.get(arch), Options())[0]


def nodes(program: Program, *kinds: type) -> list[Any]:
    return [node for node in walk(program.kernels[0].body) if isinstance(node, kinds)]


def reasons(program: Program) -> list[tuple[str, str]]:
    return [(why.decision, why.reason) for why in program.why if why.pass_name == "stage_epilogues"]


def operands(m: int, n: int, k: int, generator: torch.Generator, dtype: str = "bfloat16") -> list[torch.Tensor]:
    if dtype == "int8":
        return [torch.randint(-100, 100, (rows, k), generator=generator, dtype=torch.int8) for rows in (m, n)]
    return [torch.randn(rows, k, generator=generator).to(getattr(torch, dtype)) for rows in (m, n)]


def is_right(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor, out: str) -> bool:
    """Whether each element is within the roundings of K products in float32 and of the result."""
    exact, magnitude = a.double() @ b.double().mT, a.double().abs() @ b.double().abs().mT
    bound = UNIT[out] * exact.abs() + a.shape[-1] * 2.0**-24 * magnitude + (2.0**-9 if "float8" in out else 0.0)
    return bool(((found.double() - exact).abs() <= bound).all())


def poisoned(out: str, *shape: int) -> torch.Tensor:
    dtype = getattr(torch, out)
    return torch.full(shape, -7, dtype=dtype) if out == "int32" else torch.full(shape, float("nan")).to(dtype)


def run(program: Program, tensors: dict[str, torch.Tensor]) -> None:
    """Once with effects at once, once with all of them as late as the waits allow."""
    outputs = {name: tensor.clone() for name, tensor in tensors.items()}
    sim.run(program, outputs, {}, effects=ImmediateEffects)
    sim.run(program, tensors, {}, effects=DelayedEffects)
    assert all(torch.equal(tensors[name].view(torch.uint8), outputs[name].view(torch.uint8)) for name in tensors)


@pytest.fixture
def generator(random_generator) -> torch.Generator:
    return torch.Generator().manual_seed(int(random_generator.integers(2**31)))


# --- from the accumulator --------------------------------------------------------------------------------------------

TILES = (
    # M, N, threads: one to four warpgroups (or as many warps), side by side and below each other, odd widths
    (64, 64, 128), (64, 96, 128), (128, 80, 256), (192, 64, 384), (256, 128, 256), (64, 256, 256), (128, 256, 512),
    (128, 192, 256),
)  # fmt: skip


@pytest.mark.parametrize("tile", TILES, ids=lambda tile: "x".join(map(str, tile)))
@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
def test_tiles_with_tails(arch, tile, generator):
    m, n, threads = tile
    size = (m + m // 2 + 3, n + n // 2 + 8, 72)
    program = lowered(
        kernels.plain, arch, block_M=m, block_N=n, block_K=32, threads=threads, **dict(zip("MNK", size, strict=True))
    )
    a, b = operands(*size, generator)
    tensors = {"A": a, "B": b, "C": poisoned("bfloat16", *size[:2])}
    run(program, tensors)
    assert is_right(tensors["C"], a, b, "bfloat16")
    assert nodes(program, StoreMatrix) and nodes(program, TmaStore)
    assert not [store for store in nodes(program, Store) if store.buffer.name == "C"]


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("out", ["bfloat16", "float16", "float32", "float8_e4m3fn"])
def test_dtypes(arch, out, generator):
    program = lowered(kernels.plain, arch, block_M=64, out=out, M=100, N=144, K=72, block_K=32)
    a, b = operands(100, 144, 72, generator)
    tensors = {"A": a, "B": b / 8, "C": poisoned(out, 100, 144)}
    run(program, tensors)
    assert is_right(tensors["C"], a, b / 8, out)
    assert bool(nodes(program, StoreMatrix)) == (out in ("bfloat16", "float16")) and nodes(program, TmaStore)


def test_integers_leave_through_the_same_door(generator):
    arguments = {"dtype": "int8", "accum": "int32", "out": "int32", "block_M": 64}
    program = lowered(kernels.plain, "sm_90a", M=100, N=136, K=80, **arguments)
    a, b = operands(100, 136, 80, generator, "int8")
    tensors = {"A": a, "B": b, "C": poisoned("int32", 100, 136)}
    run(program, tensors)
    assert is_right(tensors["C"], a, b, "int32") and nodes(program, TmaStore)


@pytest.mark.parametrize(
    ("arch", "arguments"),
    [
        ("sm_90a", {}),
        ("sm_90a", {"stages": 3, "block_N": 128}),
        ("sm_90a", {"block_M": 256, "block_N": 128}),
        ("sm_90a", {"block_M": 64, "threads": 256}),
        ("sm_90a", {"block_M": 192, "block_N": 96, "threads": 384}),
        ("sm_90a", {"out": "float32"}),
        ("sm_120a", {"block_N": 128, "stages": 2}),
        ("sm_120a", {"block_M": 64, "block_N": 96, "stages": 2, "threads": 128}),
    ],
)
def test_persistent_loops(arch, arguments, generator):
    """Five or more tiles on two blocks, so that staging tiles are written again while they may still be read."""
    size = (300, 520, 136)
    program = lowered(kernels.persistent, arch, M=size[0], N=size[1], K=size[2], **arguments)
    a, b = operands(*size, generator)
    out = arguments.get("out", "bfloat16")
    tensors = {"A": a, "B": b, "C": poisoned(out, *size[:2])}
    run(program, tensors)
    assert is_right(tensors["C"], a, b, out) and nodes(program, TmaStore)


def test_two_epilogues_of_one_kernel(generator):
    for arch in ("sm_90a", "sm_120a"):
        program = lowered(kernels.two_outputs, arch, M=200, N=136, K=72, block_K=32)
        a, b = operands(200, 136, 72, generator)
        bias = torch.randn(136, generator=generator)
        tensors = {"A": a, "B": b, "bias": bias}
        tensors |= {"C": poisoned("float32", 200, 136), "D": poisoned("bfloat16", 200, 136)}
        run(program, tensors)
        exact = a.double() @ b.double().T + bias.double()
        assert torch.allclose(tensors["C"].double(), exact, rtol=1e-5, atol=1e-4)
        assert torch.equal(tensors["D"], tensors["C"].clamp(min=0).bfloat16())
        assert [decision for decision, _ in reasons(program)] == ["tma_store", "tma_store"]


def test_a_tile_of_a_stack_of_matrices(generator):
    program = lowered(kernels.batched, "sm_90a", Z=3, M=72, N=104, K=64)
    a, b = (torch.randn(3, rows, 64, generator=generator).half() for rows in (72, 104))
    tensors = {"A": a, "B": b, "C": poisoned("float16", 3, 72, 104)}
    run(program, tensors)
    assert is_right(tensors["C"], a, b, "float16") and nodes(program, TmaStore)


# --- through the user's own tile -------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_90a", "sm_120a"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_tile_of_the_user(arch, transposed, generator):
    """stmatrix, transposed where the tile is; the wait comes where the tile is written again, and at the end."""
    arguments = {"block_K": 32, "transposed": transposed, "M": 300, "N": 264, "K": 72}
    program = lowered(kernels.through_shared, arch, **arguments)
    a, b = operands(300, 264, 72, generator)
    tensors = {"A": a, "B": b, "C": poisoned("bfloat16", *((264, 300) if transposed else (300, 264)))}
    if transposed:  # rows of 300 elements are no multiple of 16 bytes, and the tile is stored by all threads
        program = lowered(kernels.through_shared, arch, **(arguments | {"M": 304}))
        a, b = operands(304, 264, 72, generator)
        tensors = {"A": a, "B": b, "C": poisoned("bfloat16", 264, 304)}
    run(program, tensors)
    assert is_right(tensors["C"].T if transposed else tensors["C"], a, b, "bfloat16")
    stores = nodes(program, StoreMatrix)
    assert stores and all(store.transposed == transposed and store.count == 4 for store in stores)
    assert nodes(program, TmaStore)


# --- where it cannot be done -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arch", "arguments", "reason"),
    [
        ("sm_90a", {"N": 121, "K": 64}, "multiple of 16 bytes"),
        ("sm_90a", {"N": 264, "K": 320, "block_M": 192, "stages": 4, "threads": 384}, "no staging tile fits"),
    ],
)
def test_direct_stores_say_why(arch, arguments, reason, generator):
    kernel = kernels.persistent if "stages" in arguments else kernels.plain
    program = lowered(kernel, arch, M=200, **arguments)
    ((decision, why),) = reasons(program)
    assert decision == "vector" and reason in why
    assert not nodes(program, TmaStore)
    a, b = operands(200, arguments["N"], arguments["K"], generator)
    tensors = {"A": a, "B": b, "C": poisoned("bfloat16", 200, arguments["N"])}
    run(program, tensors)
    assert is_right(tensors["C"], a, b, "bfloat16")


def test_without_tma_or_stmatrix_nothing_changes(generator):
    for arch in ("sm_80", "sm_89"):
        program = lowered(kernels.plain, arch, M=100, N=136, K=64)
        assert not nodes(program, TmaStore, StoreMatrix) and not reasons(program)


# --- synchronization -------------------------------------------------------------------------------------------------


def consumer(program: Program) -> Role:
    return next(role for role in nodes(program, Role) if role.name == "consumer")


def order(node: Statement) -> list[str]:
    """What orders the epilogue, in program order: r and w wait for reads and for all of a store, b is a barrier of one
    warpgroup and B one of more threads, f a fence, s a TMA store, m a loop of stmatrix."""
    match node:
        case Seq(statements):
            return [letter for statement in statements for letter in order(statement)]
        case For() if any(isinstance(inner, StoreMatrix) for inner in walk(node)):
            return order(node.body) if node.kind.value == "serial" else ["m"]
        case For():
            return order(node.body)
        case If(_, BarSync(_, 128), _):
            return ["b"]
        case If():
            return order(node.then)
        case BulkWaitGroup(pending, read, _):
            return [("r" if read else "w") + str(pending or "")]
        case BarSync(_, threads):
            return ["b" if threads == 128 else "B"]
        case FenceProxyAsync():
            return ["f"]
        case TmaStore():
            return ["s"]
    return []


def test_persistent_epilogue_waits_where_its_tile_is_written_again():
    """Two halves: each warpgroup waits for its own stores to have been read, and meets by itself. No tile comes twice,
    so that nothing has to wait for them to be written; they are only paced, one may be on its way."""
    program = lowered(kernels.persistent, "sm_90a", M=4096, N=4096, K=4096)
    half = ["r", "b", "m", "f", "b", "w1", "s", "s"]
    assert order(consumer(program).body) == [*half, *half, "r"]
    assert reasons(program) == [("tma_store", "2 chunks of 128x128 through C_local_staging_1")]


def test_tiles_that_are_not_known_to_differ_are_waited_for(monkeypatch):
    """Where the number of tiles is not known, or is too large to try them all: and --why says so."""
    reason = "orders the TMA write of C"
    program = lowered(kernels.of_any_height, "sm_90a", M=4096, N=4096, K=4096)
    assert order(consumer(program).body) == ["r", "b", "m", "w", "f", "b", "s", "s", "r"]
    assert [why for why in program.why if why.decision == "inserted wait for TMA stores" and reason in why.reason]
    monkeypatch.setattr(box_positions, "MAXIMUM_BASES", 1000)
    large = {"M": 4096, "N": 4000, "K": 256, "blocks": 3, "block_N": 128}
    assert "w" in order(consumer(lowered(kernels.persistent, "sm_90a", **large)).body)
    few = {"M": 3968, "N": 4000, "K": 256, "blocks": 3, "block_N": 128}
    assert "w" not in order(consumer(lowered(kernels.persistent, "sm_90a", **few)).body)


def test_one_shot_epilogue_has_one_wait_and_that_at_the_end():
    """The staging tile has memory of its own where that costs no block, and no warpgroup waits for another one."""
    program = lowered(kernels.plain, "sm_90a", M=4096, N=4096, K=4096, threads=256, stages=3)
    assert order(consumer(program).body) == ["m", "f", "b", "s", "s", "r"]
    large = lowered(kernels.plain, "sm_90a", M=4096, N=4096, K=4096, threads=256, stages=6)
    assert order(consumer(large).body) == ["m", "f", "b", "s", "s", "r"]
    larger = lowered(kernels.plain, "sm_90a", M=4096, N=4096, K=4096, threads=256, stages=4, block_N=256)
    assert order(consumer(larger).body) == ["B", "m", "f", "b", "s", "s", "s", "s", "r"]  # where A and B were


def test_users_tile_is_stored_by_the_warpgroups_that_wrote_it():
    program = lowered(kernels.through_shared, "sm_90a", M=4096, N=4096, K=4096)
    assert order(consumer(program).body) == ["r", "b", "m", "f", "b", "s", "s", "r"]
    assert ("tma_store", "each warpgroup stores the rows that it wrote") in reasons(program)


@pytest.mark.parametrize(
    ("kernel", "arguments"),
    [
        (kernels.persistent, {"M": 300, "N": 520, "K": 72}),
        (kernels.persistent, {"M": 300, "N": 520, "K": 72, "block_M": 64, "threads": 256}),
        (kernels.through_shared, {"M": 300, "N": 264, "K": 72}),
        (kernels.plain, {"M": 200, "N": 264, "K": 72, "threads": 256}),
    ],
)
def test_the_checker_finds_nothing(kernel, arguments, generator):
    program = lowered(kernel, "sm_90a", **arguments)
    report = checked(program, arguments, generator)
    assert not report


def checked(program: Program, arguments: dict[str, int], generator: torch.Generator) -> tuple[Any, ...]:
    m, n, k = (arguments[name] for name in "MNK")
    a, b = operands(m, n, k, generator)
    return check(program, {"A": a, "B": b, "C": poisoned("bfloat16", m, n)}, {}).findings


class _Change(Rewriter):
    """Drops or changes the statement of the given number among those of a class."""

    def __init__(self, kind: type, number: int, change: Callable[[Any], Any]) -> None:
        self.kind, self.left, self.change = kind, number, change

    def visit(self, node: Any) -> Any:
        node = super().visit(node)
        if isinstance(node, self.kind):
            self.left -= 1
            return self.change(node) if self.left == -1 else node
        return node


def test_everything_that_orders_a_persistent_epilogue_is_needed(generator):
    """Without a barrier, a fence or a wait, or with a wait that leaves one more store, the checker finds a fault. Waits
    for the writes only pace the stores."""
    arguments = {"M": 300, "N": 520, "K": 72, "block_M": 64, "threads": 128, "block_N": 128}
    program = lowered(kernels.persistent, "sm_90a", **arguments)
    role = consumer(program)
    assert not checked(program, arguments, generator)
    changes: list[tuple[type, Callable[[Any], Any]]] = [
        (FenceProxyAsync, lambda node: Seq(())),
        (BulkWaitGroup, lambda node: Seq(()) if node.read else node),
        (BulkWaitGroup, lambda node: replace(node, pending=node.pending + 1) if node.read else node),
        (BulkCommitGroup, lambda node: Seq(())),
        (BarSync, lambda node: Seq(())),
    ]
    tried = 0
    for kind, change in changes:
        for number in range(sum(isinstance(node, kind) for node in walk(role.body))):
            body = _Change(Role, 0, lambda node: node).visit(program.kernels[0].body)
            new = replace(role, body=_Change(kind, number, change).visit(role.body))
            body = _Change(Role, 0, lambda node, new=new: new).visit(body)
            broken = replace(program, kernels=(replace(program.kernels[0], body=body),))
            if broken == program:
                continue
            try:
                assert checked(broken, arguments, generator), (kind, number)
            except SimulationError:
                pass
            tried += 1
    assert tried >= 8


# --- PTX -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_90a", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("kernel", [kernels.plain, kernels.persistent, kernels.through_shared])
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
def test_ptx_assembles(arch, kernel, out):
    arguments = {"block_M": 64, "block_N": 64, "stages": 2, "out": out}
    program = lowered(kernel, arch, M=512, N=512, K=512, **arguments)
    ptx = emit(program, targets.get(arch)).ptx
    ptxas.assemble(ptx, arch)
    assert ("stmatrix.sync.aligned.m8n8.x4.shared.b16" in ptx) == (out == "bfloat16")
    assert "cp.async.bulk.tensor.2d.global" in ptx

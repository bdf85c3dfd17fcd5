"""Pipelined loops on cp.async against float64 in the simulator, with copies that come as late as their waits allow."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile import sim
from ptxtile import target as targets
from ptxtile.compiler import lower_program
from ptxtile.ir.async_copy_ops import CpAsync, CpAsyncCommitGroup, CpAsyncWaitGroup
from ptxtile.ir.gpu_ops import BarSync
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import Rewriter, walk
from ptxtile.ir.statements import For, Specialized
from ptxtile.ir.tensor_core_ops import LoadMatrix, MmaSync, Wgmma
from ptxtile.lower.options import Options
from ptxtile.nvvm import emit
from ptxtile.sim.async_effects import ImmediateEffects, LateEffects
from ptxtile.sim.delayed_effects import DelayedEffects
from ptxtile.target import Feature
from tests import ptxas
from tests.gemm import async_kernels, kernels

BOUND = 1e-5
"""Products of 16-bit values are exact in float32; what is left is the rounding of sums of some hundred terms."""

WITHOUT_A_PRODUCER = ("sm_80", "sm_89", "sm_90")
"""Architectures without TMA, or without the registers to spare for a role that loads."""

EFFECTS = (ImmediateEffects, LateEffects)


def nodes(program: Program, *kinds: type) -> list[Any]:
    return [node for node in walk(program.kernels[0].body) if isinstance(node, kinds)]


def steady_loops(program: Program) -> Iterator[list[Any]]:
    """The waits, barriers and commits of each loop that waits for copies, in program order."""
    for loop in nodes(program, For):
        inside = [n for n in walk(loop.body) if isinstance(n, (CpAsyncWaitGroup, BarSync, CpAsyncCommitGroup))]
        if inside and isinstance(inside[0], CpAsyncWaitGroup):
            yield inside


def poisoned(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full(shape, float("nan") if dtype.is_floating_point else -7, dtype=dtype)


def matrices(generator: np.random.Generator, *shapes: tuple[int, ...], dtype: str = "float16") -> list[torch.Tensor]:
    return [torch.from_numpy(generator.standard_normal(shape)).to(getattr(torch, dtype)) for shape in shapes]


def run(function: Any, tensors: dict[str, torch.Tensor], effects: type, scalars: dict[str, int] | None = None,
        **arguments: Any) -> Program:  # fmt: skip
    """Lowers ``function`` and runs it in the simulator; outputs are in ``tensors``."""
    program = function.specialize(**arguments).program
    sim.run(program, tensors, scalars or {}, effects=effects)
    return program


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found.double() - wanted.double()).norm() / wanted.double().norm().clamp(min=1e-30))


# --- plain products --------------------------------------------------------------------------------------------------


def product(architecture: str, m: int, n: int, k: int, effects: type, seed: int = 0, **options: Any):
    """The relative error of one product and the lowered program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTXTILE_TARGET", architecture)
        kernels.gemm._kernels.clear()
        dtype = getattr(torch, options.get("dtype", "bfloat16"))
        a, b = kernels.operands(m, n, k, dtype, "cpu", seed)
        c = poisoned(m, n, dtype=getattr(torch, options.get("out", "float32")))
        left = a.T.contiguous() if options.get("transpose_A") else a
        right = b.T.contiguous() if options.get("transpose_B") else b
        program = run(kernels.gemm, {"A": left, "B": right, "C": c}, effects, M=m, N=n, K=k, **options)
        return kernels.relative_error(c, a, b), program


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("trips", [1, 2, 3, 4, 5, 6, 7, 13])
def test_stages_and_trip_counts(stages: int, trips: int) -> None:
    found, program = product("sm_80", 32, 32, 32 * trips - 8, LateEffects, block_M=32, block_N=32, block_K=32,
                             num_stages=stages)  # fmt: skip
    assert found < BOUND
    pipelined = stages > 1 and trips > 1
    assert bool(nodes(program, CpAsync)) == pipelined
    loops = list(steady_loops(program))
    assert len(loops) == pipelined
    assert all(len([op for op in loop if isinstance(op, BarSync)]) == 1 for loop in loops)


DTYPES = [
    ("bfloat16", "float32", BOUND), ("float16", "float32", BOUND), ("float16", "float16", 5e-3),
    ("float32", "float32", 2e-3), ("float64", "float64", 1e-14), ("int8", "int32", 0), ("uint8", "int32", 0),
    ("float8_e4m3fn", "float32", BOUND), ("float8_e5m2", "float32", BOUND),
]  # fmt: skip
"""Operands, accumulator, bound of the error; sm_80 multiplies no 8-bit floats."""


@pytest.mark.parametrize(
    ("architecture", "dtype", "accum", "bound"),
    [(a, *row) for a in WITHOUT_A_PRODUCER for row in DTYPES if a != "sm_80" or not row[0].startswith("float8")],
)
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_dtypes_and_transposes(architecture, dtype, accum, bound, transpose_a, transpose_b) -> None:
    found, program = product(
        architecture, 64, 96, 192, LateEffects, dtype=dtype, accum=accum, out=accum, block_M=32, block_N=48,
        block_K=32 if dtype == "float64" else 64, transpose_A=transpose_a, transpose_B=transpose_b, threads=64,
    )  # fmt: skip
    assert found <= bound
    assert nodes(program, MmaSync)
    (loop,) = steady_loops(program)
    assert sum(isinstance(op, BarSync) for op in loop) == 1
    bits = getattr(torch, dtype).itemsize * 8
    along_k = (not transpose_a) + transpose_b
    loads = {node.shared.name for node in nodes(program, LoadMatrix)}
    assert len(loads) == (2 if bits == 16 else 0 if bits == 64 else along_k)


@settings(max_examples=25)
@given(
    st.sampled_from(WITHOUT_A_PRODUCER), st.sampled_from(EFFECTS), st.integers(1, 150), st.integers(1, 150),
    st.integers(1, 200), st.sampled_from([(32, 32), (64, 32), (16, 64), (48, 96), (128, 64)]),
    st.sampled_from([16, 32, 48, 64]), st.sampled_from([32, 64, 128, 256]), st.integers(1, 6), st.booleans(),
    st.booleans(), st.sampled_from([1, 2, 4, 8]),
)  # fmt: skip
def test_any_tile(architecture, effects, m, n, k, tile, block_k, threads, stages, transpose_a, transpose_b, unit):
    """Tails everywhere, rows that are multiples of 2, 4, 8 and 16 bytes."""
    m, n, k = (max(size // unit, 1) * unit for size in (m, n, k))
    found, _ = product(
        architecture, m, n, k, effects, block_M=tile[0], block_N=tile[1], block_K=block_k, threads=threads,
        num_stages=stages, transpose_A=transpose_a, transpose_B=transpose_b,
    )  # fmt: skip
    assert found < BOUND


@pytest.mark.parametrize(("k", "size"), [(200, 16), (204, 8), (206, 4)])
def test_the_width_follows_the_alignment_of_the_rows(k: int, size: int) -> None:
    """The last piece of a row of 200, 204 or 206 elements is cut where the row ends."""
    found, program = product("sm_80", 64, 64, k, LateEffects, transpose_B=True, block_K=64)
    assert found < BOUND
    copies = nodes(program, CpAsync)
    assert {copy.bytes for copy in copies} == {size}
    assert {copy.cache for copy in copies} == {"cg" if size == 16 else "ca"}


def test_rows_of_odd_length_are_copied_by_the_threads() -> None:
    found, program = product("sm_80", 64, 64, 131, LateEffects, transpose_B=True)
    assert found < BOUND
    assert not nodes(program, CpAsync)


# --- other loops -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("first", [0, 1, 5, 7, 8, 9])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_trip_counts_that_come_with_the_call(effects, first, stages, random_generator, monkeypatch) -> None:
    """A loop over K from ``first`` blocks on, of 8 blocks: 8, 7, 3, 1, 0 and no iterations."""
    monkeypatch.setenv("PTXTILE_TARGET", "sm_80")
    a, b = matrices(random_generator, (80, 256), (256, 48), dtype="bfloat16")
    c = torch.randn(80, 48)
    wanted = c.double() + a[:, first * 32 :].double() @ b[first * 32 :].double()
    scalars = {"M": 80, "N": 48, "K": 256, "first": first}
    program = run(async_kernels.split, {"A": a, "B": b, "C": c}, effects, scalars, A=a, B=b, C=c, first=1,
                  stages=stages)  # fmt: skip
    assert error(c, wanted) < BOUND
    assert len(nodes(program, CpAsync)) == 2 * stages
    (loop,) = steady_loops(program)
    assert sum(isinstance(op, BarSync) for op in loop) == 1


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("stages", [2, 3, 5])
@pytest.mark.parametrize("k", [24, 32, 64, 200])
def test_inside_a_persistent_loop(effects, stages, k, random_generator, monkeypatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", "sm_80")
    a, b = matrices(random_generator, (70, k), (100, k))
    c = poisoned(70, 100)
    run(async_kernels.persistent, {"A": a, "B": b, "C": c}, effects, M=70, N=100, K=k, stages=stages)
    assert error(c, a.double() @ b.double().T) < BOUND


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("keys", [32, 96, 150])
@pytest.mark.parametrize("architecture", WITHOUT_A_PRODUCER)
def test_two_copies_and_two_gemms(effects, stages, keys, architecture, random_generator, monkeypatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", architecture)
    q, k, v = matrices(random_generator, (100, 64), (keys, 64), (keys, 64))
    q *= 0.1
    o = poisoned(100, 64)
    program = run(async_kernels.attention, {"Q": q, "K": k, "V": v, "O": o}, effects, queries=100, keys=keys, D=64,
                  stages=stages)  # fmt: skip
    assert error(o, torch.exp(q.double() @ k.double().T) @ v.double()) < 1e-3  # P is rounded to 11 bits
    for loop in steady_loops(program):
        assert sum(isinstance(op, BarSync) for op in loop) == 1


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_positions_from_a_table_and_a_tile_that_is_used_twice(effects, stages, random_generator, monkeypatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", "sm_80")
    a, b = matrices(random_generator, (64, 256), (256, 96))
    order = torch.from_numpy(random_generator.permutation(8)).int()
    c, sums = poisoned(64, 96), poisoned(64)
    tensors = {"A": a, "B": b, "order": order, "C": c, "sums": sums}
    program = run(async_kernels.gathered, tensors, effects, M=64, N=96, K=256, stages=stages)
    assert error(c, a.double() @ b.double()) < BOUND
    assert error(sums, a.double().sum(1)) < BOUND
    (loop,) = steady_loops(program)
    assert sum(isinstance(op, BarSync) for op in loop) == 1


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("sizes", [(256, 256), (32, 256), (200, 40), (64, 8)])
@pytest.mark.parametrize("stages", [(2, 4), (3, 3), (4, 1)])
def test_two_loops_that_share_tiles(effects, sizes, stages, random_generator, monkeypatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", "sm_80")
    k, length = sizes
    a, b, d, e = matrices(random_generator, (64, k), (k, 64), (64, length), (length, 64))
    c = poisoned(64, 64)
    tensors = {"A": a, "B": b, "D": d, "E": e, "C": c}
    run(async_kernels.two_loops, tensors, effects, M=64, N=64, K=k, L=length, first_stages=stages[0],
        second_stages=stages[1])  # fmt: skip
    assert error(c, a.double() @ b.double() + d.double() @ e.double()) < BOUND


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("stages", [(2, 3), (3, 2), (1, 3), (2, 1)])
def test_a_pipelined_loop_in_a_pipelined_loop(effects, stages, random_generator, monkeypatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", "sm_80")
    a, b = matrices(random_generator, (3, 64, 128), (3, 128, 64))
    c = poisoned(64, 64)
    run(async_kernels.nested, {"A": a, "B": b, "C": c}, effects, batches=3, M=64, N=64, K=128, outer_stages=stages[0],
        inner_stages=stages[1])  # fmt: skip
    assert error(c, torch.einsum("bmk,bkn->mn", a.double(), b.double())) < BOUND


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("architecture", [*WITHOUT_A_PRODUCER, "sm_90a"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_without_tensor_cores(effects, architecture, dtype, random_generator, monkeypatch) -> None:
    """A loop that feeds no tensor cores gets no producer, but its copies run ahead all the same."""
    monkeypatch.setenv("PTXTILE_TARGET", architecture)
    (a,) = matrices(random_generator, (100, 200), dtype=dtype)
    c = poisoned(200)
    program = run(async_kernels.column_sums, {"A": a, "C": c}, effects, M=100, N=200, dtype=dtype)
    assert error(c, a.double().sum(0)) < BOUND
    assert nodes(program, CpAsync)


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("architecture", [*WITHOUT_A_PRODUCER, "sm_90a"])
def test_in_a_role_of_the_users(effects, architecture, random_generator, monkeypatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", architecture)
    a, b = matrices(random_generator, (64, 128), (128, 64))
    c, ones = poisoned(64, 64), poisoned(128)
    program = run(async_kernels.in_a_role, {"A": a, "B": b, "C": c, "ones": ones}, effects, M=64, N=64, K=128)
    assert error(c, a.double() @ b.double()) < BOUND
    assert bool((ones == 1).all())
    assert nodes(program, CpAsync)


# --- what runs ahead, and what does not ------------------------------------------------------------------------------


def reasons(function: Any, **arguments: Any) -> dict[str, str]:
    """Why copies run ahead or not, by subject."""
    found = function.specialize(**arguments).why
    return {why.subject: why.reason for why in found if why.pass_name == "plan_async_copies"}


@pytest.mark.parametrize("name", async_kernels.STAYING)
def test_copies_that_must_not_run_ahead(name, random_generator, monkeypatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", "sm_80")
    function, expected, wanted = async_kernels.STAYING[name]
    (a,) = matrices(random_generator, (256, 64), dtype="float32")
    tensors = {"A": a.clone(), "C": poisoned(64)}
    program = run(function, tensors, LateEffects, M=256)
    assert expected in next(iter(reasons(function, M=256).values()))
    assert not nodes(program, CpAsync)
    assert error(tensors["C"], wanted(a.double())) < BOUND


def test_weaker_waits_give_wrong_numbers(monkeypatch) -> None:
    """What the other tests rely on: with one group more under way, tiles are read before they have come."""
    monkeypatch.setenv("PTXTILE_TARGET", "sm_80")
    kernels.gemm._kernels.clear()
    a, b = kernels.operands(64, 64, 512, torch.bfloat16, "cpu", 5)
    strong = kernels.gemm.specialize(M=64, N=64, K=512).program
    for weakened in (False, True):
        c = torch.zeros(64, 64)
        program = _Weakened().program(strong) if weakened else strong
        sim.run(program, {"A": a, "B": b, "C": c}, {}, effects=LateEffects)
        assert (not error(c, a.double() @ b.double()) < 0.1) == weakened  # NaN in what was never written


class _Weakened(Rewriter):
    def program(self, program: Program) -> Program:
        (kernel,) = program.kernels
        return replace(program, kernels=(replace(kernel, body=self.visit(kernel.body)),))

    def rewrite_CpAsyncWaitGroup(self, node: CpAsyncWaitGroup) -> CpAsyncWaitGroup:
        return replace(node, pending=node.pending + 1)


def test_a_loop_with_one_copy_that_tma_cannot_do_is_pipelined_as_a_whole(monkeypatch) -> None:
    """B has rows of 8-byte units: a producer could load A alone, and the consumers would wait for B every time."""
    monkeypatch.setenv("PTXTILE_TARGET", "sm_90a")
    kernels.gemm._kernels.clear()
    a, b = kernels.operands(64, 100, 256, torch.bfloat16, "cpu", 6)
    c = poisoned(64, 100)
    program = run(kernels.gemm, {"A": a, "B": b, "C": c}, LateEffects, M=64, N=100, K=256)
    assert error(c, a.double() @ b.double()) < BOUND
    assert {copy.bytes for copy in nodes(program, CpAsync)} == {16, 8}
    assert nodes(program, Wgmma) and not nodes(program, Specialized)
    assert not ptxas_complaints(program, "sm_90a")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("effects", [*EFFECTS, DelayedEffects])
@pytest.mark.parametrize("trips", [2, 3, 4, 7])
def test_small_copies_run_ahead_beside_a_producer(architecture, effects, trips, random_generator, monkeypatch) -> None:
    """The rows of the scales have 8-byte units, so that TMA can load the big tiles alone; the consumers load the scales
    ahead by themselves."""
    monkeypatch.setenv("PTXTILE_TARGET", architecture)
    a, b = matrices(random_generator, (102, 64 * trips), (64, 64 * trips))
    scales = torch.from_numpy(random_generator.uniform(0.5, 2, (trips, 102))).float()
    c = poisoned(102, 64)
    tensors = {"A": a, "B": b, "scales": scales, "C": c}
    program = run(async_kernels.scaled, tensors, effects, M=102, N=64, K=64 * trips)
    blocks = [part.double() for part in a.split(64, 1)], [part.double() for part in b.split(64, 1)]
    assert error(c, sum(s[:, None] * (x @ y.T) for s, x, y in zip(scales.double(), *blocks, strict=True))) < BOUND
    assert bool(nodes(program, Specialized)) == (architecture != "sm_80")
    assert {copy.bytes for copy in nodes(program, CpAsync)} == ({16, 8} if architecture == "sm_80" else {8})
    for loop in steady_loops(program):
        assert sum(isinstance(op, BarSync) for op in loop) == 1
    assert not ptxas_complaints(program, architecture)


def ptxas_complaints(program: Program, architecture: str) -> str:
    """Spills (beyond the 8 bytes with which ptxas saves registers where it has plenty), warnings and serialised wgmma
    in ptxas' log; empty if there are none."""
    log = ptxas.assemble(emit(program, targets.get(architecture)).ptx, architecture)
    words = ("warning", "serialized", "C7510", "C7514")
    spilled = int(log.partition(" bytes spill stores")[0].rpartition(" ")[2])
    return log if spilled > 8 or any(word in log for word in words) else ""


@pytest.mark.parametrize("architecture", ["sm_80", "sm_86", "sm_89", "sm_90", "sm_90a", "sm_120a"])
@pytest.mark.parametrize(
    ("dtype", "accum", "tile", "threads"),
    [
        ("bfloat16", "float32", (128, 128, 32), 128), ("float16", "float16", (128, 128, 64), 256),
        ("float32", "float32", (64, 64, 32), 128), ("float64", "float64", (64, 32, 16), 128),
        ("int8", "int32", (128, 64, 64), 128), ("float8_e4m3fn", "float32", (128, 64, 64), 128),
    ],
)  # fmt: skip
@pytest.mark.parametrize("roles", ["auto", False])
def test_it_assembles(architecture, dtype, accum, tile, threads, roles, monkeypatch) -> None:
    monkeypatch.setenv("PTXTILE_TARGET", architecture)
    kernels.gemm._kernels.clear()
    m, n, k = tile
    kernel = kernels.gemm.specialize(
        M=512, N=512, K=512, dtype=dtype, accum=accum, out=accum, block_M=m, block_N=n, block_K=k, threads=threads,
        transpose_B=True, num_stages=3,
    )  # fmt: skip
    lowered, _ = lower_program(kernel.tile_program, targets.get(architecture), Options(specialize_warps=roles))
    if roles is False:
        assert nodes(lowered, CpAsync)
    if dtype != "float8_e4m3fn" or targets.get(architecture).has(Feature.MMA_FP8):
        assert nodes(lowered, MmaSync, Wgmma)
        assert not ptxas_complaints(lowered, architecture)

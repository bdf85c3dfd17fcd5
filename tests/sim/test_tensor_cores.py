"""wgmma through every descriptor layout, random GEMMs through TMA, ldmatrix and mma.sync, late effects, and what is
refused.

Tiles are written by TMA with the swizzle of the tensor map, or byte by byte after the manual's canonical layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from ptxtile import sim
from ptxtile.errors import DeadlockError, LaunchError, SimulationError
from ptxtile.ir.parser import parse_program
from ptxtile.ir.program import Program
from ptxtile.sim.async_effects import ImmediateEffects, LateEffects
from ptxtile.sim.matrix_descriptors import decode
from tests.conformance.cases import with_launch

PROGRAMS = Path(__file__).parent.parent / "conformance" / "programs"


def program(text: str) -> Program:
    return with_launch(parse_program(text, "test.ir"))


def conformance(name: str, *changes: tuple[str, str]) -> Program:
    """A conformance program with pieces of its text replaced."""
    text = (PROGRAMS / f"{name}.ir").read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return program(text)


def bits(leading: int, stride: int, mode: int) -> int:
    return leading >> 4 << 16 | stride >> 4 << 32 | mode << 62


# --- descriptors ----------------------------------------------------------------------------------------------------

# PTX ISA 9.7.15.5.1.2.1.3: the examples «Exact layout», as (swizzle mode, leading, stride in bytes, element bytes,
# M- or N-major, shape, offset in elements of (row, column) before the swizzle). tf32 has 4 bytes, bf16 has 2.
EXAMPLES = [
    (0, 256, 128, 4, False, (16, 16), lambda m, k: m % 8 * 4 + m // 8 * 32 + k % 4 + k // 4 * 64),
    (3, 16, 256, 4, False, (16, 8), lambda m, k: m % 8 * 8 + m // 8 * 64 + k),
    (0, 256, 128, 2, True, (16, 16), lambda m, k: m % 8 + m // 8 * 64 + k % 8 * 8 + k // 8 * 128),
    (3, 256, 512, 2, True, (32, 16), lambda m, k: m % 16 + m // 16 * 128 + k % 8 * 16 + k // 8 * 256),
    (2, 512, 1024, 2, True, (64, 16), lambda m, k: m % 32 + m // 32 * 256 + k % 8 * 32 + k // 8 * 512),
]
SPANS = {0: 0, 1: 128, 2: 64, 3: 32}


@pytest.mark.parametrize("example", range(len(EXAMPLES)))
def test_the_manuals_examples(example: int) -> None:
    mode, leading, stride, itemsize, transposed, (rows, columns), offset = EXAMPLES[example]
    found = decode(64 | bits(leading, stride, mode)).addresses(rows, columns, itemsize, transposed=transposed)
    for m in range(rows):
        for k in range(columns):
            linear = 1024 + offset(m, k) * itemsize
            chunk = linear // 16 % 8 ^ (linear // 128 % 8 & max(0, SPANS[mode] // 16 - 1))
            assert found[m, k] == linear // 128 * 128 + chunk * 16 + linear % 16


@pytest.mark.parametrize("wrong", [1 << 14, 1 << 31, 1 << 47, 1 << 52, 1 << 61, 1 << 49])
def test_reserved_bits_and_base_offsets_are_refused(wrong: int) -> None:
    with pytest.raises(SimulationError, match="reserved bits|base offset"):
        decode(wrong | bits(16, 1024, 1))


# --- products -------------------------------------------------------------------------------------------------------


def tma_gemm(n: int, k: int, span: int, dtype: str, a_major: str, b_major: str) -> Program:
    """C (64 × n) = A · B in one step: whole operands through TMA in boxes as wide as the swizzle."""
    itemsize = {"bfloat16": 2, "float16": 2, "int8": 1, "float32": 4}[dtype]
    mode = {128: 1, 64: 2, 32: 3}[span]
    wide = span // itemsize
    operand = {"float32": "tfloat32"}.get(dtype, dtype)
    accumulator = "int32" if dtype == "int8" else "float32"
    sizes = {"A": (64, k, a_major), "B": (n, k, b_major)}
    lines, loads, offset, places = [], [], 0, {}
    for name, (rows, depth, major) in sizes.items():
        outer, inner = (rows, depth) if major == "K" else (depth, rows)
        lines.append(f"{name} = tensor({dtype}, ({outer}, {inner}))")
        lines.append(
            f'TensorMapRecord(name="{name}_map", tensor="{name}", dtype="{dtype}", dimensions=({inner}, {outer}), '
            f"strides=({inner * itemsize},), box=({wide}, {outer}), swizzle={span})"
        )
        box = -(-outer * span // 1024) * 1024
        for position, column in enumerate(range(0, inner, wide)):
            loads.append(f'tma_load(tensor_map="{name}_map", coordinates=({column}, 0), shared={name}_shared, '
                         f"offset={position * box // itemsize}, barrier=full, index=0)")  # fmt: skip
        count = -(-inner // wide)
        places[name] = (offset, count * box, box, outer)
        offset += count * box
    expected = sum(span * outer * (size // box) for _, size, box, outer in places.values())
    body = [
        *(f"{name}_shared = allocate_shared({dtype}, ({size // itemsize},), storage_offset={start}, "
          "storage_alignment=1024)"
          for name, (start, size, _, _) in places.items()),
        f"full = allocate_barrier(uint64, (1,), storage_alignment=8, storage_offset={offset})",
        f"acc = allocate_register({accumulator}, ({n // 2},))",
        "if tx == 0:",
        "    mbarrier_init(barrier=full, index=0, arrivals=1)",
        "    fence_mbarrier_init()",
        f"    mbarrier_arrive_expect_tx(barrier=full, index=0, bytes={expected})",
        *("    " + line for line in loads),
        "bar_sync(id=0, threads=128)",
        "mbarrier_wait(barrier=full, index=0, parity=0, retires=(A_shared, B_shared))",
        "wgmma_fence()",
    ]  # fmt: skip
    step = 32 // itemsize
    for k0 in range(0, k, step):
        words = []
        for name, (_, _, major) in sizes.items():
            _, _, box, _ = places[name]
            if major == "K":
                start, fixed = k0 // wide * box // itemsize + k0 % wide, bits(16, 8 * span, mode)
            else:
                start, fixed = k0 * wide, bits(box, 8 * span, mode)
            words.append(f"cast(shared_address({name}_shared, {start}) >> uint32(4), uint64) | uint64({fixed})")
        body.append(
            f"wgmma(accumulator=acc, accumulator_offset=0, n={n}, k={step}, dtype_a={operand}, dtype_b={operand}, "
            f"shared_b=B_shared, descriptor_b={words[1]}, shared_a=A_shared, descriptor_a={words[0]}, "
            f"transpose_a={a_major != 'K'}, transpose_b={b_major != 'K'}, accumulate={k0 > 0})"
        )
    body += ["wgmma_commit_group()", "wgmma_wait_group(pending=0, accumulators=(acc,), retires=(A_shared, B_shared))",
             f"for i in unrolled(0, {n // 2}):",
             "    row: int32 = tx // 32 * 16 + tx % 32 // 4 + i // 2 % 2 * 8",
             f"    C[row * {n} + i // 4 * 8 + tx % 4 * 2 + i % 2] = acc[i]"]  # fmt: skip
    declared = [line for line in lines if "= tensor(" in line] + [f"C = tensor({accumulator}, (64, {n}))"]
    maps = [line for line in lines if line.startswith("TensorMap")]
    return program("\n".join([
        "ptxtile_ir(1)", 'program("p", stage="gpu")', *declared, *maps,
        f"@kernel(grid=(1, 1, 1), threads=128, shared_bytes={offset + 8})", "def kernel(bx, by, bz, tx):",
        *("    " + line for line in body), "",
    ]))  # fmt: skip


LAYOUTS = [(span, a, b) for span in (32, 64, 128) for a in ("K", "M") for b in ("K", "N")]


@pytest.mark.parametrize(("span", "a_major", "b_major"), LAYOUTS)
@pytest.mark.parametrize("effects", [ImmediateEffects, LateEffects])
def test_wgmma_of_tiles_that_tma_wrote(span: int, a_major: str, b_major: str, effects: type) -> None:
    n, k = {32: (48, 32), 64: (96, 64), 128: (192, 128)}[span]
    generator = np.random.default_rng(span)
    a, b = (torch.from_numpy(generator.standard_normal((rows, k))).bfloat16() for rows in (64, n))
    tensors = {"A": (a if a_major == "K" else a.T.contiguous()), "B": (b if b_major == "K" else b.T.contiguous())}
    tensors["C"] = torch.full((64, n), float("nan"))
    sim.run(tma_gemm(n, k, span, "bfloat16", a_major, b_major), tensors, {}, effects=effects)
    exact = a.double() @ b.double().T
    assert (tensors["C"] - exact).abs().max() < 1e-5 * k


@pytest.mark.parametrize("dtype", ["int8", "float32", "float16"])
@pytest.mark.parametrize("span", [32, 64, 128])
def test_other_types(dtype: str, span: int) -> None:
    n, k = 40 if dtype != "int8" else 48, 256
    generator = np.random.default_rng(span)
    if dtype == "int8":
        a, b = (torch.from_numpy(generator.integers(-128, 128, (rows, k), dtype=np.int8)) for rows in (64, n))
    else:
        numbers = [torch.from_numpy(generator.standard_normal((rows, k))) for rows in (64, n)]
        a, b = (x.to(getattr(torch, dtype)) for x in numbers)
    tensors = {"A": a, "B": b, "C": torch.zeros((64, n), dtype=torch.int32 if dtype == "int8" else torch.float32)}
    sim.run(tma_gemm(n, k, span, dtype, "K", "K"), tensors, {})
    if dtype == "int8":
        assert torch.equal(tensors["C"].long(), a.long() @ b.long().T)
        return
    if dtype == "float32":  # tfloat32 drops the lowest 13 bits of each number
        a, b = ((x.view(torch.int32) & ~0x1FFF).view(torch.float32) for x in (a, b))
    assert (tensors["C"] - a.double() @ b.double().T).abs().max() < 1e-5 * k


def run_mma(changed: Program, effects: type = ImmediateEffects) -> float:
    """The largest error of mma_sync.ir's product."""
    generator = np.random.default_rng(5)
    a, b = (torch.from_numpy(generator.standard_normal((rows, 160))).bfloat16() for rows in (64, 32))
    tensors = {"A": a, "B": b, "C": torch.zeros(64, 32)}
    sim.run(changed, tensors, {}, effects=effects)
    return float((tensors["C"] - a.double() @ b.double().T).abs().nan_to_num(1e9).max())


@pytest.mark.parametrize("effects", [ImmediateEffects, LateEffects])
def test_mma_sync_with_ldmatrix_and_cp_async(effects: type) -> None:
    assert run_mma(conformance("mma_sync"), effects) < 1e-3


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(kk * 2 + lane // 16 ^ ra // 2 % 4)", "(kk * 2 + lane // 16)"),  # the reader forgets the swizzle
        ("lane // 8 % 2 ^ rb", "lane // 16 ^ rb"),  # the matrices of B in another order
        ("b_offset=n2 * 4", "b_offset=n2 // 2 * 4"),
        ("tx // 32 * 16 + lane // 4 +", "tx // 32 * 16 + lane % 8 +"),
        ("count=4)", "count=4, transposed=True)"),
    ],
)
def test_a_wrong_layout_gives_wrong_numbers(old: str, new: str) -> None:
    assert run_mma(conformance("mma_sync", (old, new))) > 0.5


def test_late_effects_find_waits_that_are_too_weak() -> None:
    weak = conformance("mma_sync", ("cp_async_wait_group(pending=1,", "cp_async_wait_group(pending=2,"))
    assert run_mma(weak) < 1e-3
    assert run_mma(weak, LateEffects) > 0.5
    weak = conformance("wgmma", ("wgmma_wait_group(pending=0,", "wgmma_wait_group(pending=1,"))
    generator = np.random.default_rng(6)
    a, b = (torch.from_numpy(generator.standard_normal((rows, 256))).bfloat16() for rows in (64, 128))
    tensors = {"A": a, "B": b, "C": torch.zeros(64, 128)}
    sim.run(weak, tensors, {}, effects=LateEffects)
    assert (tensors["C"] - a.double() @ b.double().T).abs().max() > 0.5


def test_late_effects_find_registers_of_a_that_change_too_early() -> None:
    """A of a wgmma in registers has to stay until the wait; a change before it is seen by the multiplication."""
    generator = np.random.default_rng(7)
    inputs = {
        name: torch.from_numpy(generator.standard_normal((rows, 16))).bfloat16()
        for name, rows in (("A", 64), ("B", 32), ("E", 32))
    }

    def run(program: Program, effects: type) -> torch.Tensor:
        tensors = {**inputs, "C": torch.ones(64, 32)}
        sim.run(program, tensors, {}, effects=effects)
        return tensors["C"]

    right = run(conformance("wgmma_fence"), LateEffects)
    changed = ("wgmma_commit_group()", "wgmma_commit_group()\n        a[0] = cast(float32(100.0), bfloat16)")
    early = conformance("wgmma_fence", changed)
    assert torch.equal(run(early, ImmediateEffects), right)
    assert (run(early, LateEffects) - right).abs().max() > 1


# --- what is refused --------------------------------------------------------------------------------------------------

KERNEL = """\
ptxtile_ir(1)
program("p", stage="gpu")
A = tensor(float32, (256,))
@kernel(grid=({grid}, 1, 1), threads={threads}, cluster=({cluster}, 1, 1), shared_bytes=4096)
def kernel(bx, by, bz, tx):
    S = allocate_shared(float32, (512,), storage_offset=0)
    T = allocate_shared(float32, (480,), storage_offset=2048)
    full = allocate_barrier(uint64, (1,), storage_alignment=8, storage_offset=4088)
    r = allocate_register(float32, (8,))
    f = allocate_local(bool, ())
"""
WGMMA = ("wgmma(accumulator=r, accumulator_offset=0, n=8, k=8, dtype_a=tfloat32, dtype_b=tfloat32, shared_b={}, "
         "descriptor_b={}, a=r, a_offset=4)")  # fmt: skip
DESCRIPTOR = "cast(shared_address(S, {}) >> uint32(4), uint64) | uint64(34359738376)"


def run(body: str, *, threads: int = 128, grid: int = 1, cluster: int = 1) -> None:
    text = KERNEL.format(threads=threads, grid=grid, cluster=cluster)
    text += "".join(f"    {line}\n" for line in body.splitlines())
    sim.run(program(text), {"A": torch.zeros(256)}, {})


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("if tx < 64:\n    wgmma_fence()", "only some threads of a group run wgmma.fence"),
        ("if tx < 40:\n    sync_warp()", "only some threads of a group run bar.warp.sync"),
        ("if tx < 3:\n    shuffle(destination=r, destination_offset=0, value=r[0], lane=1)", "run shfl.sync"),
        ("if tx < 3:\n    elect_one(destination=f, destination_offset=0)", "run elect.sync"),
        ("if tx % 2 == 0:\n    load_matrix(destination=r, destination_offset=0, shared=S, offset=0, count=1)",
         "run ldmatrix"),
        ("load_matrix(destination=r, destination_offset=0, shared=S, offset=tx * 4 + 2, count=1)", "impossible"),
        ("load_matrix(destination=r, destination_offset=0, shared=S, offset=tx % 32 * 20, count=4)", "impossible"),
        ("store_matrix(source=r, source_offset=0, shared=T, offset=480, count=1)", "impossible address"),
        (WGMMA.format("S", DESCRIPTOR.format("tx % 2 * 4")), "a descriptor differs within a group"),
        (WGMMA.format("T", DESCRIPTOR.format("0")), "points outside of T"),
        (WGMMA.format("S", DESCRIPTOR.format("0") + " | uint64(16384)"), "reserved bits"),
        ("cp_async(shared=S, offset=tx * 2, source=A, index=tx, bytes=8)", "reads A at an impossible address"),
        ("cp_async(shared=S, offset=tx + 1, source=A, index=tx * 4 % 256, bytes=16)", "writes S at an impossible"),
        ("cp_async(shared=S, offset=tx * 4, source=A, index=tx * 4, bytes=16)", "reads A at an impossible address"),
        ("cp_async(shared=S, offset=tx, source=A, index=tx, bytes=4, valid_bytes=tx)", "impossible number of bytes"),
        ("mbarrier_arrive_remote(barrier=full, index=0, cta=tx)", "a CTA that the cluster lacks"),
    ],
)  # fmt: skip
def test_what_the_hardware_does_not_allow(body: str, message: str) -> None:
    with pytest.raises(SimulationError, match=message):
        run(body)


def test_groups_have_to_be_whole() -> None:
    with pytest.raises(SimulationError, match="not whole groups of 128"):
        run("wgmma_fence()", threads=96)
    role = 'with specialized():\n    with role("a", first_thread=64, threads=128):\n        '
    with pytest.raises(SimulationError, match="not whole groups of 128"):
        run(role + "sync_warp()\n        wgmma_fence()", threads=192)


def test_a_copy_beyond_the_tensor_may_read_nothing() -> None:
    run("cp_async(shared=S, offset=tx, source=A, index=tx * 300, bytes=4, valid_bytes=4 if tx == 0 else 0)")


def test_a_cluster_barrier_that_one_cta_never_reaches() -> None:
    with pytest.raises(DeadlockError, match="128 threads have not arrived"):
        run("if bx % 2 == 0:\n    cluster_arrive()\n    cluster_wait()", grid=4, cluster=2)


def test_a_grid_of_broken_clusters() -> None:
    with pytest.raises(LaunchError, match="whole clusters"):
        run("cluster_arrive()", grid=3, cluster=2)

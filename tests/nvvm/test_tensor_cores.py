"""Code of the tensor-core ops: what ptxas says about it, one block of wgmma for a group, packed fragments, PTX ISA."""

from __future__ import annotations

import re

import pytest

from ptxtile import target as targets
from ptxtile.errors import PtxtileError, VerificationError
from ptxtile.ir.parser import parse_program
from ptxtile.nvvm import emit
from ptxtile.nvvm.emission import EmittedModule
from tests import ptxas
from tests.conformance import tensor_cores
from tests.conformance.cases import load, with_launch

SERIALIZED = ("serialized", *(f"C75{number}" for number in range(10, 20)))
"""ptxas' words and message codes when it runs wgmma instructions one after the other, or adds waits (C7517)."""

PROGRAMS = ("wgmma", "wgmma_fence", "wgmma_commit_group", "wgmma_wait_group", "gemm_cluster")


def check(module: EmittedModule, architecture: str) -> str:
    log = ptxas.assemble(module.ptx, architecture)
    assert not any(word in log for word in (*SERIALIZED, *ptxas.IGNORED_SETMAXNREG)), log
    assert "0 bytes spill stores" in log and "warning" not in log, log
    return log


@pytest.mark.parametrize("name", PROGRAMS)
def test_wgmma_is_asynchronous(name: str) -> None:
    check(emit(load(name).program, targets.get("sm_90a")), "sm_90a")


@pytest.mark.parametrize("name", [name for name in tensor_cores.CASES if name.startswith("wgmma")])
def test_every_wgmma_is_asynchronous(name: str) -> None:
    check(emit(tensor_cores.CASES[name]().program, targets.get("sm_90a")), "sm_90a")


@pytest.mark.parametrize("name", [name for name in tensor_cores.CASES if name.startswith("mma")])
def test_every_mma_assembles_for_all_architectures(name: str) -> None:
    case = tensor_cores.CASES[name]()
    for architecture in targets.names():
        target = targets.get(architecture)
        if case.claims(target):
            check(emit(case.program, target), architecture)
        else:
            with pytest.raises(PtxtileError, match="needs a target with|does not convert 8-bit floats"):
                emit(case.program, target)


KERNEL = """\
ptxtile_ir(1)
program("p", stage="gpu")
A = tensor(float32, (65536,))
@kernel(grid=(1, 1, 1), threads=128, min_blocks=1, shared_bytes=65536)
def kernel(bx, by, bz, tx):
    S = allocate_shared(bfloat16, (32768,), storage_offset=0, storage_alignment=1024)
    acc = allocate_register(float32, ({registers},))
    a = allocate_register(bfloat16, (8,))
"""


def kernel(body: str, registers: int = 128):
    text = KERNEL.format(registers=registers) + "".join(f"    {line}\n" for line in body.splitlines())
    return with_launch(parse_program(text, "kernel.ir"))


def multiplication(n: int, offset: str = "0", more: str = "") -> str:
    return (f"wgmma(accumulator=acc, accumulator_offset={offset}, n={n}, k=16, dtype_a=bfloat16, dtype_b=bfloat16, "
            f"shared_b=S, descriptor_b=d, {more or 'shared_a=S, descriptor_a=d'}")  # fmt: skip


DESCRIPTOR = "d: uint64 = cast(shared_address(S, 0) >> uint32(4), uint64) | uint64(4611686293305360384)\n"
STORES = "for o in serial(0, 1):\n    for v in unrolled(0, {0}):\n        A[tx * {0} + v] = acc[v]"


def blocks(ptx: str) -> list[int]:
    """How many multiplications stand in each block of inline PTX."""
    counts = [part.count("wgmma.mma_async") for part in re.findall(r"// begin inline asm(.*?)// end", ptx, re.S)]
    return [count for count in counts if count]


@pytest.mark.parametrize("n", [8, 256])
def test_a_group_is_one_block(n: int) -> None:
    """Two row tiles of four k-steps, with the wide accumulators: one block, no move of a register in the loop."""
    half = n // 2
    registers = 2 * half if n < 256 else half
    tiles = range(2) if n < 256 else range(1)
    rows = [f"shared_a=S, descriptor_a=d + uint64({tile * 256})" for tile in tiles]
    steps = "\n".join(f"        {multiplication(n, str(tile * half), rows[tile])}, accumulate=True)" for tile in tiles)
    body = (DESCRIPTOR + f"for i in unrolled(0, {registers}):\n    acc[i] = float32(0.0)\n"
            "for k in serial(0, 20):\n    wgmma_fence()\n    for s in unrolled(0, 4):\n" + steps +
            "\n    wgmma_commit_group()\n    wgmma_wait_group(pending=0, accumulators=(acc,))\n" +
            STORES.format(registers))  # fmt: skip
    module = emit(kernel(body, registers), targets.get("sm_90a"))
    assert blocks(module.ptx) == [4 * len(tiles)]
    loop = module.ptx[module.ptx.index("wgmma.fence") :]
    loop = loop[: loop.index("bra")]
    assert "mov.b32" not in loop, loop
    check(module, "sm_90a")
    assert module.timings["optimize"] + module.timings["emit"] + module.timings["parse"] < 0.5


def test_the_end_of_an_llvm_block_ends_the_block_of_wgmma() -> None:
    body = (DESCRIPTOR + f"wgmma_fence()\n{multiplication(8)}, accumulate=False)\n"
            f"if bx == 0:\n    {multiplication(8)})\n"
            f"{multiplication(8)})\n{multiplication(16)}, accumulate=False)\n"
            "wgmma_commit_group()\nwgmma_wait_group(pending=0, accumulators=(acc,))\n" + STORES.format(8))  # fmt: skip
    module = emit(kernel(body), targets.get("sm_90a"))
    assert blocks(module.ptx) == [1, 1, 2]


def test_accumulators_are_no_operands() -> None:
    """They are declared once, and only what the program does with them is a move."""
    body = (DESCRIPTOR + f"wgmma_fence()\n{multiplication(16)}, accumulate=False)\n{multiplication(16)})\n"
            "wgmma_commit_group()\nwgmma_wait_group(pending=0, accumulators=(acc,))\n" + STORES.format(8))  # fmt: skip
    module = emit(kernel(body, 8), targets.get("sm_90a"))
    assert blocks(module.ptx) == [2]
    call = next(line for line in module.llvm_ir.splitlines() if "wgmma.mma_async" in line)
    assert '"l,~{memory}"' in call, call
    assert len(re.findall(r"\.reg \.b32 acc\d+_<8>;", module.ptx)) == 1
    names = re.findall(r"mov\.b32 \s*%r\d+, (acc\d+_\d+);", module.ptx)
    assert [int(name.split("_")[1]) for name in names] == list(range(8))
    check(module, "sm_90a")


def test_halves_of_a_named_register() -> None:
    """float16 accumulators are two to a register, the even element in the low half (PTX ISA, «mov»: packing)."""
    body = (DESCRIPTOR + "half = allocate_register(float16, (4,))\nhalf[0] = float16(0.0)\nhalf[1] = float16(1.0)\n"
            "wgmma_fence()\nwgmma(accumulator=half, accumulator_offset=0, n=8, k=16, dtype_a=float16, dtype_b=float16, "
            "shared_b=S, descriptor_b=d, shared_a=S, descriptor_a=d)\n"
            "wgmma_commit_group()\nwgmma_wait_group(pending=0, accumulators=(half,))\n"
            "A[tx] = cast(half[2], float32)\nA[tx + 128] = cast(half[3], float32)")  # fmt: skip
    module = emit(kernel(body, 8), targets.get("sm_90a"))
    (name,) = re.findall(r"\.reg \.b32 (acc\d+_)<2>;", module.ptx)
    reads = re.findall(rf"mov\.b32 \{{[^}}]*\}}, {name}1;", module.ptx)
    writes = re.findall(rf"mov\.b32 \{{([^}}]*)\}}, {name}0; mov\.b32 {name}0, \{{([^}}]*)\}};", module.ptx)
    assert [re.sub(r"%\w+", "%", "|".join(pair)) for pair in writes] == ["lost, kept|%, kept", "kept, lost|kept, %"]
    assert [re.sub(r"%\w+", "%", text) for text in reads] == [
        f"mov.b32 {{%, other}}, {name}1;", f"mov.b32 {{other, %}}, {name}1;"
    ]  # fmt: skip
    check(module, "sm_90a")


@pytest.mark.parametrize("between", ["", "bar_sync(id=0, threads=128)\n"])
def test_registers_of_a_live_until_the_wait(between: str) -> None:
    """In one block with the multiplication; else moved to registers that nothing else is computed into."""
    body = (DESCRIPTOR + "for e in unrolled(0, 8):\n    a[e] = cast(A[tx * 8 + e], bfloat16)\nwgmma_fence()\n"
            f"{multiplication(16, more='a=a, a_offset=0')}, accumulate=bx > 3)\nwgmma_commit_group()\n{between}"
            "wgmma_wait_group(pending=0, accumulators=(acc,), fragments=(a,))\n" + STORES.format(8))  # fmt: skip
    module = emit(kernel(body, 8), targets.get("sm_90a"))
    assert "setp.ne.b32 P," in module.ptx
    lines = module.llvm_ir.splitlines()
    wait = next(line for line in lines if "wgmma.wait_group" in line)
    multiply = next(line for line in lines if "wgmma.mma_async" in line)
    assert multiply.count("i32 %") == 5, multiply  # four registers of A and the predicate
    assert (wait is multiply) == (not between)
    moves = [line for line in lines if 'asm sideeffect "mov.b32 $0, $1;"' in line]
    assert len(moves) == (4 if between else 0), moves
    check(module, "sm_90a")


def test_a_wait_joins_the_group_before_it() -> None:
    """Also when it waits for the accumulators of other groups, or for more of them."""
    start = DESCRIPTOR + f"wgmma_fence()\n{multiplication(16)}, accumulate=False)\nwgmma_commit_group()\n"
    other = "other = allocate_register(float32, (8,))\n"
    second = multiplication(16).replace("accumulator=acc", "accumulator=other")
    body = (other + start + f"bar_sync(id=0, threads=128)\nwgmma_fence()\n{second}, accumulate=False)\n"
            "wgmma_commit_group()\nwgmma_wait_group(pending=0, accumulators=(acc, other))\n"
            + STORES.format(8))  # fmt: skip
    module = emit(kernel(body, 8), targets.get("sm_90a"))
    assert blocks(module.ptx) == [1, 1]
    wait = next(line for line in module.llvm_ir.splitlines() if "wgmma.wait_group" in line)
    assert "wgmma.mma_async" in wait
    check(module, "sm_90a")
    whole = kernel(start + "wgmma_wait_group(pending=0, accumulators=(acc,))\n" + STORES.format(16), 16)
    wait = next(l for l in emit(whole, targets.get("sm_90a")).llvm_ir.splitlines() if "wgmma.wait_group" in l)
    assert "wgmma.mma_async" in wait


def test_fragments_are_not_repacked() -> None:
    """ldmatrix hands its registers to mma.sync as they are, although the fragments are typed."""
    ptx = emit(load("mma_sync").program, targets.get("sm_80")).ptx
    assert ptx.count("ldmatrix") == 6 and ptx.count("mma.sync") == 8
    body = ptx[ptx.index("ldmatrix") : ptx.rindex("mma.sync")]
    assert not re.search(r"\b(prmt|cvt\.u16|mov\.b32\s+\{)", body), body


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100a", "sm_120a"])
def test_no_wgmma_elsewhere(architecture: str) -> None:
    with pytest.raises(VerificationError, match="needs a target with"):
        emit(load("wgmma").program, targets.get(architecture))


def test_mixed_integers_need_a_newer_ptx_isa() -> None:
    target = targets.get("sm_90a")
    assert emit(tensor_cores.CASES["wgmma_int8_uint8_int32"]().program, target).ptx_isa == (8, 4)
    assert emit(tensor_cores.CASES["wgmma_uint8_uint8_int32"]().program, target).ptx_isa == (8, 0)


def test_the_check_can_fail() -> None:
    """An accumulator that is read between two groups makes ptxas add a wait, and it says so."""
    body = (DESCRIPTOR + f"wgmma_fence()\n{multiplication(16)}, accumulate=False)\nwgmma_commit_group()\n"
            "for i in unrolled(0, 8):\n    acc[i] = acc[i] + float32(1.0)\n"
            f"{multiplication(16)})\nwgmma_commit_group()\nwgmma_wait_group(pending=0, accumulators=(acc,))\n"
            + STORES.format(8))  # fmt: skip
    log = ptxas.assemble(emit(kernel(body, 8), targets.get("sm_90a")).ptx, "sm_90a")
    assert any(word in log for word in SERIALIZED), log

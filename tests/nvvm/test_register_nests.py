"""Loops over registers side by side: which become one piece of inline PTX, that it holds what the loops say, and that
the others are written element by element."""

from __future__ import annotations

import re

import pytest

from ptxtile import target as targets
from ptxtile.ir.parser import parse_program
from ptxtile.nvvm import emit
from tests import ptxas
from tests.conformance.cases import with_launch

HEAD = """\
ptxtile_ir(1)
program("p", stage="gpu")
A = tensor(float32, (65536,))
@kernel(grid=(1, 1, 1), threads=128, min_blocks=1, shared_bytes=65536)
def kernel(bx, by, bz, tx):
    S = allocate_shared(bfloat16, (32768,), storage_offset=0, storage_alignment=1024)
    acc = allocate_register(float32, (8,))
    half = allocate_register({dtype}, (8,))
    d: uint64 = uint64(4611686293305360384)
"""
MULTIPLY = """\
wgmma_fence()
wgmma(accumulator=acc, accumulator_offset=0, n=16, k=16, dtype_a=bfloat16, dtype_b=bfloat16, \
shared_b=S, descriptor_b=d, shared_a=S, descriptor_a=d)
wgmma_commit_group()
wgmma_wait_group(pending=0, accumulators=(acc,))
"""
STORE = "store_matrix(source=half, source_offset=0, shared=S, offset=tx * 8, count=4, transposed=False)\n"


def ptx_of(body: str, dtype: str = "bfloat16") -> str:
    text = HEAD.format(dtype=dtype) + "".join(f"    {line}\n" for line in body.splitlines())
    ptx = emit(with_launch(parse_program(text, "kernel.ir")), targets.get("sm_90a")).ptx
    log = ptxas.assemble(ptx, "sm_90a")
    assert "warning" not in log and "C75" not in log, log
    return ptx


def inline(ptx: str) -> list[str]:
    """The pieces of inline PTX."""
    return [text.strip() for text in re.findall(r"// begin inline asm\n(.*?)// end inline asm", ptx, re.DOTALL)]


# -- clearing ----------------------------------------
def cleared(piece: str) -> list[int]:
    return [int(number) for number in re.findall(r"mov\.b32 acc\d+_(\d+), 0;", piece)]


@pytest.mark.parametrize(
    "loops, elements",
    [
        ("for i in unrolled(0, 8):\n    acc[i] = float32(0.0)\n", range(8)),
        ("for i in unrolled(0, 2):\n    for j in unrolled(0, 4):\n        acc[j * 2 + i] = float32(0.0)\n", range(8)),
        ("for i in unrolled(1, 4):\n    acc[i + 2] = float32(0.0)\n", range(3, 6)),
        ("for i in unrolled(3, -1, -1):\n    acc[7 - i] = float32(0.0)\n", range(4, 8)),
    ],
    ids=["plain", "permuted", "offset", "down"],
)
def test_cleared_together(loops: str, elements: range) -> None:
    (piece,) = [piece for piece in inline(ptx_of(loops + MULTIPLY)) if cleared(piece)]
    assert sorted(cleared(piece)) == list(elements)


def test_cleared_one_by_one_where_they_are_not_side_by_side() -> None:
    ptx = ptx_of("for i in unrolled(0, 4):\n    acc[i * 2] = float32(0.0)\n" + MULTIPLY)
    assert [cleared(piece) for piece in inline(ptx) if cleared(piece)] == [[0], [2], [4], [6]]


def test_multiplications_before_come_first() -> None:
    """Those that are collected into one piece of inline PTX are written when a loop over registers comes."""
    multiply = MULTIPLY[: MULTIPLY.index("wgmma_wait")]
    clear = "for i in unrolled(0, 8):\n    other[i] = float32(0.0)\n"
    both = multiply + clear + multiply.replace("accumulator=acc", "accumulator=other")
    allocation = "other = allocate_register(float32, (8,))\n"
    wait = "wgmma_wait_group(pending=0, accumulators=(acc, other))"
    body = allocation + both + wait
    first, cleared_between, second = [piece for piece in inline(ptx_of(body)) if "wgmma" in piece or cleared(piece)]
    assert "mma_async" in first and "mma_async" in second and sorted(cleared(cleared_between)) == list(range(8))


def test_a_constant_that_is_not_zero() -> None:
    ptx = ptx_of("for i in unrolled(0, 8):\n    acc[i] = float32(1.5)\n" + MULTIPLY)
    assert sorted(int(number) for number in re.findall(r"mov\.b32 acc\d+_(\d+), %r\d+;", ptx)) == list(range(8))
    assert "0f3FC00000" in ptx or "1069547520" in ptx  # 1.5


# -- rounding ----------------------------------------
ROUND = "for i in unrolled(0, 2):\n    for j in unrolled(0, 4):\n        half[{to}] = cast(acc[{source}], {dtype})\n"


@pytest.mark.parametrize("dtype, pair", [("bfloat16", "bf16x2"), ("float16", "f16x2")])
def test_rounded_in_pairs(dtype: str, pair: str) -> None:
    """The second operand is the lower half (PTX ISA, «cvt»), and stmatrix takes the lower element first."""
    ptx = ptx_of(MULTIPLY + ROUND.format(to="i * 4 + j", source="i * 4 + j", dtype=dtype) + STORE, dtype)
    words = {
        register: (int(low), int(high))
        for register, high, low in re.findall(rf"cvt\.rn\.{pair}\.f32 (%r\d+), acc\d+_(\d+), acc\d+_(\d+);", ptx)
    }
    operands = re.search(r"stmatrix[^{]*\{(.*?)\}", ptx)
    assert operands is not None
    assert [words[register] for register in operands[1].split(", ")] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert not re.search(r"mov\.b32 %\w+, acc", ptx)


@pytest.mark.parametrize(
    "to, source",
    [("i * 4 + j", "7 - i * 4 - j"), ("i * 4 + j", "j * 2 + i"), ("j * 2 + i", "i * 4 + j")],
    ids=["backwards", "permuted source", "permuted target"],
)
def test_another_order_is_kept(to: str, source: str) -> None:
    places: dict[int, int] = {}
    for i in range(2):
        for j in range(4):
            places[eval(to, {"i": i, "j": j})] = eval(source, {"i": i, "j": j})
    ptx = ptx_of(MULTIPLY + ROUND.format(to=to, source=source, dtype="bfloat16") + STORE)
    moves = {register: int(number) for register, number in re.findall(r"mov\.b32 (%r\d+), acc\d+_(\d+);", ptx)}
    words = {
        register: (moves[low], moves[high])
        for register, high, low in re.findall(r"cvt\.rn\.bf16x2\.f32\s+(%r\d+), (%r\d+), (%r\d+);", ptx)
    }
    operands = re.search(r"stmatrix[^{]*\{(.*?)\}", ptx)
    assert operands is not None
    found = [element for register in operands[1].split(", ") for element in words[register]]
    assert found == [places[element] for element in range(8)]


def test_values_that_are_no_accumulator() -> None:
    """The same loops on a fragment that no wgmma works on."""
    body = "for i in unrolled(0, 8):\n    acc[i] = A[tx + i * 128]\n"
    ptx = ptx_of(body + ROUND.format(to="i * 4 + j", source="i * 4 + j", dtype="bfloat16") + STORE)
    assert not re.search(r"acc\d+_", ptx) and len(re.findall(r"cvt\.rn\.bf16x2\.f32", ptx)) == 4

"""16-bit instructions that assemblers get wrong do not reach them; what replaces them assembles everywhere."""

from __future__ import annotations

import pytest

from ptxtile import target
from ptxtile.ir.types import int8, int16, uint8, uint16
from ptxtile.nvvm import emit
from ptxtile.nvvm.assembler_faults import RULES, avoid_faults
from tests.conformance.compositions import random_case
from tests.ptxas import assemble


def test_what_the_rules_write():
    instructions = (
        "neg.s16 \t%rs2, %rs1",
        "max.u16 \t%rs3, %rs2, 1",
        "min.s16 \t%rs4, %rs3, %rs1",
        "max.u16x2 \t%r1, %r2, %r3",
    )
    ptx = "\n".join(f"\t{instruction};" for instruction in instructions)
    first, second, third, fourth = avoid_faults(ptx).split("\n")
    assert "cvt.s32.s16 wide, %rs1; neg.s32 wide, wide; cvt.u16.u32 %rs2, wide;" in first
    assert "cvt.u32.u16 wide_a, %rs2; mov.b32 wide_b, 1; max.u32 wide_a, wide_a, wide_b;" in second
    assert "cvt.u16.u32 %rs3, wide_a;" in second
    assert "cvt.s32.s16 wide_a, %rs3; cvt.s32.s16 wide_b, %rs1; min.s32" in third
    assert "mov.b32 wide_b, 65535;" in avoid_faults("max.u16 \t%rs1, %rs2, -1;")
    assert "mov.b32 wide_b, -1;" in avoid_faults("max.s16 \t%rs1, %rs2, 65535;")
    assert fourth == "\tmax.u16x2 \t%r1, %r2, %r3;"


@pytest.mark.parametrize("dtype", [int8, uint8, int16, uint16], ids=str)
def test_none_is_left_in_emitted_ptx(dtype):
    """Random expressions of narrow integers hold all of them."""
    program = random_case(dtype).program
    for name in ("sm_80", "sm_90a", "sm_120a"):
        ptx = emit(program, target.get(name)).ptx
        assert not any(rule.pattern.search(ptx) for rule in RULES)
        assemble(ptx, name)

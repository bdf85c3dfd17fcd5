"""PTX instructions that ptxas and the driver's JIT are known to translate wrongly, written another way.

Each rule names what was seen on a card. The rewriting is on text, after LLVM: LLVM narrows wider arithmetic back to 16
bits, so these instructions cannot be kept out of its output.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from ptxtile.records import record


@record
class Rule:
    """``pattern`` matches one instruction of ``operations``; ``fault`` says what went wrong, on what."""

    operations: tuple[str, ...]
    pattern: re.Pattern[str]
    replacement: Callable[[re.Match[str]], str]
    fault: str


def _one_operand(match: re.Match[str]) -> str:
    """``neg.s16 d, a`` and ``abs.s16 d, a`` with the wrap of −32768 made by a truncation."""
    widened = f"cvt.s32.s16 wide, {match['operand']}; {match['operator']}.s32 wide, wide;"
    return f"{{ .reg .b32 wide; {widened} cvt.u16.u32 {match['result']}, wide; }}"


def _in_32_bits(match: re.Match[str]) -> str:
    """``max.u16 d, a, b`` on zero- or sign-extended operands; an immediate is one already."""
    sign = match["sign"]
    moves = []
    for register, operand in (("wide_a", match["left"]), ("wide_b", match["right"])):
        if operand.startswith("%"):
            moves.append(f"cvt.{sign}32.{sign}16 {register}, {operand};")
        else:  # LLVM prints 65535 as -1
            bits = int(operand) & 0xFFFF
            moves.append(f"mov.b32 {register}, {bits if sign == 'u' or bits < 0x8000 else bits - 0x10000};")
    operation = f"{match['operator']}.{sign}32 wide_a, wide_a, wide_b;"
    return f"{{ .reg .b32 wide_a, wide_b; {' '.join(moves)} {operation} cvt.u16.u32 {match['result']}, wide_a; }}"


RULES = (
    Rule(
        ("neg.s16", "abs.s16"),
        re.compile(r"\b(?P<operator>neg|abs)\.s16\s+(?P<result>%\w+), (?P<operand>%\w+);"),
        _one_operand,
        "neg.s16 (also sub.s16 from 0) and abs.s16 lose the wrap of −32768, or the sign itself, where a 16-bit product "
        "or minimum or a comparison uses them. H200, driver 580.159, JIT for sm_90a.",
    ),
    Rule(
        ("min.u16", "min.s16", "max.u16", "max.s16"),
        re.compile(
            r"\b(?P<operator>min|max)\.(?P<sign>[us])16\s+(?P<result>%\w+), "
            r"(?P<left>%\w+|-?\d+), (?P<right>%\w+|-?\d+);"
        ),
        _in_32_bits,
        "max.u16(x << 1, 1) == 1 came out true for x = 20; in 32 bits it is right. H200, driver 580.159, JIT for "
        "sm_90a.",
    ),
)


def avoid_faults(ptx: str) -> str:
    """``ptx`` with every instruction of :data:`RULES` written the other way. Hardly any PTX has one, and matching a
    pattern at each place of a GEMM's takes a millisecond."""
    for rule in RULES:
        if any(operation in ptx for operation in rule.operations):
            ptx = rule.pattern.sub(rule.replacement, ptx)
    return ptx

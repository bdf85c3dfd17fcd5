"""Inline-PTX templates of ldmatrix, mma.sync and wgmma, made for the shape and element types that an op asks for.

Accumulators of wgmma are registers with names of PTX's (:mod:`ptxtile.nvvm.named_registers`), no operands. All from a
fence to the wait after its commit is one block (:class:`WgmmaBlock`): ptxas then sees no moves of registers between
multiplications, which would make it run them one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ptxtile.ir.types import DType
from ptxtile.nvvm.ptx_template import InlinePtx, operation, pure
from ptxtile.records import record
from ptxtile.target import Feature

_LDMATRIX = "Warp Level Matrix Instructions: ldmatrix"
_MMA = "Warp Level Matrix Instructions: mma"
_WGMMA = "Asynchronous Warpgroup Level Matrix Instructions: wgmma"

_SPELLINGS = {
    "float16": "f16", "bfloat16": "bf16", "tfloat32": "tf32", "float32": "f32", "float64": "f64", "int32": "s32",
    "int8": "s8", "uint8": "u8", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2",
}  # fmt: skip
_MIXED_INTEGERS = (".s8.u8", ".u8.s8")
"""In wgmma from PTX ISA 8.4 on, as ptxas says."""
_CONSTRAINTS = {"float": "f", "double": "d", "i32": "r"}


def spelling(dtype: DType) -> str:
    """How PTX calls an element type."""
    return _SPELLINGS[dtype.element_name]


def register_kind(dtype: DType, *, operand: bool = False) -> str:
    """The LLVM type of the registers of a fragment; an ``operand`` (A, B) of 32-bit elements is raw bits."""
    if dtype.bits == 64:
        return "double"
    return "float" if dtype.is_float and dtype.bits == 32 and not operand else "i32"


def registers_of(dtype: DType, elements: int) -> int:
    return elements * dtype.bits // 64 if dtype.bits == 64 else elements * dtype.bits // 32


def _list(first: int, count: int) -> str:
    return "{" + ", ".join(f"${position}" for position in range(first, first + count)) + "}"


def load_matrix(count: int, transposed: bool) -> InlinePtx:
    form = f"m8n8.x{count}{'.trans' if transposed else ''}"
    text = f"ldmatrix.sync.aligned.{form}.shared.b16 {_list(0, count)}, [${count}];"
    name = f"load_matrix_{count}{'_transposed' if transposed else ''}"
    constraints = ",".join([*["=r"] * count, "r"])
    return operation(name, text, constraints, ("i32",), _LDMATRIX, Feature.LDMATRIX, results=("i32",) * count)


def mma(shape: tuple[int, int, int], a: DType, b: DType, accumulator: DType, counts: tuple[int, int, int]) -> InlinePtx:
    """Operands: the registers of A, B and the accumulator; ``counts`` of each."""
    kinds = [register_kind(a, operand=True), register_kind(b, operand=True), register_kind(accumulator)]
    letters = [_CONSTRAINTS[kind] for kind in kinds]
    m, n, k = shape
    types = ".".join(spelling(dtype) for dtype in (accumulator, a, b, accumulator))
    name = f"mma.sync.aligned.m{m}n{n}k{k}.row.col.{types}"
    results = counts[2]
    lists = [_list(0, results), _list(results, counts[0]), _list(results + counts[0], counts[1]),
             _list(results + counts[0] + counts[1], results)]  # fmt: skip
    constraints = [f"={letters[2]}"] * results
    operands: list[str] = []
    for kind, letter, count in zip(kinds, letters, counts, strict=True):
        constraints += [letter] * count
        operands += [kind] * count
    feature = Feature.MMA_SYNC
    if a.is_float and a.bits == 8:
        feature = Feature.MMA_FP8
    elif a.bits == 64 and m == 16:
        feature = Feature.MMA_F64
    text = f"{name} {', '.join(lists)};"
    return InlinePtx(name, text, ",".join(constraints), tuple(operands), _MMA, convergent=True, feature=feature,
                     results=(kinds[2],) * results)  # fmt: skip


ANOTHER_REGISTER = pure(
    "another_register", "prmt.b32 $0, $1, $1, 0x3210;", "=r,r", ("i32",),
    "Data Movement and Conversion Instructions: prmt", result="i32",
)  # fmt: skip
"""A value in another register, which ptxas 13.0 takes for a computation: where A of a wgmma are the very registers of
an accumulator, it runs the instructions one at a time (C7511), and it removes plain moves."""


OPERAND_REGISTER = InlinePtx(
    "operand_register", "mov.b32 $0, $1;", "=r,r", ("i32",), "Data Movement and Conversion Instructions: mov",
    results=("i32",), memoryless=True,
)  # fmt: skip
"""A value in a register that nothing else is computed into, in its place among all inline PTX. ptxas removes the move
where it may."""


# --- wgmma -----------------------------------------------------------------------------------------------------------


@record
class Multiplication:
    """``accumulator``: names of its registers. ``a``: registers, or one descriptor. ``accumulate``: True, False (what
    the accumulator held does not matter), or an i32 operand that is not 0 where it holds. ``flags``: what follows it in
    the instruction."""

    name: str
    accumulator: tuple[str, ...]
    a: list[str]
    a_in_registers: bool
    b: str
    accumulate: bool | str
    flags: str


@dataclass(slots=True)
class WgmmaBlock:
    """Fences, multiplications, commits and waits that are written as one block of inline PTX, in order. ``inputs``: i32
    registers that have to live until its end."""

    steps: list[Multiplication | str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    def template(self) -> tuple[InlinePtx, list[str]]:
        """The template and its operands."""
        constraints: list[str] = []
        kinds: list[str] = []
        operands: list[str] = []
        known: dict[tuple[str, str], str] = {}

        def operand(text: str, kind: str) -> str:
            if (text, kind) not in known:
                known[text, kind] = f"${len(operands)}"
                constraints.append({"i64": "l", "i32": "r"}[kind])
                kinds.append(kind)
                operands.append(text)
            return known[text, kind]

        lines = []
        for step in self.steps:
            if isinstance(step, str):
                lines.append(step)
                continue
            accumulator = "{" + ", ".join(step.accumulator) + "}"
            if step.a_in_registers:
                a = "{" + ", ".join(operand(text, "i32") for text in step.a) + "}"
            else:
                a = operand(step.a[0], "i64")
            line = f"{step.name} {accumulator}, {a}, {operand(step.b, 'i64')}"
            if isinstance(step.accumulate, bool):
                lines.append(f"{line}, {int(step.accumulate)}{step.flags};")
            else:
                predicate = f"setp.ne.b32 P, {operand(step.accumulate, 'i32')}, 0;"
                lines.append(f"{{ .reg .pred P; {predicate} {line}, P{step.flags}; }}")
        for text in self.inputs:
            operand(text, "i32")
        mixed = any(name in line for line in lines for name in _MIXED_INTEGERS)
        name, isa = ("wgmma_mixed", (8, 4)) if mixed else ("wgmma", (8, 0))
        template = operation(name, " ".join(lines), ",".join(constraints), tuple(kinds), _WGMMA, Feature.WGMMA, isa=isa)
        return template, operands


def wgmma_name(n: int, k: int, a: DType, b: DType, accumulator: DType) -> str:
    types = ".".join(spelling(dtype) for dtype in (accumulator, a, b))
    return f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{types}"


def wgmma_flags(a: DType, *, transpose_a: bool | None, transpose_b: bool) -> str:
    """imm-scale-a, imm-scale-b and the transposes, as far as the instruction has them (PTX ISA 9.7.15.5.2);
    ``transpose_a`` is None when A is in registers."""
    if not a.is_float:
        return ""
    if a.bits != 16:
        return ", 1, 1"
    transposes = [] if transpose_a is None else [int(transpose_a)]
    return ", 1, 1, " + ", ".join(str(flag) for flag in (*transposes, int(transpose_b)))

"""PTX registers with names of their own: the accumulators of wgmma.

The instruction works on registers in place while the program goes on. As values of LLVM's they would have to go into
and come out of each block of inline PTX, up to 128 of them, and LLVM would carry each through every loop. With names
they are declared once and stay where they are; LLVM sees moves from and to them, which have effects and so keep their
order among all inline PTX: none can read one between a multiplication and its wait. ptxas removes the moves.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxtile.ir.buffers import Buffer
from ptxtile.ir.rewrite import statements_in
from ptxtile.ir.tensor_core_ops import Wgmma
from ptxtile.ir.types import DType
from ptxtile.nvvm import inline_ptx
from ptxtile.nvvm.context import Context
from ptxtile.nvvm.dtypes import value_type
from ptxtile.nvvm.ptx_template import InlinePtx
from ptxtile.records import record

_SECTION = "Data Movement and Conversion Instructions: mov"
_LETTERS = {"float": "f", "i32": "r", "half": "h", "bfloat": "h", "i16": "h"}
_ZEROS = frozenset({"0", "0x0000000000000000"})
"""Texts of 32-bit constants that PTX writes as 0."""


@record
class NamedRegisters:
    """``names`` of the 32-bit registers that hold the elements of a storage in order, one or two of ``dtype`` each."""

    names: tuple[str, ...]
    dtype: DType

    @property
    def elements(self) -> int:
        return len(self.names) * 32 // self.dtype.bits

    def holding(self, first: int, count: int) -> tuple[str, ...]:
        """The registers of whole elements: ``first`` and ``count`` are even where two share one."""
        return self.names[first * self.dtype.bits // 32 : (first + count) * self.dtype.bits // 32]


def accumulators(context: Context) -> frozenset[str]:
    """The storages in which the kernel's wgmma instructions accumulate."""
    if context.accumulators is None:
        body = () if context.kernel is None else statements_in(context.kernel.body)
        context.accumulators = frozenset(node.accumulator.storage.name for node in body if isinstance(node, Wgmma))
    return context.accumulators


def declare(context: Context, buffer: Buffer) -> NamedRegisters:
    """Declares registers for the storage of ``buffer`` at the function's entry."""
    count, stem = (buffer.storage.size or 0) // 4, context.writer.name("acc") + "_"
    context.writer.allocations.append(f'  call void asm sideeffect ".reg .b32 {stem}<{count}>;", ""() #3')
    return NamedRegisters(tuple(f"{stem}{number}" for number in range(count)), buffer.dtype.element)


def read(context: Context, registers: Sequence[str], kind: str) -> list[str]:
    """The registers whole, as values of LLVM type ``kind`` (float, i32)."""
    moves = " ".join(f"mov.b32 ${position}, {name};" for position, name in enumerate(registers))
    constraints = ",".join([f"={_LETTERS[kind]}"] * len(registers))
    return _move(context, moves, constraints, results=(kind,) * len(registers))


def read_rounded(context: Context, registers: Sequence[str], kind: str) -> list[str]:
    """float32 registers as i32 operands of two elements of LLVM type ``kind`` (half, bfloat), the first in the lower
    bits."""
    pair = {"half": "f16x2", "bfloat": "bf16x2"}[kind]
    words = []
    for low, high in zip(registers[::2], registers[1::2], strict=True):
        words += _move(context, f"cvt.rn.{pair}.f32 $0, {high}, {low};", "=r", results=("i32",))
    return words


def write(context: Context, registers: Sequence[str], values: Sequence[str], kind: str) -> None:
    """Sets the registers whole, from values of LLVM type ``kind``."""
    cleared = [name for name, value in zip(registers, values, strict=True) if value in _ZEROS]
    if cleared:
        _move(context, " ".join(f"mov.b32 {name}, 0;" for name in cleared), "")
    for name, value in zip(registers, values, strict=True):
        if value not in _ZEROS:
            _move(context, f"mov.b32 {name}, $0;", _LETTERS[kind], {value: kind})


def load(context: Context, named: NamedRegisters, elements: range) -> list[str]:
    """Elements as values of the LLVM type of the registers' dtype."""
    kind = value_type(named.dtype)
    if named.dtype.bits == 32:
        return read(context, named.holding(elements.start, len(elements)), kind)
    found = []
    for element in elements:
        name, both = named.names[element // 2], ("other, $0" if element % 2 else "$0, other")
        found += _move(context, f"{{ .reg .b16 other; mov.b32 {{{both}}}, {name}; }}", "=h", results=(kind,))
    return found


def store(context: Context, named: NamedRegisters, elements: range, values: Sequence[str]) -> None:
    """Sets elements to ``values``, which are of the LLVM type of the registers' dtype."""
    kind = value_type(named.dtype)
    if named.dtype.bits == 32:
        write(context, named.holding(elements.start, len(elements)), values, kind)
        return
    for element, value in zip(elements, values, strict=True):
        name, both = named.names[element // 2], ("kept, $0" if element % 2 else "$0, kept")
        halves = "lost, kept" if element % 2 == 0 else "kept, lost"
        text = f"{{ .reg .b16 kept, lost; mov.b32 {{{halves}}}, {name}; mov.b32 {name}, {{{both}}}; }}"
        _move(context, text, "h", {value: kind})


def _move(
    context: Context, text: str, constraints: str, operands: dict[str, str] | None = None, results: tuple[str, ...] = ()
) -> list[str]:
    """``operands``: texts and their LLVM types."""
    given = operands or {}
    kinds = tuple(given.values())
    template = InlinePtx("named_registers", text, constraints, kinds, _SECTION, results=results, memoryless=True)
    return inline_ptx.write(context.writer, template, list(given))

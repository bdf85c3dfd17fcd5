"""Atomic operations: the instruction where there is one for the dtype, else a loop of compare-and-swap.

The templates are made from a few tables, since operator, type, memory order and state space combine freely (PTX ISA,
«atom», «red», «ld», «st», «fence»; the forms here are those of PTX ISA 6.0 and sm_70 unless a row says otherwise). All
have the scope of the device.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptxtile.ir.atomic_ops import Atomic, AtomicLoad, AtomicStore
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.types import DType, Kind, uint32
from ptxtile.nvvm import inline_ptx, memory, operators
from ptxtile.nvvm.context import Context
from ptxtile.nvvm.dtypes import memory_type
from ptxtile.nvvm.expressions import evaluate, scalar
from ptxtile.nvvm.function import Value, constant_value
from ptxtile.nvvm.ptx_template import InlinePtx
from ptxtile.target import Feature

SECTION = "Parallel Synchronization and Communication Instructions: atom, red"
_CONSTRAINTS = {8: "h", 16: "h", 32: "r", 64: "l"}
_STRONGEST = {"acq_rel": "acq_rel", "seq_cst": "acq_rel"}


def run(context: Context, node: Atomic | AtomicLoad | AtomicStore) -> None:
    if node.order == "seq_cst":
        fence = InlinePtx("fence_sc_gpu", "fence.sc.gpu;", "~{memory}", (), "membar, fence")
        inline_ptx.write(context.writer, fence, ())
    index = scalar(context, node.indices[0])
    if isinstance(node, AtomicLoad):
        _result(
            context,
            node.result,
            [_load(context, node.buffer, index, "acquire" if node.order != "relaxed" else "relaxed")],
        )
        return
    values = evaluate(context, node.value)
    if isinstance(node, AtomicStore):
        _store(context, node.buffer, index, values[0], "relaxed" if node.order == "relaxed" else "release")
        return
    order = _STRONGEST.get(node.order, node.order)
    results: list[Value] = []
    width = _width(context, node, len(values))
    for first in range(0, len(values), width):
        place = operators.binary(context.writer, "add", index, constant_value(first, index.dtype)) if first else index
        results += _operation(context, node, place, values[first : first + width], order)
    if node.result is not None:
        _result(context, node.result, results)


def _result(context: Context, result: Buffer, values: Sequence[Value]) -> None:
    memory.store(context, result, constant_value(0, uint32), values)


def _width(context: Context, node: Atomic, lanes: int) -> int:
    """Elements that one instruction takes of a vector."""
    target = context.writer.module.target
    if lanes == 1 or target.has(Feature.ATOMIC_VECTOR):
        return lanes
    return 2 if node.buffer.dtype.element_name == "float16" else 1


def _operation(context: Context, node: Atomic, index: Value, values: Sequence[Value], order: str) -> list[Value]:
    if len(values) > 1:
        return _vector(context, node, index, values, order)
    kind = _instruction(context, node.operator, node.buffer.dtype)
    if kind is None:
        return [_compare_and_swap(context, node.operator, node.buffer, index, values[0], order)]
    dtype = node.buffer.dtype
    bits = _to_bits(context, values[0], dtype)
    space, address, letter = _address(context, node.buffer, index)
    operator = {"exchange": "exch"}.get(node.operator, node.operator)
    name = f"{order}.gpu.{space}.{operator}.{kind}"
    operands = (letter[1], f"i{dtype.bits}")
    register = _CONSTRAINTS[dtype.bits]
    feature = Feature.ATOMIC_VECTOR if kind.endswith("bf16") else None
    if node.result is None and order in ("relaxed", "release") and operator != "exch":
        template = InlinePtx(f"red.{name}", f"red.{name} [$0], $1;", f"{letter[0]},{register},~{{memory}}", operands,
                             SECTION, feature=feature)  # fmt: skip
        inline_ptx.write(context.writer, template, (address, bits))
        return []
    constraints = f"={register},{letter[0]},{register},~{{memory}}"
    template = InlinePtx(f"atom.{name}", f"atom.{name} $0, [$1], $2;", constraints, operands, SECTION,
                         result=f"i{dtype.bits}", feature=feature)  # fmt: skip
    return [_from_bits(context, inline_ptx.write(context.writer, template, (address, bits))[0], dtype)]


def _instruction(context: Context, operator: str, dtype: DType) -> str | None:
    """The type of the instruction, or None where there is none (PTX ISA, «atom»: which operations take which types)."""
    if dtype.bits < 16 or (dtype.bits == 16 and (not dtype.is_float or operator != "add")):
        return None
    if operator in ("and", "or", "xor", "exchange"):
        return f"b{dtype.bits}"
    if dtype.is_float:
        if operator != "add" or (dtype.element_name == "bfloat16" and not _has_bfloat(context)):
            return None
        return {"float16": "noftz.f16", "bfloat16": "noftz.bf16", "float32": "f32", "float64": "f64"}[
            dtype.element_name
        ]
    signed = dtype.is_signed and not (operator == "add" and dtype.bits == 64)  # wraps alike; add has no s64
    return f"{'s' if signed else 'u'}{dtype.bits}"


def _has_bfloat(context: Context) -> bool:
    return context.writer.module.target.has(Feature.ATOMIC_VECTOR)


# -- vectors ----------------------------------------
def _vector(context: Context, node: Atomic, index: Value, values: Sequence[Value], order: str) -> list[Value]:
    """``.v2``/``.v4`` of float32, or of pairs of 16-bit floats (PTX ISA 8.1, sm_90); one pair of float16 is older."""
    writer, dtype, lanes = context.writer, node.buffer.dtype, len(values)
    space, address, letter = _address(context, node.buffer, index)
    if dtype.bits == 32:
        parts, kind, register, part_type, count = [v.text for v in values], "f32", "f", "float", lanes
    else:
        pair = f"<2 x {memory_type(dtype)}>"
        parts = []
        for first in range(0, lanes, 2):
            low = writer.register(f"insertelement {pair} poison, {memory_type(dtype)} {values[first].text}, i32 0")
            both = writer.register(f"insertelement {pair} {low}, {memory_type(dtype)} {values[first + 1].text}, i32 1")
            parts.append(writer.register(f"bitcast {pair} {both} to i32"))
        kind = "f16x2" if dtype.element_name == "float16" else "bf16x2"
        register, part_type, count = "r", "i32", lanes // 2
    rounding = "noftz." if dtype.bits == 16 else ""
    vector = f"v{count}." if count > 1 else ""
    name = f"{order}.gpu.{space}.add.{rounding}{vector}{kind}"
    feature = None if kind == "f16x2" and count == 1 else Feature.ATOMIC_VECTOR
    plain = node.result is None and order in ("relaxed", "release")
    first_operand = 0 if plain else count
    listed = ", ".join(f"${first_operand + 1 + part}" for part in range(count))
    source = f"{{{listed}}}" if count > 1 else listed
    inputs = ",".join([letter[0], *[register] * count])
    operands = (letter[1], *[part_type] * count)
    if plain:
        text = f"red.{name} [$0], {source};"
        template = InlinePtx(f"red.{name}", text, f"{inputs},~{{memory}}", operands, SECTION, feature=feature)
        inline_ptx.write(writer, template, (address, *parts))
        return []
    outputs = ", ".join(f"${part}" for part in range(count))
    target = f"{{{outputs}}}" if count > 1 else outputs
    constraints = ",".join([f"={register}"] * count) + f",{inputs},~{{memory}}"
    template = InlinePtx(f"atom.{name}", f"atom.{name} {target}, [${count}], {source};", constraints, operands, SECTION,
                         results=(part_type,) * count, feature=feature)  # fmt: skip
    found = inline_ptx.write(writer, template, (address, *parts))
    if dtype.bits == 32:
        return [Value(part, dtype) for part in found]
    halves: list[Value] = []
    for part in found:
        pair = f"<2 x {memory_type(dtype)}>"
        both = writer.register(f"bitcast i32 {part} to {pair}")
        halves += [writer.value(f"extractelement {pair} {both}, i32 {lane}", dtype) for lane in range(2)]
    return halves


# -- addresses and bits ----------------------------------------
def _address(context: Context, buffer: Buffer, index: Value) -> tuple[str, str, tuple[str, str]]:
    """(state space, operand, (constraint, LLVM type)) of an element's address."""
    if buffer.scope is Scope.SHARED:
        return "shared", memory.shared_address(context, buffer, index, buffer.dtype.itemsize), ("r", "i32")
    pointer = memory.address(context, buffer, index)
    return "global", context.writer.register(f"ptrtoint ptr addrspace(1) {pointer} to i64"), ("l", "i64")


def _to_bits(context: Context, value: Value, dtype: DType) -> str:
    """A value as an integer of the dtype's width."""
    writer = context.writer
    if dtype.kind is Kind.BOOL:
        return writer.register(f"zext i1 {writer.operand(value)} to i8")
    kind = memory_type(dtype)
    if kind.startswith("i"):
        return writer.operand(value)
    return writer.register(f"bitcast {kind} {value.text} to i{dtype.bits}")


def _from_bits(context: Context, bits: str, dtype: DType) -> Value:
    writer = context.writer
    if dtype.kind is Kind.BOOL:
        return writer.value(f"icmp ne i8 {bits}, 0", dtype)
    kind = memory_type(dtype)
    return (
        Value(bits, dtype.element)
        if kind.startswith("i")
        else writer.value(f"bitcast i{dtype.bits} {bits} to {kind}", dtype)
    )


# -- loads and stores ----------------------------------------
def _load(context: Context, buffer: Buffer, index: Value, order: str) -> Value:
    dtype = buffer.dtype
    space, address, letter = _address(context, buffer, index)
    return _from_bits(context, _load_bits(context, space, address, letter, dtype.bits, order), dtype)


def _load_bits(context: Context, space: str, address: str, letter: tuple[str, str], bits: int, order: str) -> str:
    """A byte is loaded into a 16-bit register, the narrowest that inline PTX has."""
    writer, register = context.writer, _CONSTRAINTS[bits]
    name = f"ld.{order}.gpu.{space}.{'u8' if bits == 8 else f'b{bits}'}"
    held = max(bits, 16)
    template = InlinePtx(name, f"{name} $0, [$1];", f"={register},{letter[0]},~{{memory}}", (letter[1],),
                         "Data Movement and Conversion Instructions: ld", result=f"i{held}")  # fmt: skip
    (result,) = inline_ptx.write(writer, template, (address,))
    return result if held == bits else writer.register(f"trunc i{held} {result} to i{bits}")


def _store(context: Context, buffer: Buffer, index: Value, value: Value, order: str) -> None:
    writer, dtype = context.writer, buffer.dtype
    space, address, letter = _address(context, buffer, index)
    bits, held = _to_bits(context, value, dtype), max(dtype.bits, 16)
    if held != dtype.bits:
        bits = writer.register(f"zext i{dtype.bits} {bits} to i{held}")
    name = f"st.{order}.gpu.{space}.{'u8' if dtype.bits == 8 else f'b{dtype.bits}'}"
    template = InlinePtx(name, f"{name} [$0], $1;", f"{letter[0]},{_CONSTRAINTS[dtype.bits]},~{{memory}}",
                         (letter[1], f"i{held}"), "Data Movement and Conversion Instructions: st")  # fmt: skip
    inline_ptx.write(writer, template, (address, bits))


# -- compare and swap ----------------------------------------
def _compare_and_swap(context: Context, operator: str, buffer: Buffer, index: Value, value: Value, order: str) -> Value:
    """A loop that computes the new value and swaps it in unless another thread was faster; gives the value from before.

    ``atom.cas`` takes 16, 32 and 64 bits (16: PTX ISA 6.3, sm_70); a byte is swapped within its aligned 32-bit word.
    """
    writer, dtype = context.writer, buffer.dtype
    space, address, letter = _address(context, buffer, index)
    width = dtype.bits
    shift = ""
    if width == 8:
        width = 32
        low = writer.register(f"and {letter[1]} {address}, 3")
        low = low if letter[1] == "i32" else writer.register(f"trunc {letter[1]} {low} to i32")
        shift = writer.register(f"shl i32 {low}, 3")
        address = writer.register(f"and {letter[1]} {address}, -4")
    first = _load_bits(context, space, address, letter, width, "relaxed")
    before, head, end = writer.label, writer.name("swap"), writer.name("swapped")
    following = "%" + writer.name("seen")
    writer.block(head)
    seen = writer.effect(f"phi i{width} [ {first}, %{before} ], [ {following}, %{head} ]")
    with writer.scope():
        old = _from_bits(context, _extracted(context, seen, shift), dtype)
        new = value if operator == "exchange" else operators.binary(writer, operator, old, value)
        bits = _inserted(context, seen, _to_bits(context, new, dtype), shift)
        if writer.label != head:
            raise writer.error(f"the operator {operator} of {dtype} has control flow, which a swap loop cannot have")
        register = _CONSTRAINTS[width]
        name = f"atom.{order}.gpu.{space}.cas.b{width}"
        constraints = f"={register},{letter[0]},{register},{register},~{{memory}}"
        template = InlinePtx(name, f"{name} $0, [$1], $2, $3;", constraints,
                             (letter[1], f"i{width}", f"i{width}"), SECTION, result=f"i{width}")  # fmt: skip
        (found,) = inline_ptx.write(writer, template, (address, seen, bits))
        writer.lines.append(f"  {following} = add i{width} {found}, 0{writer.debug}")
        done = writer.register(f"icmp eq i{width} {found}, {seen}")
    writer.branch(done, end, head)
    writer.block(end)
    return _from_bits(context, _extracted(context, seen, shift), dtype)


def _extracted(context: Context, word: str, shift: str) -> str:
    """The byte of a word that starts at bit ``shift``; the word itself when that is empty."""
    if not shift:
        return word
    moved = context.writer.register(f"lshr i32 {word}, {shift}")
    return context.writer.register(f"trunc i32 {moved} to i8")


def _inserted(context: Context, word: str, byte: str, shift: str) -> str:
    if not shift:
        return byte
    writer = context.writer
    mask = writer.register(f"shl i32 255, {shift}")
    others = writer.register(f"and i32 {word}, {writer.register(f'xor i32 {mask}, -1')}")
    wide = writer.register(f"zext i8 {byte} to i32")
    return writer.register(f"or i32 {others}, {writer.register(f'shl i32 {wide}, {shift}')}")

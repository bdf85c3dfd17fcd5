"""Addresses, loads and stores.

A scalar or vector access is aligned to its whole size (a rule of the gpu stage). The outermost additions of an index
must not overflow its dtype: their constant part becomes the immediate offset of the instruction, so that the accesses
of an unrolled loop share one address register."""

from __future__ import annotations

from collections.abc import Sequence

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.types import DType, Kind, int32, wrap_integer
from ptxtile.nvvm import named_registers
from ptxtile.nvvm.context import Context
from ptxtile.nvvm.dtypes import memory_type, value_type
from ptxtile.nvvm.function import Value, constant_value
from ptxtile.nvvm.register_slots import RegisterSlots

_ADDRESS_SPACES = {Scope.GLOBAL: " addrspace(1)", Scope.SHARED: " addrspace(3)", Scope.LOCAL: ""}


# -- allocation ----------------------------------------
def allocate(context: Context, buffer: Buffer) -> None:
    """REGISTER: values of LLVM's, so that a variable index is impossible, or registers with names. LOCAL: a byte
    array. SHARED and BARRIER storage was placed before and needs nothing here. An Allocate in an expanded loop
    finds its slots made already."""
    storage = buffer.storage
    if storage.name in context.registers or storage.name in context.named:
        return
    if storage.scope is Scope.REGISTER and storage.name in named_registers.accumulators(context):
        context.named[storage.name] = named_registers.declare(context, buffer)
    elif storage.scope is Scope.REGISTER:
        count = (storage.size or 0) * 8 // buffer.dtype.bits
        context.registers[storage.name] = RegisterSlots(context.writer, buffer.dtype.element, count)
    elif storage.scope is Scope.LOCAL and storage.name not in context.arrays:
        kind = f"[{storage.size or 0} x i8]"
        context.arrays[storage.name] = context.writer.allocate(kind, max(storage.alignment, 8))
    elif storage.scope is Scope.FRAGMENT:
        raise context.writer.error(f"the fragment {buffer.name} was not lowered to registers")


# -- registers ----------------------------------------
def registers_at(context: Context, buffer: Buffer, index: Value, lanes: int, *, may_be_outside: bool) -> range | None:
    """The registers from ``index`` on. None: out of range, where that is legal because the access never happens; the
    guard of an expanded iteration may depend on the thread, so that it is not known to fail."""
    writer, name = context.writer, buffer.storage.name
    if name in context.named:
        dtype, count = context.named[name].dtype, context.named[name].elements
    elif name in context.registers:
        dtype, count = context.registers[name].dtype, context.registers[name].count
    else:
        raise writer.error(f"the buffer {buffer.name} is used before its Allocate")
    if index.constant is None:
        raise writer.error(
            f"the register buffer {buffer.name} is indexed by a value that is not constant",
            expected="an index that is constant once the unrolled loops around it are expanded",
            hint="a buffer with a variable index has to be LOCAL",
        )
    if dtype.bits != buffer.dtype.bits:
        raise writer.error(f"{buffer.name} views registers of elements of another width")
    first = int(index.constant)
    if first < 0 or first + lanes > count:
        if may_be_outside:
            return None
        raise writer.error(f"index {first} of {buffer.name} is out of range", expected=f"0 to {count - lanes}")
    return range(first, first + lanes)


def _load_registers(context: Context, buffer: Buffer, elements: range, dtype: DType) -> tuple[Value, ...]:
    named = context.named.get(buffer.storage.name)
    if named is not None:
        kind, texts = value_type(named.dtype), named_registers.load(context, named, elements)
    else:
        slots = context.registers[buffer.storage.name]
        kind, texts = slots.kind, [slots.load(element) for element in elements]
    if kind == value_type(dtype):
        return tuple([Value(text, dtype) for text in texts])
    return tuple(reinterpret(context, text, kind, dtype) for text in texts)


def _store_registers(context: Context, buffer: Buffer, elements: range, values: Sequence[Value]) -> None:
    writer, named = context.writer, context.named.get(buffer.storage.name)
    kept = named.dtype if named is not None else context.registers[buffer.storage.name].dtype
    kind, texts = value_type(kept), []
    for value in values:
        text, own = writer.operand(value), value_type(value.dtype)
        texts.append(text if own == kind else reinterpret(context, text, own, kept).text)
    if named is not None:
        named_registers.store(context, named, elements, texts)
        return
    slots = context.registers[buffer.storage.name]
    for element, text in zip(elements, texts, strict=True):
        slots.store(element, text)


def load_words(context: Context, buffer: Buffer, index: Value, elements: int) -> list[str]:
    """Elements below 32 bits, from ``index`` on, as i32 operands of several elements each."""
    found = registers_at(context, buffer, index, elements, may_be_outside=True)
    if found is None:
        return ["0"] * (elements * buffer.dtype.bits // 32)
    return context.registers[buffer.storage.name].load_words(found)


def store_words(context: Context, buffer: Buffer, index: Value, words: list[str]) -> None:
    """The inverse of :func:`load_words`."""
    elements = len(words) * 32 // buffer.dtype.bits
    found = registers_at(context, buffer, index, elements, may_be_outside=context.writer.is_conditional)
    if found is not None:
        context.registers[buffer.storage.name].store_words(found.start, words)


def reinterpret(context: Context, text: str, kind: str, dtype: DType) -> Value:
    """A value of LLVM type ``kind`` as one of ``dtype``, bit by bit (views of registers as another type)."""
    wanted = value_type(dtype)
    if kind == wanted:
        return Value(text, dtype.element)
    if kind == "i1":
        return context.writer.value(f"zext i1 {text} to {wanted}", dtype)
    if wanted == "i1":
        return context.writer.value(f"icmp ne {kind} {text}, 0", dtype)
    return context.writer.value(f"bitcast {kind} {text} to {wanted}", dtype)


# -- addresses ----------------------------------------
def _base(context: Context, buffer: Buffer) -> tuple[str, int]:
    """The base pointer and a constant byte offset from it."""
    writer, name = context.writer, buffer.storage.name
    if buffer.scope is Scope.SHARED:
        return writer.module.shared_symbol(), context.shared_offset(buffer.storage)
    table = context.pointers if buffer.scope is Scope.GLOBAL else context.arrays
    if buffer.scope not in _ADDRESS_SPACES or name not in table:
        raise writer.error(f"the {buffer.scope.value} buffer {buffer.name} has no address in this kernel")
    return table[name], 0


def address(context: Context, buffer: Buffer, index: Value) -> str:
    """The pointer to element ``index`` of the buffer's storage."""
    writer = context.writer
    pointer, constant_bytes = _base(context, buffer)
    space = _ADDRESS_SPACES[buffer.scope]
    if index.constant is None:
        kind = f"i{index.dtype.bits}"
        pointer = writer.register(
            f"getelementptr {memory_type(buffer.dtype)}, ptr{space} {pointer}, {kind} {index.text}"
        )
        constant_bytes += index.offset * buffer.dtype.bits // 8
    else:
        constant_bytes += int(index.constant) * buffer.dtype.bits // 8
    if constant_bytes:
        pointer = writer.register(f"getelementptr i8, ptr{space} {pointer}, i64 {constant_bytes}")
    return pointer


def _alignment(dtype: DType, lanes: int) -> int:
    """Bytes; the largest power of two that divides the access."""
    size = dtype.bits // 8 * lanes
    return size & -size


# -- loads and stores ----------------------------------------
def load(context: Context, buffer: Buffer, index: Value, dtype: DType) -> tuple[Value, ...]:
    """The elements from ``index`` on, one Value for each lane of ``dtype``."""
    writer, lanes, element = context.writer, dtype.lanes, dtype.element
    if buffer.scope is Scope.REGISTER:
        elements = registers_at(context, buffer, index, lanes, may_be_outside=True)
        if elements is None:
            return tuple(constant_value(0, element) for _ in range(lanes))
        return _load_registers(context, buffer, elements, element)
    kind = memory_type(element)
    pointer = address(context, buffer, index)
    whole = kind if lanes == 1 else f"<{lanes} x {kind}>"
    flags = ", !invariant.load !0" if buffer.scope is Scope.GLOBAL and buffer.storage.name in context.invariant else ""
    place = f"ptr{_ADDRESS_SPACES[buffer.scope]} {pointer}, align {_alignment(element, lanes)}"
    value = writer.effect(f"load {whole}, {place}{flags}")
    if lanes == 1:
        return (_from_memory(context, value, element),)
    parts = (writer.register(f"extractelement {whole} {value}, i32 {lane}") for lane in range(lanes))
    return tuple(_from_memory(context, part, element) for part in parts)


def _from_memory(context: Context, text: str, dtype: DType) -> Value:
    if dtype.kind is Kind.BOOL:
        return context.writer.value(f"icmp ne i8 {text}, 0", dtype)
    return Value(text, dtype)


def store(context: Context, buffer: Buffer, index: Value, values: Sequence[Value]) -> None:
    """Writes ``values`` to consecutive elements from ``index`` on."""
    writer, lanes, element = context.writer, len(values), buffer.dtype.element
    if buffer.scope is Scope.REGISTER:
        elements = registers_at(context, buffer, index, lanes, may_be_outside=writer.is_conditional)
        if elements is not None:
            _store_registers(context, buffer, elements, values)
        return
    kind = memory_type(element)
    parts = [_to_memory(context, value) for value in values]
    whole, text = kind, parts[0]
    if lanes > 1:
        whole, text = f"<{lanes} x {kind}>", "poison"
        for lane, part in enumerate(parts):
            text = writer.register(f"insertelement {whole} {text}, {kind} {part}, i32 {lane}")
    pointer = address(context, buffer, index)
    place = f"ptr{_ADDRESS_SPACES[buffer.scope]} {pointer}, align {_alignment(element, lanes)}"
    writer.line(f"store {whole} {text}, {place}")


def _to_memory(context: Context, value: Value) -> str:
    if value.dtype.kind is Kind.BOOL:
        return context.writer.register(f"zext i1 {value.text} to i8")
    return context.writer.operand(value)


# -- shared addresses of GPU ops ----------------------------------------
def shared_address(context: Context, buffer: Buffer, index: Value, element_bytes: int) -> str:
    """A 32-bit shared-memory address, as inline PTX takes it: ``element_bytes`` times the index into the storage. All
    that is constant is added last: the addresses of an expanded loop share what is before it."""
    writer = context.writer
    offset = context.shared_offset(buffer.storage)
    if index.constant is not None:
        offset += int(index.constant) * element_bytes
        scaled = None
    else:
        offset += index.offset * element_bytes
        number = index.text
        if index.dtype.bits == 64:
            number = writer.register(f"trunc i64 {number} to i32")
        scaled = writer.register(f"mul i32 {number}, {element_bytes}")
    base = f"ptrtoint (ptr addrspace(3) {writer.module.shared_symbol()} to i32)"
    if offset:
        base = f"add (i32 {base}, i32 {wrap_integer(offset, int32)})"
    return base if scaled is None else writer.register(f"add i32 {scaled}, {base}")

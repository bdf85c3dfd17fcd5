"""Rules for the ops of the tensor cores: fragments packed into 32-bit registers, and the inline PTX around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from ptxtile.ir import tensor_core_ops as ir
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr
from ptxtile.ir.types import int32
from ptxtile.nvvm import inline_ptx, matrix_ptx, memory, named_registers
from ptxtile.nvvm.context import Context
from ptxtile.nvvm.dtypes import value_type
from ptxtile.nvvm.expressions import scalar
from ptxtile.nvvm.function import Value, constant_value
from ptxtile.nvvm.matrix_ptx import Multiplication, WgmmaBlock


# -- fragments ----------------------------------------
def load_fragment(context: Context, buffer: Buffer, first: Value, elements: int, kind: str) -> list[str]:
    """Consecutive elements of a REGISTER buffer as registers of LLVM type ``kind``: float, double, or i32 of packed
    elements."""
    writer, dtype = context.writer, buffer.dtype
    named = context.named.get(buffer.storage.name)
    if named is not None and first.constant is not None:
        return named_registers.read(context, named.holding(int(first.constant), elements), kind)
    if dtype.bits < 32:
        return memory.load_words(context, buffer, first, elements)
    texts = [writer.operand(value) for value in memory.load(context, buffer, first, dtype.with_lanes(elements))]
    own = value_type(dtype)
    return texts if own == kind else [writer.register(f"bitcast {own} {text} to {kind}") for text in texts]


def store_fragment(context: Context, buffer: Buffer, first: Value, registers: list[str], kind: str) -> None:
    """The inverse of :func:`load_fragment`."""
    writer, dtype = context.writer, buffer.dtype
    named = context.named.get(buffer.storage.name)
    if named is not None and first.constant is not None:
        elements = len(registers) * 32 // dtype.bits
        named_registers.write(context, named.holding(int(first.constant), elements), registers, kind)
        return
    if dtype.bits < 32:
        memory.store_words(context, buffer, first, registers)
        return
    own, texts = value_type(dtype), registers
    if own != kind:
        texts = [writer.register(f"bitcast {kind} {text} to {own}") for text in registers]
    memory.store(context, buffer, first, [Value(text, dtype.element) for text in texts])


def _row_address(context: Context, shared: Buffer, offset: Expr) -> str:
    return memory.shared_address(context, shared, scalar(context, offset), shared.dtype.itemsize)


# -- ldmatrix, stmatrix, mma.sync ----------------------------------------
def _load_matrix(context: Context, node: ir.LoadMatrix) -> None:
    template = matrix_ptx.load_matrix(node.count, node.transposed)
    registers = inline_ptx.write(context.writer, template, [_row_address(context, node.shared, node.offset)])
    store_fragment(context, node.destination, scalar(context, node.destination_offset), registers, "i32")


def _store_matrix(context: Context, node: ir.StoreMatrix) -> None:
    first = scalar(context, node.source_offset)
    registers = load_fragment(context, node.source, first, ir.matrix_elements(node), "i32")
    name = f"store_matrix_{node.count}{'_transposed' if node.transposed else ''}"
    inline_ptx.call(context.writer, name, _row_address(context, node.shared, node.offset), *registers)


def _mma_sync(context: Context, node: ir.MmaSync) -> None:
    a, b, c = ir.fragment_elements(node)
    kinds = [matrix_ptx.register_kind(dtype, operand=True) for dtype in (node.dtype_a, node.dtype_b)]
    kind = matrix_ptx.register_kind(node.dtype_accumulator)
    first = scalar(context, node.accumulator_offset)
    registers_a = load_fragment(context, node.a, scalar(context, node.a_offset), a, kinds[0])
    registers_b = load_fragment(context, node.b, scalar(context, node.b_offset), b, kinds[1])
    given = load_fragment(context, node.accumulator, first, c, kind)
    counts = (len(registers_a), len(registers_b), len(given))
    shape = (node.m, node.n, node.k)
    template = matrix_ptx.mma(shape, node.dtype_a, node.dtype_b, node.dtype_accumulator, counts)
    results = inline_ptx.write(context.writer, template, [*registers_a, *registers_b, *given])
    store_fragment(context, node.accumulator, first, results, kind)


# -- wgmma ----------------------------------------
class PendingWgmma:
    """A block of wgmma instructions that is being collected; ``fragments``: registers of its A operands, by storage,
    first element and count."""

    def __init__(self) -> None:
        self.block = WgmmaBlock()
        self.fragments: dict[tuple[str, int, int], list[str]] = {}

    def fragment(self, context: Context, buffer: Buffer, first: int, elements: int) -> list[str]:
        """The registers of a part of an A operand, which stay as they are until the wait."""
        key = (buffer.storage.name, first, elements)
        if key not in self.fragments:
            registers = load_fragment(context, buffer, _index(first), elements, "i32")
            if buffer.storage.name in context.named:
                template = matrix_ptx.ANOTHER_REGISTER
                registers = [inline_ptx.write(context.writer, template, [text])[0] for text in registers]
            self.fragments[key] = registers
        return self.fragments[key]

    def held(self, buffer: Buffer) -> int:
        """How many elements of a fragment go into the block."""
        return sum(elements for name, _, elements in self.fragments if name == buffer.storage.name)

    def write(self, context: Context) -> None:
        if not any(isinstance(step, str) and "wait_group" in step for step in self.block.steps):
            self._move_operands(context)
        template, operands = self.block.template()
        inline_ptx.write(context.writer, template, operands)

    def _move_operands(self, context: Context) -> None:
        """Operands in registers that others may compute into before the wait go to registers of their own: the moves
        stay behind the wait for the group before, while other instructions may be moved across it."""
        moved: dict[str, str] = {}
        for step in self.block.steps:
            if isinstance(step, Multiplication) and step.a_in_registers:
                for text in step.a:
                    if text not in moved:
                        (moved[text],) = inline_ptx.write(context.writer, matrix_ptx.OPERAND_REGISTER, [text])
        for number, step in enumerate(self.block.steps):
            if isinstance(step, Multiplication) and step.a_in_registers:
                self.block.steps[number] = replace(step, a=[moved[text] for text in step.a])


def _index(number: int) -> Value:
    return constant_value(number, int32)


def flush(context: Context) -> None:
    """Writes the wgmma instructions that were put off."""
    pending, context.wgmma = context.wgmma, None
    if pending is not None:
        pending.write(context)


def _pending(context: Context) -> PendingWgmma:
    """The block that is being collected. It is written when the next other op, or the end of the LLVM block, comes."""
    if context.wgmma is None:
        context.wgmma = PendingWgmma()
        context.writer.before_control.append(lambda: flush(context))
    return context.wgmma


def _wgmma_fence(context: Context, node: ir.WgmmaFence) -> None:
    pending = _pending(context)
    if pending.block.steps:
        flush(context)
        pending = _pending(context)
    pending.block.steps.append("wgmma.fence.sync.aligned;")


def _wgmma(context: Context, node: ir.Wgmma) -> None:
    writer = context.writer
    first = _constant_offset(context, node.accumulator, node.accumulator_offset)
    accumulate: bool | str
    condition = scalar(context, node.accumulate)
    if condition.constant is None:
        accumulate = writer.register(f"zext i1 {condition.text} to i32")
    else:
        accumulate = bool(condition.constant)
    elements_a, _, elements_c = ir.fragment_elements(node)
    b = writer.operand(scalar(context, node.descriptor_b))
    pending = _pending(context)
    if node.a is not None and node.a_offset is not None:
        a = pending.fragment(context, node.a, _constant_offset(context, node.a, node.a_offset), elements_a)
    else:
        assert node.descriptor_a is not None
        a = [writer.operand(scalar(context, node.descriptor_a))]
    in_registers = node.a is not None
    transpose_a = None if in_registers else node.transpose_a
    pending.block.steps.append(
        Multiplication(
            matrix_ptx.wgmma_name(node.n, node.k, node.dtype_a, node.dtype_b, node.dtype_accumulator),
            context.named[node.accumulator.storage.name].holding(first, elements_c),
            a,
            in_registers,
            b,
            accumulate,
            matrix_ptx.wgmma_flags(node.dtype_a, transpose_a=transpose_a, transpose_b=node.transpose_b),
        )
    )


def _constant_offset(context: Context, buffer: Buffer, offset: Expr) -> int:
    known = scalar(context, offset).constant
    if known is None:
        raise context.writer.error(f"the offset into {buffer.name} is not constant")
    return int(known)


def _wgmma_commit(context: Context, node: ir.WgmmaCommitGroup) -> None:
    _pending(context).block.steps.append("wgmma.commit_group.sync.aligned;")


def _wgmma_wait(context: Context, node: ir.WgmmaWaitGroup) -> None:
    """Joins the block before it. Operands in registers that were multiplied in another block are not carried to here:
    LLVM only names registers, and ptxas keeps those that it gave to an operand for it until the wait, over the
    back-edge of a loop as well."""
    pending = _pending(context)
    for buffer in node.fragments:
        if 0 < pending.held(buffer) < _size(buffer):
            pending.block.inputs += load_fragment(context, buffer, _index(0), _size(buffer), "i32")
    pending.block.steps.append(f"wgmma.wait_group.sync.aligned {node.pending};")
    flush(context)


def _size(buffer: Buffer) -> int:
    return (buffer.storage.size or 0) * 8 // buffer.dtype.bits


RULES: dict[type, Callable[..., None]] = {
    ir.LoadMatrix: _load_matrix,
    ir.StoreMatrix: _store_matrix,
    ir.MmaSync: _mma_sync,
    ir.WgmmaFence: _wgmma_fence,
    ir.Wgmma: _wgmma,
    ir.WgmmaCommitGroup: _wgmma_commit,
    ir.WgmmaWaitGroup: _wgmma_wait,
}

"""Rules for what only users write: bar.arrive, bar.red, the grid's barrier, mbarrier.expect_tx, assertions, inline
PTX."""

from __future__ import annotations

from collections.abc import Callable

from ptxtile.ir import manual_ops
from ptxtile.ir.tile_ops import Print
from ptxtile.ir.types import DType, bool_, int32, uint32
from ptxtile.nvvm import inline_ptx, memory, printing
from ptxtile.nvvm.context import Context
from ptxtile.nvvm.dtypes import value_type
from ptxtile.nvvm.expressions import scalar
from ptxtile.nvvm.function import Value, constant_value
from ptxtile.nvvm.ptx_template import InlinePtx

MBARRIER_BYTES = 8
_REGISTERS = {("int", 16): "h", ("int", 32): "r", ("int", 64): "l", ("float", 32): "f", ("float", 64): "d"}


def _arrive(context: Context, node: manual_ops.BarArrive) -> None:
    inline_ptx.call(context.writer, "bar_arrive", str(node.id), str(node.threads))


def _at(context: Context, node: manual_ops.BarAt) -> None:
    """bar.sync is another name of barrier.sync.aligned (PTX ISA, «barrier»)."""
    name = "bar_sync_at" if node.waits else "bar_arrive_at"
    inline_ptx.call(context.writer, name, context.writer.operand(scalar(context, node.index)), str(node.threads))


def _reduce(context: Context, node: manual_ops.BarReduce) -> None:
    """As bar.sync: without a count when it is all of the CTA."""
    writer, kernel = context.writer, context.kernel
    condition = writer.register(f"zext i1 {writer.operand(scalar(context, node.condition))} to i32")
    everyone = kernel is not None and node.threads == -(-kernel.threads // 32) * 32 and node.id == 0
    numbers = (str(node.id),) if everyone else (str(node.id), str(node.threads))
    result = inline_ptx.call(writer, f"bar_reduce_{node.mode}{'_all' if everyone else ''}", condition, *numbers)
    value = Value(result, uint32) if node.mode == "popc" else writer.value(f"icmp ne i32 {result}, 0", bool_)
    memory.store(context, node.destination, scalar(context, node.destination_offset), [value])


def _grid_sync(context: Context, node: manual_ops.GridSync) -> None:
    for name, *operands in (("bar_sync_all", "0"), ("grid_sync",), ("bar_sync_all", "0")):
        inline_ptx.call(context.writer, name, *operands)


def _expect(context: Context, node: manual_ops.MbarrierExpectTx) -> None:
    barrier = memory.shared_address(context, node.barrier, scalar(context, node.index), MBARRIER_BYTES)
    inline_ptx.call(context.writer, "mbarrier_expect_tx", barrier, str(node.bytes))


def _assert(context: Context, node: manual_ops.DeviceAssert) -> None:
    """A branch that prints and traps: the whole grid ends with an error that the next call of the driver reports."""
    writer = context.writer
    condition = scalar(context, node.condition)
    if condition.constant is not None and condition.constant:
        return
    failed, held = writer.name("failed"), writer.name("held")
    text = "false" if condition.constant is not None else condition.text
    writer.branch(text, held, failed)
    writer.block(failed)
    with writer.scope():
        printing.run(context, Print(node.message or "device assertion failed"))
        inline_ptx.call(writer, "trap")
    writer.jump(held)
    writer.block(held)


def _inline(context: Context, node: manual_ops.InlinePtx) -> None:
    """Results come first, as in the template's numbering. 16-bit floats are passed as their bits."""
    writer, module = context.writer, context.writer.module
    kinds, registers, operands, results = [], [], [], []
    for value in node.inputs:
        evaluated = scalar(context, value)
        kind, register = _register(value.dtype)
        text = writer.operand(evaluated)
        if kind != value_type(value.dtype):
            text = writer.register(f"bitcast {value_type(value.dtype)} {text} to {kind}")
        kinds.append(kind)
        registers.append(register)
        operands.append(text)
    for result in node.results:
        kind, register = _register(result.dtype)
        results.append((result, kind))
        registers.insert(len(results) - 1, "=&" + register)
    template = InlinePtx(
        f"inline PTX {len(module.isa_reasons)}", _escaped(node.template), ",".join([*registers, "~{memory}"]),
        tuple(kinds), "the user's", convergent=True, results=tuple(kind for _, kind in results),
        result=results[0][1] if len(results) == 1 else "void",
    )  # fmt: skip
    for (result, kind), text in zip(results, inline_ptx.write(writer, template, operands), strict=True):
        wanted = value_type(result.dtype)
        value = text if kind == wanted else writer.register(f"bitcast {kind} {text} to {wanted}")
        memory.store(context, result, constant_value(0, int32), [Value(value, result.dtype.element)])


def _register(dtype: DType) -> tuple[str, str]:
    """(LLVM type, constraint) of an operand."""
    if not manual_ops.is_operand(dtype):
        raise ValueError(f"{dtype} fits no PTX register")
    if dtype.is_float and dtype.bits > 16:
        return value_type(dtype), _REGISTERS["float", dtype.bits]
    return f"i{dtype.bits}", _REGISTERS["int", dtype.bits]


def _escaped(template: str) -> str:
    """The template within the quotes of LLVM's text."""
    return "".join(c if c.isprintable() and c not in '"\\' else f"\\{ord(c):02X}" for c in template)


RULES: dict[type, Callable[..., None]] = {
    manual_ops.BarArrive: _arrive,
    manual_ops.BarAt: _at,
    manual_ops.BarReduce: _reduce,
    manual_ops.GridSync: _grid_sync,
    manual_ops.MbarrierExpectTx: _expect,
    manual_ops.DeviceAssert: _assert,
    manual_ops.InlinePtx: _inline,
}

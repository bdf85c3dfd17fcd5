"""Nests of expanded loops around one store to registers side by side, written in one go.

A fragment is cleared, or an accumulator of wgmma rounded to 16 bits, by such a nest. Element by element, 128 of them
take the emitter and LLVM milliseconds; together they are one piece of inline PTX, or one for each pair of elements.
"""

from __future__ import annotations

from itertools import product

from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import Cast, Const, Expr, Load
from ptxtile.ir.statements import For, LoopKind, Statement, Store
from ptxtile.ir.types import bfloat16, float16, float32
from ptxtile.nvvm import memory, named_registers, tensor_core_ops
from ptxtile.nvvm.context import Context, Nest, Sum
from ptxtile.nvvm.dtypes import value_type
from ptxtile.nvvm.function import Value, constant_value
from ptxtile.nvvm.register_indices import known_sum, sum_of


def write(context: Context, loop: For) -> bool:
    """Writes the nest whose outermost loop is ``loop``. False, and nothing, where it is not of the kinds known here."""
    found = context.nests.get(id(loop))
    if found is None:
        found = context.nests[id(loop)] = (loop, _nest(loop))  # an id is only good while its object lives
    nest = found[1]
    if nest is None:
        return False
    first = known_sum(context, nest.first, nest.store.indices[0].dtype)
    if first is None:
        return False
    value = nest.store.value
    if isinstance(value, Const):
        tensor_core_ops.flush(context)
        context.at(nest.store.location)
        memory.store(context, nest.store.buffer, first, [constant_value(value.value, value.dtype)] * nest.count)
        return True
    return _round(context, nest, first)


def _round(context: Context, nest: Nest, first: Value) -> bool:
    """Elements of an accumulator as 16-bit floats: two come into a register at once."""
    node, value = nest.store, nest.store.value
    assert isinstance(value, Cast) and isinstance(value.operand, Load) and nest.source is not None
    named = context.named.get(value.operand.buffer.storage.name)
    source = known_sum(context, nest.source, value.operand.indices[0].dtype)
    if named is None or named.dtype != float32 or source is None or node.buffer.storage.name not in context.registers:
        return False
    tensor_core_ops.flush(context)
    context.at(node.location)
    elements = memory.registers_at(context, value.operand.buffer, source, nest.count, may_be_outside=True)
    words = ["0"] * (nest.count // 2)
    if elements is not None:
        registers = named.holding(elements.start, nest.count)
        words = named_registers.read_rounded(context, registers, value_type(value.dtype))
    memory.store_words(context, node.buffer, first, words)
    return True


# -- what a nest is ----------------------------------------
def _nest(loop: For) -> Nest | None:
    loops: list[For] = []
    node: Statement = loop
    while isinstance(node, For):
        loops.append(node)
        node = node.body
    if not isinstance(node, Store) or node.buffer.scope is not Scope.REGISTER or len(node.indices) != 1:
        return None
    first, places = _places(node.indices[0], loops)
    if first is None or sorted(places) != list(range(len(places))):
        return None
    if isinstance(node.value, Const) and node.value.dtype == node.buffer.dtype.element:
        return Nest(node, len(places), first)
    if not _rounds(node) or len(places) % 2:
        return None
    assert isinstance(node.value, Cast) and isinstance(node.value.operand, Load)
    source, source_places = _places(node.value.operand.indices[0], loops)
    return Nest(node, len(places), first, source) if source is not None and source_places == places else None


def _rounds(node: Store) -> bool:
    value = node.value
    if not isinstance(value, Cast) or value.dtype != node.buffer.dtype or value.dtype not in (float16, bfloat16):
        return False
    read = value.operand
    return isinstance(read, Load) and read.buffer.scope is Scope.REGISTER and read.dtype == read.buffer.dtype == float32


def _places(index: Expr, loops: list[For]) -> tuple[Sum | None, list[int]]:
    """The smallest ``index`` of all iterations, without the loops' variables, and how far from it that of each is. None
    where that is not known."""
    ranges = [_numbers(loop) for loop in loops]
    found = sum_of(index)
    if found is None or not all(ranges):
        return None, []
    total, terms = found
    names = [loop.var.name for loop in loops]
    steps = [sum(factor for name, factor in terms if name == own) for own in names]
    places = [sum(step * number for step, number in zip(steps, numbers, strict=True)) for numbers in product(*ranges)]
    rest = tuple((name, factor) for name, factor in terms if name not in names)
    return (total + min(places), rest), [place - min(places) for place in places]


def _numbers(loop: For) -> range:
    """The values of the loop's variable; none where they are not constant."""
    start, stop = loop.start, loop.stop
    if loop.kind is not LoopKind.UNROLLED or not isinstance(start, Const) or not isinstance(stop, Const):
        return range(0)
    return range(int(start.value), int(stop.value), loop.step) if loop.step else range(0)

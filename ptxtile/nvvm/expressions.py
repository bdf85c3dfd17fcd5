"""One rule for each expression node. A value with lanes is a tuple of scalars: LLVM joins them again at memory
accesses."""

from __future__ import annotations

from collections.abc import Callable

from ptxtile.ir import expressions as ir
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import HARDWARE_FUNCTIONS, Expr
from ptxtile.ir.rewrite import walk
from ptxtile.ir.types import DType
from ptxtile.nvvm import calls, casts, memory, operators
from ptxtile.nvvm.context import Context
from ptxtile.nvvm.dtypes import value_type
from ptxtile.nvvm.function import Value, constant_value
from ptxtile.nvvm.register_indices import known_index

Lanes = tuple[Value, ...]


def evaluate(context: Context, node: Expr) -> Lanes:
    """Writes the instructions of ``node`` and gives its value, one Value for each lane."""
    rule = _RULES.get(type(node))
    if rule is None:
        raise context.writer.error(f"{type(node).__name__} is not an expression that code can be made for")
    return rule(context, node)


def scalar(context: Context, node: Expr) -> Value:
    """The value of a node without lanes."""
    lanes = evaluate(context, node)
    if len(lanes) != 1:
        raise context.writer.error(f"expected one value, got a vector of {len(lanes)}")
    return lanes[0]


def _constant(context: Context, node: ir.Const) -> Lanes:
    return (constant_value(node.value, node.dtype),) * node.dtype.lanes


def _variable(context: Context, node: ir.Var) -> Lanes:
    lanes = context.variables.get(node.name)
    if lanes is None:
        raise context.writer.error(f"the variable {node.name} is not bound here")
    return lanes


def _binary(context: Context, node: ir.Binary) -> Lanes:
    left, right = evaluate(context, node.left), evaluate(context, node.right)
    if len(left) == 1 == len(right):  # most are indices; a generator would cost more than the rule
        return (operators.binary(context.writer, node.operator, left[0], right[0]),)
    return tuple(operators.binary(context.writer, node.operator, a, b) for a, b in zip(left, right, strict=True))


def _compare(context: Context, node: ir.Compare) -> Lanes:
    left, right, dtype = evaluate(context, node.left), evaluate(context, node.right), node.dtype.element
    return tuple(
        operators.compare(context.writer, node.operator, a, b, dtype) for a, b in zip(left, right, strict=True)
    )


def _unary(context: Context, node: ir.Unary) -> Lanes:
    return tuple(operators.unary(context.writer, node.operator, value) for value in evaluate(context, node.operand))


def _cast(context: Context, node: ir.Cast) -> Lanes:
    return tuple(casts.cast(context.writer, value, node.dtype) for value in evaluate(context, node.operand))


def _broadcast(context: Context, node: ir.Broadcast) -> Lanes:
    return (scalar(context, node.operand),) * node.dtype.lanes


def _load(context: Context, node: ir.Load) -> Lanes:
    if len(node.indices) != 1:
        raise context.writer.error(f"{node.buffer.name} is not flattened: it has {len(node.indices)} indices")
    return memory.load(context, node.buffer, index_of(context, node.buffer, node.indices[0]), node.dtype)


def index_of(context: Context, buffer: Buffer, index: ir.Expr) -> Value:
    """The value of the index of an access of ``buffer``."""
    known = known_index(context, index) if buffer.scope is Scope.REGISTER else None
    return scalar(context, index) if known is None else known


def _shared_address(context: Context, node: ir.SharedAddress) -> Lanes:
    itemsize = 8 if node.buffer.scope is Scope.BARRIER else node.buffer.dtype.itemsize
    text = memory.shared_address(context, node.buffer, scalar(context, node.offset), itemsize)
    return (Value(text, node.dtype),)


def _call(context: Context, node: ir.Call) -> Lanes:
    arguments = [evaluate(context, argument) for argument in node.arguments]
    return tuple(calls.call(context, node, lane) for lane in zip(*arguments, strict=True))


# -- bit casts ----------------------------------------
def _bitcast(context: Context, node: ir.Bitcast) -> Lanes:
    writer, source, target = context.writer, node.operand.dtype, node.dtype
    values = evaluate(context, node.operand)
    if source.bits == target.bits:
        return tuple(memory.reinterpret(context, writer.operand(v), value_type(v.dtype), target) for v in values)
    whole, kind = values[0], _packed_type(source)
    text = writer.operand(whole)
    if len(values) > 1:
        text = "poison"
        for lane, value in enumerate(values):
            text = writer.register(f"insertelement {kind} {text}, {writer.typed(value)}, i32 {lane}")
    result = writer.register(f"bitcast {kind} {text} to {_packed_type(target)}")
    if target.lanes == 1:
        return (Value(result, target.element),)
    return tuple(
        writer.value(f"extractelement {_packed_type(target)} {result}, i32 {lane}", target)
        for lane in range(target.lanes)
    )


def _packed_type(dtype: DType) -> str:
    kind = value_type(dtype)
    return kind if dtype.lanes == 1 else f"<{dtype.lanes} x {kind}>"


# -- lazy operators ----------------------------------------
def _must_not_run(node: Expr) -> bool:
    """Whether ``node`` may only be evaluated when it is asked for: it reads memory at an address that may be invalid,
    or calls a device function, which costs more than a branch."""
    for part in walk(node):
        if isinstance(part, ir.Load) and part.buffer.scope is not Scope.REGISTER and not _is_private_scalar(part):
            return True
        if isinstance(part, ir.Call) and part.function not in HARDWARE_FUNCTIONS:
            return True
    return False


def _is_private_scalar(node: ir.Load) -> bool:
    return node.buffer.scope is Scope.LOCAL and node.buffer.shape == ()


def _select(context: Context, node: ir.Select) -> Lanes:
    condition = scalar(context, node.condition)
    if condition.constant is not None:
        return evaluate(context, node.if_true if condition.constant else node.if_false)
    if _must_not_run(node.if_true) or _must_not_run(node.if_false):
        return _branches(
            context, condition, lambda: evaluate(context, node.if_true), lambda: evaluate(context, node.if_false)
        )
    writer = context.writer
    pairs = zip(evaluate(context, node.if_true), evaluate(context, node.if_false), strict=True)
    return tuple(
        writer.value(f"select i1 {condition.text}, {writer.typed(a)}, {writer.typed(b)}", a.dtype) for a, b in pairs
    )


def _logical_and(context: Context, node: ir.LogicalAnd) -> Lanes:
    left = scalar(context, node.left)
    if left.constant is not None:
        return evaluate(context, node.right) if left.constant else (left,)
    if _must_not_run(node.right):
        false = constant_value(False, node.dtype)
        return _branches(context, left, lambda: evaluate(context, node.right), lambda: (false,))
    return (operators.binary(context.writer, "and", left, scalar(context, node.right)),)


def _logical_or(context: Context, node: ir.LogicalOr) -> Lanes:
    left = scalar(context, node.left)
    if left.constant is not None:
        return (left,) if left.constant else evaluate(context, node.right)
    if _must_not_run(node.right):
        true = constant_value(True, node.dtype)
        return _branches(context, left, lambda: (true,), lambda: evaluate(context, node.right))
    return (operators.binary(context.writer, "or", left, scalar(context, node.right)),)


def _branches(context: Context, condition: Value, if_true: Callable[[], Lanes], if_false: Callable[[], Lanes]) -> Lanes:
    """Both sides in blocks of their own, joined by phis. The code generator turns small ones into predicated
    instructions."""
    writer = context.writer
    taken, other, join = (writer.name(stem) for stem in ("taken", "other", "join"))
    writer.branch(condition.text, taken, other)
    results, labels = [], []
    for label, side in ((taken, if_true), (other, if_false)):
        writer.block(label)
        with writer.scope():
            values = side()
            results.append([writer.operand(value) for value in values])
        dtypes = [value.dtype for value in values]
        labels.append(writer.label)
        writer.jump(join)
    writer.block(join)
    phis = []
    for a, b, dtype in zip(results[0], results[1], dtypes, strict=True):
        text = f"phi {value_type(dtype)} [ {a}, %{labels[0]} ], [ {b}, %{labels[1]} ]"
        phis.append(Value(writer.effect(text), dtype))
    return tuple(phis)


_RULES: dict[type, Callable[..., Lanes]] = {
    ir.Const: _constant,
    ir.Var: _variable,
    ir.Binary: _binary,
    ir.Compare: _compare,
    ir.Unary: _unary,
    ir.LogicalAnd: _logical_and,
    ir.LogicalOr: _logical_or,
    ir.Select: _select,
    ir.Cast: _cast,
    ir.Bitcast: _bitcast,
    ir.Load: _load,
    ir.Call: _call,
    ir.Broadcast: _broadcast,
    ir.SharedAddress: _shared_address,
}

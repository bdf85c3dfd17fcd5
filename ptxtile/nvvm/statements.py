"""One rule for each statement; loops marked UNROLLED are expanded here, with the loop variable a constant."""

from __future__ import annotations

from collections.abc import Callable

from ptxtile.ir import statements as ir
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.statements import LoopKind, Statement
from ptxtile.ir.tensor_core_ops import Wgmma, WgmmaCommitGroup, WgmmaFence, WgmmaWaitGroup
from ptxtile.ir.tile_ops import Print
from ptxtile.nvvm import gpu_ops, memory, operators, printing, register_nests, tensor_core_ops
from ptxtile.nvvm.context import Context, Loop
from ptxtile.nvvm.dtypes import value_type
from ptxtile.nvvm.expressions import evaluate, index_of, scalar
from ptxtile.nvvm.function import Value, constant_value

_BETWEEN_WGMMA = (ir.Seq, ir.Let, ir.For, Wgmma, WgmmaFence, WgmmaCommitGroup, WgmmaWaitGroup)
"""Statements that may come between wgmma instructions that are written together; a loop that is not expanded starts a
block of LLVM's, which ends them too."""


def run(context: Context, node: Statement) -> None:
    """Writes the instructions of ``node``. Nothing is written after a Break or Continue, where control cannot come."""
    if context.writer.terminated:
        return
    if context.wgmma is not None and not isinstance(node, _BETWEEN_WGMMA):
        tensor_core_ops.flush(context)
    context.at(node.location)
    rule = _RULES.get(type(node))
    if rule is not None:
        rule(context, node)
    elif isinstance(node, GpuOp):
        gpu_ops.run(context, node)
    else:
        raise context.writer.error(f"{type(node).__name__} is not legal in the gpu stage")


def _seq(context: Context, node: ir.Seq) -> None:
    for statement in node.statements:
        run(context, statement)


def _let(context: Context, node: ir.Let) -> None:
    context.variables[node.var.name] = evaluate(context, node.value)


def _allocate(context: Context, node: ir.Allocate) -> None:
    memory.allocate(context, node.buffer)


def _store(context: Context, node: ir.Store) -> None:
    writer = context.writer
    if len(node.indices) != 1:
        raise writer.error(f"{node.buffer.name} is not flattened: it has {len(node.indices)} indices")
    values = evaluate(context, node.value)
    if values[0].dtype != node.buffer.dtype.element:
        raise writer.error(f"a value of {values[0].dtype} is stored to {node.buffer.name} of {node.buffer.dtype}")
    memory.store(context, node.buffer, index_of(context, node.buffer, node.indices[0]), values)


# -- loops ----------------------------------------
def _for(context: Context, node: ir.For) -> None:
    start, stop = scalar(context, node.start), scalar(context, node.stop)
    if node.step == 0:
        raise context.writer.error("a loop of step 0 never ends")
    if node.kind is LoopKind.UNROLLED:
        if not register_nests.write(context, node):
            _unrolled(context, node, start, stop)
    elif node.kind is LoopKind.SERIAL:
        _serial(context, node, start, stop)
    else:
        raise context.writer.error(f"a {node.kind.value} loop is not legal in the gpu stage")


def _unrolled(context: Context, node: ir.For, start: Value, stop: Value) -> None:
    if start.constant is None or stop.constant is None:
        raise context.writer.error("an unrolled loop needs constant bounds")
    context.loops.append(Loop(None, None))
    for number in range(int(start.constant), int(stop.constant), node.step):
        context.variables[node.var.name] = (constant_value(number, node.var.dtype),)
        run(context, node.body)
    context.loops.pop()


def _serial(context: Context, node: ir.For, start: Value, stop: Value) -> None:
    """The condition is tested before each iteration; ``stop`` was evaluated once."""
    writer, dtype = context.writer, node.var.dtype
    kind, before = value_type(dtype), writer.label
    first, last = writer.operand(start), writer.operand(stop)
    head, body, latch, end = (writer.name(stem) for stem in ("head", "body", "latch", "end"))
    following = "%" + writer.name("next")
    writer.block(head)
    current = writer.effect(f"phi {kind} [ {first}, %{before} ], [ {following}, %{latch} ]")
    counter = Value(current, dtype)
    more = operators.compare(writer, "lt" if node.step > 0 else "gt", counter, Value(last, dtype), dtype)
    writer.branch(more.text, body, end)
    writer.block(body)
    context.variables[node.var.name] = (counter,)
    _loop_body(context, node.body, Loop(end, latch))
    writer.block(latch)
    # a step of ±1 cannot pass the bound, so it cannot overflow
    flag = "nsw " if dtype.is_signed and abs(node.step) == 1 else ""
    writer.lines.append(f"  {following} = add {flag}{kind} {current}, {node.step}{writer.debug}")
    writer.jump(head)
    writer.block(end)


def _loop_body(context: Context, body: Statement, loop: Loop) -> None:
    context.loops.append(loop)
    with context.writer.scope():
        run(context, body)
    context.loops.pop()


def _while(context: Context, node: ir.While) -> None:
    writer = context.writer
    head, body, end = (writer.name(stem) for stem in ("head", "body", "end"))
    writer.block(head)
    condition = scalar(context, node.condition)
    writer.branch(condition.text, body, end)
    writer.block(body)
    _loop_body(context, node.body, Loop(end, head))
    if not writer.terminated:
        writer.jump(head)
    writer.block(end)


def _leave(context: Context, node: ir.Break | ir.Continue) -> None:
    word = type(node).__name__.lower()
    if not context.loops:
        raise context.writer.error(f"{word} outside of a loop")
    loop = context.loops[-1]
    label = loop.exit if isinstance(node, ir.Break) else loop.latch
    if label is None:
        raise context.writer.error(f"{word} in an unrolled loop")
    context.writer.jump(label)


# -- branches ----------------------------------------
def _if(context: Context, node: ir.If) -> None:
    condition = scalar(context, node.condition)
    if condition.constant is not None:
        side = node.then if condition.constant else node.otherwise
        if side is not None:
            run(context, side)
        return
    writer = context.writer
    then, otherwise, join = (writer.name(stem) for stem in ("then", "else", "join"))
    writer.branch(condition.text, then, join if node.otherwise is None else otherwise)
    for label, side in ((then, node.then), (otherwise, node.otherwise)):
        if side is None:
            continue
        writer.block(label)
        with writer.scope():
            run(context, side)
        if not writer.terminated:
            writer.jump(join)
    writer.block(join)


def _specialized(context: Context, node: ir.Specialized) -> None:
    """A chain of if/else over the thread ranges; threads of no role go past it. When the roles cover every thread the
    last one needs no test."""
    kernel, writer = context.kernel, context.writer
    if kernel is None:
        raise writer.error("roles exist in kernels only")
    thread = scalar(context, kernel.thread)
    roles = sorted(node.roles, key=lambda role: role.first_thread)
    _check_roles(context, roles)
    covered = sum(role.threads for role in roles) == kernel.threads
    join = writer.name("join")
    for role in roles:
        context.at(role.location)
        last = role is roles[-1]
        if not (last and covered):
            after = role.first_thread + role.threads
            inside = _in_range(context, thread, role.first_thread, after, needs_lower=role.first_thread > 0)
            then, otherwise = writer.name("role"), join if last else writer.name("other")
            writer.branch(inside, then, otherwise)
            writer.block(then)
        with writer.scope():
            run(context, role.body)
        if not writer.terminated:
            writer.jump(join)
        if not last:
            writer.block(otherwise)
    writer.block(join)


def _in_range(context: Context, thread: Value, first: int, after: int, *, needs_lower: bool) -> str:
    writer, operand = context.writer, context.writer.operand(thread)
    below = writer.register(f"icmp ult i32 {operand}, {after}")
    if not needs_lower:
        return below
    above = writer.register(f"icmp uge i32 {operand}, {first}")
    return writer.register(f"and i1 {above}, {below}")


def _check_roles(context: Context, roles: list[ir.Role]) -> None:
    end = 0
    for role in roles:
        if role.first_thread < end or role.first_thread % 32 or role.threads % 32 or role.threads <= 0:
            raise context.writer.error(
                f"the role {role.name} has the threads {role.first_thread} to {role.first_thread + role.threads - 1}",
                expected="whole warps, in no other role",
            )
        end = role.first_thread + role.threads
    if context.kernel is not None and end > context.kernel.threads:
        raise context.writer.error(f"the roles need {end} threads, the kernel has {context.kernel.threads}")


def _print(context: Context, node: Print) -> None:
    printing.run(context, node)


_RULES: dict[type, Callable[..., None]] = {
    ir.Seq: _seq,
    ir.Let: _let,
    ir.Allocate: _allocate,
    ir.Store: _store,
    ir.For: _for,
    ir.While: _while,
    ir.If: _if,
    ir.Break: _leave,
    ir.Continue: _leave,
    ir.Specialized: _specialized,
    Print: _print,
}

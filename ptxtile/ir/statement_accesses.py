"""The accesses to global, shared and barrier memory of statements, expressions and GPU ops, in program order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ptxtile.ir import gpu_ops
from ptxtile.ir.access import Access
from ptxtile.ir.access_context import Context, inlined
from ptxtile.ir.async_copy_ops import CpAsync
from ptxtile.ir.atomic_ops import ATOMIC_OPS, Atomic, AtomicLoad, AtomicStore
from ptxtile.ir.buffers import Buffer, Scope, Storage
from ptxtile.ir.enumeration import NotEnumerable, evaluate, separate
from ptxtile.ir.expressions import (
    Const,
    Expr,
    Load,
    LogicalAnd,
    LogicalOr,
    Select,
    SharedAddress,
    Var,
    binary,
    cast,
    compare,
)
from ptxtile.ir.layouts import SharedLayout
from ptxtile.ir.rewrite import children, walk
from ptxtile.ir.statements import For, If, Let, Role, Seq, Statement, Store, While
from ptxtile.ir.tensor_core_ops import WARP, LoadMatrix, StoreMatrix, Wgmma
from ptxtile.ir.types import int32

OPERAND_RANK = 2
"""Dimensions of an operand of wgmma; a tile with more has versions along the first."""


def accesses(statement: Statement, context: Context) -> list[Access]:
    """The accesses to GLOBAL, SHARED and BARRIER memory in ``statement``, in program order, loops inside enumerated."""
    return list(_statement(statement, context))


def _statement(node: Statement, context: Context) -> Iterator[Access]:
    match node:
        case Seq(statements):
            for statement in statements:
                yield from _statement(statement, context)
                if isinstance(statement, Let):
                    context = context.with_let(statement)
        case For(_, start, stop, _, _, body):
            yield from _loads(start, context, node)
            yield from _loads(stop, context, node)
            yield from _statement(body, context.with_loop(node, symbolic=False))
        case While(condition, body):
            again = replace(context, repeated=True)
            yield from _loads(condition, again, node)
            yield from _statement(body, again)
        case If(condition, then, otherwise):
            yield from _loads(condition, context, node)
            yield from _statement(then, context.with_condition(condition))
            if otherwise is not None:
                yield from _statement(otherwise, context.with_condition(condition, holds=False))
        case Store(buffer, indices, value):
            for expression in (*indices, value):
                yield from _loads(expression, context, node)
            yield from _memory_access(buffer, indices[0], value.dtype.bits * value.dtype.lanes, True, context, node)
        case gpu_ops.GpuOp():
            yield from operation_accesses(node, context)
        case Role(_, first_thread, threads, body):
            yield from _statement(body, context.for_threads(first_thread, threads))
        case _:
            for child in children(node):
                yield from _loads(child, context, node) if isinstance(child, Expr) else _statement(child, context)


def expression_accesses(expression: Expr, context: Context, statement: Statement) -> list[Access]:
    """The reads in ``expression``, which belongs to ``statement``."""
    return list(_loads(expression, context, statement))


def _loads(expression: Expr, context: Context, statement: Statement) -> Iterator[Access]:
    match expression:
        case Select(condition, if_true, if_false, _):
            yield from _loads(condition, context, statement)
            yield from _loads(if_true, context.with_condition(condition), statement)
            yield from _loads(if_false, context.with_condition(condition, holds=False), statement)
        case LogicalAnd(left, right, _):
            yield from _loads(left, context, statement)
            yield from _loads(right, context.with_condition(left), statement)
        case LogicalOr(left, right, _):
            yield from _loads(left, context, statement)
            yield from _loads(right, context.with_condition(left, holds=False), statement)
        case _:
            for child in children(expression):
                yield from _loads(child, context, statement)
            if isinstance(expression, Load):
                bits = expression.dtype.bits * expression.dtype.lanes
                yield from _memory_access(expression.buffer, expression.indices[0], bits, False, context, statement)


_MEMORY_SCOPES = (Scope.GLOBAL, Scope.SHARED, Scope.BARRIER)


def _memory_access(
    buffer: Buffer, index: Expr, bits: int, is_write: bool, context: Context, statement: Statement
) -> Iterator[Access]:
    if buffer.scope in _MEMORY_SCOPES:
        element = buffer.dtype.bits * buffer.dtype.lanes
        place = inlined(index, context)
        yield Access(buffer.storage, is_write, place, element, bits, context, location=statement.location)


def _atomic_accesses(node: Atomic | AtomicLoad | AtomicStore, context: Context) -> Iterator[Access]:
    """An atomic operation reads and then writes. Elements of a vector are operations of their own."""
    value = getattr(node, "value", None)
    lanes = 1 if value is None else value.dtype.lanes
    element = node.buffer.dtype.bits * node.buffer.dtype.lanes
    place = inlined(node.indices[0], context)
    operator = node.operator if isinstance(node, Atomic) else "store" if isinstance(node, AtomicStore) else "load"
    for is_write in (False, True):
        if isinstance(node, Atomic) or is_write == isinstance(node, AtomicStore):
            yield Access(
                node.buffer.storage, is_write, place, element, element * lanes, context, location=node.location,
                atomic=operator,
            )  # fmt: skip


def _matrix_accesses(node: gpu_ops.GpuOp, context: Context) -> Iterator[Access]:
    """ldmatrix and stmatrix: rows of 16 bytes, whose addresses may be of any thread of the warp. wgmma: anywhere in its
    operands, or in the version of them that the descriptor points into. cp.async: both of its sides."""
    if isinstance(node, (LoadMatrix, StoreMatrix)):
        writes = isinstance(node, StoreMatrix)
        place = inlined(node.offset, context)
        if node.count < 4 and place is not None:  # the other threads' addresses do not count
            gives = compare("lt", Var(context.thread, int32) % WARP, 8 * node.count)
            context = context.with_condition(gives)
        element = node.shared.dtype.bits * node.shared.dtype.lanes
        yield Access(node.shared.storage, writes, place, element, 128, context, location=node.location)
    elif isinstance(node, Wgmma):
        for buffer, descriptor in ((node.shared_a, node.descriptor_a), (node.shared_b, node.descriptor_b)):
            if buffer is not None and descriptor is not None:
                version = _version_of_operand(buffer, descriptor, context)
                index, element, width = (None, 8, 8) if version is None else version
                yield Access(buffer.storage, False, index, element, width, context, True, buffer.storage.name,
                             node.location, engine="wgmma")  # fmt: skip
    elif isinstance(node, CpAsync):
        for buffer, index, writes in ((node.source, node.index, False), (node.shared, node.offset, True)):
            element = buffer.dtype.bits * buffer.dtype.lanes
            yield Access(buffer.storage, writes, inlined(index, context), element, 8 * node.bytes, context, True,
                         node.shared.storage.name, node.location, engine="cp_async")  # fmt: skip


def _version_of_operand(buffer: Buffer, descriptor: Expr, context: Context) -> tuple[Expr, int, int] | None:
    """(first element, bits of an element, bits of a version) of the version of a tile, along its first dimension, that
    a descriptor of wgmma points into; None where the tile has none, or it cannot be told."""
    import numpy as np

    layout, rank = buffer.layout, len(buffer.shape)
    value = inlined(descriptor, context) if isinstance(layout, SharedLayout) and rank > OPERAND_RANK else None
    address = None if value is None else next(walk(value, SharedAddress), None)
    if address is None or not isinstance(layout, SharedLayout):
        return None
    step = layout.layout.stride[0]
    known = context.uniform | {axis.name for axis in context.loops}
    threads = {context.thread: np.arange(context.first_thread, context.first_thread + context.threads)}
    try:
        terms, residual = separate(address.offset, threads.keys(), known)
        rows = np.asarray(sum(factor * evaluate(term, threads) for factor, term in terms))
    except NotEnumerable:
        return None
    first = int(rows.min()) // step * step if isinstance(step, int) and step > 0 else None
    if first is None or int(rows.max()) >= first + step or any(factor % step for _, factor in residual):
        return None
    index: Expr = Const(first, int32)
    for term, factor in sorted(residual, key=str):
        index = binary("add", index, binary("mul", cast(term, int32), factor))
    bits = buffer.dtype.bits * buffer.dtype.lanes
    return index, bits, step * bits


def operation_accesses(node: gpu_ops.GpuOp, context: Context) -> Iterator[Access]:
    """The accesses of one GPU op. Barrier objects are written by their initialisation and read by every other use."""
    for child in children(node):
        if isinstance(child, Expr):
            yield from _loads(child, context, node)
    if isinstance(node, ATOMIC_OPS):
        yield from _atomic_accesses(node, context)
        return
    yield from _matrix_accesses(node, context)
    barrier, index = getattr(node, "barrier", None), getattr(node, "index", None)
    if isinstance(barrier, Buffer) and isinstance(index, Expr):
        initialises = isinstance(node, gpu_ops.MbarrierInit)
        phase = "wait" if isinstance(node, gpu_ops.MbarrierWait) else ""
        place = inlined(index, context)
        yield Access(barrier.storage, initialises, place, 64, 64, context, location=node.location, phase=phase)
    if isinstance(node, (gpu_ops.TmaLoad, gpu_ops.TmaStore)):
        loads = isinstance(node, gpu_ops.TmaLoad)
        shared = node.shared
        tensor, extents, box_bytes, space = context.tensor_maps[node.tensor_map]
        element = shared.dtype.bits * shared.dtype.lanes
        common: dict[str, Any] = {
            "context": context,
            "asynchronous": True,
            "retired_by": shared.storage.name,
            "location": node.location,
        }
        place = inlined(node.offset, context)
        on_chip = Access(shared.storage, loads, place, element, 8 * box_bytes, **common)
        corner = [inlined(coordinate, context) for coordinate in node.coordinates]
        box = tuple((c, extent) for c, extent in zip(corner, extents, strict=True) if c is not None)
        operator = "" if loads else node.operator
        unit = element if operator else 8
        in_memory = Access(
            Storage(tensor, Scope.GLOBAL), not loads, None, unit, unit, box=box, space=space, atomic=operator, **common
        )
        yield from (in_memory, on_chip) if loads else (on_chip, in_memory)

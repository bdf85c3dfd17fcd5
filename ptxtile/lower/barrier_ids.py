"""The ids that named barriers may have whose id is computed: none of them is left for barriers of the compiler's."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ptxtile.ir.access_context import Context, inlined
from ptxtile.ir.enumeration import NotEnumerable, evaluate
from ptxtile.ir.manual_ops import BarAt
from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import contains, free_variables
from ptxtile.ir.statements import For, If, Let, Seq, Specialized, Statement, While
from ptxtile.lower.synchronization_hand_overs import NAMED_BARRIERS

MAXIMUM_POINTS = 1 << 16
"""An id is worked out for at most so many threads and iterations."""


def computed_ids(kernel: Kernel, context: Context) -> set[int]:
    """Of all :class:`~ptxtile.ir.manual_ops.BarAt` of ``kernel``; all there are where something else than threads and
    loops with constant bounds decides. ``context``: that of the kernel's body."""
    if not contains(kernel.body, BarAt):
        return set()
    return {number for found in _visit(kernel.body, context) for number in found}


def _visit(node: Statement, context: Context) -> Iterator[set[int]]:
    match node:
        case Seq(statements):
            for child in statements:
                yield from _visit(child, context)
                if isinstance(child, Let):
                    context = context.with_let(child)
        case For():
            yield from _visit(node.body, context.with_loop(node, symbolic=False))
        case While():
            yield from _visit(node.body, context)
        case If(_, then, otherwise):
            for part in (then, otherwise):
                if part is not None:
                    yield from _visit(part, context)
        case Specialized(roles):
            for role in roles:
                yield from _visit(role.body, context.for_threads(role.first_thread, role.threads))
        case BarAt():
            yield _ids(node, context)


def _ids(node: BarAt, context: Context) -> set[int]:
    import numpy as np

    index = inlined(node.index, context)
    if index is None:
        return set(range(NAMED_BARRIERS))
    values: dict[str, Any] = {context.thread: np.arange(context.first_thread, context.first_thread + context.threads)}
    try:
        values |= _iterations(free_variables(index), context)
        found = np.unique(np.asarray(evaluate(index, values)))
    except NotEnumerable:
        return set(range(NAMED_BARRIERS))
    return {int(number) for number in found if 0 <= number < NAMED_BARRIERS}


def _iterations(names: set[str], context: Context) -> Mapping[str, Any]:
    """The values of the loops' variables, each along an axis of its own. Raises NotEnumerable."""
    import numpy as np

    result: dict[str, Any] = {}
    size = context.threads
    for axis in context.loops:
        if axis.name in names:
            values = np.arange(int(evaluate(axis.start, {})), int(evaluate(axis.stop, {})), axis.step)
            size *= max(1, len(values))
            if size > MAXIMUM_POINTS:
                raise NotEnumerable
            result[axis.name] = values.reshape(-1, *(1,) * (len(result) + 1))
    return result

"""Indices of registers in expanded loops.

An index of a REGISTER buffer is nearly always a sum of multiples of loop variables, and an expanded loop asks for it
hundreds of times: the sum is taken apart once, and each iteration only adds up numbers.
"""

from __future__ import annotations

from ptxtile.ir import expressions as ir
from ptxtile.ir.expressions import Expr
from ptxtile.ir.types import DType
from ptxtile.nvvm.context import Context, Sum
from ptxtile.nvvm.function import Value, constant_value


def known_index(context: Context, node: Expr) -> Value | None:
    """The value of the index ``node`` where it is a sum of multiples of variables that are constant here, else None."""
    found = context.index_sums.get(id(node))
    if found is None:
        found = context.index_sums[id(node)] = (node, sum_of(node))  # an id is only good while its object lives
    return None if found[1] is None else known_sum(context, found[1], node.dtype)


def known_sum(context: Context, index: Sum, dtype: DType) -> Value | None:
    """Its value where all of its variables are constant here, else None."""
    total, terms = index
    for name, factor in terms:
        lanes = context.variables.get(name)
        if lanes is None or lanes[0].constant is None:
            return None
        total += factor * int(lanes[0].constant)
    return constant_value(total, dtype)


def sum_of(node: Expr) -> Sum | None:
    """Equal to ``node`` modulo 2**bits of its dtype; None where it is no such sum."""
    match node:
        case ir.Const() if node.dtype.is_integer:
            return int(node.value), ()
        case ir.Var() if node.dtype.is_integer:
            return 0, ((node.name, 1),)
        case ir.Binary("add" | "sub"):
            left, right = sum_of(node.left), sum_of(node.right)
            if left is None or right is None:
                return None
            return _plus(left, _times(right, 1 if node.operator == "add" else -1))
        case ir.Binary("mul"):
            left, right = sum_of(node.left), sum_of(node.right)
            if left is None or right is None or (left[1] and right[1]):
                return None
            return _times(right, left[0]) if right[1] else _times(left, right[0])
        case ir.Binary("shl", _, ir.Const(count)) if 0 <= int(count) < node.dtype.bits:
            left = sum_of(node.left)
            return None if left is None else _times(left, 1 << int(count))
    return None


def _plus(left: Sum, right: Sum) -> Sum:
    return left[0] + right[0], (*left[1], *right[1])


def _times(term: Sum, factor: int) -> Sum:
    return term[0] * factor, tuple((name, factor * own) for name, own in term[1])

"""Integer scalars that a parallel loop computes are written out where they are used.

Input: async stage, copies expanded. Output: the same without such Lets in the bodies of ParallelFor. ``y = by * 64 +
i`` is an index in all but name: layouts, vector widths and guards are decided on the indices themselves. LLVM finds the
common parts again. A value that reads memory, or that has grown large, keeps its name.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.expression_table import has_load, subexpressions
from ptxtile.ir.expressions import Expr
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import map_children, substitute
from ptxtile.ir.statements import Let, ParallelFor, Seq, Statement
from ptxtile.lower.options import Options
from ptxtile.target import Target

LARGEST = 64
"""Nodes of an expression that is still written out."""


def run(program: Program, target: Target, options: Options) -> Program:
    return replace(program, kernels=tuple(replace(k, body=_visit(k.body, inside=False)) for k in program.kernels))


def _visit(node: Any, inside: bool) -> Any:
    if isinstance(node, Expr) or not isinstance(node, Statement):
        return node
    inside = inside or isinstance(node, ParallelFor)
    if isinstance(node, Seq) and inside:
        node = _written_out(node)
    return map_children(node, lambda child: _visit(child, inside))


def _written_out(node: Seq) -> Seq:
    """``node`` without the Lets of small integer values; their uses hold the values."""
    values: dict[str, Expr] = {}
    kept: list[Statement] = []
    for statement in node.statements:
        statement = substitute(statement, values)
        if isinstance(statement, Let) and _is_index(statement.value):
            values[statement.var.name] = statement.value
        else:
            kept.append(statement)
    return Seq(tuple(kept), location=node.location) if values else node


def _is_index(value: Expr) -> bool:
    if not (value.dtype.is_integer and value.dtype.lanes == 1) or has_load(value):
        return False
    return sum(1 for _ in subexpressions(value)) <= LARGEST

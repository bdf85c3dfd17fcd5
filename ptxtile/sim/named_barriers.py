"""Meetings at a named barrier whose id is computed, as those at each id that it can be.

Warps that come to one instruction with different ids part there, as they do at a condition: the simulator runs it as
conditions on the id, one after the other.
"""

from __future__ import annotations

from dataclasses import replace

from ptxtile.ir.expressions import Const, LogicalOr, Var
from ptxtile.ir.gpu_ops import BarSync
from ptxtile.ir.manual_ops import BarArrive, BarAt, DeviceAssert
from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import Rewriter, statements_in
from ptxtile.ir.statements import If, Let, Seq, Statement
from ptxtile.ir.types import bool_, int32
from ptxtile.sim.rules.barriers import NAMED_BARRIERS

EXPANDED = (BarAt,)
"""Operations without a rule of their own."""


def with_known_ids(kernel: Kernel) -> Kernel:
    """``kernel`` without :class:`~ptxtile.ir.manual_ops.BarAt`. An id out of range fails an assertion."""
    if not any(isinstance(node, EXPANDED) for node in statements_in(kernel.body)):
        return kernel
    return replace(kernel, body=_KnownIds().visit(kernel.body))


class _KnownIds(Rewriter):
    def __init__(self) -> None:
        self.count = 0

    def rewrite_BarAt(self, node: BarAt) -> Statement:
        where, kind = node.location, BarSync if node.waits else BarArrive
        self.count += 1
        index = Var(f"id of barrier {self.count}", int32)  # names are unique in a program
        message = f"a named barrier with an id that is not from 0 to {NAMED_BARRIERS - 1}"
        outside = LogicalOr(index.lt(0), index.ge(NAMED_BARRIERS), bool_)
        return Seq(
            (
                Let(index, node.index, location=where),
                If(outside, DeviceAssert(Const(False, bool_), message, location=where), location=where),
                *(
                    If(index.eq(number), kind(number, node.threads, location=where), location=where)
                    for number in range(NAMED_BARRIERS)
                ),
            )
        )

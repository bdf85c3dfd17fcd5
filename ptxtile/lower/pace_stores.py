"""The chunks of an epilogue leave one after the other.

Input: gpu stage, synchronized. Output: the same; where an iteration of a loop stores the same staging tile several
times, a thread issues a group of TMA stores only when its group before the last one has been written.

This orders nothing that has to be ordered: the staging tile is free again as soon as it has been read, which
insert_synchronization waits for. It keeps the stores of a tile from leaving in one burst, in front of the loads of the
next tile and in both warpgroups at once. Measured on an H200 (bf16, 128×256×64, persistent, two chunks, 8192×8192×K):
9 % at K = 256, 5 % at 512, 1.4 % at 1024, 1 % at 2048, nothing lost at 4096³. With one chunk nothing is gained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ptxtile.ir.expressions import Expr
from ptxtile.ir.gpu_ops import BulkCommitGroup, BulkWaitGroup, TmaStore
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import Rewriter, children, contains, map_children
from ptxtile.ir.statements import For, Seq, Statement, While, seq
from ptxtile.lower.options import Options
from ptxtile.target import Target

PASS_NAME = "pace_stores"
PENDING = 1
"""Groups that may be unfinished when the next one is issued; 0 and 2 were measured to be as good."""


def run(program: Program, target: Target, options: Options) -> Program:
    kernels, why = [], []
    for kernel in program.kernels:
        pacing = _Pacing()
        kernels.append(_with_body(kernel, pacing.visit(kernel.body)))
        if pacing.paced:
            reason = "chunks that leave one by one do not hold up the loads of the next tile"
            why.append(Why(PASS_NAME, ", ".join(sorted(pacing.paced)), "stores are paced", reason, kernel.location))
    return replace(program, kernels=tuple(kernels)).with_why(*why) if why else program


def _with_body(kernel: Kernel, body: Any) -> Kernel:
    return kernel if body is kernel.body else replace(kernel, body=body)


class _Pacing(Rewriter):
    def __init__(self) -> None:
        self.reused: frozenset[str] = frozenset()  # staging tiles that the loop around stores several times
        self.paced: set[str] = set()

    def visit(self, node: Any) -> Any:
        if not contains(node, BulkCommitGroup):
            return node
        if isinstance(node, (For, While)):
            outer, self.reused = self.reused, _stored_several_times(node)
            node = map_children(node, self.visit)
            self.reused = outer
            return node
        return super().visit(node)

    def rewrite_Seq(self, node: Seq) -> Statement:
        if not any(isinstance(statement, BulkCommitGroup) for statement in node.statements):
            return node
        result: list[Statement] = []
        first_of_group = True
        for statement in node.statements:
            if isinstance(statement, TmaStore) and first_of_group and statement.shared.name in self.reused:
                result.append(BulkWaitGroup(PENDING, False, location=statement.location))
                self.paced.add(statement.shared.name)
                first_of_group = False
            first_of_group |= isinstance(statement, BulkCommitGroup)
            result.append(statement)
        return seq(*result)


def _stored_several_times(loop: For | While) -> frozenset[str]:
    groups = Counter(name for group in _groups(loop.body) for name in group)
    return frozenset(name for name, count in groups.items() if count > 1)


def _groups(node: Any) -> Iterator[set[str]]:
    """The tiles of each group of TMA stores that an iteration commits once; those of inner loops are not its own."""
    if isinstance(node, Seq):
        stored: set[str] = set()
        for statement in node.statements:
            if isinstance(statement, TmaStore):
                stored.add(statement.shared.name)
            elif isinstance(statement, BulkCommitGroup):
                yield stored
                stored = set()
    for child in children(node):
        if not isinstance(child, (Expr, For, While)):
            yield from _groups(child)

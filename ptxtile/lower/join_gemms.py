"""Gives gemms on wgmma that need not wait for each other one wait (:mod:`ptxtile.lower.gemm_runs`).

Input: async stage. Output: the same; the gemms of a run wait for nothing, and behind the last of them stands the wait
for all. ``specialize_warps`` does it for the consumers of a kernel that it splits, before it releases the stages of
their rings; this pass for all others.

Where several warpgroups multiply, gemms on accumulators of their own are left as they are: while one warpgroup waits,
the others keep the tensor cores busy, and with longer groups all of them come to their waits, and to the end of the
stage, at the same time. Measured on an H200 (examples/gemm_swiglu.py, 2 warpgroups): one wait loses 4 % with a ring of
3 stages and gains nothing with 2. (Products that stay in flight over an iteration are not this pass's.)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.expressions import Expr
from ptxtile.ir.program import Program, Why
from ptxtile.ir.rewrite import copy_with, map_children, statements_in
from ptxtile.ir.statements import Role, Seq, Statement, seq
from ptxtile.ir.tensor_core_ops import WgmmaWaitGroup
from ptxtile.ir.tile_ops import Gemm
from ptxtile.lower.gemm_geometry import WARPGROUP
from ptxtile.lower.gemm_runs import (
    MOST_PENDING,
    distinct,
    gemms_at,
    groups,
    is_asynchronous,
    issued,
    runs,
    wait_for,
    why,
)
from ptxtile.lower.options import Options
from ptxtile.target import Target

PASS_NAME = "join_gemms"


def run(program: Program, target: Target, options: Options) -> Program:
    kernels, notes = [], []
    for kernel in program.kernels:
        body, found = join_gemms(kernel.body, kernel.threads)
        notes += found
        kernels.append(replace(kernel, body=with_fewest_waits(body)) if found else kernel)
    return replace(program, kernels=tuple(kernels)).with_why(*notes) if notes else program


def join_gemms(body: Statement, threads: int) -> tuple[Statement, list[Why]]:
    """``body`` of ``threads`` threads with joined gemms, and what was joined. Each group of a run has a wait of its own
    behind the run, so that what it read may be released there; :func:`with_fewest_waits` takes away those behind which
    nothing comes."""
    if sum(is_asynchronous(statement) for statement in statements_in(body)) < 2:
        return body, []
    joining = _Joining(threads)
    return joining.visit(body), joining.why


class _Joining:
    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.why: list[Why] = []

    def visit(self, node: Any) -> Any:
        if not isinstance(node, Statement):
            return node
        if isinstance(node, Role):
            outer, self.threads = self.threads, node.threads
            node = map_children(node, self.visit)
            self.threads = outer
            return node
        node = map_children(node, self.visit)
        return self._joined(node) if isinstance(node, Seq) else node

    def _joined(self, node: Seq) -> Statement:
        statements = node.statements
        behind: dict[int, list[Statement]] = {}
        changed: dict[int, Statement] = {}
        for positions in runs(statements, self.threads):
            joined = gemms_at(statements, positions)
            if len(positions) < 2 or self._others_multiply_meanwhile(joined):
                continue
            made = groups(statements, positions)
            changed.update(issued(statements, made))
            for first in range(0, len(made), MOST_PENDING):
                part = made[first : first + MOST_PENDING]
                behind[part[-1][-1]] = _waits(statements, part)
            reason = "none reads what another one writes"
            self.why.append(why(PASS_NAME, joined, "one wait behind them", reason))
        if not behind:
            return node
        result: list[Statement] = []
        for position, statement in enumerate(statements):
            result += [changed.get(position, statement), *behind.get(position, ())]
        return Seq(tuple(result), location=node.location)

    def _others_multiply_meanwhile(self, gemms: list[Gemm]) -> bool:
        accumulators = {gemm.accumulator.buffer.storage.name for gemm in gemms}
        return self.threads > WARPGROUP and len(accumulators) == len(gemms)


def _waits(statements: tuple[Statement, ...], made: list[tuple[int, ...]]) -> list[Statement]:
    """For each of the groups ``made``, in order, the wait that completes it while the later ones go on."""
    return [
        wait_for(
            gemms_at(statements, group),
            pending=len(made) - number,
            later=[gemm for later in made[number:] for gemm in gemms_at(statements, later)],
        )
        for number, group in enumerate(made, start=1)
    ]


def with_fewest_waits(node: Any) -> Any:
    """A tree in which no wait for wgmma directly follows another one."""
    if isinstance(node, Expr) or not isinstance(node, Statement):
        return node
    node = map_children(node, with_fewest_waits)
    if not isinstance(node, Seq):
        return node
    result: list[Statement] = []
    for statement in node.statements:
        if result and isinstance(statement, WgmmaWaitGroup) and isinstance(result[-1], WgmmaWaitGroup):
            statement = _both(result.pop(), statement)
        result.append(statement)
    return node if len(result) == len(node.statements) else seq(*result)


def _both(first: Any, second: WgmmaWaitGroup) -> WgmmaWaitGroup:
    return copy_with(
        second,
        {
            "pending": min(first.pending, second.pending),
            "accumulators": distinct((*first.accumulators, *second.accumulators)),
            "retires": distinct((*first.retires, *second.retires)),
            "fragments": distinct((*first.fragments, *second.fragments)),
        },
    )

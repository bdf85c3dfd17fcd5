"""TMA loads of kernels without roles: one elected thread issues each group, all threads wait for it.

Input: tile stage with paths. Output: async stage: every Copy with path TMA_LOAD is an expect_tx, its TmaCopy issues and
a wait. The synchronous meaning of a copy is kept: the wait follows the issue. In a role that the user made (T.ws) its
first thread issues, and its threads wait.
"""

from __future__ import annotations

from dataclasses import replace

from ptxtile.ir.gpu_ops import MbarrierWait
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.statements import Allocate, If, Let, Seq, Statement, seq
from ptxtile.ir.tile_ops import Copy, CopyPath
from ptxtile.lower.options import Options
from ptxtile.lower.tma_groups import (
    LoadGroup,
    barrier_buffer,
    barrier_prologue,
    issue,
    make_phase,
    replace_groups,
    wait,
)
from ptxtile.target import Target


def run(program: Program, target: Target, options: Options) -> Program:
    return replace(program, kernels=tuple(_plan(kernel) for kernel in program.kernels), stage="async")


def _plan(kernel: Kernel) -> Kernel:
    _, groups = replace_groups(kernel.body, lambda group: [])
    if not groups:
        return kernel
    barrier = barrier_buffer(f"{kernel.name}_loaded", len(groups))
    starts_with_load = _starts_with_load(kernel.body)
    declarations: list[Statement] = []
    early: list[Statement] = []

    def make(group: LoadGroup) -> list[Statement]:
        phase = make_phase(f"{kernel.name}_phase_{group.number}", group.in_loop)
        declarations.extend(phase.declaration())
        if group.number == 0 and starts_with_load:
            early.extend(issue(group, barrier))
            return wait(group, barrier, phase)
        elected = If(kernel.thread.eq(group.first_thread), seq(*issue(group, barrier)), location=group.location)
        return [elected, *wait(group, barrier, phase)]

    body, groups = replace_groups(kernel.body, make)
    prologue = barrier_prologue([(barrier, (1,) * len(groups))], kernel.thread, kernel.threads, early) + declarations
    if not early:
        return replace(kernel, body=seq(*prologue, body))
    statements = body.statements if isinstance(body, Seq) else (body,)
    first_wait = next(k for k, statement in enumerate(statements) if isinstance(statement, MbarrierWait))
    return replace(kernel, body=seq(*statements[:first_wait], *prologue, *statements[first_wait:]))


def _starts_with_load(body: Statement) -> bool:
    """Whether nothing but allocations and scalars comes before the first load: then the thread that initialises the
    barriers issues it at once, and its latency overlaps the barrier that makes the inits visible."""
    for statement in body.statements if isinstance(body, Seq) else (body,):
        if isinstance(statement, Copy):
            return statement.path is CopyPath.TMA_LOAD
        if not isinstance(statement, (Allocate, Let)):
            return False
    return False

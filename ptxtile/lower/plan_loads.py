"""TMA loads of kernels without roles: one elected thread issues each group, all threads wait for it.

Input: tile stage with paths. Output: async stage: every Copy with path TMA_LOAD is an expect_tx, its TmaCopy issues and a
wait. The synchronous meaning of a copy is kept: the wait follows the issue.
"""

from __future__ import annotations

from dataclasses import replace

from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.statements import If, Specialized, Statement, seq
from ptxtile.lower.options import Options
from ptxtile.lower.tma_groups import (
    LoadGroup,
    Phase,
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
    if isinstance(kernel.body, Specialized):
        return kernel
    _, groups = replace_groups(kernel.body, lambda group: [])
    if not groups:
        return kernel
    barrier = barrier_buffer(f"{kernel.name}_loaded", len(groups))
    phases: dict[int, Phase] = {}

    def make(group: LoadGroup) -> list[Statement]:
        phase = phases[group.number] = make_phase(f"{kernel.name}_phase_{group.number}", group.in_loop)
        elected = If(kernel.thread.eq(0), seq(*issue(group, barrier)), location=group.location)
        return [elected, *wait(group, barrier, phase)]

    body, groups = replace_groups(kernel.body, make)
    prologue = barrier_prologue([(barrier, (1,) * len(groups))], kernel.thread, kernel.threads)
    for phase in phases.values():
        prologue += phase.declaration()
    return replace(kernel, body=seq(*prologue, body))

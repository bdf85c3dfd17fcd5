"""Refuses roles that ask for more registers than the launch has: they would wait for each other for ever.

setmaxnreg moves registers within what a launch got, at most 64 Ki of 32 bits for a multiprocessor (PTX ISA,
setmaxnreg).
"""

from __future__ import annotations

from ptxtile.errors import ResourceError
from ptxtile.ir.gpu_ops import SetMaxRegisters
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Specialized
from ptxtile.lower.options import Options
from ptxtile.target import Target

GRANULARITY = 8


def run(program: Program, target: Target, options: Options) -> Program:
    for kernel in program.kernels:
        for node in walk(kernel.body):
            if isinstance(node, Specialized):
                _check(kernel, node, target)
    return program


def _check(kernel: Kernel, roles: Specialized, target: Target) -> None:
    most = target.registers_per_sm // (kernel.threads * max(1, kernel.min_blocks))
    launch = min(most, target.max_registers_per_thread + 1) // GRANULARITY * GRANULARITY
    wanted = {role: list(walk(role.body, SetMaxRegisters)) for role in roles.roles}
    last = next((counts[-1] for counts in reversed(wanted.values()) if counts), None)
    if last is None:
        return
    others = kernel.threads - sum(role.threads for role in roles.roles)
    used = others * launch + sum(role.threads * _count(counts, launch) for role, counts in wanted.items())
    if used > launch * kernel.threads:
        parts = [f"{role.name}: {role.threads} threads × {_count(counts, launch)}" for role, counts in wanted.items()]
        parts += [f"{others} threads × {launch}"] if others else []
        raise ResourceError(
            "the roles ask for more registers than the launch has: they would wait for ever",
            location=last.location,
            expected=f"at most {launch * kernel.threads}: {launch} for each of {kernel.threads} threads",
            got=f"{used} ({', '.join(parts)})",
            hint="T.dec_max_nreg in a role that only copies frees registers for the others",
        )


def _count(counts: list[SetMaxRegisters], launch: int) -> int:
    return max((node.count for node in counts), default=launch)

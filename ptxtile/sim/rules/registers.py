"""setmaxnreg: its own rules, and the register pool of a launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxtile.errors import SimulationError
from ptxtile.ir.gpu_ops import SetMaxRegisters
from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Role, Specialized
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads

REGISTER_POOL = 65536
"""32-bit registers of a multiprocessor, the most that the threads of a CTA share (CUDA C++ Programming Guide, table of
technical specifications, compute capability 8.0 to 12.0)."""

WARPGROUP = 128
"""Threads that setmaxnreg acts on together (PTX ISA 9.7.20.5)."""


def set_max_registers(threads: Threads, op: SetMaxRegisters, mask: Mask) -> None:
    if op.action not in ("inc", "dec") or op.count % 8 or not 24 <= op.count <= 256:
        raise SimulationError(
            "setmaxnreg with an illegal operand",
            expected="inc or dec, and a multiple of 8 from 24 to 256",
            got=f"{op.action} {op.count}",
        )
    some_inactive = _divides_ctas(threads, mask)
    if some_inactive or threads.first_thread % WARPGROUP or threads.lanes % WARPGROUP:
        raise SimulationError(
            "setmaxnreg is not executed by whole warpgroups",
            expected="all threads of each warpgroup of 128 that reaches it",
            got=f"role {threads.name}: threads {threads.thread_range}" + (", some inactive" if some_inactive else ""),
        )


def _divides_ctas(threads: Threads, mask: Mask) -> bool:
    """Whether only some of the threads of a CTA are active."""
    active = threads.lanes_per_cta(mask)
    return bool(((active > 0) & (active < threads.lanes)).any())


def check_register_pool(kernel: Kernel) -> None:
    """The registers that a kernel's roles ask for must fit together: a pair that does not fit hangs on the card."""
    for node in walk(kernel.body):
        if not isinstance(node, Specialized):
            continue
        wanted = [(role, _registers(role)) for role in node.roles]
        total = sum(role.threads * count for role, count in wanted)
        if total > REGISTER_POOL:
            parts = ", ".join(f"{role.name}: {role.threads} threads × {count}" for role, count in wanted if count)
            raise SimulationError(
                f"the roles of {kernel.name} ask for more registers than there are",
                location=node.location,
                expected=f"at most {REGISTER_POOL}",
                got=f"{total} ({parts})",
            )


def _registers(role: Role) -> int:
    """The largest count that a role sets, 0 when it sets none."""
    counts = [node.count for node in walk(role.body) if isinstance(node, SetMaxRegisters)]
    return max(counts, default=role.registers or 0)

"""How many blocks of a kernel a multiprocessor has room for, before and after its fragments are registers."""

from __future__ import annotations

from ptxtile.ir.buffers import Scope
from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Allocate, Role
from ptxtile.lower.plan_registers import BESIDE_FRAGMENTS, fragment_registers, plan_registers
from ptxtile.target import Target


def resident_blocks(kernel: Kernel, shared_bytes: int, target: Target) -> int:
    """Blocks of ``kernel`` with ``shared_bytes`` of shared memory that run on one multiprocessor at the same time, at
    least 1. Registers are estimated from the fragments."""
    threads = target.max_threads_per_sm // kernel.threads
    memory = target.shared_bytes_per_sm // (shared_bytes + target.reserved_shared_bytes)
    return max(1, min(threads, memory, target.max_blocks_per_sm, _blocks_for_registers(kernel, target)))


def _blocks_for_registers(kernel: Kernel, target: Target) -> int:
    roles = [node for node in walk(kernel.body, Role) if node.registers is not None]
    consumers = max((role.threads for role in roles), default=kernel.user_threads or kernel.threads)
    need = _fragment_registers(kernel, consumers) + BESIDE_FRAGMENTS
    if len(roles) != 2:
        return target.registers_per_sm // (kernel.threads * need)
    blocks = 1
    while plan_registers(consumers, kernel.threads - consumers, blocks + 1).consumer >= need:
        blocks += 1
    return blocks


def _fragment_registers(kernel: Kernel, threads: int) -> int:
    """32-bit registers that the fragments of a thread take, all of them at once where they are tiles still."""
    fragments = [node.buffer for node in walk(kernel.body, Allocate) if node.buffer.scope is Scope.FRAGMENT]
    if not fragments:
        roles = [node.body for node in walk(kernel.body, Role)]
        return max(map(fragment_registers, roles or [kernel.body]))
    return sum(-(-(buffer.storage.size or 0) // (4 * threads)) for buffer in fragments)

"""What a second version of a tile or fragment costs, and whether a kernel that the compiler splits can have it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.program import Kernel
from ptxtile.ir.rewrite import buffers_of, walk
from ptxtile.ir.statements import Allocate, Role, Seq, Specialized, Statement, seq
from ptxtile.lower.occupancy import resident_blocks
from ptxtile.lower.plan_registers import BESIDE_FRAGMENTS, plan_registers
from ptxtile.target import Target

ALIGNMENT = 1024
"""Bytes that each version of a shared tile starts at a multiple of, with the widest swizzle."""


def version_bytes(tile: Buffer) -> int:
    """What one more version of a shared tile takes."""
    return -(-(tile.storage.size or 0) // ALIGNMENT) * ALIGNMENT


@dataclass
class Room:
    """What ``kernel``, whose first ``consumers`` threads compute, has left for second versions. ``used``: bytes of
    shared memory that a block takes without them."""

    kernel: Kernel
    consumers: int
    target: Target
    used: int

    def lack_of_memory(self, size: int) -> str:
        """Why ``size`` bytes more of shared memory are not to be had; empty if they are."""
        left = self.target.max_shared_bytes - self.used
        if size > left:
            return f"a second version takes {size} bytes of shared memory, and {max(left, 0)} are left"
        before, after = (self._blocks(total) for total in (self.used, self.used + size))
        if after < before:
            return _fewer(before, after)
        return ""

    def _blocks(self, total: int, copies: Sequence[Buffer] = ()) -> int:
        """CTAs on a multiprocessor, with ``total`` bytes of shared memory and more fragments."""
        body = seq(*map(Allocate, copies), self.kernel.body)
        roles = Specialized(
            (
                Role("consumer", 0, self.consumers, body, registers=1),
                Role("producer", self.consumers, self.kernel.threads - self.consumers, Seq(()), registers=1),
            )
        )
        return resident_blocks(replace(self.kernel, body=roles), total, self.target)

    def lack_of_registers(self, statements: Iterable[Statement], copies: Sequence[Buffer]) -> str:
        """Why the fragments that ``statements`` use, and ``copies`` of some, cannot all be kept at a time; empty if
        they can."""
        used = {
            buffer.storage.name: buffer
            for statement in statements
            for node in walk(statement)
            for buffer in buffers_of(node)
            if buffer.scope is Scope.FRAGMENT
        }
        sizes = [buffer.storage.size or 0 for buffer in (*used.values(), *copies)]
        need = BESIDE_FRAGMENTS + sum(-(-size // (4 * self.consumers)) for size in sizes)
        most = plan_registers(self.consumers, blocks=max(self.kernel.min_blocks, 1)).consumer
        if need > most:
            return f"a thread would need about {need} registers, and {most} are to be had"
        before, after = (self._blocks(self.used, more) for more in ((), copies))
        return _fewer(before, after) if after < before else ""


def _fewer(before: int, after: int) -> str:
    return f"with a second version a multiprocessor holds {after} instead of {before} CTAs"

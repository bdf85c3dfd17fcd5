"""What the rules share while one function is written."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ptxtile.errors import Location
from ptxtile.ir.buffers import Storage
from ptxtile.ir.expressions import Expr
from ptxtile.ir.program import Kernel
from ptxtile.ir.statements import For, Store
from ptxtile.nvvm.function import FunctionWriter, Value
from ptxtile.records import record

if TYPE_CHECKING:
    from ptxtile.nvvm.named_registers import NamedRegisters
    from ptxtile.nvvm.register_slots import RegisterSlots
    from ptxtile.nvvm.tensor_core_ops import PendingWgmma


Sum = tuple[int, tuple[tuple[str, int], ...]]
"""A constant, and (variable, factor) of the terms."""


@record
class Loop:
    """Where Break and Continue of a loop go. ``None`` labels: an unrolled loop, which has neither."""

    exit: str | None
    latch: str | None


@record
class Nest:
    """Stores to ``count`` registers side by side, from index ``first`` on; ``source``: the first index of what they
    load, side by side in the same order."""

    store: Store
    count: int
    first: Sum
    source: Sum | None = None


@dataclass(slots=True)
class Context:
    """``variables``: the lanes of each Var in scope, by name. ``pointers``: base addresses of global tensors.
    ``invariant``: names of tensors that the kernel only reads. ``registers``: the elements of REGISTER storages;
    ``named``: the storages that wgmma accumulates in, ``accumulators``: their names, once they matter. ``arrays``: the
    allocas of LOCAL storages. ``tensor_maps``: generic addresses, as i64 operands. ``index_sums``: indices of
    registers, ``nests``: loops over registers, by identity. ``wgmma``: instructions that will be written together."""

    writer: FunctionWriter
    kernel: Kernel | None = None
    variables: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    pointers: dict[str, str] = field(default_factory=dict)
    invariant: frozenset[str] = frozenset()
    registers: dict[str, RegisterSlots] = field(default_factory=dict)
    named: dict[str, NamedRegisters] = field(default_factory=dict)
    arrays: dict[str, str] = field(default_factory=dict)
    tensor_maps: dict[str, str] = field(default_factory=dict)
    loops: list[Loop] = field(default_factory=list)
    index_sums: dict[int, tuple[Expr, Sum | None]] = field(default_factory=dict)
    nests: dict[int, tuple[For, Nest | None]] = field(default_factory=dict)
    wgmma: PendingWgmma | None = None
    accumulators: frozenset[str] | None = None
    subprogram: int | None = None
    subprogram_file: str = ""

    def at(self, location: Location | None) -> None:
        """Sets the place of the instructions that follow; statements without a location keep the last one."""
        if location is None:
            return
        writer = self.writer
        writer.location = location
        if self.subprogram is not None:
            writer.debug = writer.module.lines.suffix(self.subprogram, self.subprogram_file, location)

    def shared_offset(self, storage: Storage) -> int:
        if storage.offset is None:
            raise self.writer.error(f"the shared storage {storage.name} has not been placed")
        return storage.offset

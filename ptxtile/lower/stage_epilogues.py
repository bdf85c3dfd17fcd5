"""Accumulators leave the registers through staging tiles in shared memory, from which TMA stores them.

Input: async stage, tiles of pipelined loops in all their versions, so that it is known how much shared memory is left.
Output: the same, where a copy on the vector path from the accumulator of a tensor core to a region of a tensor that TMA
can store is, for each chunk (:mod:`ptxtile.lower.epilogue_chunks`), a copy to a staging tile and a copy from there on
the path TMA_STORE. Others stay as they are, with the reason recorded.

Direct stores of an accumulator write 4 bytes a thread, 16 to a row. Through shared memory rows leave whole, and since
the wait for a store stands where its staging tile is written again, the stores of a persistent loop overlap the next
tile. Measured on an H200 (bf16, 128×256×64, persistent) that is worth 4 % at 8192³, 10 % at 4096³, 20 % at 2048³.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Expr, Var, as_expr, cast, constant, constant_value, load
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import buffers_of, children
from ptxtile.ir.statements import Allocate, For, ParallelFor, Role, Statement, Store, View, While, seq
from ptxtile.ir.tile_ops import Copy, CopyPath, Region
from ptxtile.ir.types import int32
from ptxtile.lower.epilogue_chunks import ALIGNMENT, Chunks, Ownership, accumulators, choose_chunks
from ptxtile.lower.occupancy import resident_blocks
from ptxtile.lower.options import Options
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.tma_rules import TmaRules
from ptxtile.records import record
from ptxtile.target import Feature, Target

PASS_NAME = "stage_epilogues"


def run(program: Program, target: Target, options: Options) -> Program:
    if not target.has(Feature.TMA):
        return program
    names = NameSupply(program)
    kernels, why = [], []
    for kernel in program.kernels:
        owners = accumulators(kernel)
        if owners:
            stager = _Stager(program, kernel, target, options, owners, names)
            kernel = replace(kernel, body=stager.visit(kernel.body))
            why.extend(stager.why)
        kernels.append(kernel)
    return replace(program, kernels=tuple(kernels)).with_why(*why) if why else program


class _Stager(ScopedRewriter):
    def __init__(
        self, program: Program, kernel: Kernel, target: Target, options: Options, owners: dict[str, Ownership],
        names: NameSupply,
    ) -> None:  # fmt: skip
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.rules = TmaRules(program, kernel, self.analyzer, target, options)
        self.owners, self.names = owners, names
        self.room = _Room(kernel, target, sum(self._is_epilogue(node) for node in _statements(kernel.body)))
        self.why: list[Why] = []

    def _is_epilogue(self, node: Any) -> bool:
        return (
            isinstance(node, Copy)
            and node.path is CopyPath.VECTOR
            and node.source.buffer.name in self.owners
            and node.destination.buffer.scope is Scope.GLOBAL
        )

    def visit(self, node: Any) -> Any:
        return self._stage(node) if self._is_epilogue(node) else super().visit(node)

    def _stage(self, copy: Copy) -> Statement:
        chunks, refusal = self._chunks(copy)
        if chunks is None:
            self._record(copy, CopyPath.VECTOR.value, f"direct stores: {refusal}")
            return copy
        staging = self._staging(copy, chunks)
        through = " and ".join(buffer.name for buffer in staging)
        size = "x".join(map(str, chunks.shape))
        self._record(copy, CopyPath.TMA_STORE.value, f"{chunks.count} chunks of {size} elements through {through}")
        statements: list[Statement] = [Allocate(buffer, location=copy.location) for buffer in staging]
        for number, (row, column) in enumerate(chunks.origins()):
            statements += _through(copy, chunks, staging[number % chunks.buffers], row, column, self.names)
        return seq(*statements)

    def _record(self, copy: Copy, path: str, reason: str) -> None:
        subject = f"copy {copy.source.buffer.name} -> {copy.destination.buffer.name}"
        self.why.append(Why(PASS_NAME, subject, path, reason, copy.location))

    def _chunks(self, copy: Copy) -> tuple[Chunks | None, str]:
        """How ``copy`` is cut; or None, and why it is not staged."""
        owner, dtype = self.owners[copy.source.buffer.name], copy.destination.buffer.dtype
        whole = all(constant_value(start) == 0 for start in copy.source.starts)
        if not whole or copy.source.extents != (owner.m, owner.n):
            return None, "only a part of the accumulator is copied"
        if copy.destination.dense_extents != (owner.m, owner.n):
            return None, "a side of the tile is 1"
        if copy.coalesced_width is not None:
            return None, "the copy asks for a vector width"
        if dtype.bits % 8:
            return None, f"{dtype} has no whole bytes"
        room = self.room.bytes_for(copy)
        chunks = choose_chunks(owner, dtype.itemsize, room)
        if chunks is None:
            return None, f"no staging tile fits into the {room} bytes of shared memory that are left"
        (tile,) = self._staging(copy, replace(chunks, buffers=1))
        _, to_global, *_ = _through(copy, chunks, tile, 0, 0, self.names)
        assert isinstance(to_global, Copy)
        refusal = self.rules.refusal(to_global, to_global.destination, to_global.source)
        return (None, refusal) if refusal else (chunks, "")

    def _staging(self, copy: Copy, chunks: Chunks) -> list[Buffer]:
        shape = chunks.shape if chunks.shape[0] > 1 else chunks.shape[1:]
        base, dtype = f"{copy.source.buffer.name}_staging", copy.destination.buffer.dtype
        return [
            allocate(self.names.fresh(base), Scope.SHARED, dtype, shape, alignment=ALIGNMENT)
            for _ in range(chunks.buffers)
        ]


def _through(
    copy: Copy, chunks: Chunks, staging: Buffer, row: int, column: int, names: NameSupply
) -> list[Statement]:
    """The chunk from ``row`` and ``column`` on: registers to ``staging``, and from there to global memory, one copy for
    each group of threads side by side."""
    groups, rows, columns = chunks.shape
    if groups == 1:
        whole = Region(staging, (constant(0), constant(0)), (rows, columns))
        part = Region(copy.source.buffer, (constant(row), constant(column)), (rows, columns))
        to_staging: Statement = replace(copy, source=part, destination=whole)
        return [to_staging, _store(copy, whole, row, column)]
    apart = chunks.owner.columns
    i, g, j = (Var(names.fresh(base), int32) for base in ("i", "g", "j"))
    value = load(copy.source.buffer, (_moved(i, row), g * apart + _moved(j, column)))
    body = Store(staging, (g, i, j), cast(value, staging.dtype), location=copy.location)
    statements: list[Statement] = [ParallelFor((i, g, j), (rows, groups, columns), body, location=copy.location)]
    for group in range(groups):
        part = Region(staging, (constant(group), constant(0), constant(0)), (1, rows, columns))
        statements.append(_store(copy, part, row, group * apart + column))
    return statements


def _store(copy: Copy, staged: Region, row: int, column: int) -> Copy:
    """The TMA store of ``staged`` to the part of the copy's destination that starts at ``row`` and ``column``."""
    destination = copy.destination
    sides = [position for position, extent in enumerate(destination.extents) if extent != 1]
    starts, extents = list(destination.starts), list(destination.extents)
    for side, offset, extent in zip(sides, (row, column), staged.extents[-2:], strict=True):
        starts[side], extents[side] = _moved(as_expr(starts[side]), offset), extent
    part = Region(destination.buffer, tuple(starts), tuple(extents))
    return replace(copy, source=staged, destination=part, path=CopyPath.TMA_STORE)


def _moved(start: Expr, by: int) -> Expr:
    return start + by if by else start


# --- how much memory is left -----------------------------------------------------------------------------------------


@record
class _Use:
    """A statement that touches the storage ``name``: its place in program order, the outermost loop and the role around
    it."""

    name: str
    position: int
    loop: int | None
    role: str | None


class _Room:
    """The shared memory that staging tiles may take. ``epilogues``: of the kernel, which share what is left."""

    def __init__(self, kernel: Kernel, target: Target, epilogues: int) -> None:
        self._kernel, self._target, self._epilogues = kernel, target, max(epilogues, 1)
        self._sizes = {
            node.buffer.storage.name: -(-(node.buffer.storage.size or 0) // ALIGNMENT) * ALIGNMENT
            for node in _statements(kernel.body)
            if isinstance(node, Allocate) and node.buffer.scope in (Scope.SHARED, Scope.BARRIER)
        }
        self._uses: list[_Use] = []
        self._places: dict[int, _Use] = {}
        self._collect(kernel.body, None, None)

    def _collect(self, node: Any, loop: int | None, role: str | None) -> None:
        here = _Use("", len(self._places), loop, role)
        self._places[id(node)] = here
        if not isinstance(node, (Allocate, View)):
            self._uses += [
                replace(here, name=buffer.storage.name)
                for inner in _own_parts(node)
                for buffer in buffers_of(inner)
                if buffer.storage.name in self._sizes
            ]
        if loop is None and isinstance(node, (For, While)):
            loop = here.position
        for child in children(node):
            if isinstance(child, Statement):
                self._collect(child, loop, node.name if isinstance(node, Role) else role)

    def bytes_for(self, copy: Copy) -> int:
        """What a staging tile may take, at most: the memory of tiles whose contents still matter at ``copy`` is none of
        it. As much as leaves the number of resident blocks, if that is anything."""
        here = self._places[id(copy)]
        live = sum(size for name, size in self._sizes.items() if self._matters(name, here))
        left = self._target.max_shared_bytes - live
        before = min(sum(self._sizes.values()), self._target.max_shared_bytes)
        blocks = resident_blocks(self._kernel, before, self._target)
        sharing = left // self._epilogues
        while sharing > ALIGNMENT and resident_blocks(self._kernel, max(before, live + sharing), self._target) < blocks:
            sharing -= ALIGNMENT
        return sharing

    def _matters(self, name: str, here: _Use) -> bool:
        """Whether the storage is used by another role, after ``here``, or around the loop that ``here`` stands in."""
        uses = [use for use in self._uses if use.name == name]
        if any(use.role != here.role or use.position > here.position for use in uses):
            return True
        return here.loop is not None and len({use.loop == here.loop for use in uses}) == 2


def _own_parts(node: Statement) -> list[Any]:
    """``node`` and the expressions and regions in it, without the statements."""
    found: list[Any] = [node]
    for part in found:
        found.extend(child for child in children(part) if not isinstance(child, Statement))
    return found


def _statements(node: Statement) -> list[Statement]:
    found = [node]
    for part in found:
        found.extend(child for child in children(part) if isinstance(child, Statement))
    return found

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

from bisect import bisect
from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Expr, constant_value
from ptxtile.ir.gpu_ops import MbarrierWait
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import buffers_of, children, statements_in, walk
from ptxtile.ir.statements import Allocate, For, Role, Statement, View, While, seq
from ptxtile.ir.tile_ops import Copy, CopyPath, TmaCopy
from ptxtile.lower.epilogue_chunks import (
    ALIGNMENT,
    WARP,
    Chunks,
    Ownership,
    accumulators,
    choose_chunks,
    owner_of_tile,
)
from ptxtile.lower.epilogue_stores import by_warpgroups, store_own_part, to_global, to_staging
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


class _Stager(ScopedRewriter, kinds=(Copy,)):
    def __init__(
        self, program: Program, kernel: Kernel, target: Target, options: Options, owners: dict[str, Ownership],
        names: NameSupply,
    ) -> None:  # fmt: skip
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.kernel, self.owners, self.names = kernel, owners, names
        self.rules = TmaRules(program, kernel, self.analyzer, target, options)
        self.room = _Room(kernel, target, sum(self._is_epilogue(node) for node in statements_in(kernel.body)))
        self.first_thread = 0
        self.why: list[Why] = []

    def _is_epilogue(self, node: Any) -> bool:
        return (
            isinstance(node, Copy)
            and node.path is CopyPath.VECTOR
            and node.source.buffer.name in self.owners
            and node.destination.buffer.scope is Scope.GLOBAL
        )

    def visit(self, node: Any) -> Any:
        if isinstance(node, Role):
            outer, self.first_thread = self.first_thread, node.first_thread
            node = super().visit(node)
            self.first_thread = outer
            return node
        if self._is_epilogue(node):
            return self._stage(node)
        if isinstance(node, Copy) and node.path is CopyPath.TMA_STORE and not node.operator:
            return self._staged_by_user(node)
        return super().visit(node)

    @property
    def _thread(self) -> Expr:
        """Counted from the first thread of the role."""
        return self.kernel.thread - self.first_thread if self.first_thread else self.kernel.thread

    def _stage(self, copy: Copy) -> Statement:
        chunks, refusal = self._chunks(copy)
        if chunks is None:
            self._record(copy, CopyPath.VECTOR.value, f"direct stores: {refusal}")
            return copy
        staging = self._staging(copy, chunks)
        self._record(copy, CopyPath.TMA_STORE.value, _described(chunks, staging))
        statements: list[Statement] = [Allocate(buffer, location=copy.location) for buffer in staging]
        for number, (row, column) in enumerate(chunks.origins()):
            tile = staging[number % chunks.buffers]
            statements.append(to_staging(copy, chunks, tile, row, column, self.names))
            statements += to_global(copy, chunks, tile, row, column, self._thread)
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
        refusal = self._refusal(copy, chunks)
        return (None, refusal) if refusal else (chunks, "")

    def _refusal(self, copy: Copy, chunks: Chunks) -> str:
        """Why TMA cannot store the parts; empty if it can."""
        as_one_group = replace(chunks, owner=replace(chunks.owner, threads=WARP))
        (tile,) = self._staging(copy, replace(chunks, buffers=1))
        for part in to_global(copy, as_one_group, tile, 0, 0, self._thread):
            assert isinstance(part, Copy)
            refusal = self.rules.refusal(part, part.destination, part.source)
            if refusal:
                return refusal
        return ""

    def _staging(self, copy: Copy, chunks: Chunks) -> list[Buffer]:
        shape = chunks.shape if chunks.shape[0] > 1 else chunks.shape[1:]
        base, dtype = f"{copy.source.buffer.name}_staging", copy.destination.buffer.dtype
        return [
            allocate(self.names.fresh(base), Scope.SHARED, dtype, shape, alignment=ALIGNMENT)
            for _ in range(chunks.buffers)
        ]

    def _staged_by_user(self, copy: Copy) -> Statement:
        """A store of the user's own tile, by the warpgroups whose parts of an accumulator it holds."""
        tile = copy.source.buffer
        owner = owner_of_tile(self.kernel, tile, self.owners)
        if owner is None or not by_warpgroups(owner) or owner.side_by_side > 1:
            return copy
        if copy.source.extents != tile.shape or copy.destination.dense_extents != (owner.m, owner.n):
            return copy
        self._record(copy, CopyPath.TMA_STORE.value, "each warpgroup stores the rows that it wrote")
        return store_own_part(copy, owner, tile, owner.m, owner.n, 0, 0, self._thread)


def _described(chunks: Chunks, staging: list[Buffer]) -> str:
    through = " and ".join(buffer.name for buffer in staging)
    size = "x".join(map(str, chunks.shape[1:]))
    each = f" for each of {chunks.shape[0]} groups side by side" if chunks.shape[0] > 1 else ""
    return f"{chunks.count} chunk{'s' if chunks.count > 1 else ''} of {size}{each} through {through}"


# --- how much memory is left -----------------------------------------------------------------------------------------


@record
class _Use:
    """A statement that touches the storage ``name``: its place in program order, the outermost loop and the role around
    it. ``waits``, ``loads``: it only waits for the storage, or issues a TMA load into it."""

    name: str
    position: int
    loop: int | None
    role: str | None
    waits: bool = False
    loads: bool = False


class _Room:
    """The shared memory that staging tiles may take. ``epilogues``: of the kernel, which share what is left."""

    def __init__(self, kernel: Kernel, target: Target, epilogues: int) -> None:
        self._kernel, self._target, self._epilogues = kernel, target, max(epilogues, 1)
        self._sizes = {
            node.buffer.storage.name: -(-(node.buffer.storage.size or 0) // ALIGNMENT) * ALIGNMENT
            for node in walk(kernel.body, Allocate)
            if node.buffer.scope in (Scope.SHARED, Scope.BARRIER)
        }
        self._uses: list[_Use] = []
        self._places: dict[int, _Use] = {}
        self._collect(kernel.body, None, None)

    def _collect(self, node: Any, loop: int | None, role: str | None) -> None:
        here = _Use("", len(self._places), loop, role)
        self._places[id(node)] = here
        if not isinstance(node, (Allocate, View)):
            here = replace(here, waits=isinstance(node, MbarrierWait), loads=isinstance(node, TmaCopy))
            names = {buffer.storage.name for inner in _own_parts(node) for buffer in buffers_of(inner)}
            self._uses += [replace(here, name=name) for name in sorted(names & set(self._sizes))]
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
        before = min(sum(self._sizes.values()), self._target.max_shared_bytes)
        blocks = resident_blocks(self._kernel, before, self._target)

        def fits(units: int) -> bool:
            total = max(before, live + units * ALIGNMENT)
            return resident_blocks(self._kernel, total, self._target) >= blocks

        most = max(self._target.max_shared_bytes - live, 0) // self._epilogues // ALIGNMENT
        return bisect(range(1, most + 1), False, key=lambda units: not fits(units)) * ALIGNMENT

    def _matters(self, name: str, here: _Use) -> bool:
        """Whether the storage is used by another role, after ``here``, or in the loop that ``here`` stands in. Of all
        others ``place_shared_memory`` sees that their contents do not matter any more."""
        uses = [use for use in self._uses if use.name == name]
        own = [use for use in uses if use.role == here.role]
        if len(own) < len(uses) and not self._is_loaded_for(own, [use for use in uses if use.role != here.role]):
            return True
        return any(use.position > here.position or (here.loop is not None and use.loop == here.loop) for use in own)

    def _is_loaded_for(self, own: list[_Use], others: list[_Use]) -> bool:
        """Whether the uses ``others`` are a producer's loads for the consumer with the uses ``own``, in roles that the
        compiler made: from the consumer's last wait on the tile is its own."""
        made = {node.name for node in walk(self._kernel.body, Role) if node.registers}
        if made != {"consumer", "producer"} or not own or own[0].role != "consumer":
            return False
        return own[0].waits and all(use.role == "producer" and (use.waits or use.loads) for use in others)


def _own_parts(node: Statement) -> list[Any]:
    """``node`` and the expressions and regions in it, without the statements."""
    found: list[Any] = [node]
    for part in found:
        found.extend(child for child in children(part) if not isinstance(child, Statement))
    return found

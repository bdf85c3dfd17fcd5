"""Gives every shared storage of a kernel its offset in dynamic shared memory.

Input: a gpu-stage program whose SHARED and BARRIER storages have no offset. Output: the same with offsets everywhere
and ``kernel.shared_bytes`` set. Invariant: storages whose lifetimes (:mod:`ptxtile.lower.lifetimes`) overlap share no
byte; barrier storages share no byte with anything, and come last. Storages that share bytes may need barriers between
their users: ``insert_synchronization`` runs afterwards and sees byte addresses. What a TMA store reads is left to it
for as long as it takes, so that nobody has to wait for it, unless that costs a resident block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ptxtile.errors import Location, ResourceError
from ptxtile.ir.buffers import Buffer, Scope, Storage
from ptxtile.ir.gpu_ops import TmaLoad, TmaStore
from ptxtile.ir.layouts import SharedLayout
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import Rewriter, buffers_of, contains, walk
from ptxtile.ir.statements import Allocate, Specialized
from ptxtile.lower.lifetimes import Lifetime, Lifetimes
from ptxtile.lower.occupancy import resident_blocks
from ptxtile.lower.options import Options
from ptxtile.target import Target

PASS_NAME = "place_shared_memory"

TMA_ALIGNMENT = 128
"""Bytes that the shared address of a tensor copy is a multiple of (PTX ISA, cp.async.bulk.tensor)."""

BARRIER_ALIGNMENT = 8
"""Bytes of an mbarrier object and its alignment (PTX ISA, «mbarrier»)."""


@dataclass(slots=True)
class _Item:
    """A storage to be placed; ``lifetime`` None: never used."""

    storage: Storage
    size: int
    alignment: int
    location: Location | None
    lifetime: Lifetime | None = None
    offset: int = 0

    @property
    def end(self) -> int:
        return self.offset + self.size


def run(program: Program, target: Target, options: Options) -> Program:
    """``program`` with shared memory placed. ResourceError when a kernel needs more than the target has."""
    kernels, records = [], []
    for kernel in program.kernels:
        items, barriers = _collect(kernel)
        lifetimes = Lifetimes(program, kernel)
        notes, total = _place_all(kernel, items, barriers, lifetimes.of(stores_linger=False))
        if lifetimes.depend_on_stores:
            notes, total = _place_with_stores(kernel, items, barriers, lifetimes, total, target)
        if total > target.max_shared_bytes:
            raise _too_large(kernel, [*items, *barriers], total, target)
        records += notes
        placed = {item.storage.name: replace(item.storage, offset=item.offset) for item in (*items, *barriers)}
        unused = {item.storage.name for item in items if item.lifetime is None}
        body = _Placement(placed, unused).visit(kernel.body) if placed else kernel.body
        kernels.append(replace(kernel, body=body, shared_bytes=total))
    return replace(program, kernels=tuple(kernels)).with_why(*records)


def _place_with_stores(
    kernel: Kernel, items: list[_Item], barriers: list[_Item], lifetimes: Lifetimes, least: int, target: Target
) -> tuple[list[Why], int]:
    """Leaves memory to TMA stores: best all of it from the start (of roles, which are known to fill a multiprocessor),
    else until they are done, else none. ``least``: the bytes in the last case."""
    has_roles = contains(kernel.body, Specialized)
    for apart in (True, False) if has_roles else (False,):
        notes, total = _place_all(kernel, items, barriers, lifetimes.of(stores_linger=True, apart=apart))
        if total <= least or _costs_nothing(kernel, least, total, target):
            return notes, total
    return _place_all(kernel, items, barriers, lifetimes.of(stores_linger=False))


def _costs_nothing(kernel: Kernel, total: int, more: int, target: Target) -> bool:
    """Whether ``more`` bytes fit instead of ``total`` and leave a multiprocessor as many blocks."""
    fits = more <= target.max_shared_bytes
    return fits and resident_blocks(kernel, more, target) >= resident_blocks(kernel, total, target)


def _place_all(
    kernel: Kernel, items: list[_Item], barriers: list[_Item], lifetimes: dict[str, Lifetime]
) -> tuple[list[Why], int]:
    """Notes on what shares bytes, and the bytes in all."""
    for item in items:
        item.lifetime = lifetimes.get(item.storage.name)
    notes = _place(kernel, items)
    total = max((item.end for item in items if item.lifetime is not None), default=0)
    for item in barriers:
        item.offset = _aligned(total, item.alignment)
        total = item.end
    return notes, total


def _collect(kernel: Kernel) -> tuple[list[_Item], list[_Item]]:
    """The SHARED and the BARRIER storages that the kernel's statements name, in program order."""
    found: dict[str, _Item] = {}
    for node in walk(kernel.body):
        for buffer in buffers_of(node):
            if buffer.scope not in (Scope.SHARED, Scope.BARRIER):
                continue
            storage = buffer.storage
            location = getattr(node, "location", None)  # a Load has none
            item = found.setdefault(storage.name, _Item(storage, storage.size or 0, storage.alignment, location))
            if isinstance(node, Allocate):
                item.location = node.location
            if buffer.scope is Scope.BARRIER:
                item.alignment = BARRIER_ALIGNMENT
            elif isinstance(node, (TmaLoad, TmaStore)):
                item.alignment = max(item.alignment, TMA_ALIGNMENT)
            if isinstance(buffer.layout, SharedLayout):
                item.alignment = max(item.alignment, buffer.layout.alignment)
    items = list(found.values())
    shared = [item for item in items if item.storage.scope is Scope.SHARED]
    return shared, [item for item in items if item.storage.scope is Scope.BARRIER]


def _place(kernel: Kernel, items: list[_Item]) -> list[Why]:
    """Best fit, largest first: each storage goes to the smallest gap, among those that live at the same time, that
    holds it."""
    records: list[Why] = []
    placed: list[_Item] = []
    for item in sorted((i for i in items if i.lifetime is not None), key=lambda i: -i.size):
        assert item.lifetime is not None
        others = [p for p in placed if p.lifetime is not None and p.lifetime.overlaps(item.lifetime)]
        item.offset = _best_fit(item, others, max((p.end for p in placed), default=0))
        for other in placed:
            if other.offset < item.end and item.offset < other.end:
                low, high = max(item.offset, other.offset), min(item.end, other.end)
                records.append(
                    Why(
                        PASS_NAME,
                        f"{kernel.name}: {item.storage.name}",
                        f"shares bytes {low} to {high - 1} with {other.storage.name}",
                        "their contents never matter at the same time",
                        item.location,
                    )
                )
        placed.append(item)
    return records


def _best_fit(item: _Item, others: list[_Item], total: int) -> int:
    """An offset apart from ``others``: in the smallest gap that is large enough; memory up to ``total`` is in use
    anyway."""
    fitting: list[tuple[int, int]] = []  # (size of the gap, offset of the item in it)
    free_from = 0
    for end in (*sorted(other.offset for other in others), total):
        offset = _aligned(free_from, item.alignment)
        if offset + item.size <= end:
            fitting.append((end - free_from, offset))
        free_from = max([free_from, *(other.end for other in others if other.offset == end)])
    return min(fitting)[1] if fitting else _aligned(free_from, item.alignment)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _too_large(kernel: Kernel, items: list[_Item], total: int, target: Target) -> ResourceError:
    rows = [f"    {'buffer':<24} {'bytes':>9} {'offset':>9}  line"]
    for item in sorted(items, key=lambda i: -i.size):
        rows.append(f"    {item.storage.name:<24} {item.size:>9} {item.offset:>9}  {item.location or ''}")
    largest = max(items, key=lambda i: i.size)
    return ResourceError(
        f"kernel {kernel.name} needs more shared memory than {target.name} has\n" + "\n".join(rows),
        location=largest.location or kernel.location,
        expected=f"at most {target.max_shared_bytes} bytes in a block",
        got=f"{total} bytes, after merging buffers that are not used at the same time",
        hint=f"use smaller tiles or fewer pipeline stages ({largest.storage.name} is the largest buffer), "
        "a narrower dtype, or keep a tile in a fragment instead",
    )


class _Placement(Rewriter):
    """Puts the placed storages into every buffer; allocations of what is never used go."""

    def __init__(self, placed: dict[str, Storage], unused: set[str]) -> None:
        self._placed = placed
        self._unused = unused

    def rewrite_Allocate(self, node: Allocate) -> Allocate | None:
        return None if node.buffer.storage.name in self._unused else node

    def buffer(self, buffer: Buffer) -> Buffer:
        storage = self._placed.get(buffer.storage.name)
        if storage is None or storage == buffer.storage:
            return buffer
        return replace(buffer, storage=storage)

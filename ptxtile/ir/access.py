"""One access of shared or global memory: which bytes each thread touches.

An :class:`Access` keeps its index expression with the loops and conditions around it
(:mod:`ptxtile.ir.access_context`); :mod:`ptxtile.ir.statement_accesses` finds those of a statement,
:mod:`ptxtile.ir.footprint` evaluates one exactly over all threads and loop counters, and :mod:`ptxtile.ir.conflicts`
compares two.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace

from ptxtile.errors import Location
from ptxtile.ir.access_context import Context
from ptxtile.ir.atomic_ops import COMMUTATIVE
from ptxtile.ir.buffers import Scope, Storage
from ptxtile.ir.expressions import Expr


@dataclass(eq=False, slots=True)
class Access:
    """One read or write in the program text; compared by identity.

    ``index``: in elements, scalar definitions filled in; None: anywhere in the storage. ``asynchronous``: by ``engine``
    (``tma``, ``wgmma``, ``cp_async``) on behalf of the issuing threads. ``retired_by``: the shared storage whose waits
    (``retires``) complete an asynchronous access. ``box``: of a TMA access to global memory, (coordinate, extent) for
    each dimension of its tensor map, and ``space``, what coordinates mean there. ``atomic``: the operator of an atomic
    operation, ``load`` or ``store``. ``by_warpgroups``: done for a warpgroup as soon as one of its threads says so.
    ``was_async``: an access of the async proxy that was waited for. ``phase``: of an mbarrier, a ``wait`` for its phase
    or an arrival that may complete the ``next`` one.

    What follows from that, and is asked for again and again: ``memory``, for accesses to different memories never meet
    (placed shared storages are one memory); ``in_async_proxy``, where cp.async is not (it belongs to the generic proxy:
    PTX ISA, «Memory Consistency Model», proxies); ``threads`` that may execute the access, a bit for each, and whether
    ``threads_are_known`` from thread conditions alone (uniform conditions aside).
    """

    storage: Storage
    is_write: bool
    index: Expr | None
    element_bits: int
    width_bits: int
    context: Context
    asynchronous: bool = False
    retired_by: str = ""
    location: Location | None = None
    box: tuple[tuple[Expr, int], ...] = ()
    space: Hashable = None
    atomic: str = ""
    engine: str = "tma"
    by_warpgroups: bool = False
    was_async: bool = False
    phase: str = ""
    memory: str = field(init=False)
    in_async_proxy: bool = field(init=False)
    threads: int = field(init=False)
    threads_are_known: bool = field(init=False)
    footprints: dict[frozenset[str], object] = field(init=False, repr=False)
    _completed: Access | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self.memory = self._memory()
        self.in_async_proxy = self.was_async or (self.asynchronous and self.engine != "cp_async")
        self.threads, self.threads_are_known = self.context.active_threads()
        self.footprints = {}

    def commutes_with(self, other: Access) -> bool:
        """Whether the two are parts of atomic operations that leave the same value in any order; those of different
        proxies need a fence between them."""
        same = self.atomic == other.atomic and self.element_bits == other.element_bits
        return same and self.atomic in COMMUTATIVE and self.in_async_proxy == other.in_async_proxy

    def completed(self) -> Access:
        """What this access counts as after its threads' wait for it: an ordinary one of theirs, of the same proxy."""
        if self._completed is None:
            made = {"by_warpgroups": self.engine == "wgmma", "was_async": self.in_async_proxy}
            self._completed = replace(self, asynchronous=False, **made)
            self._completed.footprints = self.footprints
        return self._completed

    def _memory(self) -> str:
        if self.storage.scope is Scope.GLOBAL:
            return "global " + self.context.memories.get(self.storage.name, self.storage.name)
        placed = self.storage.scope is Scope.SHARED and self.storage.offset is not None
        return "shared" if placed else "shared " + self.storage.name

    @property
    def base(self) -> int:
        """Byte address of the storage in its memory."""
        return self.storage.offset or 0 if self.storage.scope is Scope.SHARED else 0

    def describe(self) -> str:
        engine = {"tma": "TMA", "cp_async": "cp.async"}.get(self.engine, self.engine)
        verb = (f"{engine} write of" if self.is_write else f"{engine} read of") if self.asynchronous else ""
        verb = verb or {"wait": "wait for", "next": "next phase of"}.get(self.phase, "")
        verb = verb or ("write of" if self.is_write else "read of")
        return f"{verb} {self.storage.name}" + (f" ({self.location})" if self.location else "")

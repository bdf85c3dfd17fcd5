"""Effects of the asynchronous engines (TMA, wgmma, cp.async): issued by a thread, carried out at some later moment.

:class:`ImmediateEffects` carries each out when it is issued, which is one legal moment. Another policy may keep effects
back until a wait demands them; everything it needs is in :class:`AsyncEffect` and in the calls below.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from ptxtile.ir.gpu_ops import BulkWaitGroup
from ptxtile.records import record
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    import numpy as np

    from ptxtile.sim.machine import Threads
    from ptxtile.sim.memory import GlobalTensor, SharedMemory
    from ptxtile.sim.rules.mbarriers import Mbarrier


@record
class Touch:
    """Bytes that an effect reads or writes, for a checker. ``offsets`` [row, unit]: byte offsets, ``width`` bytes each,
    into the shared memory of the CTAs ``ctas`` [row], or into a tensor's storage, on behalf of those CTAs. ``inside``:
    the units that are really touched. ``name``: of the storage, or of the tensor. ``signals``: the mbarrier that each
    row's write completes on. ``issuers``: for each row, which of the active lanes issued it; None: the lanes in order,
    one row each."""

    memory: SharedMemory | GlobalTensor
    is_write: bool
    name: str
    ctas: np.ndarray
    offsets: np.ndarray
    width: int
    inside: np.ndarray | None = None
    signals: tuple[Mbarrier, ...] = ()
    atomic: bool = False
    issuers: np.ndarray | None = None


@record
class AsyncEffect:
    """``read`` takes the data from its source, ``write`` puts it into its destination, ``complete`` tells who waits for
    it (an mbarrier's transaction count; nothing for a bulk group). ``kind``: ``tma_load``, ``tma_store``, ``wgmma`` or
    ``cp_async``; the last two are also the names of their engines, which have groups of their own. ``touches``: the
    memory that it reads and writes, known when it is issued."""

    kind: str
    read: Callable[[], Any]
    write: Callable[[Any], None]
    complete: Callable[[], None]
    touches: Callable[[], Iterable[Touch]] = tuple


class EffectPolicy(Protocol):
    """When asynchronous effects happen."""

    def issue(self, threads: Threads, effect: AsyncEffect, mask: Mask) -> None: ...

    def commit_bulk_group(self, threads: Threads, mask: Mask) -> None: ...

    def wait_bulk_group(self, threads: Threads, op: BulkWaitGroup, mask: Mask) -> Wait | None: ...

    def commit_group(self, threads: Threads, engine: str, mask: Mask) -> None:
        """The effects of ``engine`` that the threads issued since the last commit become a group."""
        ...

    def wait_group(self, threads: Threads, engine: str, pending: int, mask: Mask) -> Wait | None:
        """All but the latest ``pending`` groups of the threads have to be carried out."""
        ...

    def complete(self, threads: Threads, engine: str, mask: Mask) -> None:
        """Everything of ``engine`` that the threads issued has to be carried out."""
        ...

    def progress(self) -> bool:
        """Every thread waits: carries out something that was kept back. False when there is nothing."""
        ...

    def finish(self) -> None:
        """All threads have ended."""
        ...


class ImmediateEffects:
    """Every effect happens as it is issued, so that bulk groups are always finished."""

    def issue(self, threads: Threads, effect: AsyncEffect, mask: Mask) -> None:
        effect.write(effect.read())
        effect.complete()

    def commit_bulk_group(self, threads: Threads, mask: Mask) -> None:
        return None

    def wait_bulk_group(self, threads: Threads, op: BulkWaitGroup, mask: Mask) -> Wait | None:
        return None

    def commit_group(self, threads: Threads, engine: str, mask: Mask) -> None:
        return None

    def wait_group(self, threads: Threads, engine: str, pending: int, mask: Mask) -> Wait | None:
        return None

    def complete(self, threads: Threads, engine: str, mask: Mask) -> None:
        return None

    def progress(self) -> bool:
        return False

    def finish(self) -> None:
        return None


class LateEffects(ImmediateEffects):
    """wgmma and cp.async happen at the last legal moment, when a wait of the threads that issued them asks for it; so a
    missing or too weak wait gives wrong numbers. What nobody waits for never happens. TMA is immediate.

    The threads of one role count as one here: they have to commit and wait together.
    """

    def __init__(self) -> None:
        self._open: dict[tuple[str, int], list[AsyncEffect]] = defaultdict(list)
        self._groups: dict[tuple[str, int], list[list[AsyncEffect]]] = defaultdict(list)

    def issue(self, threads: Threads, effect: AsyncEffect, mask: Mask) -> None:
        if effect.kind in ("wgmma", "cp_async"):
            self._open[effect.kind, threads.first_thread].append(effect)
        else:
            super().issue(threads, effect, mask)

    def commit_group(self, threads: Threads, engine: str, mask: Mask) -> None:
        key = engine, threads.first_thread
        self._groups[key].append(self._open.pop(key, []))

    def wait_group(self, threads: Threads, engine: str, pending: int, mask: Mask) -> Wait | None:
        groups = self._groups[engine, threads.first_thread]
        while len(groups) > pending:
            for effect in groups.pop(0):
                effect.write(effect.read())
                effect.complete()
        return None

    def complete(self, threads: Threads, engine: str, mask: Mask) -> None:
        self.commit_group(threads, engine, mask)
        self.wait_group(threads, engine, 0, mask)

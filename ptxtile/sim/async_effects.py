"""Effects of the asynchronous engines (TMA): issued by a thread, carried out at some later moment.

:class:`ImmediateEffects` carries each out when it is issued, which is one legal moment. Another policy may keep effects
back until a wait demands them; everything it needs is in :class:`AsyncEffect` and in the calls below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ptxtile.ir.gpu_ops import BulkWaitGroup
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads


@dataclass(frozen=True, slots=True)
class AsyncEffect:
    """``read`` takes the data from its source, ``write`` puts it into its destination, ``complete`` tells who waits for
    it (an mbarrier's transaction count; nothing for a bulk group). ``kind``: ``tma_load`` or ``tma_store``."""

    kind: str
    read: Callable[[], Any]
    write: Callable[[Any], None]
    complete: Callable[[], None]


class EffectPolicy(Protocol):
    """When asynchronous effects happen."""

    def issue(self, threads: Threads, effect: AsyncEffect, mask: Mask) -> None: ...

    def commit_bulk_group(self, threads: Threads, mask: Mask) -> None: ...

    def wait_bulk_group(self, threads: Threads, op: BulkWaitGroup, mask: Mask) -> Wait | None: ...


class ImmediateEffects:
    """Every effect happens as it is issued, so that bulk groups are always finished."""

    def issue(self, threads: Threads, effect: AsyncEffect, mask: Mask) -> None:
        effect.write(effect.read())
        effect.complete()

    def commit_bulk_group(self, threads: Threads, mask: Mask) -> None:
        return None

    def wait_bulk_group(self, threads: Threads, op: BulkWaitGroup, mask: Mask) -> Wait | None:
        return None

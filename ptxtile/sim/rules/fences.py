"""Fences: the plain mode keeps one order of effects for all, so they do nothing. A checker hooks in here.

So does griddepcontrol, since launches run one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxtile.errors import SimulationError
from ptxtile.ir.gpu_ops import FenceMbarrierInit, FenceProxyAsync
from ptxtile.ir.grid_dependency_ops import GridDependencyWait, LaunchDependents
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads


def mbarrier_init(threads: Threads, op: FenceMbarrierInit, mask: Mask) -> None:
    """fence.mbarrier_init.release.cluster."""


def proxy_async(threads: Threads, op: FenceProxyAsync, mask: Mask) -> None:
    """fence.proxy.async."""
    if op.space not in ("shared", "global"):
        raise SimulationError("fence.proxy.async of an unknown space", expected="shared or global", got=op.space)


def grid_dependency(threads: Threads, op: GridDependencyWait | LaunchDependents, mask: Mask) -> None:
    """griddepcontrol: the launches in front are complete."""

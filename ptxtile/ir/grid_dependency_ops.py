"""GPU ops of dependent launches: a kernel that starts before the one in front of it on the stream has ended.

PTX ISA 9.0, «Parallel Synchronization and Communication Instructions: griddepcontrol». The
grid in front is a *prerequisite* of one that is launched with the attribute «programmatic stream serialization»; in
any other launch the wait does nothing. Neither op has an effect on numbers within a launch.
"""

from __future__ import annotations

from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.rewrite import contains
from ptxtile.ir.statements import Statement
from ptxtile.records import record


@record
class GridDependencyWait(GpuOp):
    """griddepcontrol.wait: the thread waits until the prerequisite grids have completed, all of their accesses to
    memory are performed, and what they wrote is visible to it. Until then nothing of theirs is."""


@record
class LaunchDependents(GpuOp):
    """griddepcontrol.launch_dependents: grids that depend on this one may start once a thread of each CTA has run this,
    or the CTA has ended; without it, once all CTAs have ended. It orders no memory."""


GRID_DEPENDENCY_OPS = (GridDependencyWait, LaunchDependents)


def waits_for_prerequisites(body: Statement) -> bool:
    """Whether a :class:`GridDependencyWait` stands anywhere in ``body``."""
    return contains(body, GridDependencyWait)

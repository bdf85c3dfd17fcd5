"""Bulk groups of TMA stores: commit and wait (PTX ISA 9.7.9.25.4)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ptxtile.ir.gpu_ops import BulkCommitGroup, BulkWaitGroup
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.machine import Threads


def commit(threads: Threads, op: BulkCommitGroup, mask: Mask) -> None:
    threads.group.effects.commit_bulk_group(threads, mask)


def wait(threads: Threads, op: BulkWaitGroup, mask: Mask) -> Wait | None:
    return threads.group.effects.wait_bulk_group(threads, op, mask)

"""The barrier of the grid under the checker, thread by thread: all CTAs are in one group."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.ir.manual_ops import GridSync
from ptxtile.sim.check.clocks import Clocks
from ptxtile.sim.control_flow import Wait
from ptxtile.sim.masks import Mask

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedThreads


class GridMeetings:
    """``arrivals`` [thread of the group]: how often each has come to the barrier."""

    def __init__(self, clocks: Clocks) -> None:
        self.exists = clocks.strand_of >= 0
        self.arrivals = np.zeros(clocks.threads, dtype=np.int64)

    def rounds(self) -> int:
        return int(self.arrivals[self.exists].min())


class GridWait(Wait):
    def __init__(self, threads: CheckedThreads, op: GridSync, wanted: int) -> None:
        self.threads, self.wanted = threads, wanted
        self.location = op.location

    def ready(self) -> bool:
        return self.threads.group.grid_meetings.rounds() >= self.wanted

    def describe(self) -> list[str]:
        meetings = self.threads.group.grid_meetings
        late = int((meetings.arrivals[meetings.exists] < self.wanted).sum())
        return [f"{self.threads.describe(self.threads.cta or 0)} waits for the grid: {late} threads have not arrived"]


def sync_grid(threads: CheckedThreads, op: GridSync, mask: Mask) -> Wait | None:
    numbers, meetings = threads.numbers(mask), threads.group.grid_meetings
    meetings.arrivals[numbers] += 1
    waiting = GridWait(threads, op, int(meetings.arrivals[numbers].max()))
    return None if waiting.ready() else waiting

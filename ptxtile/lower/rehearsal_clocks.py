"""What is known to be done, in a rehearsal of what threads do at barriers: clocks of groups of threads, and barriers.

The clocks are vector clocks (Mattern, «Virtual Time and Global States of Distributed Systems», 1989).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ptxtile.lower.hazards import Path
from ptxtile.records import record

Clock = dict[Hashable, int]
"""By a group's number: everything before that time is done. By a barrier's name, a tuple: so many of its phases are
complete."""


class Unclear(Exception):
    """What the threads do at the barriers is not known, or differs from one schedule to the next."""


@record
class Moment:
    """One statement of one group of threads (a bit for each in ``threads``), in the group's own count of ``time``. It
    comes before another one if that one's ``clock`` gives a later time for its group.

    ``values``: the variables of loops around it whose bounds are constants; ``repeating``: those of the other loops, as
    far as known. ``by_warps``: what was before that time is known to those of the group who are of one warp.
    """

    group: int
    threads: int
    time: int
    clock: Clock
    values: Mapping[str, int]
    repeating: Mapping[str, int]
    by_warps: int

    def is_apart_by_warps(self, other: Moment) -> bool:
        """Whether threads of one warp are ordered."""
        return self.group == other.group and (self.time < other.by_warps or other.time < self.by_warps)


Moments = dict[Path, list[Moment]]
"""By the path of a statement that has no barrier inside, or of a loop or condition (for its own expressions)."""


@dataclass(slots=True)
class Group:
    """Threads that take the same ways. ``registers``: what is known of private storages, by name and element."""

    number: int
    threads: int
    values: dict[str, Any]
    clock: Clock = field(default_factory=dict)
    time: int = 0
    by_warps: int = 0
    registers: dict[tuple[str, int], int] = field(default_factory=dict)
    unbounded: set[str] = field(default_factory=set)
    """Variables of the loops around the present statement whose number of iterations is only known at launch."""
    constant: dict[str, int] = field(default_factory=dict)
    """The variables of the other loops."""

    def learn(self, clock: Clock) -> None:
        self.clock = joined(self.clock, clock)


@dataclass(slots=True)
class Barrier:
    """A barrier that ``count`` threads complete; 0: as many as the first who arrives in the phase says."""

    count: int = 0
    is_named: bool = False
    arrivals: list[tuple[Group, Clock]] = field(default_factory=list)
    phases: list[Clock] = field(default_factory=list)
    """What is known to those who wait for each phase that is complete."""


def joined(*clocks: Clock) -> Clock:
    """What somebody knows who learns all of this."""
    result: Clock = {}
    for clock in clocks:
        for key, time in clock.items():
            if time > result.get(key, 0):
                result[key] = time
    return result

"""What the checker reports."""

from __future__ import annotations

from dataclasses import field

from ptxtile.errors import Location, excerpt
from ptxtile.records import record

RULES = {
    "race": "two accesses of one place, at least one of them a write, that nothing orders",
    "missing fence": "accesses through the generic and the async proxy, or operations of wgmma, without the fence that "
    "has to stand between",
    "uninitialised": "memory or registers are read that nobody has written",
    "in flight": "registers of a wgmma are touched before the wait for it",
    "stale wait": "a wait names a phase of an mbarrier that the thread has seen already, while the next is under way",
    "unfinished": "a CTA ends in the middle of a phase or round of a barrier, or of asynchronous work",
    "deadlock": "everybody waits for what can no longer happen",
    "illegal": "what the hardware does not allow: out of bounds, misaligned, wrong counts",
}
"""Kinds of findings."""


@record
class Finding:
    """One fault. ``rule``: one of :data:`RULES`. ``message`` says what happens, with buffer, element, warps and stage.
    ``locations``: the user's lines of all sides, the later one first. ``hint``: what to change."""

    rule: str
    message: str
    locations: tuple[Location | None, ...] = ()
    hint: str = ""
    seed: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.message}"]
        lines += [excerpt(location) for location in dict.fromkeys(self.locations) if location is not None]
        lines += [f"  hint: {self.hint}"] if self.hint else []
        return "\n".join(lines)


@record
class Report:
    """All findings of some runs of one call, each once. ``schedules``: how many runs there were."""

    findings: tuple[Finding, ...]
    schedules: int

    @property
    def clean(self) -> bool:
        return not self.findings

    def __str__(self) -> str:
        if self.clean:
            return f"no faults in {self.schedules} schedules"
        return "\n\n".join(str(finding) for finding in self.findings)

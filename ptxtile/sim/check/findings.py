"""What the checker reports."""

from __future__ import annotations

from dataclasses import field

from ptxtile.errors import Location, excerpt
from ptxtile.records import record


@record
class Finding:
    """One fault. ``rule``: its kind, such as ``race`` or ``deadlock``. ``message`` says what happens, with buffer,
    element, warps and stage. ``locations``: the user's lines of all sides, the later one first."""

    rule: str
    message: str
    locations: tuple[Location | None, ...] = ()
    seed: int | None = field(default=None, compare=False)

    def __str__(self) -> str:
        lines = [f"{self.rule}: {self.message}"]
        lines += [excerpt(location) for location in dict.fromkeys(self.locations) if location is not None]
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

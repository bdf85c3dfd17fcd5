"""What a sweep found: a row for each configuration, the best, a table and a plot of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxtile.errors import TuningError
from ptxtile.records import record
from ptxtile.tune.configurations import identity

if TYPE_CHECKING:
    from rich.table import Table

    from ptxtile.kernel import JITKernel


class Status(Enum):
    """MEASURED: right and timed. SLOWER: given up after a first estimate, its latency. PRUNED: cannot be compiled, or
    not well. WRONG: other results than the reference. TIMEOUT: did not end in time. FAILED: an error at run time."""

    MEASURED = "measured"
    SLOWER = "slower"
    PRUNED = "pruned"
    WRONG = "wrong"
    TIMEOUT = "timeout"
    FAILED = "failed"


@record
class Row:
    """One configuration. latency, fastest: milliseconds, the median and the shortest. reason: why there are none, a
    sentence or a report of several lines. Registers and spilled bytes of a thread, shared memory of a CTA; None where
    nobody says. program: what the traced program is known by. resumed: from an earlier sweep."""

    config: Mapping[str, Any]
    status: Status
    latency: float | None = None
    fastest: float | None = None
    reason: str = ""
    registers: int | None = None
    spills: int | None = None
    shared_bytes: int | None = None
    compile_seconds: float | None = None
    program: str = ""
    resumed: bool = False


@dataclass
class TuningResult:
    """``config`` is the best, ``latency`` its milliseconds, ``kernel`` its kernel, compiled; ``rows`` are in the order
    of the configurations. ``ref_latency``: of the reference, None without one. ``from_disk``: an earlier process's."""

    name: str
    config: Mapping[str, Any]
    latency: float
    rows: Sequence[Row]
    kernel: JITKernel
    device: str
    ref_latency: float | None = None
    clock: str = ""
    from_disk: bool = False
    func: Any = field(default=None, repr=False)

    @property
    def libcode(self) -> str:
        """The PTX of the best kernel."""
        return self.kernel.get_kernel_source()

    def ranked(self) -> list[Row]:
        """The fastest first, then what has no time."""
        return sorted(self.rows, key=lambda row: (row.status is not Status.MEASURED, row.latency or float("inf")))

    def table(self) -> Table:
        """For ``rich.print``."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=f"{self.name} on {self.device}" + (f", {self.clock}" if self.clock else ""))
        names = list(self.rows[0].config) if self.rows else []
        for name in names:
            table.add_column(name, justify="right")
        for name in ("ms", "of best", "registers", "spilled", "shared"):
            table.add_column(name, justify="right")
        table.add_column("", overflow="fold")
        for row in self.ranked():
            ratio = "" if row.latency is None else f"{row.latency / self.latency:.2f}"
            latency = "" if row.latency is None else f"{row.latency:.4g}"
            figures = ["" if value is None else str(value) for value in (row.registers, row.spills, row.shared_bytes)]
            note = "" if row.status is Status.MEASURED else f"{row.status.value}: {_first_line(row.reason)}"
            values = [str(row.config.get(name)) for name in names]
            style = "bold" if row.config == self.config else None
            table.add_row(*map(Text, (*values, latency, ratio, *figures, note)), style=style)
        return table

    def __str__(self) -> str:
        """The table as plain text."""
        from rich.console import Console

        console = Console(width=160, no_color=True)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get()

    def to_rows(self) -> list[dict[str, Any]]:
        """Plain values, for a data frame or a JSON file."""
        return [
            {
                **{name: value if isinstance(value, (int, float, str)) else str(value)
                   for name, value in row.config.items()},
                "status": row.status.value, "latency": row.latency, "fastest": row.fastest, "reason": row.reason,
                "registers": row.registers, "spills": row.spills, "shared_bytes": row.shared_bytes,
                "compile_seconds": row.compile_seconds,
            }
            for row in self.rows
        ]  # fmt: skip

    def plot(self, path: str | Path | None = None) -> Any:
        """The sweep as a picture: milliseconds of each configuration, the fastest first; written to ``path`` if one is
        given. Gives the matplotlib figure. TuningError without matplotlib."""
        from ptxtile.tune.plot import draw

        figure = draw(self)
        if path is not None:
            figure.savefig(path, bbox_inches="tight")
        return figure


def best_of(name: str, rows: Sequence[Row]) -> Row:
    """The fastest row. TuningError, with every reason, when nothing was measured."""
    measured = [row for row in rows if row.status is Status.MEASURED and row.latency is not None]
    if measured:
        return min(measured, key=lambda row: row.latency or 0.0)
    reasons = [f"  {identity(row.config)}: {row.status.value}: {_first_line(row.reason)}" for row in rows[:20]]
    more = [f"  … and {len(rows) - 20} more"] if len(rows) > 20 else []
    raise TuningError(
        "\n".join([f"no configuration of {name} works", *reasons, *more]),
        hint="a configuration compiled alone, such as f.compile(…), shows its whole error",
    )


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0]

"""How far a sweep is: a bar on standard error where that is a terminal, or where it is asked for."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bars


class Progress:
    """Told of each configuration's steps. Without bars it does nothing."""

    def __init__(self, bars: Bars | None, total: int) -> None:
        self._bars = bars
        self._compiling = bars.add_task("compiling", total=total) if bars else None
        self._measuring = bars.add_task("measuring", total=total) if bars else None

    def compiled(self) -> None:
        if self._bars is not None and self._compiling is not None:
            self._bars.advance(self._compiling)

    def measured(self, best: float | None) -> None:
        if self._bars is not None and self._measuring is not None:
            text = "measuring" if best is None else f"measuring, best {best:.4g} ms"
            self._bars.update(self._measuring, advance=1, description=text)


@contextlib.contextmanager
def progress_of(total: int, wanted: bool | None) -> Iterator[Progress]:
    """``wanted`` None: where standard error is a terminal."""
    if not (sys.stderr.isatty() if wanted is None else wanted):
        yield Progress(None, total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        yield Progress(bars, total)

"""A sweep as a picture, with matplotlib (``pip install ptxtile[plot]``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptxtile.errors import TuningError
from ptxtile.tune.configurations import identity

if TYPE_CHECKING:
    from ptxtile.tune.results import TuningResult


def draw(result: TuningResult) -> Any:
    """A bar for each configuration that has a time, the fastest on top; a line for the reference."""
    try:
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise TuningError("a plot needs matplotlib", got=str(error), hint="pip install ptxtile[plot]") from error

    rows = [row for row in result.ranked() if row.latency is not None]
    figure = Figure(figsize=(9, 1.2 + 0.28 * len(rows)))
    axes = figure.subplots()
    best = result.config
    axes.barh(
        range(len(rows)), [row.latency for row in rows], color=["C1" if row.config == best else "C0" for row in rows]
    )  # fmt: skip
    axes.set_yticks(range(len(rows)), [identity(row.config) for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("ms" + (f" ({result.clock})" if result.clock else ""))
    axes.set_title(f"{result.name} on {result.device}")
    if result.ref_latency is not None:
        axes.axvline(result.ref_latency, color="black", linestyle="--", label="reference")
        axes.legend()
    return figure

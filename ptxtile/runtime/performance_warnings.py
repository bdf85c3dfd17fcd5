"""The assembler's advice as Python warnings at the user's lines."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from ptxtile.errors import PerformanceWarning
from ptxtile.runtime.jit_log import Advice, JitLog
from ptxtile.runtime.ptx_lines import PtxLines


def warnings_of(log: JitLog, ptx: str, kernels: Sequence[str]) -> list[PerformanceWarning]:
    """One warning for each advice that costs time, in the order of the log.

    ``ptx``: what was assembled, for the lines. ``kernels``: its entries; advice about a device function, or about no
    function by name, counts for all of them.
    """
    lines = PtxLines(ptx)
    return [_warning(advice, lines, kernels) for advice in log.advice if advice.reason.effect.costs_time]


def _warning(advice: Advice, lines: PtxLines, kernels: Sequence[str]) -> PerformanceWarning:
    kernel = advice.function if advice.function in kernels else ", ".join(kernels)
    location = lines.location(advice.ptx_line) if advice.ptx_line is not None else None
    if location is None and (advice.function or kernels):
        location = lines.of_function(advice.function) or lines.of_function(kernels[0] if kernels else "")
    place = f" ({location})" if location is not None else ""
    message = (
        f"kernel {kernel}{place}: the assembler {advice.reason.effect.value}: {advice.reason.meaning}\n"
        f"  it said: {advice.code + ': ' if advice.code and advice.code not in advice.said else ''}{advice.said}\n"
        f"  hint: {advice.reason.change}"
    )
    return PerformanceWarning(message, kernel=kernel, location=location, code=advice.code)


def warn(log: JitLog, ptx: str, kernels: Sequence[str]) -> None:
    """Issue them, each at its Python line where that is known."""
    for warning in warnings_of(log, ptx, kernels):
        if warning.location is None:
            warnings.warn(warning, stacklevel=2)
        else:
            warnings.warn_explicit(warning, PerformanceWarning, warning.location.file, warning.location.line)

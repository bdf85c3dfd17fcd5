"""The one error tree of ptxtile, and the rendering of a user's source line.

Every error that a user can cause derives from :class:`PtxtileError`. It carries a :class:`Location` (the user's line,
through the chain of macro calls), what was *expected*, what was *got*, and a *hint* that says what to change.
``str(error)`` is the whole report, source excerpt and caret included.
"""

from __future__ import annotations

import linecache
from typing import Any

from ptxtile.records import record


@record
class Location:
    """A place in the user's Python source.

    Lines and columns count from 1; ``end_column`` is exclusive. A column of 0 means that only the line is known.
    ``caller`` is where the macro holding this line was called, so a location is a chain from the inside out.
    """

    file: str
    line: int
    column: int = 0
    end_column: int = 0
    function: str = ""
    caller: Location | None = None

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" + (f":{self.column}" if self.column else "")


def excerpt(location: Location) -> str:
    """The source line of ``location`` with a caret under the expression, then the chain of macro calls around it."""
    parts = []
    place: Location | None = location
    while place is not None:
        where = f" in {place.function}" if place.function else ""
        parts.append(f'  File "{place.file}", line {place.line}{where}')
        text = linecache.getline(place.file, place.line).rstrip("\n")
        if text.strip():
            indent = len(text) - len(text.lstrip())
            parts.append("    " + text.strip())
            if place.column > indent:
                width = max(1, min(place.end_column or len(text) + 1, len(text) + 1) - place.column)
                parts.append("    " + " " * (place.column - 1 - indent) + "^" * width)
        place = place.caller
    return "\n".join(parts)


class PtxtileError(Exception):
    """Base of every error that ptxtile raises on purpose."""

    def __init__(
        self,
        message: str,
        *,
        location: Location | None = None,
        expected: str | None = None,
        got: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.location = location
        self.expected = expected
        self.got = got
        self.hint = hint

    def __str__(self) -> str:
        lines = [self.message]
        if self.expected is not None:
            lines.append(f"  expected: {self.expected}")
        if self.got is not None:
            lines.append(f"  got:      {self.got}")
        if self.location is not None:
            lines.append(excerpt(self.location))
        if self.hint is not None:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class TraceError(PtxtileError):
    """The Python source of a kernel uses something that cannot be traced, or uses the language wrongly."""


class TypeMismatchError(TraceError):
    """Operands, indices or assigned values have dtypes or shapes that do not fit together."""


class LoweringError(PtxtileError):
    """A valid tile program that cannot be lowered for its target (layouts, roles, paths)."""


class ResourceError(LoweringError):
    """A kernel asks for more shared memory, threads, registers or barriers than its target has."""


class TargetError(PtxtileError):
    """An unknown architecture, or an architecture and PTX ISA that do not go together."""


class VerificationError(PtxtileError):
    """An IR invariant does not hold. From a text file this is the user's fault, between passes it is ours."""


class ParseError(PtxtileError):
    """IR text that does not parse."""


class CompileError(PtxtileError):
    """LLVM, ptxas or the driver's JIT refused a module; the message holds its log."""


class ArgumentError(PtxtileError):
    """A call's arguments do not fit the kernel: the message names the argument, expected and got."""


class LaunchError(PtxtileError):
    """The driver refused a launch, or a launch dimension is out of range."""


class DriverError(PtxtileError):
    """A CUDA driver call failed, or there is no usable driver or card."""


class TuningError(PtxtileError):
    """A sweep over configurations found none that works, or was asked for something that it cannot do."""


class WorkerError(PtxtileError):
    """A worker process died, or cannot be used any more."""


class WorkerTimeout(WorkerError):
    """A worker process was ended because it did not answer in time."""


class SimulationError(PtxtileError):
    """The simulator found the program doing something that the hardware does not allow."""


class PerformanceWarning(UserWarning):
    """A kernel gives right results, but the compiler or the assembler could not do what makes it fast.

    ``kernel``: its name in the PTX; ``location``: the user's line, as far as it is known; ``code``: the assembler's
    own, such as ``C7511``, empty where it gives none.
    """

    def __init__(self, message: str, *, kernel: str = "", location: Location | None = None, code: str = "") -> None:
        super().__init__(message)
        self.kernel = kernel
        self.location = location
        self.code = code


class DeadlockError(SimulationError):
    """Every role waits for something that can no longer happen."""


class CheckError(SimulationError):
    """A simulated call was checked before it ran (``PTXTILE_SIM=check``), and its program has faults.

    ``program``: its name; ``report``: a :class:`ptxtile.sim.check.Report`; ``str`` shows all of it.
    """

    def __init__(self, program: str, report: Any) -> None:
        count = len(report.findings)
        super().__init__(f"the checker found {count} fault{'s' if count > 1 else ''} in {program}\n\n{report}")
        self.program = program
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        return CheckError, (self.program, self.report)

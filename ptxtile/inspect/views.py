"""What ``ptxtile inspect`` can show of a compiled program, as text."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from ptxtile.errors import DriverError
from ptxtile.inspect.host import render_host
from ptxtile.ir.printer import print_program
from ptxtile.ir.program import Why
from ptxtile.records import record

if TYPE_CHECKING:
    from ptxtile.compiler import Artifact
    from ptxtile.inspect.subject import Subject


class View(Enum):
    TILE_IR = "--tile-ir"
    PASSES = "--passes"
    GPU_IR = "--gpu-ir"
    HOST = "--host"
    LLVM = "--llvm"
    PTX = "--ptx"
    SASS = "--sass"
    RESOURCES = "--resources"
    WHY = "--why"
    TIMING = "--timing"


_NEED_PTX = frozenset({View.LLVM, View.PTX, View.SASS, View.RESOURCES, View.TIMING})


@record
class Compiled:
    """``artifact`` has LLVM IR and PTX only for the views that need them."""

    subject: Subject
    artifact: Artifact

    @property
    def ptx(self) -> str:
        assert self.artifact.ptx is not None
        return self.artifact.ptx


def show(view: View, subject: Subject) -> str:
    """The text of any view but PASSES, ending with a newline. Compiles as far as the view needs."""
    from ptxtile.compiler import emit_ptx, lower

    if view is View.TILE_IR:
        text = print_program(subject.program)
    else:
        artifact = lower(subject.program, subject.target, subject.options)
        if view in _NEED_PTX:
            artifact = emit_ptx(artifact)
        text = _SHOW[view](Compiled(subject, artifact))
    return text.rstrip("\n") + "\n"


def show_passes(subject: Subject, emit: Callable[[str, str, str], None]) -> None:
    """Call ``emit(name, stage, text)`` with the traced program, then with the program after each pass as it ends.

    When a pass raises, what came before it has been shown.
    """
    from ptxtile.compiler import lower_program
    from ptxtile.lower.pipeline import PASSES

    stages = {entry.name: entry.stage for entry in PASSES}
    lower_program(
        subject.program,
        subject.target,
        subject.options,
        lambda name, program: emit(name, stages.get(name, ""), print_program(program)),
    )


def _sass(compiled: Compiled) -> str:
    from ptxtile.inspect.machine_code import sass

    return sass(compiled.ptx, compiled.subject.target.name)


_FIGURES = (
    "kernel", "registers", "local bytes", "spill stores", "spill loads", "shared static", "shared dynamic", "threads",
    "PTX ISA",
)  # fmt: skip


def _resources(compiled: Compiled) -> str:
    """A row for each kernel, then what the assembler could not do as told."""
    from ptxtile.inspect.machine_code import resources
    from ptxtile.runtime.performance_warnings import warnings_of
    from ptxtile.target.ptx_isa import format_isa

    found, log = resources(compiled.ptx, compiled.artifact.launch, compiled.subject.target.name)
    rows: list[tuple[str, ...]] = [_FIGURES]
    for name, figures in found.items():
        spills = ["-" if spill is None else str(spill) for spill in (figures.spill_stores, figures.spill_loads)]
        rows.append(
            (
                name, str(figures.registers), str(figures.local_bytes), *spills, str(figures.static_shared_bytes),
                str(figures.dynamic_shared_bytes), str(figures.threads), format_isa(figures.ptx_isa),
            )
        )  # fmt: skip
    return "\n".join([_columns(rows), *(str(w) for w in warnings_of(log, compiled.ptx, tuple(found)))])


def _why(compiled: Compiled) -> str:
    """The records by pass, in the order in which they were made; equal ones once, with their number.

    Where all places are in one file, it is named at the top, and the places are its lines.
    """
    made: tuple[Why, ...] = tuple(compiled.artifact.why)
    if not made:
        return "no decisions were recorded\n"
    files = {why.location.file for why in made if why.location}
    file = next(iter(files)) if len(files) == 1 else None
    lines = [f"lines of {file}"] if file else []
    for pass_name in dict.fromkeys(why.pass_name for why in made):
        lines.append(pass_name)
        texts = [_why_text(why, file) for why in made if why.pass_name == pass_name]
        for (decision, reason), count in Counter(texts).items():
            lines += [f"  {decision}" + (f" ({count} times)" if count > 1 else ""), f"      {reason}"]
    return "\n".join(lines)


def _why_text(why: Why, file: str | None) -> tuple[str, str]:
    """Decision and reason; without the name of ``file``, if that is the only one."""
    if file is None:
        place = f"{why.location}: " if why.location else ""
        return f"{place}{why.subject}: {why.decision}", why.reason
    place = f"{why.location.line}: " if why.location else ""
    return f"{place}{why.subject}: {why.decision}", re.sub(rf"{re.escape(file)}:(\d+)(:\d+)?", r"line \1", why.reason)


def _timing(compiled: Compiled) -> str:
    """Sums of the groups, each with its steps; what a cold compile takes is the sum of trace, passes and LLVM."""
    from ptxtile.compiler import grouped

    known = dict(compiled.subject.timings)
    loading = known.pop("load the file", None)
    groups = grouped({**known, **compiled.artifact.timings})
    rows: list[tuple[str, ...]] = [("step", "milliseconds")]
    for name, steps in groups.items():
        if steps:
            rows.append((name, _milliseconds(sum(steps.values()))))
            rows += [("  " + step, _milliseconds(seconds)) for step, seconds in steps.items()]
    total = sum(sum(groups[name].values()) for name in ("trace", "passes", "LLVM"))
    rows.append(("trace + passes + LLVM", _milliseconds(total)))
    jit = _driver_jit(compiled)
    if jit is not None:
        rows += [(jit[0], _milliseconds(jit[1])), ("all of these", _milliseconds(total + jit[1]))]
    if loading is not None:
        rows.append(("(loading the file, with its imports)", _milliseconds(loading)))
    return _columns(rows)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"


def _driver_jit(compiled: Compiled) -> tuple[str, float] | None:
    """How long the driver of the first card takes to load the PTX; None without a card that can run it."""
    from ptxtile.runtime import context, driver, module

    try:
        found = driver.initialised()
        if not module.runs_on(compiled.subject.target.name, found.compute_capability(0)):
            return None
        with context.current(0):  # there before the clock starts
            started = time.perf_counter()
            loaded = module.load(found, 0, compiled.ptx, compiled.artifact.launch.launches)
            seconds = time.perf_counter() - started
    except DriverError:
        return None
    return "driver JIT" if loaded.log else "driver JIT (in the driver's cache)", seconds


def _columns(rows: list[tuple[str, ...]]) -> str:
    """Rows as left-aligned first columns and right-aligned others."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells))
    return "\n".join(lines)


_SHOW: dict[View, Callable[[Compiled], str]] = {
    View.GPU_IR: lambda compiled: print_program(compiled.artifact.program),
    View.HOST: lambda compiled: render_host(compiled.artifact.launch),
    View.LLVM: lambda compiled: compiled.artifact.llvm_ir or "",
    View.PTX: lambda compiled: compiled.ptx,
    View.SASS: _sass,
    View.RESOURCES: _resources,
    View.WHY: _why,
    View.TIMING: _timing,
}

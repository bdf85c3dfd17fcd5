"""What ``ptxtile inspect`` can show of a compiled program, as text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING

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
    records: tuple[Why, ...] = tuple(compiled.artifact.why)
    if not records:
        return "no decisions were recorded\n"
    lines = []
    for record in records:
        place = f" ({record.location})" if record.location else ""
        lines.append(f"{record.pass_name}: {record.subject}: {record.decision}{place}")
        lines.append(f"    {record.reason}")
    return "\n".join(lines)


def _timing(compiled: Compiled) -> str:
    timings: Mapping[str, float] = {**compiled.subject.timings, **compiled.artifact.timings}
    rows = [("step", "milliseconds"), *((name, f"{seconds * 1000:.2f}") for name, seconds in timings.items())]
    return _columns(rows)


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

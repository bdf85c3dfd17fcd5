"""From a traced program to PTX: the lowering passes, then the emitter, with the time that each took."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path

from ptxtile import config
from ptxtile.errors import Location, PerformanceWarning
from ptxtile.ir.program import Program, Why
from ptxtile.launch_record import LaunchRecord
from ptxtile.lower.options import Options
from ptxtile.records import record
from ptxtile.target import Target

Observer = Callable[[str, Program], None]


@record
class Artifact:
    """A compiled program.

    ``tile_program`` as traced, ``program`` at the gpu stage; ``ptx`` and ``llvm_ir`` are None when only lowering was
    asked for (the simulator needs no more). ``timings``: seconds by step: each pass, then LLVM's steps.
    """

    tile_program: Program
    program: Program
    target: Target
    options: Options
    ptx: str | None = None
    llvm_ir: str | None = None
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def launch(self) -> LaunchRecord:
        assert self.program.launch is not None
        return self.program.launch

    @property
    def why(self) -> tuple[Why, ...]:
        return self.program.why


TRACING = ("rewrite", "signature", "trace")
"""Steps before the passes: rewriting the source, learning the parameters, running the function."""


def grouped(timings: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The steps of a kernel's timings under what they belong to: ``trace``, ``passes``, ``LLVM``, and ``imports`` (of
    llvmlite, in a process's first compile)."""
    groups: dict[str, dict[str, float]] = {"trace": {}, "passes": {}, "LLVM": {}, "imports": {}}
    for step, seconds in timings.items():
        if step in TRACING:
            groups["trace"][step] = seconds
        elif step == "llvm import":
            groups["imports"]["llvmlite"] = seconds
        elif step.startswith("llvm "):
            groups["LLVM"][step.removeprefix("llvm ")] = seconds
        else:
            groups["passes"][step] = seconds
    return groups


def lower_program(
    program: Program, target: Target, options: Options | None = None, observe: Observer | None = None
) -> tuple[Program, dict[str, float]]:
    """The program at the gpu stage with its launch record, and seconds by pass.

    ``observe(name, program)`` is called after each pass. PTXTILE_DUMP writes the IR after each pass to a folder;
    PTXTILE_VERIFY=1 checks every invariant in between.
    """
    from ptxtile.lower.pipeline import PASSES

    options = options or Options()
    dump, verify = config.dump_directory(), config.verify_between_passes()
    timings: dict[str, float] = {}
    _after_pass("trace", 0, program, observe, dump, verify)
    for number, entry in enumerate(PASSES, start=1):
        started = time.perf_counter()
        program = entry.run(program, target, options)
        timings[entry.name] = time.perf_counter() - started
        _after_pass(entry.name, number, program, observe, dump, verify)
    return program, timings


def _after_pass(
    name: str, number: int, program: Program, observe: Observer | None, dump: Path | None, verify: bool
) -> None:
    if observe is not None:
        observe(name, program)
    if dump is not None:
        from ptxtile.ir.printer import print_program

        dump.mkdir(parents=True, exist_ok=True)
        (dump / f"{program.name}.{number:02d}.{name}.ir.py").write_text(print_program(program))
    if verify:
        from ptxtile.ir.verifier import verify as verify_program

        verify_program(program)


def lower(
    program: Program, target: Target, options: Options | None = None, observe: Observer | None = None
) -> Artifact:
    """``program`` lowered to the gpu stage: all that the simulator needs."""
    options = options or Options()
    lowered, timings = lower_program(program, target, options, observe)
    warn(warnings_of(lowered))
    return Artifact(program, lowered, target, options, timings=timings)


def warnings_of(program: Program) -> list[PerformanceWarning]:
    """One for each decision of a pass that asks for it, with the user's line."""
    return [
        PerformanceWarning(f"{why.subject}: {why.decision}; {why.reason}", location=why.location)
        for why in program.why
        if why.warns
    ]


def warn(found: Iterable[PerformanceWarning]) -> None:
    """Issue warnings, each at its own line."""
    for warning in found:
        place = warning.location or Location("ptxtile", 0)
        warnings.warn_explicit(warning, PerformanceWarning, place.file, place.line)


def emit_ptx(lowered: Artifact) -> Artifact:
    """``lowered`` with its LLVM IR and PTX."""
    from ptxtile import nvvm

    module = nvvm.emit(lowered.program, lowered.target)
    timings = lowered.timings | {f"llvm {step}": seconds for step, seconds in module.timings.items()}
    dump = config.dump_directory()
    if dump is not None:
        (dump / f"{lowered.program.name}.ll").write_text(module.llvm_ir)
        (dump / f"{lowered.program.name}.ptx").write_text(module.ptx)
    return replace(lowered, ptx=module.ptx, llvm_ir=module.llvm_ir, timings=timings)


def compile_program(
    program: Program, target: Target, options: Options | None = None, observe: Observer | None = None
) -> Artifact:
    """Lowers ``program`` and emits its PTX."""
    return emit_ptx(lower(program, target, options, observe))

"""``ptxtile check``: a kernel with random or given arguments under the checker, and its report."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ptxtile import target
from ptxtile.errors import Location
from ptxtile.inspect.draw_arguments import draw_arguments
from ptxtile.inspect.subject import UsageError, named, with_options
from ptxtile.kernel import JITKernel
from ptxtile.records import record

if TYPE_CHECKING:
    from ptxtile.sim.check import Finding, Report

MOMENT = 1.0
"""Seconds after which a progress bar appears."""


@record
class Call:
    """``kernel`` and the arguments to call it with, by position and by name."""

    kernel: JITKernel
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __str__(self) -> str:
        names = [parameter.name for parameter in self.kernel.signature.inputs]
        shown = [_described(name, value) for name, value in zip(names, self.args, strict=False)]
        return ", ".join([*shown, *(_described(name, value) for name, value in self.kwargs.items())])


@record
class Outcome:
    """A check that has been made; ``seconds`` with compiling."""

    call: Call
    report: Report
    seconds: float


def find_call(
    text: str, definitions: Mapping[str, Any], arch: str | None, options: Mapping[str, Any], inputs: str | None,
    seed: int,
) -> Call:  # fmt: skip
    """The call that ``FILE.py:NAME`` stands for. ``definitions``: sizes, arguments of the factory, numbers of the call.
    ``inputs``: ``FILE.py:NAME`` (of the same file: ``NAME``) of a function that returns the arguments; without one they
    are drawn at random."""
    found, name = named(text)
    maker = _maker(inputs, text)
    kernel, left = _kernel_of(found, name, definitions, () if maker is None else inspect.signature(maker).parameters)
    settings = replace(
        kernel.settings, options=with_options(kernel.settings.options, options),
        target=target.get(arch).name if arch else kernel.settings.target,
    )  # fmt: skip
    chosen = JITKernel(kernel.function, kernel.python_arguments, settings, kernel.outputs, kernel.constants)
    chosen.adopt_signature(kernel)
    if maker is not None:
        return _made(chosen, maker, definitions)
    signature = kernel.signature
    missing = [size for size in signature.constants if size not in left and size not in kernel.constants]
    if missing:
        raise UsageError(f"the size {missing[0]} is not known: {' '.join(f'-D {size}=…' for size in missing)}")
    return Call(chosen, tuple(draw_arguments(signature, {**kernel.constants, **left}, seed)), {})


def _kernel_of(
    found: Any, name: str, definitions: Mapping[str, Any], for_others: Any
) -> tuple[JITKernel, dict[str, Any]]:
    """The kernel that ``found`` stands for under ``definitions``, and those of them that the call takes."""
    import ptxtile
    from ptxtile.frontend.functions import PrimFunc
    from ptxtile.frontend.trace import runtime_parameters

    own: set[str] = set()
    if isinstance(found, ptxtile.JITFunction):
        own = set(found.function.python_signature.parameters) - set(runtime_parameters(found.function))
    elif isinstance(found, ptxtile.JITFactory):
        own = set(inspect.signature(found.function).parameters)
    python = {name: value for name, value in definitions.items() if name in own}
    if isinstance(found, (ptxtile.JITFunction, ptxtile.JITFactory)):
        kernel = found.specialize(**python)
    elif isinstance(found, PrimFunc):
        kernel = ptxtile.compile(found)
    elif isinstance(found, JITKernel):
        kernel = found
    else:
        raise UsageError(f"{name!r} is no kernel: decorate it with @ptxtile.jit or @T.prim_func")
    signature = kernel.signature
    numbers = {*signature.constants, *signature.symbols, *kernel.scalar_parameters()}
    for other in definitions:
        if other not in own | numbers | set(for_others):
            raise UsageError(f"{name} has no size or argument {other!r}; it has " + ", ".join(sorted(own | numbers)))
    return kernel, {size: value for size, value in definitions.items() if size in numbers and size not in own}


def _maker(inputs: str | None, text: str) -> Callable[..., Any] | None:
    if inputs is None:
        return None
    found, name = named(inputs if ":" in inputs else f"{text.rpartition(':')[0]}:{inputs}")
    if not callable(found):
        raise UsageError(f"{name!r} is no function that returns the arguments")
    return found


def _made(kernel: JITKernel, maker: Callable[..., Any], definitions: Mapping[str, Any]) -> Call:
    """What the user's function makes: a tuple or list is by position, a dictionary by name, anything else the one
    argument."""
    taken = inspect.signature(maker).parameters
    made = maker(**{name: value for name, value in definitions.items() if name in taken})
    if isinstance(made, Mapping):
        return Call(kernel, (), made)
    return Call(kernel, tuple(made) if isinstance(made, (tuple, list)) else (made,), {})


def run(call: Call, seeds: int, strict: bool = False) -> Outcome:
    """Checks the call under ``seeds`` schedules, with a progress bar on a terminal when it takes longer."""
    started = time.perf_counter()
    with ProgressBar(call.kernel.function.function.__name__) as progress:
        report = call.kernel.check(*call.args, seeds=seeds, strict=strict, progress=progress, **call.kwargs)
    return Outcome(call, report, time.perf_counter() - started)


class ProgressBar:
    """Called with (blocks done, blocks in all), it shows a bar on standard error after a moment, if that is a terminal.
    A context: the bar is gone at its end."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = time.perf_counter()
        self._shown: Any = None

    def __enter__(self) -> ProgressBar:
        return self

    def __call__(self, done: int, total: int) -> None:
        if time.perf_counter() - self._started < MOMENT:
            return
        if self._shown is None:
            self._shown = self._bar()
        if self._shown is not False:
            self._shown.update(self._task, completed=done, total=total)

    def _bar(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        console = Console(stderr=True)
        if not console.is_terminal:
            return False
        columns = (TextColumn("checking {task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("blocks"))
        bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        bar.start()
        self._task = bar.add_task(self._name)
        return bar

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._shown.stop()


def print_outcome(outcome: Outcome) -> None:
    """The report on standard output: the call, each finding with the user's lines, the sum."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    kernel = outcome.call.kernel
    console.print(Text(f"{kernel.function.function.__name__} for {kernel.target.name}: {outcome.call}", style="dim"))
    for finding in outcome.report.findings:
        rule, _, rest = str(finding).partition(":")
        console.print(Text.assemble("\n", (rule, "bold red"), f":{rest}"))
    console.print()
    console.print(Text(_sum(outcome), style="green" if outcome.report.clean else "bold"))


def _sum(outcome: Outcome) -> str:
    count, schedules = len(outcome.report.findings), outcome.report.schedules
    found = "no faults" if not count else f"{count} fault{'s' if count > 1 else ''}"
    return f"{found} in {schedules} schedule{'s' if schedules != 1 else ''} ({outcome.seconds:.1f} s)"


JSON_FORMAT = 1
"""Goes up when a key of ``--json`` changes its meaning or goes away; new keys may come at any time."""


def as_dictionary(outcome: Outcome) -> dict[str, Any]:
    """The outcome for ``--json``: one object.

    ``format``: :data:`JSON_FORMAT`. ``kernel``, ``target``: names. ``arguments``: the call's, as text. ``schedules``:
    runs that were made. ``seconds``: of all of it, with compiling. ``clean``: whether there are no findings.
    ``findings``: objects with ``rule`` (a key of :data:`ptxtile.sim.check.findings.RULES`), ``message``, ``hint`` (may
    be empty), ``locations`` (the user's lines of all sides, the later one first, each with ``file``, ``line`` and
    ``column`` from 1 and the ``function``), and ``seed`` (the first schedule that showed it).
    """
    kernel, report = outcome.call.kernel, outcome.report
    return {
        "format": JSON_FORMAT,
        "kernel": kernel.function.function.__name__,
        "target": kernel.target.name,
        "arguments": str(outcome.call),
        "schedules": report.schedules,
        "seconds": round(outcome.seconds, 3),
        "clean": report.clean,
        "findings": [_finding(finding) for finding in report.findings],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    places = [place for place in finding.locations if place is not None]
    return {
        "rule": finding.rule,
        "message": finding.message,
        "hint": finding.hint,
        "locations": [_location(place) for place in dict.fromkeys(places)],
        "seed": finding.seed,
    }


def _location(place: Location) -> dict[str, Any]:
    return {"file": place.file, "line": place.line, "column": place.column, "function": place.function}


def _described(name: str, value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{name} {str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    return f"{name}={value!r}"

"""A sweep: every configuration traced, those that cannot fit left out, the others compiled side by side, then measured
one after another, the best taken."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ptxtile import compiled_programs, config
from ptxtile.errors import ArgumentError, PtxtileError, WorkerError, WorkerTimeout
from ptxtile.kernel import JITKernel
from ptxtile.profile import bench
from ptxtile.profile.clocks import Clock
from ptxtile.profile.comparison import copied, results_of
from ptxtile.profile.supply import TensorSupplyType, default_device, make_arguments
from ptxtile.tune.compile_many import card_for, compiling_executor, take
from ptxtile.tune.compile_task import CompileOutcome, compile_task, task_of
from ptxtile.tune.configurations import identity
from ptxtile.tune.fit import why_not
from ptxtile.tune.measure_task import Measured, MeasureTask, measure_task
from ptxtile.tune.pool import WorkerPool
from ptxtile.tune.progress import Progress, progress_of
from ptxtile.tune.results import Row, Status, TuningResult, best_of
from ptxtile.tune.store import Store
from ptxtile.tune.subject import Subject, kind_of
from ptxtile.variant import Variant

if TYPE_CHECKING:
    import torch

MEASURING = ("ptxtile.tune.measure_task", "torch")
"""What a process that measures imports."""
ROOM_IN_MEMORY = 8 * 2**30
"""Bytes that a file system in memory must have free for tensors to be passed through it."""


@dataclass
class SweepSettings:
    """warmup, rep: milliseconds for each configuration; backend: as of :func:`ptxtile.profile.do_bench`. timeout:
    seconds for a configuration to compile, and to be measured (only in processes of ours). supply_type, supply_prog,
    inputs: where arguments come from: kinds of random values; a function that is given the kernel's tensor parameters
    and gives a list; the list itself. ref_prog: what results are compared with; manual_check_prog compares itself.
    early_stop: give a configuration up whose first estimate is ``early_stop_factor`` times the best. workers,
    executor: who compiles. isolate: measure in a process of its own; None: on a card. clock: a function of a module
    that gives what times. progress: None: on a terminal. verbose: log the table. do_not_specialize: see
    :func:`ptxtile.autotune`."""

    warmup: float = 25.0
    rep: float = 100.0
    backend: str = "event"
    timeout: float | None = 100.0
    supply_type: TensorSupplyType = TensorSupplyType.Auto
    supply_prog: Callable[..., Sequence[Any]] | None = None
    inputs: Sequence[Any] | None = None
    ref_prog: Callable[..., Any] | None = None
    manual_check_prog: Callable[..., Any] | None = None
    skip_check: bool = False
    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    early_stop: bool = False
    early_stop_factor: float = 2.0
    cache_input_tensors: bool = True
    workers: int | None = None
    executor: Executor | None = None
    isolate: bool | None = None
    device: Any = None
    clock: Callable[[], Clock] | None = None
    progress: bool | None = None
    verbose: bool = False
    resume: bool = True
    do_not_specialize: Sequence[str] = ()


@dataclass
class _Candidate:
    """One configuration on its way. ``row`` is there once nothing more is to be done for it."""

    config: Mapping[str, Any]
    kernel: JITKernel | None = None
    arguments: _Arguments | None = None
    variant: Variant | None = None
    program: str = ""
    outcome: CompileOutcome | None = None
    row: Row | None = None


@dataclass
class _Arguments:
    """What kernels with the same parameters are called with, and the reference's results."""

    values: list[Any]
    expected: list[torch.Tensor] | None = None
    files: tuple[str, str | None] | None = None


@dataclass
class Sweep:
    """``args`` and ``kwargs`` are those of the user's call, without the configuration."""

    subject: Subject
    configs: Sequence[Mapping[str, Any]]
    settings: SweepSettings
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._arguments: dict[str, _Arguments] = {}
        self._pool: WorkerPool | None = None
        self._folder = Path()
        self.subject.check(self.configs)

    # -- the whole

    def run(self) -> TuningResult:
        """TuningError when no configuration works."""
        settings = self.settings
        candidates = [_Candidate(config) for config in self.configs]
        with contextlib.ExitStack() as stack:
            isolate = self.device.type == "cuda" if settings.isolate is None else settings.isolate
            if isolate:
                self._pool = stack.enter_context(WorkerPool(1, MEASURING, settings.timeout))
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ptxtile-", dir=_memory_folder()))
            self._folder = Path(folder)
            bars = stack.enter_context(progress_of(len(candidates), settings.progress))
            self._compile(candidates, bars)
            self._measure(candidates, bars)
        rows = [candidate.row for candidate in candidates if candidate.row is not None]
        best = best_of(self.subject.name, rows)
        winner = next(candidate for candidate in candidates if candidate.row is best)
        result = self._result(winner, best, rows)
        self.store.keep_best(best.config, result.latency, result.ref_latency, winner.program)
        if settings.verbose:
            config.logger().warning("\n%s", result)
        return result

    def find(self) -> TuningResult | None:
        """What an earlier sweep found best, if it is still among the configurations and makes the same program."""
        found = self.store.find_best() if self.settings.resume else None
        if found is None:
            return None
        known, latency, ref_latency, program = found
        chosen = next((config for config in self.configs if identity(config) == known), None)
        if chosen is None:
            return None
        candidate = _Candidate(chosen)
        self._trace(candidate)
        if candidate.row is not None and candidate.row.status is Status.PRUNED:
            return None
        if candidate.program != program or candidate.kernel is None:
            return None
        row = self.store.find(chosen, program) or Row(chosen, Status.MEASURED, latency, program=program, resumed=True)
        return TuningResult(
            self.subject.name, chosen, latency, [row], candidate.kernel, self.device_name, ref_latency,
            self._clock_name, True, self.subject.user_function,
        )  # fmt: skip

    def _result(self, winner: _Candidate, best: Row, rows: Sequence[Row]) -> TuningResult:
        assert winner.kernel is not None and winner.variant is not None and best.latency is not None
        if winner.outcome is not None and winner.outcome.ptx:
            take(winner.variant, winner.outcome)
        return TuningResult(
            self.subject.name, best.config, best.latency, rows, winner.kernel, self.device_name,
            self._reference_latency(winner), self._clock_name, False, self.subject.user_function,
        )  # fmt: skip

    # -- tracing and compiling

    def _compile(self, candidates: Sequence[_Candidate], bars: Progress) -> None:
        settings = self.settings
        simulate = self.device.type == "cpu"
        waiting: list[tuple[_Candidate, Future[CompileOutcome]]] = []
        with compiling_executor(settings.executor, settings.workers, settings.timeout, len(candidates)) as found:
            pool, assembles = found
            for candidate in candidates:
                self._trace(candidate)
                if candidate.row is not None or candidate.variant is None:
                    bars.compiled()
                    continue
                if self._pool is not None:
                    self._pool.start()  # it imports torch while kernels are compiled
                variant = candidate.variant
                card = card_for(variant.target.name) if assembles and not simulate else None
                task = task_of(variant.tile_program, variant.target, variant.settings.options, card, simulate)
                waiting.append((candidate, pool.submit(compile_task, task)))
            for candidate, future in waiting:
                try:
                    candidate.outcome = future.result()
                except WorkerError as error:
                    status = Status.TIMEOUT if isinstance(error, WorkerTimeout) else Status.FAILED
                    self._settle(candidate, Row(candidate.config, status, reason=str(error)))
                else:
                    error = candidate.outcome.error
                    if error is not None:
                        self._settle(candidate, Row(candidate.config, Status.PRUNED, reason=str(error)))
                bars.compiled()

    def _trace(self, candidate: _Candidate) -> None:
        """The candidate's program; or its row, where the program cannot be traced, cannot fit, or was measured."""
        try:
            kernel, given = self.subject.kernel(self.args, self.kwargs, candidate.config)
            arguments = self._arguments_of(kernel, given)
            variant = kernel.variant_for(*arguments.values)
        except PtxtileError as error:
            self._settle(candidate, Row(candidate.config, Status.PRUNED, reason=str(error)))
            return
        candidate.kernel, candidate.arguments, candidate.variant = kernel, arguments, variant
        options = variant.settings.options
        candidate.program = compiled_programs.key_of(variant.tile_program, variant.target, options)
        known = self.store.find(candidate.config, candidate.program) if self.settings.resume else None
        reason = None if known is not None else why_not(variant.tile_program, variant.target)
        if known is not None:
            candidate.row = known
        elif reason is not None:
            self._settle(candidate, Row(candidate.config, Status.PRUNED, reason=reason))

    def _settle(self, candidate: _Candidate, row: Row) -> None:
        seconds = candidate.outcome.seconds if candidate.outcome is not None else None
        candidate.row = replace(
            row, program=candidate.program, compile_seconds=sum(seconds.values()) if seconds else None
        )  # fmt: skip
        self.store.keep(candidate.row)

    # -- measuring

    def _measure(self, candidates: Sequence[_Candidate], bars: Progress) -> None:
        best: float | None = None
        for candidate in candidates:
            if candidate.row is None:
                self._settle(candidate, self._measured(candidate, best))
            row = candidate.row
            assert row is not None
            if row.status is Status.MEASURED and row.latency is not None:
                best = row.latency if best is None else min(best, row.latency)
            bars.measured(best)

    def _measured(self, candidate: _Candidate, best: float | None) -> Row:
        try:
            task = self._measure_task(candidate, best)
            if self._pool is None:
                found = measure_task(task)
            else:
                found = self._pool.submit(measure_task, task).result()
            wrong = found.wrong or self._manual_check(candidate, task)
        except WorkerError as error:
            status = Status.TIMEOUT if isinstance(error, WorkerTimeout) else Status.FAILED
            return Row(candidate.config, status, reason=str(error))
        except (PtxtileError, RuntimeError) as error:
            return Row(candidate.config, Status.FAILED, reason=f"{type(error).__name__}: {error}")
        row = _row(candidate.config, found)
        return replace(row, status=Status.WRONG, latency=None, fastest=None, reason=wrong) if wrong else row

    def _measure_task(self, candidate: _Candidate, best: float | None) -> MeasureTask:
        settings, arguments = self.settings, candidate.arguments
        assert candidate.outcome is not None and arguments is not None
        checks = not settings.skip_check and settings.ref_prog is not None
        if checks and arguments.expected is None:
            assert settings.ref_prog is not None
            arguments.expected = results_of(settings.ref_prog, arguments.values)
        values: Any = arguments.values
        expected: Any = arguments.expected if checks and settings.manual_check_prog is None else None
        results = ""
        if settings.manual_check_prog is not None and not settings.skip_check:
            results = str(self._folder / "results.pt")
        if self._pool is not None:
            values, expected = self._written(arguments, expected is not None)
        beyond = best * settings.early_stop_factor if settings.early_stop and best is not None else None
        return MeasureTask(
            candidate.outcome, values, expected, _name_of(self.device), settings.warmup, settings.rep, settings.backend,
            settings.rtol, settings.atol, settings.max_mismatched_ratio, beyond, results, settings.clock,
        )  # fmt: skip

    def _written(self, arguments: _Arguments, with_expected: bool) -> tuple[str, str | None]:
        """Files with the arguments and the expected results, for the other process."""
        import torch

        if arguments.files is None:
            stem = self._folder / str(len(list(self._folder.iterdir())))
            torch.save(copied(arguments.values, "cpu"), f"{stem}.arguments.pt")
            if arguments.expected is not None:
                torch.save(copied(arguments.expected, "cpu"), f"{stem}.expected.pt")
            arguments.files = f"{stem}.arguments.pt", f"{stem}.expected.pt" if arguments.expected is not None else None
        return arguments.files[0], arguments.files[1] if with_expected else None

    def _manual_check(self, candidate: _Candidate, task: MeasureTask) -> str:
        """What the user's own check says of the results; empty: nothing."""
        check = self.settings.manual_check_prog
        if check is None or not task.results:
            return ""
        import torch

        got = torch.load(task.results, weights_only=True)
        Path(task.results).unlink()
        assert candidate.arguments is not None
        try:
            check(got, copied(candidate.arguments.expected or [], "cpu"))
        except Exception as error:  # whatever the user's check raises says that the result is wrong
            return f"{type(error).__name__}: {error}"
        return ""

    # -- arguments

    @cached_property
    def device(self) -> torch.device:
        """Of the tensors that are given; else as the settings say, or the current card, or the CPU without one."""
        import torch

        for value in (*(self.settings.inputs or ()), *self.args, *self.kwargs.values()):
            if isinstance(value, torch.Tensor):
                return value.device
        return torch.device(self.settings.device) if self.settings.device is not None else default_device()

    @property
    def device_name(self) -> str:
        import torch

        if self.device.type == "cuda":
            return torch.cuda.get_device_name(self.device)
        return "the simulator"

    @property
    def _clock_name(self) -> str:
        if self.settings.clock is not None:
            return ""
        return "wall time" if self.device.type == "cpu" else ""

    @cached_property
    def store(self) -> Store:
        """By the arguments' kinds, not their values: a sweep is for all tensors of these shapes."""
        target = self.subject.settings.target or config.read("PTXTILE_TARGET")
        kinds = self.subject.kinds(self.args, self.kwargs, self.settings.do_not_specialize)
        inputs = [kind_of(value, type_only=True) for value in self.settings.inputs or ()]
        given = f"{kinds} {inputs} {self.subject.settings.options!r} {target}"
        return Store(self.subject.source(), given, self.device_name, self.settings.backend)

    def _arguments_of(self, kernel: JITKernel, given: Sequence[Any] | None) -> _Arguments:
        """``given``, or what the settings say, or random ones; the same for kernels with equal parameters."""
        values = list(given) if given is not None else None
        if values is None and self.settings.inputs is not None:
            values = list(self.settings.inputs)
        key = "given" if values is not None else repr(kernel.signature) + repr(kernel.constants)
        found = self._arguments.get(key)
        if found is None or (self.settings.supply_prog is not None and not self.settings.cache_input_tensors):
            found = self._arguments[key] = _Arguments(values if values is not None else self._made(kernel))
        return found

    def _made(self, kernel: JITKernel) -> list[Any]:
        supply = self.settings.supply_prog
        if supply is None:
            return make_arguments(kernel.signature, kernel.constants, self.settings.supply_type, self.device)
        made = supply(list(kernel.signature.inputs))
        if not isinstance(made, (list, tuple)):
            raise ArgumentError("supply_prog", expected="a list of arguments", got=type(made).__name__)
        return list(made)

    def _reference_latency(self, winner: _Candidate) -> float | None:
        """Milliseconds of the reference, None without one, or where the clock is not this process's."""
        reference, arguments = self.settings.ref_prog, winner.arguments
        if reference is None or arguments is None or self.settings.clock is not None:
            return None
        clock = bench.HostClock() if self.device.type == "cpu" else None
        values = copied(arguments.values)
        return bench.do_bench(
            lambda: reference(*values), self.settings.warmup, self.settings.rep, return_mode="median", clock=clock,
            device=None if self.device.type == "cpu" else self.device,
        )  # fmt: skip


def _row(config: Mapping[str, Any], found: Measured) -> Row:
    times = found.measurement
    return Row(
        config, Status.SLOWER if found.slower else Status.MEASURED, times.median if times else None,
        times.min if times else None, "first estimate, far from the best" if found.slower else "", found.registers,
        found.spills, found.shared_bytes,
    )  # fmt: skip


def _name_of(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else f"cuda:{device.index or 0}"


def _memory_folder() -> str | None:
    """A folder in memory for tensors that another process reads, where there is one with room; None: the usual place
    for temporary files."""
    shared = Path("/dev/shm")
    return str(shared) if shared.is_dir() and shutil.disk_usage(shared).free >= ROOM_IN_MEMORY else None

"""One measurement as a message: a compiled kernel, its arguments and what it is to give; back come the times.

It runs in a process of its own, which can be killed when a kernel hangs, and whose broken context is nobody else's; or
in the caller's. Tensors come as files, which the process keeps for the next configuration.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError, PtxtileError, WorkerError
from ptxtile.launch_record import LaunchRecord
from ptxtile.profile.bench import HostClock, Measurement, do_bench, measure
from ptxtile.profile.clocks import Clock
from ptxtile.profile.comparison import changed, copied, difference, poison, restore
from ptxtile.records import record
from ptxtile.runtime import jit_log, record_text
from ptxtile.runtime.arguments import Binding, bind
from ptxtile.tune.compile_task import CompileOutcome

if TYPE_CHECKING:
    import torch


@record
class MeasureTask:
    """arguments, expected: lists of tensors and numbers, or the path of a file with one. expected: None where nothing
    is compared. device: ``cpu`` or ``cuda:0``. results: a file to write the results to, empty: none. clock: a function
    (of a module) that gives the clock. Times in milliseconds; tolerances as in
    :func:`ptxtile.profile.comparison.difference`."""

    outcome: CompileOutcome
    arguments: str | Sequence[Any]
    expected: str | Sequence[Any] | None
    device: str
    warmup: float = 25.0
    rep: float = 100.0
    backend: str = "event"
    rtol: float = 1e-2
    atol: float = 1e-2
    most_outside: float = 0.01
    give_up_beyond: float | None = None
    results: str = ""
    clock: Callable[[], Clock] | None = None


@record
class Measured:
    """wrong: what differs from the expected results; then there are no times. slower: the first estimate was beyond
    what was of interest. changes: places of the arguments that a call changes. Figures: the largest of any kernel of
    the program, None where nobody says."""

    measurement: Measurement | None
    wrong: str = ""
    slower: bool = False
    changes: tuple[int, ...] = ()
    registers: int | None = None
    spills: int | None = None
    shared_bytes: int | None = None


def measure_task(task: MeasureTask) -> Measured:
    """Carry out ``task``. A kernel's failure is raised; as a WorkerError when it leaves this process's context of the
    card useless."""
    if task.device == "cpu":
        return _measure(task)
    import torch

    try:
        return _measure(task)
    except (PtxtileError, RuntimeError) as error:
        try:
            torch.cuda.synchronize(task.device)
        except RuntimeError as broken:
            raise WorkerError(f"the kernel broke its process's context of the card: {broken}") from error
        raise


def _measure(task: MeasureTask) -> Measured:
    pristine = _values(task.arguments, task.device)
    arguments = copied(pristine)
    launch, run_binding, figures = _loaded(task)
    binding = bind(launch, arguments, device_type="cpu" if task.device == "cpu" else "cuda")
    poison([binding.tensors[allocation.name] for allocation in launch.allocations])

    def run() -> None:
        run_binding(binding)

    run()
    changes = tuple(changed(arguments, pristine))
    results = _results(binding, arguments, changes)
    if task.results:
        import torch

        torch.save([result.cpu() for result in results], task.results)
    if task.expected is not None:
        wrong = difference(results, _values(task.expected, task.device), task.rtol, task.atol, task.most_outside)
        if wrong is not None:
            return Measured(None, wrong, changes=changes, **figures)
    restore(arguments, pristine, changes)
    clock = _clock(task)
    prepare = (lambda: restore(arguments, pristine, changes)) if changes else None
    if task.backend == "cupti" and clock is None and not changes:
        times = do_bench(run, task.warmup, task.rep, backend="cupti", return_mode="all", device=task.device)
        return Measured(Measurement(tuple(times), "CUPTI"), changes=changes, **figures)
    found = measure(
        run, warmup=task.warmup, rep=task.rep, prepare=prepare, clock=clock or _card_clock(task.device),
        graph=task.backend == "cudagraph", give_up_beyond=task.give_up_beyond,
    )  # fmt: skip
    slower = task.give_up_beyond is not None and len(found.times) == 1 and found.times[0] > task.give_up_beyond
    return Measured(found, slower=slower, changes=changes, **figures)


def _results(binding: Binding, arguments: Sequence[Any], changes: Sequence[int]) -> list[torch.Tensor]:
    if binding.results is None:
        return [arguments[place] for place in changes]
    return list(binding.results) if isinstance(binding.results, (tuple, list)) else [binding.results]


def _clock(task: MeasureTask) -> Clock | None:
    if task.clock is not None:
        return task.clock()
    if task.device == "cpu":
        return HostClock()
    return HostClock(task.device) if task.backend == "wall" else None


def _card_clock(device: str) -> Clock:
    from ptxtile.profile.clocks import CudaClock

    return CudaClock(device)


def _loaded(task: MeasureTask) -> tuple[LaunchRecord, Callable[[Binding], Any], dict[str, Any]]:
    """The host part, what runs a binding, and the kernel's figures."""
    outcome = task.outcome
    if task.device == "cpu":
        from ptxtile import sim

        if outcome.lowered is None:
            raise ArgumentError("only a lowered program can be simulated", got=f"the PTX of {outcome.name}")
        program = pickle.loads(outcome.lowered)
        shared = max((launch.shared_bytes for launch in program.launch.launches), default=0)
        figures: dict[str, Any] = {"shared_bytes": shared}
        return program.launch, lambda binding: sim.run(program, binding.tensors, binding.scalars), figures
    import torch

    from ptxtile.runtime.executable import Executable

    launch = record_text.from_json(outcome.launch)
    executable = Executable(outcome.ptx, launch, outcome.target)
    found = executable.resources(torch.device(task.device).index or 0).values()
    said = jit_log.parse(outcome.log).functions.values()
    spills = [each.spill_stores for each in (*found, *said) if each.spill_stores is not None]
    figures = {
        "registers": max((each.registers for each in found), default=None),
        "spills": max(spills, default=None),
        "shared_bytes": max((each.shared_bytes for each in found), default=None),
    }
    return launch, executable, figures


_kept: dict[tuple[str, str], list[Any]] = {}


def _values(given: str | Sequence[Any], device: str) -> Sequence[Any]:
    """The list itself, or that of the file, on ``device``; the two latest files stay in memory."""
    if not isinstance(given, str):
        return given
    found = _kept.get((given, device))
    if found is None:
        import torch

        found = copied(torch.load(given, weights_only=True), device)
        while len(_kept) >= 2:
            _kept.pop(next(iter(_kept)))
        _kept[given, device] = found
    return found

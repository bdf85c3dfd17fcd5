"""One compile as a message: what another process needs to compile a traced program, and what it gives back.

Everything is small and plain (a traced program is some kilobytes, PTX some tens), so that a task goes through any
``concurrent.futures.Executor``, also to other hosts, where the same version of ptxtile must be installed. A program
travels as a pickle: it comes from this user's own process, is never stored, and keeps the places in the user's source,
which the text form of the IR leaves out.
"""

from __future__ import annotations

import os
import pickle
import time
import warnings
from collections.abc import Mapping

from ptxtile import __version__, config
from ptxtile.compiled_programs import CompiledProgram
from ptxtile.compiler import emit_ptx, grouped, lower
from ptxtile.errors import DriverError, LaunchError, PerformanceWarning, PtxtileError, TargetError, WorkerError
from ptxtile.ir.program import Program
from ptxtile.lower.options import Options
from ptxtile.records import record
from ptxtile.runtime import record_text
from ptxtile.target import Target
from ptxtile.target import get as get_target


@record
class CompileTask:
    """``program``: pickle of a traced :class:`~ptxtile.ir.program.Program`. ``card``: the device whose driver is to
    assemble the PTX, and keep the code for whoever loads it; None: nobody. ``simulate``: lower it only, for the
    simulator."""

    name: str
    program: bytes
    target: str
    options: Options
    card: int | None = None
    simulate: bool = False
    version: str = __version__


@record
class CompileOutcome:
    """What a task gives. Nothing of it is set where there is an ``error``.

    ptx, launch (JSON), warned: as in :class:`~ptxtile.compiled_programs.CompiledProgram`. lowered: pickle of the
    program at the gpu stage, for the simulator. assembler, log: who assembled it, and what it said. seconds: of
    ``trace``, ``passes``, ``LLVM``, ``imports``, ``context`` and ``driver``. error: of a kernel that cannot be
    compiled. worker: the process that did it.
    """

    name: str
    target: str
    ptx: str = ""
    launch: str = ""
    warned: tuple[tuple[str, str, int, int], ...] = ()
    lowered: bytes | None = None
    assembler: str = ""
    log: str = ""
    seconds: Mapping[str, float] | None = None
    error: PtxtileError | None = None
    worker: int = 0

    @property
    def compiled(self) -> CompiledProgram:
        return CompiledProgram(self.name, self.target, self.ptx, record_text.from_json(self.launch), self.warned)


def task_of(
    program: Program, target: Target, options: Options, card: int | None = None, simulate: bool = False
) -> CompileTask:
    return CompileTask(program.name, pickle.dumps(program), target.name, options, card, simulate)


def compile_task(task: CompileTask) -> CompileOutcome:
    """Carry out ``task``. A kernel that cannot be compiled is an outcome, not an exception; WorkerError where this
    process has another version of ptxtile than the one that made the task."""
    if task.version != __version__:
        raise WorkerError(
            "a worker has another version of ptxtile", expected=task.version, got=__version__,
            hint="install the same version on every host of the executor",
        )  # fmt: skip
    program = pickle.loads(task.program)
    target = get_target(task.target)
    try:
        artifact = lower(program, target, task.options)
        if task.simulate:
            lowered = pickle.dumps(artifact.program)
            return CompileOutcome(
                task.name, task.target, lowered=lowered, seconds=_seconds(artifact.timings), worker=os.getpid()
            )
        artifact = emit_ptx(artifact)
        seconds = _seconds(artifact.timings)
        made = CompiledProgram.of(artifact)
        assembler, log = "", ""
        if task.card is not None:
            assembler, log = assemble(made, task.card, seconds)
    except PtxtileError as error:
        return CompileOutcome(task.name, task.target, error=error.with_traceback(None), worker=os.getpid())
    return CompileOutcome(
        task.name, task.target, made.ptx, record_text.to_json(made.launch), made.warned, None, assembler, log, seconds,
        worker=os.getpid(),
    )  # fmt: skip


def _seconds(timings: Mapping[str, float]) -> dict[str, float]:
    return {group: sum(steps.values()) for group, steps in grouped(timings).items()}


def assemble(made: CompiledProgram, device: int, seconds: dict[str, float]) -> tuple[str, str]:
    """Let the driver's JIT assemble the program for ``device``; gives who did it, and its log. ``seconds`` gets the
    time of ``context`` and ``driver``.

    The module is loaded and unloaded again: what stays is the code in the driver's own cache on disk, from where the
    process that runs the kernel loads it in a moment. (Linking to a cubin would be another way to hand code over, but
    linkers ignore setmaxnreg.) Empty texts where that card cannot run the PTX, or cannot be used from this process: the
    kernel is then assembled, or refused, where it runs. CompileError when the JIT refuses it.
    """
    from ptxtile.runtime import context, module

    started = time.perf_counter()
    try:
        with context.current(device) as driver, warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)  # whoever runs the kernel is told, from the log
            seconds["context"] = time.perf_counter() - started
            loaded = module.load(driver, device, made.ptx, made.launch.launches)
            driver.unload_module(loaded.handle)
            seconds["driver"] = time.perf_counter() - started - seconds["context"]
            return module.assembler_of(driver, device), loaded.log
    except (DriverError, TargetError, LaunchError) as error:
        config.logger().info("%s is assembled where it runs: %s", made.name, error)
        return "", ""


def warm_up() -> None:
    """Compile a small product, so that what is imported and tabulated late is there before workers are forked."""
    compile_task(task_of(_small_program(), get_target("sm_90a"), Options()))


def _small_program() -> Program:
    from ptxtile.ir.parser import parse_program

    return parse_program(_SMALL)


_SMALL = """\
ptxtile_ir(1)
program("warm_up", stage="tile")
A = tensor(bfloat16, (256, 256))
B = tensor(bfloat16, (256, 256))
C = allocation(bfloat16, (256, 256))
returns("C")

@kernel(grid=(2, 2, 1), threads=128, user_threads=128)
def warm_up_kernel(bx, by, bz, thread):
    A_shared = allocate_shared(bfloat16, (128, 64))
    B_shared = allocate_shared(bfloat16, (128, 64))
    C_local = allocate_fragment(float32, (128, 128))
    fill(C_local, float32(0.0))
    for k in pipelined(0, 4, num_stages=2):
        copy(A[by * 128, k * 64].tile(128, 64), A_shared)
        copy(B[bx * 128, k * 64].tile(128, 64), B_shared)
        gemm(A_shared, B_shared, C_local, 128, 128, 64, transpose_b=True)
    copy(C_local, C[by * 128, bx * 128].tile(128, 128))
"""

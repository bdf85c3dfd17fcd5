"""Many kernels compiled at the same time, in worker processes or in an executor of the user's."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from ptxtile import compiled_programs
from ptxtile.errors import PtxtileError, WorkerError
from ptxtile.kernel import JITKernel
from ptxtile.runtime.module import runs_on
from ptxtile.tune.compile_task import CompileOutcome, CompileTask, compile_task, task_of
from ptxtile.tune.pool import COMPILER, WorkerPool, default_workers
from ptxtile.variant import Variant

if TYPE_CHECKING:
    from ptxtile.runtime.executable import KeptLogs

MOST_ON_A_CARD = 16
"""Processes, unless the user wants more: each has a context on the card, of some hundred megabytes."""
WARM_UP = ("ptxtile.tune.compile_task:warm_up",)


def card_for(target_name: str) -> int | None:
    """torch's current card, where it can run what is compiled for that target. torch is not imported for this: who has
    not imported it has no tensors on a card."""
    if "torch" not in sys.modules:
        return None
    import torch

    if not torch.cuda.is_available() or not runs_on(target_name, torch.cuda.get_device_capability()):
        return None
    return torch.cuda.current_device()


def compiling_pool(workers: int | None = None, timeout: float | None = None, driver: bool = False) -> WorkerPool:
    """Processes for :func:`~ptxtile.tune.compile_task.compile_task`; with ``driver`` they are to assemble as well."""
    return WorkerPool(workers, (*COMPILER, "cuda.bindings.driver") if driver else COMPILER, timeout, WARM_UP)


@contextlib.contextmanager
def compiling_executor(
    executor: Executor | None, workers: int | None, timeout: float | None, tasks: int
) -> Iterator[tuple[Executor, bool]]:
    """``executor``, or processes of ours while the block runs; and whether they are to use this host's card."""
    if executor is not None:
        yield executor, False
        return
    driver = "torch" in sys.modules and sys.modules["torch"].cuda.is_available()
    count = workers or (min(default_workers(), MOST_ON_A_CARD) if driver else default_workers())
    with compiling_pool(min(count, max(1, tasks)), timeout, driver) as pool:
        yield pool, driver


def compile_many(
    kernels: Iterable[JITKernel | Callable[[], JITKernel]],
    *,
    workers: int | None = None,
    executor: Executor | None = None,
    timeout: float | None = None,
    ignore_error: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[JITKernel | PtxtileError]:
    """Compile ``kernels`` side by side; the first call of each then has its code.

    kernels: kernel objects with their sizes, as ``f.specialize(M=…)`` and a call of a factory give them, or functions
    that give them. Each is traced here (some milliseconds) and compiled by a worker, with the machine code too where
    there is a card. ``workers``: processes, as many as there are processors unless given; ``executor``: who compiles
    instead (any :class:`concurrent.futures.Executor`). ``timeout``: seconds for one kernel, in processes of ours.
    ``progress`` is told of (kernels done, kernels in all).

    The first kernel that cannot be compiled raises its error; with ``ignore_error`` errors stand in the list at their
    kernels' places.
    """
    makers = list(kernels)
    results: list[JITKernel | PtxtileError | None] = [None] * len(makers)
    pending: list[tuple[int, JITKernel, Variant, Future[CompileOutcome]]] = []
    done = 0

    def is_done(place: int, result: JITKernel | PtxtileError) -> None:
        nonlocal done
        if isinstance(result, PtxtileError) and not ignore_error:
            raise result
        results[place] = result
        done += 1
        if progress is not None:
            progress(done, len(makers))

    with compiling_executor(executor, workers, timeout, len(makers)) as (pool, assembles):
        for place, maker in enumerate(makers):
            try:
                kernel = maker if isinstance(maker, JITKernel) else maker()
                variant = kernel.variant
            except PtxtileError as error:
                is_done(place, error)
                continue
            task = task_for(variant, card_for(variant.target.name) if assembles else None)
            if task is None:
                is_done(place, kernel)
            else:
                pending.append((place, kernel, variant, pool.submit(compile_task, task)))
        for place, kernel, variant, future in pending:
            try:
                outcome = future.result()
            except WorkerError as error:
                is_done(place, error)
                continue
            if outcome.error is None:
                take(variant, outcome)
            is_done(place, outcome.error or kernel)
    return [result for result in results if result is not None]


def task_for(variant: Variant, card: int | None = None) -> CompileTask | None:
    """What has to be compiled of ``variant``; None when it is compiled, or lies on disk."""
    if variant.is_compiled:
        return None
    if compiled_programs.is_on():
        key = _key(variant)
        found = compiled_programs.find(key)
        if found is not None:
            found.warn_again()
            variant.adopt(found, compiled_programs.AssemblerLogs(key))
            return None
    return task_of(variant.tile_program, variant.target, variant.settings.options, card)


def take(variant: Variant, outcome: CompileOutcome) -> None:
    """What a worker has compiled becomes ``variant``'s code, is kept on disk, and its warnings are issued here."""
    made = outcome.compiled
    made.warn_again()
    logs: KeptLogs = _SaidLog(outcome.assembler, outcome.log)
    if compiled_programs.is_on():
        key = _key(variant)
        compiled_programs.keep(key, made)
        logs = compiled_programs.AssemblerLogs(key)
        if outcome.log:
            logs.keep(outcome.assembler, outcome.log)
    variant.adopt(made, logs)


class _SaidLog:
    """One log, in memory."""

    def __init__(self, assembler: str, log: str) -> None:
        self._said = {assembler: log}

    def find(self, assembler: str) -> str:
        return self._said.get(assembler, "")

    def keep(self, assembler: str, log: str) -> None:
        self._said[assembler] = log


def _key(variant: Variant) -> str:
    return compiled_programs.key_of(variant.tile_program, variant.target, variant.settings.options)


def par_compile(
    funcs: Iterable[Any],
    out_idx: Any = None,
    execution_backend: Any = None,
    target: Any = None,
    target_host: Any = None,
    verbose: bool | None = None,
    pass_configs: Mapping[Any, Any] | None = None,
    compile_flags: Any = None,
    num_workers: int | None = None,
    ignore_error: bool = False,
) -> list[JITKernel | PtxtileError]:
    """:func:`compile_many` of prim_funcs, with the arguments of :func:`ptxtile.compile`, as TileLang has it."""
    from ptxtile.jit import compile as kernel_of

    makers = [lambda func=func: kernel_of(func, out_idx, target, pass_configs, bool(verbose)) for func in funcs]
    return compile_many(makers, workers=num_workers, ignore_error=ignore_error)

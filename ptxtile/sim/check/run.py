"""Runs a lowered program under the checker, under several schedules, and gives what it found."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import DeadlockError, SimulationError
from ptxtile.ir.atomic_ops import ACQUIRING, ATOMIC_OPS, RELEASING
from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import Load
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import While
from ptxtile.sim.async_effects import EffectPolicy, ImmediateEffects
from ptxtile.sim.check.deadlocks import describe_deadlock
from ptxtile.sim.check.findings import Finding, Report
from ptxtile.sim.check.global_shadows import GlobalShadows, fresh_storages, written_storages
from ptxtile.sim.check.kernel_facts import facts_of
from ptxtile.sim.check.machine import CannotCheck, CheckedGroup, Schedule, Withheld
from ptxtile.sim.delayed_effects import ALWAYS, DelayedEffects
from ptxtile.sim.fused import numba_is_loaded
from ptxtile.sim.launch import prepare_launches
from ptxtile.sim.machine import KernelContext, run_to_completion
from ptxtile.sim.memory import GlobalTensor

if TYPE_CHECKING:
    import torch

MOST_FINDINGS = 50
"""A report ends here: one fault makes many."""

BETWEEN_SIGNS = 0.5
"""Seconds between two calls of ``progress`` within a block."""


def check(
    program: Program,
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, int | float],
    *,
    seeds: range = range(2),
    progress: Callable[[int, int], None] | None = None,
    most_findings: int = MOST_FINDINGS,
    strict: bool = False,
    withheld: Withheld | None = None,
) -> Report:
    """Runs ``program`` once for each seed, on copies of ``tensors``: asynchronous effects at the first legal moment
    for seed 0, at the last one for odd seeds, some early and some late for the others; warps and blocks in an order
    drawn from the seed.

    ``progress`` is told of (blocks done, blocks in all) of a launch, after each block and now and then within one. A
    run ends at a deadlock or at what the hardware would stop at; races do not end it. CannotCheck (a SimulationError)
    for inline PTX that is not simulated.
    ``strict``: also tell of threads that hang if they come to a wait on an mbarrier so late that the next phase is over
    as well, whose parity they would see. Nothing but the pace of their role keeps such threads from it, as in a role of
    which all threads wait while one of them starts the loads; on a card they keep pace as good as always, so this is no
    finding by default. Rings and copies of the compiler's own have none. ``withheld``: order that is not counted.
    """
    numba_is_loaded()
    found: dict[Hashable, Finding] = {}
    for seed in seeds:
        copies = _copied(tensors)
        for finding in _run(program, copies, scalars, Schedule(seed, strict, withheld), progress):
            found.setdefault(_cause(finding), finding)
            if len(found) >= most_findings:
                return Report(tuple(found.values()), seed - seeds.start + 1)
    return Report(tuple(found.values()), len(seeds))


def _cause(finding: Finding) -> Hashable:
    """The same for findings of one fault. Which warps a deadlock finds where is a matter of the schedule."""
    if finding.rule == "deadlock":
        return finding.rule, frozenset(finding.locations)
    return finding.rule, finding.locations, re.sub(r"[0-9]+", "", finding.message)


def _copied(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, torch.Tensor]:
    """The tensors in copies of their whole storages, with the same places in them: those that share one still do."""
    import torch

    storages: dict[int, torch.UntypedStorage] = {}
    copies = {}
    for name, tensor in tensors.items():
        if tensor is not None:
            whole = tensor.untyped_storage()
            storage = storages.get(whole.data_ptr())
            if storage is None:
                storage = storages[whole.data_ptr()] = whole.clone()
            empty = torch.empty(0, dtype=tensor.dtype)
            copies[name] = empty.set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())
    return copies


def _policy(seed: int) -> Callable[[], EffectPolicy]:
    if seed == 0:
        return ImmediateEffects
    delay = ALWAYS if seed % 2 else dict.fromkeys(ALWAYS, 0.5)
    return lambda: DelayedEffects(seed, delay)


def _run(
    program: Program, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, int | float], schedule: Schedule,
    progress: Callable[[int, int], None] | None,
) -> Iterator[Finding]:  # fmt: skip
    memory = {name: GlobalTensor(name, tensor) for name, tensor in tensors.items()}
    shadows = GlobalShadows(fresh_storages(program, memory))
    with np.errstate(all="ignore"):
        for context, launch in prepare_launches(program, memory, scalars, _policy(schedule.seed)):
            shadows.written = written_storages(program, context.kernel, memory)
            for finding in _check_launch(context, launch.cooperative, schedule, shadows, progress):
                yield finding
                if finding.rule in ("deadlock", "illegal"):
                    return
            shadows.end_launch()
    shadows.hand_on()


def _check_launch(
    context: KernelContext, cooperative: bool, schedule: Schedule, shadows: GlobalShadows,
    progress: Callable[[int, int], None] | None,
) -> Iterator[Finding]:  # fmt: skip
    found: list[Finding] = []
    kernel, facts = context.kernel, facts_of(context.kernel, context.program.functions, context.variables)
    total = context.grid[0] * context.grid[1] * context.grid[2]
    size = total if cooperative or _talks_between_ctas(kernel) else _cluster_span(context)
    firsts = list(range(0, total, size))
    np.random.default_rng(schedule.seed).shuffle(firsts)
    for number, first in enumerate(firsts):
        group = CheckedGroup(context, facts, first, min(size, total - first), schedule, shadows, found.append)
        if progress is not None:
            group.on_turn = _now_and_then(partial(progress, number, len(firsts)))
        try:
            run_to_completion([group])
        except CannotCheck:
            raise
        except DeadlockError as error:
            found.append(describe_deadlock(group, error))
        except SimulationError as error:
            who = f"{group.culprit}: " if group.culprit else ""
            found.append(Finding("illegal", who + _in_words(error), (error.location,), error.hint or ""))
        if progress is not None:
            progress(number + 1, len(firsts))
        for finding in found:
            yield Finding(finding.rule, finding.message, finding.locations, finding.hint, schedule.seed)
        found.clear()


def _now_and_then(tell: Callable[[], None]) -> Callable[[], None]:
    """Calls ``tell`` when some time has passed since the last time."""
    last = time.perf_counter()

    def maybe() -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last > BETWEEN_SIGNS:
            last = now
            tell()

    return maybe


def _cluster_span(context: KernelContext) -> int:
    """CTAs of consecutive numbers that hold whole clusters."""
    width, height, depth = context.kernel.cluster
    x, y, z = context.grid
    return x * y * z if depth > 1 else x * height if height > 1 else width


def _in_words(error: SimulationError) -> str:
    parts = [error.message]
    parts += [f"expected {error.expected}"] if error.expected is not None else []
    parts += [f"got {error.got}"] if error.got is not None else []
    return "; ".join(parts)


def _talks_between_ctas(kernel: Kernel) -> bool:
    """Whether CTAs may order each other, or wait for each other, through memory."""
    return any(_orders_memory(node) or (isinstance(node, While) and _reads_global(node)) for node in walk(kernel.body))


def _orders_memory(node: object) -> bool:
    ordering = (*ACQUIRING, *RELEASING)
    return isinstance(node, ATOMIC_OPS) and node.buffer.scope is Scope.GLOBAL and node.order in ordering


def _reads_global(loop: While) -> bool:
    return any(isinstance(node, (Load, *ATOMIC_OPS)) and node.buffer.scope is Scope.GLOBAL for node in walk(loop))

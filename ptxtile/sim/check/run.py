"""Runs a lowered program under the checker, under several schedules, and gives what it found."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import DeadlockError, SimulationError
from ptxtile.ir.program import Kernel, Program
from ptxtile.sim.async_effects import EffectPolicy, ImmediateEffects
from ptxtile.sim.check.findings import Finding, Report
from ptxtile.sim.check.machine import CheckedGroup
from ptxtile.sim.check.watch import GlobalShadows
from ptxtile.sim.check.written import written_storages
from ptxtile.sim.delayed_effects import DelayedEffects
from ptxtile.sim.launch import prepare_launches
from ptxtile.sim.machine import KernelContext, run_to_completion
from ptxtile.sim.memory import GlobalTensor

if TYPE_CHECKING:
    import torch

MOST_FINDINGS = 50
"""A report ends here: one fault makes many."""


def check(
    program: Program,
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, int | float],
    *,
    seeds: range = range(2),
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Runs ``program`` once for each seed, on copies of ``tensors``: asynchronous effects at the first legal moment
    for even seeds and at the last for odd ones, warps and blocks in an order drawn from the seed.

    ``progress`` is told of (blocks done, blocks in all). A run ends at a deadlock or at what the hardware would stop
    at; races do not end it.
    """
    found: dict[tuple, Finding] = {}
    for seed in seeds:
        copies = {name: None if tensor is None else _copied(tensor) for name, tensor in tensors.items()}
        for finding in _run(program, copies, scalars, seed, progress):
            found.setdefault((finding.rule, finding.locations, finding.message.split("[")[0]), finding)
            if len(found) >= MOST_FINDINGS:
                return Report(tuple(found.values()), seed - seeds.start + 1)
    return Report(tuple(found.values()), len(seeds))


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a copy of its whole storage, with the same place in it."""
    import torch

    storage = tensor.untyped_storage().clone()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, tensor.storage_offset(), tensor.shape, tensor.stride())


def _policy(seed: int) -> Callable[[], EffectPolicy]:
    return ImmediateEffects if seed % 2 == 0 else lambda: DelayedEffects(seed)


def _run(
    program: Program, tensors: Mapping[str, torch.Tensor | None], scalars: Mapping[str, int | float], seed: int,
    progress: Callable[[int, int], None] | None,
) -> Iterator[Finding]:  # fmt: skip
    memory = {name: GlobalTensor(name, tensor) for name, tensor in tensors.items() if tensor is not None}
    with np.errstate(all="ignore"):
        for context, launch in prepare_launches(program, memory, scalars, _policy(seed)):
            yield from _check_launch(program, context.kernel, context, launch.cooperative, memory, seed, progress)


def _check_launch(
    program: Program, kernel: Kernel, context: KernelContext, cooperative: bool, memory: Mapping[str, GlobalTensor],
    seed: int, progress: Callable[[int, int], None] | None,
) -> Iterator[Finding]:  # fmt: skip
    found: list[Finding] = []
    written = written_storages(program, kernel)
    addresses = {memory[name].address for name in written if name in memory}
    aliases = frozenset(name for name, tensor in memory.items() if tensor.address in addresses)
    shadows = GlobalShadows(aliases)
    total = context.grid[0] * context.grid[1] * context.grid[2]
    size = total if cooperative or _talks_between_ctas(kernel) else int(np.prod(kernel.cluster))
    firsts = list(range(0, total, size))
    np.random.default_rng(seed).shuffle(firsts)
    for number, first in enumerate(firsts):
        group = CheckedGroup(context, first, min(size, total - first), seed * 1_000_003 + first, shadows, found.append)
        try:
            run_to_completion([group])
        except DeadlockError as error:
            found.append(Finding("deadlock", error.message, (error.location,)))
        except SimulationError as error:
            found.append(Finding("illegal", _in_words(error), (error.location,)))
        shadows.close_group(group.watch.clocks.strangers)
        if progress is not None:
            progress(number + 1, len(firsts))
        for finding in found:
            yield Finding(finding.rule, finding.message, finding.locations, seed)
        found.clear()


def _in_words(error: SimulationError) -> str:
    parts = [error.message]
    parts += [f"expected {error.expected}"] if error.expected is not None else []
    parts += [f"got {error.got}"] if error.got is not None else []
    return "; ".join(parts)


def _talks_between_ctas(kernel: Kernel) -> bool:
    """Whether CTAs may wait for each other through memory: a While loop with an atomic access in it."""
    from ptxtile.ir.atomic_ops import ATOMIC_OPS
    from ptxtile.ir.rewrite import walk
    from ptxtile.ir.statements import While

    return any(
        isinstance(inner, ATOMIC_OPS) for node in walk(kernel.body) if isinstance(node, While) for inner in walk(node)
    )

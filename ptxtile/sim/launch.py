"""Runs a lowered program on CPU tensors: grids, kernel parameters, groups of CTAs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ptxtile.errors import LaunchError, SimulationError
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.types import DType, parse_dtype
from ptxtile.launch_record import KernelLaunch, KernelParameter, evaluate_size
from ptxtile.sim.async_effects import EffectPolicy, ImmediateEffects
from ptxtile.sim.control_flow import mixed_storages
from ptxtile.sim.dtypes import Value, constant_value
from ptxtile.sim.machine import CtaGroup, KernelContext, run_to_completion
from ptxtile.sim.memory import GlobalTensor
from ptxtile.sim.named_barriers import with_known_ids
from ptxtile.sim.rules.registers import check_register_pool
from ptxtile.sim.tensor_maps import TensorMap

if TYPE_CHECKING:
    import torch

LANES_OF_A_GROUP = 65536
"""Threads that run in step: enough to hide NumPy's cost of a call, few enough for the processor's caches."""

SHARED_BYTES_OF_A_GROUP = 64 << 20
"""Shared memory held at once."""

GRID_LIMITS = (2**31 - 1, 65535, 65535)
"""CUDA C++ Programming Guide, table of technical specifications."""


def run(
    program: Program,
    tensors: Mapping[str, torch.Tensor],
    scalars: Mapping[str, int | float],
    *,
    effects: Callable[[], EffectPolicy] = ImmediateEffects,
) -> None:
    """Runs every launch of ``program`` (gpu stage, with its launch record) on CPU ``tensors``, in place.

    tensors: every tensor parameter and allocation by name (None for one that the kernels never touch). scalars: every
    symbol and scalar parameter by name. effects: makes the policy of when asynchronous effects happen. SimulationError,
    with the statement's location, where the program does what the hardware does not allow; DeadlockError when it can
    never end; LaunchError for a grid out of range.
    """
    if program.stage != "gpu" or program.launch is None:
        raise SimulationError(
            f"{program.name} is not lowered", expected="stage gpu with a launch record", got=f"stage {program.stage}"
        )
    memory = {name: GlobalTensor(name, tensor) for name, tensor in tensors.items() if tensor is not None}
    with np.errstate(all="ignore"):
        for context, launch in prepare_launches(program, memory, scalars, effects):
            groups = _groups(context, launch.cooperative)
            if launch.cooperative:
                run_to_completion(groups)
                continue
            for group in groups:
                run_to_completion([group])


def prepare_launches(
    program: Program,
    memory: Mapping[str, GlobalTensor],
    scalars: Mapping[str, int | float],
    effects: Callable[[], EffectPolicy],
) -> Iterator[tuple[KernelContext, KernelLaunch]]:
    """Every launch of ``program`` that has blocks, checked, with the context that its groups of CTAs run in."""
    assert program.launch is not None
    kernels = {kernel.name: kernel for kernel in program.kernels}
    symbols = {name: value for name, value in scalars.items() if isinstance(value, int)}
    for launch in program.launch.launches:
        kernel, grid = kernels[launch.kernel], _grid(launch, symbols)
        if 0 in grid:
            continue
        if launch.block != (kernel.threads, 1, 1):
            raise SimulationError(
                f"the launch of {kernel.name} has a wrong block",
                expected=str((kernel.threads, 1, 1)),
                got=str(launch.block),
            )
        kernel = with_known_ids(kernel)
        check_register_pool(kernel)
        _check_clusters(kernel, grid)
        yield replace(_context(program, launch, kernel, grid, memory, scalars, symbols), effects=effects), launch


def _grid(launch: KernelLaunch, symbols: Mapping[str, int]) -> tuple[int, int, int]:
    x, y, z = (evaluate_size(size, symbols) for size in launch.grid)
    for axis, size, limit in zip("xyz", (x, y, z), GRID_LIMITS, strict=True):
        if not 0 <= size <= limit:
            raise LaunchError(
                f"grid dimension {axis} of {launch.kernel} is out of range", expected=f"0 to {limit}", got=str(size)
            )
    return x, y, z


def _check_clusters(kernel: Kernel, grid: tuple[int, int, int]) -> None:
    if any(size % part for size, part in zip(grid, kernel.cluster, strict=True)):
        raise LaunchError(
            f"the grid of {kernel.name} is not made of whole clusters",
            expected=f"multiples of {kernel.cluster}",
            got=str(grid),
        )


def _context(
    program: Program,
    launch: KernelLaunch,
    kernel: Kernel,
    grid: tuple[int, int, int],
    memory: Mapping[str, GlobalTensor],
    scalars: Mapping[str, int | float],
    symbols: Mapping[str, int],
) -> KernelContext:
    assert program.launch is not None
    pointers: dict[str, GlobalTensor] = {}
    tensor_maps: dict[str, TensorMap] = {}
    variables: dict[str, Value] = {}
    for parameter in launch.parameters:
        if parameter.kind == "pointer":
            if parameter.name in memory:
                pointers[parameter.name] = memory[parameter.name]
        elif parameter.kind == "tensor_map":
            record = program.launch.tensor_map(parameter.name)
            tensor_maps[parameter.name] = TensorMap(record, memory[record.tensor], symbols)
        else:
            variables[parameter.name] = _scalar(parameter, scalars, symbols)
    mixed = mixed_storages(kernel.body, *(function.body for function in program.functions))
    return KernelContext(program, kernel, grid, launch.shared_bytes, pointers, tensor_maps, variables, mixed)


def _scalar(parameter: KernelParameter, scalars: Mapping[str, int | float], symbols: Mapping[str, int]) -> Value:
    dtype: DType = parse_dtype(parameter.dtype)
    value = scalars[parameter.name] if parameter.value is None else evaluate_size(parameter.value, symbols)
    return constant_value(value, dtype)


def _groups(context: KernelContext, all_at_once: bool) -> Iterator[CtaGroup]:
    """The grid cut into groups of consecutive CTAs, each of whole clusters."""
    total = context.grid[0] * context.grid[1] * context.grid[2]
    by_lanes = max(1, LANES_OF_A_GROUP // context.kernel.threads)
    by_memory = max(1, SHARED_BYTES_OF_A_GROUP // max(1, context.shared_bytes))
    size = total if all_at_once and by_memory >= total else min(total, by_lanes, by_memory)
    width, height, depth = context.kernel.cluster
    if height * depth > 1:  # their CTAs are not neighbours
        size = total
    elif width > 1:
        size = max(width, size // width * width)
    for first in range(0, total, size):
        yield CtaGroup(context, first, min(size, total - first))

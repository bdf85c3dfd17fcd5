"""Runs a kernel in the simulator under a policy of when asynchronous effects happen, on poisoned outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from ptxtile import sim
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.kernel import JITKernel
from ptxtile.sim.async_effects import EffectPolicy, ImmediateEffects
from ptxtile.sim.delayed_effects import DelayedEffects

HALF_LATE = {"tma_load": 0.5, "tma_store": 0.5, "wgmma": 0.5, "cp_async": 0.5}


def policies(seeds: Iterable[int]) -> list[Any]:
    """At once; as late as the waits allow; and some early and some late, for each of ``seeds``."""
    chosen: list[Any] = [ImmediateEffects, DelayedEffects]
    for seed in seeds:

        def mixed(seed: int = seed) -> EffectPolicy:
            return DelayedEffects(seed, HALF_LATE)

        chosen.append(mixed)
    return chosen


def specialized(function: Any, target: str, **arguments: Any) -> JITKernel:
    """The kernel of a jit function for sizes and Python arguments, for a target."""
    import pytest

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PTXTILE_TARGET", target)
        kernel = function.specialize(**arguments)
        assert kernel.target.name == target
        _ = kernel.program
        return kernel


def outputs(program: Program, effects: Any, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """What the program's allocations hold after a run; every byte of them was 0xFF."""
    found: dict[str, torch.Tensor] = {}
    for buffer in program.allocations:
        dtype = getattr(torch, buffer.dtype.name)
        size = int(torch.tensor(buffer.static_shape).prod()) * dtype.itemsize
        found[buffer.name] = torch.full((size,), 0xFF, dtype=torch.uint8).view(dtype).reshape(buffer.static_shape)
    sim.run(program, {**inputs, **found}, {}, effects=effects)
    return found


def nodes(program: Program, kind: type) -> list[Any]:
    return [node for node in walk(program.kernels[0].body) if isinstance(node, kind)]


def decisions(kernel: JITKernel, about: str) -> list[str]:
    """The reasons and decisions of specialize_warps whose subject ends with ``about``."""
    return [
        f"{why.decision}: {why.reason}"
        for why in kernel.why
        if why.pass_name == "specialize_warps" and why.subject.endswith(about)
    ]

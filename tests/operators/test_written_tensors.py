"""What a program is said to write, against what it writes: over the kernel suite, whose cases say what changes."""

from __future__ import annotations

import pytest
import torch

from ptxtile.compiler import lower
from ptxtile.errors import LoweringError
from ptxtile.ir.written_tensors import written_tensors
from ptxtile.jit_function import JITFunction
from ptxtile.kernel import JITKernel
from ptxtile.target import get
from ptxtile.variant import Variant
from tests.kernels import suite
from tests.kernels.case import Call, Case, generator_of


def variant_of(call: Call) -> tuple[Variant, list[str]] | None:
    """The variant that the call takes, and the names of its arguments; None for a kernel in another function."""
    kernel, arguments = call.kernel, tuple(call.arguments)
    if isinstance(kernel, JITFunction):
        kernel, arguments = kernel.kernel_for(*arguments)
    if not isinstance(kernel, JITKernel) or len(arguments) != len(call.arguments):
        return None
    return kernel.variant_for(*arguments), [parameter.name for parameter in kernel.signature.inputs]


def test_the_kernel_suite(request: pytest.FixtureRequest) -> None:
    """What changes counts as written, and nothing else does, except where a tensor is passed twice."""
    checked = 0
    for case in suite.CASES[::2]:
        call = case.make(generator_of(case, request.config.option.random_seed))
        found = variant_of(call)
        if found is None:
            continue
        variant, names = found
        changed = {names[position] for position in call.changes}
        written = written_tensors(variant.tile_program)
        assert changed <= written or overlapping(call), case.name
        assert written <= changed or overlapping(call) or not moved(call, names, written - changed), case.name
        checked += bool(changed)
    assert checked > 20


def overlapping(call: Call) -> bool:
    storages = [a.untyped_storage().data_ptr() for a in call.arguments if isinstance(a, torch.Tensor)]
    return len(set(storages)) < len(storages)


def moved(call: Call, names: list[str], which: set[str]) -> bool:
    """Whether any of these arguments has elements that a kernel could have written."""
    return any(call.arguments[names.index(name)].numel() for name in which)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_lowering_changes_nothing(arch: str, request: pytest.FixtureRequest) -> None:
    """At the other end of the road: stores may have become TMA stores, and loads cp.async."""
    cases: list[Case] = list(suite.CASES)[::8]
    compared = 0
    for case in cases:
        call = case.make(generator_of(case, request.config.option.random_seed))
        found = variant_of(call)
        if found is None or found[0].settings.target is not None:
            continue
        program = found[0].tile_program
        try:
            lowered = lower(program, get(arch), found[0].settings.options).program
        except LoweringError:
            continue  # not a kernel for this architecture
        assert written_tensors(lowered) <= written_tensors(program), case.name
        assert written_tensors(program) <= written_tensors(lowered) | unused(lowered), case.name
        compared += 1
    assert compared > 10


def unused(program) -> set[str]:
    """Tensors that the lowered program does not touch: what was written in code that never runs."""
    return {argument.name for argument in program.launch.arguments if getattr(argument, "unused", False)}

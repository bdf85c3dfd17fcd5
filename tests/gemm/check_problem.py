"""Runs a problem on fresh random inputs with a poisoned output and compares every element with float64.

The bound of an element is what its arithmetic allows: the rounding to the output's dtype, and for each of K products
summed in the accumulator's precision one rounding of the sum of absolute values (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., section 3.1).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ptxtile import sim
from ptxtile.compiler import Artifact
from ptxtile.errors import PerformanceWarning, ResourceError
from ptxtile.ir.rewrite import walk
from ptxtile.ir.tensor_core_ops import MmaSync, Wgmma
from ptxtile.kernel import JITKernel
from ptxtile.runtime.arguments import bind
from ptxtile.sim.check import run as sim_check
from ptxtile.sim.delayed_effects import ALWAYS, NEVER, DelayedEffects
from ptxtile.variant import Variant
from tests.gemm.problem import FLOAT8, Problem
from tests.gemm.random_kernel import compiled_for
from tests.ptxas import IGNORED_SETMAXNREG, assemble

UNIT = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "tfloat32": 2.0**-10, "int32": 0.0}
"""Half a unit in the last place of 1, or for tfloat32, whose operands may be truncated, a whole one."""

MOST_ACCUMULATORS = 0.6
"""The part of a thread's registers that accumulators may take so that the rest of a kernel has enough."""

SERIALISED, TOO_FEW_REGISTERS = "are serialized due to", "insufficient register resources"
"""What ptxas says of wgmma; the codes before it differ by version."""

MOST_OPERATIONS_CHECKED = 2_000_000
"""Multiplications of a problem that the checker does in a few seconds."""

GUARD = 256
"""Bytes of poison before and after the output."""

POISON = 0xFF
"""NaN in every float format, −1 in integers."""


class WrongResult(AssertionError):
    """An element is outside of its bound, or something beside the output was written."""


@dataclass(frozen=True)
class Outcome:
    """``status``: ok or refused. ``error``: ‖found − wanted‖ / ‖wanted‖, the largest of all runs. ``paths``: kinds of
    tensor-core instructions."""

    status: str
    error: float = 0.0
    paths: frozenset[str] = frozenset()
    detail: str = ""


@dataclass(frozen=True)
class Inputs:
    """op(A) is [m, k], op(B) [k, n]; ``a`` and ``b`` are as they lie in memory. ``start``: what C holds before, None
    where that is poison."""

    a: torch.Tensor
    b: torch.Tensor
    bias: torch.Tensor
    start: torch.Tensor | None
    wanted: torch.Tensor
    magnitude: torch.Tensor

    def arguments(self, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.a, self.b, self.bias, c


def inputs_of(p: Problem, device: str = "cpu") -> Inputs:
    generator = torch.Generator().manual_seed(p.seed)

    def matrix(rows: int, columns: int, name: str) -> torch.Tensor:
        dtype = getattr(torch, name)
        if dtype.is_floating_point:
            return torch.randn(rows, columns, generator=generator).to(dtype)
        limits = torch.iinfo(dtype)
        return torch.randint(limits.min, limits.max + 1, (rows, columns), generator=generator).to(dtype)

    left, right = matrix(p.m, p.k, p.dtypes[0]), matrix(p.k, p.n, p.dtypes[1])
    bias = matrix(1, p.n, p.dtypes[2] if p.dtypes[2] != "int32" else "int8")[0].to(getattr(torch, p.dtypes[2]))
    offset = bias.double() if "bias" in p.epilogue else torch.zeros(p.n, dtype=torch.float64)
    start = None
    if "add" in p.epilogue:
        start = matrix(p.m, p.n, p.dtypes[3] if p.dtypes[3] != "int32" else "int8").to(getattr(torch, p.dtypes[3]))
        offset = start.double()
    wanted = left.double() @ right.double() + offset
    magnitude = left.double().abs() @ right.double().abs() + offset.abs()
    a = left.T.contiguous() if p.transpose_a else left
    b = right.T.contiguous() if p.transpose_b else right
    there = (None if tensor is None else tensor.to(device) for tensor in (a, b, bias, start, wanted, magnitude))
    return Inputs(*there)  # type: ignore[arg-type]


class Output:
    """A C that is poisoned, or as it starts, between two guards."""

    def __init__(self, p: Problem, inputs: Inputs) -> None:
        device = inputs.a.device
        dtype = getattr(torch, p.dtypes[3])
        self.raw = torch.full((2 * GUARD + p.m * p.n * dtype.itemsize,), POISON, dtype=torch.uint8, device=device)
        self.c = self.raw[GUARD:-GUARD].view(dtype).view(p.m, p.n)
        if inputs.start is not None:
            self.c.copy_(inputs.start)

    def check(self, p: Problem, inputs: Inputs, tensor_cores: set[str], on_card: bool) -> float:
        """The relative error norm. WrongResult when an element is out of its bound."""
        if not ((self.raw[:GUARD] == POISON).all() and (self.raw[-GUARD:] == POISON).all()):
            raise WrongResult("something was written outside of C")
        found = self.c.double()
        difference = (found - inputs.wanted).abs()
        bound = UNIT[p.dtypes[3]] * inputs.wanted.abs() + precision(p, tensor_cores, on_card) * inputs.magnitude + 1e-30
        wrong = ~(difference <= bound)  # NaN is wrong
        if wrong.any():
            row, column = (int(x) for x in wrong.nonzero()[0])
            raise WrongResult(
                f"{int(wrong.sum())} of {p.m * p.n} elements are wrong, the first at [{row}, {column}]: expected "
                f"{float(inputs.wanted[row, column]):.6g} within {float(bound[row, column]):.2g}, got "
                f"{float(found[row, column]):.6g}"
            )
        return float(difference.norm() / inputs.wanted.norm().clamp(min=1e-30))


def precision(p: Problem, tensor_cores: set[str], on_card: bool) -> float:
    """The bound of an accumulator's error, relative to the sum of the absolute values of its terms."""
    accumulator = p.dtypes[2]
    if accumulator == "int32":
        return 0.0
    rounding = UNIT[accumulator] * (1 if accumulator == "float32" else 2)
    if on_card:  # tensor cores truncate where IEEE rounds, and align the terms of one instruction to the largest
        rounding *= 4
    terms = p.k + 4
    # The tensor cores of a card keep 14 bits of sums of 8-bit floats, once for each instruction of 32 terms.
    float8 = -(-p.k // 32 + 1) * 2.0**-12 if on_card and set(p.dtypes) & set(FLOAT8) else 0.0
    tfloat32 = 2 * UNIT["tfloat32"] if p.dtypes[0] == "float32" and "tfloat32" in tensor_cores else 0.0
    stored = UNIT[accumulator] * (p.epilogue != "direct")
    return terms * rounding + abs(float8) + tfloat32 + stored


def tensor_core_operands(variant: Variant) -> tuple[frozenset[str], set[str]]:
    """The kinds of tensor-core instructions of a program, and the dtypes of their operands A."""
    program = variant.lowered().program
    nodes = [node for kernel in program.kernels for node in walk(kernel.body) if isinstance(node, (MmaSync, Wgmma))]
    return frozenset(type(node).__name__ for node in nodes), {str(node.dtype_a) for node in nodes}


def policies(seed: int) -> Mapping[str, Callable[[], DelayedEffects]]:
    """When asynchronous effects happen: at once, as late as may be, or each at random."""
    mixed = {kind: 0.5 for kind in ALWAYS}
    return {
        "early": lambda: DelayedEffects(seed, NEVER),
        "late": lambda: DelayedEffects(seed, ALWAYS),
        "mixed": lambda: DelayedEffects(seed, mixed),
    }


def variant_of(p: Problem, inputs: Inputs, output: Output, target: str | None) -> tuple[JITKernel, Variant]:
    kernel = compiled_for(target, p.specialize_warps).specialize(
        **dict(zip(("A", "B", "bias", "C"), inputs.arguments(output.c), strict=True)), p=p
    )
    return kernel, kernel.variant


def check(
    p: Problem, *, ptx: bool = False, effects: tuple[str, ...] = ("early", "late", "mixed"), checked: bool = False
) -> Outcome:
    """Runs ``p`` in the simulator under each policy. ``ptx``: assembles it too. ``checked``: the checker looks for
    races and missing waits, if the problem is small enough for it. WrongResult, or the compiler's error."""
    os.environ["PTXTILE_VERIFY"] = "1"
    inputs = inputs_of(p)
    output = Output(p, inputs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)  # tiles that no tensor core takes are meant to be there
            kernel, variant = variant_of(p, inputs, output, p.target)
            lowered = variant.lowered()
    except ResourceError as error:
        return Outcome("refused", detail=str(error))
    paths, operands = tensor_core_operands(variant)
    errors = []
    for name in effects:
        output = Output(p, inputs)
        binding = bind(lowered.launch, inputs.arguments(output.c), {}, device_type="cpu")
        sim.run(lowered.program, binding.tensors, binding.scalars, effects=policies(p.seed)[name])
        try:
            errors.append(output.check(p, inputs, operands, on_card=False))
        except WrongResult as error:
            raise WrongResult(f"with {name} effects: {error}") from None
    if ptx:
        assemble_quietly(kernel, p)
    if checked and paths and p.m * p.n * p.k <= MOST_OPERATIONS_CHECKED:
        find_races(p, inputs, lowered)
    return Outcome("ok", max(errors, default=0.0), paths)


def find_races(p: Problem, inputs: Inputs, lowered: Artifact) -> None:
    """WrongResult when the checker finds something; unwritten registers that are merely copied do not count."""
    binding = bind(lowered.launch, inputs.arguments(Output(p, inputs).c), {}, device_type="cpu")
    report = sim_check.check(lowered.program, binding.tensors, binding.scalars)
    found = [str(finding) for finding in report.findings if finding.rule != "uninitialised"]
    if found:
        raise WrongResult("the checker found\n" + "\n".join(found))


def assemble_quietly(kernel: JITKernel, p: Problem) -> None:
    """ptxas takes the PTX and does not complain about serialised wgmma or setmaxnreg; except that it has too few
    registers, where the accumulators of a thread leave too few."""
    artifact = kernel.artifact
    assert artifact.ptx is not None
    log = assemble(artifact.ptx, artifact.target.name)
    complaints = [line for line in log.splitlines() if any(mark in line for mark in (*IGNORED_SETMAXNREG, SERIALISED))]
    if p.block_m * p.block_n // p.threads > MOST_ACCUMULATORS * min(255, 65536 // p.threads):
        complaints = [line for line in complaints if TOO_FEW_REGISTERS not in line]
    if complaints:
        raise AssertionError("ptxas: " + "; ".join(complaints))


def check_on_card(p: Problem, target: str | None) -> Outcome:
    """Runs ``p`` on the card with the PTX of ``target`` (None: the card's own architecture)."""
    inputs = inputs_of(p, "cuda")
    output = Output(p, inputs)
    arguments: tuple[Any, ...] = inputs.arguments(output.c)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PerformanceWarning)
            _, variant = variant_of(p, inputs, output, target)
            paths, operands = tensor_core_operands(variant)
            compiled_for(target, p.specialize_warps)(*arguments, p)
    except ResourceError as error:
        return Outcome("refused", detail=str(error))
    torch.cuda.synchronize()
    return Outcome("ok", output.check(p, inputs, operands, on_card=True), paths)

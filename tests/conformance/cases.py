"""A conformance case: a program of the gpu stage with its arguments, run by the simulator and by the card.

Every tensor is a parameter with known contents, so that what a program must leave alone is compared too.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import torch

from ptxtile import sim
from ptxtile import target as targets
from ptxtile.ir.parser import parse_program
from ptxtile.ir.program import Program, ScalarParameter, TensorParameter
from ptxtile.ir.types import DType, Kind
from ptxtile.lower import complete_launch
from ptxtile.lower.options import Options
from ptxtile.runtime.arguments import Binding, bind
from ptxtile.target import Feature, Target
from tests.conformance.values import as_tensor, raw_dtype

PROGRAMS = Path(__file__).parent / "programs"
Outputs = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Case:
    """``arguments`` in the order of the program's parameters, all on the CPU. ``needs``: what the architecture must
    have. ``unspecified``: elements of an output whose value is open, as a boolean array. ``errors``: bounds of outputs
    that need not agree in every bit. ``operands``: the inputs of each element of an output, to report differences.
    ``expected``: tensors after the run, from elsewhere than the simulator, or None where nothing else knows them; of
    the first ``sample`` elements only where that is given."""

    name: str
    program: Program
    arguments: tuple[torch.Tensor | int | float, ...]
    needs: tuple[Feature, ...] = ()
    expected: Outputs | None = None
    unspecified: Mapping[str, np.ndarray] = field(default_factory=dict)
    errors: Mapping[str, Callable[[np.ndarray], np.ndarray]] = field(default_factory=dict)
    operands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    sample: int | None = None

    def __str__(self) -> str:
        return self.name

    def claims(self, target: Target) -> bool:
        return all(target.has(feature) for feature in self.needs)

    @property
    def dtypes(self) -> dict[str, DType]:
        """Of every tensor by name."""
        return {name: buffer.dtype for name, buffer in self.program.global_buffers().items()}

    def binding(self, device_type: str = "cpu") -> Binding:
        """Fresh copies of the arguments on a device, and of what the call allocates, zeroed."""
        assert self.program.launch is not None
        copies = [a.to(device_type, copy=True) if isinstance(a, torch.Tensor) else a for a in self.arguments]
        binding = bind(self.program.launch, copies, device_type=device_type)
        for buffer in self.program.allocations:
            binding.tensors[buffer.name].zero_()
        return binding

    def simulate(self) -> Outputs:
        """Every tensor after the simulator ran the program."""
        binding = self.binding()
        sim.run(self.program, binding.tensors, binding.scalars)
        return dict(binding.tensors)


def with_launch(program: Program) -> Program:
    """``program`` with the launch record that lowering would give it; a text that has one keeps it."""
    if program.launch is not None:
        return program
    return complete_launch.run(program, targets.get(targets.names()[0]), Options())


# --- programs in text -----------------------------------------------------------------------------------------------

_NEEDS = re.compile(r"^# needs: (.*)$", re.MULTILINE)
_SCALARS = re.compile(r"^# scalars: (.*)$", re.MULTILINE)


@cache
def program_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in PROGRAMS.glob("*.ir")))


@cache
def load(name: str) -> Case:
    """The case of programs/``name``.ir.

    Comments of the text say ``# needs: TMA, SETMAXNREG`` (names of Feature) and ``# scalars: n=5, x=1.5``. Tensors are
    filled at random: integers with all their bits, floats with multiples of 1/8 below 64, whose sums and products are
    exact; a tensor of symbolic shape takes the symbols' values from the scalars.
    """
    from tests.conformance.expected import EXPECTED

    text = (PROGRAMS / f"{name}.ir").read_text()
    program = with_launch(parse_program(text, f"{name}.ir"))
    needs = _NEEDS.search(text)
    features = tuple(Feature[word.strip()] for word in needs[1].split(",")) if needs else ()
    given = _SCALARS.search(text)
    numbers = dict(part.strip().split("=") for part in given[1].split(",")) if given else {}
    scalars = {key: float(value) if "." in value else int(value) for key, value in numbers.items()}
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    arguments: list[torch.Tensor | int | float] = []
    for parameter in program.parameters:
        if isinstance(parameter, TensorParameter):
            sizes = [size if isinstance(size, int) else scalars[str(getattr(size, "name", ""))]
                     for size in parameter.buffer.shape]  # fmt: skip
            arguments.append(filled(generator, parameter.buffer.dtype, [int(size) for size in sizes]))
        else:
            arguments.append(scalars[parameter.name])
    before = {
        parameter.name: argument
        for parameter, argument in zip(program.parameters, arguments, strict=True)
        if isinstance(parameter, (TensorParameter, ScalarParameter))
    }
    expected = {name: value for name, value in before.items() if isinstance(value, torch.Tensor)}
    expected |= EXPECTED[name](**{key: v.clone() if isinstance(v, torch.Tensor) else v for key, v in before.items()})
    return Case(name, program, tuple(arguments), features, expected)


def filled(generator: np.random.Generator, dtype: DType, shape: list[int]) -> torch.Tensor:
    count = int(np.prod(shape))
    if dtype.kind is Kind.FLOAT and dtype.bits > 8:
        numbers = torch.from_numpy(generator.integers(-512, 512, count) / 8)
        return numbers.to(getattr(torch, dtype.element_name)).reshape(shape)
    if dtype.kind is Kind.BOOL:
        return torch.from_numpy(generator.integers(0, 2, count) == 1).reshape(shape)
    raw = np.frombuffer(generator.bytes(count * dtype.bits // 8), dtype=raw_dtype(dtype))
    return as_tensor(raw, dtype).reshape(shape)

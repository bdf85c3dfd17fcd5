"""Random launch records and calls of them: tensors of all dtypes, ranks and strides, numbers, tensor maps, allocations,
launches with attributes. Every call of :meth:`RandomCall.arguments` has another memory and other numbers."""

from __future__ import annotations

import random
from typing import Any

import torch

from ptxtile.launch_record import (
    Allocation,
    KernelLaunch,
    KernelParameter,
    LaunchRecord,
    ScalarArgument,
    SizeOperation,
    Symbol,
    TensorArgument,
    TensorMapRecord,
)

TENSOR_DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "bfloat16", "float32",
    "float64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu",
)  # fmt: skip
BYTES = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "tfloat32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "float8_e8m0fnu": 1,
}  # fmt: skip
RANGES = {
    "bool": (0, 1), "int8": (-(2**7), 2**7 - 1), "uint8": (0, 2**8 - 1), "int16": (-(2**15), 2**15 - 1),
    "uint16": (0, 2**16 - 1), "int32": (-(2**31), 2**31 - 1), "uint32": (0, 2**32 - 1), "int64": (-(2**63), 2**63 - 1),
    "uint64": (0, 2**64 - 1),
}  # fmt: skip


class RandomCall:
    """A record and what calls of it are made of."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self._sizes: list[tuple[int, ...]] = []
        self._strides: list[tuple[int, ...]] = []
        self._numbers: list[str] = []
        self._arguments: list[TensorArgument | ScalarArgument] = []
        self._maps: list[TensorMapRecord] = []
        for position in range(draw.randrange(7)):
            self._add_number(position) if draw.random() < 0.4 else self._add_tensor(position)
        self._allocations = [self._allocation(n) for n in range(draw.choice((0, 0, 1, 2)))]
        launches = [self._launch(n) for n in range(draw.choice((0, 1, 1, 1, 2, 3)))]
        names = [a.name for a in self._arguments if isinstance(a, TensorArgument)]
        returns = draw.sample(names, draw.randrange(min(3, len(names)) + 1))
        returns += [allocation.name for allocation in self._allocations]  # where these lie is known by the results
        self.record = LaunchRecord(
            "random", tuple(self._arguments), tuple(self._allocations), tuple(self._maps), tuple(launches),
            tuple(returns),
        )  # fmt: skip
        widths = {"pointer": 8, "tensor_map": 128}
        self.parameter_sizes = {
            launch.kernel: tuple(widths.get(p.kind) or BYTES[p.dtype] for p in launch.parameters) for launch in launches
        }

    def _add_tensor(self, position: int) -> None:
        draw, name = self.draw, f"t{position}"
        dtype, rank = draw.choice(TENSOR_DTYPES), draw.randrange(5)
        sizes = tuple(draw.randrange(1, 5) for _ in range(rank))
        strides, extent = [], draw.choice((1, 1, 2))
        for size in reversed(sizes):
            strides.append(extent)
            extent *= size + draw.choice((0, 0, 3))
        strides.reverse()
        declared = tuple(Symbol(f"{name}_s{d}") if draw.random() < 0.4 else s for d, s in enumerate(strides))
        shape = tuple(Symbol(f"{name}_d{d}") if draw.random() < 0.3 else s for d, s in enumerate(sizes))
        if draw.random() < 0.4:  # one that TMA can take
            dtype, sizes, strides = draw.choice(("float32", "int32")), (draw.randrange(1, 5), 8), [12, 1]
            rows, pitch = Symbol(f"{name}_d0"), Symbol(f"{name}_s0")
            shape, declared = (rows, 8), (pitch, 1)
            pitch_bytes = SizeOperation("mul", pitch, 4)
            record = TensorMapRecord(
                f"map_{name}", name, dtype, (8, rows), (pitch_bytes,), (8, 2), draw.choice((0, 32)),
                draw.choice((0, 64, 128, 256)), draw.choice((0, 16)),
            )  # fmt: skip
            self._maps.append(record)
        self._sizes.append(sizes)
        self._strides.append(tuple(strides))
        self._arguments.append(TensorArgument(name, dtype, shape, declared, 16 if len(strides) == 2 else BYTES[dtype]))

    def _add_number(self, position: int) -> None:
        self._arguments.append(ScalarArgument(f"n{position}", self.draw.choice((*RANGES, *_FLOATS))))

    def _known(self) -> list[str]:
        """Symbols that every call gives a small value."""
        return sorted(
            str(size)
            for argument in self._arguments
            if isinstance(argument, TensorArgument)
            for size in (*argument.shape, *argument.strides)
            if isinstance(size, Symbol)
        )

    def _size(self) -> int | Symbol | SizeOperation:
        draw, known = self.draw, self._known()
        if not known or draw.random() < 0.5:
            return draw.randrange(1, 6)
        symbol = Symbol(draw.choice(known))
        return draw.choice((symbol, SizeOperation("mul", symbol, 2), SizeOperation("max", symbol, 3)))

    def _allocation(self, position: int) -> Allocation:
        shape = tuple(self._size() for _ in range(self.draw.randrange(4)))
        return Allocation(f"made{position}", self.draw.choice(TENSOR_DTYPES), shape)

    def _launch(self, position: int) -> KernelLaunch:
        draw = self.draw
        candidates = [KernelParameter("tensor_map", record.name) for record in self._maps]
        for argument in self._arguments:
            if isinstance(argument, TensorArgument):
                candidates.append(KernelParameter("pointer", argument.name))
            else:
                candidates.append(KernelParameter("scalar", argument.name, argument.dtype))
        candidates += [KernelParameter("pointer", allocation.name) for allocation in self._allocations]
        widths = ("int32", "int64")
        candidates += [KernelParameter("scalar", f"v{n}", draw.choice(widths), self._size()) for n in (1, 2)]
        chosen = draw.sample(candidates, draw.randrange(len(candidates) + 1))
        cluster = draw.choice(((1, 1, 1), (1, 1, 1), (2, 1, 1)))
        grid = (SizeOperation("mul", self._size(), 2), self._size(), draw.choice((1, 1, 1, 0)))
        return KernelLaunch(
            f"kernel{position}", grid, (draw.choice((32, 128)), 1, 1), draw.choice((0, 50_000)), tuple(chosen), cluster,
            draw.random() < 0.2, draw.random() < 0.2,
        )  # fmt: skip

    def arguments(self) -> tuple[Any, ...]:
        """Right ones."""
        shapes = iter(zip(self._sizes, self._strides, strict=True))
        return tuple(
            self._number(argument.dtype)
            if isinstance(argument, ScalarArgument)
            else self._tensor(argument, *next(shapes))
            for argument in self._arguments
        )

    def _number(self, dtype: str) -> int | float | bool:
        draw = self.draw
        if dtype in RANGES:
            least, most = RANGES[dtype]
            return draw.choice((0, 1, True, False, least, most, draw.randint(least, most)))
        return draw.choice((0.0, -0.0, 1.5, -1.0, 3, True, draw.uniform(-100, 100), draw.uniform(-1e-4, 1e-4)))

    def _tensor(self, argument: TensorArgument, sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
        extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        aligned = argument.alignment == 16
        offset = 0 if aligned else self.draw.choice((0, 0, 1, 2))
        memory = torch.zeros(BYTES[argument.dtype] * (extent + offset) + 64, dtype=torch.uint8)
        whole = memory[: BYTES[argument.dtype] * (extent + offset)].view(getattr(torch, argument.dtype))
        tensor = whole.as_strided(sizes, strides, offset)
        return torch.nn.Parameter(tensor, requires_grad=False) if self.draw.random() < 0.1 else tensor


_FLOATS = ("float16", "bfloat16", "float32", "tfloat32", "float64")

"""Draws random programs: sizes, tensors, options; the kernels' bodies are
:mod:`tests.random_programs.draw_kernel`'s."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from tests.random_programs import model as m
from tests.random_programs.draw_kernel import KernelDrawer
from tests.random_programs.memory import dense_strides
from tests.random_programs.numbers import DTYPES, FLOATS, itemsize

TARGETS = ("sm_80", "sm_90", "sm_90a", "sm_90a", "sm_90a", "sm_100a", "sm_120a")
MOST_BLOCKS = 24
MOST_TILE = 4096


@dataclass(frozen=True)
class Dimension:
    """A dimension of the iteration space. ``declared``: the size in the source. A "batch" dimension has tiles of 1."""

    label: str
    size: int
    declared: str
    batch: bool


def generate(seed: int) -> m.Program:
    """The program of a seed."""
    return _ProgramDrawer(random.Random(seed), seed).draw()


class _ProgramDrawer:
    def __init__(self, rng: random.Random, seed: int) -> None:
        self.rng = rng
        self.seed = seed
        self.sizes: list[m.Size] = []

    def draw(self) -> m.Program:
        rng = self.rng
        form = rng.choice(["eager", "factory"])
        self.named = rng.choice([0.0, 0.0, 0.5, 1.0])
        self.kinds = ["dynamic"] if form == "factory" else ["const", "dynamic"]
        self.dtypes: list[str] = rng.sample(DTYPES, rng.randint(1, 3))
        if rng.random() < 0.4:
            self.dtypes = [rng.choice(["float16", "bfloat16", "float32"]), *self.dtypes[1:]]
        options: dict[str, object] = {"target": rng.choice(TARGETS)}
        roles = rng.choice(["auto", True, True, False])
        if roles != "auto":
            options["specialize_warps"] = roles
        if rng.random() < 0.12:
            options["disable_tma"] = True
        contraction = rng.random() < 0.25
        if not contraction:
            options["contract"] = False
        dimensions = self.dimensions()
        inputs = [self.tensor(f"A{k}", dimensions, output=False) for k in range(rng.randint(1, 3))]
        outputs = [self.tensor(f"C{k}", dimensions, output=True) for k in range(rng.choice([1, 1, 2]))]
        inputs += self.aliases(outputs)
        inputs = self.with_sizes(inputs, dimensions)
        scalars = [self.scalar(f"p{k}") for k in range(rng.choice([0, 0, 1, 2]))]
        tensors = (*inputs, *outputs)
        kernels = []
        for number in range(rng.choice([1, 1, 1, 2])):
            drawer = KernelDrawer(rng, number, dimensions, self.dtypes, tensors, tuple(scalars), contraction)
            drawer.specialized = roles is True
            drawer.earlier_outputs = number > 0
            kernels.append(drawer.draw())
        return m.Program(
            self.seed, form, tuple(options.items()), tuple(self.sizes), tensors, tuple(scalars), tuple(kernels)
        )

    # ------------------------------------------------------------ sizes

    def dimensions(self) -> tuple[Dimension, ...]:
        rng = self.rng
        tiled = rng.choice([1, 2, 2, 2, 3])
        found = []
        for number in range(tiled):
            choices = [
                1,
                rng.randint(2, 9),
                rng.choice([16, 32, 64, 128]),
                rng.randint(10, 150),
                rng.choice([24, 48, 96, 200]),
            ]
            size = rng.choice(choices if tiled < 3 else choices[:3])
            found.append(self.dimension(f"d{number}", size, batch=False))
        for number in range(rng.choice([0, 0, 0, 1, 1, 2])):
            found.append(self.dimension(f"e{number}", rng.randint(1, 3), batch=True))
        return tuple(found)

    def dimension(self, label: str, size: int, batch: bool) -> Dimension:
        declared = str(size)
        if self.rng.random() < self.named:
            declared = f"N_{label}"
            self.sizes.append(m.Size(declared, size, self.rng.choice(self.kinds)))
        return Dimension(label, size, declared, batch)

    def with_sizes(self, inputs: list[m.Tensor], dimensions: tuple[Dimension, ...]) -> list[m.Tensor]:
        """The inputs, and one that has every named size, so that the call can solve them."""
        named = {size.name for size in self.sizes}
        seen = {text for tensor in inputs for text in tensor.buffer.declared}
        if named <= seen:
            return inputs
        return [*inputs, self.placed("S", self.rng.choice(self.dtypes), dimensions, list(dimensions), True)]

    # ------------------------------------------------------------ tensors

    def tensor(self, name: str, dimensions: tuple[Dimension, ...], output: bool) -> m.Tensor:
        rng = self.rng
        dtype = rng.choice(self.dtypes)
        chosen = list(dimensions)
        if not output and rng.random() < 0.45:
            chosen = rng.sample(chosen, rng.randint(1, len(chosen)))
        if rng.random() < 0.3:
            rng.shuffle(chosen)
        return self.placed(name, dtype, dimensions, chosen, not output, output)

    def placed(
        self, name: str, dtype: str, dimensions: tuple[Dimension, ...], chosen: list[Dimension], resize: bool,
        output: bool = False,
    ) -> m.Tensor:  # fmt: skip
        rng = self.rng
        shape, declared = [], []
        for dimension in chosen:
            size, text = dimension.size, dimension.declared
            if resize and text == str(size) and rng.random() < 0.15:
                size = max(1, size + rng.choice([-1, 1, -8, 8, 3, 16]))
                text = str(size)
            shape.append(size)
            declared.append(text)
        buffer = m.Buffer(name, "global", dtype, tuple(shape), tuple(d.label for d in chosen), name, tuple(declared))
        if output and rng.random() < 0.35:
            strides = dense_strides(buffer.shape)
            return m.Tensor(buffer, strides, 0, math.prod(shape), "empty")
        strides, offset, elements = self.layout(buffer)
        return m.Tensor(buffer, strides, offset, elements)

    def layout(self, buffer: m.Buffer) -> tuple[tuple[int, ...], int, int]:
        """Strides, offset and elements of the storage: dense, padded rows, transposed, every other element, shifted."""
        rng = self.rng
        order = list(range(len(buffer.shape)))
        steps = [0] * len(order)
        kind = rng.choice(["dense", "dense", "dense", "padded", "transposed", "stepped"])
        if kind == "transposed":
            rng.shuffle(order)
        step = rng.choice([2, 3]) if kind == "stepped" else 1
        for position in reversed(order):
            steps[position] = step
            step *= buffer.shape[position]
            if kind == "padded":
                unit = max(1, 16 // itemsize(buffer.dtype))
                step = -(-step // unit) * unit if rng.random() < 0.6 else step + rng.randint(1, 5)
        offset = rng.choice([0, 0, 0, 0, 1, 3, 4, max(1, 16 // itemsize(buffer.dtype))])
        last = sum((size - 1) * stride for size, stride in zip(buffer.shape, steps, strict=True))
        return tuple(steps), offset, offset + last + 1 + rng.choice([0, 5])

    def aliases(self, outputs: list[m.Tensor]) -> list[m.Tensor]:
        """Inputs on the memory of an output: the call passes one tensor twice."""
        found = []
        for tensor in outputs:
            if tensor.role == "argument" and self.rng.random() < 0.15:
                buffer = tensor.buffer
                twin = m.Buffer(
                    f"B{len(found)}",
                    "global",
                    buffer.dtype,
                    buffer.shape,
                    buffer.labels,
                    buffer.storage,
                    buffer.declared,
                )
                found.append(m.Tensor(twin, tensor.strides, tensor.offset, tensor.elements))
        return found

    def scalar(self, name: str) -> m.Scalar:
        rng = self.rng
        dtype = rng.choice(["int32", "int32", "float32", "float64", "int64", "bool", rng.choice(["int32", "float32"])])
        if dtype == "bool":
            return m.Scalar(name, dtype, rng.random() < 0.5)
        if dtype in FLOATS:
            return m.Scalar(name, dtype, rng.randint(-40, 40) / 4)
        return m.Scalar(name, dtype, rng.choice([0, 1, 2, 3, 5, rng.randint(-100, 100)]))

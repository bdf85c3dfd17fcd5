"""Draws a kernel's launch, its on-chip buffers, and the copies and fills between them."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from tests.random_programs import model as m
from tests.random_programs.draw_expressions import ZERO, ExpressionDrawer, plus
from tests.random_programs.draw_regions import match, region_form
from tests.random_programs.numbers import DTYPES, itemsize

if TYPE_CHECKING:
    from tests.random_programs.generator import Dimension

MOST_SHARED = 40_000
MOST_TILE = 4096
MOST_REGISTERS = 96
"""Elements of a tile for each thread."""


class BufferDrawer:
    """What is known while a kernel is drawn.

    ``ready`` storages hold values everywhere, ``written_here`` are outputs that the kernel has written.
    ``block_starts``: where a block's part of a dimension begins; ``swept``: the same along a loop.
    """

    threads: int
    tiles: dict[str, int]
    block_starts: dict[str, m.Expression]
    outputs: set[str]
    shared_storages: set[str]

    def __init__(
        self, rng: random.Random, number: int, dimensions: tuple[Dimension, ...], dtypes: list[str],
        tensors: tuple[m.Tensor, ...], scalars: tuple[m.Scalar, ...], contraction: bool,
    ) -> None:  # fmt: skip
        self.rng = rng
        self.prefix = "" if number == 0 else f"q{number}"
        self.dimensions = {d.label: d for d in dimensions}
        self.dtypes = dtypes
        self.expressions = ExpressionDrawer(rng, dtypes)
        self.tensors = tensors
        self.contraction = contraction
        self.specialized = False
        self.earlier_outputs = False
        self.names = [m.Name(s.name, s.dtype) for s in scalars]
        self.counter = 0
        self.buffers: list[m.Buffer] = []
        self.ready: set[str] = set()
        self.views: dict[str, m.Buffer] = {}
        self.shared_bytes = 0
        self.written_here: set[str] = set()
        self.shifts: dict[str, tuple[int, ...]] = {}
        self.depth = 0
        self.swept: dict[str, m.Expression] = {}

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{self.prefix}{stem}{self.counter}"

    # ------------------------------------------------------------ the launch

    def draw_tiles(self) -> dict[str, int]:
        rng = self.rng
        limit = min(MOST_TILE, self.threads * MOST_REGISTERS)
        tiles = {}
        for label, dimension in self.dimensions.items():
            if dimension.batch:
                tiles[label] = 1
                continue
            choices = [8, 16, 32, 64, 128, 256, rng.randint(1, 40), dimension.size]
            tile = min(rng.choice(choices), 256)
            while tile * math.prod(tiles.values()) > limit:
                tile = max(1, tile // 2)
            while -(-dimension.size // tile) * math.prod(self.blocks_of(other, tiles) for other in tiles) > 24:
                tile *= 2
            tiles[label] = tile
        return tiles

    def blocks_of(self, label: str, tiles: dict[str, int] | None = None) -> int:
        return -(-self.dimensions[label].size // (tiles or self.tiles)[label])

    def draw_grid(self) -> tuple[tuple[m.Expression, ...], tuple[str, ...], list[m.Statement]]:
        """Grid sizes, block names, and the statements that take a flattened grid apart."""
        rng = self.rng
        labels = list(self.dimensions)
        rng.shuffle(labels)
        sizes: list[tuple[str, m.Expression, int]] = []
        self.block_starts: dict[str, m.Expression] = {}
        for label in labels:
            dimension, tile = self.dimensions[label], self.tiles[label]
            name = f"{self.prefix}b_{label}"
            if dimension.declared == str(dimension.size):
                size: m.Expression = m.Number(self.blocks_of(label), "int32")
            else:
                size = m.Name(dimension.declared, "int32")
                if tile > 1:
                    total = plus(size, tile - 1)
                    size = m.Binary("floordiv", total, m.Number(tile, "int32"))
            sizes.append((name, size, label))  # type: ignore[arg-type]
            block = m.Name(name, "int32")
            self.names.append(block)
            self.block_starts[label] = block if tile == 1 else m.Binary("mul", block, m.Number(tile, "int32"))
        prologue: list[m.Statement] = []
        while len(sizes) > 3 or (len(sizes) > 1 and rng.random() < 0.2):
            (first, first_size, _), (second, second_size, _) = sizes.pop(), sizes.pop()
            joined = m.Name(self.fresh("b"), "int32")
            product = m.Binary("mul", first_size, second_size)
            if isinstance(first_size, m.Number) and isinstance(second_size, m.Number):
                product = m.Number(int(first_size.value * second_size.value), "int32")  # type: ignore[assignment]
            sizes.append((joined.name, product, 0))
            prologue.insert(0, m.Assign(second, m.Binary("floormod", joined, second_size)))
            prologue.insert(0, m.Assign(first, m.Binary("floordiv", joined, second_size)))
        return tuple(size for _, size, _ in sizes), tuple(name for name, _, _ in sizes), prologue

    # ------------------------------------------------------------ buffers

    def allocate(self) -> list[m.Statement]:
        rng = self.rng
        labels: list[str | None] = [label for label, d in self.dimensions.items() if not d.batch]
        if rng.random() < 0.35:
            labels = rng.sample(labels, rng.randint(1, len(labels)))
        if rng.random() < 0.2:
            rng.shuffle(labels)
        shape = [self.tiles[label] for label in labels]  # type: ignore[index]
        if rng.random() < 0.1:
            labels.insert(rng.randint(0, len(labels)), None)
            shape.insert(labels.index(None), rng.choice([1, 2, 3]))
        if rng.random() < 0.1:
            shape[-1] += rng.choice([1, 4, 8])
        scope = rng.choice(["shared", "shared", "fragment"])
        dtype = rng.choice([*self.dtypes, *self.dtypes, rng.choice(DTYPES)])
        size = math.prod(shape) * itemsize(dtype)
        if (
            math.prod(shape) > self.threads * MOST_REGISTERS or size > MOST_SHARED
        ):  # an exchange needs as much shared memory
            scope = "shared"
        if scope == "shared":
            if self.shared_bytes + size > MOST_SHARED:
                return []
            self.shared_bytes += size
        name = self.fresh(scope[0])
        buffer = m.Buffer(name, scope, dtype, tuple(shape), tuple(labels), name)
        self.buffers.append(buffer)
        return [m.Allocate(buffer)]

    def is_ready(self, buffer: m.Buffer) -> bool:
        return buffer.storage in self.ready

    def own_starts(self, buffer: m.Buffer) -> tuple[m.Expression, ...]:
        """Where the block's own part of an output begins."""
        shifts = self.shifts[buffer.storage]
        return tuple(
            plus(self.block_starts[label], shift) if label else ZERO
            for label, shift in zip(buffer.labels, shifts, strict=True)
        )

    def is_private(self, buffer: m.Buffer) -> bool:
        """Whether blocks write parts of it, so that each must keep to its own."""
        return buffer.scope == "global" and buffer.storage in self.shared_storages

    def may_read(self, buffer: m.Buffer) -> bool:
        if buffer.scope != "global":
            return self.is_ready(buffer)
        tensor = next(t for t in self.tensors if t.buffer.name == buffer.name)
        return tensor.role != "empty" or buffer.storage in self.written_here or self.earlier_outputs

    def sources(self) -> list[m.Buffer]:
        on_chip = [b for b in [*self.buffers, *self.views.values()] if self.is_ready(b)]
        return [*on_chip, *(t.buffer for t in self.tensors if self.may_read(t.buffer) and self.rng.random() < 0.8)]

    def starts(self, buffer: m.Buffer, mapped: set[int], shift: bool = True) -> tuple[m.Expression, ...]:
        """Where a region of a buffer begins."""
        rng = self.rng
        if self.is_private(buffer):
            return self.own_starts(buffer)
        starts = []
        for position, (label, size) in enumerate(zip(buffer.labels, buffer.shape, strict=True)):
            if buffer.scope != "global":
                starts.append(ZERO if position in mapped else m.Number(rng.randrange(size), "int32"))
                continue
            start = ZERO
            if label and rng.random() < 0.95:
                start = self.swept.get(label, self.block_starts[label])
            if shift and rng.random() < 0.1:
                distance = rng.choice([-1, 1, 3, 8, 16, -8, size // 2])
                start = plus(start, distance if abs(distance) < size else 0)
            starts.append(ZERO if isinstance(start, m.Number) else start)
        return tuple(starts)

    # ------------------------------------------------------------ copies

    def load(self) -> list[m.Statement]:
        """Fills a whole on-chip buffer from somewhere."""
        targets = [b for b in self.buffers if not self.is_ready(b)] or self.buffers
        if not targets:
            return []
        target = self.rng.choice(targets)
        sources = self.sources()
        self.rng.shuffle(sources)
        for source in sources[:4]:
            if source.storage == target.storage:
                continue
            copy = self.copy(source, target, full=True)
            if copy is not None:
                self.ready.add(target.storage)
                return [copy]
        return self.fill(target, whole=True)

    def copy(self, source: m.Buffer, target: m.Buffer, full: bool = False) -> m.Statement | None:
        """A copy between some of the dimensions of both; ``full``: all of the target is written."""
        rng = self.rng
        limits = [
            tuple(
                (self.tiles[label] if self.is_private(b) else 256) if b.scope == "global" and label else size
                for label, size in zip(b.labels, b.shape, strict=True)
            )
            for b in (source, target)
        ]
        if not full and not self.is_private(target) and target.scope == "global":
            return None
        found = match(rng, source, target, limits[0], limits[1], full)
        if found is None:
            return None
        source_extents, target_extents = found
        if math.prod(target_extents) > min(8192, self.threads * 128):
            return None
        sides = []
        for buffer, extents in ((source, source_extents), (target, target_extents)):
            mapped = {p for p, extent in enumerate(extents) if extent > 1} | ({*range(len(extents))} if full else set())
            if buffer.scope != "global" and full and buffer is target:
                starts = tuple(ZERO for _ in extents)
            else:
                starts = self.starts(buffer, mapped)
            if buffer.scope != "global":
                starts = tuple(
                    s
                    if s != ZERO or size == extent or rng.random() < 0.5
                    else m.Number(rng.randint(0, size - extent), "int32")
                    for s, size, extent in zip(starts, buffer.shape, extents, strict=True)
                )
            bounds = zip(starts, extents, buffer.shape, strict=True)
            if any(isinstance(start, m.Number) and start.value + extent > size for start, extent, size in bounds):
                return None  # an error at the user's line
            sides.append(m.Region(buffer, starts, extents, "slice"))
        first, second = region_form(rng, sides[0], sides[1], self.named_sizes(source), self.named_sizes(target))
        options: list[tuple[str, object]] = []
        if rng.random() < 0.06:
            options.append(("disable_tma", True))
        if rng.random() < 0.06:
            options.append(("coalesced_width", rng.choice([1, 2, 4])))
        if target.scope == "global":
            self.written_here.add(target.storage)
        return m.Copy(first, second, tuple(options))

    def named_sizes(self, buffer: m.Buffer) -> bool:
        return any(not text.isdigit() for text in buffer.declared)

    def fill(self, target: m.Buffer, whole: bool) -> list[m.Statement]:
        rng = self.rng
        extents = target.shape if whole else tuple(rng.randint(1, size) for size in target.shape)
        starts = tuple(m.Number(rng.randint(0, s - e), "int32") for s, e in zip(target.shape, extents, strict=True))
        region = m.Region(target, starts, extents, "whole" if whole else "slice")
        if whole:
            self.ready.add(target.storage)
        if rng.random() < 0.3:
            return [m.Fill(region, None)]
        scalars = [name for name in self.names if rng.random() < 0.3]
        value = scalars[0] if scalars else self.expressions.number(rng.choice(["int32", "float32", target.dtype]))
        return [m.Fill(region, value)]

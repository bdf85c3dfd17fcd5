"""Draws the body of one kernel: on-chip buffers, copies in all directions, parallel loops, control flow around them."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from tests.random_programs import model as m
from tests.random_programs.draw_expressions import ZERO, ExpressionDrawer, Readable, Surroundings, as_dtype, plus
from tests.random_programs.draw_regions import fits_point, match, region_form
from tests.random_programs.numbers import DTYPES, itemsize

if TYPE_CHECKING:
    from tests.random_programs.generator import Dimension

THREADS = (32, 64, 96, 128, 128, 128, 160, 256, 256, 512, 1024)
MOST_SHARED = 40_000
MOST_TILE = 4096
MOST_REGISTERS = 96
"""Elements of a tile for each thread."""


class KernelDrawer:
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

    def fresh(self, stem: str) -> str:
        self.counter += 1
        return f"{self.prefix}{stem}{self.counter}"

    # ------------------------------------------------------------ the launch

    def draw(self) -> m.Kernel:
        rng = self.rng
        self.threads = rng.choice((128, 128, 256) if self.specialized and rng.random() < 0.7 else THREADS)
        self.tiles = self.draw_tiles()
        grid, blocks, prologue = self.draw_grid()
        outputs = [t for t in self.tensors if t.buffer.name.startswith("C")]
        self.outputs = {t.buffer.name for t in outputs}
        self.shared_storages = {t.buffer.storage for t in outputs}
        for tensor in self.tensors:
            count = len(tensor.buffer.shape)
            self.shifts[tensor.buffer.storage] = tuple(0 for _ in range(count))
            if tensor.buffer.storage in self.shared_storages and rng.random() < 0.1:
                self.shifts[tensor.buffer.storage] = tuple(
                    min(rng.choice([0, 1, 4]), s - 1) for s in tensor.buffer.shape
                )
        body: list[m.Statement] = [*prologue]
        for _ in range(rng.randint(1, 4)):
            body += self.allocate()
        for _ in range(rng.randint(1, 3)):
            body += self.load()
        for _ in range(rng.randint(1, 5)):
            body += self.statement()
        for tensor in outputs:
            body += self.write_output(tensor)
        return m.Kernel(grid, blocks, self.threads, tuple(body))

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
        if math.prod(shape) > self.threads * MOST_REGISTERS or size > MOST_SHARED:  # an exchange needs as much shared memory
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
            start = self.block_starts[label] if label and rng.random() < 0.95 else ZERO
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

    # ------------------------------------------------------------ parallel loops

    def parallel(self, target: m.Buffer) -> list[m.Statement]:
        """A parallel loop that writes ``target``, and perhaps another buffer."""
        rng = self.rng
        positions = [p for p, label in enumerate(target.labels) if label is not None and not self.is_batch(label)]
        partial = rng.random() < 0.15
        if partial and len(positions) > 1:
            positions = rng.sample(positions, rng.randint(1, len(positions)))
        axes: dict[str, tuple[m.Name, int]] = {}
        order = positions[:]
        if rng.random() < 0.15:
            rng.shuffle(order)
        for position in order:
            label = target.labels[position]
            assert label is not None
            extent = self.tiles[label] if target.scope == "global" else target.shape[position]
            if rng.random() < 0.1:
                extent = rng.randint(1, extent)
                partial = True
            axes[label] = (m.Name(self.fresh("ijk"[len(axes) % 3]), "int32"), extent)
        if not axes:
            return []
        targets = [target]
        others = [b for b in [*self.buffers, *(t.buffer for t in self.tensors)] if self.may_write(b, axes, targets)]
        if others and rng.random() < 0.3:
            targets.append(rng.choice(others))
        stores = [(t, self.store_indices(t, axes)) for t in targets]
        full = not partial and target.scope != "global" and len(axes) == len(target.labels)
        around = self.surroundings(axes, stores, full)
        body = self.parallel_body(around, stores, full)
        for buffer, _ in stores:
            if buffer.scope == "global":
                self.written_here.add(buffer.storage)
        if full and math.prod(target.shape) == math.prod(extent for _, extent in axes.values()):
            self.ready.add(target.storage)
        names = tuple(name.name for name, _ in axes.values())
        return [m.Parallel(names, tuple(extent for _, extent in axes.values()), tuple(body))]

    def is_batch(self, label: str) -> bool:
        return self.dimensions[label].batch

    def may_write(self, buffer: m.Buffer, axes: dict[str, tuple[m.Name, int]], targets: list[m.Buffer]) -> bool:
        if any(buffer.storage == other.storage for other in targets):
            return False
        if buffer.scope == "global" and not (self.is_private(buffer) and buffer.name in self.outputs):
            return False
        labels = [label for label in buffer.labels if label is not None]
        return set(axes) <= set(labels) and all(axes[label][1] <= self.tiles[label] for label in axes)

    def store_indices(self, buffer: m.Buffer, axes: dict[str, tuple[m.Name, int]]) -> tuple[m.Expression, ...]:
        rng = self.rng
        own = self.own_starts(buffer) if buffer.scope == "global" else tuple(ZERO for _ in buffer.shape)
        indices = []
        for start, label, size in zip(own, buffer.labels, buffer.shape, strict=True):
            if label in axes:
                indices.append(plus(start, axes[label][0]))
            elif buffer.scope == "global":
                indices.append(
                    start if label is None or self.tiles[label] == 1 else plus(start, rng.randrange(self.tiles[label]))
                )
            else:
                indices.append(m.Number(rng.randrange(size), "int32"))
        return tuple(indices)

    def surroundings(
        self, axes: dict[str, tuple[m.Name, int]], stores: list[tuple[m.Buffer, tuple[m.Expression, ...]]], full: bool
    ) -> Surroundings:
        around = Surroundings(names=list(self.names), axes=dict(axes), contraction=self.contraction)
        written = {buffer.storage: (buffer, indices) for buffer, indices in stores}
        for buffer in self.sources():
            starts = tuple(ZERO for _ in buffer.shape)
            if buffer.storage in written:
                same, indices = written[buffer.storage]
                if same.shape == buffer.shape and (buffer.scope == "global") == (same.scope == "global"):
                    around.readable.append(Readable(buffer, starts, indices))
            elif self.is_private(buffer):
                around.readable.append(Readable(buffer, starts, self.store_indices(buffer, axes)))
            else:
                if buffer.scope == "global":
                    starts = self.starts(buffer, set())
                around.readable.append(Readable(buffer, starts))
        return around

    def parallel_body(
        self, around: Surroundings, stores: list[tuple[m.Buffer, tuple[m.Expression, ...]]], full: bool
    ) -> list[m.Statement]:
        rng = self.rng
        body: list[m.Statement] = []
        for _ in range(rng.choice([0, 0, 1, 2])):
            body += self.local(around)
        for position, (buffer, indices) in enumerate(stores):
            value = self.expressions.draw(around, rng.choice([1, 2, 2, 3]))
            store = m.Store(buffer, indices, value)
            draw = rng.random()
            if draw < 0.2 and not (full and position == 0):
                body.append(m.If(self.expressions.condition(around, 1), (store,)))
            elif draw < 0.3:
                other = m.Store(buffer, indices, self.expressions.draw(around, 1))
                body.append(m.If(self.expressions.condition(around, 1), (store,), (other,)))
            else:
                body.append(store)
        return body

    def local(self, around: Surroundings) -> list[m.Statement]:
        """A scalar of the iteration: bound once, rebound under a condition, or accumulated by a loop."""
        rng = self.rng
        value = self.expressions.variable(around, 1)
        name = m.Name(self.fresh("v"), value.dtype)
        statements: list[m.Statement] = [m.Assign(name.name, value)]
        draw = rng.random()
        inside = Surroundings(around.readable, [*around.names, name], dict(around.axes), around.contraction)
        if draw < 0.3:
            new = as_dtype(self.expressions.variable(inside, 1), value.dtype)
            statements.append(m.If(self.expressions.condition(around, 1), (m.Assign(name.name, new),)))
        elif draw < 0.6:
            step = m.Name(self.fresh("k"), "int32")
            inside.names.append(step)
            new = as_dtype(self.expressions.binary(inside, 1), value.dtype)
            kind = rng.choice(["range", "serial", "unroll"])
            stop: m.Expression = m.Number(rng.choice([0, 1, 2, 3, 5, 8]), "int32")
            if rng.random() < 0.15:
                stop = m.Binary("floormod", next(iter(around.axes.values()))[0], m.Number(4, "int32"))
            statements.append(m.Loop(kind, step.name, ZERO, stop, 1, (m.Assign(name.name, new),)))
        around.names.append(name)
        return statements

    # ------------------------------------------------------------ statements of the block

    def statement(self) -> list[m.Statement]:
        rng = self.rng
        draw = rng.random()
        targets = self.buffers
        if draw < 0.3 and targets:
            return self.parallel(rng.choice(targets))
        if draw < 0.45 and targets:
            source, target = rng.choice(self.sources() or targets), rng.choice(targets)
            if self.may_read(source) and source.storage != target.storage and self.is_ready(target):
                copy = self.copy(source, target)
                return [copy] if copy else []
            return self.load()
        if draw < 0.52 and targets:
            target = rng.choice(targets)
            return self.fill(target, whole=not self.is_ready(target) or rng.random() < 0.5)
        if draw < 0.6:
            return self.write_output(rng.choice([t for t in self.tensors if t.buffer.name in self.outputs]))
        if draw < 0.66:
            return self.view()
        if draw < 0.74:
            return self.scalar()
        if draw < 0.9 and self.depth < 2:
            return self.loop()
        if self.depth < 2:
            return self.condition()
        return []

    def write_output(self, tensor: m.Tensor) -> list[m.Statement]:
        sources = [b for b in [*self.buffers, *self.views.values()] if self.is_ready(b)]
        self.rng.shuffle(sources)
        if self.rng.random() < 0.6:
            for source in sources:
                copy = self.copy(source, tensor.buffer)
                if copy is not None:
                    return [copy]
        return self.parallel(tensor.buffer)

    def view(self) -> list[m.Statement]:
        """A reshaped or reinterpreted on-chip buffer."""
        rng = self.rng
        candidates = [b for b in self.buffers if self.is_ready(b)]
        if not candidates or self.depth:
            return []
        source = rng.choice(candidates)
        total = math.prod(source.shape)
        first = rng.choice([f for f in range(1, total + 1) if total % f == 0])
        shape, dtype = (first, total // first), source.dtype
        twins = {"int32": "uint32", "uint32": "int32", "int16": "uint16", "uint8": "int8", "int64": "uint64"}
        if dtype in twins and source.scope == "shared" and rng.random() < 0.5:
            dtype = twins[dtype]
        name = self.fresh("w")
        buffer = m.Buffer(name, source.scope, dtype, shape, (None, None), source.storage)
        self.views[name] = buffer
        return [m.ViewOf(buffer, source)]

    def block_surroundings(self) -> Surroundings:
        around = Surroundings(names=list(self.names), contraction=self.contraction)
        for buffer in self.sources():
            if buffer.scope == "fragment":
                continue
            if self.is_private(buffer):
                around.readable.append(Readable(buffer, self.own_starts(buffer), self.own_starts(buffer)))
            else:
                around.readable.append(Readable(buffer, self.starts(buffer, set(), shift=False)))
        return around

    def scalar(self) -> list[m.Statement]:
        """A scalar of the block, or a store of one element."""
        rng = self.rng
        around = self.block_surroundings()
        outputs = [t.buffer for t in self.tensors if t.buffer.name in self.outputs]
        if rng.random() < 0.3:
            buffer = rng.choice(outputs)
            self.written_here.add(buffer.storage)
            return [m.Store(buffer, self.own_starts(buffer), self.expressions.draw(around, 1))]
        value = self.expressions.variable(around, 1)
        name = self.fresh("x")
        if self.depth == 0:
            self.names.append(m.Name(name, value.dtype))
        return [m.Assign(name, value, variable=rng.random() < 0.3)]

    def nested(self, count: int) -> tuple[m.Statement, ...]:
        """A body that may not run: what becomes ready in it is not ready afterwards."""
        ready, names, written, views = set(self.ready), list(self.names), set(self.written_here), dict(self.views)
        self.depth += 1
        body = [node for _ in range(count) for node in self.statement()]
        self.depth -= 1
        self.ready, self.names, self.written_here, self.views = ready, names, written, views
        return tuple(body)

    def condition(self) -> list[m.Statement]:
        test = self.expressions.condition(self.block_surroundings(), 1)
        then = self.nested(self.rng.randint(1, 2))
        otherwise = self.nested(1) if self.rng.random() < 0.4 else ()
        return [m.If(test, then, otherwise)] if then else []

    def loop(self) -> list[m.Statement]:
        rng = self.rng
        step = m.Name(self.fresh("k"), "int32")
        stop: m.Expression = m.Number(rng.choice([0, 1, 2, 3, 4]), "int32")
        counts = [name for name in self.names if name.dtype == "int32" and not name.name.startswith("k")]
        if counts and rng.random() < 0.3:
            stop = m.Binary("min", m.Binary("and", rng.choice(counts), m.Number(7, "int32")), m.Number(4, "int32"))
        carried: list[m.Statement] = []
        update: list[m.Statement] = []
        names = list(self.names)
        if rng.random() < 0.35:
            start = self.expressions.variable(self.block_surroundings(), 1)
            total = m.Name(self.fresh("x"), start.dtype)
            carried.append(m.Assign(total.name, start))
            self.names += [total, step]
            new = as_dtype(self.expressions.binary(self.block_surroundings(), 1), start.dtype)
            update.append(m.Assign(total.name, new))
            names.append(total)
        else:
            self.names.append(step)
        swept = self.sweep(step)
        body = [*self.nested(rng.randint(1, 3)), *update]
        self.block_starts.update(swept)
        self.names = names
        if rng.random() < 0.1:
            body.append(m.Leave(self.expressions.condition(self.block_surroundings(), 0)))
        if not body:
            return carried
        draw = rng.random()
        if draw < 0.08:
            return [*carried, m.Assign(step.name, m.Number(0, "int32")), m.While(step.name, stop, tuple(body))]
        kind = rng.choice(["range", "serial", "serial", "unroll", "pipelined"])
        if any(isinstance(node, m.Leave) for node in body):
            kind = "serial"
        first, stride = ZERO, 1
        if kind in ("range", "serial") and rng.random() < 0.15 and isinstance(stop, m.Number):
            first, stride = stop, -1
            stop = m.Number(0, "int32")
        return [*carried, m.Loop(kind, step.name, first, stop, stride, tuple(body))]

    def sweep(self, step: m.Name) -> dict[str, m.Expression]:
        """Perhaps lets inputs be read along the loop instead of at the block's place; what to restore."""
        return {}


__all__ = ["KernelDrawer", "fits_point"]

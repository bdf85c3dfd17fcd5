"""Draws the body of one kernel: copies in all directions, parallel loops, and the control flow around them."""

from __future__ import annotations

import math

from tests.random_programs import model as m
from tests.random_programs.draw_expressions import ZERO, Readable, Surroundings, as_dtype
from tests.random_programs.draw_parallel import ParallelDrawer

MOST_HELD = 128
"""Elements of a fragment of which single ones are used."""

THREADS = (32, 64, 96, 128, 128, 128, 160, 256, 256, 512, 1024)


class KernelDrawer(ParallelDrawer):
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
                if self.has_elements(buffer):
                    element = self.element(buffer)
                    is_fixed = all(isinstance(index, m.Number) for index in element)
                    around.readable.append(Readable(buffer, element, element if is_fixed else None))
                continue
            if self.is_private(buffer):
                around.readable.append(Readable(buffer, self.own_starts(buffer), self.own_starts(buffer)))
            else:
                around.readable.append(Readable(buffer, self.starts(buffer, set(), shift=False)))
        return around

    def has_elements(self, buffer: m.Buffer) -> bool:
        """Whether a block may use elements of a fragment: every thread then holds all of it."""
        held = math.prod(next(b for b in self.buffers if b.storage == buffer.storage).shape)
        return held <= MOST_HELD and self.rng.random() < 0.3

    def element(self, buffer: m.Buffer) -> tuple[m.Expression, ...]:
        """Constant indices, or those of a loop around."""
        steps = [name for name in self.names if name.name.removeprefix(self.prefix).startswith("k")]
        indices: list[m.Expression] = []
        for size in buffer.shape:
            step = self.rng.choice(steps) if steps and self.rng.random() < 0.6 else None
            constant = m.Number(self.rng.randrange(size), "int32")
            indices.append(constant if step is None else m.Binary("floormod", step, m.Number(size, "int32")))
        return tuple(indices)

    def scalar(self) -> list[m.Statement]:
        """A scalar of the block, or a store of one element."""
        rng = self.rng
        around = self.block_surroundings()
        tables = [b for b in self.buffers if b.scope == "fragment" and self.is_ready(b) and self.has_elements(b)]
        if tables:
            table = rng.choice(tables)
            return [m.Store(table, self.element(table), self.expressions.draw(around, 1))]
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
        outer = self.swept
        self.sweep(step)
        body = [*self.nested(rng.randint(1, 3)), *update]
        self.swept = outer
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

    def sweep(self, step: m.Name) -> None:
        """Perhaps lets inputs be read along the loop instead of at the block's place."""
        labels = [label for label, dimension in self.dimensions.items() if not dimension.batch]
        if labels and self.rng.random() < 0.5:
            label = self.rng.choice(labels)
            self.swept = {**self.swept, label: m.Binary("mul", step, m.Number(self.tiles[label], "int32"))}

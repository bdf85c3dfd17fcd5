"""Draws parallel loops: what they write, what they may read, the scalars of an iteration."""

from __future__ import annotations

import math

from tests.random_programs import model as m
from tests.random_programs.draw_buffers import BufferDrawer
from tests.random_programs.draw_expressions import ZERO, Readable, Surroundings, as_dtype, plus


class ParallelDrawer(BufferDrawer):
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

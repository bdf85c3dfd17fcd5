"""Draws expressions: element reads, arithmetic, comparisons, choices, casts, integer and bit operations."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from tests.random_programs import model as m
from tests.random_programs.numbers import DTYPES, FLOATS, INTEGERS, itemsize

ZERO = m.Number(0, "int32")


def plus(left: m.Expression, right: m.Expression | int) -> m.Expression:
    """left + right, without additions of 0."""
    right = m.Number(right, "int32") if isinstance(right, int) else right
    if right == ZERO:
        return left
    if left == ZERO:
        return right
    if isinstance(left, m.Number) and isinstance(right, m.Number):
        return m.Number(int(left.value + right.value), "int32")
    return m.Binary("add", left, right)


def as_dtype(value: m.Expression, dtype: str) -> m.Expression:
    return value if value.dtype == dtype else m.Cast(value, dtype)


@dataclass
class Readable:
    """A buffer that an expression may read. ``starts``: where the block's part of it begins, by dimension. ``only``:
    the one element that an iteration may read, because the loop or another block writes the rest."""

    buffer: m.Buffer
    starts: tuple[m.Expression, ...]
    only: tuple[m.Expression, ...] | None = None


@dataclass
class Surroundings:
    """What an expression may use. ``axes``: loop variables by label, with their extents. ``contraction``: whether
    products may be contracted into sums, so that a float product must not feed a sum."""

    readable: list[Readable] = field(default_factory=list)
    names: list[m.Name] = field(default_factory=list)
    axes: dict[str, tuple[m.Name, int]] = field(default_factory=dict)
    contraction: bool = False


class ExpressionDrawer:
    def __init__(self, rng: random.Random, dtypes: list[str]) -> None:
        self.rng = rng
        self.dtypes = dtypes

    # ------------------------------------------------------------ leaves

    def number(self, dtype: str) -> m.Number:
        rng = self.rng
        if dtype == "bool":
            return m.Number(rng.random() < 0.5, dtype)
        if dtype in FLOATS:
            return m.Number(rng.choice([0.0, 1.0, -1.0, 0.5, 2.0, -3.25, 100.0, rng.randint(-64, 64) / 8]), dtype)
        low = 0 if dtype.startswith("u") else -128
        return m.Number(rng.choice([0, 1, 2, 3, 7, 8, 16, rng.randint(low, 127)]), dtype)

    def index(self, read: Readable, position: int, around: Surroundings) -> m.Expression:
        """An index along one dimension; mostly the place that belongs to the iteration. A constant one is in range."""
        index = self._index(read, position, around)
        return m.Number(index.value % read.buffer.shape[position], "int32") if isinstance(index, m.Number) else index

    def _index(self, read: Readable, position: int, around: Surroundings) -> m.Expression:
        rng = self.rng
        label, size = read.buffer.labels[position], read.buffer.shape[position]
        names = [name for name, _ in around.axes.values()]
        if label in around.axes and rng.random() < 0.93:
            index = plus(read.starts[position], around.axes[label][0])
            extent = around.axes[label][1]
            if rng.random() < 0.12 and min(extent, size) > 2:
                index = plus(index, rng.choice([-2, -1, 1, 2, min(extent, size) // 2]))
            return index
        if names and rng.random() < 0.25:
            chosen = rng.choice(names)
            if rng.random() < 0.3:
                return m.Binary(
                    rng.choice(["floormod", "floordiv"]), chosen, m.Number(rng.choice([2, 3, 4, 7]), "int32")
                )
            return chosen
        integers = [name for name in around.names if name.dtype == "int32"]
        if integers and rng.random() < 0.2:
            return m.Binary("floormod", rng.choice(integers), m.Number(size, "int32"))
        return plus(read.starts[position], m.Number(rng.randrange(min(size, 4)), "int32"))

    def read(self, around: Surroundings) -> m.Expression | None:
        """An element of a buffer."""
        if not around.readable:
            return None
        read = self.rng.choice(around.readable)
        if read.only is not None:
            return m.Read(read.buffer, read.only)
        indices = [self.index(read, position, around) for position in range(len(read.buffer.shape))]
        if self.rng.random() < 0.06 and read.buffer.scope != "fragment":
            gather = self.gather(around)
            position = self.rng.randrange(len(indices))
            if gather is not None:
                indices[position] = gather
        return m.Read(read.buffer, tuple(indices))

    def gather(self, around: Surroundings) -> m.Expression | None:
        """An index that is itself read from a buffer."""
        tables = [
            r
            for r in around.readable
            if r.buffer.dtype in INTEGERS and itemsize(r.buffer.dtype) <= 4 and r.only is None
        ]
        if not tables:
            return None
        read = self.rng.choice(tables)
        indices = [self.index(read, position, around) for position in range(len(read.buffer.shape))]
        value = as_dtype(m.Read(read.buffer, tuple(indices)), "int32")
        return m.Binary("and", value, m.Number(self.rng.choice([3, 7, 15]), "int32"))

    def leaf(self, around: Surroundings) -> m.Expression:
        rng = self.rng
        draw = rng.random()
        if draw < 0.72:
            found = self.read(around)
            if found is not None:
                return found
        names = [*around.names, *(name for name, _ in around.axes.values())]
        if names and draw < 0.9:
            return rng.choice(names)
        return self.number(rng.choice(["int32", "float32", rng.choice(self.dtypes)]))

    # ------------------------------------------------------------ trees

    def draw(self, around: Surroundings, depth: int) -> m.Expression:
        """Any dtype."""
        rng = self.rng
        if depth <= 0 or rng.random() < 0.12:
            return self.leaf(around)
        kind = rng.random()
        if kind < 0.5:
            return self.binary(around, depth)
        if kind < 0.62:
            return self.unary(around, depth)
        if kind < 0.76:
            return m.Cast(self.variable(around, depth - 1), rng.choice([*self.dtypes, rng.choice(DTYPES)]))
        if kind < 0.9:
            return self.choice(around, depth)
        return self.condition(around, depth - 1)

    def variable(self, around: Surroundings, depth: int) -> m.Expression:
        """Not a plain number, so that Python does not compute it."""
        for _ in range(4):
            found = self.draw(around, depth)
            if not isinstance(found, m.Number):
                return found
        for _ in range(4):
            found = self.leaf(around)
            if not isinstance(found, m.Number):
                return found
        return (
            m.Cast(m.Cast(self.number("int32"), "int64"), "int32")
            if not around.axes
            else next(iter(around.axes.values()))[0]
        )

    def pair(self, around: Surroundings, depth: int) -> tuple[m.Expression, m.Expression]:
        left, right = self.variable(around, depth), self.draw(around, depth)
        return (left, right) if self.rng.random() < 0.6 else (right, left)

    def binary(self, around: Surroundings, depth: int) -> m.Expression:
        rng = self.rng
        left, right = self.pair(around, depth - 1)
        if rng.random() < 0.35:
            return self.integer_operation(around, depth)
        if "bool" in (left.dtype, right.dtype) and rng.random() < 0.5 and left.dtype == right.dtype:
            return m.Binary(rng.choice(["and", "or", "xor"]), left, right)
        operator = rng.choice(["add", "sub", "mul", "min", "max", "add", "sub", "div"])
        result = m.Binary(operator, left, right)
        if around.contraction and result.dtype in FLOATS and operator in ("mul", "div"):
            return m.Binary(rng.choice(["min", "max"]), left, right)
        return result

    def integer_operation(self, around: Surroundings, depth: int) -> m.Expression:
        rng = self.rng
        dtype = rng.choice([d for d in [*self.dtypes, "int32"] if d in INTEGERS])
        left = as_dtype(self.variable(around, depth - 1), dtype)
        operator = rng.choice(["and", "or", "xor", "shl", "shr", "floordiv", "floormod", "truncdiv", "truncmod"])
        if operator in ("shl", "shr"):
            count = m.Number(rng.randint(0, itemsize(dtype) * 8 + 1), dtype)
            if rng.random() < 0.3:
                other = as_dtype(self.variable(around, depth - 1), dtype)
                return m.Binary(operator, left, m.Binary("and", other, m.Number(rng.choice([7, 15, 31]), dtype)))
            return m.Binary(operator, left, count)
        if operator in ("and", "or", "xor"):
            right = self.number(dtype) if rng.random() < 0.4 else as_dtype(self.variable(around, depth - 1), dtype)
            return m.Binary(operator, left, right)
        divisor: m.Expression = m.Number(rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 10]), dtype)
        if rng.random() < 0.25:
            other = as_dtype(self.variable(around, depth - 1), dtype)
            divisor = m.Binary("or", other, m.Number(1, dtype))
        elif rng.random() < 0.25 and not dtype.startswith("u"):
            divisor = m.Number(-int(divisor.value), dtype)  # type: ignore[attr-defined]
        return m.Binary(operator, left, divisor)

    def unary(self, around: Surroundings, depth: int) -> m.Expression:
        rng = self.rng
        operand = self.variable(around, depth - 1)
        if operand.dtype in FLOATS:
            operator = rng.choice(["neg", "abs", "floor", "ceil", "trunc", "rint", "isnan", "sqrt"])
            if operator == "sqrt":
                return m.Unary("sqrt", m.Unary("abs", operand))
            return m.Unary(operator, operand)
        return m.Unary(rng.choice(["neg", "abs", "not"]), operand)

    def choice(self, around: Surroundings, depth: int) -> m.Expression:
        condition = self.condition(around, depth - 1)
        if_true, if_false = self.pair(around, depth - 1)
        return m.Choice(condition, if_true, if_false, ternary=self.rng.random() < 0.5)

    def condition(self, around: Surroundings, depth: int) -> m.Expression:
        """A bool."""
        rng = self.rng
        if depth > 0 and rng.random() < 0.25:
            left, right = self.condition(around, depth - 1), self.condition(around, depth - 1)
            if rng.random() < 0.6:
                return m.Logical(rng.choice(["and", "or"]), left, right)
            return m.Binary(rng.choice(["and", "or", "xor"]), left, right)
        left, right = self.pair(around, max(0, depth - 1))
        compared = m.Binary(rng.choice(["eq", "ne", "lt", "le", "gt", "ge"]), left, right)
        return m.Unary("not", compared) if rng.random() < 0.1 else compared

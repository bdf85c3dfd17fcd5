"""Random integer expressions over bounded variables, and their evaluation with Python integers.

The evaluator is written from the semantics in ``ptxtile.ir.expressions`` and shares nothing with what is tested.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Self

from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.expressions import (
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    LogicalAnd,
    LogicalOr,
    Select,
    Unary,
    Var,
    cast,
    compare,
    constant,
    select,
)
from ptxtile.ir.types import DType, Kind, int8, int32, int64, uint8, uint32

Memory = dict[str, list[int]]


class Unspecified(Exception):
    """A division by zero was evaluated."""


def wrap(value: int, dtype: DType) -> int:
    if dtype.kind is Kind.BOOL:
        return int(value != 0)
    value %= 2**dtype.bits
    return value - 2**dtype.bits if dtype.kind is Kind.INT and value >= 2 ** (dtype.bits - 1) else value


def evaluate(e: Expr, values: dict[str, int], memory: Memory | None = None) -> int:
    """The value of an integer or bool expression; loads read ``memory``, lists of elements by storage name."""

    def value(x: Expr) -> int:
        return evaluate(x, values, memory)

    match e:
        case Const():
            return int(e.value)
        case Var():
            return values[e.name]
        case Load():
            assert memory is not None
            return memory[e.buffer.storage.name][value(e.indices[0]) if e.indices else 0]
        case Cast():
            return wrap(value(e.operand), e.dtype)
        case Select():
            return value(e.if_true if value(e.condition) else e.if_false)
        case LogicalAnd():
            return value(e.left) and value(e.right)
        case LogicalOr():
            return value(e.left) or value(e.right)
        case Unary():
            x = value(e.operand)
            if e.operator == "not" and e.dtype.is_bool:
                return 1 - x
            return wrap({"neg": -x, "abs": abs(x), "not": ~x}[e.operator], e.dtype)
        case Compare():
            a, b = value(e.left), value(e.right)
            return int({"eq": a == b, "ne": a != b, "lt": a < b, "le": a <= b, "gt": a > b, "ge": a >= b}[e.operator])
        case Binary():
            return wrap(_binary(e, value(e.left), value(e.right)), e.dtype)
    raise TypeError(e)


def _binary(e: Binary, a: int, b: int) -> int:
    match e.operator:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "min":
            return min(a, b)
        case "max":
            return max(a, b)
        case "and":
            return a & b
        case "or":
            return a | b
        case "xor":
            return a ^ b
        case "shl":
            return a << b if 0 <= b < e.dtype.bits else 0
        case "shr":
            return a >> b if 0 <= b < e.dtype.bits else -int(a < 0)
    if b == 0:
        raise Unspecified
    match e.operator:
        case "floordiv":
            return a // b
        case "floormod":
            return a - (a // b) * b
        case "truncdiv":
            return int(_truncated(a, b))
        case "truncmod":
            return a - _truncated(a, b) * b
    raise TypeError(e.operator)


def _truncated(a: int, b: int) -> int:
    return a // b if a % b == 0 or (a < 0) == (b < 0) else a // b + 1


@dataclass
class Variable:
    var: Var
    lower: int
    upper: int
    divisor: int = 1
    remainder: int = 0

    def sample(self, rng: random.Random) -> int:
        choices = [self.lower, self.upper, rng.randint(self.lower, self.upper)]
        if self.lower <= 0 <= self.upper:
            choices.append(0)
        value = rng.choice(choices)
        value += (self.remainder - value) % self.divisor
        return value if value <= self.upper else value - self.divisor


@dataclass
class Space:
    """A set of bounded variables, and expressions over them."""

    rng: random.Random
    variables: list[Variable] = field(default_factory=list)
    constant_divisors: float = 0.85

    @classmethod
    def random(cls, seed: int) -> Self:
        rng = random.Random(seed)
        space = cls(rng)
        for number in range(rng.randint(1, 4)):
            space.variables.append(space._variable(number))
        return space

    def _variable(self, number: int) -> Variable:
        rng = self.rng
        dtype = rng.choice([int32, int32, int32, int32, int64, uint32, uint8, int8])
        shape = rng.randrange(6)
        if shape < 3:  # an index
            lower, upper = 0, rng.choice([0, 1, 3, 7, 15, 31, 63, 127, 99, 1023])
        elif shape == 3:
            lower, upper = sorted(rng.randint(-40, 40) for _ in range(2))
        elif shape == 4:  # near the ends of the dtype
            lower, upper = sorted(dtype.maximum - rng.choice([0, 1, 3, 63, 64, 2**20]) for _ in range(2))
        else:
            lower, upper = dtype.minimum, dtype.maximum
        lower, upper = (min(max(bound, dtype.minimum), dtype.maximum) for bound in (lower, upper))
        divisor = rng.choice([1, 1, 1, 2, 4, 16, 3])
        remainder = rng.randrange(divisor)
        variable = Variable(Var(f"x{number}", dtype), lower, upper, divisor, remainder)
        if not lower <= lower + (remainder - lower) % divisor <= upper:
            variable.divisor, variable.remainder = 1, 0
        return variable

    def bind(self, analyzer: Analyzer) -> None:
        for v in self.variables:
            analyzer.bind(v.var, v.lower, v.upper, v.divisor, v.remainder)

    def assignment(self) -> dict[str, int]:
        return {v.var.name: v.sample(self.rng) for v in self.variables}

    def leaf(self) -> Expr:
        return self.rng.choice(self.variables).var

    def integer(self, depth: int, dtype: DType = int32) -> Expr:
        rng = self.rng
        if depth == 0 or rng.random() < 0.1:
            if rng.random() < 0.3:
                return constant(
                    rng.choice([0, 1, 2, 3, 4, 5, 8, 16, 63, 64, -1, -2, -4, 2**31 - 1, -(2**31), 7]), dtype
                )
            return cast(self.leaf(), dtype)
        kind = rng.randrange(20)
        if kind < 6:
            operator = rng.choice(["add", "add", "sub"])
            return Binary(operator, self.integer(depth - 1, dtype), self.integer(depth - 1, dtype), dtype)
        if kind < 9:
            factor = constant(rng.choice([1, 2, 3, 4, 8, 64, 100, -1, -4, 2**16, 2**30]), dtype)
            return Binary("mul", self.integer(depth - 1, dtype), factor, dtype)
        if kind < 14:
            operator = rng.choice(["floordiv", "floormod", "floordiv", "floormod", "truncdiv", "truncmod"])
            divisor = constant(rng.choice([1, 2, 4, 4, 8, 16, 64, 3, 6, 7, 12, 100, -3, -4, 2**20]), dtype)
            right = divisor if rng.random() < self.constant_divisors else self.integer(depth - 1, dtype)
            return Binary(operator, self.integer(depth - 1, dtype), right, dtype)
        if kind == 14:
            operator = rng.choice(["min", "max", "and", "or", "xor", "mul"])
            return Binary(operator, self.integer(depth - 1, dtype), self.integer(depth - 1, dtype), dtype)
        if kind == 15:
            mask = constant(rng.choice([1, 3, 7, 28, 112, 255, 1023, -4, -16]), dtype)
            return Binary(rng.choice(["and", "xor", "or"]), self.integer(depth - 1, dtype), mask, dtype)
        if kind == 16:
            count = constant(rng.choice([0, 1, 2, 3, 6, 31, 32, -1]), dtype)
            return Binary(rng.choice(["shl", "shr"]), self.integer(depth - 1, dtype), count, dtype)
        if kind == 17:
            return Unary(rng.choice(["neg", "abs", "not"]), self.integer(depth - 1, dtype), dtype)
        if kind == 18:
            return select(self.condition(depth - 1), self.integer(depth - 1, dtype), self.integer(depth - 1, dtype))
        return cast(self.integer(depth - 1, rng.choice([int32, int64, uint32, int8, uint8])), dtype)

    def condition(self, depth: int) -> Expr:
        rng = self.rng
        kind = rng.randrange(6)
        if depth <= 0 or kind < 3:
            dtype = rng.choice([int32, int32, int32, int64, uint32])
            operator = rng.choice(["eq", "ne", "lt", "le", "gt", "ge"])
            return compare(operator, self.integer(max(depth - 1, 0), dtype), self.integer(max(depth - 1, 0), dtype))
        if kind == 3:
            return Unary("not", self.condition(depth - 1), compare("eq", 0, 0).dtype)
        cls = LogicalAnd if kind == 4 else LogicalOr
        return cls(self.condition(depth - 1), self.condition(depth - 1))

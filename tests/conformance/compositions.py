"""Cases of operators on results of operators, which a compiler might simplify wrongly: known temptations, and random
trees. LLVM's passes see these as they see a user's arithmetic."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache

import numpy as np

from ptxtile.ir import expressions as ir
from ptxtile.ir.expressions import Expr, Var, constant
from ptxtile.ir.types import DType, Kind, float16, float32, float64, int8, int32, int64
from tests.conformance import exact
from tests.conformance.cases import Case
from tests.conformance.operators import CONSTANTS, Operator, binary_names, case, unary_names
from tests.conformance.values import ARITHMETIC, triples

ELEMENTS = 2048
TREES = 48
DEPTH = 4
DIVISIONS = ("floordiv", "floormod", "truncdiv", "truncmod")
SAMPLE = 96
"""Elements that are also computed in plain Python, which is slow; the card is compared with the simulator on all."""


def float_temptations(a: Expr, b: Expr, c: Expr) -> dict[str, Expr]:
    """Each is what algebra would simplify, and floating point must not, or contraction would round otherwise."""
    dtype = a.dtype
    wide, narrow = (float64 if dtype != float64 else float32), (float16 if dtype != float16 else float32)
    zero, one = constant(0.0, dtype), constant(1.0, dtype)
    return {
        "multiply_add": a * b + c,
        "multiply_subtract": c - a * b,
        "add_and_back": (a + b) - b,
        "cancel": a - a,
        "times_zero": a * zero,
        "plus_zero": a + zero,
        "zero_minus": zero - a,
        "negated_difference": -(a - b),
        "smaller": ir.select(a.lt(b), a, b),
        "larger_or_equal": ir.select(a.ge(b), a, b),
        "magnitude": ir.select(a.lt(zero), -a, a),
        "reciprocal": (one / b) * a,
        "tenth": a / constant(10.0, dtype),
        "third_and_back": a / constant(3.0, dtype) * constant(3.0, dtype),
        "half": a / constant(2.0, dtype),
        "distributed": a * c + b * c,
        "square_root_squared": ir.unary("sqrt", a) * ir.unary("sqrt", a),
        "through_narrow": ir.cast(ir.cast(a, narrow), dtype),
        "narrow_sum": ir.cast(ir.cast(a, wide) + ir.cast(b, wide), dtype),
        "narrow_product": ir.cast(ir.cast(a, wide) * ir.cast(b, wide), dtype),
        "through_integer": ir.cast(ir.cast(a, int32), dtype),
        "whole": ir.unary("floor", a) - ir.unary("trunc", a),
        "difference_is_zero": ir.select((a - b).eq(zero), one, zero),
        "not_less": ir.select(ir.logical_not(a.lt(b)), a, c),
        "clamp": ir.binary("min", ir.binary("max", a, zero), one),
        "maximum_of_negated": -ir.binary("max", -a, -b),
        "fused_negative": ir.call("fma", -a, b, c),
    }


def integer_temptations(a: Expr, b: Expr, c: Expr) -> dict[str, Expr]:
    """Wrapping, shifts out of range, division of negative numbers, and extensions."""
    dtype = a.dtype

    def number(value: int) -> Expr:
        return constant(value, dtype)

    def operator(name: str, left: Expr, right: Expr) -> Expr:
        return ir.binary(name, left, right)

    return {
        "overflow_check": ir.select((a + b).lt(a), number(1), number(0)),
        "successor": ir.select((a + 1).gt(a), number(1), number(0)),
        "times_and_back": operator("truncdiv", a * number(3), number(3)),
        "divide_and_back": operator("truncdiv", a, number(7)) * number(7) + operator("truncmod", a, number(7)),
        "floor_by_8": operator("floordiv", a, number(8)),
        "floor_remainder_8": operator("floormod", a, number(8)),
        "trunc_by_8": operator("truncdiv", a, number(8)),
        "trunc_remainder_8": operator("truncmod", a, number(8)),
        "floor_by_10": operator("floordiv", a, number(10)),
        "floor_of_sum": operator("floordiv", a + 5, number(6)),
        "negative_divisor": operator("floordiv", a, -(b | number(1))),
        "shift_there_and_back": operator("shr", operator("shl", a, number(3)), number(3)),
        "shift_by_masked": operator("shl", a, b & number(7)),
        "rotate": operator("shl", a, c & number(7)) | operator("shr", a, number(dtype.bits) - (c & number(7))),
        "magnitude": ir.select(a.lt(number(0)), -a, a),
        "complement": (-a) - 1,
        "difference_of_sums": (a + 100) - (b - 27) + (c * number(3) - 9),
        "through_int8": ir.cast(ir.cast(a, int8), dtype),
        "through_int64": ir.cast(ir.cast(a, int64) * 3 + 1, dtype),
        "through_float": ir.cast(ir.cast(a, float32), dtype),
        "wide_product": ir.cast(operator("shr", ir.cast(a, int64) * ir.cast(b, int64), constant(8, int64)), dtype),
        "bound_of_minimum": operator("min", a, number(20)) + operator("max", b, number(3)),
        "parity": (a ^ b) & number(1),
        "is_power": ir.select((a & (a - 1)).eq(number(0)), number(1), number(0)),
    }


# --- random trees ---------------------------------------------------------------------------------------------------


class Grower:
    """Random expressions over a, b and c, with constants, conversions there and back, selects and comparisons."""

    def __init__(self, generator: np.random.Generator, dtype: DType) -> None:
        self.generator, self.dtype = generator, dtype
        self.leaves = [Var(name, dtype) for name in "abc"]

    def pick(self, choices: tuple | list):
        return choices[int(self.generator.integers(len(choices)))]

    def value(self, depth: int, dtype: DType) -> Expr:
        if depth == 0 or self.generator.random() < 0.1:
            return self.leaf(dtype)
        kind = self.pick(["binary"] * 6 + ["unary", "select", "convert", "fma"])
        if kind == "unary" and unary_names(dtype):
            return ir.unary(self.pick(unary_names(dtype)), self.value(depth - 1, dtype))
        if kind == "select":
            return ir.select(self.condition(depth - 1), self.value(depth - 1, dtype), self.value(depth - 1, dtype))
        if kind == "convert":
            other = self.pick([d for d in ARITHMETIC if d != dtype])
            return ir.Cast(self.value(depth - 1, other), dtype)
        if kind == "fma" and dtype.is_float:
            return ir.call("fma", *(self.value(depth - 1, dtype) for _ in range(3)))
        operator, right = self.pick(binary_names(dtype)), self.value(depth - 1, dtype)
        if operator in DIVISIONS:  # the quotient of 0 is open
            right = ir.select(right.eq(0), constant(1, dtype), right)
        return ir.binary(operator, self.value(depth - 1, dtype), right)

    def leaf(self, dtype: DType) -> Expr:
        if self.generator.random() < 0.25:
            return constant(self.pick(CONSTANTS[dtype.kind]), dtype)
        leaf = self.pick(self.leaves)
        return leaf if dtype == self.dtype else ir.Cast(leaf, dtype)

    def condition(self, depth: int) -> Expr:
        dtype = self.pick([self.dtype, self.pick(ARITHMETIC)])
        comparison = ir.compare(self.pick(ir.COMPARISONS), self.value(depth, dtype), self.value(depth, dtype))
        if depth > 0 and self.generator.random() < 0.3:
            other = self.condition(depth - 1)
            return ir.binary(self.pick(["and", "or", "xor"]), comparison, other)
        return comparison


def _operators(trees: dict[str, Expr]) -> list[Operator]:
    """Operators of expressions over the variables a, b and c."""
    return [
        Operator(
            name,
            ("a", "b", "c"),
            lambda a, b, c, tree=tree: _replaced(tree, {"a": a, "b": b, "c": c}),
            lambda a, b, c, tree=tree: exact.evaluate(tree, {"a": a, "b": b, "c": c}),
        )
        for name, tree in trees.items()
    ]


def _replaced(tree: Expr, values: dict[str, Expr]) -> Expr:
    """``tree`` with the variables that hold the operands in the kernel."""
    from ptxtile.ir.rewrite import substitute

    return substitute(tree, values)


def _columns(name: str, dtype: DType) -> tuple[np.random.Generator, dict[str, tuple[DType, np.ndarray]]]:
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    columns = triples(generator, dtype, 2 * ELEMENTS)
    chosen = generator.permutation(2 * ELEMENTS)[:ELEMENTS]
    return generator, {key: (dtype, column[chosen]) for key, column in zip("abc", columns, strict=True)}


@cache
def temptation_case(dtype: DType) -> Case:
    name = f"temptations_{dtype}"
    _, columns = _columns(name, dtype)
    make: Callable[..., dict[str, Expr]] = float_temptations if dtype.kind is Kind.FLOAT else integer_temptations
    return case(name, columns, _operators(make(*(Var(key, dtype) for key in "abc"))), sample=SAMPLE * 4)


@cache
def random_case(dtype: DType, seed: int = 0) -> Case:
    """Random trees; with another seed, other ones."""
    name = f"random_expressions_{dtype}" + (f"_{seed}" if seed else "")
    generator, columns = _columns(name, dtype)
    grower = Grower(generator, dtype)
    trees = {f"tree_{k}": grower.value(DEPTH, dtype) for k in range(TREES)}
    return case(name, columns, _operators(trees), sample=SAMPLE)


CASES: dict[str, Callable[[], Case]] = {}
"""Makers of all cases by name."""
for _dtype in ARITHMETIC:
    CASES[f"temptations_{_dtype}"] = lambda d=_dtype: temptation_case(d)
    CASES[f"random_expressions_{_dtype}"] = lambda d=_dtype: random_case(d)

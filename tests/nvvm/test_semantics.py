"""What the emitted arithmetic computes, run on this machine's processor and compared with Python integers and NumPy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ptxtile.ir import types
from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import (
    Binary,
    Call,
    Cast,
    Compare,
    Expr,
    LogicalAnd,
    LogicalOr,
    Select,
    Unary,
    Var,
    constant,
)
from ptxtile.ir.program import Function
from ptxtile.ir.statements import Allocate, Break, Continue, For, If, Let, LoopKind, Seq, While
from ptxtile.ir.types import DType, bool_, float32, float64, int32, int64
from tests.nvvm.host_code import NUMPY, HostFunctions, compile_one
from tests.nvvm.programs import at, local_scalar, number, private, put

INTEGERS = tuple(types.BY_NAME[f"{sign}{bits}"] for sign in ("int", "uint") for bits in (8, 16, 32, 64))
SEED = 20240607


def wrap(value: int, dtype: DType) -> int:
    value &= (1 << dtype.bits) - 1
    return value - (1 << dtype.bits) if dtype.is_signed and value >> (dtype.bits - 1) else value


def integer_samples(dtype: DType, count: int = 300) -> np.ndarray:
    """Edge values and random ones of all magnitudes."""
    random = np.random.default_rng(SEED + dtype.bits)
    low, high = dtype.minimum, dtype.maximum
    edges = [low, low + 1, -3, -2, -1, 0, 1, 2, 3, 7, 8, 31, 32, 63, 64, high - 1, high]
    sizes = random.integers(1, dtype.bits + 1, count)
    drawn = [wrap(int(random.integers(0, 1 << 62)) >> (62 - min(int(size), 62)), dtype) for size in sizes]
    drawn = [wrap(-x, dtype) if random.integers(2) else x for x in drawn]
    return np.array([x for x in edges if low <= x <= high] + drawn, NUMPY[str(dtype)])


def pairs(dtype: DType) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of edge values, then random pairs."""
    values = integer_samples(dtype)
    left = np.concatenate([np.repeat(values[:17], 17), values])
    right = np.concatenate([np.tile(values[:17], 17), np.roll(values, 5)])
    return left, right


def truncated(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shifted_right(a: int, b: int, dtype: DType) -> int:
    if 0 <= b < dtype.bits:
        return a >> b
    return -1 if a < 0 else 0


INTEGER_OPERATORS = {
    "add": lambda a, b, d: a + b,
    "sub": lambda a, b, d: a - b,
    "mul": lambda a, b, d: a * b,
    "mulhi": lambda a, b, d: (a * b) >> d.bits,
    "floordiv": lambda a, b, d: a // b,
    "floormod": lambda a, b, d: a % b,
    "truncdiv": lambda a, b, d: truncated(a, b),
    "truncmod": lambda a, b, d: a - truncated(a, b) * b,
    "min": lambda a, b, d: min(a, b),
    "max": lambda a, b, d: max(a, b),
    "and": lambda a, b, d: a & b,
    "or": lambda a, b, d: a | b,
    "xor": lambda a, b, d: a ^ b,
    "shl": lambda a, b, d: a << b if 0 <= b < d.bits else 0,
    "shr": shifted_right,
}
DIVISIONS = ("floordiv", "floormod", "truncdiv", "truncmod")


def function(name: str, parameters: tuple[Var, ...], result: Expr, body: Seq | None = None) -> Function:
    return Function(name, parameters, body or Seq(()), result)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_operators(dtype: DType) -> None:
    x, y = Var("x", dtype), Var("y", dtype)
    compiled = HostFunctions([function(name, (x, y), Binary(name, x, y, dtype)) for name in INTEGER_OPERATORS])
    left, right = pairs(dtype)
    for name, rule in INTEGER_OPERATORS.items():
        a, b = left, right
        if name in DIVISIONS:
            a, b = left[right != 0], right[right != 0]
        expected = [wrap(rule(int(p), int(q), dtype), dtype) for p, q in zip(a, b, strict=True)]
        np.testing.assert_array_equal(compiled.call(name, a, b), np.array(expected, a.dtype), err_msg=name)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integer_operators_with_a_constant(dtype: DType) -> None:
    """Constants take other ways through the emitter: identities, offsets of sums, divisions without guards."""
    x = Var("x", dtype)
    constants = [c for c in (0, 1, 2, 3, 8, 31, 32, 100, 127, -1, -2, -7, -128) if dtype.minimum <= c <= dtype.maximum]
    functions, rules = [], {}
    for operator in INTEGER_OPERATORS:
        for position, value in enumerate(constants):
            for swapped in (False, True):
                if operator in DIVISIONS and (value == 0 or swapped):
                    continue
                name = f"{operator}_{position}_{int(swapped)}"
                sides = (constant(value, dtype), x) if swapped else (x, constant(value, dtype))
                functions.append(function(name, (x,), Binary(operator, *sides, dtype)))
                rules[name] = (operator, value, swapped)
    compiled = HostFunctions(functions)
    values = integer_samples(dtype, 60)
    for name, (operator, value, swapped) in rules.items():
        rule = INTEGER_OPERATORS[operator]
        expected = [wrap(rule(value, int(v), dtype) if swapped else rule(int(v), value, dtype), dtype) for v in values]
        np.testing.assert_array_equal(compiled.call(name, values), np.array(expected, values.dtype), err_msg=name)


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_division_by_zero_does_not_disturb_other_values(dtype: DType) -> None:
    x, y = Var("x", dtype), Var("y", dtype)
    zero = Compare("eq", y, constant(0, dtype), bool_)
    guarded = Select(zero, x, Binary("floordiv", x, y, dtype), dtype)
    left, right = pairs(dtype)
    expected = [a if b == 0 else wrap(a // b, dtype) for a, b in zip(left.tolist(), right.tolist(), strict=True)]
    got = compile_one(function("f", (x, y), guarded))(left, right)
    np.testing.assert_array_equal(got, np.array(expected, left.dtype))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_comparisons_and_unary_operators(dtype: DType) -> None:
    x, y = Var("x", dtype), Var("y", dtype)
    orders = {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }
    functions = [function(name, (x, y), Compare(name, x, y, bool_)) for name in orders]
    functions += [function(name, (x,), Unary(name, x, dtype)) for name in ("neg", "not", "abs")]
    functions += [function(name, (x,), Call(name, (x,), int32)) for name in ("popcount", "leading_zeros")]
    compiled = HostFunctions(functions)
    left, right = pairs(dtype)
    for name, rule in orders.items():
        np.testing.assert_array_equal(compiled.call(name, left, right), rule(left, right), err_msg=name)
    rules = {
        "neg": lambda v: wrap(-v, dtype),
        "not": lambda v: wrap(~v, dtype),
        "abs": lambda v: wrap(abs(v), dtype),
        "popcount": lambda v: (v & ((1 << dtype.bits) - 1)).bit_count(),
        "leading_zeros": lambda v: dtype.bits - (v & ((1 << dtype.bits) - 1)).bit_length(),
    }
    for name, rule in rules.items():
        expected = [rule(int(v)) for v in left]
        assert compiled.call(name, left).tolist() == expected, name


def test_nested_sums_keep_their_value() -> None:
    """The constant part of a sum is carried apart; products, differences and narrow types must not lose it."""
    x, y = Var("x", int32), Var("y", int32)
    body = ((x + 5) - (y - 7)) * 3 + (number(11) - x)
    narrow = Cast(Binary("add", Cast(x, types.int8), constant(100, types.int8), types.int8), int64)
    compiled = HostFunctions([function("wide", (x, y), body), function("narrow", (x,), narrow)])
    left, right = pairs(int32)
    expected = [wrap((int(a) + 5 - (int(b) - 7)) * 3 + 11 - int(a), int32) for a, b in zip(left, right, strict=True)]
    assert compiled.call("wide", left, right).tolist() == expected
    assert compiled.call("narrow", left).tolist() == [wrap(int(a) + 100, types.int8) for a in left]


# -- floats ----------------------------------------
def float_samples(dtype: DType, count: int = 400) -> np.ndarray:
    random = np.random.default_rng(SEED)
    kind = NUMPY[str(dtype)]
    info = np.finfo(kind)
    edges = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        3.49,
        math.inf,
        -math.inf,
        math.nan,
        info.max,
        -info.max,
        info.tiny,
    ]
    edges += [
        info.smallest_subnormal,
        2.0**31,
        -(2.0**31),
        2.0**32,
        2.0**63,
        -(2.0**63),
        2.0**64,
        127.9,
        128.0,
        255.5,
        256.0,
    ]
    drawn = random.standard_normal(count) * np.exp2(random.integers(-20, 70, count).astype(np.float64))
    return np.concatenate([np.array(edges, kind), drawn.astype(kind)])


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_float_operators(dtype: DType) -> None:
    # a function named floor would be what LLVM calls for llvm.floor on this machine
    x, y = Var("x", dtype), Var("y", dtype)
    rules = {
        "add": np.add,
        "sub": np.subtract,
        "mul": np.multiply,
        "div": np.divide,
        "min": np.minimum,
        "max": np.maximum,
    }
    unary = {
        "neg": np.negative,
        "abs": np.abs,
        "sqrt": np.sqrt,
        "floor": np.floor,
        "ceil": np.ceil,
        "trunc": np.trunc,
        "rint": np.rint,
    }
    compiled = HostFunctions(
        [function("op_" + name, (x, y), Binary(name, x, y, dtype)) for name in rules]
        + [function("op_" + name, (x,), Unary(name, x, dtype)) for name in unary]
        + [function("muladd", (x, y), Binary("add", Binary("mul", x, y, dtype), constant(1.0, dtype), dtype))]
    )
    values = float_samples(dtype)
    left, right = np.repeat(values, 31), np.tile(values[:31], len(values))
    with np.errstate(all="ignore"):
        for name, rule in rules.items():
            np.testing.assert_array_equal(compiled.call("op_" + name, left, right), rule(left, right), err_msg=name)
        for name, rule in unary.items():
            np.testing.assert_array_equal(compiled.call("op_" + name, values), rule(values), err_msg=name)
        np.testing.assert_array_equal(compiled.call("muladd", left, right), left * right + NUMPY[str(dtype)](1))


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_minimum_orders_zeros(dtype: DType) -> None:
    x, y = Var("x", dtype), Var("y", dtype)
    compiled = HostFunctions([function(name, (x, y), Binary(name, x, y, dtype)) for name in ("min", "max")])
    left, right = np.array([0.0, -0.0]), np.array([-0.0, 0.0])
    assert np.signbit(compiled.call("min", left, right)).all()
    assert not np.signbit(compiled.call("max", left, right)).any()


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
def test_float_comparisons(dtype: DType) -> None:
    x, y = Var("x", dtype), Var("y", dtype)
    orders = {
        "eq": np.equal,
        "ne": np.not_equal,
        "lt": np.less,
        "le": np.less_equal,
        "gt": np.greater,
        "ge": np.greater_equal,
    }
    compiled = HostFunctions([function(name, (x, y), Compare(name, x, y, bool_)) for name in orders])
    values = float_samples(dtype, 20)
    left, right = np.repeat(values, len(values)), np.tile(values, len(values))
    for name, rule in orders.items():
        np.testing.assert_array_equal(compiled.call(name, left, right), rule(left, right), err_msg=name)


def converted(value: float, dtype: DType) -> int:
    """float → integer as ptxtile.ir.expressions.Cast describes it."""
    through = dtype if dtype.bits >= 32 else int64 if not dtype.is_signed else int32
    if math.isnan(value):
        return 0
    clamped = (
        through.minimum if value <= through.minimum else through.maximum if value >= through.maximum else int(value)
    )
    return wrap(clamped, dtype)


@pytest.mark.parametrize("source", [float32, float64], ids=str)
def test_float_to_integer(source: DType) -> None:
    x = Var("x", source)
    compiled = HostFunctions([function(f"to_{dtype}", (x,), Cast(x, dtype)) for dtype in (*INTEGERS, bool_)])
    values = float_samples(source)
    for dtype in INTEGERS:
        expected = [converted(float(value), dtype) for value in values]
        assert compiled.call(f"to_{dtype}", values).tolist() == expected, dtype
    np.testing.assert_array_equal(compiled.call("to_bool", values), values != 0)


@pytest.mark.parametrize("source", (*INTEGERS, bool_), ids=str)
def test_casts_from_integers(source: DType) -> None:
    x = Var("x", source)
    wanted = [dtype for dtype in (*INTEGERS, bool_, float32, float64) if dtype != source]
    compiled = HostFunctions([function(f"to_{dtype}", (x,), Cast(x, dtype)) for dtype in wanted])
    values = np.array([False, True]) if source == bool_ else integer_samples(source)
    for dtype in wanted:
        np.testing.assert_array_equal(
            compiled.call(f"to_{dtype}", values), values.astype(NUMPY[str(dtype)]), err_msg=str(dtype)
        )


# -- control flow ----------------------------------------
def test_lazy_operators() -> None:
    x, y, c = Var("x", int32), Var("y", int32), Var("c", bool_)
    positive, small = Compare("gt", x, number(0), bool_), Compare("lt", y, number(10), bool_)
    compiled = HostFunctions(
        [
            function("both", (x, y), LogicalAnd(positive, small)),
            function("either", (x, y), LogicalOr(positive, small)),
            function("choose", (x, y, c), Select(c, x + 1, y - 1, int32)),
            function("double", (x,), x * 2),
            # calls of functions are not evaluated on the side that is not taken, so this one branches
            function("call", (x, y, c), Select(c, Call("double", (x,), int32) + 3, Call("double", (y,), int32), int32)),
        ]
    )
    left, right = pairs(int32)
    flags = np.arange(len(left)) % 3 == 0
    np.testing.assert_array_equal(compiled.call("both", left, right), (left > 0) & (right < 10))
    np.testing.assert_array_equal(compiled.call("either", left, right), (left > 0) | (right < 10))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(compiled.call("choose", left, right, flags), np.where(flags, left + 1, right - 1))
        np.testing.assert_array_equal(
            compiled.call("call", left, right, flags), np.where(flags, left * 2 + 3, right * 2)
        )


def test_loops() -> None:
    """Serial loops up and down with break and continue, a while loop, and an unrolled loop over registers."""
    n, i, j = Var("n", int32), Var("i", int32), Var("j", int32)
    total = local_scalar("total", int32)
    table = private("table", int32, 8)
    array = private("array", int32, 8, Scope.LOCAL)

    def add(value: Expr):
        return put(total, 0, at(total, 0) + value)

    def start(*statements) -> Seq:
        return Seq((Allocate(total), put(total, 0, number(0)), *statements))

    odd = Compare("eq", Binary("and", i, number(1), int32), number(1), bool_)
    late = Compare("eq", i, number(20), bool_)
    up = For(i, number(3), n, 2, LoopKind.SERIAL, add(i))
    down = For(i, n, number(-4), -3, LoopKind.SERIAL, add(i))
    leaving = For(i, number(0), n, 1, LoopKind.SERIAL, Seq((If(odd, Continue()), If(late, Break()), add(i))))
    nested = For(i, number(0), n, 1, LoopKind.SERIAL, For(j, number(0), i, 1, LoopKind.SERIAL, add(j * i)))
    halving = While(Compare("lt", at(total, 0), n, bool_), add(at(total, 0) + 1))
    unrolled = Seq(
        (
            Allocate(table),
            For(i, number(0), number(8), 1, LoopKind.UNROLLED, put(table, number(7) - i, i * n)),
            For(i, number(6), number(-1), -2, LoopKind.UNROLLED, add(at(table, i + 1) * (i + 1))),
        )
    )
    indexed = Seq(
        (
            Allocate(array),
            For(i, number(0), number(8), 1, LoopKind.SERIAL, put(array, i, i * i + n)),
            add(at(array, Binary("and", n, number(7), int32))),
        )
    )
    bodies = {
        "up": up,
        "down": down,
        "leaving": leaving,
        "nested": nested,
        "halving": halving,
        "unrolled": unrolled,
        "indexed": indexed,
    }
    compiled = HostFunctions([function(name, (n,), at(total, 0), start(body)) for name, body in bodies.items()])

    def leave(n: int) -> int:
        found = 0
        for i in range(n):
            if i % 2:
                continue
            if i == 20:
                break
            found += i
        return found

    def halve(n: int) -> int:
        found = 0
        while found < n:
            found += found + 1
        return found

    rules = {
        "up": lambda n: sum(range(3, n, 2)),
        "down": lambda n: sum(range(n, -4, -3)),
        "leaving": leave,
        "nested": lambda n: sum(i * j for i in range(n) for j in range(i)),
        "halving": halve,
        "unrolled": lambda n: sum((7 - (i + 1)) * n * (i + 1) for i in range(6, -1, -2)),
        "indexed": lambda n: (n & 7) ** 2 + n,
    }
    counts = np.array([-10, -1, 0, 1, 2, 3, 4, 5, 19, 20, 21, 22, 40], np.int32)
    for name, rule in rules.items():
        assert compiled.call(name, counts).tolist() == [rule(int(n)) for n in counts], name


def test_let_is_evaluated_once_where_it_stands() -> None:
    x, before = Var("x", int32), Var("before", int32)
    cell = local_scalar("cell", int32)
    body = Seq((Allocate(cell), put(cell, 0, x), Let(before, at(cell, 0) + 1), put(cell, 0, x * 10)))
    got = compile_one(function("f", (x,), before * 1000 + at(cell, 0), body))(np.array([1, 2, 3], np.int32))
    assert got.tolist() == [2010, 3020, 4030]

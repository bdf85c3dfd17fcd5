"""Every operator of the IR on every dtype, against Python's integers and torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile.errors import SimulationError
from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import (
    BINARY_OPERATORS,
    COMPARISONS,
    HARDWARE_FUNCTIONS,
    UNARY_OPERATORS,
    Binary,
    Broadcast,
    Compare,
    Const,
    LogicalAnd,
    LogicalOr,
    Select,
    Unary,
    Var,
    binary,
    call,
    compare,
    select,
    unary,
)
from ptxtile.ir.program import Function
from ptxtile.ir.statements import Allocate, For, If, Let, LoopKind, seq
from ptxtile.ir.types import BY_NAME, DType, bool_, float32, float64, int32, uint32
from ptxtile.sim.dtypes import held_dtype
from ptxtile.sim.expressions import call as call_function
from ptxtile.sim.expressions import evaluate
from tests.sim.programs import get, number, on_chip, put

INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (4, 8, 16, 32, 64)]
FLOATS = ["float16", "bfloat16", "float32", "float64"]


def wrapped(value: int, dtype: DType) -> int:
    value %= 2**dtype.bits
    return value - 2**dtype.bits if dtype.is_signed and value >= 2 ** (dtype.bits - 1) else value


def truncated(a: int, b: int) -> int:
    return math.trunc(a / b) if abs(a) < 2**50 and abs(b) < 2**50 else abs(a) // abs(b) * (1 if a * b >= 0 else -1)


def shifted_right(a: int, b: int, dtype: DType) -> int:
    return a >> b if 0 <= b < dtype.bits else (-1 if a < 0 else 0)


INTEGER_REFERENCE: dict[str, Callable[[int, int, DType], int]] = {
    "add": lambda a, b, t: a + b,
    "sub": lambda a, b, t: a - b,
    "mul": lambda a, b, t: a * b,
    "div": lambda a, b, t: truncated(a, b),
    "floordiv": lambda a, b, t: a // b,
    "floormod": lambda a, b, t: a % b,
    "truncdiv": lambda a, b, t: truncated(a, b),
    "truncmod": lambda a, b, t: a - b * truncated(a, b),
    "min": lambda a, b, t: min(a, b),
    "max": lambda a, b, t: max(a, b),
    "mulhi": lambda a, b, t: (a * b) >> t.bits,
    "and": lambda a, b, t: a & b,
    "or": lambda a, b, t: a | b,
    "xor": lambda a, b, t: a ^ b,
    "shl": lambda a, b, t: a << b if 0 <= b < t.bits else 0,
    "shr": shifted_right,
}

COMPARISON_REFERENCE: dict[str, Callable[[float, float], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}


def integer_pairs(dtype: DType) -> st.SearchStrategy[list[tuple[int, int]]]:
    edges = [
        dtype.minimum,
        dtype.minimum + 1,
        dtype.maximum,
        dtype.maximum - 1,
        0,
        1,
        2,
        dtype.bits % (dtype.maximum + 1),
    ]
    number = st.one_of(st.integers(dtype.minimum, dtype.maximum), st.sampled_from(edges))
    return st.lists(st.tuples(number, number), min_size=1, max_size=40)


@pytest.mark.parametrize("operator", BINARY_OPERATORS)
@pytest.mark.parametrize("name", INTEGERS)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_integer_binary(operator: str, name: str, data: st.DataObject) -> None:
    dtype = BY_NAME[name]
    pairs = data.draw(integer_pairs(dtype))
    if operator in ("div", "floordiv", "floormod", "truncdiv", "truncmod"):
        pairs = [(a, b or 1) for a, b in pairs]
    expected = [wrapped(INTEGER_REFERENCE[operator](a, b, dtype), dtype) for a, b in pairs]
    x, y = Var("x", dtype), Var("y", dtype)
    columns = [np.array(column, dtype=held_dtype(dtype)) for column in zip(*pairs, strict=True)]
    expression = Binary(operator, x, y, dtype)
    got = evaluate(expression, {"x": columns[0], "y": columns[1]})
    assert got.dtype == held_dtype(dtype)
    assert got.tolist() == expected
    # The path of numbers that are the same on every lane must agree, and so must a mix of the two.
    a, b = pairs[0]
    assert evaluate(expression, {"x": a, "y": b}).item() == expected[0]
    assert evaluate(expression, {"x": columns[0][:1], "y": b}).tolist() == expected[:1]
    assert evaluate(expression, {"x": a, "y": columns[1][:1]}).tolist() == expected[:1]


@pytest.mark.parametrize("operator", ["div", "floordiv", "floormod", "truncdiv", "truncmod"])
@pytest.mark.parametrize("name", INTEGERS)
def test_division_by_zero_does_not_trap(operator: str, name: str) -> None:
    dtype = BY_NAME[name]
    expression = Binary(operator, Var("x", dtype), Var("y", dtype), dtype)
    evaluate(expression, {"x": np.array([5, 0], held_dtype(dtype)), "y": np.array([0, 0], held_dtype(dtype))})
    evaluate(expression, {"x": 5, "y": 0})


@pytest.mark.parametrize("operator", COMPARISONS)
@pytest.mark.parametrize("name", INTEGERS)
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_integer_comparison(operator: str, name: str, data: st.DataObject) -> None:
    dtype = BY_NAME[name]
    pairs = data.draw(integer_pairs(dtype))
    columns = [np.array(column, dtype=held_dtype(dtype)) for column in zip(*pairs, strict=True)]
    expression = Compare(operator, Var("x", dtype), Var("y", dtype), bool_)
    expected = [COMPARISON_REFERENCE[operator](a, b) for a, b in pairs]
    assert evaluate(expression, {"x": columns[0], "y": columns[1]}).tolist() == expected
    assert evaluate(expression, {"x": pairs[0][0], "y": pairs[0][1]}).item() == expected[0]


@pytest.mark.parametrize("operator", UNARY_OPERATORS)
@pytest.mark.parametrize("name", INTEGERS)
def test_integer_unary(operator: str, name: str) -> None:
    if operator == "sqrt":
        return
    dtype = BY_NAME[name]
    random = np.random.default_rng(dtype.bits)
    values = [dtype.minimum, dtype.maximum, 0, 1]
    values += [int(v) for v in random.integers(max(dtype.minimum, -(2**62)), min(dtype.maximum, 2**62), 40)]
    reference = {"neg": lambda v: -v, "abs": abs, "not": lambda v: ~v}.get(operator, lambda v: v)
    expected = [wrapped(reference(value), dtype) for value in values]
    expression = Unary(operator, Var("x", dtype), dtype)
    assert evaluate(expression, {"x": np.array(values, held_dtype(dtype))}).tolist() == expected
    assert [evaluate(expression, {"x": value}).item() for value in values] == expected


# --- floats, against torch ------------------------------------------------------------------------------------------


def float_values(name: str, seed: int, count: int = 3000) -> torch.Tensor:
    """Random bit patterns, numbers of ordinary size, and special ones."""
    random = np.random.default_rng(seed)
    bits = BY_NAME[name].bits
    patterns = random.integers(0, 2**bits, count, dtype=np.uint64).astype(f"uint{bits}")
    signed = torch.from_numpy(patterns.view(f"int{bits}"))
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3e38, 65504, 2**-24, 2**-149]
    ordinary = random.choice(np.concatenate([random.standard_normal(200) * 8, np.arange(-8, 9) / 2, special]), count)
    return torch.cat([signed.view(getattr(torch, name)), torch.from_numpy(ordinary).to(getattr(torch, name))])


def as_held(values: torch.Tensor) -> np.ndarray:
    return (values.float() if values.dtype == torch.bfloat16 else values).numpy()


def same_numbers(got: np.ndarray, expected: torch.Tensor) -> None:
    """Equal values, NaN with NaN, zeros with the same sign."""
    wanted = as_held(expected)
    np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(np.signbit(got)[wanted == 0], np.signbit(wanted)[wanted == 0])
    assert got.dtype == wanted.dtype


FLOAT_REFERENCE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
}


@pytest.mark.parametrize("operator", FLOAT_REFERENCE)
@pytest.mark.parametrize("name", FLOATS)
def test_float_binary(operator: str, name: str) -> None:
    a, b = float_values(name, 1), float_values(name, 2)
    expression = binary(operator, Var("x", BY_NAME[name]), Var("y", BY_NAME[name]))
    got = evaluate(expression, {"x": as_held(a), "y": as_held(b)})
    same_numbers(got, FLOAT_REFERENCE[operator](a, b))


@pytest.mark.parametrize("operator", ["min", "max"])
@pytest.mark.parametrize("name", FLOATS)
def test_float_minimum_and_maximum(operator: str, name: str) -> None:
    a, b = float_values(name, 3), float_values(name, 4)
    expression = binary(operator, Var("x", BY_NAME[name]), Var("y", BY_NAME[name]))
    a[::7], b[::11] = -0.0, 0.0
    b[::21], a[::33] = -0.0, 0.0
    got = evaluate(expression, {"x": as_held(a), "y": as_held(b)})
    expected = (torch.minimum if operator == "min" else torch.maximum)(a, b)
    np.testing.assert_array_equal(got, as_held(expected))
    zeros = ((a == 0) & (b == 0)).numpy()
    signs = np.signbit(as_held(a)), np.signbit(as_held(b))
    expected_sign = signs[0] | signs[1] if operator == "min" else signs[0] & signs[1]
    assert zeros.sum() > 5
    np.testing.assert_array_equal(np.signbit(got)[zeros], expected_sign[zeros])


@pytest.mark.parametrize("operator", ["floordiv", "floormod", "truncmod"])
@pytest.mark.parametrize("name", ["float32", "float64"])
def test_float_division_with_rounding(operator: str, name: str) -> None:
    """torch.floor_divide is Python's ``//`` and torch.remainder Python's ``%``; fmod is C's, exact."""
    a, b = float_values(name, 5), float_values(name, 6)
    expression = binary(operator, Var("x", BY_NAME[name]), Var("y", BY_NAME[name]))
    got = evaluate(expression, {"x": as_held(a), "y": as_held(b)})
    for x, y, result in zip(a.tolist(), b.tolist(), got.tolist(), strict=True):
        if math.isfinite(x) and math.isfinite(y) and y != 0 and abs(x / y) < 2**20:
            if operator == "truncmod":
                assert result == math.fmod(x, y)
            elif name == "float64":
                assert result == (x // y if operator == "floordiv" else x % y)


@pytest.mark.parametrize("operator", COMPARISONS)
@pytest.mark.parametrize("name", FLOATS)
def test_float_comparison(operator: str, name: str) -> None:
    a, b = float_values(name, 7), float_values(name, 8)
    a[::5] = b[::5]
    expression = compare(operator, Var("x", BY_NAME[name]), Var("y", BY_NAME[name]))
    got = evaluate(expression, {"x": as_held(a), "y": as_held(b)})
    np.testing.assert_array_equal(got, getattr(torch, operator)(a, b).numpy())


FLOAT_UNARY = {
    "neg": torch.neg, "abs": torch.abs,
    "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "rint": torch.round,
}  # fmt: skip


@pytest.mark.parametrize("operator", FLOAT_UNARY)
@pytest.mark.parametrize("name", FLOATS)
def test_float_unary(operator: str, name: str) -> None:
    values = float_values(name, 9)
    got = evaluate(unary(operator, Var("x", BY_NAME[name])), {"x": as_held(values)})
    same_numbers(got, FLOAT_UNARY[operator](values))


@pytest.mark.parametrize("name", FLOATS)
def test_square_root_is_correctly_rounded(name: str) -> None:
    values = float_values(name, 10).abs()
    got = evaluate(unary("sqrt", Var("x", BY_NAME[name])), {"x": as_held(values)})
    exact = [math.sqrt(value) if math.isfinite(value) else value for value in values.tolist()]
    same_numbers(got, torch.tensor(exact, dtype=torch.float64).to(values.dtype))


def test_float_bitwise_not_is_refused() -> None:
    with pytest.raises(KeyError):
        evaluate(unary("not", Var("x", float32)), {"x": np.float32([1])})


# --- bools, selects, calls ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", ["and", "or", "xor", "min", "max"])
def test_bool_binary(operator: str) -> None:
    reference = {"and": min, "min": min, "or": max, "max": max, "xor": lambda a, b: a != b}[operator]
    pairs = [(a, b) for a in (False, True) for b in (False, True)]
    expression = Binary(operator, Var("x", bool_), Var("y", bool_), bool_)
    expected = [bool(reference(a, b)) for a, b in pairs]
    columns = [np.array(column) for column in zip(*pairs, strict=True)]
    assert evaluate(expression, {"x": columns[0], "y": columns[1]}).tolist() == expected
    assert [evaluate(expression, {"x": a, "y": b}).item() for a, b in pairs] == expected


def test_logical_operators_and_not() -> None:
    x, y = Var("x", bool_), Var("y", bool_)
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    for left, right in ((a, b), (a, True), (True, b), (a, False), (False, b)):
        values = {"x": left, "y": right}
        np.testing.assert_array_equal(
            np.broadcast_to(evaluate(LogicalAnd(x, y), values), 4), np.logical_and(left, right)
        )
        np.testing.assert_array_equal(np.broadcast_to(evaluate(LogicalOr(x, y), values), 4), np.logical_or(left, right))
    np.testing.assert_array_equal(evaluate(Unary("not", x, bool_), {"x": a}), ~a)
    assert evaluate(Unary("not", x, bool_), {"x": True}).item() is False


def test_select_of_vectors_takes_one_bool_for_all_lanes() -> None:
    pair = float32.with_lanes(2)
    expression = Select(Var("c", bool_), Var("x", pair), Broadcast(Var("s", float32), pair), pair)
    x = np.float32([[1, 2], [3, 4]])
    got = evaluate(expression, {"c": np.array([True, False]), "x": x, "s": np.float32([7, 8])})
    assert got.tolist() == [[1, 2], [8, 8]]


@pytest.mark.parametrize("name", ["int8", "uint16", "int32", "uint64", "uint4"])
def test_bit_counts(name: str) -> None:
    dtype = BY_NAME[name]
    random = np.random.default_rng(3)
    values = [0, dtype.maximum, 1, *(int(v) for v in random.integers(0, min(dtype.maximum, 2**62), 30))]
    if dtype.is_signed:
        values += [-1, dtype.minimum]
    array = np.array(values, held_dtype(dtype))
    patterns = [format(value % 2**dtype.bits, f"0{dtype.bits}b") for value in values]
    x = Var("x", dtype)
    assert evaluate(call("popcount", x, dtype=int32), {"x": array}).tolist() == [p.count("1") for p in patterns]
    zeros = [len(p) - len(p.lstrip("0")) for p in patterns]
    assert evaluate(call("leading_zeros", x, dtype=int32), {"x": array}).tolist() == zeros


# Largest relative errors of the card's instructions (PTX ISA 9.7.3); sin and cos: absolute, on [−π, π].
APPROXIMATE_ERRORS = {
    "approx_ex2": 2**-22, "approx_lg2": 2**-22, "approx_sin": 2**-20.5, "approx_cos": 2**-20.5, "approx_tanh": 2**-11,
    "approx_rcp": 2**-23, "approx_rsqrt": 2**-22.4, "approx_sqrt": 2**-23, "approx_div": 2**-22,
}  # fmt: skip


@pytest.mark.parametrize("name", [name for name in HARDWARE_FUNCTIONS if name.startswith("approx_")])
def test_approximations_are_within_the_bounds_of_the_card(name: str) -> None:
    mpmath = pytest.importorskip("mpmath")
    reference = {
        "approx_ex2": lambda x: mpmath.power(2, x), "approx_lg2": lambda x: mpmath.log(x, 2), "approx_sin": mpmath.sin,
        "approx_cos": mpmath.cos, "approx_tanh": mpmath.tanh, "approx_rcp": lambda x: 1 / x,
        "approx_rsqrt": lambda x: 1 / mpmath.sqrt(x), "approx_sqrt": mpmath.sqrt, "approx_div": lambda x, y: x / y,
    }[name]  # fmt: skip
    values = np.random.default_rng(4).uniform(0.01, 3.1, 200).astype(np.float32)
    arguments = {"x": values, "y": values[::-1].copy()}
    variables = [Var(n, float32) for n in ("x", "y")[: HARDWARE_FUNCTIONS[name]]]
    got = evaluate(call(name, *variables), arguments)
    for index in range(len(values)):
        operands = [mpmath.mpf(float(arguments[v.name][index])) for v in variables]
        exact = reference(*operands)
        scale = 1 if name in ("approx_sin", "approx_cos") else max(abs(exact), mpmath.mpf(2) ** -22)
        assert abs(float(got[index]) - exact) <= APPROXIMATE_ERRORS[name] * scale


def test_device_function_with_divergent_branch_and_loop() -> None:
    """f(x) = x² summed x times for x ≥ 0, else −x."""
    x, i, square = Var("x", int32), Var("i", int32), Var("square", int32)
    total = on_chip("total", Scope.LOCAL, int32, 1)
    body = seq(
        put(total, 0, number(0)),
        If(
            x.ge(0),
            seq(Let(square, x * x), For(i, number(0), x, 1, LoopKind.SERIAL, put(total, 0, get(total, 0) + square))),
            put(total, 0, -x),
        ),
    )
    function = Function("f", (x,), seq(Allocate(total), body), get(total, 0))
    values = np.int32([-3, 0, 1, 2, 5, -1])
    expected = [v * v * v if v >= 0 else -v for v in values.tolist()]
    assert call_function(function, values).tolist() == expected
    nested = call("f", Var("v", int32) + 1, dtype=int32)
    assert evaluate(nested, {"v": values - 1}, functions=[function]).tolist() == expected
    lazily = select(Var("v", int32).gt(0), call("f", Var("v", int32), dtype=int32), Const(9, int32))
    assert evaluate(lazily, {"v": values}, functions=[function]).tolist() == [9, 9, 1, 8, 125, 9]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_float32_arithmetic_matches_torch_on_random_trees(seed: int) -> None:
    random = np.random.default_rng(seed)
    names = ["x", "y", "z"]
    arrays = {n: random.standard_normal(50).astype(np.float32) for n in names}
    tree = Var("x", float32)
    expected = torch.from_numpy(arrays["x"])
    for _ in range(int(random.integers(1, 12))):
        other = names[random.integers(3)]
        operator = str(random.choice(["add", "sub", "mul", "div"]))
        tree = binary(operator, tree, Var(other, float32))
        expected = getattr(torch, operator)(expected, torch.from_numpy(arrays[other]))
    np.testing.assert_array_equal(evaluate(tree, arrays), expected.numpy())


def test_unknown_names_are_errors() -> None:
    with pytest.raises(SimulationError, match="nothing"):
        evaluate(Var("nothing", float64))
    with pytest.raises(SimulationError, match="mystery"):
        evaluate(call("mystery", Var("x", uint32)), {"x": 1})

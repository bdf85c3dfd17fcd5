"""Division spelled out, float division like torch's, and the width of indices."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ptxtile import target
from ptxtile.ir.analysis import Analyzer
from ptxtile.ir.buffers import Buffer, Scope, Storage, allocate, contiguous_strides
from ptxtile.ir.expression_table import subexpressions
from ptxtile.ir.expressions import Binary, Call, Expr, Var, cast, constant, load, logical_and, select
from ptxtile.ir.printer import print_node
from ptxtile.ir.program import Fact, Kernel, Program, TensorParameter
from ptxtile.ir.statements import Store
from ptxtile.ir.types import bfloat16, float16, float32, float64, int32, int64
from ptxtile.lower import legalize
from ptxtile.lower.legalize import float_division, index_dtype, never_wraps, spelled_out_division, widen
from ptxtile.lower.options import Options
from ptxtile.sim.expressions import call
from tests.lower.integer_expressions import Space, Unspecified, evaluate

SM_90A = target.get("sm_90a")
bx, by, bz, thread, x, y, M, N = (Var(name, int32) for name in ("bx", "by", "bz", "thread", "x", "y", "M", "N"))


def program_of(value: Expr, index: Expr | None = None) -> Program:
    out = allocate("out", Scope.GLOBAL, value.dtype, (1 << 20,))
    body = Store(out, (thread if index is None else index,), value)
    kernel = Kernel("k", (16, 16, 16), 128, (bx, by, bz), thread, body)
    return Program("p", (TensorParameter(out),), (kernel,), symbols=(x, y), stage="gpu")


def legal(value: Expr) -> Expr:
    statement = legalize.run(program_of(value), SM_90A, Options()).kernels[0].body
    assert isinstance(statement, Store)
    return statement.value


@pytest.mark.parametrize(
    ("e", "expected"),
    [
        (x // 8, "x >> 3"),
        (x % 8, "x & 7"),
        (x // 1, "x >> 0"),
        (thread // 3, "truncdiv(thread, 3)"),
        ((thread * 4 + bx) % 12, "truncmod(thread * 4 + bx, 12)"),
        (thread // (bx + 1), "truncdiv(thread, bx + 1)"),
        (x // 3, "truncdiv(x ^ x >> 31, 3) ^ x >> 31"),
        ((x // 3) // 8, "(truncdiv(x ^ x >> 31, 3) ^ x >> 31) >> 3"),
        (select(x.ge(0), x // 3, constant(0)), "truncdiv(x, 3) if x >= 0 else 0"),
        (select(logical_and(x.lt(9), x.gt(3)), x % 3, constant(0)), "truncmod(x, 3) if x < 9 and x > 3 else 0"),
        (Binary("truncdiv", x, y, int32), "truncdiv(x, y)"),
    ],
    ids=print_node,
)
def test_integer_division(e, expected):
    assert print_node(legal(e)) == expected


def test_large_operands_are_not_repeated():
    buffer = allocate("counts", Scope.GLOBAL, int32, (8,))
    e = load(buffer, (thread,)) // 3
    assert legal(e) == e
    wide: Expr = x
    for _ in range(6):
        wide = wide * y + 1
    assert legal(wide // 3) == wide // 3


def test_nothing_to_do_is_the_same_program():
    original = program_of(thread * 4 + bx)
    assert legalize.run(original, SM_90A, Options()) is original


@settings(max_examples=300)
@given(a=st.integers(-(2**31), 2**31 - 1), b=st.integers(-(2**31), 2**31 - 1), small=st.integers(-70, 70))
def test_spelled_out_division_floors(a, b, small):
    for divisor in (b, small):
        if divisor == 0 or (a == -(2**31) and divisor == -1):
            continue  # unspecified; wraps
        for operator, expected in (("floordiv", a // divisor), ("floormod", a % divisor)):
            e = Binary(operator, x, y, int32)
            assert evaluate(spelled_out_division(e), {"x": a, "y": divisor}) == expected
            by_constant = Binary(operator, x, constant(divisor), int32)
            assert evaluate(spelled_out_division(by_constant), {"x": a}) == expected


@settings(max_examples=300)
@given(seed=st.integers(0, 2**63), depth=st.integers(1, 3))
def test_legal_expressions_have_the_same_value(seed, depth):
    space = Space.random(seed)
    space.variables = [v for v in space.variables if v.var.dtype in (int32, int64)]
    if not space.variables:
        return
    e = space.integer(depth)
    original = program_of(e)
    facts = tuple(Fact(v.var, v.lower, v.upper) for v in space.variables)
    statement = legalize.run(replace(original, facts=facts), SM_90A, Options()).kernels[0].body
    assert isinstance(statement, Store)
    for _ in range(20):
        values = space.assignment()
        try:
            expected = evaluate(e, values)
        except Unspecified:
            continue
        assert evaluate(statement.value, values) == expected


# -------------------------------------------------------------------- float division


TORCH = {float16: torch.float16, bfloat16: torch.bfloat16, float32: torch.float32, float64: torch.float64}


def run_float(operator, dtype, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    held = [t.float().numpy() if dtype == bfloat16 else t.numpy() for t in (a, b)]
    return torch.from_numpy(np.asarray(call(float_division(operator, dtype), *held))).to(TORCH[dtype])


@pytest.mark.parametrize("dtype", TORCH, ids=str)
def test_float_division_is_torchs(dtype, random_generator):
    """Equal while the quotient is exact in float32 (float64 for float64)."""
    a = torch.from_numpy(random_generator.normal(scale=100, size=4000)).to(TORCH[dtype])
    b = torch.from_numpy(random_generator.normal(scale=3, size=4000)).to(TORCH[dtype])
    a[:200] = torch.round(a[:200])
    b[:200] = torch.round(b[:200])
    a[200:400] = b[200:400] * torch.round(a[200:400])
    special = [0.0, -0.0, 1.0, -1.0, 5.0, -5.0, 0.1, math.inf, -math.inf, math.nan]
    pairs = torch.tensor([(p, q) for p in special for q in special], dtype=TORCH[dtype])
    a, b = torch.cat([a, pairs[:, 0]]), torch.cat([b, pairs[:, 1]])
    keep = ~((a / b).abs().double() > 2**20) | (b == 0) | torch.isinf(a)
    a, b = a[keep], b[keep]
    # torch computes 16-bit formats in float32 and rounds the result; so do we
    wide_a, wide_b = (a.float(), b.float()) if dtype in (float16, bfloat16) else (a, b)
    for operator, reference in (("floordiv", torch.floor_divide), ("floormod", torch.remainder)):
        expected = reference(wide_a, wide_b).to(TORCH[dtype])
        result = run_float(operator, dtype, a, b)
        torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


def test_float_division_becomes_a_call():
    f, g = Var("f", float32), Var("g", float32)
    e = Binary("floormod", Binary("floordiv", f, g, float32), g, float32)
    result = legalize.run(program_of(e), SM_90A, Options())
    statement = result.kernels[0].body
    assert isinstance(statement, Store)
    calls = [part for part in subexpressions(statement.value) if isinstance(part, Call)]
    assert [c.function for c in calls] == [function.name for function in reversed(result.functions)]
    assert len(result.functions) == 2


# -------------------------------------------------------------------- index width


def tensor(shape, strides=None, offset=0) -> Buffer:
    return Buffer("T", float32, shape, strides or contiguous_strides(shape), Storage("T", Scope.GLOBAL), offset)


@pytest.mark.parametrize(
    ("buffer", "expected"),
    [
        (tensor((32768, 65536)), int32),  # the last element is 2**31 - 1
        (tensor((32769, 65536)), int64),
        (tensor((2**31,)), int32),
        (tensor((2**31,), offset=1), int64),
        (tensor((2,), (2**31,)), int64),
        (tensor((1, 8), (2**40, 1)), int32),  # a stride that is never stepped
        (tensor((M, N)), int32),  # up to 4096 each
        (tensor((M, N, M)), int64),
        (tensor((x, N)), int64),  # x is not bounded
        (tensor((M, x)), int64),
        (allocate("S", Scope.SHARED, float32, (64, 64)), int32),
    ],
)
def test_index_dtype(buffer, expected):
    analyzer = Analyzer((Fact(M, 1, 4096), Fact(N, 1, 4096), Fact(x, 1)))
    assert index_dtype(buffer, analyzer) == expected


def test_widening_goes_down_to_what_cannot_wrap():
    analyzer = Analyzer((Fact(N, 1, 4096),))
    analyzer.bind(by, 0, 65534)
    analyzer.bind(thread, 0, 127)
    assert print_node(widen(by * 64 + thread, analyzer)) == "cast(by * 64 + thread, int64)"
    assert print_node(widen(by * 65536 + thread, analyzer)) == "cast(by, int64) * int64(65536) + cast(thread, int64)"
    assert print_node(widen((by * 64 + thread) * N, analyzer)) == "cast(by * 64 + thread, int64) * cast(N, int64)"
    assert print_node(widen(x * 2 % N, analyzer)) == "cast(x, int64) * int64(2) % cast(N, int64)"
    assert print_node(widen(by * 64 + thread)) == "cast(by, int64) * int64(64) + cast(thread, int64)"


@settings(max_examples=300)
@given(seed=st.integers(0, 2**63))
def test_a_widened_index_is_the_true_one(seed):
    """Evaluated with integers that do not wrap, before; with 64 bits, after."""
    space, analyzer = Space.random(seed), Analyzer()
    space.variables = [v for v in space.variables if v.var.dtype == int32] or [space.variables[0]]
    space.bind(analyzer)

    def index(depth: int) -> Expr:
        if depth == 0:
            return cast(space.leaf(), int32)
        operator = space.rng.choice(["add", "add", "sub", "mul", "floordiv", "floormod"])
        right = index(depth - 1) if operator in ("add", "sub") else constant(space.rng.choice([2, 3, 64, 4096]))
        return Binary(operator, index(depth - 1), right, int32)

    e = index(3)
    wide = widen(e, analyzer)
    for _ in range(20):
        values = space.assignment()
        true = evaluate(_unbounded(e), values)
        assert evaluate(wide, values) == true
        if never_wraps(e, analyzer):
            assert evaluate(e, values) == true


def _unbounded(e: Expr) -> Expr:
    """The same tree in 64 bits, which these values do not pass."""
    if isinstance(e, Binary):
        return Binary(e.operator, _unbounded(e.left), _unbounded(e.right), int64)
    return cast(e, int64)

"""Which products become fused multiply-adds, and that the result is the product and sum rounded once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from ptxtile import target
from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.expressions import Const, Expr, Var, call, cast, constant
from ptxtile.ir.printer import print_node
from ptxtile.ir.program import Function, Kernel, Program, TensorParameter
from ptxtile.ir.statements import Let, Seq, Store
from ptxtile.ir.types import bfloat16, float16, float32, float64, int32
from ptxtile.lower import contract_fma
from ptxtile.lower.contract_fma import contract
from ptxtile.lower.options import Options
from ptxtile.sim.expressions import evaluate

SM_90A = target.get("sm_90a")
a, b, c, d = (Var(name, float32) for name in "abcd")
i, j = Var("i", int32), Var("j", int32)
h = Var("h", float16)

CASES: list[tuple[Expr, str]] = [
    (a * b + c, "fma(a, b, c)"),
    (c + a * b, "fma(a, b, c)"),
    (a * b - c, "fma(a, b, -c)"),
    (c - a * b, "fma(-a, b, c)"),
    (-(a * b) + c, "fma(-a, b, c)"),
    (c - -(a * b), "fma(a, b, c)"),
    (a * b - -c, "fma(a, b, c)"),
    (a * b - 2.0, "fma(a, b, float32(-2.0))"),
    (a * b + c * d, "fma(a, b, c * d)"),
    (a * b - c * d, "fma(a, b, -(c * d))"),
    ((a * b + c) * d + a, "fma(fma(a, b, c), d, a)"),
    (a * (b + c), "a * (b + c)"),
    (a + b + c, "a + b + c"),
    (i * j + i, "i * j + i"),
    (cast(h * h, float32) + c, "cast(h * h, float32) + c"),
    (h * h + h, "fma(h, h, h)"),
    (call("exp", a * b + c), "exp(fma(a, b, c))"),
]


@pytest.mark.parametrize(("e", "expected"), CASES, ids=[print_node(e) for e, _ in CASES])
def test_rules(e, expected):
    result = contract(e)
    assert print_node(result) == expected
    if expected == print_node(e):
        assert result is e


def program(*, functions=()) -> Program:
    out = allocate("out", Scope.GLOBAL, float32, (8,))
    x, y, thread = Var("x", float32), Var("y", float32), Var("thread", int32)
    product = Var("product", float32)
    body = Seq(
        (
            Let(product, x * y),
            Store(out, (constant(0),), product + y),
            Store(out, (constant(1),), product + x * y),
        )
    )
    blocks = (Var("bx", int32), Var("by", int32), Var("bz", int32))
    kernel = Kernel("k", (1, 1, 1), 32, blocks, thread, body)
    return Program("p", (TensorParameter(out),), (kernel,), functions=functions, stage="gpu")


def test_a_shared_product_is_not_contracted_across_its_name():
    body = contract_fma.run(program(), SM_90A, Options()).kernels[0].body
    assert isinstance(body, Seq)
    assert [print_node(s.value) for s in body.statements if isinstance(s, Store)] == [
        "product + y",
        "fma(x, y, product)",
    ]


def test_functions_and_uncontracted_programs_are_left_alone():
    p = Var("p", float32)
    function = Function("f", (p,), Seq(()), p * p + p)
    original = program(functions=(function,))
    assert contract_fma.run(original, SM_90A, Options(contract=False)) is original
    assert contract_fma.run(original, SM_90A, Options()).functions == (function,)


@pytest.mark.parametrize("dtype", [float16, float32, float64], ids=str)
@pytest.mark.parametrize("form", range(4))
def test_one_rounding(dtype, form, random_generator):
    """Against exact rational arithmetic: the fused result is the nearest of the dtype's numbers around it."""
    x, y, z = (Var(name, dtype) for name in "xyz")
    e, sign_product, sign_addend = [(x * y + z, 1, 1), (x * y - z, 1, -1), (z - x * y, -1, 1), (z + x * y, 1, 1)][form]
    fused = contract(e)
    kind = np.dtype(dtype.name)
    values = {name: random_generator.normal(size=64).astype(kind) for name in "xyz"}
    values["z"][:32] = -(sign_product * sign_addend) * (values["x"] * values["y"])[:32]  # cancels all but the rounding
    result = np.asarray(evaluate(fused, values), kind)
    separate = np.asarray(evaluate(e, values), kind)
    assert (result != separate).any()
    for k in range(64):
        exact = sign_product * Fraction(float(values["x"][k])) * Fraction(float(values["y"][k]))
        exact += sign_addend * Fraction(float(values["z"][k]))
        error = abs(Fraction(float(result[k])) - exact)
        for neighbour in (np.nextafter(result[k], kind.type(np.inf)), np.nextafter(result[k], kind.type(-np.inf))):
            assert error <= abs(Fraction(float(neighbour)) - exact)


def test_constants_keep_their_dtype():
    x = Var("x", bfloat16)
    result = contract(x * x - Const(1.5, bfloat16))
    assert print_node(result) == "fma(x, x, bfloat16(-1.5))"

"""The pass: what it makes of calls; and that everything it makes assembles, prints and parses back."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from ptxtile import target as targets
from ptxtile.errors import LoweringError
from ptxtile.ir.expressions import HARDWARE_FUNCTIONS, Call, Expr, Unary, Var
from ptxtile.ir.parser import parse_program
from ptxtile.ir.printer import print_program
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Let, seq
from ptxtile.ir.types import ARITHMETIC_FLOATS, DType, bfloat16, float16, float32, float64
from ptxtile.ir.verifier import verify
from ptxtile.lower import expand_math
from ptxtile.lower.math import IN_PLACE, NAMES, build, closure
from ptxtile.lower.math.fast import ERRORS, EXPANSIONS
from ptxtile.lower.options import Options
from ptxtile.nvvm import emit
from ptxtile.sim.expressions import evaluate
from tests import ptxas
from tests.nvvm.programs import THREAD, at, program, put, tensor

BINARY = ("atan2", "pow", "hypot", "fmod", "copysign")
TARGET = targets.get("sm_90a")
PRECISE, FAST = Options(), Options(fast_math=True)


def call_program(names: tuple[str, ...], dtype: DType) -> Program:
    """One kernel that stores each function of x (and y) to its own place."""
    x, y, out = tensor("x", dtype), tensor("y", dtype), tensor("out", dtype, 1 << 20)
    stores = [
        put(out, THREAD * len(names) + k, Call(name, (at(x, THREAD), at(y, THREAD))[: 1 + (name in BINARY)], dtype))
        for k, name in enumerate(names)
    ]
    return program([seq(*stores)], [x, y, out])


def expanded(expression: Expr, dtype: DType, options: Options = PRECISE) -> tuple[Expr, Program]:
    """What the pass makes of the value of one store."""
    made = expand_math.run(
        program([put(tensor("out", dtype), THREAD, expression)], [tensor("out", dtype)]), TARGET, options
    )
    body = made.kernels[0].body
    return next(node.value for node in walk(body) if hasattr(node, "value") and hasattr(node, "buffer")), made


def calls(node: object) -> set[str]:
    return {inner.function for inner in walk(node) if isinstance(inner, Call)}


@pytest.mark.parametrize("dtype", ARITHMETIC_FLOATS, ids=str)
def test_only_known_functions_remain(dtype: DType) -> None:
    made = expand_math.run(call_program(NAMES, dtype), TARGET, PRECISE)
    known = {function.name for function in made.functions} | set(HARDWARE_FUNCTIONS)
    assert calls(made.kernels[0].body) <= known
    defined: set[str] = set(HARDWARE_FUNCTIONS)
    for function in made.functions:  # callees come first
        assert calls(function.body) | calls(function.result) <= defined
        assert not any(name.startswith("approx_") for name in calls(function.body) | calls(function.result))
        defined.add(function.name)
    assert len({function.name for function in made.functions}) == len(made.functions)


def test_names_inside_functions_are_unique() -> None:
    names: list[str] = []
    functions = {f.name: f for name in NAMES for dtype in (float32, float64) for f in closure(name, dtype)}
    for function in functions.values():
        names += [parameter.name for parameter in function.parameters]
        names += [node.var.name for node in walk(function.body) if isinstance(node, Let)]
    assert len(set(names)) == len(names) and not set(names) & set(functions)


def test_narrow_formats_use_the_float32_function_and_round_once() -> None:
    out = tensor("out", bfloat16)
    value, made = expanded(Call("exp", (at(out, THREAD),), bfloat16), bfloat16)
    assert [function.name for function in made.functions] == ["math_exp_float32"]
    assert value.dtype == bfloat16 and calls(value) == {"math_exp_float32"}


def test_nothing_to_do_gives_the_same_program() -> None:
    plain = program(
        [put(tensor("out", float32), THREAD, at(tensor("x", float32), THREAD) + 1.0)], [tensor("x", float32)]
    )
    assert expand_math.run(plain, TARGET, PRECISE) is plain


def test_running_twice_changes_nothing() -> None:
    once = expand_math.run(call_program(("sin", "exp"), float32), TARGET, PRECISE)
    assert expand_math.run(once, TARGET, PRECISE) is once


def test_unknown_function_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(LoweringError, match="lgamma"):
        expanded(Call("lgamma", (at(tensor("out", float32), THREAD),), float32), float32)
    with pytest.raises(LoweringError, match="lgamma"):
        build("lgamma", float32)


@pytest.mark.parametrize("name", ["isnan", "isinf", "isfinite"])
@pytest.mark.parametrize("dtype", (float32, float64, float16), ids=str)
def test_classification(name: str, dtype: DType) -> None:
    values = np.array([0.0, -1.0, np.inf, -np.inf, np.nan, np.finfo(dtype.name).max], dtype.name)
    got = evaluate(IN_PLACE[name](Var("x", dtype)), {"x": values})
    assert got.astype(bool).tolist() == getattr(np, name)(values).tolist()


def test_operators_written_as_calls() -> None:
    value, made = expanded(Call("floor", (at(tensor("out", float32), THREAD),), float32), float32)
    assert isinstance(value, Unary) and value.operator == "floor" and not made.functions


@pytest.mark.parametrize("name", sorted(EXPANSIONS))
def test_fast_math(name: str, random_generator: np.random.Generator) -> None:
    """The scaling is right: the simulator computes the approximate instructions exactly, so that only it is left."""
    assert name in ERRORS
    x = random_generator.uniform(0.25, 4, 500).astype(np.float32)
    y = random_generator.uniform(-4, 4, 500).astype(np.float32)
    arguments = (Var("x", float32), Var("y", float32))[: 1 + (name in BINARY)]
    value, made = expanded(Call(name, arguments, float32), float32, FAST)
    assert not any("math_" + name in called for called in calls(value))
    got = evaluate(value, {"x": x, "y": y}, functions=made.functions)
    references = {
        "exp10": lambda a: 10**a, "pow": np.power, "rsqrt": lambda a: a**-0.5,
        "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    }  # fmt: skip
    function = references.get(name) or getattr(np, name)
    expected = function(*(a.astype(np.float64) for a in (x, y)[: len(arguments)]))
    np.testing.assert_allclose(got, expected, rtol=4e-6, atol=1e-7)


def test_fast_division_and_root() -> None:
    out = tensor("out", float32)
    quotient = at(out, THREAD) / at(out, THREAD + 1)
    assert calls(expanded(quotient, float32, FAST)[0]) == {"approx_div"}
    assert calls(expanded(quotient, float32)[0]) == set()
    assert calls(expanded(Unary("sqrt", quotient, float32), float32, FAST)[0]) == {"approx_div", "approx_sqrt"}
    wide = at(tensor("wide", float64), THREAD)
    assert calls(expanded(wide / wide, float64, FAST)[0]) == set()


@pytest.mark.parametrize("dtype", (float32, float64, float16), ids=str)
def test_text_form_keeps_everything(dtype: DType) -> None:
    made = expand_math.run(call_program(NAMES, dtype), TARGET, PRECISE)
    assert parse_program(print_program(made)) == made


@pytest.mark.parametrize("dtype", ARITHMETIC_FLOATS, ids=str)
def test_verifier_accepts_the_functions(dtype: DType) -> None:
    verify(replace(expand_math.run(call_program(NAMES, dtype), TARGET, PRECISE), launch=None))  # the record is a stub


def test_a_call_of_a_vector_is_one_of_each_lane() -> None:
    x, out = tensor("x", float32), tensor("out", float32)
    pair = float32.with_lanes(2)
    made = program([put(out, THREAD * 2, Call("exp", (at(x, THREAD * 2, lanes=2),), pair))], [x, out])
    ptx = emit(expand_math.run(made, TARGET, PRECISE), TARGET).ptx
    assert ptx.count("fma.rn.f32") == 2 * emit(
        expand_math.run(call_program(("exp",), float32), TARGET, PRECISE), TARGET
    ).ptx.count("fma.rn.f32")


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("options", [PRECISE, FAST], ids=["precise", "fast"])
@pytest.mark.parametrize("dtype", ARITHMETIC_FLOATS, ids=str)
def test_assembles(dtype: DType, options: Options, architecture: str) -> None:
    target = targets.get(architecture)
    made = expand_math.run(call_program(NAMES, dtype), target, options)
    ptx = emit(made, target).ptx
    log = ptxas.assemble(ptx, architecture)
    assert re.search(r"\b0 bytes spill stores", log)
    assert ".local" not in ptx, "scalars of device functions must become registers"


MOST_INSTRUCTIONS = {
    "exp": 18, "exp2": 17, "log": 30, "log2": 38, "sigmoid": 26, "tanh": 33, "erf": 46, "sin": 32, "cos": 32, "pow": 122
}  # fmt: skip
"""PTX instructions of the float32 function, apart from the kernel around it and from functions out of line."""


@pytest.mark.parametrize("name", MOST_INSTRUCTIONS)
def test_instruction_counts(name: str) -> None:
    def instructions(program: Program) -> int:
        ptx = emit(program, TARGET).ptx
        kernel = ptx[ptx.index(".entry") :]
        kernel = kernel[: kernel.index("\n}")]
        return len(re.findall(r"^\s+(?:@\S+ )?[a-z][\w.]*\s.*;$", kernel, flags=re.MULTILINE))

    x, out = tensor("x", float32), tensor("out", float32)
    y = tensor("y", float32)
    arguments = (at(x, THREAD), at(y, THREAD))[: 1 + (name in BINARY)]
    with_call = expand_math.run(
        program([put(out, THREAD, Call(name, arguments, float32))], [x, y, out]), TARGET, PRECISE
    )
    without = program(
        [put(out, THREAD, -arguments[0] if len(arguments) == 1 else arguments[0] + arguments[1])], [x, y, out]
    )
    assert instructions(with_call) - instructions(without) + 1 <= MOST_INSTRUCTIONS[name]

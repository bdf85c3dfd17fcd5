"""Every operator × dtype × architecture makes PTX that the assembler takes, of the lowest PTX ISA version."""

from __future__ import annotations

import pytest

from ptxtile import target as targets
from ptxtile.errors import TargetError
from ptxtile.ir import types
from ptxtile.ir.expressions import (
    BINARY_OPERATORS,
    BITWISE,
    COMPARISONS,
    Binary,
    Bitcast,
    Broadcast,
    Call,
    Cast,
    Compare,
    Expr,
    Select,
    Unary,
    Var,
    constant,
)
from ptxtile.ir.types import DType, bool_, int32
from ptxtile.nvvm import emit
from ptxtile.target import Feature
from tests import ptxas
from tests.nvvm.programs import THREAD, at, program, put, tensor

INTEGERS = tuple(types.BY_NAME[f"{sign}{bits}"] for sign in ("int", "uint") for bits in (8, 16, 32, 64))
FLOATS = types.ARITHMETIC_FLOATS
VALUES = (bool_, *INTEGERS, *FLOATS)
FLOAT_OPERATORS = ("add", "sub", "mul", "div", "min", "max")


def binary_operators(dtype: DType) -> tuple[str, ...]:
    if dtype.is_float:
        return FLOAT_OPERATORS
    if dtype.is_bool:
        return ("and", "or", "xor", "min", "max")
    return tuple(operator for operator in BINARY_OPERATORS if operator != "div")


def unary_operators(dtype: DType) -> tuple[str, ...]:
    if dtype.is_float:
        return ("neg", "abs", "sqrt", "floor", "ceil", "trunc", "rint")
    return ("not",) if dtype.is_bool else ("neg", "abs", "not")


def results(dtype: DType) -> list[Expr]:
    """One expression for every operator on values of ``dtype``."""
    a, b, c = (at(tensor(name, dtype), THREAD) for name in "abc")
    found: list[Expr] = [Binary(operator, a, b, dtype) for operator in binary_operators(dtype)]
    if dtype.is_integer:
        found += [Binary(operator, a, constant(3, dtype), dtype) for operator in ("floordiv", "floormod", "shl", "shr")]
        found += [Binary(operator, a, constant(200, dtype), dtype) for operator in ("shl", "shr")]
        found += [Call(name, (a,), int32) for name in ("popcount", "leading_zeros")]
    if dtype.is_float:
        found.append(Call("fma", (a, b, c), dtype))
        found += [Binary("add", a, constant(value, dtype), dtype) for value in (0.1, float("inf"), float("nan"), 1e39)]
    found += [Unary(operator, a, dtype) for operator in unary_operators(dtype)]
    found += [Compare(operator, a, b, bool_) for operator in COMPARISONS]
    found.append(Select(at(tensor("d", bool_), THREAD), a, b, dtype))
    return found


def store_all(expressions: list[Expr]) -> tuple[list, list]:
    """Statements that store each expression, and the tensors stored to, one for each dtype."""
    outputs = {}
    statements = []
    for position, expression in enumerate(expressions):
        lanes = expression.dtype.lanes
        output = outputs.setdefault(
            expression.dtype.element, tensor(f"out_{expression.dtype.element}", expression.dtype.element)
        )
        statements.append(put(output, THREAD * 16 + position * 4096 * lanes, expression))
    return statements, list(outputs.values())


@pytest.mark.parametrize("name", targets.names())
@pytest.mark.parametrize("dtype", VALUES, ids=str)
def test_every_operator(name: str, dtype: DType) -> None:
    target = targets.get(name)
    statements, outputs = store_all(results(dtype))
    inputs = [tensor(letter, dtype) for letter in "abc"] + [tensor("d", bool_)]
    module = emit(program(statements, [*inputs, *outputs]), target)
    assert module.ptx_isa == target.minimum_ptx_isa
    assert f".target {name}" in module.ptx
    log = ptxas.assemble(module.ptx, name)
    assert "warning" not in log, log


@pytest.mark.parametrize("name", targets.names())
def test_every_cast(name: str) -> None:
    expressions: list[Expr] = []
    inputs = [tensor(f"in_{dtype}", dtype) for dtype in VALUES]
    for source in inputs:
        value = at(source, THREAD)
        expressions += [Cast(value, dtype) for dtype in VALUES if dtype != source.dtype]
        same_width = [d for d in VALUES if d.bits == source.dtype.bits and d != source.dtype]
        expressions += [Bitcast(value, dtype) for dtype in same_width]
    statements, outputs = store_all(expressions)
    module = emit(program(statements, [*inputs, *outputs]), targets.get(name))
    assert "warning" not in ptxas.assemble(module.ptx, name)


@pytest.mark.parametrize("name", targets.names())
def test_vectors(name: str) -> None:
    """Vector loads, arithmetic on lanes, and vector stores of 2 to 16 bytes."""
    for dtype in VALUES:
        lanes = 16 * 8 // dtype.bits
        wide = dtype.with_lanes(lanes)
        a, b = (at(tensor(letter, dtype), THREAD * lanes, lanes) for letter in "ab")
        operator = "or" if dtype.is_bool else "add"
        value = Binary(operator, a, Broadcast(at(tensor("b", dtype), THREAD), wide), wide)
        chosen = Select(Compare("lt", THREAD, constant(7), bool_), value, b, wide)
        module = emit(
            program([put(tensor("c", dtype), THREAD * lanes, chosen)], [tensor(letter, dtype) for letter in "abc"]),
            targets.get(name),
        )
        assert module.ptx.count("ld.global.nc.v") == 2, module.ptx
        assert module.ptx.count("st.global.v") == 1, module.ptx
        ptxas.assemble(module.ptx, name)


HARDWARE_F32 = ("ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt")


@pytest.mark.parametrize("name", targets.names())
def test_hardware_functions(name: str) -> None:
    x, y = (at(tensor(letter, types.float32), THREAD) for letter in "xy")
    expressions: list[Expr] = [Call(f"approx_{function}", (x,), types.float32) for function in HARDWARE_F32]
    expressions.append(Call("approx_div", (x, y), types.float32))
    statements, outputs = store_all(expressions)
    module = emit(
        program(statements, [tensor("x", types.float32), tensor("y", types.float32), *outputs]), targets.get(name)
    )
    for function in HARDWARE_F32:
        flush = "" if function == "tanh" else ".ftz"
        assert module.ptx.count(f"\t{function}.approx{flush}.f32") == 1
    assert module.ptx.count("div.full.ftz.f32") == 1
    ptxas.assemble(module.ptx, name)


@pytest.mark.parametrize("name", targets.names())
@pytest.mark.parametrize("dtype", [types.float8_e4m3fn, types.float8_e5m2], ids=str)
def test_float8(name: str, dtype: DType) -> None:
    """Copies work everywhere, conversions where the card has the instruction."""
    target = targets.get(name)
    source, copy = tensor("source", dtype), tensor("copy", dtype)
    module = emit(program([put(copy, THREAD * 16, at(source, THREAD * 16, 16))], [source, copy]), target)
    assert "ld.global.nc.v4.b32" in module.ptx and "st.global.v4.b32" in module.ptx
    wide = tensor("wide", types.float32)
    body = [
        put(wide, THREAD, Cast(at(source, THREAD), types.float32)),
        put(copy, THREAD, Cast(at(tensor("other", types.float16), THREAD), dtype)),
    ]
    made = program(body, [source, copy, wide, tensor("other", types.float16)])
    if not target.has(Feature.FP8_CONVERT):
        with pytest.raises(TargetError, match="FP8_CONVERT"):
            emit(made, target)
        return
    module = emit(made, target)
    assert module.ptx_isa == target.isa_of(Feature.FP8_CONVERT)
    ptxas.assemble(module.ptx, name)


def test_no_float_operator_is_left_out() -> None:
    assert set(BINARY_OPERATORS) == set(FLOAT_OPERATORS) | set(binary_operators(int32))
    assert set(BITWISE) <= set(binary_operators(int32))


def test_scalar_parameters_of_every_dtype() -> None:
    scalars = [Var(f"s_{dtype}", dtype) for dtype in VALUES]
    statements, outputs = store_all(list(scalars))
    module = emit(program(statements, outputs, scalars=scalars), targets.get("sm_90"))
    ptxas.assemble(module.ptx, "sm_90")
    parameters = [line for line in module.ptx.splitlines() if line.startswith("\t.param")][len(outputs) :]
    for dtype, line in zip(VALUES, parameters, strict=True):
        spellings = [f".{letter}{dtype.bits} " for letter in "bufs"] + [f".align {dtype.bits // 8} .b8 "]
        assert any(spelling in line for spelling in spellings), (dtype, line)

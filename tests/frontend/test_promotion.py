"""The dtype of every operation on every pair of dtypes is TileLang's, apart from the exceptions listed here."""

from __future__ import annotations

import json
import operator
from pathlib import Path

import pytest

import ptxtile.language as T
from ptxtile.errors import TypeMismatchError
from ptxtile.frontend import promotion
from ptxtile.frontend.values import Value
from ptxtile.ir.expressions import Var
from ptxtile.ir.types import BY_NAME, parse_dtype

TABLE = json.loads((Path(__file__).parent / "tilelang_promotion.json").read_text())
OPERATORS = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv,
    "floordiv": operator.floordiv, "mod": operator.mod, "and": operator.and_, "shl": operator.lshift,
    "min": T.min, "max": T.max, "if_then_else": lambda a, b: T.if_then_else(variable("bool"), a, b),
}  # fmt: skip
NUMBERS = {"int": 1, "float": 1.5, "bool": True}
ARITHMETIC = ("add", "sub", "mul", "floordiv", "mod", "shl")


def variable(dtype: str) -> Value:
    return Value(Var("x", parse_dtype(dtype)))


def exception(name: str, left: str, right: str, theirs: str) -> str | None:
    """Our answer where it differs from TileLang's on purpose, else None."""
    kinds = {left, right} - {"right", "left"}
    if name in ARITHMETIC and kinds == {"bool"}:
        return "int32"
    if name == "div" and not any("float" in kind for kind in kinds):
        return "float32"
    if name not in ("and", "if_then_else", "max", "min") and theirs.startswith("float8"):
        return "error"  # 8-bit floats are only stored, copied, cast and compared
    return None


CASES = [(name, *key.split(), theirs) for name, rows in TABLE["pairs"].items() for key, theirs in rows.items()]


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_pairs(name):
    seen = 0
    for operation, left, right, theirs in CASES:
        if operation != name:
            continue
        seen += 1
        expected = exception(name, left, right, theirs) or theirs
        check(name, variable(left), variable(right), expected, (left, right))
    assert seen > 60


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_python_numbers(name):
    for key, theirs in TABLE["numbers"].get(name, {}).items():
        dtype, kind, side = key.split()
        number, value = NUMBERS[kind], variable(dtype)
        expected = exception(name, dtype, kind if kind == "float" else "int32" if kind == "int" else "bool", theirs)
        pair = (value, number) if side == "right" else (number, value)
        check(name, *pair, expected or theirs, key)


def check(name, left, right, expected, case):
    if expected == "error":
        with pytest.raises(TypeMismatchError):
            OPERATORS[name](left, right)
        return
    got = OPERATORS[name](left, right)
    assert got.dtype == expected, (name, case, got.dtype, expected)


def test_the_table_covers_the_dtypes():
    named = {name for _, left, right, _ in CASES for name in (left, right)}
    assert named == set(BY_NAME) - {
        "int4", "uint4", "tfloat32", "float8_e8m0fnu", "float4_e2m1fn",
    }  # fmt: skip


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
def test_comparisons_are_bool_in_the_common_dtype(compare):
    for left in ("int8", "uint32", "float16", "float64"):
        for right in ("int64", "float32", "bool"):
            value = compare(variable(left), variable(right))
            assert value.dtype == "bool"
            common = promotion.promote(parse_dtype(left), parse_dtype(right))
            assert value.expr.left.dtype == value.expr.right.dtype == common


@pytest.mark.parametrize(
    "number, dtype", [(2**31 - 1, "int32"), (2**31, "int64"), (-(2**31), "int32"), (2**63, "uint64")]
)
def test_python_ints_are_as_wide_as_they_need(number, dtype):
    assert (variable("int8") + number).dtype == dtype


def test_shifts_and_masks_keep_the_dtype():
    x = variable("uint8")
    assert ((x >> 4) & 0xF).dtype == "uint8"
    assert ((x & 0xF) - 8).dtype == "int32"  # so that it may be negative
    with pytest.raises(TypeMismatchError, match="negative shift"):
        x >> -1
    with pytest.raises(TypeMismatchError, match="needs integers"):
        variable("float32") & 1


def test_functions_of_integers_are_float32():
    assert T.exp(variable("int32")).dtype == "float32"
    assert T.exp(variable("bfloat16")).dtype == "bfloat16"
    assert T.atan2(variable("float16"), variable("float64")).dtype == "float64"
    assert (variable("int32") ** 2).dtype == "int32"
    assert (variable("int32") ** 0.5).dtype == "float32"


def test_fits():
    assert promotion.fits(parse_dtype("int8"), parse_dtype("float16"))
    assert not promotion.fits(parse_dtype("float16"), parse_dtype("int64"))
    assert not promotion.fits(parse_dtype("int64"), parse_dtype("int32"))


@pytest.mark.parametrize("name", ["float16", "bfloat16", "int8", "uint64", "bool", "float8_e4m3fn"])
def test_dtypes_are_equal_to_their_other_names(name):
    import torch

    mine = getattr(T, name)
    assert mine == name == str(mine)
    assert mine == getattr(torch, name)
    assert mine.as_torch() is getattr(torch, name)
    assert T.cast(variable("int32"), getattr(torch, name)).dtype == mine == T.cast(variable("int32"), name).dtype
    assert {mine: 1}[T.dtype(parse_dtype(name))] == 1

"""Operators and functions on traced values compute what Python and NumPy compute."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ptxtile.language as T
from ptxtile.errors import TypeMismatchError
from ptxtile.ir.expressions import Call, Load, Unary
from ptxtile.ir.rewrite import walk
from tests.frontend.interpreter import run
from tests.frontend.tracing import same_as_python, traced

INTS = st.lists(st.integers(-100, 100), min_size=4, max_size=4).map(lambda v: np.array(v, np.int32))
FLOATS = st.lists(
    st.one_of(st.floats(-50, 50, width=32), st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan])),
    min_size=4, max_size=4,
).map(lambda v: np.array(v, np.float32))  # fmt: skip
OUT_I, OUT_F = np.zeros(24, np.int32), np.zeros(24, np.float32)


@given(INTS)
def test_integer_operators(row):
    def body(A, B):
        a = A[0]
        b = A[1]
        B[0] = a + b
        B[1] = a - 7
        B[2] = 7 - a
        B[3] = a * b
        B[4] = a // 3
        B[5] = a % 3
        B[6] = a // -3
        B[7] = a % -3
        B[8] = -a
        B[9] = abs(a)
        B[10] = ~a
        B[11] = a & b
        B[12] = a | 12
        B[13] = a ^ b
        B[14] = a << 2
        B[15] = a >> 1
        B[16] = a**2
        B[17] = a**3 - a**1 + a**0
        B[18], B[19] = divmod(a, 7)
        B[20] = +a
        B[21] = round(a)

    same_as_python(body, row, OUT_I)


@given(INTS)
def test_comparisons(row):
    def body(A, B):
        a = A[0]
        b = A[1]
        B[0] = 1 if a < b else 0
        B[1] = 1 if a <= 3 else 0
        B[2] = 1 if 3 > a else 0
        B[3] = 1 if a >= b else 0
        B[4] = 1 if a == b else 0
        B[5] = 1 if a != 0 else 0
        B[6] = 1 if not a else 0

    same_as_python(body, row, OUT_I)


@given(FLOATS)
def test_float_operators(row):
    def body(A, B):
        a = A[0]
        b = A[1]
        B[0] = a + b
        B[1] = a - b
        B[2] = a * b
        B[3] = a / b
        B[4] = a + 1
        B[5] = 2.0 * a
        B[6] = -a
        B[7] = abs(a)
        B[8] = a * a
        B[9] = 1 / a

    same_as_python(body, row, OUT_F)


@given(st.floats(-50, 50, width=32), st.floats(-9, 9, width=32).filter(lambda x: abs(x) > 1e-3))
def test_float_floor_division_and_modulo(a, b):
    def body(A, B):
        B[0] = A[0] % A[1]
        B[1] = A[0] // A[1]

    same_as_python(body, np.array([a, b], np.float32), OUT_F)


@given(FLOATS)
def test_rounding_functions(row):
    @T.prim_func
    def main(A: T.Tensor((4,), "float32"), B: T.Tensor((9,), "float32")):
        with T.Kernel(1, threads=1):
            B[0] = T.floor(A[0])
            B[1] = T.ceil(A[0])
            B[2] = T.trunc(A[0])
            B[3] = T.round(A[0])
            B[4] = T.rint(A[0])
            B[5] = T.sqrt(A[0])
            B[6] = T.max(A[0], A[1])
            B[7] = T.min(A[0], A[1])
            B[8] = T.clamp(A[0], -1.0, 1.0)

    memory = {"A": row.copy(), "B": np.zeros(9, np.float32)}
    run(traced(main), memory)
    with np.errstate(all="ignore"):
        a, b = row[0], row[1]
        expected = [np.floor(a), np.ceil(a), np.trunc(a), np.rint(a), np.rint(a), np.sqrt(a), np.maximum(a, b)]
        expected += [np.minimum(a, b), np.clip(a, np.float32(-1), np.float32(1))]
    np.testing.assert_array_equal(memory["B"], np.array(expected, np.float32))


@given(FLOATS)
def test_classification(row):
    @T.prim_func
    def main(A: T.Tensor((4,), "float32"), B: T.Tensor((3,), "int32")):
        with T.Kernel(1, threads=1):
            B[0] = T.isnan(A[0])
            B[1] = T.isinf(A[0])
            B[2] = T.isfinite(A[0])

    memory = {"A": row.copy(), "B": np.zeros(3, np.int32)}
    run(traced(main), memory)
    assert memory["B"].tolist() == [np.isnan(row[0]), np.isinf(row[0]), np.isfinite(row[0])]


def test_true_division_of_integers():
    @T.prim_func
    def main(A: T.Tensor((2,), "int32"), B: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=1):
            B[0] = A[0] / A[1]

    memory = {"A": np.array([7, 2], np.int32), "B": np.zeros(1, np.float32)}
    run(traced(main), memory)
    assert memory["B"][0] == 3.5


@pytest.mark.parametrize(
    "name, arguments",
    [(n, 1) for n in (
        "exp exp2 exp10 expm1 log log2 log10 log1p rsqrt sin cos tan asin acos atan sinh cosh tanh erf sigmoid".split()
    )] + [("atan2", 2), ("fmod", 2), ("fma", 3)],
)  # fmt: skip
def test_functions_become_calls(name, arguments):
    function = getattr(T, name)

    @T.prim_func
    def main(A: T.Tensor((4,), "float16"), B: T.Tensor((1,), "float16")):
        with T.Kernel(1, threads=1):
            B[0] = function(*[A[i] for i in range(arguments)])

    calls = [node for node in walk(traced(main).kernels[0].body) if isinstance(node, Call)]
    assert [(call.function, len(call.arguments), call.dtype.name) for call in calls] == [(name, arguments, "float16")]


def test_round_modes():
    @T.prim_func
    def main(A: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=1):
            A[0] = T.round(A[0])
            A[1] = T.round(A[1], "ties-away-from-zero")

    nodes = list(walk(traced(main).kernels[0].body))
    assert [n.operator for n in nodes if isinstance(n, Unary)] == ["rint"]
    assert [n.function for n in nodes if isinstance(n, Call)] == ["round"]


def test_bits():
    @T.prim_func
    def main(A: T.Tensor((1,), "float32"), B: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=1):
            B[0] = T.reinterpret(A[0], T.int32)
            B[1] = T.reinterpret("int32", A[0])
            B[2] = T.cast(A[0], "int8")
            B[3] = T.int32(A[0])

    memory = {"A": np.array([-2.75], np.float32), "B": np.zeros(4, np.int32)}
    run(traced(main), memory)
    assert memory["B"].tolist() == [*2 * [int(memory["A"].view(np.int32)[0])], -2, -2]
    with pytest.raises(TypeMismatchError, match="different widths"):
        T.reinterpret(T.float16(1.0), T.int32)


def test_python_numbers_stay_python_numbers():
    assert T.ceildiv(10, 4) == 3 and isinstance(T.ceildiv(10, 4), int)
    assert T.max(3, 4) == 4 and T.min(2.5, 1) == 1 and T.align_up(5, 4) == 8


def test_every_read_is_its_own_let():
    @T.prim_func
    def main(A: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=1):
            x = A[0] * A[1] + A[0]
            A[2] = x

    from ptxtile.ir.statements import Let

    lets = [node for node in walk(traced(main).kernels[0].body) if isinstance(node, Let)]
    assert [isinstance(let.value, Load) for let in lets] == [True, True, True, False]
    assert lets[-1].var.name == "x"


@pytest.mark.parametrize("operand", [None, "text", [1]])
def test_operands_that_are_no_scalars(operand):
    with pytest.raises(TypeMismatchError, match="not a scalar"):
        T.float32(1.0) + operand

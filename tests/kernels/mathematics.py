"""Functions of the language against mpmath, within the documented bounds of error; special values against torch's."""

from __future__ import annotations

import math

import numpy as np
import torch

import ptxtile
import ptxtile.language as T
from ptxtile.ir.types import BY_NAME
from ptxtile.lower.math import ULP
from tests.kernels import inputs
from tests.kernels.case import Call, Case, Ulps, cases
from tests.lower.math import reference

CASES: list[Case] = []

UNARY = {
    "exp": torch.exp, "exp2": torch.exp2, "exp10": lambda x: torch.pow(10.0, x), "expm1": torch.expm1,
    "sigmoid": torch.sigmoid, "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p,
    "rsqrt": torch.rsqrt, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos,
    "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "erf": torch.erf,
}  # fmt: skip
"""Functions of one argument with torch's, for what mpmath gives no finite real number."""
BINARY = {"pow": torch.pow, "atan2": torch.atan2}
NARROW_ON_CARD = ("exp", "log2", "tanh", "sin", "erf", "rsqrt")


def function_of(name, count, dtype, arity):
    function = getattr(T, name)

    @T.prim_func
    def main(A: T.Tensor((count,), dtype), B: T.Tensor((count,), dtype), C: T.Tensor((count,), dtype)):
        with T.Kernel(T.ceildiv(count, 64), threads=64) as bx:
            for i in T.Parallel(64):
                at = bx * 64 + i
                if at < count:
                    C[at] = function(A[at]) if arity == 1 else function(A[at], B[at])

    return main


def numbers(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(dtype)


def expected_of(name, dtype, torch_function, *arguments):
    """float64 values: mpmath's, correctly rounded to the dtype; where it gives none, torch's in float64."""
    held = [a.float().numpy() if dtype == torch.bfloat16 else a.numpy() for a in arguments]
    exact = torch.from_numpy(reference.correct(name, BY_NAME[inputs.name(dtype)], *held))
    return torch.where(exact.isnan(), torch_function(*(a.double() for a in arguments)), exact)


def bound(name, dtype):
    return ULP[name, inputs.name(dtype)]


SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.0, -2.0, 0.5, -0.5]


@cases(CASES, card=lambda name, dtype: dtype in (torch.float32, torch.float64) or name in NARROW_ON_CARD, name=UNARY,
       dtype=inputs.FLOATS)  # fmt: skip
def unary(generator, name, dtype):
    with np.errstate(all="ignore"):
        random = reference.unary_arguments(generator, BY_NAME[inputs.name(dtype)], 240)
    x = torch.cat([torch.tensor(SPECIAL, dtype=dtype), numbers(random, dtype)])
    kernel = ptxtile.compile(function_of(name, len(x), inputs.name(dtype), 1), out_idx=-1)
    expected = expected_of(name, dtype, UNARY[name], x)
    return Call(kernel, (x, x), expected, tolerance=Ulps(bound(name, dtype)))


@cases(CASES, card=lambda name, dtype: dtype in (torch.float32, torch.float64), name=BINARY, dtype=inputs.FLOATS)
def binary(generator, name, dtype):
    with np.errstate(all="ignore"):
        like = "float32" if dtype == torch.bfloat16 else inputs.name(dtype)
        random = reference.binary_arguments(generator, BY_NAME[like], 240)
    special = torch.tensor([[a, b] for a in SPECIAL for b in SPECIAL], dtype=dtype).T
    x, y = (torch.cat([special[side], numbers(random[side], dtype)]) for side in range(2))
    kernel = ptxtile.compile(function_of(name, len(x), inputs.name(dtype), 2), out_idx=-1)
    expected = expected_of(name, dtype, BINARY[name], x, y)
    return Call(kernel, (x, y), expected, tolerance=Ulps(bound(name, dtype)))


FAST = {
    "exp": ((-4, 4), Ulps(2 + math.floor(1.173 * 4))), "exp2": ((-4, 4), Ulps(2)), "exp10": ((-2, 2), Ulps(2 + 5)),
    "log": ((2, 1000), Ulps(3)), "log2": ((2, 1000), Ulps(2)), "log10": ((2, 1000), Ulps(3)),
    "sin": ((-3.14, 3.14), Ulps(0, 2.0**-21.41)), "cos": ((-3.14, 3.14), Ulps(0, 2.0**-21.19)),
    "tan": ((-1.2, 1.2), Ulps(16, 2.0**-19)), "tanh": ((-4, 4), Ulps(2**14, 0)), "rsqrt": ((0.01, 100), Ulps(4)),
    "sigmoid": ((-4, 4), Ulps(12)), "sqrt": ((0.01, 100), Ulps(3)), "erf": ((-2, 2), Ulps(2)),
}  # fmt: skip
"""Intervals with the bounds of CUDA's intrinsic functions and of PTX's approximate instructions there (2^-11 of a
number is up to 2^13 ulp, a relative 2^-22.9 up to 3 ulp)."""


@cases(CASES, card=True, name=FAST)
def fast(generator, name):
    low, high = FAST[name][0]
    x = torch.from_numpy(generator.uniform(low, high, 500)).float()
    if name == "sqrt":
        expected = x.double().sqrt()
    else:
        expected = expected_of(name, torch.float32, UNARY[name], x)
    kernel = ptxtile.compile(function_of(name, len(x), "float32", 1), out_idx=-1, fast_math=True)
    return Call(kernel, (x, x), expected, tolerance=FAST[name][1])


@ptxtile.jit
def gelu(A, block=32):
    """A mix of functions on a tile that lies in shared memory on its way, as users write activations."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), T.float16)
    B = T.empty((M, N), T.float16)
    with T.Kernel(T.ceildiv(N, block), T.ceildiv(M, block), threads=128) as (bx, by):
        staged = T.alloc_shared((block, block), T.float16)
        held = T.alloc_fragment((block, block), T.float32)
        T.copy(A[by * block, bx * block], staged)
        T.copy(staged, held)
        for i, j in T.Parallel(block, block):
            x = held[i, j]
            held[i, j] = 0.5 * x * (1.0 + T.erf(x * 0.7071067811865476))
        T.copy(held, B[by * block, bx * block])
    return B


@cases(CASES, card=True, shape=[(64, 96), (33, 70)])
def activations(generator, shape):
    a = inputs.moderate(generator, shape, torch.float16)
    return Call(gelu, (a,), torch.nn.functional.gelu(a.double()), tolerance=Ulps(1, 1e-5))


@cases(CASES, card=True, name=["exp", "sqrt", "sin", "log2"])
def of_integers(generator, name):
    """A float function of an integer computes in float32."""
    x = torch.from_numpy(generator.integers(1, 60, 100)).to(torch.int32)
    function = getattr(T, name)

    @T.prim_func
    def main(A: T.Tensor((100,), "int32"), B: T.Tensor((100,), "float32")):
        with T.Kernel(1, threads=128):
            for i in T.Parallel(100):
                B[i] = function(A[i])

    kernel = ptxtile.compile(main, out_idx=-1)
    return Call(kernel, (x,), getattr(torch, name)(x.double()), tolerance=Ulps(2))

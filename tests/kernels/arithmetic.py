"""Operators on scalars: integers with their signs and widths, exact float operations, comparisons, extrema."""

from __future__ import annotations

import math

import numpy as np
import torch

import ptxtile
import ptxtile.language as T
from tests.kernels import inputs
from tests.kernels.case import EXACT, Call, Case, Ulps, cases

CASES: list[Case] = []
SIGNED_OR_NOT = {inputs.name(dtype): dtype for dtype in inputs.INTEGERS}
WIDE_INTEGERS = (torch.int32, torch.int64, torch.uint32, torch.uint64)


def binary_factory(count, dtype, operations, results, block=64):
    """One output for each operation of the traced scalars x and y."""
    operations = list(operations)
    results = [*results, *["bool"] * (6 - len(operations))]

    @T.prim_func
    def main(
        A: T.Tensor((count,), dtype),
        B: T.Tensor((count,), dtype),
        C0: T.Tensor((count,), results[0]),
        C1: T.Tensor((count,), results[1]),
        C2: T.Tensor((count,), results[2]),
        C3: T.Tensor((count,), results[3]),
        C4: T.Tensor((count,), results[4]),
        C5: T.Tensor((count,), results[5]),
    ):
        outputs = [C0, C1, C2, C3, C4, C5]
        with T.Kernel(T.ceildiv(count, block), threads=64) as bx:
            for i in T.Parallel(block):
                at = bx * block + i
                if at < count:
                    x, y = A[at], B[at]
                    for operation, output in zip(operations, outputs, strict=False):
                        output[at] = operation(x, y)

    return main


def binary(a, b, operations, expected, tolerance=EXACT, **options):
    """A call with up to six operations on the elements of two tensors; expected: their results."""
    kernel = ptxtile.jit(out_idx=[2 + number for number in range(len(operations))], **options)(
        lambda: binary_factory(len(a), inputs.name(a.dtype), operations, [inputs.name(r.dtype) for r in expected])
    )
    unused = [torch.zeros(len(a), dtype=torch.bool) for _ in range(6 - len(operations))]
    return Call(kernel(), (a, b, *unused), tuple(expected) if len(expected) > 1 else expected[0], tolerance=tolerance)


def integer_pairs(generator, dtype, count=400):
    """Edges with edges, then random bits, then small numbers."""
    edges = inputs.special(dtype).numpy()
    picks = generator.choice(edges, (2, count))
    random = [inputs.random_bits(generator, (count,), dtype).numpy() for _ in range(2)]
    low = 0 if dtype in inputs.UNSIGNED else -9
    small = generator.integers(low, 10, (2, count)).astype(edges.dtype)
    return [np.concatenate([picks[side], random[side], small[side]]) for side in range(2)]


def tensors(*arrays):
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


@cases(CASES, card=True, dtype=inputs.INTEGERS)
def integer_division(generator, dtype):
    """// and % floor, truncdiv and truncmod truncate, in all signs. By zero, and the smallest by -1, are left out."""
    x, y = integer_pairs(generator, dtype)
    keep = y != 0
    if dtype in inputs.SIGNED:
        keep &= ~((x == np.iinfo(x.dtype).min) & (y == -1))
    x, y = x[keep], y[keep]
    quotient = np.array(
        [abs(int(a)) // abs(int(b)) * (1 if (a < 0) == (b < 0) else -1) for a, b in zip(x, y, strict=True)]
    )
    quotient = np.array(quotient.tolist(), dtype=x.dtype)
    with np.errstate(over="ignore"):
        remainder = x - quotient * y
        expected = tensors(x // y, x % y, quotient, remainder)
    operations = [lambda x, y: x // y, lambda x, y: x % y, T.truncdiv, T.truncmod]
    return binary(*tensors(x, y), operations, expected)


@cases(CASES, card=lambda dtype, divisor: dtype == torch.int32 or divisor in (-7, 8),
       dtype=[torch.int32, torch.int64, torch.uint32], divisor=[1, -1, 3, -7, 8, -16, 100, 2**31 - 1])  # fmt: skip
def division_by_a_constant(generator, dtype, divisor):
    x = np.concatenate(integer_pairs(generator, dtype, 100))
    if divisor < 0 and dtype in inputs.UNSIGNED:
        divisor = -divisor
    if divisor == -1:
        x = x[x != np.iinfo(x.dtype).min]
    d = x.dtype.type(divisor)
    constant = getattr(T, inputs.name(dtype))
    operations = [lambda x, _: x // constant(divisor), lambda x, _: x % constant(divisor)]
    return binary(*tensors(x, x), operations, tensors(x // d, x % d))


@cases(CASES, card=True, dtype=inputs.INTEGERS)
def integer_arithmetic(generator, dtype):
    """+ - * and unary - wrap; minimum and maximum."""
    x, y = integer_pairs(generator, dtype)
    with np.errstate(over="ignore"):
        expected = tensors(x + y, x - y, x * y, np.negative(x), np.minimum(x, y), np.maximum(x, y))
    operations = [
        lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: -x, T.min, T.max,
    ]  # fmt: skip
    return binary(*tensors(x, y), operations, expected)


@cases(CASES, card=True, dtype=inputs.INTEGERS)
def shifts(generator, dtype):
    """Counts from 0 to the width less one; >> keeps the sign of signed integers."""
    x, _ = integer_pairs(generator, dtype)
    count = generator.integers(0, 8 * dtype.itemsize, len(x)).astype(x.dtype)
    operations = [
        lambda x, y: x << y,
        lambda x, y: x >> y,
        lambda x, y: x << 3,
        lambda x, y: x >> 3,
        T.shift_left,
        T.shift_right,
    ]
    three = x.dtype.type(3)
    return binary(*tensors(x, count), operations,
                  tensors(x << count, x >> count, x << three, x >> three, x << count, x >> count))  # fmt: skip


@cases(CASES, card=True, dtype=inputs.INTEGERS)
def bits(generator, dtype):
    x, y = integer_pairs(generator, dtype)
    operations = [lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x ^ y, lambda x, y: ~x, lambda x, y: abs(x)]
    with np.errstate(over="ignore"):
        return binary(*tensors(x, y), operations, tensors(x & y, x | y, x ^ y, ~x, np.abs(x)))


@cases(CASES, card=True, dtype=WIDE_INTEGERS)
def counted_bits(generator, dtype):
    x, y = integer_pairs(generator, dtype, 100)
    width = 8 * dtype.itemsize
    texts = [format(int(value) % (1 << width), f"0{width}b") for value in x]
    ones = np.array([text.count("1") for text in texts], np.int32)
    zeros = np.array([len(text) - len(text.lstrip("0")) for text in texts], np.int32)
    return binary(*tensors(x, y), [lambda x, y: T.popcount(x), lambda x, y: T.clz(x)], tensors(ones, zeros))


@cases(
    CASES, card=lambda dtype: dtype.is_floating_point or dtype in (torch.int8, torch.uint64), dtype=inputs.ARITHMETIC
)
def comparisons(generator, dtype):
    """All six; with NaN only != holds."""
    if dtype.is_floating_point:
        special = inputs.special(dtype)
        index = torch.from_numpy(generator.integers(0, len(special), (2, 500)))
        x, y = special[index[0]], special[index[1]]
        y = torch.where(torch.rand(500) < 0.2, x, y)
        wide, other = x.double().numpy(), y.double().numpy()
    else:
        wide, other = integer_pairs(generator, dtype)
        x, y = tensors(wide, other)
    expected = tensors(wide == other, wide != other, wide < other, wide <= other, wide > other, wide >= other)
    operations = [
        lambda x, y: x == y, lambda x, y: x != y, lambda x, y: x < y, lambda x, y: x <= y, lambda x, y: x > y,
        lambda x, y: x >= y,
    ]  # fmt: skip
    return binary(x, y, operations, expected)


@cases(CASES, card=True)
def booleans(generator):
    """& | ^ ~ of bools are logic; + of bools counts; False < True."""
    x, y = (inputs.random_bits(generator, (100,), torch.bool) for _ in range(2))
    operations = [
        lambda x, y: x & y, lambda x, y: x | y, lambda x, y: x ^ y, lambda x, y: ~x, lambda x, y: x + y,
        lambda x, y: x < y,
    ]  # fmt: skip
    return binary(x, y, operations, [x & y, x | y, x ^ y, ~x, x.int() + y.int(), ~x & y])


@cases(CASES, card=True)
def boolean_extrema(generator):
    x, y = (inputs.random_bits(generator, (100,), torch.bool) for _ in range(2))
    return binary(x, y, [T.min, T.max, lambda x, y: T.max(x, False)], [x & y, x | y, x])


# ---------------------------------------------------------------- floats, exact


def float_pairs(generator, dtype, count=400):
    """Random bits (all exponents, NaN, infinities), moderate numbers, landmarks."""
    special = inputs.special(dtype)
    parts = []
    for _ in range(2):
        picks = special[torch.from_numpy(generator.integers(0, len(special), count))]
        parts.append(torch.cat([
            inputs.random_bits(generator, (count,), dtype), inputs.moderate(generator, (count,), dtype), picks,
        ]))  # fmt: skip
    return parts


@cases(CASES, card=True, dtype=inputs.FLOATS)
def float_arithmetic(generator, dtype):
    """+ - * / are rounded once, subnormals included."""
    x, y = float_pairs(generator, dtype)
    operations = [
        lambda x, y: x + y, lambda x, y: x - y, lambda x, y: x * y, lambda x, y: x / y, lambda x, y: -x,
        lambda x, y: abs(x),
    ]  # fmt: skip
    return binary(x, y, operations, [x + y, x - y, x * y, x / y, -x, x.abs()])


@cases(CASES, card=True, dtype=inputs.FLOATS)
def extrema(generator, dtype):
    """A NaN on either side gives NaN. Which zero min(0, -0) gives is open."""
    x, y = float_pairs(generator, dtype)
    low, high = torch.tensor(-1.0, dtype=dtype), torch.tensor(2.0, dtype=dtype)
    operations = [T.min, T.max, lambda x, y: T.clamp(x, -1.0, 2.0), lambda x, y: T.max(x, y, 1.0)]
    clamped = torch.minimum(torch.maximum(x, low), high)
    # A Python float is a float32, so the narrower dtypes compute these two in float32: the same values.
    expected = [torch.minimum(x, y), torch.maximum(x, y), clamped, torch.maximum(torch.maximum(x, y), -low)]
    return binary(x, y, operations, expected, Ulps(0))


@cases(CASES, card=True, dtype=inputs.FLOATS)
def roundings(generator, dtype):
    x, _ = float_pairs(generator, dtype)
    halves = torch.from_numpy(generator.integers(-50, 50, 100) / 2).to(dtype)
    x = torch.cat([x, halves, -halves])
    away = x.double()
    away = torch.where(away.abs() < 2.0**51, (away.abs() + 0.5).floor().copysign(away), away)
    away = torch.where(
        x.double().abs() == 0.49999999999999994, torch.zeros((), dtype=torch.float64).copysign(away), away
    )
    operations = [
        lambda x, y: T.floor(x), lambda x, y: T.ceil(x), lambda x, y: T.trunc(x), lambda x, y: T.round(x),
        lambda x, y: T.nearbyint(x), lambda x, y: T.round(x, "ties-away-from-zero"),
    ]  # fmt: skip
    return binary(x, x, operations, [x.floor(), x.ceil(), x.trunc(), x.round(), x.round(), away.to(dtype)])


@cases(CASES, card=True, dtype=inputs.FLOATS)
def tests_and_roots(generator, dtype):
    """sqrt is rounded once; the tests are exact."""
    x, y = float_pairs(generator, dtype)
    wide = x.to(torch.float64 if dtype == torch.float64 else torch.float32)
    with np.errstate(invalid="ignore"):
        root = torch.from_numpy(np.sqrt(wide.numpy()))  # not torch's, whose vectorised sqrt is not always rounded right
    operations = [
        lambda x, y: T.isnan(x), lambda x, y: T.isinf(x), lambda x, y: T.isfinite(x), lambda x, y: T.sqrt(x),
        lambda x, y: T.if_then_else(x < y, x, y), lambda x, y: T.Select(x != x, y, x),
    ]  # fmt: skip
    return binary(x, y, operations, [
        x.isnan(), x.isinf(), x.isfinite(), root.to(dtype), torch.where(x < y, x, y), torch.where(x.isnan(), y, x),
    ])  # fmt: skip


@cases(CASES, card=True, dtype=inputs.FLOATS)
def float_floor_division(generator, dtype):
    """// and % as Python's: the remainder takes the sign of the divisor and is exact where no addition rounds."""
    x = torch.from_numpy(generator.integers(-1000, 1000, 500) / 4).to(dtype)
    y = torch.from_numpy(generator.choice([-1, 1], 500) * generator.integers(1, 40, 500) / 4).to(dtype)
    pairs = list(zip(x.tolist(), y.tolist(), strict=True))
    quotient = torch.tensor([float(a // b) for a, b in pairs], dtype=torch.float64).to(dtype)
    remainder = torch.tensor([a % b for a, b in pairs], dtype=torch.float64).to(dtype)
    truncated = torch.tensor([math.fmod(a, b) for a, b in pairs], dtype=torch.float64).to(dtype)
    return binary(x, y, [lambda x, y: x // y, lambda x, y: x % y, T.fmod], [quotient, remainder, truncated], Ulps(0))


@cases(CASES, card=True, dtype=[torch.float32, torch.float64])
def fused(generator, dtype):
    """T.fma rounds once; x * y + z is contracted to it, and not under contract=False."""
    x, y = float_pairs(generator, dtype, 200)
    x, y = x[200:400], y[200:400]  # the moderate ones
    if dtype == torch.float32:
        once = (x.double() * y.double() + x.double()).float()  # the product is exact in float64
        return binary(x, y, [lambda x, y: T.fma(x, y, x), lambda x, y: x * y + x], [once, once])
    return binary(x, y, [lambda x, y: x * y + x], [x * y + x], contract=False)


@cases(CASES, card=True, exponent=[0, 1, 2, 3, 5, 8])
def whole_powers(generator, exponent):
    x = torch.from_numpy(generator.integers(-5, 6, 100)).float()
    integer = torch.from_numpy(generator.integers(-5, 6, 100)).to(torch.int32)
    expected = torch.from_numpy(np.power(integer.numpy(), exponent))
    if exponent % 2:
        return binary(
            integer, integer, [lambda x, y: x**exponent, lambda x, y: T.pow(x, exponent)], [expected, expected]
        )
    return binary(x, x, [lambda x, y: x**exponent], [x.double().pow(exponent).float()])


@cases(CASES, card=True, dtype=[torch.float32, torch.float64, torch.float16, torch.bfloat16])
def reinterpreted(generator, dtype):
    x, y = float_pairs(generator, dtype, 100)
    integer = {2: "int16", 4: "int32", 8: "int64"}[dtype.itemsize]
    operations = [
        lambda x, y: T.reinterpret(x, integer),
        lambda x, y: T.reinterpret(T.reinterpret(y, integer), inputs.name(dtype)),
    ]
    return binary(x, y, operations, [x.view(getattr(torch, integer)), y])


@cases(CASES, card=lambda dtype: dtype.is_floating_point, dtype=inputs.ARITHMETIC)
def limits(generator, dtype):
    ours = getattr(T, inputs.name(dtype))
    info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    x = torch.zeros(3, dtype=dtype)
    operations = [lambda x, y: T.max_value(ours), lambda x, y: T.min_value(ours)]
    expected = [torch.tensor([info.max] * 3, dtype=dtype), torch.tensor([info.min] * 3, dtype=dtype)]
    if dtype.is_floating_point:
        operations.append(lambda x, y: T.infinity(ours))
        expected.append(torch.tensor([math.inf] * 3, dtype=dtype))
    return binary(x, x, operations, expected)


@cases(CASES, card=True, pair=["int32*float32", "int8+int32", "uint8-int8", "float16*int64", "int32/int32",
                               "float16+float32",
                               "bool+float32", "int16<<int", "int64+int"])  # fmt: skip
def mixed_dtypes(generator, pair):
    """A float wins over an integer, the wider of two floats or integers, the unsigned one at equal width; / of integers
    is float32."""
    x = torch.from_numpy(generator.integers(1, 11, 60)).to(torch.int32)
    y = torch.from_numpy(generator.integers(1, 11, 60)).to(torch.int32)
    operation, expected = {
        "int32*float32": (lambda x, y: x * T.float32(y), (x * y).float()),
        "int8+int32": (lambda x, y: T.int8(x) + y * 1000, x + y * 1000),
        "uint8-int8": (lambda x, y: T.uint8(x) - T.int8(y), (x - y).to(torch.uint8)),
        "float16*int64": (lambda x, y: T.float16(x) * T.int64(y), (x * y).half()),
        "int32/int32": (lambda x, y: x / y, x.float() / y.float()),
        "float16+float32": (lambda x, y: T.float16(x) + T.float32(y) * 0.0001, x.float() + y.float() * 0.0001),
        "bool+float32": (lambda x, y: (x > y) + T.float32(y), (x > y).float() + y.float()),
        "int16<<int": (lambda x, y: T.int16(x) << 4, (x << 4).to(torch.int16)),
        "int64+int": (lambda x, y: T.int64(x) + (2**40), x.long() + 2**40),
    }[pair]
    return binary(x, y, [operation], [expected], contract=False)

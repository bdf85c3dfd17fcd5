"""Casts between every pair of dtypes, bit-equal to torch's wherever torch's result is defined.

What torch leaves open, and what is therefore not compared: float → integer where the truncated value does not fit in
the integer dtype (infinities and NaN among it), which C++ leaves undefined; and what overflows in float8_e4m3fn, where
torch's versions differ (NaN, or 448).
"""

from __future__ import annotations

import torch

import ptxtile
import ptxtile.language as T
from tests.kernels import inputs
from tests.kernels.case import Call, Case, cases

CASES: list[Case] = []


def cast_factory(count, source, targets, how, block=128):
    """One input, one output for each target dtype."""

    @T.prim_func
    def main(
        A: T.Tensor((count,), source),
        B0: T.Tensor((count,), targets[0]),
        B1: T.Tensor((count,), targets[1]),
        B2: T.Tensor((count,), targets[2]),
        B3: T.Tensor((count,), targets[3]),
        B4: T.Tensor((count,), targets[4]),
    ):
        outputs = [B0, B1, B2, B3, B4]
        with T.Kernel(T.ceildiv(count, block), threads=64) as bx:
            tile = T.alloc_fragment((block,), source)
            T.copy(A[bx * block], tile)
            for output in outputs:
                if how == "copy":
                    T.copy(tile, output[bx * block])
                elif how == "shared":
                    staged = T.alloc_shared((block,), output.dtype)
                    T.copy(tile, staged)
                    T.copy(staged, output[bx * block])
                else:
                    for i in T.Parallel(block):
                        output[bx * block + i] = T.cast(tile[i], output.dtype)

    return main


def defined(source: torch.Tensor, target: torch.dtype) -> torch.Tensor:
    """Where torch's conversion of ``source`` to ``target`` has a defined result."""
    if target == torch.float8_e4m3fn:  # values beyond 464 round past 448, the largest number of the format
        return ~(source.to(torch.float32).abs() > 464)
    if not source.dtype.is_floating_point or target.is_floating_point or target == torch.bool:
        return torch.ones(source.shape, dtype=torch.bool)
    limits = torch.iinfo(target)
    whole = source.to(torch.float64).trunc()
    return (whole >= float(limits.min)) & (whole < float(limits.max) + (1 if limits.bits < 64 else 0))


def arguments_for(generator, source: torch.dtype, target_group) -> torch.Tensor:
    """Landmarks and random bits; where some target leaves a value open, it is left out."""
    random = inputs.random_bits(generator, (300,), source)
    values = torch.cat([inputs.special(source), random])
    if source.is_floating_point:
        scaled = torch.from_numpy(generator.standard_normal(300) * 2.0 ** generator.integers(-30, 60, 300))
        halves = torch.from_numpy(generator.integers(-130, 130, 100) + 0.5)
        values = torch.cat([values, scaled.to(source), halves.to(source)])
    keep = torch.ones(values.shape, dtype=torch.bool)
    for target in target_group:
        keep &= defined(values, target)
    return values[keep]


GROUPS = {
    "floats": (*inputs.FLOATS, torch.bool),
    "float8": (*inputs.EIGHT_BIT_FLOATS, torch.float16, torch.float32, torch.bool),
    "wide_integers": (torch.int64, torch.uint64, torch.int32, torch.uint32, torch.bool),
    "narrow_integers": (torch.int8, torch.uint8, torch.int16, torch.uint16, torch.bool),
}
"""Targets of one kernel each."""

SOURCES = [*inputs.ARITHMETIC, torch.bool, *inputs.EIGHT_BIT_FLOATS]


def pairs(generator, source, group, how):
    targets = GROUPS[group]
    values = arguments_for(generator, source, targets)
    kernel = ptxtile.jit(out_idx=[1, 2, 3, 4, 5])(cast_factory)(
        len(values), inputs.name(source), [inputs.name(target) for target in targets], how
    )
    return Call(kernel, (values,), tuple(values.to(target) for target in targets))


ON_CARD = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint32, torch.float8_e5m2)


@cases(CASES, card=lambda source, group: source in ON_CARD or group == "floats", source=SOURCES, group=GROUPS)
def elements(generator, source, group):
    return pairs(generator, source, group, "elements")


@cases(CASES, source=[torch.float32, torch.float16, torch.int32, torch.uint8, torch.float64], group=GROUPS,
       how=["copy", "shared"])  # fmt: skip
def copies(generator, source, group, how):
    return pairs(generator, source, group, how)


@cases(CASES, card=True, target=[torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint32])
def floats_in_the_range_of_an_integer(generator, target):
    """Dense values within the range of one integer dtype, whose own values the groups above thin out."""
    limits = torch.iinfo(target)
    spread = generator.uniform(float(limits.min), float(limits.max), 500)
    values = torch.from_numpy(spread).to(torch.float64)
    near = torch.tensor([limits.min, limits.max - 1023 if limits.bits == 64 else limits.max, 0, -0.5, 0.5, -0.999, 1.5])
    values = torch.cat([values, near.double()])
    values = values[defined(values, target)]
    other = inputs.name(target)
    kernel = ptxtile.jit(out_idx=[1, 2, 3, 4, 5])(cast_factory)(
        len(values), "float64", [other, "float64", "bool", "float32", "float16"], "elements"
    )
    expected = tuple(values.to(d) for d in (target, torch.float64, torch.bool, torch.float32, torch.float16))
    return Call(kernel, (values,), expected)


@ptxtile.jit
def round_trip(A, dtype="float16"):
    """A value is rounded when it is assigned to a variable or buffer of a narrower dtype, not later."""
    N = T.const("N")
    A: T.Tensor((N,), T.float32)
    B = T.empty((N,), T.float32)
    with T.Kernel(1, threads=64):
        for i in T.Parallel(N):
            narrow = T.cast(A[i], dtype)
            B[i] = T.cast(narrow, T.float32) * 3
    return B


@cases(CASES, card=True, dtype=[torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2])
def rounding_there_and_back(generator, dtype):
    a = inputs.moderate(generator, (500,))
    return Call(lambda *args: round_trip(*args, inputs.name(dtype)), (a,), a.to(dtype).float() * 3)

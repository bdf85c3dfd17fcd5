"""Random arguments: every dtype with its special values, and tensors that start anywhere and lie in any way."""

from __future__ import annotations

import math

import numpy as np
import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
INTEGERS = (*SIGNED, *UNSIGNED)
ARITHMETIC = (*FLOATS, *INTEGERS)
EIGHT_BIT_FLOATS = (torch.float8_e4m3fn, torch.float8_e5m2)
ALL = (*ARITHMETIC, torch.bool, *EIGHT_BIT_FLOATS)


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def random_bits(generator: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """All bit patterns alike: infinities, NaN and subnormals among them; a bool is 0 or 1."""
    count = math.prod(shape)
    if dtype == torch.bool:
        return torch.from_numpy(generator.integers(0, 2, count).astype(bool)).reshape(shape)
    data = torch.from_numpy(generator.integers(0, 256, count * dtype.itemsize, dtype=np.uint8))
    return data.view(dtype).reshape(shape)


def moderate(
    generator: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Numbers without surprises: floats around 1, integers of small size (unsigned: not negative)."""
    count = math.prod(shape)
    if dtype == torch.bool:
        return random_bits(generator, shape, dtype)
    if dtype.is_floating_point:
        return torch.from_numpy(generator.standard_normal(count)).to(dtype).reshape(shape)
    low = 0 if dtype in UNSIGNED else -100
    return torch.from_numpy(generator.integers(low, 100, count)).to(dtype).reshape(shape)


def placed(values: torch.Tensor, offset: int, guard: int = 5) -> torch.Tensor:
    """The contiguous values as a view that starts at element ``offset`` of a storage with room behind it; the room
    holds ones, so that a stray write shows."""
    room = torch.ones(offset + values.numel() + guard, dtype=torch.float32).to(values.dtype)
    view = room[offset : offset + values.numel()].view(values.shape)
    view.copy_(values)
    return view


SPECIAL_FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 0.99999994, 127.0, 127.5, 128.0, 255.0, 255.5, 256.0, 32767.5,
    65504.0, 65519.0, 65520.0, 2.0**31 - 128, 2.0**31, -(2.0**31), 2.0**32, 2.0**53 + 2, 2.0**63, -(2.0**63), 2.0**64,
    3.3895313892515355e38, 3.4028234663852886e38, 1.7976931348623157e308, math.inf, -math.inf, math.nan,
    2.0**-14, 2.0**-24, 2.0**-25, 3 * 2.0**-26, 2.0**-126, 2.0**-133, 2.0**-134, 2.0**-149, 2.0**-150, 3 * 2.0**-151,
    2.0**-1022, 5e-324, 1 + 2.0**-8, 1 + 3 * 2.0**-9, 1 + 2.0**-11, 1 + 3 * 2.0**-12, 1 + 2.0**-24, 1 + 3 * 2.0**-25,
    1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-40, 448.0, 464.0, 464.5, 480.0, 57344.0, 61440.0,
)  # fmt: skip
"""Zeros, ties to even in each narrower format, and the edges of all formats: largest, smallest, subnormal."""


def special(dtype: torch.dtype) -> torch.Tensor:
    """Landmarks of a dtype; those of wider formats that it rounds are rounded."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if dtype.is_floating_point:
        values = torch.tensor(SPECIAL_FLOATS, dtype=torch.float64)
        return torch.cat([values, -values]).to(dtype)
    limits = torch.iinfo(dtype)
    edges = {0, 1, 2, 3, limits.max, limits.max - 1, limits.min, limits.min + 1, *range(5, 60, 7)}
    edges |= {sign * ((1 << k) + d) for k in range(6, 64) for d in (-1, 0, 1) for sign in (1, -1)}
    return torch.tensor(sorted(e for e in edges if limits.min <= e <= limits.max), dtype=dtype)

"""Constants of 8-bit floats are the bytes that torch stores."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ptxtile.ir.types import BY_NAME
from ptxtile.nvvm.dtypes import constant_text


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"])
def test_float8_constants(name: str, random_generator: np.random.Generator) -> None:
    scale = 2.0 ** random_generator.integers(-20, 18, 2000)
    edges = [
        0.0,
        448,
        463.9,
        464,
        57344,
        61439,
        2.0**-9,
        2.0**-10,
        3 * 2.0**-11,
        2.0**-16,
        2.0**-17,
        3 * 2.0**-18,
        1e-40,
    ]
    values = torch.from_numpy(
        np.concatenate([random_generator.standard_normal(2000) * scale, edges, np.arange(4096) / 512])
    )
    values = values.to(torch.float32)
    if name == "float8_e8m0fnu":
        values = values.abs()
    else:
        values = torch.cat([values, -values])
    if name == "float8_e4m3fn":  # beyond, torch's versions differ
        values = values[values.abs() <= 464]
    ours = [int(constant_text(value, BY_NAME[name])) for value in values.tolist()]
    assert ours == values.to(getattr(torch, name)).view(torch.uint8).tolist()


def test_float8_constants_that_overflow() -> None:
    """As a cast: e4m3fn has no infinity and gives NaN, e5m2 gives infinity."""
    for value, e4m3, e5m2 in [(465.0, 0x7F, 0x5F), (np.inf, 0x7F, 0x7C), (-1e6, 0xFF, 0xFC), (61440.0, 0x7F, 0x7C)]:
        assert int(constant_text(value, BY_NAME["float8_e4m3fn"])) == e4m3
        assert int(constant_text(value, BY_NAME["float8_e5m2"])) == e5m2
    assert int(constant_text(np.nan, BY_NAME["float8_e5m2"])) & 0x7F == 0x7F

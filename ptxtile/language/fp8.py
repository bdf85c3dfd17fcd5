"""The 8-bit float dtypes of the platform, under TileLang's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError
from ptxtile.frontend.dtypes import DATA_TYPES, DataType

if TYPE_CHECKING:
    import torch

_NAMES = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}


def determine_fp8_type(fp8_format: str = "e4m3", device: Any = None) -> DataType:
    """``T.float8_e4m3fn`` for "e4m3", ``T.float8_e5m2`` for "e5m2", as on every card of NVIDIA's."""
    if fp8_format not in _NAMES:
        raise ArgumentError("fp8_format of determine_fp8_type", expected="e4m3 or e5m2", got=repr(fp8_format))
    return DATA_TYPES[_NAMES[fp8_format]]


def determine_torch_fp8_type(fp8_format: str = "e4m3", device: Any = None) -> torch.dtype:
    """The torch dtype of :func:`determine_fp8_type`."""
    return determine_fp8_type(fp8_format, device).as_torch()

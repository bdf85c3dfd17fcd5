"""Tensors for tests, and their comparison, under TileLang's name of the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ptxtile.kernel_tests import torch_assert_close
from ptxtile.profile.supply import TensorSupplyType, default_device, make_tensor

__all__ = ["TensorSupplyType", "get_tensor_supply", "torch_assert_close"]


def get_tensor_supply(supply_type: TensorSupplyType = TensorSupplyType.Integer) -> Callable[[Any], Any]:
    """A function that makes a tensor for a parameter (of ``supply_prog``) whose shape is known, on the current card, or
    the CPU where there is none."""
    import torch

    place = default_device()
    generator = torch.Generator(place).manual_seed(torch.initial_seed() % 2**31)

    def supply(parameter: Any) -> torch.Tensor:
        return make_tensor(parameter.shape, parameter.dtype.name, supply_type, place, generator)

    return supply

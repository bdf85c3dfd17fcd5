"""The comparison of tensors under TileLang's name of the module."""

from __future__ import annotations

from ptxtile.kernel_tests import torch_assert_close
from ptxtile.profile.supply import TensorSupplyType

__all__ = ["TensorSupplyType", "torch_assert_close"]

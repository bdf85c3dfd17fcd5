"""All cases of the kernel suite."""

from __future__ import annotations

from tests.kernels import casts, elementwise, tensors

_MODULES = (elementwise, tensors, casts)

CASES = [case for module in _MODULES for case in module.CASES]
"""For the simulator, and those with ``card`` for a card too."""

TARGET_CASES = list(elementwise.TARGET_CASES)
"""Compiled for a target that the case names: for the simulator."""

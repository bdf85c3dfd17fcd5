"""All cases of the kernel suite."""

from __future__ import annotations

from tests.kernels import casts, elementwise, loops, sizes, tensors

_MODULES = (elementwise, tensors, casts, loops, sizes)

CASES = [case for module in _MODULES for case in module.CASES]
"""For the simulator, and those with ``card`` for a card too."""

TARGET_CASES = list(elementwise.TARGET_CASES)
"""Compiled for a target that the case names: for the simulator."""

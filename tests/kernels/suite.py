"""All cases of the kernel suite."""

from __future__ import annotations

from tests.kernels import (
    arithmetic,
    atomics,
    casts,
    elementwise,
    forms,
    loops,
    manual,
    mathematics,
    sizes,
    storage,
    tensors,
)

_MODULES = (elementwise, tensors, sizes, storage, forms, loops, arithmetic, casts, mathematics, atomics, manual)

CASES = [case for module in _MODULES for case in module.CASES]
"""For the simulator; those with ``card`` for a card too."""

TARGET_CASES = list(elementwise.TARGET_CASES)
"""Compiled for a target that the case names: for the simulator."""

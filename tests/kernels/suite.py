"""All cases of the kernel suite."""

from __future__ import annotations

from tests.kernels import (
    arithmetic,
    atomics,
    branches,
    casts,
    elementwise,
    forms,
    fragment_elements,
    given_layouts,
    loops,
    manual,
    mathematics,
    meetings,
    ordered_pipelines,
    regions,
    roles,
    sizes,
    storage,
    tensors,
)

_MODULES = (
    elementwise, tensors, sizes, storage, forms, loops, arithmetic, casts, mathematics, atomics, manual, roles,
    meetings, branches, given_layouts, ordered_pipelines, regions, fragment_elements,
)  # fmt: skip

CASES = [case for module in _MODULES for case in module.CASES]
"""For the simulator; those with ``card`` for a card too."""

TARGET_CASES = list(elementwise.TARGET_CASES)
"""Compiled for a target that the case names: for the simulator."""

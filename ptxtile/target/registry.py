"""Looking up architectures by name and by the compute capability of a card."""

from __future__ import annotations

import difflib
from dataclasses import replace

from ptxtile import config
from ptxtile.errors import TargetError
from ptxtile.target import sm_80, sm_86, sm_89, sm_90, sm_90a, sm_100a, sm_120a
from ptxtile.target.description import KIB, Target

_TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET for module in (sm_80, sm_86, sm_89, sm_90, sm_90a, sm_100a, sm_120a)
}

_SHARED_OF_OTHERS = {
    (8, 7): (163, 164),
    (10, 1): (227, 228),
    (10, 3): (227, 228),
    (11, 0): (227, 228),
    (12, 1): (99, 100),
}
"""KiB of shared memory of a CTA and of a multiprocessor, for cards without a table file of their own (CUDA C++
Programming Guide, «Technical Specifications per Compute Capability»). An unknown card is taken to have the least of
all, 99 and 100."""


def names() -> tuple[str, ...]:
    """The architectures that can be compiled for, oldest first."""
    return tuple(_TARGETS)


def get(name: str) -> Target:
    """The architecture of that name, such as ``sm_90a``. TargetError for another name, with the nearest ones."""
    found = _TARGETS.get(name) if isinstance(name, str) else None
    if found is None:
        near = difflib.get_close_matches(str(name), _TARGETS, n=2, cutoff=0.6)
        raise TargetError(
            f"unknown architecture {name!r}",
            expected="one of " + ", ".join(_TARGETS),
            got=repr(name),
            hint="did you mean " + " or ".join(near) + "?" if near else None,
        )
    return found


def from_compute_capability(major: int, minor: int) -> Target:
    """What to compile for on a card of that compute capability.

    A card with a table of its own gets it, the ``a`` form where there is one. For any other card it is the newest
    generic architecture at or below it, whose PTX the driver compiles for the card (PTX ISA, «.target»: generic PTX
    is forward compatible), with that card's own limit of shared memory; the logger ``ptxtile`` says so. TargetError
    below 8.0."""
    capability = (major, minor)
    exact = [target for target in _TARGETS.values() if target.compute_capability == capability]
    if exact:
        return max(exact, key=lambda target: target.architecture_specific)
    generic = [
        target
        for target in _TARGETS.values()
        if not target.architecture_specific and target.compute_capability < capability
    ]
    if not generic:
        raise TargetError("the card is too old", expected="compute capability 8.0 or newer", got=f"{major}.{minor}")
    base = max(generic, key=lambda target: target.compute_capability)
    block, multiprocessor = _SHARED_OF_OTHERS.get(capability, (99, 100))
    config.logger().warning(
        "compute capability %d.%d has no table of its own: compiling for %s, without what only newer cards have",
        major, minor, base.name,
    )  # fmt: skip
    return replace(
        base,
        max_shared_bytes=min(base.max_shared_bytes, block * KIB),
        shared_bytes_per_sm=min(base.shared_bytes_per_sm, multiprocessor * KIB),
    )

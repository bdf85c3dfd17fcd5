"""What a user can steer about lowering; part of every variant's key."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Options:
    """``specialize_warps``: 'auto' (roles only where measured to pay), True (roles wherever legal) or False.

    ``fast_math``: approximate hardware instructions and flushed subnormals. ``disable_tma``: plain vector copies only.
    ``contract``: a multiplication that feeds one addition becomes a fused multiply-add, as nvcc does by default.
    """

    specialize_warps: str | bool = "auto"
    fast_math: bool = False
    disable_tma: bool = False
    contract: bool = True

"""What a user can steer about lowering; part of every variant's key."""

from __future__ import annotations

from ptxtile.records import record


@record
class Options:
    """``specialize_warps``: 'auto' (roles only where measured to pay), True (roles wherever legal) or False.

    ``fast_math``: approximate hardware instructions and flushed subnormals. ``disable_tma``: plain vector copies only.
    ``contract``: a multiplication that feeds one addition becomes a fused multiply-add, as nvcc does by default.
    ``allow_tf32``: gemms of float32 operands multiply in TensorFloat-32, which ignores their lowest 13 bits; False
    keeps all bits and does without tensor cores. ``disable_wgmma``: mma.sync where wgmma would be taken.
    ``dependent_launch``: kernels start before the one in front of them has ended, and wait for it before they access
    memory; False leaves that to T.pdl_sync.
    """

    specialize_warps: str | bool = "auto"
    fast_math: bool = False
    disable_tma: bool = False
    contract: bool = True
    allow_tf32: bool = True
    disable_wgmma: bool = False
    dependent_launch: bool = True

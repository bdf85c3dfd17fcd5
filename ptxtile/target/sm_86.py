"""sm_86: NVIDIA A10, A40, RTX 30 (Ampere, compute capability 8.6). PTX ISA 7.1 introduced it."""

from __future__ import annotations

from ptxtile.target import sm_80
from ptxtile.target.description import KIB, Target

FEATURES = sm_80.FEATURES

TARGET = Target(
    name="sm_86",
    compute_capability=(8, 6),
    minimum_ptx_isa=(7, 1),
    feature_isa=FEATURES,
    max_shared_bytes=99 * KIB,
    shared_bytes_per_sm=100 * KIB,
    max_threads_per_sm=1536,
    max_blocks_per_sm=16,
)

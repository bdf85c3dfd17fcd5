"""sm_89: NVIDIA L4, L40, RTX 40 (Ada, compute capability 8.9). PTX ISA 7.8 introduced it."""

from __future__ import annotations

from ptxtile.target import sm_86
from ptxtile.target.description import KIB, Target
from ptxtile.target.features import Feature

FEATURES = sm_86.FEATURES | {
    Feature.FP8_CONVERT: (8, 1),  # cvt with .e4m3x2/.e5m2x2: sm_90 from PTX ISA 7.8, sm_89 from 8.1
    Feature.MMA_FP8: (8, 4),  # mma with .e4m3/.e5m2: sm_89, PTX ISA 8.4
}

TARGET = Target(
    name="sm_89",
    compute_capability=(8, 9),
    minimum_ptx_isa=(7, 8),
    feature_isa=FEATURES,
    max_shared_bytes=99 * KIB,
    shared_bytes_per_sm=100 * KIB,
    max_threads_per_sm=1536,
    max_blocks_per_sm=24,
)

"""sm_80: NVIDIA A100 (Ampere, compute capability 8.0). PTX ISA 7.0 introduced it."""

from __future__ import annotations

from ptxtile.target.description import KIB, Target
from ptxtile.target.features import Feature

FEATURES = {
    Feature.CP_ASYNC: (7, 0),  # PTX ISA, cp.async: sm_80, PTX ISA 7.0
    Feature.LDMATRIX: (6, 5),  # ldmatrix: sm_75, PTX ISA 6.5
    Feature.MBARRIER: (7, 0),  # mbarrier.init, .arrive, .test_wait: sm_80, PTX ISA 7.0
    Feature.MMA_SYNC: (7, 0),  # mma with .bf16, .tf32, .s8 at its Ampere shapes: sm_80, PTX ISA 7.0
    Feature.BF16_FMA: (7, 0),  # fma.rn.bf16, neg.bf16, abs.bf16, min/max.bf16: sm_80, PTX ISA 7.0
    Feature.MIN_MAX_NAN: (7, 0),  # min/max{.NaN}: sm_80, PTX ISA 7.0
    Feature.TANH_APPROX: (7, 0),  # tanh.approx.f32: sm_75, PTX ISA 7.0
    Feature.REDUX: (7, 0),  # redux.sync: sm_80, PTX ISA 7.0
}

TARGET = Target(
    name="sm_80",
    compute_capability=(8, 0),
    minimum_ptx_isa=(7, 0),
    feature_isa=FEATURES,
    max_shared_bytes=163 * KIB,
    shared_bytes_per_sm=164 * KIB,
    max_threads_per_sm=2048,
    max_blocks_per_sm=32,
)

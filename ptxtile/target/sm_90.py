"""sm_90: the generic form of Hopper (compute capability 9.0), whose PTX also runs on later cards. PTX ISA 7.8."""

from __future__ import annotations

from ptxtile.target import sm_89
from ptxtile.target.description import KIB, Target
from ptxtile.target.features import Feature

FEATURES = sm_89.FEATURES | {
    Feature.FP8_CONVERT: (7, 8),  # cvt with .e4m3x2/.e5m2x2: sm_90, PTX ISA 7.8
    Feature.BF16_ARITHMETIC: (7, 8),  # add/sub/mul.bf16 and cvt of bf16 with integers and f16: sm_90, PTX ISA 7.8
    Feature.MMA_F64: (7, 8),  # mma of f64 with m16n8k4/k8/k16: sm_90, PTX ISA 7.8
    Feature.STMATRIX: (7, 8),  # stmatrix: sm_90, PTX ISA 7.8
    Feature.CLUSTER: (7, 8),  # barrier.cluster, mapa, .shared::cluster: sm_90, PTX ISA 7.8
    Feature.GRID_DEPENDENCY: (7, 8),  # griddepcontrol: sm_90, PTX ISA 7.8
    Feature.ELECT: (8, 0),  # elect.sync: sm_90, PTX ISA 8.0
    Feature.MBARRIER_TRY_WAIT: (7, 8),  # mbarrier.try_wait: sm_90, PTX ISA 7.8
    Feature.MBARRIER_EXPECT_TX: (8, 0),  # mbarrier.arrive.expect_tx: sm_90, PTX ISA 8.0
    Feature.TMA: (8, 0),  # cp.async.bulk.tensor, fence.proxy.async, prefetch.tensormap: sm_90, PTX ISA 8.0
    Feature.TMA_MULTICAST: (8, 0),  # .multicast::cluster: sm_90, PTX ISA 8.0 (at full speed on sm_90a)
    Feature.SHARED_CTA_TMA: (8, 6),  # .shared::cta as the destination: PTX ISA 8.6
    Feature.ATOMIC_VECTOR: (8, 1),  # red/atom.global.v2/.v4: sm_90, PTX ISA 8.1
}

TARGET = Target(
    name="sm_90",
    compute_capability=(9, 0),
    minimum_ptx_isa=(7, 8),
    feature_isa=FEATURES,
    max_shared_bytes=227 * KIB,
    shared_bytes_per_sm=228 * KIB,
    max_threads_per_sm=2048,
    max_blocks_per_sm=32,
)

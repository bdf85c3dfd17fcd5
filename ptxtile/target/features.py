"""What an architecture can do, by name: code asks ``target.has(Feature.TMA)`` and never compares architecture numbers.

Each architecture's table file gives, beside a feature, the first PTX ISA version that has it *there* (PTX ISA, the
«PTX ISA Notes» and «Target ISA Notes» of the instruction named here).
"""

from __future__ import annotations

from enum import Enum


class Feature(Enum):
    """A capability with the instruction that it stands for."""

    CP_ASYNC = "cp.async"
    LDMATRIX = "ldmatrix"
    STMATRIX = "stmatrix"
    MBARRIER = "mbarrier.init, .arrive, .test_wait"
    MBARRIER_TRY_WAIT = "mbarrier.try_wait"
    MBARRIER_EXPECT_TX = "mbarrier.arrive.expect_tx"
    TMA = "cp.async.bulk, cp.async.bulk.tensor, prefetch.tensormap, fence.proxy.async"
    TMA_MULTICAST = "cp.async.bulk.tensor with .multicast::cluster"
    SHARED_CTA_TMA = "cp.async.bulk.tensor with a .shared::cta destination"
    CLUSTER = "barrier.cluster, mapa, .shared::cluster"
    ELECT = "elect.sync"
    GRID_DEPENDENCY = "griddepcontrol"
    SETMAXNREG = "setmaxnreg"
    MMA_SYNC = "mma.sync of f16, bf16, tf32, s8"
    MMA_F64 = "mma.sync of f64 with m16n8k4, k8 and k16"
    MMA_FP8 = "mma.sync of e4m3 and e5m2"
    MMA_BLOCK_SCALED = "mma.sync with .block_scale"
    WGMMA = "wgmma.mma_async"
    TCGEN05 = "tcgen05.mma and tensor memory"
    BF16_FMA = "fma.rn.bf16, neg.bf16, abs.bf16, min/max.bf16"
    BF16_ARITHMETIC = "add/sub/mul.rn.bf16 and conversions between bf16 and other types than f32"
    MIN_MAX_NAN = "min.NaN and max.NaN of f32 and f16"
    TANH_APPROX = "tanh.approx.f32"
    FP8_CONVERT = "cvt.rn.satfinite.e4m3x2/e5m2x2.f32 and back to f16x2"
    REDUX = "redux.sync"
    ATOMIC_VECTOR = "atom/red.global with .v2/.v4 and of bf16"
    PACKED_F32 = "add/mul/fma.rn.f32x2"
    LOAD_256_BIT = "ld/st.global of 256 bits"

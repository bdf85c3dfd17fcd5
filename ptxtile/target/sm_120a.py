"""sm_120a: NVIDIA RTX 50, RTX PRO 6000 (Blackwell, compute capability 12.0) with what only it has. PTX ISA 8.7."""

from __future__ import annotations

from ptxtile.target import sm_90
from ptxtile.target.description import KIB, Target
from ptxtile.target.features import Feature

# No TMA_MULTICAST: ptxas 13.0 makes a call of .multicast::cluster here, and then ignores setmaxnreg.
FEATURES = {feature: isa for feature, isa in sm_90.FEATURES.items() if feature is not Feature.TMA_MULTICAST} | {
    Feature.SETMAXNREG: (8, 7),  # setmaxnreg: sm_120a from PTX ISA 8.7
    Feature.MMA_BLOCK_SCALED: (8, 7),  # mma with .block_scale: sm_120a, PTX ISA 8.7
    Feature.PACKED_F32: (8, 7),  # add/mul/fma of .f32x2: sm_100 and up
    Feature.LOAD_256_BIT: (8, 8),  # ld/st.global.v8.b32 and .v4.b64: sm_100 and up, PTX ISA 8.8
}

TARGET = Target(
    name="sm_120a",
    compute_capability=(12, 0),
    minimum_ptx_isa=(8, 7),
    feature_isa=FEATURES,
    max_shared_bytes=99 * KIB,
    shared_bytes_per_sm=100 * KIB,
    max_threads_per_sm=1536,
    max_blocks_per_sm=24,
    architecture_specific=True,
)

"""sm_100a: NVIDIA B100, B200 (Blackwell, compute capability 10.0) with the instructions that only it has. PTX ISA
8.6."""

from __future__ import annotations

from ptxtile.target import sm_90
from ptxtile.target.description import KIB, Target
from ptxtile.target.features import Feature

FEATURES = sm_90.FEATURES | {
    Feature.SETMAXNREG: (8, 6),  # setmaxnreg: sm_100a from PTX ISA 8.6
    Feature.TCGEN05: (8, 6),  # tcgen05: sm_100a, PTX ISA 8.6
    Feature.PACKED_F32: (8, 6),  # add/mul/fma of .f32x2: sm_100, PTX ISA 8.6
    Feature.LOAD_256_BIT: (8, 8),  # ld/st.global.v8.b32 and .v4.b64: sm_100, PTX ISA 8.8
}

TARGET = Target(
    name="sm_100a",
    compute_capability=(10, 0),
    minimum_ptx_isa=(8, 6),
    feature_isa=FEATURES,
    max_shared_bytes=227 * KIB,
    shared_bytes_per_sm=228 * KIB,
    max_threads_per_sm=2048,
    max_blocks_per_sm=32,
    architecture_specific=True,
)

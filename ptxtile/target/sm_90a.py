"""sm_90a: NVIDIA H100, H200 (Hopper, compute capability 9.0) with the instructions that only it has. PTX ISA 8.0."""

from __future__ import annotations

from dataclasses import replace

from ptxtile.target import sm_90
from ptxtile.target.features import Feature

FEATURES = sm_90.FEATURES | {
    Feature.SETMAXNREG: (8, 0),  # setmaxnreg: sm_90a, PTX ISA 8.0
    Feature.WGMMA: (8, 0),  # wgmma: sm_90a, PTX ISA 8.0
}

TARGET = replace(sm_90.TARGET, name="sm_90a", minimum_ptx_isa=(8, 0), feature_isa=FEATURES, architecture_specific=True)

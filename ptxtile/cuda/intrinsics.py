"""Layouts of shared tiles under TileLang's name of the module. Its emitters of single instructions are not here."""

from __future__ import annotations

from typing import Any

from ptxtile.frontend.swizzles import get_swizzle_layout, make_mma_swizzle_layout

__all__ = ["get_swizzle_layout", "make_mma_swizzle_layout"]


def __getattr__(name: str) -> Any:
    if name.endswith("IntrinEmitter") or "IntrinEmitterWith" in name:
        raise ImportError(
            f"ptxtile has no {name}, which writes single instructions: T.gemm on tiles in shared memory or fragments "
            "does what its mma, ldmatrix and stmatrix do"
        )
    raise AttributeError(f"module 'ptxtile.cuda.intrinsics' has no attribute {name!r}")

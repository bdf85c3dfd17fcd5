"""Code generation: a program of the gpu stage to PTX, through LLVM IR text and llvmlite."""

from __future__ import annotations

from ptxtile.nvvm.emission import EmittedModule, emit

__all__ = ["EmittedModule", "emit"]

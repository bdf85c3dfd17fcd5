"""Chooses the instructions of each gemm, and says why.

Input: tile stage. Output: tile stage, every Gemm with a ``path``. wgmma where the target has it and both operands lie
in shared memory in an order that it reads; else mma.sync; else multiplications and additions, which take any dtype and
size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import Rewriter, copy_with
from ptxtile.ir.statements import Role, Statement
from ptxtile.ir.tensor_core_ops import MMA_SHAPES, WGMMA_SHAPES
from ptxtile.ir.tile_ops import Gemm, GemmPath
from ptxtile.lower.gemm_geometry import dtype_names, grid_of, instruction_columns, mma_depth
from ptxtile.lower.options import Options
from ptxtile.lower.shared_columns import operand_span
from ptxtile.target import Feature, Target

FLOAT8 = frozenset(("float8_e4m3fn", "float8_e5m2"))


def run(program: Program, target: Target, options: Options) -> Program:
    kernels, why = [], []
    for kernel in program.kernels:
        chooser = _Chooser(kernel, target)
        body = chooser.visit(kernel.body)
        kernels.append(kernel if body is kernel.body else replace(kernel, body=body))
        why.extend(chooser.why)
    return replace(program, kernels=tuple(kernels)).with_why(*why) if why else program


class _Chooser(Rewriter):
    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.threads = kernel.threads
        self.target = target
        self.why: list[Why] = []

    def visit(self, node: Any) -> Any:
        if not isinstance(node, Role):
            return super().visit(node)
        outer, self.threads = self.threads, node.threads
        node = super().visit(node)
        self.threads = outer
        return node

    def rewrite_Gemm(self, gemm: Gemm) -> Statement:
        if gemm.path is not None:
            return gemm
        reasons = []
        for path, check in ((GemmPath.WGMMA, self._wgmma), (GemmPath.MMA, self._mma)):
            refusal = check(gemm)
            if not refusal:
                return self._chosen(gemm, path, "; ".join(reasons) or "the target, the types and the tile fit")
            reasons.append(f"no {path.value}: {refusal}")
        return self._chosen(gemm, GemmPath.FMA, "; ".join(reasons))

    def _chosen(self, gemm: Gemm, path: GemmPath, reason: str) -> Statement:
        subject = f"gemm {gemm.a.buffer.name} x {gemm.b.buffer.name}, {gemm.m}x{gemm.n}x{gemm.k}"
        self.why.append(Why("select_gemm_paths", subject, path.value, reason, gemm.location))
        return copy_with(gemm, {"path": path})

    def _wgmma(self, gemm: Gemm) -> str:
        """Why wgmma cannot do it; empty if it can."""
        dtypes = dtype_names(gemm)
        if not self.target.has(Feature.WGMMA):
            return f"{self.target.name} has none"
        if dtypes not in WGMMA_SHAPES:
            return f"it does not take {dtypes[0]} x {dtypes[1]} into {dtypes[2]}"
        grid = grid_of(gemm, self.threads, GemmPath.WGMMA)
        if grid is None:
            return f"{self.threads} threads do not divide into warpgroups of 64 rows and 8 columns of {gemm.m}x{gemm.n}"
        depth, _ = WGMMA_SHAPES[dtypes]
        if gemm.k % depth or instruction_columns(gemm, grid, dtypes) is None:
            return f"K = {gemm.k} is no multiple of {depth}, or no width divides the columns"
        for region, transposed in ((gemm.a, gemm.transpose_a), (gemm.b, not gemm.transpose_b)):
            if transposed and region.buffer.dtype.bits != 16:
                return f"{region.buffer.name} is not K-major, which only 16-bit types may be"
            span = operand_span(region.buffer)
            if span is None:
                return f"a row of {region.buffer.name} is no multiple of 32 bytes"
            if transposed and region is gemm.b and (gemm.n // grid.columns) % (span * 8 // region.buffer.dtype.bits):
                return f"a warpgroup's columns of {region.buffer.name} are no whole spans of its swizzle"
            if transposed and region is gemm.a and span * 8 // region.buffer.dtype.bits < 64:
                return f"64 rows of {region.buffer.name} are no single span of its swizzle"
        return ""

    def _mma(self, gemm: Gemm) -> str:
        dtypes = dtype_names(gemm)
        if dtypes not in MMA_SHAPES or mma_depth(gemm, dtypes) is None:
            return f"no shape takes {dtypes[0]} x {dtypes[1]} into {dtypes[2]} with K = {gemm.k}"
        if FLOAT8 & set(dtypes) and not self.target.has(Feature.MMA_FP8):
            return f"{self.target.name} multiplies no 8-bit floats"
        if "float64" in dtypes and not self.target.has(Feature.MMA_F64):
            return f"{self.target.name} has no shape of 16 rows for float64"
        if grid_of(gemm, self.threads, GemmPath.MMA) is None:
            return f"{self.threads} threads do not divide into warps of 16 rows and 8 columns of {gemm.m}x{gemm.n}"
        return ""

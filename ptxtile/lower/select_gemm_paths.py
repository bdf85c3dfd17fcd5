"""Chooses the instructions of each gemm, and says why.

Input: tile stage. Output: tile stage, every Gemm with a ``path``. wgmma where the target has it and its operands lie in
an order that it reads; else mma.sync; else multiplications and additions, which take any dtype and size. Where only the
tile's sizes keep a gemm from the tensor cores, the record is a warning and names sizes that would do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Scope
from ptxtile.ir.expressions import Expr, as_expr
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import copy_with, walk
from ptxtile.ir.statements import Role, Statement, View
from ptxtile.ir.tensor_core_ops import MMA_SHAPES, WGMMA_SHAPES
from ptxtile.ir.tile_ops import Gemm, GemmPath, Region
from ptxtile.lower.gemm_geometry import dtype_names, grid_of, in_registers, mma_depth
from ptxtile.lower.gemm_sizes import sizes_that_fit
from ptxtile.lower.options import Options
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.shared_columns import descriptor_span
from ptxtile.target import Feature, Target

FLOAT8 = frozenset(("float8_e4m3fn", "float8_e5m2"))
PATTERN_ROWS = 8
"""Rows after which a swizzle repeats, whatever its span."""
STEP_BYTES = 32
"""Of K in one wgmma, for every element type."""


def run(program: Program, target: Target, options: Options) -> Program:
    kernels, why = [], []
    for kernel in program.kernels:
        chooser = _Chooser(program, kernel, target, options)
        body = chooser.visit(kernel.body)
        kernels.append(kernel if body is kernel.body else replace(kernel, body=body))
        why.extend(chooser.why)
    return replace(program, kernels=tuple(kernels)).with_why(*why) if why else program


class _Chooser(ScopedRewriter, kinds=()):
    def __init__(self, program: Program, kernel: Kernel, target: Target, options: Options) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.threads = kernel.threads
        self.target, self.options = target, options
        self.viewed = {
            node.buffer.storage.name for node in walk(kernel.body, View) if node.buffer.scope is Scope.SHARED
        }
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
        sizes = "" if self._mma_dtypes(gemm) else sizes_that_fit(gemm, self.threads)
        return self._chosen(gemm, GemmPath.FMA, "; ".join(reasons), sizes)

    def _chosen(self, gemm: Gemm, path: GemmPath, reason: str, sizes: str = "") -> Statement:
        subject = f"gemm {gemm.a.buffer.name} x {gemm.b.buffer.name}, {gemm.m}x{gemm.n}x{gemm.k}"
        if sizes:
            reason += f"; tensor cores would take {sizes}"
        self.why.append(Why("select_gemm_paths", subject, path.value, reason, gemm.location, warns=bool(sizes)))
        return copy_with(gemm, {"path": path})

    # -- wgmma ----------------------------------------
    def _wgmma(self, gemm: Gemm) -> str:
        """Why wgmma cannot do it; empty if it can."""
        dtypes = dtype_names(gemm)
        if not self.target.has(Feature.WGMMA):
            return f"{self.target.name} has none"
        if self.options.disable_wgmma:
            return "switched off by disable_wgmma"
        if dtypes not in WGMMA_SHAPES:
            return f"it does not take {dtypes[0]} x {dtypes[1]} into {dtypes[2]}"
        if self._exact_float32(gemm):
            return "allow_tf32=False keeps float32 from TensorFloat-32"
        if in_registers(gemm.b):
            return f"{gemm.b.buffer.name} is in registers, and it reads B from shared memory"
        depth, _ = WGMMA_SHAPES[dtypes]
        if gemm.k % depth:
            return f"K = {gemm.k} is no multiple of {depth}"
        for region, along_k in ((gemm.a, not gemm.transpose_a), (gemm.b, gemm.transpose_b)):
            refusal = "" if in_registers(region) else self._descriptor(gemm, region, along_k)
            if refusal:
                return refusal
        grid = grid_of(gemm, self.threads, GemmPath.WGMMA)
        if grid is None:
            return f"{self.threads} threads do not divide into warpgroups of 64 rows and 8 columns of {gemm.m}x{gemm.n}"
        if not gemm.transpose_b and gemm.n // grid.columns % _span_elements(gemm.b):
            return f"a warpgroup's columns of {gemm.b.buffer.name} are no whole spans of its swizzle"
        if gemm.transpose_a and not in_registers(gemm.a) and _span_elements(gemm.a) < 64:
            return f"64 rows of {gemm.a.buffer.name} are no single span of its swizzle"
        return ""

    def _descriptor(self, gemm: Gemm, region: Region, along_k: bool) -> str:
        """Why no descriptor describes the operand; empty if one does."""
        buffer = region.buffer
        if not along_k and buffer.dtype.bits != 16:
            return f"{buffer.name} is not K-major, which only 16-bit types may be"
        if buffer.storage.name in self.viewed:
            return f"{buffer.name} shares its memory with a view, which keeps its rows as they are"
        span = descriptor_span(buffer)
        if span is None:
            if buffer.layout is not None:
                return f"the layout given to {buffer.name} is none that a descriptor describes"
            return f"a row of {buffer.name} is no multiple of 32 bytes"
        *outer, rows, columns = buffer.static_shape
        if outer and rows * columns * buffer.dtype.itemsize % (PATTERN_ROWS * span):
            return f"the matrices of {buffer.name} are not whole repetitions of its swizzle"
        *_, row, column = region.starts
        unit = _span_elements(region)
        if not self._divides(row, PATTERN_ROWS):
            return f"the operand starts at a row of {buffer.name} that is not known to be a multiple of {PATTERN_ROWS}"
        inside = unit if not along_k or unit % gemm.k else max(gemm.k, STEP_BYTES * 8 // buffer.dtype.bits)
        if not self._divides(column, inside):
            return f"the operand starts at a column of {buffer.name} that is not known to be a multiple of {inside}"
        return ""

    def _divides(self, start: Expr, unit: int) -> bool:
        return self.analyzer.divisible(as_expr(start), unit)

    # -- mma.sync ----------------------------------------
    def _mma(self, gemm: Gemm) -> str:
        refusal = self._mma_dtypes(gemm)
        if refusal:
            return refusal
        dtypes = dtype_names(gemm)
        if mma_depth(gemm, dtypes) is None:
            return f"no shape takes {dtypes[0]} x {dtypes[1]} into {dtypes[2]} with K = {gemm.k}"
        if grid_of(gemm, self.threads, GemmPath.MMA) is None:
            return f"{self.threads} threads do not divide into warps of 16 rows and 8 columns of {gemm.m}x{gemm.n}"
        return ""

    def _mma_dtypes(self, gemm: Gemm) -> str:
        """Why no mma.sync of the target takes the element types, whatever the sizes."""
        dtypes = dtype_names(gemm)
        if not self.target.has(Feature.MMA_SYNC) or dtypes not in MMA_SHAPES:
            return f"no shape takes {dtypes[0]} x {dtypes[1]} into {dtypes[2]}"
        if self._exact_float32(gemm):
            return "allow_tf32=False keeps float32 from TensorFloat-32"
        if FLOAT8 & set(dtypes) and not self.target.has(Feature.MMA_FP8):
            return f"{self.target.name} multiplies no 8-bit floats"
        return ""

    def _exact_float32(self, gemm: Gemm) -> bool:
        names = {operand.buffer.dtype.name for operand in (gemm.a, gemm.b)}
        return "float32" in names and not self.options.allow_tf32


def _span_elements(region: Region) -> int:
    span = descriptor_span(region.buffer)
    assert span is not None, "the operand has a descriptor"
    return span * 8 // region.buffer.dtype.bits

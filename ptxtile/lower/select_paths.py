"""Chooses how each copy is carried out, and says why.

Input: tile stage. Output: tile stage, every Copy with a ``path``. A copy from registers to global memory whose tile can
leave through TMA is split in two: registers → a staging tile in shared memory → global memory.
Invariant: from here on a path is a constraint; later passes carry it out or fail.

What TMA can move is in :mod:`ptxtile.lower.tma_rules`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.errors import Location, LoweringError
from ptxtile.ir.buffers import Scope, allocate
from ptxtile.ir.expressions import as_expr
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Allocate, Role, Seq, Statement
from ptxtile.ir.tile_ops import Copy, CopyPath, Gemm, Region, TmaCopy
from ptxtile.lower.options import Options
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.tma_rules import TmaRules
from ptxtile.target import Target

LEGAL = "the target has TMA and strides, alignment and box are legal"


def run(program: Program, target: Target, options: Options) -> Program:
    kernels, why = [], []
    for kernel in program.kernels:
        chooser = _PathChooser(program, kernel, target, options)
        kernels.append(replace(kernel, body=chooser.visit(kernel.body)))
        why.extend(chooser.why)
    return replace(program, kernels=tuple(kernels)).with_why(*why)


class _PathChooser(ScopedRewriter, kinds=()):
    def __init__(self, program: Program, kernel: Kernel, target: Target, options: Options) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.options = options
        self.rules = TmaRules(program, kernel, self.analyzer, target, options)
        self.kernel = kernel
        self.why: list[Why] = []
        self.staged = 0
        self.accumulators = {n.accumulator.buffer.name for n in walk(kernel.body, Gemm)}
        self.in_role = False

    def visit(self, node: Any) -> Any:
        if not isinstance(node, Role):
            return super().visit(node)
        self.in_role = True
        node = super().visit(node)
        self.in_role = False
        return node

    def rewrite_TmaCopy(self, copy: TmaCopy) -> Statement:
        """The user's own: it uses TMA or is an error."""
        loads = copy.destination.buffer.scope is Scope.SHARED
        outer, inner = (copy.source, copy.destination) if loads else (copy.destination, copy.source)
        refusal = self.rules.refusal(Copy(copy.source, copy.destination), outer, inner)
        if refusal:
            raise LoweringError(
                f"T.tma_copy from {copy.source.buffer.name} to {copy.destination.buffer.name} cannot use TMA",
                location=copy.location,
                expected="a target, strides, an alignment and a box that tensor copies can have",
                got=refusal,
                hint="T.copy takes another path where TMA cannot go",
            )
        return copy

    def rewrite_Copy(self, copy: Copy) -> Statement:
        if copy.path is not None:
            return copy
        if copy.operator:
            return self._reduce(copy)
        source, destination = copy.source.buffer.scope, copy.destination.buffer.scope
        if (source, destination) == (Scope.GLOBAL, Scope.SHARED):
            return self._choose(copy, CopyPath.TMA_LOAD, copy.source, copy.destination)
        if (source, destination) == (Scope.SHARED, Scope.GLOBAL):
            return self._choose(copy, CopyPath.TMA_STORE, copy.destination, copy.source)
        if (source, destination) == (Scope.FRAGMENT, Scope.GLOBAL):
            return self._stage_store(copy)
        return replace(copy, path=CopyPath.VECTOR)

    def _reduce(self, copy: Copy) -> Copy:
        """The user's atomic operation on a tile by TMA: it uses TMA or is an error."""
        refusal = self.rules.refusal(copy, copy.destination, copy.source)
        if refusal:
            raise LoweringError(
                f"the atomic operation on {copy.destination.buffer.name} cannot use TMA",
                location=copy.location,
                expected="a target, strides, an alignment and a box that tensor copies can have",
                got=refusal,
                hint="without use_tma=True the threads carry it out",
            )
        self._record(copy.location, copy, CopyPath.TMA_STORE, f"use_tma, {copy.operator}: {LEGAL}")
        return replace(copy, path=CopyPath.TMA_STORE)

    def _choose(self, copy: Copy, path: CopyPath, outer: Region, inner: Region) -> Copy:
        refusal = self.rules.refusal(copy, outer, inner)
        path = CopyPath.VECTOR if refusal else path
        self._record(copy.location, copy, path, refusal or LEGAL)
        return replace(copy, path=path)

    def _record(self, location: Location | None, copy: Copy, path: CopyPath, reason: str) -> None:
        subject = f"copy {copy.source.buffer.name} -> {copy.destination.buffer.name}"
        self.why.append(Why("select_paths", subject, path.value, reason, location))

    def _stage_store(self, copy: Copy) -> Statement:
        """registers → staging tile → TMA, when the roles of the seed's form are asked for; else direct vector stores.

        Direct stores of 16 bytes a thread measure as fast as the staged form for one-shot kernels and need no shared
        memory.
        """
        if copy.source.buffer.name in self.accumulators:
            self._record(copy.location, copy, CopyPath.VECTOR, "an accumulator: stage_epilogues decides how it leaves")
            return replace(copy, path=CopyPath.VECTOR)
        if self.options.specialize_warps is not True or self.in_role:
            self._record(copy.location, copy, CopyPath.VECTOR, "registers are stored directly with vector accesses")
            return replace(copy, path=CopyPath.VECTOR)
        tile = copy.destination.buffer.dtype
        shape = copy.destination.extents
        name = f"{copy.source.buffer.name}_staging_{self.staged}"
        staging = allocate(name, Scope.SHARED, tile, shape, alignment=128)
        whole = Region(staging, tuple(as_expr(0) for _ in shape), shape)
        refusal = self.rules.refusal(copy, copy.destination, whole)
        if refusal:
            self._record(copy.location, copy, CopyPath.VECTOR, refusal)
            return replace(copy, path=CopyPath.VECTOR)
        self.staged += 1
        self._record(copy.location, copy, CopyPath.TMA_STORE, f"through the staging tile {name}: {LEGAL}")
        return Seq(
            (
                Allocate(staging, location=copy.location),
                replace(copy, destination=whole, path=CopyPath.VECTOR),
                replace(copy, source=whole, path=CopyPath.TMA_STORE),
            ),
            location=copy.location,
        )

"""Copies of pipelined loops run ahead of their use with cp.async, where no producer role loads through TMA.

Input: tile stage with paths, warps specialized. Output: the same, where a T.Pipelined loop of S stages has copies that
qualify (:mod:`ptxtile.lower.async_copy_candidates`): their tiles have S versions, and the loop becomes

    loads of iterations 0 to S − 2, a group each
    for i:  wait for all but the S − 2 latest groups; barrier
            loads of iteration i + S − 1, if there is one, as a group
            the rest of the body, on version i mod S
    wait for all groups

The one barrier of an iteration does both: behind it every thread sees what all of them loaded for iteration i, and all
have finished iteration i − 1, whose version is filled next. A group may be empty, so that the count of groups does not
depend on the trip count, which may be 0. A loop of at most S iterations, if that is known, loads them all in front.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.async_copy_ops import CpAsyncCommitGroup, CpAsyncWaitGroup
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, Var, as_expr, cast, constant, constant_value
from ptxtile.ir.gpu_ops import BarSync
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import copy_with, free_variables, map_children, replace_buffers, substitute
from ptxtile.ir.statements import Allocate, For, If, Let, LoopKind, Role, Statement, While, seq
from ptxtile.ir.tile_ops import Copy, CopyPath, Region
from ptxtile.ir.types import int32
from ptxtile.lower.async_copy_candidates import PipelinedLoop, pipelined_loops
from ptxtile.lower.options import Options
from ptxtile.lower.rings import InStage, versioned
from ptxtile.target import Feature, Target

PASS_NAME = "plan_async_copies"
WARP = 32


def run(program: Program, target: Target, options: Options) -> Program:
    if not target.has(Feature.CP_ASYNC):
        return program
    names = NameSupply(program)
    kernels, why, stage = [], [], program.stage
    for kernel in program.kernels:
        found = pipelined_loops(program, kernel)
        why += [record for entry in found for record in _records(entry)]
        loops = [entry for entry in found if entry.widths]
        if loops:
            kernel, stage = replace(kernel, body=_Planner(kernel, loops, names).planned()), "async"
        kernels.append(kernel)
    return replace(program, kernels=tuple(kernels), stage=stage).with_why(*why)


def _records(entry: PipelinedLoop) -> list[Why]:
    records = []
    for copy in entry.copies:
        size = entry.widths[id(copy)] * copy.source.buffer.dtype.itemsize
        reason = f"a loop of {entry.stages} stages, and no producer loads the tile; {size} bytes at a time"
        records.append(Why(PASS_NAME, _subject(copy), "runs ahead with cp.async", reason, copy.location))
    records += [Why(PASS_NAME, _subject(copy), "does not run ahead", why, copy.location) for copy, why in entry.refused]
    return records


def _subject(copy: Copy) -> str:
    return f"copy {copy.source.buffer.name} -> {copy.destination.buffer.name}"


class _Planner:
    def __init__(self, kernel: Kernel, loops: list[PipelinedLoop], names: NameSupply) -> None:
        self.kernel, self.names = kernel, names
        self.loops = {id(entry.loop): entry for entry in loops}
        stages: dict[str, int] = {}
        tiles: dict[str, Buffer] = {}
        for entry in loops:
            for buffer in entry.buffers:
                tiles[buffer.name] = buffer
                stages[buffer.name] = max(stages.get(buffer.name, 0), entry.stages)
        self.versions = {name: versioned(tiles[name], stages[name]) for name in tiles}
        self.used: set[str] = set()
        self.threads = kernel.threads
        self.depth = 0

    def planned(self) -> Statement:
        return self.visit(self.kernel.body)

    def visit(self, node: Any) -> Any:
        """Top-down: a loop is taken apart before the loops inside of it."""
        if isinstance(node, Expr) or not isinstance(node, Statement):
            return node
        if isinstance(node, Allocate):
            return replace_buffers(node, self.versions)
        if isinstance(node, Role):
            outer, self.threads = self.threads, node.threads
            node = map_children(node, self.visit)
            self.threads = outer
            return node
        if isinstance(node, (For, While)):
            entry = self.loops.get(id(node))
            if entry is not None:
                return self._pipelined(entry)
            self.depth += 1
            node = map_children(node, self.visit)
            self.depth -= 1
            return node
        return map_children(node, self.visit)

    def _pipelined(self, entry: PipelinedLoop) -> Statement:
        loop, stages, where = entry.loop, entry.stages, entry.loop.location
        trips, before = self._trips(loop)
        statements = [node for node in entry.statements if id(node) not in entry.widths]
        tiles = [node for node in statements if isinstance(node, Allocate) and node.buffer.name in self.versions]
        rest = [node for node in statements if not any(node is tile for tile in tiles)]
        barrier = BarSync(0, -(-self.threads // WARP) * WARP, location=where)
        names = {buffer.name for buffer in entry.buffers}
        if self.depth or names & self.used:
            before.append(barrier)  # the last iterations of another round have to be over
        self.used |= names
        all_at_once = constant_value(trips) == stages
        ahead = stages if all_at_once else stages - 1
        for number in range(ahead):
            before += self._loads(entry, constant(number, loop.var.dtype), trips)
            before.append(CpAsyncCommitGroup(location=where))
        buffers = tuple(self.versions[name] for name in sorted(names))
        here, step = Var(self.names.fresh(f"{loop.var.name}_stage"), int32), self._counter(loop)
        body: list[Statement] = [
            CpAsyncWaitGroup(ahead - 1, buffers, location=where),
            barrier,
            *([] if all_at_once else self._loads(entry, step + ahead, trips)),
            CpAsyncCommitGroup(location=where),
            Let(here, _stage(step, stages)),
        ]
        if step is not loop.var:
            body.append(Let(loop.var, loop.start + step))
        in_stage = InStage({name: (self.versions[name], here) for name in names})
        self.depth += 1
        body += [in_stage.visit(self.visit(node)) for node in rest]
        self.depth -= 1
        steady = For(step, constant(0, step.dtype), trips, 1, LoopKind.SERIAL, seq(*body), location=where)
        allocations = [self.visit(tile) for tile in tiles]
        return seq(*allocations, *before, steady, CpAsyncWaitGroup(0, buffers, location=where))

    def _trips(self, loop: For) -> tuple[Expr, list[Statement]]:
        """The loop's trip count (negative ones run nothing, too), and what has to stand in front to name it."""
        start, stop = constant_value(loop.start), constant_value(loop.stop)
        if start is not None and stop is not None:
            return constant(stop - start, loop.var.dtype), []
        if start == 0 and isinstance(loop.stop, Var):
            return loop.stop, []
        count = Var(self.names.fresh(f"{loop.var.name}_trips"), loop.var.dtype)
        value = loop.stop if start == 0 else loop.stop - loop.start
        return count, [Let(count, value, location=loop.location)]

    def _counter(self, loop: For) -> Var:
        if constant_value(loop.start) == 0:
            return loop.var
        return Var(self.names.fresh(f"{loop.var.name}_step"), loop.var.dtype)

    def _loads(self, entry: PipelinedLoop, step: Expr, trips: Expr) -> list[Statement]:
        """The copies of the iteration that comes ``step`` after the first one, if there is such an iteration."""
        loop = entry.loop
        first, last = constant_value(step), constant_value(trips)
        if first is not None and last is not None and first >= last:
            return []
        start = constant_value(loop.start)
        position = step if start == 0 else as_expr(loop.start) + step
        values: dict[str, Expr] = {loop.var.name: position}
        needed = _names_needed(entry)
        result: list[Statement] = []
        for node in entry.statements:
            if isinstance(node, Let) and node.var.name in needed:
                var = Var(self.names.fresh(node.var.name), node.var.dtype)
                result.append(Let(var, substitute(node.value, values), location=node.location))
                values[node.var.name] = var
            elif isinstance(node, Copy) and id(node) in entry.widths:
                result.append(self._load(node, entry, values, _stage(step, entry.stages)))
        if first is not None and last is not None:
            return result
        return [If(step.lt(trips), seq(*result), location=loop.location)]

    def _load(self, copy: Copy, entry: PipelinedLoop, values: dict[str, Expr], stage: Expr) -> Copy:
        moved = substitute(copy, values)
        inner = moved.destination
        destination = Region(self.versions[inner.buffer.name], (stage, *inner.starts), (1, *inner.extents))
        changes = {
            "destination": destination,
            "path": CopyPath.CP_ASYNC,
            "coalesced_width": entry.widths[id(copy)],
        }
        return copy_with(moved, changes)


def _stage(step: Expr, stages: int) -> Expr:
    value = constant_value(step)
    return constant(value % stages) if value is not None else cast(step % stages, int32)


def _names_needed(entry: PipelinedLoop) -> set[str]:
    """Variables that the positions of the copies use, through the scalars of the loop's body."""
    names: set[str] = set()
    for node in reversed(entry.statements):
        if isinstance(node, Copy) and id(node) in entry.widths:
            for start in (*node.source.starts, *node.destination.starts):
                names |= free_variables(as_expr(start))
        elif isinstance(node, Let) and node.var.name in names:
            names |= free_variables(node.value)
    return names

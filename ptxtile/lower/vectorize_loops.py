"""Vectorised loops become wide memory accesses around scalar code on registers.

Input: thread stage. Output: thread stage without VECTORIZED loops. For ``for v in vectorized(V)``, each load of memory
that moves along v becomes vector loads into V registers before the loop, each such store vector stores from V registers
after it, as wide as alignment, contiguity and guards prove for that access alone. What remains is an UNROLLED loop on
registers.

Around it, a loop over a thread's rounds of a T.Parallel (option ``independent``) is taken together with its lanes:
loads of global memory for several rounds are issued before the first of their values is used, which hides latency that
stores in between would expose.

Lanes of a vectorised loop are independent (T.Parallel and T.vectorized promise it), so moving a load before and a store
after the other lanes' work keeps the meaning, as long as within one lane no access passes a conflicting one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ptxtile.errors import Location
from ptxtile.ir.atomic_ops import Atomic, vector_lanes
from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.effects import private_results
from ptxtile.ir.expressions import (
    Broadcast,
    Const,
    Expr,
    Load,
    LogicalAnd,
    LogicalOr,
    Select,
    Var,
    constant,
    constant_value,
    load,
    logical_not,
)
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.rewrite import children, contains, copy_with, free_variables, has_load, map_children, substitute, walk
from ptxtile.ir.statements import Allocate, For, If, Let, LoopKind, Seq, Statement, Store, While, seq
from ptxtile.ir.types import int32
from ptxtile.lower.options import Options
from ptxtile.lower.parallel_loops import base_alignments
from ptxtile.lower.scopes import ScopedRewriter, analyzer_for
from ptxtile.lower.vector_access import MEMORY, VECTOR_BYTES, MemoryAccess, VectorWidths
from ptxtile.records import record
from ptxtile.target import Target

BATCH_BYTES = 256
"""Bytes of loaded values that a thread holds for a batch of rounds: 64 registers. Measured on an H200, float32 add in
place, 16384², tile 64×64, 128 threads: 0.975 × torch.add without batches, 0.977 with 64 bytes, 0.984 with 128, 0.989
with 256; where nothing aliases, ptxas moves the loads by itself."""
REGISTER_BYTES = 4
ANYTHING = "*"


def run(program: Program, target: Target, options: Options) -> Program:
    names = NameSupply(program)
    kernels = tuple(replace(k, body=_Vectorizer(program, k, names).visit(k.body)) for k in program.kernels)
    return replace(program, kernels=kernels)


class _Vectorizer(ScopedRewriter, kinds=(For,)):
    def __init__(self, program: Program, kernel: Kernel, names: NameSupply) -> None:
        super().__init__(analyzer_for(program, kernel), kernel.thread)
        self.names = names
        self.widths = VectorWidths(self.analyzer, base_alignments(program))
        self.aliases = Aliases(program)

    def visit(self, node: Any) -> Any:
        if isinstance(node, For) and node.kind is LoopKind.VECTORIZED:
            return self._loop(node)
        if isinstance(node, For) and node.kind is LoopKind.UNROLLED and node.option("independent"):
            batched = self._rounds(node)
            if batched is not None:
                return batched
        return super().visit(node)

    def _loop(self, loop: For) -> Statement:
        unrolled = copy_with(loop, {"kind": LoopKind.UNROLLED})
        if _count(loop) is None or contains(loop.body, For, While):
            return copy_with(unrolled, {"body": self.visit(loop.body)})
        lanes, body = self._lanes(loop, None)
        return seq(*lanes.allocations, *lanes.before, copy_with(unrolled, {"body": body}), *lanes.after)

    def _lanes(self, loop: For, rounds: Rounds | None) -> tuple[_Lanes, Statement]:
        count = _count(loop)
        assert count is not None
        with self.analyzer.scope():
            self.analyzer.bind(loop.var, 0, count - 1)
            if rounds is not None:
                self.analyzer.bind(rounds.var, 0, rounds.count - 1)
            lanes = _Lanes(self, loop.var, count, loop.body, rounds)
            return lanes, lanes.rewrite(loop.body, ())

    def _rounds(self, loop: For) -> Statement | None:
        """A loop over rounds with the global loads of a batch of rounds in front; None where there is nothing to
        gain."""
        total = _count(loop)
        inner = loop.body
        if not (isinstance(inner, For) and inner.kind is LoopKind.VECTORIZED):
            lane = Var(self.names.fresh("v"), int32)
            inner = For(lane, constant(0), constant(1), 1, LoopKind.VECTORIZED, loop.body, location=loop.location)
        if total is None or _count(inner) is None or contains(inner.body, For, While):
            return None
        if not any(
            isinstance(n, GpuOp) or (isinstance(n, Store) and n.buffer.scope in MEMORY) for n in walk(inner.body)
        ):
            return None  # nothing stands between the loads of two rounds
        names, self.names = self.names, self.names.copy()
        trial, _ = self._lanes(inner, Rounds(loop.var, total))
        self.names = names
        if not trial.batched:
            return None
        batch = max(
            n for n in range(1, total + 1) if total % n == 0 and (n == 1 or n * trial.bytes_a_round <= BATCH_BYTES)
        )
        if batch == 1:
            return None
        return self._batch(loop, inner, total, batch)

    def _batch(self, loop: For, inner: For, total: int, batch: int) -> Statement:
        outer, load_round, round_var = (Var(self.names.fresh(base), int32) for base in ("b", "r", "r"))
        place: Expr = round_var if batch == total else outer * batch + round_var
        inner = copy_with(inner, {"body": substitute(inner.body, {loop.var.name: place})})
        with self.analyzer.scope():
            self.analyzer.bind(outer, 0, total // batch - 1)
            lanes, body = self._lanes(inner, Rounds(round_var, batch))
        loads = substitute(seq(*lanes.batched), {round_var.name: load_round})
        middle = seq(*lanes.before, copy_with(inner, {"kind": LoopKind.UNROLLED, "body": body}), *lanes.after)

        def rounds(var: Var, count: int, inside: Statement) -> Statement:
            return For(
                var, constant(0), constant(count), 1, LoopKind.UNROLLED, inside, loop.options, location=loop.location
            )

        result = seq(*lanes.allocations, rounds(load_round, batch, loads), rounds(round_var, batch, middle))
        return result if batch == total else rounds(outer, total // batch, result)


@record
class Rounds:
    """The loop around the lanes whose loads are issued together."""

    var: Var
    count: int


def _count(loop: For) -> int | None:
    """Iterations of a loop from 0 in steps of 1 with a constant end; None for any other."""
    stop = constant_value(loop.stop)
    return stop if constant_value(loop.start) == 0 and loop.step == 1 else None


class Aliases:
    """Which storages may share memory."""

    def __init__(self, program: Program) -> None:
        self.groups = {p.name: p.alias_group for p in program.parameters if isinstance(p, TensorParameter)}

    def overlap(self, a: str, b: str) -> bool:
        group = self.groups.get(a)
        return a == b or (group is not None and group == self.groups.get(b))


_Loaded = tuple[tuple[Expr, ...], Expr | None, Buffer]
"""Conditions under which registers were loaded, what they hold where the last one fails (None: anything), the
registers."""


class _Lanes:
    """Rewrites the body of one vectorised loop; collects the code around it."""

    def __init__(
        self, owner: _Vectorizer, var: Var, extent: int, body: Statement, rounds: Rounds | None = None
    ) -> None:
        self.owner, self.var, self.extent, self.rounds = owner, var, extent, rounds
        self.bound = {node.var.name for node in walk(body, Let)}
        self.private_writes = {
            node.buffer.storage.name for node in walk(body, Store) if node.buffer.scope not in MEMORY
        } | {buffer.storage.name for node in walk(body) for buffer in private_results(node)}
        self.after_side_effect = False
        self.location: Location | None = None  # of the statement that is rewritten now, for the loads that it makes
        self.written: list[str] = []
        self.reads = _reads_after_writes(body)
        self.allocations: list[Statement] = []
        self.batched: list[Statement] = []
        self.before: list[Statement] = []
        self.after: list[Statement] = []
        self.bytes_a_round = 0
        self.outgoing: set[str] = set()
        self.loaded: dict[tuple[str, tuple[Expr, ...]], list[_Loaded]] = {}

    def rewrite(self, node: Statement, conditions: tuple[Expr, ...]) -> Statement:
        """``conditions``: those of the Ifs around, as they stand in the lane."""
        if isinstance(node, Seq):
            return seq(*(self.rewrite(statement, conditions) for statement in node.statements))
        self.location = node.location or self.location
        if isinstance(node, If):
            condition = self.expression(node.condition, conditions)
            then = self.rewrite(node.then, (*conditions, node.condition))
            otherwise = None
            if node.otherwise is not None:
                otherwise = self.rewrite(node.otherwise, (*conditions, logical_not(node.condition)))
            if otherwise is None and self._needs_no_guard(then):
                return then
            return copy_with(node, {"condition": condition, "then": then, "otherwise": otherwise})
        if isinstance(node, Let):
            return copy_with(node, {"value": self.expression(node.value, conditions)})
        if isinstance(node, Store):
            return self._store(node, conditions)
        if isinstance(node, GpuOp):
            return self._side_effect(node, conditions)
        return node

    def _needs_no_guard(self, then: Statement) -> bool:
        """A value on its way to a guarded vector store may be computed for lanes that the guard drops, if it reads no
        memory."""
        return (
            isinstance(then, Store)
            and then.buffer.name in self.outgoing
            and not any(n.buffer.scope in MEMORY for n in walk(then.value, Load))
        )

    # Loads

    def expression(self, node: Expr, conditions: tuple[Expr, ...]) -> Expr:
        if isinstance(node, Select):
            if isinstance(node.if_true, Load) and not has_load(node.if_false):
                moved = self._load(node.if_true, (*conditions, node.condition), node.if_false)
                if moved is not None:
                    return moved
            return Select(
                self.expression(node.condition, conditions),
                self.expression(node.if_true, (*conditions, node.condition)),
                self.expression(node.if_false, (*conditions, logical_not(node.condition))),
                node.dtype,
            )
        if isinstance(node, (LogicalAnd, LogicalOr)):
            taken = node.left if isinstance(node, LogicalAnd) else logical_not(node.left)
            return type(node)(self.expression(node.left, conditions), self.expression(node.right, (*conditions, taken)))
        if isinstance(node, Load):
            moved = self._load(node, conditions, None)
            if moved is not None:
                return moved
        return map_children(node, lambda child: self.expression(child, conditions))

    def _movable(self, parts: tuple[Expr, ...]) -> bool:
        """Index and guards must not need what the body computes, or reads while the body writes."""
        for part in parts:
            if free_variables(part) & self.bound:
                return False
            for node in walk(part):
                if isinstance(node, Load) and (
                    node.buffer.scope in MEMORY or node.buffer.storage.name in self.private_writes
                ):
                    return False
        return True

    def _load(self, node: Load, conditions: tuple[Expr, ...], otherwise: Expr | None) -> Expr | None:
        """``node`` from registers that are filled before the loop; None if it has to stay."""
        if node.buffer.scope not in MEMORY or node.dtype.lanes != 1 or self.after_side_effect:
            return None
        if otherwise is not None and not isinstance(otherwise, Const):
            return None
        if any(self.owner.aliases.overlap(node.buffer.storage.name, name) for name in self.written):
            return None
        rounds = self.rounds if node.buffer.scope is Scope.GLOBAL else None
        entries = self.loaded.setdefault((node.buffer.name, node.indices), [])
        for known, instead, registers in entries:
            if all(condition in conditions for condition in known):  # loaded already wherever this load happens
                if otherwise is not None and (known, instead) != (conditions, otherwise):
                    return (
                        None  # the Select stays, since the registers hold something else where it takes the other side
                    )
                return load(registers, (self._register(self.var, rounds),))
        if not self._movable((*node.indices, *conditions)):
            return None
        access = MemoryAccess(node.buffer, node.indices, conditions)
        width = self.owner.widths.width(access, self.var, self.extent)
        if width == 1 and rounds is None:
            return None
        registers = self._registers(node.buffer, rounds)
        for first in range(0, self.extent, width):
            fill = self._fill(registers, node, conditions, otherwise, first, width, rounds)
            (self.before if rounds is None else self.batched).append(fill)
        entries.append((conditions, otherwise, registers))
        return load(registers, (self._register(self.var, rounds),))

    def _registers(self, buffer: Buffer, rounds: Rounds | None = None) -> Buffer:
        name = self.owner.names.fresh(f"{buffer.name}_lanes")
        count = self.extent * (1 if rounds is None else rounds.count)
        registers = allocate(name, Scope.REGISTER, buffer.dtype, (count,))
        self.allocations.append(Allocate(registers))
        if rounds is not None:
            self.bytes_a_round += self.extent * max(buffer.dtype.itemsize, REGISTER_BYTES)
        return registers

    def _register(self, lane: Expr, rounds: Rounds | None) -> Expr:
        """The register of a lane, in a batch also of the round."""
        return lane if rounds is None else rounds.var * self.extent + lane

    def _at(self, part: Any, first: int) -> Any:
        return substitute(part, {self.var.name: constant(first)})

    def _fill(
        self,
        registers: Buffer,
        node: Load,
        conditions: tuple[Expr, ...],
        otherwise: Expr | None,
        first: int,
        width: int,
        rounds: Rounds | None,
    ) -> Statement:
        indices = tuple(self._at(index, first) for index in node.indices)
        value: Expr = load(node.buffer, indices, width)
        guards = [self._at(condition, first) for condition in conditions]
        if otherwise is not None:
            otherwise = otherwise if width == 1 else Broadcast(otherwise, value.dtype)
            value = Select(guards.pop(), value, otherwise, value.dtype)
        index = self._register(constant(first), rounds)
        return _guarded(guards, Store(registers, (index,), value, location=self.location))

    # Stores

    def _store(self, node: Store, conditions: tuple[Expr, ...]) -> Statement:
        value = self.expression(node.value, conditions)
        indices = tuple(self.expression(index, conditions) for index in node.indices)
        plain = copy_with(node, {"value": value, "indices": indices})
        if node.buffer.scope not in MEMORY:
            return plain
        name = node.buffer.storage.name
        later = any(read == ANYTHING or self.owner.aliases.overlap(name, read) for read in self.reads[id(node)])
        self.written.append(name)
        if later or not self._movable((*node.indices, *conditions)):
            return plain
        access = MemoryAccess(node.buffer, node.indices, conditions, is_store=True)
        return self._gathered(node, value, access, VECTOR_BYTES) or plain

    def _side_effect(self, node: GpuOp, conditions: tuple[Expr, ...]) -> Statement:
        """Nothing moves across an operation with effects of its own. Atomic additions of a lane that end its work are
        joined to those of the next lanes."""
        changed = map_children(node, lambda e: self.expression(e, conditions) if isinstance(e, Expr) else e)
        self.after_side_effect = True
        if not isinstance(node, Atomic) or node.result is not None or self.reads[id(node)]:
            return changed
        if not self._movable((*node.indices, *conditions)):
            return changed
        access = MemoryAccess(node.buffer, node.indices, conditions, is_store=True)
        return self._gathered(node, changed.value, access, vector_lanes(node.operator, node.buffer)) or changed

    def _gathered(self, node: Store | Atomic, value: Expr, access: MemoryAccess, most: int) -> Statement | None:
        """The store of one lane's ``value`` into registers that a wide ``node`` reads after the loop; None where it
        cannot be wide. ``most``: elements."""
        width = min(most, self.owner.widths.width(access, self.var, self.extent))
        if width == 1:
            return None
        registers = self._registers(node.buffer)
        self.outgoing.add(registers.name)
        for first in range(0, self.extent, width):
            target = tuple(self._at(index, first) for index in node.indices)
            wide = copy_with(node, {"indices": target, "value": load(registers, (constant(first),), width)})
            self.after.append(_guarded([self._at(condition, first) for condition in access.conditions], wide))
        return Store(registers, (self.var,), value, location=node.location)


def _guarded(conditions: list[Expr], statement: Statement) -> Statement:
    for condition in reversed(conditions):
        statement = If(condition, statement, location=statement.location)
    return statement


def _reads_after_writes(body: Statement) -> Mapping[int, list[str]]:
    """For each store and GPU op (by identity) the storages that are read or written after it in program order; an
    operation with effects of its own counts as ANYTHING, private storages do not count after one."""
    sequence: list[Any] = []

    def visit(node: Any) -> None:
        if isinstance(node, (Store, GpuOp)):
            for child in children(node):
                visit(child)
            sequence.append(node)
            return
        if isinstance(node, Load):
            sequence.append(node)
        for child in children(node):
            visit(child)

    visit(body)
    result: dict[int, list[str]] = {}
    for position, node in enumerate(sequence):
        following = sequence[position + 1 :]
        if isinstance(node, Store):
            result[id(node)] = [ANYTHING if isinstance(n, GpuOp) else n.buffer.storage.name for n in following]
        elif isinstance(node, GpuOp):
            result[id(node)] = [ANYTHING for n in following if isinstance(n, GpuOp) or n.buffer.scope in MEMORY]
    return result

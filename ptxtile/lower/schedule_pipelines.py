"""Software pipelines whose order and stages the user gives: ``T.Pipelined(…, order=…, stage=…)``.

Input: tile stage with paths. Output: the same without these options. Where all copies into shared tiles come in stage 0
and the rest follows in one later stage, that is what the compiler makes of ``num_stages`` by itself, and the loop goes
on as such. Any other loop becomes, with D the largest stage,

    steps 0 to D − 1: the statements whose iteration has begun
    for each further step: every statement, for the iteration that began as many steps ago as its stage says
    D more steps: the statements whose iteration is not over

or, with fewer than D iterations, one iteration after the other. The copies of an earlier stage than the tile's first
use are asynchronous: TMA loads onto an mbarrier for each version, or cp.async in groups, and are waited for in front of
that use.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope, allocate
from ptxtile.ir.expressions import Load
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program, TensorParameter, Why
from ptxtile.ir.rewrite import buffers_of, children, copy_with, map_children, replace_buffers, substitute, walk
from ptxtile.ir.statements import Allocate, For, Let, Role, Seq, Statement, Store, View, seq
from ptxtile.lower.async_copy_candidates import copy_widths, is_load
from ptxtile.lower.options import Options
from ptxtile.lower.pipeline_steps import Steps, load_groups
from ptxtile.lower.rings import versioned
from ptxtile.lower.statement_order import StatementOrder, effects, statement_order, versionable
from ptxtile.target import Target

PASS_NAME = "schedule_pipelines"


def run(program: Program, target: Target, options: Options) -> Program:
    if not any(_is_ordered(node) for kernel in program.kernels for node in walk(kernel.body)):
        return program
    names, why, kernels, stage = NameSupply(program), [], [], program.stage
    for kernel in program.kernels:
        scheduler = _Scheduler(program, kernel, target, names)
        kernels.append(scheduler.scheduled())
        why += scheduler.why
        stage = "async" if scheduler.unrolled else stage
    return replace(program, kernels=tuple(kernels), stage=stage).with_why(*why)


def _is_ordered(node: Any) -> bool:
    return isinstance(node, For) and node.option("order") is not None


def _statements(node: Statement) -> tuple[Statement, ...]:
    return node.statements if isinstance(node, Seq) else (node,)


class _Scheduler:
    def __init__(self, program: Program, kernel: Kernel, target: Target, names: NameSupply) -> None:
        self.kernel, self.target, self.names = kernel, target, names
        self.memories = {
            p.buffer.storage.name: f"the tensors of alias group {p.alias_group}"
            for p in program.parameters
            if isinstance(p, TensorParameter) and p.alias_group is not None
        }
        self.widths = copy_widths(program, kernel)
        self.first_thread = 0
        self.prologue: list[Statement] = []
        self.versions: dict[str, Buffer] = {}
        self.unrolled = False
        self.why: list[Why] = []

    def scheduled(self) -> Kernel:
        body = self._visit(self.kernel.body)
        if body is self.kernel.body:
            return self.kernel
        return replace(self.kernel, body=seq(*self.prologue, replace_buffers(body, self.versions)))

    def _visit(self, node: Any) -> Any:
        """Inner loops first, so that an outer one sees plain loops in its body."""
        if not isinstance(node, Statement):
            return node
        if isinstance(node, Role):
            outer, self.first_thread = self.first_thread, node.first_thread
            node = map_children(node, self._visit)
            self.first_thread = outer
            return node
        outside, node = node, map_children(node, self._visit)
        return self._loop(node, outside) if isinstance(node, For) and _is_ordered(node) else node

    def _loop(self, loop: For, original: Statement) -> Statement:
        allocations, scalars, statements = self._sorted(loop)
        order = statement_order(loop, statements, self.memories, self._tiles(original, statements))
        if _is_own_plan(order):
            stages = loop.option("num_stages") or order.depth + 1
            self._record(loop, f"num_stages={stages}", "order and stage are those of the compiler's own plan")
            kept = tuple(option for option in loop.options if option[0] not in ("order", "stage", "num_stages"))
            return copy_with(loop, {"options": (*kept, ("num_stages", stages))})
        self.unrolled = True
        shared = {b.storage.name: b for s in statements for n in walk(s) for b in buffers_of(n)}
        tiles = {name: versioned(shared[name], count) for name, count in order.versions.items()}
        self.versions |= {buffer.name: buffer for buffer in tiles.values()}
        groups = load_groups(order, self.target, self.widths)
        steps = Steps(self.kernel.thread, self.first_thread, order, groups, scalars, tiles, self.names)
        self.prologue += steps.prologue
        versions = ", ".join(f"{count} versions of {name}" for name, count in order.versions.items())
        ahead = ", ".join(f"{copy.destination.buffer.name} by {g.engine}" for g in groups for copy in g.copies)
        reason = f"{versions or 'no tile has versions'}; {'ahead: ' + ahead if ahead else 'no copy runs ahead'}"
        self._record(loop, f"{order.depth + 1} stages in the order given", reason)
        return seq(*allocations, steps.unrolled())

    def _sorted(self, loop: For) -> tuple[list[Statement], list[Let], list[Statement]]:
        """The body's allocations, the scalars that can be computed anywhere, and the statements. A scalar that depends
        on memory which the loop writes is a statement: it becomes a variable of each thread's own."""
        body = _statements(loop.body)
        written = set().union(*(effects(node, self.memories)[1] for node in body))
        allocations: list[Statement] = []
        scalars: list[Let] = []
        statements: list[Statement] = []
        values: dict[str, Any] = {}
        for node in body:
            node = substitute(node, values) if values else node
            if isinstance(node, (Allocate, View)):
                allocations.append(node)
            elif not isinstance(node, Let):
                statements.append(node)
            elif not effects(node, self.memories)[0] & written:
                scalars.append(node)
            else:
                name = self.names.fresh(f"{node.var.name}_kept")
                local = allocate(name, Scope.LOCAL, node.var.dtype, (), node.var.dtype.itemsize)
                allocations.append(Allocate(local, location=node.location))
                statements.append(Store(local, (), node.value, location=node.location))
                values[node.var.name] = Load(local, (), node.var.dtype)
                written.add(name)
        return allocations, scalars, statements

    def _tiles(self, original: Statement, statements: list[Statement]) -> frozenset[str]:
        """The storages of the shared tiles that may have versions."""
        outside = [n for n in _outside(self.kernel.body, original) if not isinstance(n, Allocate)]
        found = {b.storage.name: b for s in statements for n in walk(s) for b in buffers_of(n)}
        return frozenset(name for name, buffer in found.items() if versionable(buffer, statements, outside))

    def _record(self, loop: For, decision: str, reason: str) -> None:
        self.why.append(Why(PASS_NAME, f"the loop over {loop.var.name}", decision, reason, loop.location))


def _outside(node: Any, inside: Statement) -> list[Any]:
    """The nodes of a kernel that are not in ``inside``."""
    found, waiting = [], [node]
    while waiting:
        current = waiting.pop()
        if current is not inside:
            found.append(current)
            waiting.extend(children(current))
    return found


def _is_own_plan(order: StatementOrder) -> bool:
    """Whether the loads come first and everything else follows, in order, in one later stage."""
    others = [s for s in order.statements if not is_load(s.statement)]
    loads = [s for s in order.statements if is_load(s.statement)]
    if not loads or not others or order.depth == 0:
        return False
    together = all(s.stage == 0 for s in loads) and all(s.stage == order.depth for s in others)
    return together and [s.order for s in others] == sorted(s.order for s in others)

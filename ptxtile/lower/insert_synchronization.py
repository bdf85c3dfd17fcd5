"""Inserts the barriers and proxy fences that the memory accesses of a kernel need.

Input: a gpu-stage program with placed shared memory, without barriers and fences except those that come with mbarrier
initialisation. Output: the same with ``BarSync``, ``FenceProxyAsync``, ``FenceMbarrierInit`` and, for TMA stores,
``BulkWaitGroup``: before their source is written again or the kernel ends, and where a kernel touches what they wrote.
Invariant: any two accesses to one byte by different threads, one of them a write, are ordered; an access through the
other proxy comes after a fence; what an arrival hands over to another role is done by then; no phase of an mbarrier can
be over before all who waited for the one before have seen that; a barrier stands only where all threads of the CTA (or
of the role) arrive; no barrier can be taken away. Where threads go different ways, the user's own named barriers and
mbarriers have to order what they do (:mod:`ptxtile.lower.synchronization_branches`).

The walk (:mod:`ptxtile.lower.synchronization_walk`) finds the places; here its decisions are pruned and written down.
The barrier of the whole CTA has id 0, a role's has an id of its own from 1 to 15, and so has that of each warpgroup
where threads only have to know of their own one. A barrier counts whole warps (PTX ISA, bar.sync: a warp arrives as a
whole, and a last warp of fewer threads counts as 32), so thread counts are rounded up to multiples of 32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ptxtile.errors import LoweringError, ResourceError
from ptxtile.ir.access_context import Context, kernel_context
from ptxtile.ir.gpu_ops import BarSync, BulkWaitGroup, FenceMbarrierInit, FenceProxyAsync
from ptxtile.ir.manual_ops import BarArrive, BarReduce
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import copy_with, walk
from ptxtile.ir.statements import For, If, Role, Seq, Specialized, Statement, While
from ptxtile.lower.barrier_ids import computed_ids
from ptxtile.lower.hazards import Decision, Path
from ptxtile.lower.options import Options
from ptxtile.lower.synchronization_facts import Facts
from ptxtile.lower.synchronization_hand_overs import NAMED_BARRIERS
from ptxtile.lower.synchronization_position import END, EXIT, Walk
from ptxtile.lower.synchronization_walk import find_decisions, needs_a_barrier
from ptxtile.target import Target

WARP = 32

MAXIMUM_PRUNED = 64
"""A kernel with more barriers than this is not searched for superfluous ones."""

PASS_NAME = "insert_synchronization"


def run(program: Program, target: Target, options: Options) -> Program:
    """``program`` with every hazard ordered. LoweringError where no barrier can be placed, ResourceError for too many
    ids."""
    kernels, records = [], []
    for kernel in program.kernels:
        walked = _decide(program, kernel)
        barriers = _Barriers(kernel, kernel_context(program, kernel))
        body = _insert(kernel.body, (), walked, barriers)
        body = _insert_at_end(body, (EXIT,), walked, barriers, None, kernel.body)
        kernels.append(replace(kernel, body=body) if body is not kernel.body else kernel)
        for _, decision in sorted(walked.decisions.items(), key=lambda item: _order(item[0])):
            for what, reason, location in decision.reasons:
                records.append(Why(PASS_NAME, kernel.name, f"inserted {what}", reason, location))
        records += [Why(PASS_NAME, kernel.name, "left as it is", note, where) for note, where in walked.notes.items()]
    return replace(program, kernels=tuple(kernels)).with_why(*records)


def _order(path: Path) -> tuple[str, ...]:
    return tuple(f"{part:08d}" if isinstance(part, int) else part for part in path)


def _decide(program: Program, kernel: Kernel) -> Walk:
    """A walk whose decisions suffice, and from which no barrier can be left out."""
    facts = Facts(program, kernel)
    walked = find_decisions(kernel, facts, {})
    barriers = {path for path, decision in walked.decisions.items() if decision.barrier}
    if not facts.has_barriers_inside_loops or not 2 <= len(barriers) <= MAXIMUM_PRUNED:
        return walked  # without loops, placing each barrier as late as possible is minimal already
    for path in sorted(_doubtful(walked), key=_order):
        if path not in barriers or needs_a_barrier(kernel, facts, _without_barrier(walked, path)):
            continue
        fewer = find_decisions(kernel, facts, _only(walked, barriers - {path}))
        found = {place for place, decision in fewer.decisions.items() if decision.barrier}
        if found == barriers - {path}:
            walked, barriers = fewer, found
    return walked


def _doubtful(walked: Walk) -> set[Path]:
    """The barriers that one that was decided on later may have made superfluous."""
    found = walked.barriers
    return {
        evidence.place
        for number, evidence in enumerate(found)
        if any(later.may_order(evidence) for later in found[number + 1 :])
    }


def _without_barrier(walked: Walk, path: Path) -> dict[Path, Decision]:
    """The decisions of ``walked`` but for the barrier at ``path``."""
    return {
        place: replace(
            decision,
            barrier=decision.barrier and place != path,
            waits=dict(decision.waits),
            fences=set(decision.fences),
        )
        for place, decision in walked.decisions.items()
    }


def _only(walked: Walk, paths: set[Path]) -> dict[Path, Decision]:
    """The decisions of ``walked`` for barriers at ``paths``, without their fences, which the next walk finds again."""
    return {
        path: Decision(barrier=True, within=decision.within, reasons=[r for r in decision.reasons if "barrier" in r[0]])
        for path, decision in walked.decisions.items()
        if path in paths
    }


class _Barriers:
    """Gives out the barrier of a kernel's CTA and of each role."""

    def __init__(self, kernel: Kernel, context: Context) -> None:
        self._kernel = kernel
        named = (node for node in walk(kernel.body, BarSync, BarArrive, BarReduce))
        self._taken = {0} | {node.id for node in named} | computed_ids(kernel, context)
        self._of_role: dict[str, int] = {}
        self._of_groups: dict[tuple[str, int], list[int]] = {}

    def of_groups(self, role: Role | None, size: int) -> Statement:
        """A barrier of each group of ``size`` threads of the role, or of the kernel: each with an id of its own."""
        name, first, threads = "", 0, self._kernel.threads
        if role is not None:
            name, first, threads = role.name, role.first_thread, role.threads
        if (name, size) not in self._of_groups:
            free = [number for number in range(1, NAMED_BARRIERS) if number not in self._taken][: threads // size]
            if len(free) < threads // size:
                return self.get(role)
            self._of_groups[name, size] = free
            self._taken.update(free)
        *others, last = self._of_groups[name, size]
        result: Statement = BarSync(last, size)
        for number, identifier in reversed(list(enumerate(others, start=1))):
            result = If(self._kernel.thread.lt(first + number * size), BarSync(identifier, size), result)
        return result

    def get(self, role: Role | None) -> BarSync:
        if role is None:
            return BarSync(0, _whole_warps(self._kernel.threads))
        last = role.first_thread + role.threads == self._kernel.threads
        if role.first_thread % WARP or (role.threads % WARP and not last):
            raise LoweringError(
                f"role {role.name} needs a barrier, but its threads are not whole warps",
                location=role.location,
                expected="a first thread and a thread count that are multiples of 32",
                got=f"threads {role.first_thread} to {role.first_thread + role.threads - 1}",
            )
        if role.name not in self._of_role:
            free = [number for number in range(1, NAMED_BARRIERS) if number not in self._taken]
            if not free:
                raise ResourceError(
                    f"no named barrier is left for role {role.name}",
                    location=role.location or self._kernel.location,
                    expected=f"at most {NAMED_BARRIERS - 1} named barriers in a kernel",
                    got=f"{len(self._taken)} in use",
                    hint="use fewer roles that need barriers, or ids that follow from the thread alone",
                )
            self._of_role[role.name] = free[0]
            self._taken.add(free[0])
        return BarSync(self._of_role[role.name], _whole_warps(role.threads))


def _whole_warps(threads: int) -> int:
    return -(-threads // WARP) * WARP


def _statements(decision: Decision, barriers: _Barriers, role: Role | None, place: Statement) -> Iterator[Statement]:
    location = place.location
    for kind, groups in sorted(decision.waits.items()):
        yield BulkWaitGroup(groups, kind == "read", location=location)
    for space in sorted(decision.fences):
        if space == "mbarrier_init":
            yield FenceMbarrierInit(location=location)
        else:
            yield FenceProxyAsync(space, location=location)
    if decision.barrier:
        barrier = barriers.of_groups(role, decision.within) if decision.within else barriers.get(role)
        yield copy_with(barrier, {"location": location})


def _insert(node: Statement, path: Path, walked: Walk, barriers: _Barriers, role: Role | None = None) -> Statement:
    """``node`` with the decisions for statements inside it carried out; for itself too, unless it stands in a Seq."""
    if isinstance(node, Seq):
        result: list[Statement] = []
        for position, statement in enumerate(node.statements):
            inner = (*path, position)
            if inner in walked.decisions:
                result.extend(_statements(walked.decisions[inner], barriers, role, statement))
            result.append(_insert_inside(statement, inner, walked, barriers, role))
        same = len(result) == len(node.statements) and all(a is b for a, b in zip(result, node.statements, strict=True))
        return node if same else replace(node, statements=tuple(result))
    inside = _insert_inside(node, path, walked, barriers, role)
    if path in walked.decisions:
        return Seq((*_statements(walked.decisions[path], barriers, role, node), inside))
    return inside


def _insert_at_end(
    body: Statement, path: Path, walked: Walk, barriers: _Barriers, role: Role | None, place: Statement
) -> Statement:
    """``body`` with what was decided for its end; ``path``: with END (of the loop ``place``) or EXIT (of a role or the
    kernel)."""
    end = walked.decisions.get(path)
    if end is None:
        return body
    kept = body.statements if isinstance(body, Seq) else (body,)
    return Seq((*kept, *_statements(end, barriers, role, place)))


def _insert_inside(node: Statement, path: Path, walked: Walk, barriers: _Barriers, role: Role | None) -> Statement:
    match node:
        case BarSync(0, _) if role is not None:  # the user's T.sync_threads(): the role's threads meet
            return replace(barriers.get(role), location=node.location)
        case BarReduce(id=0) if role is not None:
            barrier = barriers.get(role)
            return replace(node, id=barrier.id, threads=barrier.threads)
        case Seq():
            return _insert(node, path, walked, barriers, role)
        case For() | While():
            body = _insert(node.body, (*path, "body"), walked, barriers, role)
            body = _insert_at_end(body, (*path, END), walked, barriers, role, node)
            return node if body is node.body else replace(node, body=body)
        case If():
            then = _insert(node.then, (*path, "then"), walked, barriers, role)
            otherwise = node.otherwise
            if otherwise is not None:
                otherwise = _insert(otherwise, (*path, "otherwise"), walked, barriers, role)
            same = then is node.then and otherwise is node.otherwise
            return node if same else replace(node, then=then, otherwise=otherwise)
        case Specialized():
            roles = []
            for position, inner in enumerate(node.roles):
                body = _insert(inner.body, (*path, position), walked, barriers, inner)
                body = _insert_at_end(body, (*path, position, EXIT), walked, barriers, inner, inner)
                roles.append(inner if body is inner.body else replace(inner, body=body))
            same = all(a is b for a, b in zip(roles, node.roles, strict=True))
            return node if same else replace(node, roles=tuple(roles))
    return node

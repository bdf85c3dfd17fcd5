"""Keeps wgmma groups in flight while the consumers make an operand of the next ones.

A gemm at the end of a pipelined loop whose operand the consumers write themselves in each iteration (weights that they
unpack, probabilities that they compute) need not be waited for right behind it, but in the next iteration, in front of
the first statement that would disturb it: what touches its accumulator, writes its operand in registers, or writes its
tile in shared memory. Until then the threads compute while the tensor cores multiply.

A shared tile that is wholly written in each iteration, and used nowhere else, gets two versions, used in turn: then
it is written at once too, and the wait stands in front of the next gemm. One barrier an iteration is enough: whoever
writes version k % 2 in iteration k has passed the barrier of iteration k - 1, which came after all threads' waits for
gemm k - 2, the last that read it. Stages of rings are released behind the wait, one iteration late, which is why
shorter rings are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr, Load, binary, constant, constant_value
from ptxtile.ir.gpu_ops import MbarrierWait
from ptxtile.ir.program import Kernel, Why
from ptxtile.ir.rewrite import buffers_of, copy_with, map_children, walk
from ptxtile.ir.statements import (
    Allocate,
    Break,
    Continue,
    For,
    Let,
    LoopKind,
    Role,
    Seq,
    Specialized,
    Statement,
    Store,
    View,
    seq,
)
from ptxtile.ir.tensor_core_ops import WgmmaWaitGroup
from ptxtile.ir.tile_ops import Assume, Gemm, Region
from ptxtile.ir.types import int32
from ptxtile.lower.occupancy import resident_blocks
from ptxtile.lower.overlap_gemms import RingUse, distinct, is_asynchronous, touches
from ptxtile.lower.rings import versioned
from ptxtile.lower.whole_tiles import is_wholly_written
from ptxtile.records import record
from ptxtile.target import Target

PASS_NAME = "specialize_warps"
FEWEST_STAGES = 3
"""Of a ring whose stages are held for the length of one iteration: one is read by the gemm in flight, one by the threads
that prepare the next, and one is loaded."""
VERSIONS = 2
ALIGNMENT = 1024
"""Bytes that each version of a tile starts at a multiple of, with the widest swizzle."""

_IDLE = (Let, Assume, MbarrierWait, Allocate, View)
"""Statements that no time is won by overlapping."""


@dataclass
class SharedRoom:
    """Shared memory that second versions of tiles may take. ``used``: bytes of a block without them."""

    kernel: Kernel
    consumers: int
    target: Target
    used: int

    def refusal(self, size: int) -> str:
        """Why ``size`` bytes more are not to be had; empty if they are, which takes them."""
        left = self.target.max_shared_bytes - self.used
        if size > left:
            return f"a second version needs {size} bytes of shared memory, and {max(left, 0)} are left"
        before, after = (self._blocks(total) for total in (self.used, self.used + size))
        if after < before:
            return f"a second version would leave room for {after} instead of {before} CTAs on a multiprocessor"
        self.used += size
        return ""

    def _blocks(self, total: int) -> int:
        producers = self.kernel.threads - self.consumers
        roles = Specialized(
            (
                Role("consumer", 0, self.consumers, self.kernel.body, registers=1),
                Role("producer", self.consumers, producers, Seq(()), registers=1),
            )
        )
        return resident_blocks(copy_with(self.kernel, {"body": roles}), total, self.target)


@dataclass
class MadeOperands:
    """What :func:`overlap_made_operands` found. ``released``: groups whose stages the loops release themselves.
    ``versions``: by name, the tile in two versions and the one that an iteration uses."""

    body: Statement
    released: set[int] = field(default_factory=set)
    versions: dict[str, tuple[Buffer, Expr]] = field(default_factory=dict)
    why: list[Why] = field(default_factory=list)


@record
class _Plan:
    """Of one loop: the gemms that run on, as positions in the body, and the statement in front of which (``behind``:
    behind which) they are waited for. ``held``: the rings whose stages they read."""

    gemms: tuple[int, ...]
    wait: int
    behind: bool
    held: tuple[RingUse, ...]


def overlap_made_operands(body: Statement, uses: list[RingUse], free: Buffer, room: SharedRoom) -> MadeOperands:
    """``body`` (of the consumers) with the wait for such gemms in the next iteration and behind the loop. ``uses``: the
    rings whose stages nobody releases yet, on mbarriers ``free``."""
    result = MadeOperands(body)
    planner = _Planner(body, uses, room, result)

    def visit(node: Any) -> Any:
        if isinstance(node, Expr):
            return node
        if isinstance(node, For) and node.kind is LoopKind.PIPELINED and isinstance(node.body, Seq) and node.step > 0:
            plan = planner.plan(node, node.body.statements)
            if plan is not None:
                result.released.update(use.group.number for use in plan.held)
                return _overlapped(node, plan, free)
        return map_children(node, visit)

    result.body = visit(body)
    return result


class _Planner:
    def __init__(self, body: Statement, uses: list[RingUse], room: SharedRoom, result: MadeOperands) -> None:
        self.body, self.uses, self.room, self.result = body, uses, room, result

    def plan(self, loop: For, statements: tuple[Statement, ...]) -> _Plan | None:
        """How the last gemms of a loop run on; None where they make nothing of their own or had better not."""
        if any(isinstance(node, (Break, Continue)) for node in walk(loop.body)):
            return None
        inside = [use for use in self.uses if any(s is use.waiting for s in statements)]
        in_rings = set().union(*(use.names for use in inside))
        last = self._last_gemms(statements, in_rings)
        gemms = [_gemm(statements[position]) for position in last]
        made = {name for gemm in gemms for name in self._made(gemm, statements, in_rings)}
        if not made:
            return None
        operands = {name for gemm in gemms for name in _operands(gemm)}
        held = tuple(use for use in inside if use.names & operands)
        about = _about(gemms)
        short = [use for use in held if use.ring.stages < FEWEST_STAGES]
        if short:
            reason = f"a ring of {short[0].ring.stages} stages has none to spare for a gemm in flight"
            self._record(about, "waited for at once", reason, gemms[-1])
            return None
        wait, behind, notes = self._place_of_wait(loop, statements, last, made)
        until = statements[: wait + 1] if behind else statements[:wait]
        if all(isinstance(s, _IDLE) or _is_scalar(s) for s in until):
            reason = "; ".join((f"the next iteration starts with what has to wait for it ({_line(statements[wait])})", *notes))
            self._record(about, "waited for at once", reason, gemms[-1])
            return None
        for name, number in notes.versions.items():
            self.result.versions[name] = number
        place = "behind" if behind else "in front of"
        reason = "; ".join((f"waited for {place} the {_line(statements[wait])} of the next iteration", *notes))
        self._record(about, "runs while the next operand is made", reason, gemms[-1])
        return _Plan(tuple(last), wait, behind, held)

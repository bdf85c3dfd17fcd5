"""How many CTAs a multiprocessor shall hold, and which registers the roles of each get.

Input: gpu stage with shared memory placed. Output: kernels whose roles the compiler made, with ``min_blocks`` and the
counts of setmaxnreg for as many CTAs as shared memory, threads and the consumers' registers admit. setmaxnreg moves
registers within what the launch got, which is the same number for each thread; more CTAs mean fewer for each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.gpu_ops import SetMaxRegisters
from ptxtile.ir.program import Kernel, Program, Why
from ptxtile.ir.rewrite import Rewriter, buffers_of, contains, copy_with, walk
from ptxtile.ir.statements import Allocate, For, If, LoopKind, Role, Seq, Specialized, Statement, While
from ptxtile.ir.tensor_core_ops import Wgmma
from ptxtile.lower.gemm_geometry import BESIDE_ACCUMULATOR, accumulator_registers
from ptxtile.lower.options import Options
from ptxtile.records import record
from ptxtile.target import Target

WARPGROUP = 128
REGISTER_FILE = 65_536
"""32-bit registers of a multiprocessor (CUDA programming guide, technical specifications, 8.0 to 12.0)."""
PRODUCER_REGISTERS = 24
"""What one thread that only issues copies needs; the smallest count that setmaxnreg takes (PTX ISA, setmaxnreg)."""
MOST_REGISTERS = 240
"""Kept under the limit of 255 with the granularity of 8, as measured kernels do."""
BESIDE_FRAGMENTS = 60
"""Registers for addresses, descriptors, loop state and what an epilogue holds at a time: ptxas 13.0 takes 26 in plain
GEMM kernels, whatever their tile."""


@record
class RegisterPlan:
    """Registers for each thread: at launch, of the producer, of the consumers."""

    launch: int
    producer: int
    consumer: int


def launch_registers(threads: int, blocks: int = 1) -> int:
    """Registers that each thread of a CTA gets at launch when a multiprocessor holds ``blocks`` of them."""
    return min(MOST_REGISTERS, REGISTER_FILE // (threads * blocks) // 8 * 8)


def plan_registers(consumers: int, producers: int = WARPGROUP, blocks: int = 1) -> RegisterPlan:
    """What setmaxnreg may ask for when a multiprocessor holds ``blocks`` CTAs: a pair that does not fit into what the
    launch got would wait forever."""
    threads = consumers + producers
    launch = launch_registers(threads, blocks)
    pool = launch * threads
    consumer = min(MOST_REGISTERS, (pool - producers * PRODUCER_REGISTERS) // consumers // 8 * 8)
    return RegisterPlan(launch, PRODUCER_REGISTERS, consumer)


def run(program: Program, target: Target, options: Options) -> Program:
    kernels, why = [], []
    for kernel in program.kernels:
        planned, reason = _planned(kernel, target)
        kernels.append(planned)
        why.extend(reason)
    return replace(program, kernels=tuple(kernels)).with_why(*why) if why else program


def _planned(kernel: Kernel, target: Target) -> tuple[Kernel, list[Why]]:
    roles = _roles(kernel)
    if roles is None:
        return kernel, []
    consumer, producer = roles
    fitting = _fitting(kernel, target)
    need = fragment_registers(consumer.body) + BESIDE_FRAGMENTS
    least = max((_instruction_registers(node) for node in walk(consumer.body, Wgmma)), default=0)
    asked = kernel.min_blocks > 1
    blocks = kernel.min_blocks if asked else fitting
    plan = plan_registers(consumer.threads, producer.threads, blocks)
    while not asked and blocks > 1 and (plan.consumer < need or plan.launch < least):
        blocks -= 1
        plan = plan_registers(consumer.threads, producer.threads, blocks)
    if asked:
        reason = "the user asked for it"
    else:
        reason = f"shared memory and threads admit {fitting}, and a consumer needs about {need} registers"
    decision = (
        f"{blocks} CTA{'s' if blocks > 1 else ''} on a multiprocessor: {plan.launch} registers at launch, "
        f"{plan.producer} for the producer, {plan.consumer} for consumers"
    )
    body = _Counts(plan).visit(kernel.body)
    why = Why("plan_registers", kernel.name, decision, reason, kernel.location)
    return replace(kernel, min_blocks=blocks, body=body), [why]


def _roles(kernel: Kernel) -> tuple[Role, Role] | None:
    """(consumer, producer) of a kernel that the compiler split, unless the user wants its registers left alone."""
    for node in walk(kernel.body):
        if isinstance(node, Specialized):
            by_name = {role.name: role for role in node.roles if role.registers is not None}
            counted = all(contains(role.body, SetMaxRegisters) for role in node.roles)
            if set(by_name) == {"consumer", "producer"} and counted:
                return by_name["consumer"], by_name["producer"]
    return None


def _fitting(kernel: Kernel, target: Target) -> int:
    """CTAs that a multiprocessor holds for shared memory and threads."""
    shared = (kernel.shared_bytes or 0) + target.reserved_shared_bytes
    by_threads = min(target.max_threads_per_sm // kernel.threads, target.max_blocks_per_sm)
    return max(1, min(target.shared_bytes_per_sm // shared, by_threads))


def _instruction_registers(node: Wgmma) -> int:
    return accumulator_registers(node.n, node.accumulator.dtype.bits) + BESIDE_ACCUMULATOR


class _Counts(Rewriter):
    """The roles with the plan's counts."""

    def __init__(self, plan: RegisterPlan) -> None:
        self.counts = {"inc": plan.consumer, "dec": plan.producer}

    def rewrite_SetMaxRegisters(self, node: SetMaxRegisters) -> SetMaxRegisters:
        return copy_with(node, {"count": self.counts[node.action]})

    def rewrite_Role(self, node: Role) -> Role:
        return copy_with(node, {"registers": self.counts["inc" if node.name == "consumer" else "dec"]})


# -- what the consumers hold in registers ----------------------------------------
def fragment_registers(body: Statement) -> int:
    """The most 32-bit registers that a thread's arrays take between two statements of ``body``.

    An array is live from its first use to its last, and through a loop that it is used in when it is made outside of
    it. An unrolled loop is one statement, in which arrays take each other's place.
    """
    uses = _Uses()
    uses.visit(body, ())
    return uses.most()


class _Uses:
    """First and last position of each register array, on a clock that counts statements."""

    def __init__(self) -> None:
        self.clock = 0
        self.arrays: dict[str, Buffer] = {}
        self.spans: dict[str, tuple[int, int]] = {}
        self.loops: list[tuple[int, int, set[str]]] = []

    def visit(self, node: Statement, around: tuple[set[str], ...]) -> None:
        if isinstance(node, Seq):
            for statement in node.statements:
                self.visit(statement, around)
        elif isinstance(node, If):
            self._use(node.condition, around)
            for branch in (node.then, node.otherwise):
                if branch is not None:
                    self.visit(branch, around)
        elif isinstance(node, While) or (isinstance(node, For) and node.kind is not LoopKind.UNROLLED):
            inside: set[str] = set()
            start = self.clock
            self.visit(node.body, (*around, inside))
            self.clock += 1
            self.loops.append((start, self.clock, inside))
        elif not isinstance(node, Allocate):
            self._use(node, around)

    def _use(self, node: Any, around: tuple[set[str], ...]) -> None:
        self.clock += 1
        for inner in walk(node):
            for buffer in buffers_of(inner):
                if buffer.scope is Scope.REGISTER:
                    name = buffer.storage.name
                    self.arrays[name] = buffer
                    first, _ = self.spans.get(name, (self.clock, 0))
                    self.spans[name] = (first, self.clock)
                    for names in around:
                        names.add(name)

    def most(self) -> int:
        for start, end, inside in self.loops:
            for name in inside:
                first, last = self.spans[name]
                if first <= start or last > end:  # made or read outside: it goes around the loop
                    self.spans[name] = (min(first, start), max(last, end))
        return max((self._live(moment) for moment in range(self.clock)), default=0)

    def _live(self, moment: int) -> int:
        """Registers of the arrays that are needed after ``moment`` statements and were written by then."""
        return sum(
            -(-(self.arrays[name].storage.size or 0) // 4)
            for name, (first, last) in self.spans.items()
            if first <= moment < last
        )

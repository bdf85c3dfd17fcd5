"""Gives every fragment and every parallel loop its distribution over the threads.

Input: async stage, tile operations expanded to parallel loops. Output: the same with ``layout`` in every ParallelFor's
options and on every fragment buffer, and every access of a fragment local to its thread.

Tensor cores fix where their accumulators and their operands in registers lie; an operand that lies otherwise is handed
to them through shared memory. Fragments of which elements are used outside of loops are replicated. Then loops are
taken, first those that share a fragment with the tensor cores or with such a loop, and from the largest domain down: a
loop follows the fragments that already have a layout (pulled back through its index map), else it gets the linear
layout whose vector width suits all loops that share its fragments; fragments seen for the first time get the layout
that this loop needs (projection). An access that still is not local goes through a tile in shared memory: correct for
any pattern, and reported as *why*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ptxtile.errors import Location, LoweringError
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.effects import atomic_write, private_results
from ptxtile.ir.expressions import Expr, Load
from ptxtile.ir.layouts import Fragment, linear_fragment, replicated_fragment
from ptxtile.ir.names import NameSupply
from ptxtile.ir.program import Kernel, Program, TensorParameter, Why
from ptxtile.ir.rewrite import children, walk
from ptxtile.ir.statements import Allocate, Role, Store
from ptxtile.ir.tile_ops import Gemm
from ptxtile.lower.fragment_maps import (
    FragmentAccess,
    as_held_by,
    is_in_every_thread,
    project,
    pull_back,
    register_map,
)
from ptxtile.lower.gemm_geometry import accumulator_fragment, in_registers, operand_b_fragment, operand_fragment
from ptxtile.lower.options import Options
from ptxtile.lower.parallel_loops import ElementUse, LoopCollection, ParallelLoop, collect_loops
from ptxtile.lower.stage_fragments import Exchange, Layouts, apply_layouts, overwrites
from ptxtile.lower.vector_access import MEMORY
from ptxtile.target import Target

MOST_REPLICATED = 4096
"""Bytes of a fragment that each thread holds for itself because single elements of it are used: a table of 1024 int32,
four times the registers that a thread can have."""


def run(program: Program, target: Target, options: Options) -> Program:
    names = NameSupply(program)
    kernels, why = [], []
    for kernel in program.kernels:
        inference = _Inference(kernel, collect_loops(program, kernel), _alias_groups(program))
        inference.solve()
        body, notes = apply_layouts(kernel, inference.layouts, names)
        kernels.append(replace(kernel, body=body))
        why.extend(notes)
        why.extend(inference.why)
    return replace(program, kernels=tuple(kernels)).with_why(*why)


def _gemms(node: Any, threads: int) -> Iterator[tuple[Gemm, int]]:
    """Every gemm with the number of threads of its group: the block's, or the role's."""
    if isinstance(node, Gemm):
        yield node, threads
    for child in children(node):
        if not isinstance(child, Expr):
            yield from _gemms(child, node.threads if isinstance(node, Role) else threads)


class _Inference:
    def __init__(self, kernel: Kernel, collection: LoopCollection, groups: dict[str, str]) -> None:
        self.kernel = kernel
        self.groups = groups
        self.loops = collection.loops
        self.elements = collection.elements
        self.layouts = Layouts()
        self.fragments, self.loop_layouts = self.layouts.fragments, self.layouts.loops
        self.exchanges = self.layouts.exchanges
        self.why: list[Why] = []
        self.given: dict[str, Location | None] = {}

    def solve(self) -> None:
        threads = self.kernel.user_threads or self.kernel.threads
        gemms = list(_gemms(self.kernel.body, threads))
        self._take_given()
        for gemm, group in gemms:
            assert gemm.path is not None, "select_gemm_paths runs before"
            self._fix_accumulator(gemm, accumulator_fragment(gemm, group, gemm.path))
        for use in (use for use in self.elements.values() if use.outside):
            self._replicate(use)
        for gemm, group in gemms:
            self._fix_operands(gemm, group)
        for use in (use for use in self.elements.values() if not use.outside and _bytes(use.buffer) <= MOST_REPLICATED):
            self._replicate(use)
        widths = _shared_widths(self.loops)
        for entry in self._in_order():
            layout = self._choose(entry, widths[id(entry.loop)])
            self._lay_out(entry, layout)
            if self._updates_memory(entry) and not layout.is_exclusive:
                del self.exchanges[id(entry.loop)]
                self._lay_out(entry, free_layout(entry.loop.extents, entry.threads, widths[id(entry.loop)]))

    def _take_given(self) -> None:
        """Fragments whose layout the user gave keep it."""
        for node in walk(self.kernel.body):
            if isinstance(node, Allocate) and isinstance(node.buffer.layout, Fragment):
                self.given[node.buffer.name] = node.location
                self.fragments[node.buffer.name] = node.buffer.layout

    def _in_order(self) -> Iterator[ParallelLoop]:
        """The loops: first those that share a fragment with the tensor cores, or with a loop before them, then the
        largest of the rest and what shares a fragment with it, and so on: what is free follows what is fixed, and not
        the other way round."""
        waiting = sorted(self.loops, key=lambda entry: -entry.iterations)
        names = {id(entry): {access.buffer.name for access in entry.accesses} for entry in waiting}
        reached = set(self.fragments) - set(self.elements)
        while waiting:
            entry = next((entry for entry in waiting if names[id(entry)] & reached), waiting[0])
            waiting.remove(entry)
            reached |= names[id(entry)]
            yield entry

    def _lay_out(self, entry: ParallelLoop, layout: Fragment) -> None:
        self.loop_layouts[id(entry.loop)] = layout
        self.exchanges[id(entry.loop)] = []
        for access in entry.accesses:
            self._settle(entry, access, layout)

    def _updates_memory(self, entry: ParallelLoop) -> bool:
        """Whether iterations read what they write in memory or in an exchange's shared copy. Of replicas only one
        stores, and the others might read the element after that."""
        read, written = set(), set()
        for node in walk(entry.loop.body):
            if isinstance(node, (Load, Store)) and node.buffer.scope in MEMORY:
                name = self.groups.get(node.buffer.storage.name, node.buffer.storage.name)
                (read if isinstance(node, Load) else written).add(name)
            updated = atomic_write(node)
            if updated is not None:
                written.add(self.groups.get(updated.storage.name, updated.storage.name))
        exchanged = {exchange.buffer.name for exchange in self.exchanges[id(entry.loop)]}
        for access in entry.accesses:
            if access.buffer.name in exchanged:
                (written if access.is_write else read).add(f"the copy of {access.buffer.name}")
        return bool(read & written)

    def _fix_accumulator(self, gemm: Gemm, layout: Fragment) -> None:
        name = gemm.accumulator.buffer.name
        if name in self.given and self.fragments[name] != layout:
            raise LoweringError(
                f"{name} has a layout in which no gemm leaves its results",
                location=gemm.location,
                expected=f"the layout of the accumulator of {gemm.path.value if gemm.path else 'the gemm'}: {layout}",
                got=f"{self.fragments[name]} from T.annotate_layout",
                hint=f"leave {name} out of T.annotate_layout, or copy the result to a fragment with that layout",
            )
        if self.fragments.setdefault(name, layout) != layout:
            raise LoweringError(
                f"two gemms need {name} distributed over the threads in different ways",
                location=gemm.location,
                hint="give both the same policy and transposes that the same instructions take, or use two fragments",
            )

    def _replicate(self, use: ElementUse) -> None:
        """Every thread holds the whole of a fragment whose elements are chosen outside of parallel loops."""
        name, held = use.buffer.name, self.fragments.get(use.buffer.name)
        if held is None:
            _check_size(use)
            self.fragments[name] = replicated_fragment(use.buffer.static_shape, use.threads)
            if use.buffer.elements > 1:
                reason = "single elements of it are used outside of T.Parallel, or an index that only the run knows"
                self.why.append(Why("infer_layouts", name, "every thread holds all of it", reason, use.location))
        elif use.outside and not is_in_every_thread(held):
            given = "T.annotate_layout distributes it" if name in self.given else "it is the accumulator of a gemm"
            raise LoweringError(
                f"an element of the fragment {name} is used outside of T.Parallel, and no thread holds all of them",
                location=use.location,
                expected="a fragment that every thread can hold as a whole",
                got=f"{given}: {held}",
                hint="T.copy it to shared memory, or to a fragment of its own, and use the elements of that",
            )

    def _fix_operands(self, gemm: Gemm, threads: int) -> None:
        """Operands in registers lie as the instruction wants them, or are converted in front of it."""
        assert gemm.path is not None
        wanted: dict[str, Fragment] = {}
        if in_registers(gemm.a):
            wanted["a"] = operand_fragment(gemm, threads, gemm.path)
        if in_registers(gemm.b):
            wanted["b"] = operand_b_fragment(gemm, threads)
        for operand, layout in wanted.items():
            name = getattr(gemm, operand).buffer.name
            if self.fragments.setdefault(name, layout) != layout:
                self.layouts.conversions.setdefault(id(gemm), {})[operand] = layout
                reason = f"its layout is fixed, and operand {operand.upper()} of this gemm lies differently"
                self.why.append(Why("infer_layouts", name, "goes through shared memory", reason, gemm.location))

    def _choose(self, entry: ParallelLoop, width: int) -> Fragment:
        """The user's (``loop_layout``), else the layout with the fewest bytes that go through shared memory."""
        given = entry.loop.option("loop_layout")
        if isinstance(given, Fragment):
            return given
        candidates: list[Fragment] = []
        once = any(private_results(node) for node in walk(entry.loop.body))  # only one replica would have the result
        for access in sorted(entry.accesses, key=lambda access: not access.is_write):
            fragment = self.fragments.get(access.buffer.name)
            fragment = None if fragment is None else as_held_by(fragment, entry.threads)
            if fragment is not None and fragment.threads == entry.threads:
                candidate = pull_back(access, entry.loop, fragment)
                if candidate is not None and candidate not in candidates and (not once or candidate.is_exclusive):
                    candidates.append(candidate)
        candidates.append(free_layout(entry.loop.extents, entry.threads, width))
        costs: list[int] = []
        for layout in candidates:
            costs.append(self._cost(entry, layout))
            if not costs[-1]:
                return layout
        return candidates[costs.index(min(costs))]

    def _cost(self, entry: ParallelLoop, layout: Fragment) -> int:
        """Bytes of the exchanged fragments, once for each time that they cross: a copy of a fragment that is written is
        made before and brought back after the loop, except for what the loop overwrites."""
        crossings: dict[str, int] = {}
        for access in entry.accesses:
            name = access.buffer.name
            fragment = self.fragments.get(name)
            if fragment is None or register_map(access, entry.loop, layout, fragment) is not None:
                continue
            times = 2 if access.is_write and not overwrites(entry.loop, access.buffer) else 1
            crossings[name] = max(crossings.get(name, 0), times * access.buffer.elements * access.buffer.dtype.bits)
        return sum(crossings.values())

    def _settle(self, entry: ParallelLoop, access: FragmentAccess, layout: Fragment) -> None:
        """Gives the access's fragment a layout if it has none; notes an exchange when the access is not local."""
        name = access.buffer.name
        if name not in self.fragments:
            projected = project(access, entry.loop, layout)
            self.fragments[name] = projected or free_layout(access.buffer.static_shape, entry.threads, 1)
        if register_map(access, entry.loop, layout, self.fragments[name]) is not None:
            return
        if as_held_by(self.fragments[name], entry.threads).threads != entry.threads:
            raise LoweringError(
                f"{name} is used by two roles with different numbers of threads",
                location=entry.loop.location,
                hint="hand the tile over through shared memory",
            )
        exchanges = self.exchanges.setdefault(id(entry.loop), [])
        if any(known.buffer.name == name for known in exchanges):
            return
        # all of the loop's accesses go to the shared copy, also those that would be local
        is_written = any(other.is_write for other in entry.accesses if other.buffer.name == name)
        exchanges.append(Exchange(access.buffer, is_written))
        reason = "a parallel loop needs elements that other threads hold"
        self.why.append(Why("infer_layouts", name, "goes through shared memory", reason, entry.loop.location))


def _check_size(use: ElementUse) -> None:
    if _bytes(use.buffer) > MOST_REPLICATED:
        raise LoweringError(
            f"an element of the fragment {use.buffer.name} is used outside of T.Parallel, so that every thread has "
            "to hold all of it",
            location=use.location,
            expected=f"at most {MOST_REPLICATED} bytes",
            got=f"{_bytes(use.buffer)} bytes ({use.buffer.elements} elements of {use.buffer.dtype})",
            hint="use the elements in T.Parallel, or keep the tile in shared memory (T.alloc_shared)",
        )


def _bytes(buffer: Buffer) -> int:
    return -(-buffer.elements * buffer.dtype.bits // 8)


def _alias_groups(program: Program) -> dict[str, str]:
    """One name for all tensors that may share memory."""
    return {
        p.buffer.storage.name: f"alias group {p.alias_group}"
        for p in program.parameters
        if isinstance(p, TensorParameter) and p.alias_group is not None
    }


def free_layout(extents: tuple[int, ...], threads: int, width: int) -> Fragment:
    """Consecutive threads take consecutive vectors of ``width`` elements; narrower when threads would stay idle."""
    total = 1
    for extent in extents:
        total *= extent
    while width > 1 and (extents[-1] % width or total < threads * width):
        width //= 2
    return linear_fragment(extents, threads, width)


def _shared_widths(loops: list[ParallelLoop]) -> dict[int, int]:
    """The vector width for each loop: the narrowest useful one among all loops that reach each other through fragments
    that both index by their own variables in order (they will share one layout)."""
    leader: dict[str, str] = {}

    def find(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    for entry in loops:
        for access in entry.accesses:
            if access.is_identity(entry.loop):
                leader[find(access.buffer.name)] = find(f"loop {id(entry.loop)}")
    width: dict[str, int] = {}
    for entry in loops:
        if entry.width > 1:
            group = find(f"loop {id(entry.loop)}")
            width[group] = min(width.get(group, entry.width), entry.width)
    return {id(entry.loop): width.get(find(f"loop {id(entry.loop)}"), 1) for entry in loops}

"""Shadows of the tensors that a program may get wrong: those that it writes, and its own allocations; and those of the
shared memory of CTAs, which one CTA hands on to the next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ptxtile.ir.atomic_ops import Atomic, AtomicStore
from ptxtile.ir.buffers import Scope
from ptxtile.ir.gpu_ops import TmaStore
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Statement, Store
from ptxtile.sim.check.clocks import Clocks
from ptxtile.sim.check.shadow import Shadow
from ptxtile.sim.memory import GlobalTensor

MOST_SPARE = 8
_SPARE: dict[tuple[int, int], Shadow] = {}
"""Shadows of shared memory that nobody uses now, by CTA and size."""


@dataclass(slots=True)
class GlobalShadows:
    """Shadows by the address of a tensor's storage, over the launches of a program. ``written``: the storages that the
    present launch writes; ``fresh``: those that nobody wrote to before the program. ``sites``: the statements that
    findings lead back to; ``reported``: conflicts of which there is a finding."""

    fresh: frozenset[int]
    written: frozenset[int] = frozenset()
    clocks: Clocks | None = None
    shadows: dict[int, Shadow] = field(default_factory=dict)
    sites: list[Statement | None] = field(default_factory=lambda: [None])
    numbers: dict[int, int] = field(default_factory=dict)
    reported: set[tuple[int, int, int, bool]] = field(default_factory=set)
    shared: dict[tuple[int, int], Shadow] = field(default_factory=dict)

    def site(self, statement: Statement) -> int:
        known = self.numbers.get(id(statement))
        if known is None:
            known = self.numbers[id(statement)] = len(self.sites)
            self.sites.append(statement)
        return known

    def shadow_of(self, tensor: GlobalTensor) -> Shadow | None:
        shadow = self.shadows.get(tensor.address)
        if shadow is None and (tensor.address in self.written or tensor.address in self.fresh):
            assert self.clocks is not None
            shadow = Shadow(tensor.data.size, self.clocks, initialised=tensor.address not in self.fresh)
            self.shadows[tensor.address] = shadow
        return shadow

    def start_group(self, clocks: Clocks) -> None:
        """Other CTAs begin: what has been done so far is not ordered before anything that they do."""
        self.clocks = clocks
        for shadow in self.shadows.values():
            shadow.start_group(clocks)

    def shared_shadow(self, cta: int, size: int) -> Shadow:
        """Of the shared memory of a CTA that begins; ``cta``: its number in its group."""
        assert self.clocks is not None
        shadow = self.shared.get((cta, size))
        if shadow is not None:
            shadow.start_group(self.clocks)
            return shadow
        try:
            shadow = _SPARE.pop((cta, size))
            shadow.start_group(self.clocks)
        except KeyError:
            shadow = Shadow(size, self.clocks, initialised=False, forgets=True)
        self.shared[cta, size] = shadow
        return shadow

    def hand_on(self) -> None:
        """After the last launch: another check may use the shadows of shared memory, whose pages are costly to get."""
        while len(_SPARE) > MOST_SPARE:
            _SPARE.popitem()
        _SPARE.update(self.shared)
        self.shared = {}

    def end_launch(self) -> None:
        for shadow in self.shadows.values():
            shadow.end_launch()


def fresh_storages(program: Program, memory: Mapping[str, GlobalTensor]) -> frozenset[int]:
    """The storages of the program's own allocations."""
    return frozenset(memory[buffer.name].address for buffer in program.allocations if buffer.name in memory)


def written_storages(program: Program, kernel: Kernel, memory: Mapping[str, GlobalTensor]) -> frozenset[int]:
    """The storages that ``kernel`` stores to, by itself or through TMA: only those can race."""
    maps = {} if program.launch is None else {record.name: record.tensor for record in program.launch.tensor_maps}
    return frozenset(memory[name].address for name in set(_written(kernel, maps)) if name in memory)


def _written(kernel: Kernel, maps: Mapping[str, str]) -> Iterable[str]:
    for node in walk(kernel.body):
        if isinstance(node, (Store, Atomic, AtomicStore)) and node.buffer.scope is Scope.GLOBAL:
            yield node.buffer.storage.name
        elif isinstance(node, TmaStore):
            yield maps[node.tensor_map]

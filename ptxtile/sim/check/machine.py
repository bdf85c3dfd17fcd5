"""The machine under the checker: warps (or warpgroups, where instructions need whole ones) that run one after another
in an order drawn from a seed, every access judged, every synchronization recorded."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.gpu_ops import SetMaxRegisters
from ptxtile.ir.manual_ops import GridSync
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Role, Specialized, Statement
from ptxtile.ir.tensor_core_ops import Wgmma, WgmmaCommitGroup, WgmmaFence, WgmmaWaitGroup
from ptxtile.ir.types import DType
from ptxtile.sim.check.clocks import WARP, WARPGROUP
from ptxtile.sim.check.effects import CheckedEffects
from ptxtile.sim.check.findings import Finding
from ptxtile.sim.check.hooks import HOOKS, Hook
from ptxtile.sim.check.mbarriers import CheckedMbarrier
from ptxtile.sim.check.watch import GlobalShadows, Watch
from ptxtile.sim.control_flow import AnyOf, Coroutine, Turn, Wait
from ptxtile.sim.dtypes import Value, to_memory
from ptxtile.sim.machine import CtaGroup, KernelContext, Threads
from ptxtile.sim.masks import Mask
from ptxtile.sim.private import PRIVATE_SCOPES
from ptxtile.sim.rules import RULES
from ptxtile.sim.rules.mbarriers import Mbarrier

_BY_WARPGROUPS = (Wgmma, WgmmaCommitGroup, WgmmaFence, WgmmaWaitGroup, SetMaxRegisters)
PAUSE = 0.2
"""How likely a warp lets others go first after an operation that orders something."""


class CheckedGroup(CtaGroup):
    """One CTA or cluster (or a whole cooperative grid) under the checker."""

    effects: CheckedEffects

    def __init__(
        self, context: KernelContext, first: int, ctas: int, seed: int, shadows: GlobalShadows,
        report: Callable[[Finding], None],
    ) -> None:  # fmt: skip
        super().__init__(context, first, ctas)
        self.random = random.Random(seed)
        self.effects = CheckedEffects(self.effects)
        barriers = {
            node.buffer.storage.name: node.buffer.storage.size or 0
            for node in walk(context.kernel.body)
            if hasattr(node, "buffer") and isinstance(node.buffer, Buffer) and node.buffer.scope is Scope.BARRIER
        }
        self.watch = self.effects.watch = Watch(self, sum(barriers.values()) // 8, shadows, report)
        self._numbered: list[CheckedMbarrier] = []
        self._roles = [node for node in walk(context.kernel.body) if isinstance(node, Role)]

    def make_mbarrier(self, name: str) -> CheckedMbarrier:
        made = CheckedMbarrier(name, self.ctas, len(self._numbered), self.watch.clocks)
        self._numbered.append(made)
        return made

    def mbarrier_agent(self, mbarrier: Mbarrier, cta: int) -> int:
        assert isinstance(mbarrier, CheckedMbarrier)
        return self.watch.clocks.mbarrier_agent(mbarrier.number, cta)

    def mbarrier_name(self, number: int) -> str:
        return self._numbered[number].name if number < len(self._numbered) else f"mbarrier {number}"

    def cluster_of(self, cta: int) -> int:
        """A number for the cluster of a CTA."""
        return int(self.cluster_members()[cta][0])

    def role_of(self, warp: int) -> str:
        """`` (role NAME)`` of a warp of the CTA, or nothing."""
        thread = warp * WARP
        for role in self._roles:
            if role.first_thread <= thread < role.first_thread + role.threads:
                return f" (role {role.name})"
        return ""

    def run(self) -> Coroutine:
        kernel = self.context.kernel
        nodes = list(walk(kernel.body))
        size = WARPGROUP if any(isinstance(node, _BY_WARPGROUPS) for node in nodes) else WARP
        if any(isinstance(node, GridSync) for node in nodes):
            size = kernel.threads
        return self._in_any_order(
            [self._unit(first, min(size, kernel.threads - first)) for first in range(0, kernel.threads, size)]
        )

    def _unit(self, first: int, lanes: int) -> Coroutine:
        kernel = self.context.kernel
        threads = CheckedThreads(self, kernel.name, first, lanes, self.context.mixed)
        threads.variables.update(self.context.variables)
        threads.variables.update(self.block_variables())
        threads.variables[kernel.thread.name] = np.arange(first, first + lanes, dtype=np.int32)[None, :]
        return threads.execute(kernel.body)

    def _in_any_order(self, coroutines: list[Coroutine]) -> Generator[Wait, None, list[Any]]:
        """Runs coroutines in turns whose order is drawn, each until it waits or pauses."""
        children = dict(enumerate(coroutines))
        waits: dict[int, Wait] = {}
        while children:
            ready = [n for n in children if n not in waits or waits[n].ready()]
            if not ready:
                yield AnyOf(list(waits.values()))
                continue
            chosen = self.random.choice(ready)
            try:
                waits[chosen] = next(children[chosen])
            except StopIteration:
                del children[chosen]
                waits.pop(chosen, None)
        return []


class CheckedThreads(Threads):
    """One unit of warps."""

    group: CheckedGroup

    def execute_operation(self, statement: Statement, mask: Mask) -> Coroutine:
        make: Callable[..., Hook] | None = HOOKS.get(type(statement))
        if make is None:
            return (yield from super().execute_operation(statement, mask))
        hook = make(self, statement, mask)
        next(hook)  # before the rule
        wait = RULES[type(statement)](self, statement, mask)
        next(hook, None)  # after it
        if wait is not None:
            yield wait
            wait.finish()
        next(hook, None)  # and after what it waits for
        if mask is None and self.group.random.random() < PAUSE:  # (lanes of a branch have to come back together)
            yield Turn()
        return mask

    def run_roles(self, statement: Specialized, mask: Mask) -> Coroutine:
        """A unit belongs to one role."""
        first, end = self.first_thread, self.first_thread + self.lanes
        for role in statement.roles:
            if role.first_thread <= first and end <= role.first_thread + role.threads:
                outer, self.name = self.name, role.name
                result = yield from self.execute(role.body, mask)
                self.name = outer
                return result
        return mask

    # Memory -------------------------------------------------------------------------------------------------------

    def load(self, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> Value:
        if buffer.scope in (Scope.SHARED, Scope.GLOBAL):
            value = super().load(buffer, index, dtype, mask)
            self._judge(buffer, index, dtype, mask, None)
            return value
        if buffer.scope in PRIVATE_SCOPES:
            self.group.watch.registers.read(self, buffer, index, dtype, mask)
        return super().load(buffer, index, dtype, mask)

    def store(self, buffer: Buffer, index: Value, value: Value, dtype: DType, mask: Mask) -> None:
        super().store(buffer, index, value, dtype, mask)
        if buffer.scope in (Scope.SHARED, Scope.GLOBAL):
            self._judge(buffer, index, dtype, mask, value)
        elif buffer.scope in PRIVATE_SCOPES:
            self.group.watch.registers.written(self, buffer, index, dtype, mask)

    def _judge(self, buffer: Buffer, index: Value, dtype: DType, mask: Mask, value: Value | None) -> None:
        """Judges an access that has been made (so bounds and alignment are right)."""
        if self.statement is None:
            return
        watch, width = self.group.watch, dtype.itemsize
        shape = (self.group.ctas, self.lanes)
        ctas, lanes = self.active_lanes(mask)
        elements = np.broadcast_to(np.asarray(index), shape)[ctas, lanes].astype(np.int64)
        offsets = elements * (buffer.dtype.bits * buffer.dtype.lanes) // 8
        warps = ctas * watch.clocks.warps_of_cta + (lanes + self.first_thread) // WARP
        actors = watch.generic(warps, buffer.scope)
        if buffer.scope is Scope.SHARED:
            offsets += self.group.shared.bounds(buffer)[0]
            same = None if value is None else self._unchanged(self.group.shared.data, ctas, offsets, value, dtype, mask)
            watch.shared_access(self.statement, buffer.name, ctas, offsets, width, actors, same)
            return
        tensor = self.group.tensor(buffer.storage.name)
        offsets += tensor.base
        same = None if value is None else self._unchanged(tensor.data[None], ctas * 0, offsets, value, dtype, mask)
        watch.global_access(self.statement, tensor, offsets, width, actors, same)

    def _unchanged(
        self, memory: np.ndarray, rows: np.ndarray, offsets: np.ndarray, value: Value, dtype: DType, mask: Mask
    ) -> np.ndarray:
        """Which stores left their own value in memory: of several to one place, all of them if they agree."""
        ctas, lanes = self.active_lanes(mask)
        stored = np.ascontiguousarray(to_memory(value, dtype))
        stored = stored if dtype.lanes > 1 else stored[..., None]
        whole = np.broadcast_to(stored, (self.group.ctas, self.lanes, stored.shape[-1]))[ctas, lanes]
        given = np.ascontiguousarray(whole).view(np.uint8).reshape(len(ctas), -1)
        places = offsets[:, None] + np.arange(given.shape[1])
        return (memory[rows[:, None], places] == given).all(axis=1).astype(np.uint8)

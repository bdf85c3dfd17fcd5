"""The machine: CTAs that run a kernel in step, their threads, and the scheduler of their coroutines.

A :class:`CtaGroup` is some CTAs of one grid with their shared memory and barriers. A :class:`Threads` is a range of
threads of all of them that share control flow: the whole CTA, or a role of a ``Specialized``. Values are [CTA, lane]
arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field

import numpy as np

from ptxtile.errors import DeadlockError, SimulationError
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr
from ptxtile.ir.gpu_ops import GpuOp
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.statements import Role, Specialized, Statement
from ptxtile.ir.types import DType
from ptxtile.records import record
from ptxtile.sim.async_effects import EffectPolicy, ImmediateEffects
from ptxtile.sim.control_flow import Coroutine, Executor, Wait, interleave
from ptxtile.sim.dtypes import Value, as_array
from ptxtile.sim.masks import Mask
from ptxtile.sim.memory import GlobalTensor, SharedMemory
from ptxtile.sim.rules import RULES
from ptxtile.sim.rules.barriers import WARP, GridBarrier, NamedBarrier
from ptxtile.sim.rules.clusters import ClusterBarrier
from ptxtile.sim.rules.mbarriers import Mbarrier
from ptxtile.sim.tensor_maps import TensorMap


@record
class KernelContext:
    """What all CTAs of a launch share. ``tensors`` and ``tensor_maps`` are those that the kernel has as parameters;
    ``variables`` its scalar parameters; ``grid`` is (x, y, z); ``mixed``: storages viewed with several dtypes."""

    program: Program
    kernel: Kernel
    grid: tuple[int, int, int]
    shared_bytes: int
    tensors: Mapping[str, GlobalTensor]
    tensor_maps: Mapping[str, TensorMap]
    variables: Mapping[str, Value]
    mixed: frozenset[str]
    effects: Callable[[], EffectPolicy] = ImmediateEffects
    grid_barrier: GridBarrier = field(default_factory=GridBarrier)


class CtaGroup:
    """``ctas`` CTAs from linear index ``first`` on, with their memory on the multiprocessor."""

    def __init__(self, context: KernelContext, first: int, ctas: int) -> None:
        self.context = context
        self.first = first
        self.ctas = ctas
        self.shared = SharedMemory(ctas, context.shared_bytes)
        self.mbarriers: dict[int, Mbarrier] = {}
        self.named_barriers: dict[int, NamedBarrier] = {}
        self.effects: EffectPolicy = context.effects()
        self._members: np.ndarray | None = None
        self._cluster_barrier: ClusterBarrier | None = None

    def block_index(self, cta: int) -> tuple[int, int, int]:
        x, y, _ = self.context.grid
        linear = self.first + cta
        return linear % x, linear // x % y, linear // (x * y)

    def cluster_members(self) -> np.ndarray:
        """[CTA, rank]: the CTAs of each one's cluster by rank, as positions in this group, which holds all of them."""
        members = self._members
        if members is None:
            sizes, grid = self.context.kernel.cluster, self.context.grid
            own = np.array([self.block_index(cta) for cta in range(self.ctas)]).reshape(self.ctas, 3)
            rank = np.arange(sizes[0] * sizes[1] * sizes[2])
            inside = np.stack([rank % sizes[0], rank // sizes[0] % sizes[1], rank // (sizes[0] * sizes[1])], axis=1)
            x, y, z = np.moveaxis((own // sizes * sizes)[:, None, :] + inside[None, :, :], 2, 0)
            members = self._members = x + grid[0] * (y + grid[1] * z) - self.first
        return members

    def cluster_barrier(self) -> ClusterBarrier:
        if self._cluster_barrier is None:
            self._cluster_barrier = ClusterBarrier(self.cluster_members(), self.context.kernel.threads)
        return self._cluster_barrier

    def make_mbarrier(self, name: str) -> Mbarrier:
        return Mbarrier(name, self.ctas)

    def block_variables(self) -> dict[str, Value]:
        """The CTA indices: Python ints where all CTAs agree, else [CTA, 1]."""
        values: dict[str, Value] = {}
        indices = np.array([self.block_index(cta) for cta in range(self.ctas)], dtype=np.int32)
        for var, column in zip(self.context.kernel.block_vars, indices.T, strict=True):
            values[var.name] = int(column[0]) if (column == column[0]).all() else np.ascontiguousarray(column)[:, None]
        return values

    def tensor(self, name: str) -> GlobalTensor:
        try:
            return self.context.tensors[name]
        except KeyError:
            raise SimulationError(f"tensor {name} is no pointer parameter of the kernel") from None

    def tensor_map(self, name: str) -> TensorMap:
        try:
            return self.context.tensor_maps[name]
        except KeyError:
            raise SimulationError(f"tensor map {name} is no parameter of the kernel") from None

    def run(self) -> Coroutine:
        """The coroutine of all threads of these CTAs."""
        kernel = self.context.kernel
        threads = Threads(self, kernel.name, 0, kernel.threads, self.context.mixed)
        threads.variables.update(self.context.variables)
        threads.variables.update(self.block_variables())
        threads.variables[kernel.thread.name] = np.arange(kernel.threads, dtype=np.int32)[None, :]
        return threads.execute(kernel.body)


class Threads(Executor):
    """Threads ``first_thread`` to ``first_thread + lanes − 1`` of every CTA of a group, under one control flow."""

    def __init__(
        self, group: CtaGroup, name: str, first_thread: int, lanes: int, mixed: frozenset[str] = frozenset()
    ) -> None:
        super().__init__(group.context.program.functions, mixed)
        self.group = group
        self.name = name
        self.first_thread = first_thread
        self.lanes = lanes

    @property
    def thread_range(self) -> str:
        return f"{self.first_thread} to {self.first_thread + self.lanes - 1}"

    def describe(self, cta: int) -> str:
        return f"{self.name} (threads {self.thread_range}) of CTA {self.group.block_index(cta)}"

    # Lanes ------------------------------------------------------------------------------------------------------

    def active_lanes(self, mask: Mask) -> tuple[np.ndarray, np.ndarray]:
        """(CTA, lane) of each active lane."""
        shape = (self.group.ctas, self.lanes)
        cta, lane = np.nonzero(np.ones(shape, dtype=bool) if mask is None else np.broadcast_to(mask, shape))
        return cta, lane

    def lanes_per_cta(self, mask: Mask) -> np.ndarray:
        if mask is None:
            return np.full(self.group.ctas, self.lanes, dtype=np.int64)
        return np.broadcast_to(mask, (self.group.ctas, self.lanes)).sum(axis=1)

    def on_active_lanes(self, expression: Expr, mask: Mask) -> np.ndarray:
        """An integer expression on each active lane, in the order of :meth:`active_lanes`, int64."""
        value = np.asarray(as_array(self.evaluate(expression, mask), expression.dtype)).astype(np.int64)
        cta, lane = self.active_lanes(mask)
        return np.broadcast_to(value, (self.group.ctas, self.lanes))[cta, lane]

    def divided_warps(self, holds: Mask, fails: Mask) -> np.ndarray:
        warps = -(-self.lanes // WARP)
        lanes = np.zeros((2, self.group.ctas, warps * WARP), dtype=bool)
        lanes[0, :, : self.lanes], lanes[1, :, : self.lanes] = holds, fails
        both = lanes.reshape(2, self.group.ctas, warps, WARP).any(axis=3).all(axis=0)
        return np.repeat(both, WARP, axis=1)[:, : self.lanes]

    # Memory -----------------------------------------------------------------------------------------------------

    def load(self, buffer: Buffer, index: Value, dtype: DType, mask: Mask) -> Value:
        if buffer.scope is Scope.SHARED:
            return self.group.shared.load(buffer, index, dtype, mask)
        if buffer.scope is Scope.GLOBAL:
            return self.group.tensor(buffer.storage.name).load(buffer, index, dtype, mask)
        return super().load(buffer, index, dtype, mask)

    def store(self, buffer: Buffer, index: Value, value: Value, dtype: DType, mask: Mask) -> None:
        if buffer.scope is Scope.SHARED:
            self.group.shared.store(buffer, index, value, dtype, mask)
        elif buffer.scope is Scope.GLOBAL:
            self.group.tensor(buffer.storage.name).store(buffer, index, value, dtype, mask)
        else:
            super().store(buffer, index, value, dtype, mask)

    def shared_start(self, buffer: Buffer) -> int:
        return self.group.shared.bounds(buffer)[0]

    # Operations and roles ---------------------------------------------------------------------------------------

    def execute_operation(self, statement: Statement, mask: Mask) -> Coroutine:
        if isinstance(statement, Specialized):
            return (yield from self.run_roles(statement, mask))
        rule = RULES.get(type(statement))
        if rule is None:
            kind = "GPU op without a rule" if isinstance(statement, GpuOp) else "statement that is not legal here"
            raise SimulationError(f"{type(statement).__name__}: a {kind}")
        wait = rule(self, statement, mask)
        if wait is not None:
            yield wait
            wait.finish()
        return mask

    def run_roles(self, statement: Specialized, mask: Mask) -> Coroutine:
        """The roles side by side; afterwards their private variables are joined again."""
        roles, coroutines = [], []
        for role in statement.roles:
            lanes = self._lane_range(role)
            role_mask = mask if mask is None or mask.ndim < 2 or mask.shape[1] == 1 else mask[:, lanes]
            if role_mask is not None and not role_mask.any():
                continue
            threads = self.fork_role(role, lanes)
            roles.append((threads, lanes, {n: list(s.elements) for n, s in threads.private.storages.items()}))
            coroutines.append(threads.execute(role.body, None if role_mask is None or role_mask.all() else role_mask))
        yield from interleave(coroutines)
        self._join(roles)
        return mask

    def _lane_range(self, role: Role) -> slice:
        first = role.first_thread - self.first_thread
        if first < 0 or role.threads < 1 or first + role.threads > self.lanes:
            raise SimulationError(
                f"role {role.name} has threads that are not there",
                expected=f"threads within {self.thread_range}",
                got=f"threads {role.first_thread} to {role.first_thread + role.threads - 1}",
            )
        return slice(first, first + role.threads)

    def fork_role(self, role: Role, lanes: slice) -> Threads:
        threads = Threads(self.group, role.name, role.first_thread, role.threads, self.private.mixed)
        threads.variables = {name: _lanes_of(value, lanes) for name, value in self.variables.items()}
        for name, storage in self.private.storages.items():
            copied = type(storage)(storage.name, storage.dtype, len(storage.elements))
            copied.elements = [_lanes_of(value, lanes) for value in storage.elements]
            threads.private.storages[name] = copied
        return threads

    def _join(self, roles: list[tuple[Threads, slice, dict[str, list[Value]]]]) -> None:
        for name, storage in self.private.storages.items():
            for position in range(len(storage.elements)):
                for threads, lanes, given in roles:
                    value = threads.private.storages[name].elements[position]
                    if value is not given[name][position]:
                        whole = storage.get(position)
                        storage.elements[position] = self._with_lanes(whole, storage.dtype, lanes, value)

    def _with_lanes(self, whole: Value, dtype: DType, lanes: slice, part: Value) -> np.ndarray:
        joined = np.broadcast_to(as_array(whole, dtype), (self.group.ctas, self.lanes)).copy()
        joined[:, lanes] = part
        return joined


def _lanes_of(value: Value, lanes: slice) -> Value:
    """The part of a per-thread value that belongs to some lanes; a value that all lanes share is itself."""
    if isinstance(value, np.ndarray) and value.ndim >= 2 and value.shape[1] > 1:
        return value[:, lanes]
    return value


def run_to_completion(groups: Iterable[CtaGroup]) -> None:
    """Runs groups of CTAs side by side until they end. DeadlockError when they wait for what can no longer happen."""
    together = list(groups)
    for wait in interleave([group.run() for group in together]):
        while not wait.ready():
            if not any(group.effects.progress() for group in together):
                raise _deadlock(wait)
    for group in together:
        group.effects.finish()


def _deadlock(wait: Wait) -> DeadlockError:
    blocked = list(_leaves(wait))
    lines = []
    for leaf in blocked:
        where = f" at {leaf.location}" if leaf.location is not None else ""
        lines.extend(f"  {line}{where}" for line in leaf.describe())
    location = next((leaf.location for leaf in blocked if leaf.location is not None), None)
    return DeadlockError("deadlock: nobody can go on\n" + "\n".join(lines), location=location)


def _leaves(wait: Wait) -> Iterable[Wait]:
    parts = getattr(wait, "waits", None)
    return (wait,) if parts is None else (leaf for part in parts for leaf in _leaves(part))

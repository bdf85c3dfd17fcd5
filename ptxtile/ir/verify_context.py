"""What the parts of the verifier share: the stages, the names in scope, and the raising of errors."""

from __future__ import annotations

import keyword
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from ptxtile.errors import Location, VerificationError
from ptxtile.ir import cluster_ops, gpu_ops, statements, tile_ops, warp_ops
from ptxtile.ir.atomic_ops import ATOMIC_OPS
from ptxtile.ir.buffers import Buffer, Scope, Storage
from ptxtile.ir.expressions import Var
from ptxtile.ir.grid_dependency_ops import GRID_DEPENDENCY_OPS
from ptxtile.ir.manual_ops import MANUAL_OPS
from ptxtile.ir.program import Kernel, Program, ScalarParameter
from ptxtile.ir.statements import LoopKind, Statement
from ptxtile.ir.text import op_classes


@dataclass(frozen=True)
class Stage:
    """What a program of one stage may hold.

    ``one_index``: accesses have one element offset into the storage, and shapes, strides and layouts mean nothing any
    more. ``resolved_calls``: only functions of the program and hardware functions are called.
    """

    statements: frozenset[type[Statement]]
    scopes: frozenset[Scope]
    loop_kinds: frozenset[LoopKind]
    one_index: bool = False


_CONTROL = frozenset({
    statements.Seq, statements.Let, statements.Allocate, statements.Store, statements.For, statements.While,
    statements.If, statements.Break, statements.Continue, tile_ops.Print,
})  # fmt: skip
_ROLES = frozenset({statements.Specialized, statements.Role})
_GPU_OPS = frozenset(cls for cls in op_classes().values() if issubclass(cls, gpu_ops.GpuOp))
_USER_OPS = frozenset((
    *ATOMIC_OPS, *MANUAL_OPS, *GRID_DEPENDENCY_OPS, gpu_ops.BarSync, gpu_ops.FenceProxyAsync, gpu_ops.SetMaxRegisters,
    gpu_ops.MbarrierInit, gpu_ops.MbarrierArrive, gpu_ops.MbarrierArriveExpectTx, gpu_ops.MbarrierWait,
    gpu_ops.BulkCommitGroup, gpu_ops.BulkWaitGroup, warp_ops.SyncWarp, warp_ops.Shuffle, warp_ops.Vote,
    warp_ops.ElectOne, warp_ops.Match, warp_ops.ActiveMask, cluster_ops.ClusterArrive, cluster_ops.ClusterWait,
    cluster_ops.MbarrierArriveRemote,
))  # fmt: skip
"""GPU ops that users write themselves, legal from the start."""
_TILE = _CONTROL | _USER_OPS | {
    statements.View, statements.ParallelFor, tile_ops.Copy, tile_ops.Fill, tile_ops.Gemm, tile_ops.Assume,
}  # fmt: skip
_ON_CHIP = frozenset({Scope.SHARED, Scope.LOCAL, Scope.REGISTER, Scope.BARRIER})

STAGES: dict[str, Stage] = {
    # as traced: what the user wrote
    "tile": Stage(
        _TILE | {tile_ops.TmaCopy, tile_ops.SafeValue, tile_ops.KeepRegisters} | _ROLES,
        frozenset({Scope.GLOBAL, Scope.SHARED, Scope.FRAGMENT, Scope.LOCAL, Scope.BARRIER}),
        frozenset(LoopKind),
    ),
    # TMA copies are issues and waits, roles are split; the rest is still tile operations
    "async": Stage(
        _TILE | {tile_ops.TmaCopy, tile_ops.SafeValue} | _ROLES | _GPU_OPS, frozenset(Scope), frozenset(LoopKind)
    ),
    # parallel loops are what one thread does, fragments are arrays of registers
    "thread": Stage(
        (_TILE - {statements.ParallelFor, tile_ops.Fill})
        | {tile_ops.TmaCopy, tile_ops.MatrixStore}
        | _ROLES
        | _GPU_OPS,
        _ON_CHIP | {Scope.GLOBAL},
        frozenset(LoopKind),
    ),
    # what the emitter and the simulator take
    "gpu": Stage(
        _CONTROL | _ROLES | _GPU_OPS,
        _ON_CHIP | {Scope.GLOBAL},
        frozenset({LoopKind.SERIAL, LoopKind.UNROLLED}),
        one_index=True,
    ),
}
"""The stages in order. A pass that introduces one adds its row here."""

FUNCTION_STAGE = Stage(
    _CONTROL - {tile_ops.Print},
    frozenset({Scope.LOCAL, Scope.REGISTER}),
    frozenset({LoopKind.SERIAL, LoopKind.UNROLLED}),
)
"""What the body of a device function may hold, at every stage."""


class Context:
    """The program, what is in scope at the current place, and what the current kernel has used."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.location: Location | None = None
        self.stage = STAGES.get(program.stage)
        self.taken: dict[str, str] = {}
        self.variables: dict[str, Var] = {}
        self.buffers: dict[str, Buffer] = {}
        self.storages: dict[str, Storage] = {}
        self.aliases: dict[str, Buffer] = {}
        self.kernel: Kernel | None = None
        scalars = (parameter.name for parameter in program.parameters if isinstance(parameter, ScalarParameter))
        self.host_variables = {symbol.name for symbol in program.symbols} | set(scalars)
        self.used_variables: set[str] = set()
        self.used_tensors: set[str] = set()
        self.used_tensor_maps: set[str] = set()
        self.uses: dict[str, tuple[set[str], set[str], set[str]]] = {}
        """By kernel: the names of the variables, tensors and tensor maps that its body uses."""

    def fail(self, invariant: int, message: str, expected: str | None = None, got: object = None) -> NoReturn:
        raise VerificationError(
            f"invariant {invariant}: {message}",
            location=self.location,
            expected=expected,
            got=None if got is None else str(got),
        )

    def require(self, condition: bool, invariant: int, message: str) -> None:
        if not condition:
            self.fail(invariant, message)

    def take_name(self, name: str, what: str) -> None:
        """Reserves a name of the program (invariants 1 and 2)."""
        self.check_identifier(name, what)
        if name in self.taken:
            self.fail(2, f"{what} {name} has the name of another {self.taken[name]}", "a name of its own", name)
        self.taken[name] = what

    def check_identifier(self, name: str, what: str) -> None:
        if not name.isidentifier() or keyword.iskeyword(name):
            self.fail(1, f"the {what}'s name is no identifier", "a Python identifier", repr(name))

    def bind(self, variable: Var, what: str = "variable") -> None:
        self.take_name(variable.name, what)
        self.variables[variable.name] = variable

    def declare(self, buffer: Buffer, *, new_storage: bool) -> None:
        """Puts ``buffer`` in scope (invariants 2, 3 and 6)."""
        self.take_name(buffer.name, "buffer")
        known = self.storages.get(buffer.storage.name)
        if new_storage and known is not None:
            self.fail(6, f"the storage {known.name} is allocated twice")
        if new_storage and buffer.storage.name != buffer.name:
            self.take_name(buffer.storage.name, "storage")
        if not new_storage and known is None:
            self.fail(6, f"{buffer.name} views a storage that does not exist here", got=buffer.storage.name)
        if not new_storage and known != buffer.storage:
            self.fail(3, f"the storage of {buffer.name} differs from its allocation", str(known), buffer.storage)
        self.storages[buffer.storage.name] = buffer.storage
        self.buffers[buffer.name] = buffer

    def check_buffer(self, buffer: Buffer) -> None:
        """A use of a buffer (invariants 3 and 6); notes global tensors as used."""
        known = self.buffers.get(buffer.name)
        if known is None:
            known = self._alias(buffer)
        if known is not buffer and known != buffer:
            self.fail(3, f"the buffer {buffer.name} differs from its declaration", str(known), buffer)
        if buffer.storage.scope is Scope.GLOBAL:
            self.used_tensors.add(buffer.storage.name)

    def _alias(self, buffer: Buffer) -> Buffer:
        """At the gpu stage a buffer may be a view that no statement declares, of a storage that exists."""
        storage = self.storages.get(buffer.storage.name)
        if self.stage is None or not self.stage.one_index or storage is None:
            self.fail(6, f"the buffer {buffer.name} is not declared here")
        if storage != buffer.storage:
            self.fail(3, f"the storage of {buffer.name} differs from its allocation", str(storage), buffer.storage)
        if buffer.name not in self.aliases:
            self.take_name(buffer.name, "buffer")
            self.aliases[buffer.name] = buffer
        return self.aliases[buffer.name]

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Variables and buffers that are declared inside go out of scope at the end; their names stay taken."""
        variables, buffers, storages = dict(self.variables), dict(self.buffers), dict(self.storages)
        yield
        self.variables, self.buffers, self.storages = variables, buffers, storages

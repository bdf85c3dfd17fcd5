"""Programs, kernels and device functions: the roots of the IR."""

from __future__ import annotations

from dataclasses import field, replace

from ptxtile.errors import Location
from ptxtile.ir.buffers import Buffer
from ptxtile.ir.expressions import Expr, Var
from ptxtile.ir.statements import Statement
from ptxtile.launch_record import LaunchRecord, TensorMapRecord
from ptxtile.records import record


@record
class TensorParameter:
    """A tensor of the caller's. ``alignment``: bytes that its base address is a known multiple of. ``alias_group``:
    tensors with the same non-None group may overlap in memory; a tensor with None overlaps no other."""

    buffer: Buffer
    alignment: int = 16
    alias_group: int | None = None
    location: Location | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.buffer.name


@record
class ScalarParameter:
    """A number of the caller's."""

    var: Var

    @property
    def name(self) -> str:
        return self.var.name


@record
class Fact:
    """What a variant knows about an integer symbol: ``lower`` ≤ var ≤ ``upper`` and ``divisor`` divides var."""

    var: Var
    lower: int | None = None
    upper: int | None = None
    divisor: int = 1


@record
class Kernel:
    """One kernel and how it is launched.

    ``grid``: sizes over the program's symbols, x first, always three; ``block_vars`` are the CTA's indices in it.
    Blocks are one-dimensional: ``thread`` runs from 0 to ``threads`` − 1 (3-D thread indices are computed from it).
    ``user_threads`` is what the user asked for; ``specialize_warps`` may add a producer warpgroup to ``threads``.
    ``min_blocks``: CTAs for each multiprocessor that registers must allow, 0: not said. ``shared_bytes``: known once
    shared memory is placed.
    """

    name: str
    grid: tuple[int | Expr, int | Expr, int | Expr]
    threads: int
    block_vars: tuple[Var, Var, Var]
    thread: Var
    body: Statement
    user_threads: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    min_blocks: int = 0
    shared_bytes: int | None = None
    location: Location | None = field(default=None, compare=False, repr=False)


@record
class Function:
    """A pure device function made by a pass (math expansions): ``body`` is a Seq of Let, If, For and local stores
    without memory of the caller's; ``result`` is evaluated after it. ``out_of_line``: a rare path, called and not
    inlined."""

    name: str
    parameters: tuple[Var, ...]
    body: Statement
    result: Expr
    out_of_line: bool = False


@record
class Why:
    """A decision of a pass and its reason, shown by ``inspect --why``; with ``warns`` also a Python warning of the
    compile, for what costs the user much and could be had."""

    pass_name: str
    subject: str
    decision: str
    reason: str
    location: Location | None = field(default=None, compare=False, repr=False)
    warns: bool = False


@record
class Program:
    """A traced function: parameters, allocations, kernels in launch order, what is returned.

    ``symbols``: integers known at launch (dynamic dimensions and strides). ``allocations``: outputs (``T.empty``) and
    workspaces, as global buffers. ``returns``: names of parameters or allocations. ``tensor_maps`` and ``launch`` are
    filled in by lowering; ``stage`` says which ops are legal (:mod:`ptxtile.ir.verifier`).
    """

    name: str
    parameters: tuple[TensorParameter | ScalarParameter, ...]
    kernels: tuple[Kernel, ...]
    allocations: tuple[Buffer, ...] = ()
    returns: tuple[str, ...] = ()
    symbols: tuple[Var, ...] = ()
    facts: tuple[Fact, ...] = ()
    functions: tuple[Function, ...] = ()
    tensor_maps: tuple[TensorMapRecord, ...] = ()
    launch: LaunchRecord | None = None
    stage: str = "tile"
    why: tuple[Why, ...] = field(default=(), compare=False)

    def with_why(self, *records: Why) -> Program:
        return replace(self, why=self.why + records)

    def global_buffers(self) -> dict[str, Buffer]:
        """Every global tensor of the program by name."""
        buffers = {p.name: p.buffer for p in self.parameters if isinstance(p, TensorParameter)}
        return buffers | {buffer.name: buffer for buffer in self.allocations}

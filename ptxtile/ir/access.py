"""Which bytes of shared and global memory each thread touches in a statement.

:func:`accesses` lists the memory accesses of a statement in program order. Each :class:`Access` keeps its index
expression with the loops and conditions around it; :mod:`ptxtile.ir.footprint` evaluates that exactly over all threads
and loop counters, and :mod:`ptxtile.ir.conflicts` compares two accesses.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import field, replace
from math import prod
from typing import Any

from ptxtile.errors import Location
from ptxtile.ir import gpu_ops
from ptxtile.ir.async_copy_ops import CpAsync
from ptxtile.ir.atomic_ops import ATOMIC_OPS, COMMUTATIVE, Atomic, AtomicLoad, AtomicStore
from ptxtile.ir.buffers import Buffer, Scope, Storage
from ptxtile.ir.enumeration import NotEnumerable, evaluate, separate
from ptxtile.ir.expressions import (
    Binary,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    LogicalAnd,
    LogicalOr,
    Select,
    SharedAddress,
    Unary,
    Var,
    binary,
    cast,
    compare,
    constant_value,
)
from ptxtile.ir.layouts import SharedLayout
from ptxtile.ir.program import Kernel, Program, ScalarParameter, TensorParameter
from ptxtile.ir.rewrite import children, substitute, walk
from ptxtile.ir.rewrite import statements_in as statements_in
from ptxtile.ir.statements import For, If, Let, Role, Seq, Statement, Store, While
from ptxtile.ir.tensor_core_ops import WARP, LoadMatrix, StoreMatrix, Wgmma
from ptxtile.ir.types import bool_, int32, parse_dtype
from ptxtile.records import record

MAXIMUM_INLINED_NODES = 200
"""A Let whose expression is larger than this is kept as a variable of unknown value."""

_INLINABLE = (Binary, Cast, Compare, Const, LogicalAnd, LogicalOr, Select, SharedAddress, Unary, Var)

OPERAND_RANK = 2
"""Dimensions of an operand of wgmma; a tile with more has versions along the first."""


@record
class Axis:
    """A loop around an access: its variable and bounds."""

    name: str
    start: Expr
    stop: Expr
    step: int


@record
class Context:
    """Where a statement stands: the threads that run it, the loops, conditions and scalar definitions around it.

    ``threads`` counts from ``first_thread``. ``outer``: so many of ``loops`` stay symbolic, the others are enumerated.
    ``repeated``: inside a loop of unknown trip count that is no axis (While). ``uniform``: names of variables with one
    value in the CTA. ``memories``: global storage name → name of the memory it is part of (tensors that may alias
    share one). ``tensor_maps``: name → tensor, box in elements (innermost first), bytes of the box, and what the map's
    coordinates mean, equal for maps that mean the same. ``assumed``:
    conditions that all threads decide alike, which say in which iterations of the loops around the statement runs.
    ``blocks``: block indices of the grid whose number is known.
    """

    thread: str
    first_thread: int
    threads: int
    uniform: frozenset[str]
    memories: Mapping[str, str]
    tensor_maps: Mapping[str, tuple[str, tuple[int, ...], int, Hashable]]
    loops: tuple[Axis, ...] = ()
    outer: int = 0
    conditions: tuple[Expr, ...] = ()
    lets: Mapping[str, Expr] = field(default_factory=dict)
    repeated: bool = False
    assumed: tuple[Expr, ...] = ()
    blocks: Mapping[str, int] = field(default_factory=dict)

    def with_let(self, statement: Let) -> Context:
        value = inlined(statement.value, self)
        if value is None:
            return self
        return replace(self, lets={**self.lets, statement.var.name: value})

    def with_loop(self, statement: For, *, symbolic: bool) -> Context:
        start, stop = (inlined(bound, self) or bound for bound in (statement.start, statement.stop))
        loops = (*self.loops, Axis(statement.var.name, start, stop, statement.step))
        return replace(self, loops=loops, outer=len(loops) if symbolic else self.outer)

    def with_condition(self, condition: Expr, holds: bool = True) -> Context:
        value = inlined(condition, self)
        if value is None:
            value = condition  # not evaluable: kept, so that the footprint knows that its mask is incomplete
        if not holds:
            value = Unary("not", value, bool_)
        return replace(self, conditions=(*self.conditions, *_conjuncts(value)))

    def with_uniform_condition(self, condition: Expr, holds: bool = True) -> Context:
        """Inside a condition that all threads decide alike."""
        value = inlined(condition, self)
        if value is None:
            return self
        value = value if holds else Unary("not", value, bool_)
        return replace(self, assumed=(*self.assumed, *_conjuncts(value)))

    def for_threads(self, first_thread: int, threads: int) -> Context:
        return replace(self, first_thread=first_thread, threads=threads)


def kernel_context(program: Program, kernel: Kernel) -> Context:
    """The context of ``kernel.body``."""
    memories = {buffer.storage.name: buffer.storage.name for buffer in program.allocations}
    for parameter in program.parameters:
        if isinstance(parameter, TensorParameter):
            group = parameter.alias_group
            memories[parameter.buffer.storage.name] = parameter.name if group is None else f"alias group {group}"
    uniform = {var.name for var in (*program.symbols, *kernel.block_vars)}
    uniform |= {p.name for p in program.parameters if isinstance(p, ScalarParameter)}
    boxes = {
        record.name: (
            record.tensor,
            record.box,
            prod(record.box) * parse_dtype(record.dtype).bits // 8,
            (record.dtype, record.dimensions, record.strides, record.offset),
        )
        for record in program.tensor_maps
    }
    sizes = zip(kernel.block_vars, kernel.grid, strict=True)
    blocks = {var.name: value for var, size in sizes if (value := constant_value(size)) is not None}
    return Context(kernel.thread.name, 0, kernel.threads, frozenset(uniform), memories, boxes, blocks=blocks)


def inlined(expression: Expr, context: Context) -> Expr | None:
    """``expression`` with the scalar definitions of ``context`` filled in; None when it reads memory, calls or is
    large."""
    if isinstance(expression, (Const, Var)):
        return context.lets.get(expression.name, expression) if isinstance(expression, Var) else expression
    nodes = list(walk(expression))
    if any(not isinstance(n, _INLINABLE) for n in nodes) or len(nodes) > MAXIMUM_INLINED_NODES:
        return None
    if not context.lets:
        return expression
    values = {n.name: context.lets[n.name] for n in nodes if isinstance(n, Var) and n.name in context.lets}
    result = substitute(expression, values)
    if values and sum(1 for _ in walk(result)) > MAXIMUM_INLINED_NODES:
        return None
    return result


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    """The conditions that all have to hold for ``condition`` to hold."""
    match condition:
        case LogicalAnd(left, right, _):
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case Binary("and", left, right, dtype) if dtype.is_bool:
            yield from _conjuncts(left)
            yield from _conjuncts(right)
        case Unary("not", LogicalOr(left, right, _), _):
            yield from _conjuncts(Unary("not", left, bool_))
            yield from _conjuncts(Unary("not", right, bool_))
        case Unary("not", Unary("not", inner, _), _):
            yield from _conjuncts(inner)
        case _:
            yield condition


@record
class Access:
    """One read or write in the program text; compared by identity.

    ``index``: in elements, scalar definitions filled in; None: anywhere in the storage. ``asynchronous``: by ``engine``
    (``tma``, ``wgmma``, ``cp_async``) on behalf of the issuing threads. ``retired_by``: the shared storage whose waits
    (``retires``) complete an asynchronous access. ``box``: of a TMA access to global memory, (coordinate, extent) for
    each dimension of its tensor map, and ``space``, what coordinates mean there. ``atomic``: the operator of an atomic
    operation, ``load`` or ``store``. ``by_warpgroups``: done for a warpgroup as soon as one of its threads says so.
    ``was_async``: an access of the async proxy that was waited for. ``phase``: of an mbarrier, a ``wait`` for its phase
    or an arrival that may complete the ``next`` one.
    """

    storage: Storage
    is_write: bool
    index: Expr | None
    element_bits: int
    width_bits: int
    context: Context
    asynchronous: bool = False
    retired_by: str = ""
    location: Location | None = None
    box: tuple[tuple[Expr, int], ...] = ()
    space: Hashable = None
    atomic: str = ""
    engine: str = "tma"
    by_warpgroups: bool = False
    was_async: bool = False
    phase: str = ""
    twins: list[Access] = field(default_factory=list, repr=False)
    footprints: dict[frozenset[str], object] = field(default_factory=dict, repr=False)
    masks: list[tuple[int, bool]] = field(default_factory=list, repr=False)
    memories: list[str] = field(default_factory=list, repr=False)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def commutes_with(self, other: Access) -> bool:
        """Whether the two are parts of atomic operations that leave the same value in any order; those of different
        proxies need a fence between them."""
        same = self.atomic == other.atomic and self.element_bits == other.element_bits
        return same and self.atomic in COMMUTATIVE and self.in_async_proxy == other.in_async_proxy

    @property
    def in_async_proxy(self) -> bool:
        """cp.async belongs to the generic proxy (PTX ISA, «Memory Consistency Model», proxies)."""
        return self.was_async or (self.asynchronous and self.engine != "cp_async")

    def completed(self) -> Access:
        """What this access counts as after its threads' wait for it: an ordinary one of theirs, of the same proxy."""
        if not self.twins:
            made = {"by_warpgroups": self.engine == "wgmma", "was_async": self.in_async_proxy}
            self.twins.append(replace(self, asynchronous=False, **made, twins=[], masks=[]))
        return self.twins[0]

    @property
    def memory(self) -> str:
        """Accesses to different memories never meet. Placed shared storages are one memory."""
        if not self.memories:
            self.memories.append(self._memory())
        return self.memories[0]

    def _memory(self) -> str:
        if self.storage.scope is Scope.GLOBAL:
            return "global " + self.context.memories.get(self.storage.name, self.storage.name)
        placed = self.storage.scope is Scope.SHARED and self.storage.offset is not None
        return "shared" if placed else "shared " + self.storage.name

    @property
    def base(self) -> int:
        """Byte address of the storage in its memory."""
        return self.storage.offset or 0 if self.storage.scope is Scope.SHARED else 0

    @property
    def threads(self) -> int:
        """The threads that may execute the access, a bit for each."""
        return self._mask()[0]

    @property
    def threads_are_known(self) -> bool:
        """Whether :attr:`threads` follows from thread conditions alone (uniform conditions aside)."""
        return self._mask()[1]

    def _mask(self) -> tuple[int, bool]:
        if not self.masks:
            self.masks.append(active_threads(self.context))
        return self.masks[0]

    def describe(self) -> str:
        engine = {"tma": "TMA", "cp_async": "cp.async"}.get(self.engine, self.engine)
        verb = (f"{engine} write of" if self.is_write else f"{engine} read of") if self.asynchronous else ""
        verb = verb or {"wait": "wait for", "next": "next phase of"}.get(self.phase, "")
        verb = verb or ("write of" if self.is_write else "read of")
        return f"{verb} {self.storage.name}" + (f" ({self.location})" if self.location else "")


def active_threads(context: Context) -> tuple[int, bool]:
    """The threads that satisfy the conditions of ``context`` (bit t: thread t), and whether no other per-thread
    condition may exclude some of them."""
    import numpy as np

    everyone = ((1 << context.threads) - 1) << context.first_thread
    if not context.conditions:
        return everyone, True
    threads = np.arange(context.first_thread, context.first_thread + context.threads)
    inside, known = np.ones(context.threads, bool), True
    for condition in context.conditions:
        try:
            inside &= np.asarray(evaluate(condition, {context.thread: threads})).astype(bool)
        except NotEnumerable:
            names = {node.name for node in walk(condition) if isinstance(node, Var)}
            loops = {axis.name for axis in context.loops}
            reads = any(isinstance(node, Load) for node in walk(condition))
            known &= not reads and names <= context.uniform | loops
    if inside.all():
        return everyone, known
    mask = 0
    for thread in threads[inside]:
        mask |= 1 << int(thread)
    return mask, known


def accesses(statement: Statement, context: Context) -> list[Access]:
    """The accesses to GLOBAL, SHARED and BARRIER memory in ``statement``, in program order, loops inside enumerated."""
    return list(_statement(statement, context))


def _statement(node: Statement, context: Context) -> Iterator[Access]:
    match node:
        case Seq(statements):
            for statement in statements:
                yield from _statement(statement, context)
                if isinstance(statement, Let):
                    context = context.with_let(statement)
        case For(_, start, stop, _, _, body):
            yield from _loads(start, context, node)
            yield from _loads(stop, context, node)
            yield from _statement(body, context.with_loop(node, symbolic=False))
        case While(condition, body):
            again = replace(context, repeated=True)
            yield from _loads(condition, again, node)
            yield from _statement(body, again)
        case If(condition, then, otherwise):
            yield from _loads(condition, context, node)
            yield from _statement(then, context.with_condition(condition))
            if otherwise is not None:
                yield from _statement(otherwise, context.with_condition(condition, holds=False))
        case Store(buffer, indices, value):
            for expression in (*indices, value):
                yield from _loads(expression, context, node)
            yield from _memory_access(buffer, indices[0], value.dtype.bits * value.dtype.lanes, True, context, node)
        case gpu_ops.GpuOp():
            yield from operation_accesses(node, context)
        case Role(_, first_thread, threads, body):
            yield from _statement(body, context.for_threads(first_thread, threads))
        case _:
            for child in children(node):
                yield from _loads(child, context, node) if isinstance(child, Expr) else _statement(child, context)


def expression_accesses(expression: Expr, context: Context, statement: Statement) -> list[Access]:
    """The reads in ``expression``, which belongs to ``statement``."""
    return list(_loads(expression, context, statement))


def _loads(expression: Expr, context: Context, statement: Statement) -> Iterator[Access]:
    match expression:
        case Select(condition, if_true, if_false, _):
            yield from _loads(condition, context, statement)
            yield from _loads(if_true, context.with_condition(condition), statement)
            yield from _loads(if_false, context.with_condition(condition, holds=False), statement)
        case LogicalAnd(left, right, _):
            yield from _loads(left, context, statement)
            yield from _loads(right, context.with_condition(left), statement)
        case LogicalOr(left, right, _):
            yield from _loads(left, context, statement)
            yield from _loads(right, context.with_condition(left, holds=False), statement)
        case _:
            for child in children(expression):
                yield from _loads(child, context, statement)
            if isinstance(expression, Load):
                bits = expression.dtype.bits * expression.dtype.lanes
                yield from _memory_access(expression.buffer, expression.indices[0], bits, False, context, statement)


_MEMORY_SCOPES = (Scope.GLOBAL, Scope.SHARED, Scope.BARRIER)


def _memory_access(
    buffer: Buffer, index: Expr, bits: int, is_write: bool, context: Context, statement: Statement
) -> Iterator[Access]:
    if buffer.scope in _MEMORY_SCOPES:
        element = buffer.dtype.bits * buffer.dtype.lanes
        place = inlined(index, context)
        yield Access(buffer.storage, is_write, place, element, bits, context, location=statement.location)


def _atomic_accesses(node: Atomic | AtomicLoad | AtomicStore, context: Context) -> Iterator[Access]:
    """An atomic operation reads and then writes. Elements of a vector are operations of their own."""
    value = getattr(node, "value", None)
    lanes = 1 if value is None else value.dtype.lanes
    element = node.buffer.dtype.bits * node.buffer.dtype.lanes
    place = inlined(node.indices[0], context)
    operator = node.operator if isinstance(node, Atomic) else "store" if isinstance(node, AtomicStore) else "load"
    for is_write in (False, True):
        if isinstance(node, Atomic) or is_write == isinstance(node, AtomicStore):
            yield Access(
                node.buffer.storage, is_write, place, element, element * lanes, context, location=node.location,
                atomic=operator,
            )  # fmt: skip


def _matrix_accesses(node: gpu_ops.GpuOp, context: Context) -> Iterator[Access]:
    """ldmatrix and stmatrix: rows of 16 bytes, whose addresses may be of any thread of the warp. wgmma: anywhere in its
    operands, or in the version of them that the descriptor points into. cp.async: both of its sides."""
    if isinstance(node, (LoadMatrix, StoreMatrix)):
        writes = isinstance(node, StoreMatrix)
        place = inlined(node.offset, context)
        if node.count < 4 and place is not None:  # the other threads' addresses do not count
            gives = compare("lt", Var(context.thread, int32) % WARP, 8 * node.count)
            context = context.with_condition(gives)
        element = node.shared.dtype.bits * node.shared.dtype.lanes
        yield Access(node.shared.storage, writes, place, element, 128, context, location=node.location)
    elif isinstance(node, Wgmma):
        for buffer, descriptor in ((node.shared_a, node.descriptor_a), (node.shared_b, node.descriptor_b)):
            if buffer is not None and descriptor is not None:
                version = _version_of_operand(buffer, descriptor, context)
                index, element, width = (None, 8, 8) if version is None else version
                yield Access(buffer.storage, False, index, element, width, context, True, buffer.storage.name,
                             node.location, engine="wgmma")  # fmt: skip
    elif isinstance(node, CpAsync):
        for buffer, index, writes in ((node.source, node.index, False), (node.shared, node.offset, True)):
            element = buffer.dtype.bits * buffer.dtype.lanes
            yield Access(buffer.storage, writes, inlined(index, context), element, 8 * node.bytes, context, True,
                         node.shared.storage.name, node.location, engine="cp_async")  # fmt: skip


def _version_of_operand(buffer: Buffer, descriptor: Expr, context: Context) -> tuple[Expr, int, int] | None:
    """(first element, bits of an element, bits of a version) of the version of a tile, along its first dimension, that
    a descriptor of wgmma points into; None where the tile has none, or it cannot be told."""
    import numpy as np

    layout, rank = buffer.layout, len(buffer.shape)
    value = inlined(descriptor, context) if isinstance(layout, SharedLayout) and rank > OPERAND_RANK else None
    address = None if value is None else next((n for n in walk(value) if isinstance(n, SharedAddress)), None)
    if address is None or not isinstance(layout, SharedLayout):
        return None
    step = layout.layout.stride[0]
    known = context.uniform | {axis.name for axis in context.loops}
    threads = {context.thread: np.arange(context.first_thread, context.first_thread + context.threads)}
    try:
        terms, residual = separate(address.offset, threads.keys(), known)
        rows = np.asarray(sum(factor * evaluate(term, threads) for factor, term in terms))
    except NotEnumerable:
        return None
    first = int(rows.min()) // step * step if isinstance(step, int) and step > 0 else None
    if first is None or int(rows.max()) >= first + step or any(factor % step for _, factor in residual):
        return None
    index: Expr = Const(first, int32)
    for term, factor in sorted(residual, key=str):
        index = binary("add", index, binary("mul", cast(term, int32), factor))
    bits = buffer.dtype.bits * buffer.dtype.lanes
    return index, bits, step * bits


def operation_accesses(node: gpu_ops.GpuOp, context: Context) -> Iterator[Access]:
    """The accesses of one GPU op. Barrier objects are written by their initialisation and read by every other use."""
    for child in children(node):
        if isinstance(child, Expr):
            yield from _loads(child, context, node)
    if isinstance(node, ATOMIC_OPS):
        yield from _atomic_accesses(node, context)
        return
    yield from _matrix_accesses(node, context)
    barrier, index = getattr(node, "barrier", None), getattr(node, "index", None)
    if isinstance(barrier, Buffer) and isinstance(index, Expr):
        initialises = isinstance(node, gpu_ops.MbarrierInit)
        phase = "wait" if isinstance(node, gpu_ops.MbarrierWait) else ""
        place = inlined(index, context)
        yield Access(barrier.storage, initialises, place, 64, 64, context, location=node.location, phase=phase)
    if isinstance(node, (gpu_ops.TmaLoad, gpu_ops.TmaStore)):
        loads = isinstance(node, gpu_ops.TmaLoad)
        shared = node.shared
        tensor, extents, box_bytes, space = context.tensor_maps[node.tensor_map]
        element = shared.dtype.bits * shared.dtype.lanes
        common: dict[str, Any] = {
            "context": context,
            "asynchronous": True,
            "retired_by": shared.storage.name,
            "location": node.location,
        }
        place = inlined(node.offset, context)
        on_chip = Access(shared.storage, loads, place, element, 8 * box_bytes, **common)
        corner = [inlined(coordinate, context) for coordinate in node.coordinates]
        box = tuple((c, extent) for c, extent in zip(corner, extents, strict=True) if c is not None)
        operator = "" if loads else node.operator
        unit = element if operator else 8
        in_memory = Access(
            Storage(tensor, Scope.GLOBAL), not loads, None, unit, unit, box=box, space=space, atomic=operator, **common
        )
        yield from (in_memory, on_chip) if loads else (on_chip, in_memory)

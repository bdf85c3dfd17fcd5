"""What the checker needs to know of a kernel before it runs, worked out once for each launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ptxtile.ir.async_copy_ops import CpAsync
from ptxtile.ir.atomic_ops import ATOMIC_OPS
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Expr, Load, Var
from ptxtile.ir.gpu_ops import GpuOp, MbarrierWait, SetMaxRegisters, TmaLoad, TmaStore
from ptxtile.ir.grid_dependency_ops import GRID_DEPENDENCY_OPS
from ptxtile.ir.program import Function, Kernel
from ptxtile.ir.rewrite import children, walk
from ptxtile.ir.statements import Allocate, Let, Role, Statement, While
from ptxtile.ir.tensor_core_ops import (
    LoadMatrix,
    MmaSync,
    StoreMatrix,
    Wgmma,
    WgmmaCommitGroup,
    WgmmaFence,
    WgmmaWaitGroup,
)
from ptxtile.sim.check.clocks import WARP, WARPGROUP, Engine
from ptxtile.sim.check.tables import Tables
from ptxtile.sim.dtypes import Value
from ptxtile.sim.rules.mbarriers import MBARRIER_BYTES

_BY_WARPGROUPS = (Wgmma, WgmmaCommitGroup, WgmmaFence, WgmmaWaitGroup, SetMaxRegisters)
_ENGINES: dict[type, tuple[Engine, ...]] = {
    CpAsync: (Engine.CP_ASYNC,),
    TmaStore: (Engine.BULK_READ, Engine.BULK_WRITE),
    Wgmma: (Engine.WGMMA,),
    TmaLoad: (Engine.TMA_LOAD,),
}


@dataclass(frozen=True)
class KernelFacts:
    """``unit``: threads that run together: a warp, or a warpgroup where instructions need whole ones, or all threads
    where no operation orders them, since then the order in which they run is of no account. ``mbarriers``: how many a
    CTA has. ``buffers``: the buffer that each storage on the chip was allocated as. ``rings``: storages whose first
    index is a stage. ``tables``: what its integer expressions are worth. ``products_matter``: whether control flow or
    an address may depend on what tensor cores compute."""

    unit: int
    engines: frozenset[Engine]
    roles: tuple[Role, ...]
    buffers: dict[str, Buffer]
    barriers: frozenset[str]
    mbarriers: int
    rings: frozenset[str]
    tables: Tables
    products_matter: bool


def facts_of(kernel: Kernel, functions: Iterable[Function], parameters: Mapping[str, Value]) -> KernelFacts:
    """``functions``: those that the kernel may call; ``parameters``: the launch's scalars."""
    nodes = list(walk(kernel.body))
    buffers: dict[str, Buffer] = {}
    for node in nodes:
        if isinstance(node, Allocate):
            buffers.setdefault(node.buffer.storage.name, node.buffer)
    barriers = {name: b.storage for name, b in buffers.items() if b.scope is Scope.BARRIER}
    return KernelFacts(
        unit=_unit(kernel, nodes),
        engines=frozenset(engine for node in nodes for engine in _ENGINES.get(type(node), ())),
        roles=tuple(node for node in nodes if isinstance(node, Role)),
        buffers=buffers,
        barriers=frozenset(barriers),
        mbarriers=sum(storage.size or 0 for storage in barriers.values()) // MBARRIER_BYTES,
        rings=frozenset(_rings(nodes, buffers)),
        tables=Tables(kernel, functions, parameters),
        products_matter=_products_matter(nodes),
    )


def _unit(kernel: Kernel, nodes: list[Any]) -> int:
    if any(isinstance(node, _BY_WARPGROUPS) for node in nodes):
        return WARPGROUP
    orders = (node for node in nodes if not isinstance(node, GRID_DEPENDENCY_OPS))
    return WARP if any(isinstance(node, (GpuOp, *ATOMIC_OPS, While, Role)) for node in orders) else kernel.threads


def _rings(nodes: list[Any], buffers: dict[str, Buffer]) -> Iterator[str]:
    """An mbarrier for each value of the first index hands the buffer over."""
    for node in nodes:
        if isinstance(node, MbarrierWait):
            for retired in node.retires:
                buffer = buffers.get(retired.storage.name)
                if buffer is not None and buffer.rank > 1 and node.barrier.storage.size == 8 * buffer.static_shape[0]:
                    if buffer.static_shape[0] > 1:
                        yield retired.storage.name


# Products of tensor cores ---------------------------------------------------------------------------------------------

_VALUES = ("value", "condition")
"""Fields of statements that hold what is stored or exchanged, and decide nothing (but for the conditions of control
flow)."""
_DESTINATIONS = ("buffer", "destination", "result", "results", "accumulator", "shared")
_DECIDING = ("If", "While", "DeviceAssert")


def _products_matter(nodes: list[Any]) -> bool:
    """Follows what is made from the results of tensor cores through storages and scalars."""
    statements = [node for node in nodes if isinstance(node, Statement)]
    tainted = {buffer.storage.name for node in statements for buffer in _products(node)}
    if not tainted:
        return False
    while True:
        more = {name for node in statements if _reads(_values(node), tainted) for name in _written_names(node)}
        more |= {name for node in statements if _moves(node, tainted) for name in _written_names(node)}
        if more <= tainted:
            break
        tainted |= more
    return any(_reads(_decisions(node), tainted) for node in statements)


def _products(node: Statement) -> tuple[Buffer, ...]:
    if isinstance(node, (MmaSync, Wgmma)):
        return (node.accumulator,)
    return (node.destination,) if isinstance(node, LoadMatrix) else ()


def _values(node: Statement) -> list[Expr]:
    if type(node).__name__ in _DECIDING:
        return []
    return [e for e in (getattr(node, name, None) for name in _VALUES) if isinstance(e, Expr)]


def _decisions(node: Statement) -> list[Expr]:
    """Expressions that addresses or control flow depend on."""
    values = _values(node)
    own = [child for child in children(node) if isinstance(child, Expr) and not any(child is v for v in values)]
    return own + [
        index for value in values for inner in walk(value) if isinstance(inner, Load) for index in inner.indices
    ]


def _reads(expressions: list[Expr], tainted: set[str]) -> bool:
    return any(
        (isinstance(node, Load) and node.buffer.storage.name in tainted)
        or (isinstance(node, Var) and node.name in tainted)
        for expression in expressions
        for node in walk(expression)
    )


def _moves(node: Statement, tainted: set[str]) -> bool:
    """Whether an operation that copies memory takes from a tainted place."""
    if isinstance(node, (StoreMatrix, CpAsync)):
        return node.source.storage.name in tainted
    return isinstance(node, TmaStore) and node.shared.storage.name in tainted


def _written_names(node: Statement) -> Iterator[str]:
    if isinstance(node, Let):
        yield node.var.name
    for name in _DESTINATIONS:
        value = getattr(node, name, None)
        for buffer in value if isinstance(value, tuple) else (value,):
            if isinstance(buffer, Buffer):
                yield buffer.storage.name

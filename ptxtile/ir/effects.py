"""What a GPU op does to a thread's own variables and to memory, for passes that ask this of statements in general."""

from __future__ import annotations

from functools import cache
from typing import Any

from ptxtile.ir.atomic_ops import Atomic, AtomicLoad, AtomicStore
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.gpu_ops import GpuOp

_RESULT_FIELDS = ("result", "results", "destination", "accumulator", "accumulators")
_PRIVATE = (Scope.LOCAL, Scope.REGISTER, Scope.FRAGMENT)


@cache
def _result_fields(cls: type[GpuOp]) -> tuple[str, ...]:
    return tuple([name for name in _RESULT_FIELDS if hasattr(cls, name)])


def private_results(node: Any) -> tuple[Buffer, ...]:
    """The thread's own buffers that ``node``, a GPU op, writes: its results, destination or accumulators."""
    if not isinstance(node, GpuOp):
        return ()
    found: list[Buffer] = []
    for name in _result_fields(type(node)):
        value = getattr(node, name)
        values = value if isinstance(value, tuple) else (value,)
        found.extend(item for item in values if isinstance(item, Buffer) and item.scope in _PRIVATE)
    return tuple(found)


def atomic_write(node: Any) -> Buffer | None:
    """The memory that an atomic operation writes, else None."""
    return node.buffer if isinstance(node, (Atomic, AtomicStore)) else None


def is_atomic(node: Any) -> bool:
    return isinstance(node, (Atomic, AtomicLoad, AtomicStore))


def writes_global(node: Any) -> Buffer | None:
    """The global buffer that an atomic operation writes, else None."""
    buffer = atomic_write(node)
    return buffer if buffer is not None and buffer.scope is Scope.GLOBAL else None

"""Which tensors of the caller's a program may write: what torch is told of an operator, and what a read-only array must
not be passed for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from ptxtile.ir.async_copy_ops import CpAsync
from ptxtile.ir.atomic_ops import AtomicLoad
from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Load
from ptxtile.ir.gpu_ops import TmaStore
from ptxtile.ir.program import Program, TensorParameter
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import View
from ptxtile.ir.tile_ops import Copy, Region, SafeValue, TmaCopy

_READS: dict[type, tuple[str, ...]] = {
    Load: ("buffer",),
    AtomicLoad: ("buffer",),
    Copy: ("source",),
    TmaCopy: ("source",),
    CpAsync: ("source",),
    SafeValue: ("buffer",),
    View: ("buffer",),
    Region: ("buffer",),  # judged where it is used
}
"""The fields of a node in which a buffer is only read. Any other mention of a buffer counts as a write: a node that is
not here costs a tensor its read-only standing, and never the other way round."""


def written_tensors(program: Program) -> frozenset[str]:
    """Names of the tensor parameters that a kernel of ``program``, at any stage, may write."""
    parameters = {p.buffer.storage.name: p.name for p in program.parameters if isinstance(p, TensorParameter)}
    of_maps = {record.name: record.tensor for record in program.tensor_maps}
    written: set[str] = set()
    for kernel in program.kernels:
        for node in walk(kernel.body):
            written.update(buffer.storage.name for buffer in _written_by(node) if buffer.scope is Scope.GLOBAL)
            if isinstance(node, TmaStore):
                written.add(of_maps[node.tensor_map])
    return frozenset(parameters[name] for name in written if name in parameters)


def _written_by(node: Any) -> Iterator[Buffer]:
    """The buffers that ``node`` itself, without its parts that are nodes, mentions and does not only read."""
    reads = _READS.get(type(node), ())
    for field in fields(node):
        if field.name not in reads:
            yield from _buffers_in(getattr(node, field.name))


def _buffers_in(value: Any) -> Iterator[Buffer]:
    if isinstance(value, Buffer):
        yield value
    elif isinstance(value, Region):
        yield value.buffer
    elif isinstance(value, tuple):
        for item in value:
            yield from _buffers_in(item)

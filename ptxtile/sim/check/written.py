"""Which tensors a kernel writes: only those can race."""

from __future__ import annotations

from ptxtile.ir.atomic_ops import Atomic, AtomicStore
from ptxtile.ir.buffers import Scope
from ptxtile.ir.gpu_ops import TmaStore
from ptxtile.ir.program import Kernel, Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Store


def written_storages(program: Program, kernel: Kernel) -> frozenset[str]:
    """Names of the tensors that ``kernel`` stores to, by itself or through TMA."""
    maps = {} if program.launch is None else {record.name: record.tensor for record in program.launch.tensor_maps}
    found = set()
    for node in walk(kernel.body):
        if isinstance(node, (Store, Atomic, AtomicStore)) and node.buffer.scope is Scope.GLOBAL:
            found.add(node.buffer.storage.name)
        elif isinstance(node, TmaStore):
            found.add(maps[node.tensor_map])
    return frozenset(found)

"""Names a byte of a buffer as its element: the indices that the user wrote, and the stage of a ring."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.layouts import SharedLayout
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Allocate

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedGroup


def describe_byte(group: CheckedGroup, name: str, byte: int) -> str:
    """``name`` with the indices of the element that ``byte`` of shared memory, or of a tensor's storage, lies in."""
    buffer = _shared_buffer(group, name)
    if buffer is not None and buffer.storage.offset is not None:
        indices = element_indices(buffer, byte - buffer.storage.offset)
        return f"{name}[{', '.join(map(str, indices))}]" if indices is not None else f"byte {byte} of {name}"
    tensor = group.context.tensors.get(name)
    return f"byte {byte - tensor.base} of tensor {name}" if tensor is not None else f"byte {byte} of {name}"


def _shared_buffer(group: CheckedGroup, name: str) -> Buffer | None:
    for node in walk(group.context.kernel.body):
        if isinstance(node, Allocate) and node.buffer.name == name and node.buffer.scope is Scope.SHARED:
            return node.buffer
    return None


def element_indices(buffer: Buffer, byte: int) -> tuple[int, ...] | None:
    """The indices of the element at ``byte`` of the buffer's storage; None for a byte that no element has."""
    bits = buffer.dtype.bits * buffer.dtype.lanes
    element = byte * 8 // bits
    shape = tuple(int(extent) for extent in buffer.static_shape)
    if not isinstance(buffer.layout, SharedLayout):
        return tuple(int(i) for i in np.unravel_index(element, shape)) if 0 <= element < int(np.prod(shape)) else None
    grid = np.indices(shape)
    offsets = np.broadcast_to(np.asarray(buffer.layout(tuple(grid))), shape)
    found = np.argwhere(offsets == element)
    return tuple(int(i) for i in found[0]) if len(found) else None

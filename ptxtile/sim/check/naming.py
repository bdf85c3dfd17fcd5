"""Names agents, threads and bytes in the user's words: role and warp, buffer, element and stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.layouts import SharedLayout
from ptxtile.sim.check.clocks import WARP, Engine

if TYPE_CHECKING:
    from ptxtile.sim.check.machine import CheckedGroup
    from ptxtile.sim.check.watch import Watch

ENGINES = {
    Engine.CP_ASYNC: "a cp.async of",
    Engine.BULK_READ: "a TMA store of",
    Engine.BULK_WRITE: "a TMA store of",
    Engine.WGMMA: "a wgmma of",
}


def agent_in_words(watch: Watch, agent: int) -> str:
    """Who made an access."""
    clocks = watch.clocks
    if not 0 <= agent < clocks.strangers:
        return "another CTA"
    engine, number = clocks.engine_of(agent)
    if engine is Engine.TMA_LOAD:
        mbarrier, cta = divmod(number, clocks.ctas)
        return f"a TMA load onto {watch.group.mbarrier_name(mbarrier)}{_of_cta(watch.group, cta)}"
    if engine is Engine.WGMMA:
        cta, inside = divmod(number, clocks.warpgroups_of_cta)
        number = cta * clocks.stride + 128 * inside
        return f"{ENGINES[engine]} {warpgroup_in_words(watch, number)}"
    words = thread_in_words(watch, number)
    return words if engine is Engine.GENERIC else f"{ENGINES[engine]} {words}"


def thread_in_words(watch: Watch, thread: int) -> str:
    """A thread of the group: its number in its CTA, warp, role, CTA."""
    cta, inside = divmod(thread, watch.clocks.stride)
    return f"thread {inside} (warp {inside // WARP}{_role(watch.group, inside)}){_of_cta(watch.group, cta)}"


def warpgroup_in_words(watch: Watch, thread: int) -> str:
    cta, inside = divmod(thread, watch.clocks.stride)
    return f"warpgroup {inside // 128} (threads {inside} to {inside + 127}{_role(watch.group, inside)})" + _of_cta(
        watch.group, cta
    )


def warps_in_words(watch: Watch, threads: np.ndarray) -> str:
    """The warps of some threads of one CTA, with their role."""
    cta = int(threads[0]) // watch.clocks.stride
    warps = sorted({int(thread) % watch.clocks.stride // WARP for thread in threads})
    if len(warps) == 1:
        text = f"warp {warps[0]}"
    elif warps == list(range(warps[0], warps[-1] + 1)):
        text = f"warps {warps[0]} to {warps[-1]}"
    else:
        text = f"warps {', '.join(map(str, warps))}"
    role = _role(watch.group, warps[0] * WARP).removeprefix(", role ")
    return text + (f" (role {role})" if role else "") + _of_cta(watch.group, cta)


def is_several(threads: np.ndarray) -> bool:
    """Whether the threads are of more than one warp."""
    return len(np.unique(threads // WARP)) > 1


def _role(group: CheckedGroup, thread: int) -> str:
    name = group.role_of(thread)
    return f", role {name}" if name else ""


def _of_cta(group: CheckedGroup, cta: int) -> str:
    return f" of CTA {group.block_index(cta)}" if group.context.grid != (1, 1, 1) else ""


# Bytes ----------------------------------------------------------------------------------------------------------------


def describe_byte(group: CheckedGroup, storage: str, byte: int) -> str:
    """The element that ``byte`` of shared memory, or of a tensor's storage, belongs to, in the view that made the
    storage, and its stage."""
    tensor = group.context.tensors.get(storage)
    if tensor is not None:
        return _global_element(group, storage, byte - tensor.base)
    buffer = group.facts.buffers.get(storage)
    if buffer is None or buffer.storage.offset is None:
        return f"byte {byte} of {storage}"
    if buffer.scope is Scope.BARRIER:
        return f"{storage}[{(byte - buffer.storage.offset) // 8}]"
    indices = element_indices(buffer, byte - buffer.storage.offset)
    if indices is None:
        return f"byte {byte - buffer.storage.offset} of {storage}"
    stage = f" (stage {indices[0]})" if storage in group.facts.rings else ""
    return f"{storage}[{', '.join(map(str, indices))}]{stage}"


def element_indices(buffer: Buffer, byte: int) -> tuple[int, ...] | None:
    """The indices of the element at ``byte`` of the buffer's storage; None for a byte that no element has."""
    bits = buffer.dtype.bits * buffer.dtype.lanes
    element = byte * 8 // bits
    shape = buffer.static_shape
    if not isinstance(buffer.layout, SharedLayout):
        count = int(np.prod(shape, dtype=np.int64))
        return tuple(int(i) for i in np.unravel_index(element, shape)) if 0 <= element < count else None
    grid = np.indices(shape)
    offsets = np.broadcast_to(np.asarray(buffer.layout(tuple(grid))), shape)
    found = np.argwhere(offsets == element)
    return tuple(int(i) for i in found[0]) if len(found) else None


def _global_element(group: CheckedGroup, name: str, byte: int) -> str:
    """By the shape and strides that the tensor of this call has; of a byte before or behind the tensor, or in a gap
    that its strides leave, the number alone."""
    buffer, tensor = group.context.program.global_buffers().get(name), group.context.tensors[name]
    if buffer is None or buffer.rank != len(tensor.shape) or not tensor.shape:
        return f"byte {byte} of {name}" if buffer is None or buffer.rank else f"{name}[()]"
    indices, rest = indices_by_strides(byte * 8 // (buffer.dtype.bits * buffer.dtype.lanes), tensor.strides)
    inside = all(0 <= index < size for index, size in zip(indices, tensor.shape, strict=True))
    return f"{name}[{', '.join(map(str, indices))}]" if inside and not rest else f"byte {byte} of {name}"


def indices_by_strides(element: int, strides: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """The indices of the element with that offset, and what is left of the offset. The index along the longest stride
    may be out of bounds."""
    indices = [0] * len(strides)
    for axis in sorted(range(len(strides)), key=lambda axis: -strides[axis]):
        if strides[axis] > 0:
            indices[axis], element = divmod(element, strides[axis])
    return tuple(indices), element


def element_in_words(group: CheckedGroup, buffer: Buffer, element: int) -> str:
    """An element of a buffer that may lie outside of it, by its offset; nothing where that tells no indices."""
    tensor = group.context.tensors.get(buffer.storage.name)
    whole = group.facts.buffers.get(buffer.storage.name)
    strides: Sequence[int] | None = None
    if tensor is not None and buffer.rank == len(tensor.shape):
        strides = tensor.strides
    elif tensor is None and whole is not None and whole.layout is None and whole.dtype == buffer.dtype:
        strides = [stride for stride in whole.strides if isinstance(stride, int)]
        strides = strides if len(strides) == whole.rank else None
    if not strides:
        return ""
    return f"{buffer.storage.name}[{', '.join(map(str, indices_by_strides(element, strides)[0]))}]"

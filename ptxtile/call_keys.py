"""What of a call's arguments a variant may depend on: a key by cheap reads, and each tensor's specialization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ptxtile.frontend.signature import specialize_tensor
from ptxtile.frontend.specialization import TensorSpecialization
from ptxtile.runtime.planned_calls import extent


def call_key(args: tuple[Any, ...]) -> tuple[tuple[Any, ...] | None, str, int | None]:
    """All of a call that a variant may depend on, by cheap attribute reads; then device type and index.

    None instead of a key when an argument is no torch tensor or number, and for a call without tensors.
    """
    import torch

    parts: list[Any] = []
    ranges: list[tuple[int, int]] = []
    device_type, device = "cpu", None
    cacheable = True
    for value in args:
        if type(value) is torch.Tensor or isinstance(value, torch.Tensor):
            address, nbytes = value.data_ptr() if value.layout is torch.strided else 0, _extent(value)
            parts.append(
                (value.dtype, value.shape, value.stride() if value.layout is torch.strided else (), address & 15)
            )
            ranges.append((address, address + nbytes))
            where = value.device
            if len(ranges) == 1 or (where.type == "cuda" and device_type != "cuda"):
                device_type, device = where.type, where.index  # with one card's tensor, all belong on a card
            parts.append(where)
        elif isinstance(value, (int, float)):
            parts.append(type(value))
        else:
            cacheable = False
            if device_type == "cpu" and hasattr(value, "__cuda_array_interface__"):
                device_type = "cuda"
    if len(ranges) > 1:
        parts.append(tuple(a[0] < b[1] and b[0] < a[1] for i, a in enumerate(ranges) for b in ranges[:i]))
    if not ranges and cacheable:
        from ptxtile.runtime.device import has_card

        device_type = "cuda" if has_card() else "cpu"  # nothing says where: outputs go where work is usually done
    if device_type not in ("cpu", "cuda"):
        device_type = "cuda"
    return (tuple(parts) if cacheable and ranges else None), device_type, device


def _extent(tensor: Any) -> int:
    """Bytes from the first to behind the last element; 0 where there is none, or no such order."""
    if tensor.numel() == 0 or tensor.layout.__class__.__name__ != "layout":
        return 0
    return extent(tensor)


def specialize_tensors(tensors: Mapping[str, Any]) -> dict[str, TensorSpecialization]:
    """Each tensor's specialization, with the groups of those that overlap in memory."""
    spans = {name: (t.data_ptr(), t.data_ptr() + _extent(t)) for name, t in tensors.items()}
    groups: dict[str, int] = {}
    for position, (name, (start, stop)) in enumerate(spans.items()):
        for other, (first, last) in list(spans.items())[:position]:
            if start < last and first < stop:
                old, new = groups.get(name), groups.setdefault(other, len(groups))
                groups[name] = new
                if old is not None and old != new:
                    groups = {n: new if g == old else g for n, g in groups.items()}
    order: dict[int, int] = {}
    for group in groups.values():
        order.setdefault(group, len(order))
    return {
        name: specialize_tensor(t.shape, t.stride(), t.data_ptr(), order[groups[name]] if name in groups else None)
        for name, t in tensors.items()
    }

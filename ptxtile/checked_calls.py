"""Bound calls under the checker: their tensors on the CPU, with the overlaps that they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ptxtile.ir.program import Program

if TYPE_CHECKING:
    import torch

    from ptxtile.runtime.arguments import Binding
    from ptxtile.sim.check import Report


def check_binding(
    program: Program,
    binding: Binding,
    seeds: int | range,
    progress: Callable[[int, int], None] | None = None,
    strict: bool = False,
) -> Report:
    """What the checker finds when ``program`` (gpu stage) runs with a call's arguments, once for each of ``seeds``.
    ``progress`` and ``strict`` as for :func:`ptxtile.sim.check.run.check`."""
    from ptxtile.sim.check.run import check

    schedules = range(seeds) if isinstance(seeds, int) else seeds
    tensors = on_cpu(binding.tensors)
    return check(program, tensors, binding.scalars, seeds=schedules, progress=progress, strict=strict)


def on_cpu(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors on the CPU, each at its place in its storage: tensors that share a storage still do. Those that are
    there already are themselves."""
    import torch

    storages: dict[int, torch.UntypedStorage] = {}
    result: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.device.type == "cpu":
            result[name] = tensor
            continue
        storage = tensor.untyped_storage()
        copied = storages.get(storage.data_ptr())
        if copied is None:
            copied = storages[storage.data_ptr()] = storage.cpu()
        empty = torch.empty(0, dtype=tensor.dtype)
        result[name] = empty.set_(copied, tensor.storage_offset(), tensor.shape, tensor.stride())
    return result

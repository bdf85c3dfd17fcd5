"""A kernel's results against a reference's, by relative and absolute tolerance and a share that may be outside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def results_of(function: Callable[..., Any], arguments: Sequence[Any]) -> list[torch.Tensor]:
    """What a call gives: the tensors that it returns; where it returns none, the arguments that it changes.

    It runs on copies, so ``arguments`` stay as they are.
    """
    import torch

    copies = copied(arguments)
    returned = function(*copies)
    found = returned if isinstance(returned, (tuple, list)) else [returned]
    tensors = [value for value in found if isinstance(value, torch.Tensor)]
    return tensors or [copies[place] for place in changed(copies, arguments)]


def copied(arguments: Sequence[Any], device: Any = None) -> list[Any]:
    """The arguments with tensors of their own memory, of the same strides; on ``device``, or where they are."""
    import torch

    return [_copy(value, device) if isinstance(value, torch.Tensor) else value for value in arguments]


def _copy(tensor: torch.Tensor, device: Any) -> torch.Tensor:
    import torch

    place = tensor.device if device is None else torch.device(device)
    made = torch.empty_strided(tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=place)
    return made.copy_(tensor.detach())


def restore(arguments: Sequence[Any], pristine: Sequence[Any], places: Sequence[int]) -> None:
    """The values of ``pristine`` in the tensors at ``places``."""
    for place in places:
        arguments[place].copy_(pristine[place])


def changed(now: Sequence[Any], before: Sequence[Any]) -> list[int]:
    """The places of the tensors whose bits differ."""
    import torch

    found = []
    for place, (value, old) in enumerate(zip(now, before, strict=True)):
        if isinstance(value, torch.Tensor) and value.numel() and not torch.equal(_bits(value), _bits(old)):
            found.append(place)
    return found


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}.get(tensor.element_size())
    return tensor if whole is None else tensor.contiguous().view(whole)


def difference(
    got: Sequence[torch.Tensor],
    wanted: Sequence[torch.Tensor],
    rtol: float = 1e-2,
    atol: float = 1e-2,
    most_outside: float = 0.01,
) -> str | None:
    """None where ``got`` is near enough to ``wanted``; else what is wrong, in a sentence.

    Near is |got − wanted| ≤ atol + rtol · |wanted| in float64, NaN and infinities equal; ``most_outside`` is the share
    of elements of each tensor that need not be near. Those must be finite where the wanted ones are.
    """
    import torch

    if len(got) != len(wanted):
        return f"{len(got)} results, where the reference has {len(wanted)}"
    for place, (ours, theirs) in enumerate(zip(got, wanted, strict=True)):
        if tuple(ours.shape) != tuple(theirs.shape):
            return f"result {place} has the shape {tuple(ours.shape)}, the reference's {tuple(theirs.shape)}"
        if ours.numel() == 0:
            continue
        ours, theirs = ours.detach().double(), theirs.detach().to(ours.device).double()
        near = torch.isclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)
        broken = ~torch.isfinite(ours) & torch.isfinite(theirs)
        outside = int((~near).sum())
        if outside <= most_outside * ours.numel() and not bool(broken.any()):
            continue
        where = torch.nonzero(broken if bool(broken.any()) else ~near)[0].tolist()
        index = tuple(where)
        return (
            f"result {place}: {outside} of {ours.numel()} elements differ by more than {atol:g} + {rtol:g} · |wanted|, "
            f"the first at {where}: {float(ours[index]):g} where the reference has {float(theirs[index]):g}"
        )
    return None


def poison(tensors: Sequence[torch.Tensor]) -> None:
    """Values that no kernel leaves standing by luck: NaN, or all bits set."""
    for tensor in tensors:
        if tensor.numel():
            _bits_in_place(tensor).fill_(-1)


def _bits_in_place(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    if tensor.dtype is torch.bool:
        return tensor
    whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(whole)

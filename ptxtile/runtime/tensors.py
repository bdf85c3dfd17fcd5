"""Tensors of the caller: torch tensors as they are, other array types by sharing their memory; what cannot be read is
refused.

Autograd: a kernel reads and writes memory and records nothing, so tensors that require grad are accepted like any
other and results never carry a graph. A kernel that writes to a leaf which requires grad, or to a tensor saved for a
backward pass, is not noticed by autograd: wrap the kernel in a ``torch.autograd.Function`` or
``torch.library.custom_op`` for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError
from ptxtile.runtime.scalars import shortened

if TYPE_CHECKING:
    import torch


def as_tensor(value: Any, subject: str) -> torch.Tensor:
    """``value`` as a torch tensor on the same memory. ArgumentError when it is no tensor, or cannot be shared.

    NumPy arrays, ``__dlpack__`` objects (ordered with torch's current stream by that protocol) and
    ``__cuda_array_interface__`` objects are shared, never copied.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return value
    try:
        converted = _share(value)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise ArgumentError(
            f"{subject}: this {_type_name(value)} cannot be shared with torch", got=str(error).strip().split("\n")[0]
        ) from error
    if converted is None:
        raise ArgumentError(
            f"{subject}: not a tensor",
            expected="a torch tensor, a NumPy array, or an object with __dlpack__ or __cuda_array_interface__",
            got=f"{_type_name(value)}" if value is None else f"{_type_name(value)} {shortened(value)}",
        )
    return converted


def _share(value: Any) -> torch.Tensor | None:
    import numpy
    import torch

    if isinstance(value, numpy.ndarray):
        if value.flags.writeable:
            return torch.from_numpy(value)
        raise BufferError("the array is read-only, and torch cannot share read-only memory: pass a copy")
    if hasattr(value, "__dlpack__"):
        return torch.from_dlpack(value)
    if hasattr(value, "__cuda_array_interface__"):
        return torch.as_tensor(value, device="cuda")
    return None


def refuse_unreadable(tensor: torch.Tensor, subject: str) -> None:
    """ArgumentError for a tensor whose memory does not hold its values as (address, strides, dtype) say."""
    import torch
    from torch._C._functorch import is_functorch_wrapped_tensor  # pyright: ignore[reportMissingImports]

    reason = hint = None
    dispatch = getattr(type(tensor), "__torch_dispatch__", None)  # torch's own tensors have it disabled
    if dispatch is not torch._C._disabled_torch_dispatch_impl:
        reason = f"a {_type_name(tensor)} has no memory of its own"
        hint = "inside torch.compile or torch.export, wrap the kernel in torch.library.custom_op"
    elif is_functorch_wrapped_tensor(tensor):
        reason, hint = (
            "a tensor under torch.func (vmap, grad) cannot be read",
            "call the kernel outside of the transform",
        )
    elif tensor.layout is not torch.strided:
        reason, hint = f"a sparse tensor ({tensor.layout}) cannot be read", "pass tensor.to_dense()"
    elif tensor.is_quantized:
        reason, hint = f"a quantised tensor ({tensor.dtype}) cannot be read", "pass tensor.int_repr()"
    elif tensor.is_conj():
        reason, hint = "a conjugate view holds values that are not its own", "pass tensor.resolve_conj()"
    elif tensor.is_neg():
        reason, hint = "a negative view holds values that are not its own", "pass tensor.resolve_neg()"
    elif tensor._is_zerotensor():
        reason, hint = "a zero tensor has no memory", "pass tensor.clone()"
    if reason is not None:
        raise ArgumentError(f"{subject}: {reason}", expected="a plain strided tensor", got=_describe(tensor), hint=hint)


def _describe(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{_type_name(tensor)} of shape {tuple(tensor.shape)}, {dtype}, {tensor.device}"


def _type_name(value: object) -> str:
    return type(value).__name__

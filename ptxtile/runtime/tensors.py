"""Tensors of the caller: torch tensors as they are, other array types by sharing their memory; what cannot be read is
refused.

Autograd: a kernel reads and writes memory and records nothing, so tensors that require grad are accepted like any
other and results never carry a graph. A kernel that writes to a leaf which requires grad, or to a tensor saved for a
backward pass, is not noticed by autograd: :func:`ptxtile.torch_op` makes an operator of the kernel, which is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError
from ptxtile.runtime.foreign_arrays import share
from ptxtile.runtime.scalars import shortened

if TYPE_CHECKING:
    import torch


def as_tensor(value: Any, subject: str) -> torch.Tensor:
    """``value`` as a torch tensor on the same memory. ArgumentError when it is no tensor, or cannot be shared.

    Arrays of others are shared, never copied (:mod:`ptxtile.runtime.foreign_arrays`). A read-only one is refused: what
    the kernel writes is not known here.
    """
    import torch

    if isinstance(value, torch.Tensor):
        return value
    shared = share(value, subject)
    if shared is None:
        raise ArgumentError(
            f"{subject}: not a tensor",
            expected="a torch tensor, a NumPy array, or an object with __dlpack__ or __cuda_array_interface__",
            got=f"{_type_name(value)}" if value is None else f"{_type_name(value)} {shortened(value)}",
        )
    if shared.read_only:
        raise ArgumentError(
            f"{subject}: this {_type_name(value)} cannot be shared with torch, because it is read-only",
            hint="pass a copy",
        )
    return shared.tensor


def refuse_unreadable(tensor: torch.Tensor, subject: str) -> None:
    """ArgumentError for a tensor whose memory does not hold its values as (address, strides, dtype) say."""
    import torch
    from torch._C._functorch import is_functorch_wrapped_tensor  # pyright: ignore[reportMissingImports]

    reason = hint = None
    dispatch = getattr(type(tensor), "__torch_dispatch__", None)  # torch's own tensors have it disabled
    if dispatch is not torch._C._disabled_torch_dispatch_impl:
        reason = f"a {_type_name(tensor)} has no memory of its own"
        hint = "inside torch.compile or torch.export, call the operator that ptxtile.torch_op makes of the kernel"
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

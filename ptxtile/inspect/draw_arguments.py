"""Random arguments for a kernel, made from its signature: tensors of the declared shapes and dtypes, and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError
from ptxtile.frontend.signature import ScalarSignature, Signature, TensorSignature, size_number
from ptxtile.ir.types import DType
from ptxtile.runtime.dtypes import FORMATS, torch_dtype

if TYPE_CHECKING:
    import torch

DYNAMIC_SIZE = 80
"""What a ``T.dynamic`` size is when nobody says: a multiple of 16, for which copies may go through TMA, but of no usual
tile."""
INTEGERS = (0, 4)
"""Integers are drawn from here, the end excluded: small enough to be sizes or indices of something."""


def draw_arguments(signature: Signature, numbers: Mapping[str, Any], seed: int) -> list[Any]:
    """One argument for each input of ``signature``, in order. ``numbers``: sizes and scalar arguments by name; every
    ``T.const`` size is there. Floats are normally distributed. The same seed gives the same arguments."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    sizes = {**dict.fromkeys(signature.symbols, DYNAMIC_SIZE), **numbers}
    drawn: dict[str, Any] = {}
    for scalar in (p for p in signature.inputs if isinstance(p, ScalarSignature)):
        given = numbers.get(scalar.name)
        drawn[scalar.name] = _number(scalar.dtype, generator) if given is None else given
    sizes |= {name: value for name, value in drawn.items() if isinstance(value, int)}
    for tensor in (p for p in signature.inputs if isinstance(p, TensorSignature)):
        drawn[tensor.name] = _tensor(tensor, sizes, generator)
    return [drawn[parameter.name] for parameter in signature.inputs]


def _number(dtype: DType, generator: torch.Generator) -> int | float | bool:
    value = _values((1,), _kind(dtype), generator)[0].item()
    return bool(value) if _kind(dtype) == "bool" else value


def _tensor(tensor: TensorSignature, sizes: Mapping[str, int], generator: torch.Generator) -> torch.Tensor:
    import torch

    shape = [_size(tensor, size, sizes) for size in tensor.shape]
    if tensor.dtype.name not in FORMATS:
        raise ArgumentError(f"no tensor of {tensor.dtype} can be passed for {tensor.name}", location=tensor.location)
    values = _values(tuple(shape), _kind(tensor.dtype), generator)
    if tensor.dtype.name == "float8_e8m0fnu":  # powers of two alone
        values = torch.exp2(values.round())
    if tensor.strides is None:
        return values.to(torch_dtype(tensor.dtype.name))
    strides = [_size(tensor, stride, sizes) for stride in tensor.strides]
    return torch.empty_strided(shape, strides, dtype=torch_dtype(tensor.dtype.name)).copy_(values)


def _size(tensor: TensorSignature, size: Any, sizes: Mapping[str, int]) -> int:
    value = size_number(size, sizes)
    if value is None or value < 0:
        raise ArgumentError(
            f"the size {size} of {tensor.name}", location=tensor.location, expected="an integer ≥ 0", got=repr(value)
        )
    return value


def _kind(dtype: DType) -> str:
    return FORMATS[dtype.name].kind if dtype.name in FORMATS else "float"


def _values(shape: tuple[int, ...], kind: str, generator: torch.Generator) -> torch.Tensor:
    import torch

    if kind == "float":
        return torch.randn(shape, generator=generator)
    low, high = (0, 2) if kind == "bool" else INTEGERS
    return torch.randint(low, high, shape, generator=generator)

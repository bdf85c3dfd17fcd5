"""Tensors for a kernel that is tried or timed without the user's own: of the declared shapes, of a kind of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError
from ptxtile.frontend.signature import ScalarSignature, Signature, TensorSignature, size_number
from ptxtile.runtime.dtypes import FORMATS, torch_dtype

if TYPE_CHECKING:
    import torch


class TensorSupplyType(Enum):
    """Integer: small whole numbers, exact in every format. Uniform: from −1 to 1. Normal, Randn: of mean 0 and
    deviation 1. Zero, One. Auto, as TileLang has it: Uniform for floating-point formats, Integer for whole numbers.
    Formats of whole numbers get whole numbers whatever is asked for."""

    Integer = 1
    Uniform = 2
    Normal = 3
    Randn = 4
    Zero = 5
    One = 6
    Auto = 7


WHOLE_RANGE = 3
"""Integer supply: from −3 to 3, unsigned from 0 to 3. Products of such numbers and their sums are exact in bfloat16's
and float16's accumulations for hundreds of terms."""


def make_tensor(
    shape: Sequence[int], dtype: str, supply: TensorSupplyType, device: torch.device, generator: torch.Generator
) -> torch.Tensor:
    """A contiguous tensor; ``dtype`` is a name of :data:`ptxtile.runtime.dtypes.FORMATS`."""
    import torch

    if dtype not in FORMATS:
        raise ArgumentError("a tensor of this format cannot be made", expected=", ".join(FORMATS), got=dtype)
    kind, wanted = FORMATS[dtype].kind, torch_dtype(dtype)
    if supply is TensorSupplyType.Auto:
        supply = TensorSupplyType.Uniform if kind == "float" else TensorSupplyType.Integer
    if supply in (TensorSupplyType.Zero, TensorSupplyType.One):
        return torch.full(tuple(shape), float(supply is TensorSupplyType.One), device=device).to(wanted)
    if kind != "float" or supply is TensorSupplyType.Integer:
        low, high = (0, 1) if kind == "bool" else (0 if kind == "uint" else -WHOLE_RANGE, WHOLE_RANGE)
        found = torch.randint(low, high + 1, tuple(shape), device=device, generator=generator, dtype=torch.int32)
        return found.to(wanted) if kind != "float" else found.float().to(wanted)
    made_in = torch.float64 if dtype == "float64" else torch.float32
    if supply is TensorSupplyType.Uniform:
        found = 2 * torch.rand(tuple(shape), device=device, generator=generator, dtype=made_in) - 1
    else:
        found = torch.randn(tuple(shape), device=device, generator=generator, dtype=made_in)
    return (found.abs() if dtype == "float8_e8m0fnu" else found).to(wanted)  # e8m0 has no sign


def make_arguments(
    signature: Signature,
    sizes: Mapping[str, int],
    supply: TensorSupplyType = TensorSupplyType.Auto,
    device: Any = None,
    seed: int = 0,
    scalars: Mapping[str, int | float] | None = None,
) -> list[Any]:
    """What a call passes, in order: tensors of the declared shapes, and for each number 1, or what ``scalars`` says.

    sizes: of the ``T.const`` and ``T.dynamic`` names. ArgumentError for a size that is not among them. device: the
    current card, or the CPU where there is none, unless given.
    """
    import torch

    place = torch.device(device) if device is not None else default_device()
    generator = torch.Generator(place).manual_seed(seed)
    given = {**sizes, **{name: int(value) for name, value in (scalars or {}).items()}}
    result: list[Any] = []
    for parameter in signature.inputs:
        if isinstance(parameter, ScalarSignature):
            result.append((scalars or {}).get(parameter.name, 1))
            continue
        shape = [_size(parameter, dimension, size, given) for dimension, size in enumerate(parameter.shape)]
        tensor = make_tensor(shape, parameter.dtype.name, supply, place, generator)
        if parameter.strides is not None:
            strides = [_size(parameter, dimension, size, given) for dimension, size in enumerate(parameter.strides)]
            tensor = _with_strides(tensor, strides)
        result.append(tensor)
    return result


def default_device() -> torch.device:
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _size(parameter: TensorSignature, dimension: int, size: Any, sizes: Mapping[str, int]) -> int:
    number = size_number(size, sizes)
    if number is None:
        name = getattr(size, "name", str(size))
        raise ArgumentError(
            f"the size {name} of {parameter.name} (dimension {dimension}) is not known",
            hint=f"give it: compile({name}=…) for a T.const size, dynamic_symbolic_constraints={{{name!r}: …}} for a "
            "T.dynamic one; or pass tensors of your own",
        )  # fmt: skip
    return number


def _with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    import torch

    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    room = torch.zeros(max(extent, 1), dtype=tensor.dtype, device=tensor.device)
    result = room.as_strided(tuple(tensor.shape), tuple(strides))
    result.copy_(tensor)
    return result

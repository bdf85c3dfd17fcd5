"""From a call's arguments to a :class:`Binding`: checked tensors and numbers, solved symbols, allocated outputs, grids.

The same function serves the card and the simulator; ``device_type`` says where the tensors must be. Every refusal is an
ArgumentError (a grid out of range: LaunchError) that names the function, the argument, what was expected and what was
got.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError, LaunchError
from ptxtile.launch_record import (
    KernelLaunch,
    LaunchRecord,
    ScalarArgument,
    SizeOperation,
    Symbol,
    TensorArgument,
    evaluate_size,
    solvable,
)
from ptxtile.records import record
from ptxtile.runtime.dtypes import FORMATS, torch_dtype
from ptxtile.runtime.scalars import accept
from ptxtile.runtime.symbols import Symbols
from ptxtile.runtime.tensors import as_tensor, refuse_unreadable

if TYPE_CHECKING:
    import torch

GRID_LIMITS = (2**31 - 1, 65535, 65535)
"""Largest grid in CTAs along x, y, z (CUDA C++ Programming Guide, «Technical Specifications per Compute
Capability»)."""


@record
class Binding:
    """A call that has passed every check.

    tensors: every tensor argument and allocation by name; an unused argument passed as None is absent. scalars: every
    symbol and every scalar argument by name, rounded to its dtype. symbols: the integers that sizes are written in.
    results: what the call returns. grids: CTAs (x, y, z) of each launch of the record, in order.
    """

    tensors: Mapping[str, torch.Tensor]
    scalars: Mapping[str, int | float]
    symbols: Mapping[str, int]
    results: Any
    device: torch.device
    grids: tuple[tuple[int, int, int], ...] = field(default=())

    @property
    def is_empty(self) -> bool:
        """No launch has a CTA: there is nothing to run."""
        return all(0 in grid for grid in self.grids)


def bind(
    record: LaunchRecord, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None, *, device_type: str
) -> Binding:
    """Check ``args`` and ``kwargs`` against ``record``, solve its symbols, allocate its tensors.

    ``device_type``: ``"cuda"`` or ``"cpu"``. A symbol takes its value from an integer argument, else from the first
    dimension that is that symbol alone, else from the first one that is a sum of it, times an integer, and of known
    symbols, else from the first stride that is that symbol; every other occurrence must agree. Strides of dimensions of
    size 1, and of tensors without elements, do not matter. Allocations are contiguous, on the arguments' device,
    uninitialised.
    """
    values = _match(record, args, kwargs or {})
    scalars: dict[str, int | float] = {}
    symbols = Symbols(record.name)
    tensors: dict[str, torch.Tensor] = {}
    declared: list[tuple[int, TensorArgument]] = []
    for position, argument in enumerate(record.arguments):
        value = values[position]
        if isinstance(argument, ScalarArgument):
            number = accept(value, argument.dtype, subject_of(record, position))
            scalars[argument.name] = number
            if argument.dtype in FORMATS and FORMATS[argument.dtype].kind in ("int", "uint"):
                symbols.define(argument.name, int(number), f"argument {argument.name!r}")
        elif value is None and argument.unused:
            continue
        else:
            tensors[argument.name] = _check_tensor(record, position, value, device_type)
            declared.append((position, argument))
    device = _one_device(record, tensors, device_type)
    _solve_and_check(record, declared, tensors, symbols)
    for divisibility in record.divisibilities:
        symbols.check_divisible(divisibility)
    values_of_symbols = symbols.values
    grids = tuple(grid_of(record.name, launch, values_of_symbols, symbols) for launch in record.launches)
    for allocation in record.allocations:
        shape = symbols.evaluate_all(allocation.shape, f"the shape of {allocation.name!r}")
        tensors[allocation.name] = _allocate(record.name, allocation.name, allocation.dtype, shape, device)
    results = _results(record, tensors, values)
    return Binding(tensors, {**values_of_symbols, **scalars}, values_of_symbols, results, device, grids)


def _match(record: LaunchRecord, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """One value for each argument of the record, in its order."""
    names = [argument.name for argument in record.arguments]
    if not kwargs and len(args) == len(names):
        return list(args)
    signature = f"{len(names)} ({', '.join(names)})" if names else "no arguments"
    if len(args) > len(names):
        raise ArgumentError(f"{record.name}: too many arguments", expected=signature, got=str(len(args) + len(kwargs)))
    values: dict[str, Any] = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]!r}?" if near else None
            raise ArgumentError(f"{record.name}: unknown argument {name!r}", expected=signature, got=name, hint=hint)
        if name in values:
            raise ArgumentError(f"{record.name}: argument {name!r} is given twice, by position and by name")
        values[name] = value
    missing = [name for name in names if name not in values]
    if missing:
        raise ArgumentError(
            f"{record.name}: too few arguments, {', '.join(map(repr, missing))} missing",
            expected=signature,
            got=str(len(values)),
        )
    return [values[name] for name in names]


def subject_of(record: LaunchRecord, position: int) -> str:
    """How messages start: function, argument by name and by position from 1."""
    return f"{record.name}: argument {record.arguments[position].name!r} ({position + 1} of {len(record.arguments)})"


def _check_tensor(record: LaunchRecord, position: int, value: Any, device_type: str) -> torch.Tensor:
    """Everything about one tensor that no symbol is needed for: kind, device type, dtype, rank, base alignment."""
    argument = record.arguments[position]
    assert isinstance(argument, TensorArgument)
    subject = subject_of(record, position)
    tensor = as_tensor(value, subject)
    refuse_unreadable(tensor, subject)
    if tensor.device.type != device_type:
        hint = "pass tensor.cuda()" if (device_type, tensor.device.type) == ("cuda", "cpu") else None
        if tensor.device.type == "meta":
            hint = "a meta tensor has a shape and no data"
        raise ArgumentError(
            f"{subject}: wrong device",
            expected=f"a {device_type} tensor",
            got=f"a tensor on {tensor.device}",
            hint=hint,
        )
    if argument.dtype not in FORMATS:
        raise ArgumentError(f"{subject}: a {argument.dtype} tensor cannot be passed", expected=", ".join(FORMATS))
    if tensor.dtype is not torch_dtype(argument.dtype):
        got = str(tensor.dtype).removeprefix("torch.")
        raise ArgumentError(f"{subject}: wrong dtype", expected=FORMATS[argument.dtype].torch_name, got=got)
    if tensor.dim() != len(argument.shape):
        raise ArgumentError(
            f"{subject}: wrong number of dimensions",
            expected=f"{len(argument.shape)}, shape {_shown(argument.shape)}",
            got=f"{tensor.dim()}, shape {_shown(tensor.shape)}",
        )
    address = tensor.data_ptr()
    if not address and tensor.numel():
        raise ArgumentError(
            f"{subject}: the tensor has no memory",
            expected="a tensor whose storage is allocated",
            got=f"shape {_shown(tensor.shape)} and a null address",
        )
    if address % argument.alignment and tensor.numel():
        raise ArgumentError(
            f"{subject}: the base address is not aligned",
            expected=f"a multiple of {argument.alignment} bytes",
            got=f"{address:#x}, a multiple of {address & -address}",
            hint="a view that starts inside a tensor may be less aligned than this variant needs; its .clone() is",
        )
    return tensor


def _one_device(record: LaunchRecord, tensors: Mapping[str, torch.Tensor], device_type: str) -> torch.device:
    """The device that all tensors are on; without tensors the current one of that type."""
    import torch

    first: tuple[str, torch.device] | None = None
    for position, argument in enumerate(record.arguments):
        tensor = tensors.get(argument.name)
        if tensor is None:
            continue
        if first is None:
            first = (argument.name, tensor.device)
        elif tensor.device != first[1]:
            raise ArgumentError(
                f"{subject_of(record, position)}: on another device",
                expected=f"{first[1]}, the device of argument {first[0]!r}",
                got=str(tensor.device),
            )
    if first is not None:
        return first[1]
    return torch.device("cuda", torch.cuda.current_device()) if device_type == "cuda" else torch.device(device_type)


def _solve_and_check(
    record: LaunchRecord,
    declared: Sequence[tuple[int, TensorArgument]],
    tensors: Mapping[str, torch.Tensor],
    symbols: Symbols,
) -> None:
    """Solve symbols from shapes, where they stand alone and then where they are the only unknown of a sum, then from
    strides, and compare every size and every stride that matters."""
    for _, argument in declared:
        for dimension, size in enumerate(argument.shape):
            if isinstance(size, Symbol):
                value = tensors[argument.name].shape[dimension]
                symbols.define(size.name, value, f"dimension {dimension} of argument {argument.name!r}")
    while any(_solve_sum(record, *one, tensors, symbols) for one in declared):
        pass  # what is known now may leave one unknown in another sum
    for position, argument in declared:
        shape = tensors[argument.name].shape
        expected = symbols.evaluate_all(argument.shape, f"the shape of argument {argument.name!r}")
        if expected != tuple(shape):
            wrong = [dimension for dimension, size in enumerate(expected) if size != shape[dimension]]
            raise ArgumentError(
                f"{subject_of(record, position)}: wrong size of dimension {', '.join(map(str, wrong))}",
                expected=f"shape {_shown(expected)}" + symbols.explain([argument.shape[d] for d in wrong]),
                got=f"shape {_shown(shape)}",
            )
    for _, argument in declared:
        strides = tensors[argument.name].stride()
        for dimension in _dimensions_that_matter(tensors[argument.name]):
            stride = argument.strides[dimension]
            if isinstance(stride, Symbol):
                origin = f"the stride of dimension {dimension} of argument {argument.name!r}"
                symbols.define(stride.name, strides[dimension], origin)
    for _, argument in declared:
        for stride in argument.strides:
            if isinstance(stride, Symbol):
                symbols.define(stride.name, 0, "a dimension of size 1")  # never multiplied by anything but index 0
    for position, argument in declared:
        _check_strides(record, position, argument, tensors[argument.name], symbols)


def _solve_sum(
    record: LaunchRecord,
    position: int,
    argument: TensorArgument,
    tensors: Mapping[str, torch.Tensor],
    symbols: Symbols,
) -> bool:
    """Whether a dimension of the argument, which is c · n + d, gave the value of a symbol n."""
    for dimension, size in enumerate(argument.shape):
        found = solvable(size, symbols.values) if isinstance(size, SizeOperation) else None
        if found is None:
            continue
        name, factor, offset = found
        actual = tensors[argument.name].shape[dimension]
        value, rest = divmod(actual - evaluate_size(offset, symbols.values), factor)
        if rest or value < 0:
            raise ArgumentError(
                f"{subject_of(record, position)}: wrong size of dimension {dimension}",
                expected=f"{size} for a whole number {name} ≥ 0{symbols.explain([offset])}",
                got=f"{actual}, shape {_shown(tensors[argument.name].shape)}",
            )
        symbols.define(name, value, f"dimension {dimension} of argument {argument.name!r}, which is {size}")
        return True
    return False


def _dimensions_that_matter(tensor: torch.Tensor) -> list[int]:
    """Dimensions whose stride tells where elements are."""
    shape = tensor.shape
    return [] if 0 in shape else [dimension for dimension, size in enumerate(shape) if size > 1]


def _check_strides(
    record: LaunchRecord, position: int, argument: TensorArgument, tensor: torch.Tensor, symbols: Symbols
) -> None:
    actual = tensor.stride()
    matter = _dimensions_that_matter(tensor)
    if not matter:
        return
    expected = symbols.evaluate_all(argument.strides, f"the strides of argument {argument.name!r}")
    wrong = [dimension for dimension in matter if expected[dimension] != actual[dimension]]
    if wrong:
        raise ArgumentError(
            f"{subject_of(record, position)}: wrong stride of dimension {', '.join(map(str, wrong))}",
            expected=f"strides {_shown(expected)}" + symbols.explain([argument.strides[d] for d in wrong]),
            got=f"strides {_shown(actual)} for shape {_shown(tensor.shape)}",
            hint=f"pass {argument.name}.contiguous(), or declare the strides with T.StridedTensor",
        )


def grid_of(
    function: str, launch: KernelLaunch, values: Mapping[str, int], symbols: Symbols | None = None
) -> tuple[int, int, int]:
    """CTAs along x, y, z of ``launch``. LaunchError for a negative size, one over the limit, or one that is not made of
    whole clusters; 0 is allowed: nothing runs."""
    try:
        x, y, z = (evaluate_size(size, values) for size in launch.grid)
    except KeyError as error:
        raise _undetermined(function, f"the grid of {launch.kernel!r}", error) from None
    for position, (axis, size, limit) in enumerate(zip("xyz", (x, y, z), GRID_LIMITS, strict=True)):
        expression, part = launch.grid[position], launch.cluster[position]
        if 0 <= size <= limit and size % part == 0:
            continue
        explained = symbols.explain([expression]) if symbols and not isinstance(expression, int) else ""
        if not 0 <= size <= limit:
            raise LaunchError(
                f"{function}: grid dimension {axis} of kernel {launch.kernel!r} is out of range",
                expected=f"0 to {limit} CTAs along {axis}",
                got=f"{size}{explained}",
                hint=None if size < 0 else "take larger tiles, or put the larger dimension on the first grid axis",
            )
        raise LaunchError(
            f"{function}: the grid of kernel {launch.kernel!r} is not made of whole clusters along {axis}",
            expected=f"a multiple of {part} CTAs along {axis}",
            got=f"{size}{explained}",
            hint="round the grid up and guard the blocks too many, or leave cluster_dims out for this size",
        )
    return x, y, z


def _undetermined(function: str, what: str, error: KeyError) -> ArgumentError:
    return ArgumentError(f"{function}: {what} needs {error.args[0]!r}, which no argument determines")


def _allocate(function: str, name: str, dtype: str, shape: tuple[int, ...], device: torch.device) -> torch.Tensor:
    import torch

    if dtype not in FORMATS:
        raise ArgumentError(f"{function}: {name!r}: a {dtype} tensor cannot be allocated", expected=", ".join(FORMATS))
    if min(shape, default=0) < 0:
        raise ArgumentError(f"{function}: {name!r} would have a negative size", got=f"shape {_shown(shape)}")
    made = torch.empty(shape, dtype=torch_dtype(dtype), device=device)
    refuse_unreadable(made, f"{function}: {name!r}, which the call allocates")  # a mode may give tensors without memory
    return made


def _results(record: LaunchRecord, tensors: Mapping[str, torch.Tensor], values: Sequence[Any]) -> Any:
    """None, one tensor, or a tuple. An argument is given back as the object that the caller passed."""
    passed = {argument.name: value for argument, value in zip(record.arguments, values, strict=True)}
    results = tuple(passed[name] if name in passed else tensors[name] for name in record.returns)
    if not results:
        return None
    return results[0] if len(results) == 1 else results


def _shown(sizes: Sequence[object]) -> str:
    inner = ", ".join(str(size) for size in sizes)
    return f"({inner},)" if len(sizes) == 1 else f"({inner})"

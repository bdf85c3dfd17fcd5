"""What an operator gives, known without running it: shapes and dtypes of its results from (symbolic) sizes.

A kernel's ``T.const`` sizes are fixed when it is traced, so they need values; its ``T.dynamic`` sizes may stay symbols
of torch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ptxtile.errors import ArgumentError, PtxtileError
from ptxtile.frontend.signature import ScalarSignature, TensorSignature, size_record, typical
from ptxtile.frontend.trace import trace
from ptxtile.ir.expressions import Var
from ptxtile.ir.written_tensors import written_tensors
from ptxtile.kernel import JITKernel
from ptxtile.launch_record import Allocation, SizeOperation, Symbol, evaluate_size, solvable
from ptxtile.records import record
from ptxtile.runtime.dtypes import FORMATS, torch_dtype
from ptxtile.runtime.symbols import SizeExpression

if TYPE_CHECKING:
    import torch

TRIED_SIZES = (256, 64, 128, 1024, 4096, 16, 1)
"""What ``T.const`` sizes may be when a kernel is traced to see what it writes and returns, before any call."""


@record
class Effects:
    """What a kernel does to the tensors of a call. ``returns``: names, of parameters or of ``made``. ``made``: the
    tensors that the call makes and returns, each once. ``written``: parameters that it may write."""

    returns: tuple[str, ...]
    made: tuple[Allocation, ...]
    written: frozenset[str]


def effects_of(kernel: JITKernel, constants: Mapping[str, int]) -> Effects:
    """Of ``kernel`` with these values of its ``T.const`` sizes; traces it, and compiles nothing."""
    program = trace(kernel.function, kernel.python_arguments, typical(kernel.signature, constants), kernel.signature)
    made = {buffer.name: buffer for buffer in program.allocations if buffer.name in program.returns}
    return Effects(
        program.returns,
        tuple(
            Allocation(name, buffer.dtype.name, tuple([size_record(size) for size in buffer.shape]))
            for name, buffer in made.items()
        ),
        written_tensors(program),
    )


def typical_effects(kernel: JITKernel, sizes: Mapping[str, int]) -> Effects:
    """Of ``kernel`` with ``sizes``, and with sizes that it can be traced with for the others."""
    wanted = kernel.signature.constants
    for name in sizes:
        if name not in wanted:
            raise ArgumentError(
                f"{kernel.function.function.__name__} has no size {name!r}", expected=", ".join(wanted) or "none"
            )
    refused: Exception | None = None
    for tried in TRIED_SIZES:
        try:
            return effects_of(kernel, {**dict.fromkeys(wanted, tried), **kernel.constants, **sizes})
        except (PtxtileError, AssertionError, ValueError) as error:  # the kernel's own checks of its sizes
            refused = refused or error
    raise ArgumentError(
        f"{kernel.function.function.__name__} cannot be traced with any of the sizes that were tried for "
        f"{', '.join(name for name in wanted if name not in sizes)}",
        expected="sizes that the kernel accepts: sizes={name: value, …}", got=str(refused),
    ) from refused  # fmt: skip


def solve(kernel: JITKernel, values: Sequence[Any]) -> dict[str, Any]:
    """The sizes of a call by name, as they are in its tensors: integers or symbols of torch's."""
    found: dict[str, Any] = {}
    for parameter, value in zip(kernel.signature.inputs, values, strict=True):
        if isinstance(parameter, ScalarSignature) and FORMATS[parameter.dtype.name].kind in ("int", "uint"):
            found[parameter.name] = value
    tensors = [(p, v) for p, v in zip(kernel.signature.inputs, values, strict=True) if isinstance(p, TensorSignature)]
    for parameter, tensor in tensors:
        for declared, actual in zip(parameter.shape, tensor.shape, strict=False):
            if isinstance(declared, Var):
                found.setdefault(declared.name, actual)
    while any(_solve_sum(parameter, tensor.shape, found) for parameter, tensor in tensors):
        pass
    for parameter, tensor in tensors:
        for declared, actual in zip(parameter.strides or (), tensor.stride(), strict=False):
            if isinstance(declared, Var):
                found.setdefault(declared.name, actual)
    return found


def _solve_sum(parameter: TensorSignature, shape: Sequence[Any], found: dict[str, Any]) -> bool:
    """Whether a dimension gave a size that it is a sum of. :func:`check_tensors` finds what does not divide."""
    for declared, actual in zip(parameter.shape, shape, strict=False):
        one = solvable(size_record(declared), found)
        if one is not None:
            name, factor, offset = one
            found[name] = (actual - symbolic_size(offset, found)) // factor
            return True
    return False


def constants_of(kernel: JITKernel, sizes: Mapping[str, Any]) -> dict[str, int]:
    """The values of the ``T.const`` sizes among ``sizes``. A symbol of torch's is asked for its value, which makes the
    code that torch compiles one for this size; ArgumentError when it has none."""
    from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

    constants = dict(kernel.constants)
    for name in kernel.signature.constants:
        if name not in sizes:
            continue  # the checks of the call say which tensor it is missing from
        try:
            constants[name] = int(sizes[name])
        except GuardOnDataDependentSymNode as error:
            raise ArgumentError(
                f"the size {name} of {kernel.function.function.__name__} is a T.const one, fixed when the kernel is "
                "compiled, and this call's depends on the data of a tensor: declare it with T.dynamic",
                expected="a size that is known when the call is traced", got=str(sizes[name]),
            ) from error  # fmt: skip
    return constants


def check_tensors(kernel: JITKernel, values: Sequence[Any], sizes: Mapping[str, Any]) -> None:
    """ArgumentError for tensors that the kernel would refuse for their dtype, rank or sizes; a comparison of symbols
    becomes a condition of the code that torch compiles."""
    import torch

    for parameter, value in zip(kernel.signature.inputs, values, strict=True):
        if not isinstance(parameter, TensorSignature):
            continue
        subject = f"{kernel.function.function.__name__}: argument {parameter.name!r}"
        if value.dtype is not torch_dtype(parameter.dtype.name):
            got = str(value.dtype).removeprefix("torch.")
            raise ArgumentError(f"{subject}: wrong dtype", expected=parameter.dtype.name, got=got)
        if value.dim() != len(parameter.shape):
            raise ArgumentError(
                f"{subject}: wrong number of dimensions", expected=str(len(parameter.shape)), got=str(value.dim())
            )
        for dimension, (declared, actual) in enumerate(zip(parameter.shape, value.shape, strict=True)):
            expected = symbolic_size(size_record(declared), sizes)
            if isinstance(expected, int) and isinstance(actual, int):
                if expected != actual:
                    raise ArgumentError(
                        f"{subject}: wrong size of dimension {dimension}", expected=f"{declared} = {expected}",
                        got=f"shape {tuple(value.shape)}",
                    )  # fmt: skip
            else:
                torch._check(expected == actual, lambda subject=subject: f"{subject}: wrong size of a dimension")


def symbolic_size(size: SizeExpression, sizes: Mapping[str, Any]) -> Any:
    """The value of a size of which some parts may be symbols of torch's."""
    import torch

    if isinstance(size, Symbol):
        return sizes[size.name]
    if isinstance(size, SizeOperation):
        left, right = symbolic_size(size.left, sizes), symbolic_size(size.right, sizes)
        if isinstance(left, int) and isinstance(right, int):
            return evaluate_size(SizeOperation(size.operator, left, right), {})
        if size.operator in ("min", "max"):
            return (torch.sym_min if size.operator == "min" else torch.sym_max)(left, right)
        return _WITH_SYMBOLS[size.operator](left, right)
    return size


_WITH_SYMBOLS = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b,
}  # fmt: skip


def made_tensors(effects: Effects, sizes: Mapping[str, Any], device: torch.device) -> tuple[torch.Tensor, ...]:
    """New tensors without content, of the shapes and dtypes that a call gives; on ``device``."""
    import torch

    return tuple(
        torch.empty([symbolic_size(size, sizes) for size in made.shape], dtype=torch_dtype(made.dtype), device=device)
        for made in effects.made
    )

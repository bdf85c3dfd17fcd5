"""The verifier's rules for the program's head, tensor maps and launch record (:mod:`ptxtile.ir.verifier`)."""

from __future__ import annotations

from typing import Any

from ptxtile.ir.grid_dependency_ops import waits_for_prerequisites
from ptxtile.ir.program import Kernel, Program, ScalarParameter, TensorParameter
from ptxtile.ir.types import int32, int64, parse_dtype
from ptxtile.ir.verify_buffers import verify_buffer
from ptxtile.ir.verify_context import STAGES, Context
from ptxtile.ir.verify_expressions import ExpressionVerifier
from ptxtile.launch_record import (
    KernelLaunch,
    LaunchRecord,
    ScalarArgument,
    SizeOperation,
    Symbol,
    TensorArgument,
    TensorMapRecord,
)

SWIZZLES = (0, 32, 64, 128)
MOST_STRIDE = 1 << 40
"""Bytes; like the other limits of :func:`_verify_tensor_map` from the CUDA driver API, cuTensorMapEncodeTiled."""


def verify_program_header(context: Context) -> None:
    """Stage, names, symbols, parameters, allocations, facts and returns; puts them in scope."""
    program = context.program
    if program.stage not in STAGES:
        context.fail(42, "an unknown stage", ", ".join(STAGES), program.stage)
    context.check_identifier(program.name, "program")
    for function in program.functions:
        context.take_name(function.name, "function")
    for kernel in program.kernels:
        context.take_name(kernel.name, "kernel")
    for symbol in program.symbols:
        context.require(symbol.dtype in (int32, int64), 41, f"the symbol {symbol.name} is no int32 or int64")
        context.bind(symbol, "symbol")
    for parameter in program.parameters:
        if isinstance(parameter, ScalarParameter) and parameter.var not in program.symbols:
            context.bind(parameter.var, "scalar parameter")
    expressions = ExpressionVerifier(context)
    tensors = [parameter.buffer for parameter in program.parameters if isinstance(parameter, TensorParameter)]
    for buffer in (*tensors, *program.allocations):
        context.declare(buffer, new_storage=True)
        verify_buffer(context, expressions, buffer)
    for name in program.returns:
        context.require(name in program.global_buffers(), 41, f"{name} is returned, but no tensor of the program")
    for fact in program.facts:
        expressions.check(fact.var)
        bounded = fact.lower is None or fact.upper is None or fact.lower <= fact.upper
        context.require(fact.var.dtype.is_integer, 41, f"a fact about {fact.var.name}, which is no integer")
        context.require(bounded and fact.divisor >= 1, 41, f"an impossible fact about {fact.var.name}")
    _verify_tensor_maps(context)


def _verify_tensor_maps(context: Context) -> None:
    names = set()
    for record in context.program.tensor_maps:
        context.check_identifier(record.name, "tensor map")
        context.require(record.name not in names, 2, f"two tensor maps are called {record.name}")
        names.add(record.name)
        _verify_tensor_map(context, record)


def _verify_tensor_map(context: Context, record: TensorMapRecord) -> None:
    what = f"the tensor map {record.name}"
    context.require(record.tensor in context.program.global_buffers(), 37, f"{what} is of no tensor of the program")
    rank = record.rank
    if not 1 <= rank <= 5 or len(record.box) != rank or len(record.strides) != rank - 1:
        context.fail(37, f"{what} has an impossible rank", "1 to 5 dimensions, a box of as many, one stride fewer",
                     f"{rank}, {len(record.box)}, {len(record.strides)}")  # fmt: skip
    if not all(1 <= side <= 256 for side in record.box):
        context.fail(37, f"{what} has an impossible box", "1 to 256 a side", record.box)
    if record.swizzle not in SWIZZLES:
        context.fail(37, f"{what} has an unknown swizzle", "0, 32, 64 or 128", record.swizzle)
    try:
        inner = record.box[0] * parse_dtype(record.dtype).itemsize
    except (KeyError, ValueError):
        context.fail(37, f"{what} has an unknown dtype", got=record.dtype)
    if inner % 16 or (record.swizzle and inner > record.swizzle):
        most = f" up to the swizzle span of {record.swizzle}" if record.swizzle else ""
        context.fail(37, f"{what} has an impossible innermost side", f"a multiple of 16 bytes{most}", f"{inner} bytes")
    for stride in record.strides:
        if isinstance(stride, int) and (stride % 16 or not 0 <= stride < MOST_STRIDE):
            context.fail(37, f"{what} has an impossible stride", "a multiple of 16 bytes below 2⁴⁰", stride)
    if record.offset % 16:
        context.fail(37, f"{what} starts at an unaligned offset", "a multiple of 16 bytes", record.offset)


def verify_host(context: Context) -> None:
    """The launch record, once there is one."""
    record, program = context.program.launch, context.program
    context.location = None
    if record is None:
        return
    _verify_arguments(context, record, program)
    if record.tensor_maps != program.tensor_maps:
        context.fail(39, "the launch record has other tensor maps than the program")
    if tuple(launch.kernel for launch in record.launches) != tuple(kernel.name for kernel in program.kernels):
        context.fail(39, "the launch record launches other kernels than the program's",
                     str([k.name for k in program.kernels]), [launch.kernel for launch in record.launches])  # fmt: skip
    for launch, kernel in zip(record.launches, program.kernels, strict=True):
        _verify_launch(context, launch, kernel)
    known = _integers(program)
    for symbol in _symbols(record):
        if symbol not in known:
            context.fail(39, f"the launch record uses an unknown symbol {symbol}", ", ".join(sorted(known)))


def _integers(program: Program) -> set[str]:
    scalars = {p.name for p in program.parameters if isinstance(p, ScalarParameter) and p.var.dtype.is_integer}
    return scalars | {symbol.name for symbol in program.symbols}


def _symbols(value: Any) -> set[str]:
    """Names of the symbols anywhere in a record."""
    if isinstance(value, Symbol):
        return {value.name}
    if isinstance(value, SizeOperation):
        return _symbols(value.left) | _symbols(value.right)
    if isinstance(value, tuple):
        return set().union(*(_symbols(item) for item in value))
    fields = getattr(type(value), "__dataclass_fields__", {})
    return set().union(*(_symbols(getattr(value, name)) for name in fields)) if fields else set()


def _verify_arguments(context: Context, record: LaunchRecord, program: Program) -> None:
    classes = {TensorParameter: TensorArgument, ScalarParameter: ScalarArgument}
    expected = [(classes[type(parameter)], parameter.name) for parameter in program.parameters]
    got = [(type(argument), argument.name) for argument in record.arguments]
    if expected != got:
        context.fail(39, "the launch record takes other arguments than the program",
                     str([name for _, name in expected]), [name for _, name in got])  # fmt: skip
    if [a.name for a in record.allocations] != [buffer.name for buffer in program.allocations]:
        context.fail(39, "the launch record allocates other tensors than the program")
    if record.returns != program.returns:
        context.fail(39, "the launch record returns other tensors", str(program.returns), record.returns)


def _verify_launch(context: Context, launch: KernelLaunch, kernel: Kernel) -> None:
    if launch.block != (kernel.threads, 1, 1):
        context.fail(39, f"{kernel.name} is launched with other threads", str((kernel.threads, 1, 1)), launch.block)
    if kernel.shared_bytes is not None and launch.shared_bytes != kernel.shared_bytes:
        context.fail(39, f"{kernel.name} is launched with other shared memory", str(kernel.shared_bytes),
                     launch.shared_bytes)  # fmt: skip
    if launch.dependent_launch and (launch.cooperative or not waits_for_prerequisites(kernel.body)):
        expected = "a kernel that waits for the grids in front, and whose launch is not cooperative"
        context.fail(39, f"{kernel.name} is launched before the grids in front of it have ended", expected)
    program = context.program
    scalars = {parameter.name for parameter in program.parameters if isinstance(parameter, ScalarParameter)}
    known = {
        "pointer": set(program.global_buffers()),
        "tensor_map": {record.name for record in program.tensor_maps},
        "scalar": {symbol.name for symbol in program.symbols} | scalars,
    }
    given: dict[str, set[str]] = {kind: set() for kind in known}
    for parameter in launch.parameters:
        if parameter.kind not in known or parameter.name not in known[parameter.kind]:
            context.fail(39, f"{kernel.name} has a parameter that the program does not know", got=parameter)
        given[parameter.kind].add(parameter.name)
    variables, tensors, tensor_maps = context.uses[kernel.name]
    uses = {"scalar": variables, "pointer": tensors, "tensor_map": tensor_maps}
    for kind, names in uses.items():
        if names - given[kind]:
            missing = ", ".join(sorted(names - given[kind]))
            context.fail(40, f"{kernel.name} uses what it has no parameter for", f"a parameter of kind {kind}", missing)

"""The host part: what the caller passes, what is allocated, and the launch of each kernel.

Input: gpu stage with shared memory placed. Output: the program with its :class:`~ptxtile.launch_record.LaunchRecord`.
A kernel gets as parameters just what its body uses.
"""

from __future__ import annotations

from dataclasses import replace

from ptxtile.ir.buffers import Buffer, Scope
from ptxtile.ir.expressions import Var
from ptxtile.ir.gpu_ops import PrefetchTensorMap, TmaLoad, TmaStore
from ptxtile.ir.grid_dependency_ops import waits_for_prerequisites
from ptxtile.ir.manual_ops import GridSync
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.rewrite import buffers_of, contains, walk
from ptxtile.launch_record import (
    Allocation,
    Divisibility,
    KernelLaunch,
    KernelParameter,
    LaunchRecord,
    ScalarArgument,
    Symbol,
    TensorArgument,
)
from ptxtile.lower.options import Options
from ptxtile.lower.sizes import as_size
from ptxtile.target import Target


def run(program: Program, target: Target, options: Options) -> Program:
    launches = tuple(_launch(program, kernel) for kernel in program.kernels)
    record = LaunchRecord(
        name=program.name,
        arguments=_arguments(program, launches),
        allocations=tuple(_allocation(buffer) for buffer in program.allocations),
        tensor_maps=program.tensor_maps,
        launches=launches,
        returns=program.returns,
        divisibilities=tuple(Divisibility(Symbol(f.var.name), f.divisor) for f in program.facts if f.divisor > 1),
    )
    return replace(program, launch=record)


def _allocation(buffer: Buffer) -> Allocation:
    return Allocation(buffer.name, buffer.dtype.name, tuple(as_size(size) for size in buffer.shape))


def _arguments(program: Program, launches: tuple[KernelLaunch, ...]) -> tuple[TensorArgument | ScalarArgument, ...]:
    used = {parameter.name for launch in launches for parameter in launch.parameters if parameter.kind == "pointer"}
    maps = {parameter.name for launch in launches for parameter in launch.parameters if parameter.kind == "tensor_map"}
    used |= {record.tensor for record in program.tensor_maps if record.name in maps} | set(program.returns)
    result: list[TensorArgument | ScalarArgument] = []
    for parameter in program.parameters:
        if isinstance(parameter, TensorParameter):
            buffer = parameter.buffer
            result.append(
                TensorArgument(
                    name=parameter.name,
                    dtype=buffer.dtype.name,
                    shape=tuple(as_size(size) for size in buffer.shape),
                    strides=tuple(as_size(stride) for stride in buffer.strides),
                    alignment=parameter.alignment,
                    unused=parameter.name not in used,
                )
            )
        else:
            result.append(ScalarArgument(parameter.name, parameter.var.dtype.name))
    return tuple(result)


def _launch(program: Program, kernel: Kernel) -> KernelLaunch:
    pointers, maps, scalars = set(), set(), set()
    bound = {kernel.thread.name, *(var.name for var in kernel.block_vars)}
    for node in walk(kernel.body):
        for buffer in buffers_of(node):
            if buffer.scope is Scope.GLOBAL:
                pointers.add(buffer.storage.name)
        if isinstance(node, (TmaLoad, TmaStore, PrefetchTensorMap)):
            maps.add(node.tensor_map)
        elif isinstance(node, Var) and node.name not in bound:
            scalars.add(node.name)
    parameters = [KernelParameter("pointer", name) for name in program.global_buffers() if name in pointers]
    parameters += [KernelParameter("tensor_map", r.name) for r in program.tensor_maps if r.name in maps]
    for parameter in program.parameters:
        if not isinstance(parameter, TensorParameter) and parameter.name in scalars:
            parameters.append(KernelParameter("scalar", parameter.name, parameter.var.dtype.name))
    for symbol in program.symbols:
        if symbol.name in scalars and not any(p.name == symbol.name for p in parameters):
            parameters.append(KernelParameter("scalar", symbol.name, symbol.dtype.name, Symbol(symbol.name)))
    x, y, z = (as_size(size) for size in kernel.grid)
    cooperative = contains(kernel.body, GridSync)
    return KernelLaunch(
        kernel=kernel.name,
        grid=(x, y, z),
        block=(kernel.threads, 1, 1),
        shared_bytes=kernel.shared_bytes or 0,
        parameters=tuple(parameters),
        cluster=kernel.cluster,
        cooperative=cooperative,
        dependent_launch=not cooperative and waits_for_prerequisites(kernel.body),
    )

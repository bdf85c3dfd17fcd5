"""Entry points: parameters, attributes, and the variables that a body finds bound."""

from __future__ import annotations

from ptxtile.errors import VerificationError
from ptxtile.ir import gpu_ops
from ptxtile.ir.async_copy_ops import CpAsync
from ptxtile.ir.buffers import Scope
from ptxtile.ir.effects import is_atomic
from ptxtile.ir.expressions import Load
from ptxtile.ir.grid_dependency_ops import waits_for_prerequisites
from ptxtile.ir.program import Kernel, Program, TensorParameter
from ptxtile.ir.rewrite import walk
from ptxtile.ir.statements import Store
from ptxtile.ir.types import DType, Kind, parse_dtype
from ptxtile.launch_record import KernelLaunch, KernelParameter
from ptxtile.nvvm import statements
from ptxtile.nvvm.context import Context
from ptxtile.nvvm.dtypes import memory_type
from ptxtile.nvvm.function import FunctionWriter, Value
from ptxtile.nvvm.module import ModuleWriter, check_identifier

_GRID_LIMITS = (
    (1 << 31) - 1,
    65535,
    65535,
)  # CUDA C++ Programming Guide, «Technical Specifications per Compute Capability»


def write_kernel(module: ModuleWriter, program: Program, kernel: Kernel, launch: KernelLaunch) -> None:
    """Adds the ``ptx_kernel`` of ``kernel`` to the module; its parameters are those of ``launch``, in order."""
    check_identifier(kernel.name)
    writer = FunctionWriter(module, kernel.name)
    context = Context(writer, kernel)
    suffix = ""
    if kernel.location is not None:
        context.subprogram = module.lines.subprogram(kernel.name, kernel.location)
        context.subprogram_file = kernel.location.file
        suffix = f" !dbg !{context.subprogram}"
        context.at(kernel.location)
    access = _Access(program, kernel, launch)
    context.invariant = access.invariant
    parameters = [
        _parameter(context, program, access, parameter, position)
        for position, parameter in enumerate(launch.parameters)
    ]
    _bind_indices(context, kernel)
    statements.run(context, kernel.body)
    if not writer.terminated:
        writer.finish("ret void")
    attributes = module.attributes(_kernel_attributes(kernel))
    head = f"define ptx_kernel void @{kernel.name}({', '.join(parameters)}) {attributes}{suffix} {{"
    module.functions.append(f"{head}\n{writer.body()}\n}}\n")


# -- parameters ----------------------------------------
class _Access:
    """Which global tensors a kernel reads and writes, and what may be said about them.

    A tensor that the kernel only reads, and that overlaps none that it writes, is ``invariant``: its loads may be
    moved and go through the read-only path. ``noalias`` also holds for one that is only written. One that is both
    must keep its accesses in order around barriers, for other threads access it too; so does one written through a
    tensor map.

    A kernel that waits for the grids in front of it runs while these still write: nothing of this holds then for as
    long as it runs, which is what both words promise, and what ``ld.global.nc`` (PTX ISA, «ld.global.nc») needs."""

    def __init__(self, program: Program, kernel: Kernel, launch: KernelLaunch) -> None:
        self.invariant = self.noalias = frozenset()
        if waits_for_prerequisites(kernel.body):
            return
        tensor_of_map = {record.name: record.tensor for record in program.tensor_maps}
        if program.launch is not None:
            tensor_of_map |= {record.name: record.tensor for record in program.launch.tensor_maps}
        groups = {p.name: p.alias_group for p in program.parameters if isinstance(p, TensorParameter)}
        read: set[str] = set()
        written: set[str] = set()
        through_map: set[str] = set()
        for node in walk(kernel.body):
            if isinstance(node, Load) and node.buffer.scope is Scope.GLOBAL:
                read.add(node.buffer.storage.name)
            elif isinstance(node, CpAsync):
                read.add(node.source.storage.name)
            elif isinstance(node, Store) and node.buffer.scope is Scope.GLOBAL:
                written.add(node.buffer.storage.name)
            elif is_atomic(node) and node.buffer.scope is Scope.GLOBAL:
                read.add(node.buffer.storage.name)
                written.add(node.buffer.storage.name)
            elif isinstance(node, gpu_ops.TmaStore):
                through_map.add(tensor_of_map.get(node.tensor_map, ""))
        all_written = written | through_map
        written_groups = {groups.get(name) for name in all_written} - {None}
        alone = {name for name in read | written if groups.get(name) is None}
        shared_unwritten = {
            name for name in read if groups.get(name) is not None and groups[name] not in written_groups
        }
        self.invariant = frozenset(name for name in read - all_written if name in alone or name in shared_unwritten)
        self.noalias = frozenset(name for name in alone - through_map if not (name in read and name in written))


def _parameter(context: Context, program: Program, access: _Access, parameter: KernelParameter, position: int) -> str:
    """The text of one parameter; binds its name."""
    writer, name = context.writer, f"%a{position}"
    if parameter.kind == "pointer":
        context.pointers[parameter.name] = name
        flags = "noalias " if parameter.name in access.noalias else ""
        flags += "readonly " if parameter.name in access.invariant else ""
        return f"ptr addrspace(1) {flags}align {_alignment(program, parameter.name)} {name}"
    if parameter.kind == "tensor_map":
        # as a generic address, which TMA instructions take (cvta.param)
        context.tensor_maps[parameter.name] = writer.register(f"ptrtoint ptr {name} to i64")
        return f'ptr byval([128 x i8]) align 64 "nvvm.grid_constant" {name}'
    if parameter.kind != "scalar":
        raise VerificationError(
            f"a kernel parameter of kind {parameter.kind!r}", expected="pointer, tensor_map or scalar"
        )
    dtype = parse_dtype(parameter.dtype)
    text = name
    if dtype.kind is Kind.BOOL:
        text = writer.register(f"icmp ne i8 {name}, 0")
    context.variables[parameter.name] = (Value(text, dtype),)
    return f"{memory_type(dtype)} {name}"


def _alignment(program: Program, tensor: str) -> int:
    """Bytes that the tensor's base address is a multiple of, as far as LLVM may know."""
    for parameter in program.parameters:
        if isinstance(parameter, TensorParameter) and parameter.name == tensor:
            return parameter.alignment & -parameter.alignment
    for buffer in program.allocations:
        if buffer.storage.name == tensor or buffer.name == tensor:
            return buffer.storage.alignment
    raise VerificationError(f"the kernel parameter {tensor} is no tensor of the program")


def _bind_indices(context: Context, kernel: Kernel) -> None:
    """The thread and block indices, with the ranges that they are known to have."""
    _bind_register(context, kernel.thread.name, kernel.thread.dtype, "tid.x", kernel.threads)
    for axis, variable, limit in zip("xyz", kernel.block_vars, _GRID_LIMITS, strict=True):
        _bind_register(context, variable.name, variable.dtype, f"ctaid.{axis}", limit)


def _bind_register(context: Context, name: str, dtype: DType, register: str, limit: int) -> None:
    writer = context.writer
    text = writer.call_intrinsic(f"llvm.nvvm.read.ptx.sreg.{register}", attributes=f"range(i32 0, {limit}) ")
    if dtype.bits == 64:
        text = writer.register(f"zext i32 {text} to i64")
    context.variables[name] = (Value(text, dtype),)


def _kernel_attributes(kernel: Kernel) -> str:
    """Launch bounds. setmaxnreg is honoured only where the CTAs of a multiprocessor are said too (ptxas, C7508)."""
    parts = ["convergent nounwind", f'"nvvm.maxntid"="{kernel.threads},1,1"']
    blocks = kernel.min_blocks
    if blocks == 0 and any(isinstance(node, gpu_ops.SetMaxRegisters) for node in walk(kernel.body)):
        blocks = 1
    if blocks:
        parts.append(f'"nvvm.minctasm"="{blocks}"')
    if kernel.cluster != (1, 1, 1):
        parts.append('"nvvm.cluster_dim"="{},{},{}"'.format(*kernel.cluster))
    return " ".join(parts)

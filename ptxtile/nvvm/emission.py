"""The entry point of code generation: a program of the gpu stage → LLVM IR → PTX."""

from __future__ import annotations

import time

from ptxtile.errors import VerificationError
from ptxtile.ir.program import Program
from ptxtile.nvvm import device_functions, llvm
from ptxtile.nvvm.kernel import write_kernel
from ptxtile.nvvm.module import ModuleWriter
from ptxtile.nvvm.ptx_isa import choose
from ptxtile.records import record
from ptxtile.target import Feature, Target


@record
class EmittedModule:
    """``llvm_ir``: the text before LLVM's passes. ``timings``: seconds of ``text`` (writing it), ``import`` (of
    llvmlite, the first time), ``init``, ``parse``, ``optimize`` and ``emit``."""

    llvm_ir: str
    ptx: str
    ptx_isa: tuple[int, int]
    timings: dict[str, float]


def emit(program: Program, target: Target, *, ptx_isa: tuple[int, int] | None = None) -> EmittedModule:
    """PTX for every kernel of ``program``, which is in the gpu stage with a complete launch record.

    ``ptx_isa``: None for the lowest version that suffices. Raises VerificationError for what the IR may not hold,
    TargetError for a version that is too old or unknown, CompileError when LLVM refuses the module.
    """
    start = time.perf_counter()
    module = write_module(program, target)
    isa = choose(module, ptx_isa)
    text = module.text()
    written = time.perf_counter() - start
    ptx, timings = llvm.compile_text(text, target, isa, inline=bool(program.functions))
    return EmittedModule(text, ptx, isa, {"text": written, **timings})


def write_module(program: Program, target: Target) -> ModuleWriter:
    """The module's text, before LLVM sees it."""
    if program.stage != "gpu" or program.launch is None:
        raise VerificationError(f"{program.name} is not lowered: code is made from the gpu stage with a launch record")
    launches = program.launch.launches
    if len(launches) != len(program.kernels):
        raise VerificationError(f"{program.name} has {len(program.kernels)} kernels and {len(launches)} launches")
    module = ModuleWriter(target)
    module.device_functions = {function.name: function for function in program.functions}
    functions = [device_functions.write(module, function) for function in program.functions]
    seen: set[str] = set()
    for kernel, launch in zip(program.kernels, launches, strict=True):
        if kernel.name in seen:
            raise VerificationError(f"two kernels are named {kernel.name}", location=kernel.location)
        seen.add(kernel.name)
        if kernel.cluster != (1, 1, 1):
            module.isa_reasons["clusters"] = target.isa_of(Feature.CLUSTER)
        write_kernel(module, program, kernel, launch)
    device_functions.add(module, functions)
    return module

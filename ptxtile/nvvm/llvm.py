"""Every call of llvmlite: text of an LLVM module → PTX.

Nothing that reaches this file may make LLVM abort: architectures, PTX ISA versions, intrinsics and names were checked.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

from ptxtile.errors import CompileError
from ptxtile.nvvm.assembler_faults import avoid_faults
from ptxtile.nvvm.module import TRIPLE
from ptxtile.target import Target

if TYPE_CHECKING:
    import llvmlite.binding


OPTIMIZATION_LEVEL = 2
"""Of the code generator. 3 would add global value numbering, which the emitter's own makes needless (measured: 1 ms
of 5, and equal PTX); 0 leaves out the address passes and doubles the PTX."""


@functools.cache
def initialize() -> None:
    """Registers LLVM's targets, once for the process; llvmlite offers no way to register NVPTX alone (all cost
    1 ms).

    LLVM's parser ends the process where a module with line information is not valid: it looks at the module before it
    updates the information of older versions. It shall do neither; :func:`compile_text` verifies, with an error."""
    import llvmlite.binding as llvm

    llvm.set_option("", "-disable-auto-upgrade-debug-info")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _target_machine(target: Target, isa: tuple[int, int]) -> llvmlite.binding.TargetMachine:
    import llvmlite.binding as llvm

    features = f"+ptx{isa[0]}{isa[1]}"
    nvptx = llvm.Target.from_triple(TRIPLE)
    return nvptx.create_target_machine(cpu=target.name, features=features, opt=OPTIMIZATION_LEVEL)


def _optimize(module: llvmlite.binding.ModuleRef, machine: llvmlite.binding.TargetMachine, inline: bool) -> None:
    """The passes before code generation, which has passes of its own for addresses and common subexpressions.

    Measured on kernels of 8 to 64 unrolled accesses: these three cost 1 to 8 ms and give PTX up to a fifth shorter;
    global value numbering after them costs more than it saves, and a full -O3 costs 40 ms on a large kernel without
    gain.
    """
    import llvmlite.binding as llvm

    manager = llvm.create_new_module_pass_manager()
    if inline:
        manager.add_always_inliner_pass()
    manager.add_sroa_pass()
    manager.add_instruction_combine_pass()
    manager.add_simplify_cfg_pass()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    manager.run(module, builder)


def compile_text(text: str, target: Target, isa: tuple[int, int], *, inline: bool) -> tuple[str, dict[str, float]]:
    """(PTX, seconds of each step). CompileError when LLVM does not accept the text."""
    timings: dict[str, float] = {}
    clock = time.perf_counter()

    def step(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        timings[name] = now - clock
        clock = now

    import llvmlite.binding as llvm

    step("import")
    initialize()
    machine = _target_machine(target, isa)
    step("init")
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise CompileError(f"LLVM refused the module that was made for this program:\n{error}") from error
    step("parse")
    _optimize(module, machine, inline)
    step("optimize")
    ptx = avoid_faults(machine.emit_assembly(module))
    step("emit")
    return ptx, timings

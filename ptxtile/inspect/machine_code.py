"""Machine code and resource figures of a PTX text, from NVIDIA's tools where they are installed, else from the driver.

ptxas (in the wheel nvidia-cuda-nvcc) makes a cubin, nvdisasm or cuobjdump (wheels nvidia-cuda-nvdisasm,
nvidia-cuda-cuobjdump) prints it. None of them is needed to compile or run a kernel.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import tempfile
from pathlib import Path

from ptxtile.errors import CompileError, DriverError, PtxtileError
from ptxtile.launch_record import LaunchRecord
from ptxtile.runtime.jit_log import JitLog, parse
from ptxtile.runtime.resources import KernelResources, resources_of_log

SECONDS = 120


class ToolMissing(PtxtileError):
    """What was asked for needs a program or a card that this machine does not have."""


def find_tool(name: str) -> str | None:
    """Path of an NVIDIA command-line tool: on PATH, or in an installed nvidia wheel."""
    found = shutil.which(name)
    if found:
        return found
    specification = importlib.util.find_spec("nvidia")
    roots = list(specification.submodule_search_locations or []) if specification else []
    for root in roots:
        for candidate in sorted(Path(root).glob(f"*/bin/{name}"), reverse=True):
            return str(candidate)
    return None


def assemble(ptx: str, target_name: str) -> tuple[bytes, str]:
    """The cubin that ptxas makes, and what ptxas said. ToolMissing without ptxas, CompileError when it refuses."""
    ptxas = find_tool("ptxas")
    if ptxas is None:
        raise ToolMissing("ptxas was not found", hint="pip install nvidia-cuda-nvcc, or put ptxas on PATH")
    with tempfile.TemporaryDirectory() as folder:
        source, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        source.write_text(ptx)
        command = [ptxas, "-v", "-lineinfo", f"-arch={target_name}", str(source), "-o", str(cubin)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        said = (done.stdout + done.stderr).strip()
        if done.returncode:
            raise CompileError(f"ptxas refused the PTX for {target_name}:\n{said}")
        return cubin.read_bytes(), said


def sass(ptx: str, target_name: str) -> str:
    """The machine code as text. ToolMissing names what is not there."""
    disassembler = find_tool("nvdisasm") or find_tool("cuobjdump")
    if disassembler is None:
        hint = "pip install nvidia-cuda-nvdisasm (or nvidia-cuda-cuobjdump), or put it on PATH"
        raise ToolMissing("machine code cannot be shown: neither nvdisasm nor cuobjdump was found", hint=hint)
    cubin = _cubin(ptx, target_name)
    options = ["-c"] if Path(disassembler).name == "nvdisasm" else ["-sass"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        done = subprocess.run([disassembler, *options, str(file)], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise CompileError(f"{Path(disassembler).name} failed:\n{(done.stdout + done.stderr).strip()}")
    return done.stdout


def _cubin(ptx: str, target_name: str) -> bytes:
    """From ptxas, else from the card's driver."""
    if find_tool("ptxas") is not None:
        return assemble(ptx, target_name)[0]
    from ptxtile.runtime import context, module

    try:
        with context.current(0) as driver:
            return module.to_cubin(driver, 0, ptx)
    except DriverError as error:
        raise ToolMissing("machine code needs ptxas or a card, and there is neither", got=error.message) from error


def resources(ptx: str, record: LaunchRecord, target_name: str) -> tuple[dict[str, KernelResources], JitLog]:
    """Figures of each kernel of the record, and the assembler's advice: from ptxas, else from the card (device 0).

    ToolMissing when there is neither.
    """
    from ptxtile.runtime.module import isa_of

    if find_tool("ptxas") is not None:
        log = parse(assemble(ptx, target_name)[1])
        return resources_of_log(log, record, isa_of(ptx)), log
    from ptxtile.runtime.executable import Executable

    executable = Executable(ptx, record, target_name)
    try:
        return dict(executable.resources(0)), parse(executable.log(0))
    except DriverError as error:
        raise ToolMissing("resource figures need ptxas or a card, and there is neither", got=error.message) from error

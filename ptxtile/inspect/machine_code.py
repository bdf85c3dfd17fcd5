"""Machine code and resource figures of a PTX text, from NVIDIA's tools where they are installed, else from the driver.

ptxas (in the wheel nvidia-cuda-nvcc) makes a cubin, nvdisasm or cuobjdump (wheels nvidia-cuda-nvdisasm,
nvidia-cuda-cuobjdump) prints it. None of them is needed to compile or run a kernel.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ptxtile.errors import CompileError, DriverError, PtxtileError
from ptxtile.launch_record import LaunchRecord

SECONDS = 120


class ToolMissing(PtxtileError):
    """What was asked for needs a program or a card that this machine does not have."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one kernel: registers of a thread; local memory of a thread, spill stores and loads in bytes (None: not
    known); static and dynamic shared memory of a CTA in bytes; threads of a CTA."""

    kernel: str
    registers: int
    local_bytes: int
    spill_stores: int | None
    spill_loads: int | None
    static_shared_bytes: int
    dynamic_shared_bytes: int
    threads: int


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


def resources(ptx: str, record: LaunchRecord, target_name: str) -> list[Figures]:
    """Figures of each kernel of the record, from ptxas, else from the card. ToolMissing when there is neither."""
    if find_tool("ptxas") is not None:
        return parse_figures(assemble(ptx, target_name)[1], record)
    from ptxtile.runtime.executable import Executable

    try:
        loaded = Executable(ptx, record, target_name).resources(0)
    except DriverError as error:
        raise ToolMissing("resource figures need ptxas or a card, and there is neither", got=error.message) from error
    launches = {launch.kernel: launch for launch in record.launches}
    return [
        Figures(
            name, figures.registers, figures.local_bytes, None, None, figures.static_shared_bytes,
            launches[name].shared_bytes, launches[name].block[0] * launches[name].block[1] * launches[name].block[2],
        )
        for name, figures in loaded.items()
    ]  # fmt: skip


_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def parse_figures(said: str, record: LaunchRecord) -> list[Figures]:
    """The figures in what ``ptxas -v`` said."""
    launches = {launch.kernel: launch for launch in record.launches}
    figures = []
    parts = _ENTRY.split(said)
    for name, text in zip(parts[1::2], parts[2::2], strict=True):
        if name not in launches:
            continue
        launch = launches[name]
        stack, registers, shared = _STACK.search(text), _REGISTERS.search(text), _SHARED.search(text)
        if registers is None:
            raise CompileError(f"ptxas gave no register count of {name!r}:\n{said}")
        local, stores, loads = (int(part) for part in stack.groups()) if stack else (0, None, None)
        threads = launch.block[0] * launch.block[1] * launch.block[2]
        static = int(shared[1]) if shared else 0
        figures.append(Figures(name, int(registers[1]), local, stores, loads, static, launch.shared_bytes, threads))
    return figures

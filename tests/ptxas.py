"""NVIDIA's assembler, for the tests only: every PTX that they make is assembled for each architecture it claims."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

IGNORED_SETMAXNREG = ("C7504", "C7506", "C7507", "C7508", "setmaxnreg")
"""ptxas' message codes, and the word in them, when it does not honour setmaxnreg."""


class PtxasError(Exception):
    """ptxas refused the PTX; the message holds its log."""


@functools.cache
def find() -> str:
    """The path of ptxas: of the nvidia-cuda-nvcc wheel, else on PATH. PtxasError when there is none."""
    for package in ("nvidia.cu13", "nvidia.cuda_nvcc"):
        try:
            spec = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            continue
        for folder in (spec.submodule_search_locations or []) if spec else []:
            candidate = Path(folder) / "bin" / "ptxas"
            if candidate.exists():
                return str(candidate)
    on_path = shutil.which("ptxas")
    if on_path is None:
        raise PtxasError("no ptxas: install the package's extra 'test'")
    return on_path


def assemble(ptx: str, architecture: str, *, options: tuple[str, ...] = ()) -> str:
    """The log of assembling ``ptx`` for ``architecture``: registers, spills, warnings. PtxasError when refused."""
    with tempfile.TemporaryDirectory() as folder:
        source = os.path.join(folder, "kernel.ptx")
        Path(source).write_text(ptx)
        command = [find(), "-v", f"-arch={architecture}", *options, source, "-o", os.path.join(folder, "kernel.cubin")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    log = done.stdout + done.stderr
    if done.returncode:
        raise PtxasError(f"{log}\n{ptx}")
    return log

"""A second process takes its kernel from disk, on a card: without the compiler, with the same result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
import torch
from tests.gemm import kernels
a, b = (torch.randn(256, 128, device="cuda", generator=torch.Generator("cuda").manual_seed(seed)).bfloat16()
        for seed in (1, 2))
c = kernels.gemm(a, b, transpose_B=True, block_M=128, block_N=128, threads=256)
wanted = a.double() @ b.double().T
assert (c.double() - wanted).norm() / wanted.norm() < 1e-5
print(any(name in sys.modules for name in ("ptxtile.lower.pipeline", "ptxtile.nvvm.emission", "llvmlite")))
"""


@pytest.mark.usefixtures("card")
def test_the_second_process_does_without_the_compiler(tmp_path) -> None:
    environment = {**os.environ, "PTXTILE_CACHE_DIR": str(tmp_path), "PTXTILE_VERIFY": "0"}
    environment.pop("PTXTILE_DUMP", None)
    for compiles in ("True", "False"):
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[-1] == compiles

"""Every example on the card, at its own sizes and at sizes with tails: each run is a process of its own, so that a
kernel that hangs or faults spoils no other test."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.examples.cases import FOLDER, NAMES

ARGUMENTS = {
    "elementwise_add": ["1000 1023", "1 1"],
    "gemm": ["1000 1032 1048", "65 8 8"],
    "gemm_persistent": ["3000 2056 520", "128 128 4096"],
    "gemm_bias_activation": ["1000 1032 520 none", "1000 1032 520 relu", "1000 1032 520 silu"],
    "gemm_batched": ["7 300 264 136"],
    "gemm_transposes": ["1000 1032 520", "136 72 8"],
    "gemm_int8": ["1000 1032 528"],
    "gemm_fp8": ["1000 1032 640", "1 8 128"],
    "gemm_split_k": ["136 72 4104 7", "136 72 72 3"],
    "gemm_stream_k": ["1000 1032 1048", "128 128 136"],
    "gemm_grouped": ["1032 520 0 700 1 0 129 128", "72 72 1"],
    "gemm_w4a16": ["1000 1032 512"],
    "gemm_swiglu": ["1000 1032 520"],
    "gemm_roles": ["1000 1032 520", "136 72 8"],
    "gemm_decode": ["1 4096 14336 8", "5 1032 520", "64 8192 8192", "33 1000 2056 5"],
}
"""Runs besides the one without arguments."""

NEEDS = {"gemm_fp8": (8, 9), "gemm_roles": (9, 0)}
"""The least compute capability of an example, where it is more than 8.0: 8-bit floats, TMA."""

RUNS = [
    pytest.param(name, arguments.split(), id="-".join([name, *arguments.split()]))
    for name in NAMES
    for arguments in ("", *ARGUMENTS.get(name, ()))
]


@pytest.mark.parametrize("name, arguments", RUNS)
def test_example(name: str, arguments: list[str], card) -> None:
    import torch

    needed = NEEDS.get(name, (8, 0))
    if torch.cuda.get_device_capability(card) < needed:
        pytest.skip(f"{name} needs compute capability {needed[0]}.{needed[1]}")
    paths = [str(FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    command = [sys.executable, str(FOLDER / f"{name}.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n") == 1 and f"on {card.type}: " in done.stdout and not done.stderr

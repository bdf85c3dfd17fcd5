"""Every example runs by itself on this machine, in a process of its own, and checks its own result."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ARGUMENTS = {"elementwise_add.py": [[], ["1000", "1023"], ["1", "1"]]}
"""Runs besides the one without arguments."""
SAYS = {"gemm.py": "relative error"}
"""What an example prints about its check; the others: that the results equal torch's."""

RUNS = [
    pytest.param(example, arguments, id="-".join([example.stem, *arguments]))
    for example in EXAMPLES
    for arguments in ARGUMENTS.get(example.name, [[]])
]


@pytest.mark.parametrize("example, arguments", RUNS)
def test_example(example: Path, arguments: list[str], tmp_path: Path) -> None:
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    done = subprocess.run([sys.executable, str(example), *arguments], capture_output=True, text=True, timeout=250,
                          cwd=tmp_path, env=environment)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert SAYS.get(example.name, "equal torch") in done.stdout and not done.stderr
    import torch

    if not torch.cuda.is_available():
        assert done.stdout.count("the lowered program runs in the simulator\n") == 1


def test_there_are_examples() -> None:
    assert EXAMPLES

"""The simulator: runs lowered programs on the CPU. ``run`` loads NumPy and the machine when it is first called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ptxtile import config
from ptxtile.errors import CheckError, SimulationError

if TYPE_CHECKING:
    import torch

    from ptxtile.ir.program import Program


def run(
    program: Program, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, int | float], **options: Any
) -> None:
    """See :func:`ptxtile.sim.launch.run`. Under ``PTXTILE_SIM=check`` the checker runs the program first, on copies;
    CheckError when it finds something, and then nothing has been written."""
    mode = config.read("PTXTILE_SIM")
    if mode == "check":
        from ptxtile.sim.check.run import check

        report = check(program, tensors, scalars)
        if not report.clean:
            raise CheckError(program.name, report)
    elif mode not in ("", "run"):
        raise SimulationError("the environment variable PTXTILE_SIM", expected="run or check", got=repr(mode))
    from ptxtile.sim.launch import run as run_program

    run_program(program, tensors, scalars, **options)

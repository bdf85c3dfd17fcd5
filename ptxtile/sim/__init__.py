"""The simulator: runs lowered programs on the CPU. ``run`` loads NumPy and the machine when it is first called."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from ptxtile.ir.program import Program


def run(
    program: Program, tensors: Mapping[str, torch.Tensor], scalars: Mapping[str, int | float], **options: Any
) -> None:
    """See :func:`ptxtile.sim.launch.run`."""
    from ptxtile.sim.launch import run as run_program

    run_program(program, tensors, scalars, **options)

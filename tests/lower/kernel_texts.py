"""Programs of one kernel written as IR text, single passes run on them, and the text of what comes out."""

from __future__ import annotations

from itertools import takewhile
from textwrap import dedent, indent
from typing import Any

import torch

from ptxtile import sim, target
from ptxtile.compiler import lower_program
from ptxtile.ir.parser import parse_program
from ptxtile.ir.printer import print_program
from ptxtile.ir.program import Program
from ptxtile.ir.rewrite import walk
from ptxtile.ir.verifier import verify
from ptxtile.lower.options import Options


def kernel_program(
    body: str, declarations: str = "", *, grid: str = "(1, 1, 1)", threads: int = 128, stage: str = "tile"
) -> Program:
    """A verified program whose kernel ``kernel(bx, by, bz, tx)`` has ``body``; both texts may be indented."""
    program = parse_program(
        f'ptxtile_ir(1)\nprogram("kernel", stage="{stage}")\n{dedent(declarations)}\n'
        f"@kernel(grid={grid}, threads={threads}, user_threads={threads})\n"
        f"def kernel(bx, by, bz, tx):\n{indent(dedent(body), '    ')}"
    )
    verify(program)
    return program


def body_text(program: Program) -> str:
    """The text of the first kernel's body, unindented."""
    _, _, after = print_program(program).partition("\n@kernel")
    lines = after.splitlines()[2:]
    return dedent("\n".join(takewhile(lambda line: line.startswith(" "), lines)))


def text(expected: str) -> str:
    return dedent(expected).strip()


def apply(module: Any, program: Program, arch: str = "sm_90a", options: Options | None = None) -> Program:
    """What one pass makes of ``program``, verified."""
    result = module.run(program, target.get(arch), options or Options())
    verify(result)
    return result


def nodes(of: Program, kind: type) -> list[Any]:
    """Every node of a class in the first kernel, in program order."""
    return [node for node in walk(of.kernels[0].body) if isinstance(node, kind)]


def reasons(of: Program, pass_name: str) -> list[str]:
    return [why.reason for why in of.why if why.pass_name == pass_name]


def lowered(program: Program, arch: str = "sm_90a", options: Options | None = None) -> Program:
    """``program`` at the gpu stage, every pass verified."""
    return lower_program(program, target.get(arch), options or Options())[0]


def simulated(
    program: Program, arch: str = "sm_90a", options: Options | None = None, **tensors: torch.Tensor
) -> Program:
    """The lowered program after a run on ``tensors`` in the simulator, in place."""
    result = lowered(program, arch, options)
    sim.run(result, tensors, {})
    return result
